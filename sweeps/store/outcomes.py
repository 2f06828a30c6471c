"""outcomes.json: what went wrong with each pair, and what was met in its models and prompts, as the last run found it.

    keep_outcomes(path, {"p": PairOutcome(bad_input="pair 'p' target: …")})
    read_outcomes(path)["p"].bad_input

Whatever derives the answers reads the reasons from here. A pair of which there is nothing to say is not in it, and
where there is nothing to say of any there is no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from pydantic.dataclasses import dataclass

from specgauge.configs.errors import short
from specgauge.sweeps.store.rows import RUN_AGAIN, plain, read_mapping, row_of, write_mapping
from specgauge.sweeps.store.rundir import OUTCOMES
from specgauge.sweeps.store.schema import EXACT, Flag, NotNegative, Text, WarningRow

OUT_OF_TIME = "left out: limits.run_seconds is spent"
"""Why a sampling setting has no acceptance, where there was no time for any."""
ALL_MISSING = "whatever was missing"
"""What is left out of a pair that was not begun."""


@dataclass(kw_only=True, config=EXACT)
class PairOutcome:
    """What went wrong with a pair; empty when nothing did."""

    bad_input: Text | None = None
    """What the user has to put right: a model, a prompt or a context that does not fit."""
    died: Text | None = None
    """How its process died, where that ended the pair."""
    failed: Flag = False
    """Something failed that is nobody's input: the exit code says so."""
    acceptance_reasons: dict[str, Text] = field(default_factory=dict)
    """Why a sampling setting has no acceptance, by its name."""
    refused_texts: dict[str, Text] = field(default_factory=dict)
    """A hash of the prompts and models whose texts were of no use under a sampling setting, by its name."""
    validation_reasons: dict[str, Text] = field(default_factory=dict)
    """Why a cell was not decoded end to end, or not completely, by the cell's label."""
    left_out: list[Text] = field(default_factory=list)
    """What there was no time for."""
    needed_s: NotNegative | None = None
    """Seconds of one call in which all of that should fit, this pair's share of them; None where nothing tells."""
    needed_decoding_s: NotNegative | None = None
    """Of `validate.max_seconds`, where that is what ended the decoding end to end."""
    warnings: list[WarningRow] = field(default_factory=list)
    """What was met in its models and prompts."""


def together(parts: Sequence[PairOutcome], *, at_once: int = 1) -> PairOutcome:
    """The outcome of a pair that was measured in parts, so many of them at once."""
    needed_s = [one.needed_s for one in parts if one.left_out]
    known_s = [seconds for seconds in needed_s if seconds is not None]
    decoding_s = [one.needed_decoding_s for one in parts if one.needed_decoding_s is not None]

    def joined(name: str) -> dict[str, str]:
        return {key: value for one in parts for key, value in getattr(one, name).items()}

    return PairOutcome(
        bad_input=next((one.bad_input for one in parts if one.bad_input is not None), None),
        died="; ".join(one.died for one in parts if one.died is not None) or None,
        failed=any(one.failed for one in parts),
        acceptance_reasons=joined("acceptance_reasons"),
        refused_texts=joined("refused_texts"),
        validation_reasons=joined("validation_reasons"),
        left_out=list(dict.fromkeys(what for one in parts for what in one.left_out)),
        needed_s=sum(known_s) / min(at_once, len(parts)) if known_s and len(known_s) == len(needed_s) else None,
        needed_decoding_s=max(decoding_s, default=None),
        warnings=list({(row.code, row.message): row for one in parts for row in one.warnings}.values()),
    )


def read_outcomes(path: Path) -> dict[str, PairOutcome]:
    """By pair, of the run directory `path`; {} where there is nothing to say.

    Raises:
        ValueError: the file is damaged, foreign or of another release.
    """
    if not (path / OUTCOMES).exists():
        return {}
    pairs = read_mapping(path / OUTCOMES).get("pairs")
    if not isinstance(pairs, dict):
        raise ValueError(f"{path / OUTCOMES}, pairs: expected a mapping, got {short(pairs)}; {RUN_AGAIN}")
    return {name: row_of(PairOutcome, one, f"{path / OUTCOMES}, pairs.{name}") for name, one in pairs.items()}


def keep_outcomes(path: Path, outcomes: Mapping[str, PairOutcome]) -> None:
    """Keep the outcomes in place of the older ones; what is known of a pair that was not begun stays.

    Raises:
        StorageError: the disk refused it; the older file stays.
    """
    try:
        before = read_outcomes(path)
    except ValueError:  # it is written anew
        before = {}
    kept = {
        name: replace(before[name], failed=False, left_out=one.left_out)
        if ALL_MISSING in one.left_out and name in before
        else one
        for name, one in outcomes.items()
    }
    told = {name: plain(one) for name, one in kept.items() if one != PairOutcome()}
    if told:
        write_mapping(path / OUTCOMES, {"pairs": told})
    else:
        (path / OUTCOMES).unlink(missing_ok=True)
