"""What a run had no time for: the one command that measures it, and that no other remedy stands beside it. No torch.

    left_out_warnings(config, outcomes, anew=False)     # … run the same command with --set limits.run_seconds=450: …
    with_one_remedy(warnings, outcomes)                 # what is open for want of samples has that remedy, too

The same command with the same seconds spends them on what is missing, in the shares of its stages; where these do not
hold what is missing, the seconds that should are told. Samples that a busy machine disturbed stay with a run that goes
on: then it is measured anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from specgauge.sweeps.plan import planned_pairs
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.schema import WarningRow

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

RUN_SECONDS, VALIDATION_SECONDS = "limits.run_seconds", "validate.max_seconds"
NEIGHBOURS = "decoding of the γ beside the recommended ones"
"""As what was left out is told: a run that goes on keeps the γ of the blocks it has."""
OUT_OF_TIME = "out_of_time"
ANEW = {"busy_machine", "drift", "cost_error"}
"""Warnings of what further samples do not mend: it is measured again."""
OF_ALL_PAIRS = {"undecided", "gamma_uncertain"}
UNFINISHED = OF_ALL_PAIRS | {"not_converged", "few_prompts", "search_left_open"}
"""Warnings of what is open for want of samples."""
ROOM = 1.2
"""Of seconds that are foreseen, for what takes longer."""


def left_out_warnings(config: Config, outcomes: Mapping[str, PairOutcome], *, anew: bool) -> Iterator[WarningRow]:
    """What there was no time for, by pair, in one line; anew: what was measured is of no use to go on from."""
    short = {pair: one for pair, one in outcomes.items() if one.left_out}
    if short:
        told = "; ".join(f"pair {pair}: {', '.join(one.left_out)}" for pair, one in short.items())
        yield WarningRow(
            code="out_of_time",
            message=f"no time was left for {told}",
            remedy=_more_time(config, list(short.values()), anew=anew),
        )


def _more_time(config: Config, short: Sequence[PairOutcome], *, anew: bool) -> str:
    """The command that measures what there was no time for, with the seconds that this should take."""
    begin = "close other programs and measure again with" if anew else "measure again with"
    anew = anew or all(one.left_out == [NEIGHBOURS] for one in short)
    limits = [
        one
        for one in (
            _limit_text(RUN_SECONDS, config.limits.run_seconds, _run_seconds(config, short), anew=anew),
            _limit_text(VALIDATION_SECONDS, *_decoding_seconds(config, short), anew=False),
        )
        if one
    ]
    if anew:
        return f"{begin} {' and '.join(['--fresh', *limits])}"
    if limits:
        return f"run the same command with {' and '.join(limits)}: it goes on where it stopped"
    return "run the same command again, which goes on: what is missing should fit into the same seconds"


def _run_seconds(config: Config, short: Sequence[PairOutcome]) -> float | None:
    """Seconds of a call that should hold what is missing, all pairs together; 0 where only decoding has its own end."""
    own = [one for one in short if not all(part.endswith(f"{VALIDATION_SECONDS})") for part in one.left_out)]
    if not own:
        return 0.0
    known = [one.needed_s for one in own if one.needed_s is not None]
    return max(known) * len(planned_pairs(config)) if len(known) == len(own) else None


def _decoding_seconds(config: Config, short: Sequence[PairOutcome]) -> tuple[float | None, float | None]:
    """(the limit of decoding end to end, what should hold what it left out); (None, 0) where it ended nothing."""
    own = [one for one in short if any(part.endswith(f"{VALIDATION_SECONDS})") for part in one.left_out)]
    if not own or config.validation is None:
        return None, 0.0
    known = [one.needed_decoding_s for one in own if one.needed_decoding_s is not None]
    return config.validation.max_seconds, max(known) if len(known) == len(own) else None


def _limit_text(name: str, now_s: float | None, needed_s: float | None, *, anew: bool) -> str:
    """`--set limits.run_seconds=450` where the limit is too small, `a larger …` where nothing tells; else empty.

    anew: what was measured within the limit is to be measured again.
    """
    if now_s is None or needed_s == 0.0:
        return ""
    if needed_s is None:
        return f"a larger {name}"
    wanted_s = ROOM * needed_s + (now_s if anew else 0.0)
    return f"--set {name}={_readable(wanted_s)}" if wanted_s > now_s else ""


def _readable(seconds: float) -> int:
    """Rounded up to two digits."""
    step = int(10 ** max(0, math.floor(math.log10(seconds)) - 1))
    return math.ceil(seconds / step) * step


def with_one_remedy(found: Sequence[WarningRow], outcomes: Mapping[str, PairOutcome]) -> Iterator[WarningRow]:
    """Where time ran out, what is open for want of samples has the remedy of that, and no other beside it."""
    remedy = next((one.remedy for one in found if one.code == OUT_OF_TIME), None)
    places = tuple(f"pair {pair}{mark}" for pair, one in outcomes.items() if one.left_out for mark in ":,")
    for row in found:
        is_short = row.code in UNFINISHED and (row.message.startswith(places) or row.code in OF_ALL_PAIRS)
        yield row if remedy is None or not is_short else replace(row, remedy=remedy)
