"""S as servers gave it: every arm against plain decoding at the same concurrency, block by block, for validation.csv.

    S measured      seconds per token of plain decoding over those of the arm, while all streams decode; the mean over
                    blocks, by way of γ = 0 there on a server that takes every γ in turn
    of requests     tokens a second of the arm over those of plain decoding, prefills included
    over best fixed seconds per token of the γ that was fastest, chosen with hindsight, over those of a policy
    forced          drafts were accepted at a given rate: S predicted is then that of the measured costs at its Ω

Blocks for validation count where there are any, else those that costs were made of: they then say whether a round's
time and tokens add up to what clients see, and nothing about other texts. What a run exports is a policy, too: of an
engine that follows no schedule, the γ that is exported at the batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from specgauge.configs.engines import EXPORTED
from specgauge.model.checks import FloatArray
from specgauge.model.speedup import speedup, tokens_per_round
from specgauge.model.stats.bootstrap import interval_around
from specgauge.sweeps.analysis.decoded import empty_row
from specgauge.sweeps.analysis.served import mean_replicates, paired_blocks, speedup_replicates, speedups_of_blocks
from specgauge.sweeps.analysis.settings import RunSetting
from specgauge.sweeps.store.counts import read_counts
from specgauge.sweeps.store.exported import read_exports
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey
from specgauge.sweeps.store.served import Purpose, ServedRow, read_served

Arm = int | str
"""A γ or a policy."""


def _cells(run: Run, settings: Iterable[RunSetting]) -> Iterator[tuple[DecodedKey, list[ServedRow]]]:
    """Every cell of every setting with its blocks that count."""
    rows = [row for row in read_served(run.path) if row.reason is None]
    for setting in settings:
        key = setting.key
        own = [row for row in rows if (row.pair, row.sampling) == (key.pair, key.sampling)]
        for batch_size, context in sorted({(row.batch_size, row.context) for row in own}):
            at = DecodedKey(
                pair=key.pair,
                mode=key.mode,
                sampling=key.sampling,
                draft_sampling=key.draft_sampling,
                acceptance_rule=key.acceptance_rule,
                batch_size=batch_size,
                start_context=context,
            )
            yield at, [row for row in own if (row.batch_size, row.context) == (batch_size, context)]


def served_validation(
    run: Run, settings: Iterable[RunSetting], predicted: Mapping[tuple[DecodedKey, int], float]
) -> Iterator[dict[str, Any]]:
    """A row for every cell and γ above 0 that was measured beside plain decoding; predicted: S by cell and γ."""
    counts = read_counts(run.path)
    for at, cell in _cells(run, settings):
        for gamma in sorted({row.gamma for row in cell if row.gamma}):
            rounds = sum(
                one.rounds or 0
                for one in counts
                if (one.pair, one.sampling, one.gamma) == (at.pair, at.sampling, gamma)
                and (one.batch_size, one.context) == (at.batch_size, at.start_context)
            )
            purpose = _purpose(cell, gamma, ("forced", "validation", "timing"))
            if purpose is None:
                continue
            row = _row(run, at, cell, gamma, purpose) | {"gamma": gamma, "mean_gamma": None, "rounds_counted": rounds}
            measured, found = row["speedup_measured"], predicted.get((at, gamma))
            if purpose == "forced":
                row |= _forced(run, cell, gamma, measured)
            elif measured is not None and found is not None:
                row |= {"speedup_predicted": found, "error": found / measured - 1.0}
            yield row


def served_policies(run: Run, settings: Iterable[RunSetting]) -> Iterator[dict[str, Any]]:
    """A row for every cell and policy of its engine that was measured beside plain decoding, and for what is exported.

    The interval of the ratio to the best fixed γ is that of blocks that both have; of a policy that is this γ itself it
    is 1 without any width.
    """
    exported = {row.key: row for row in read_exports(run.path)}
    for at, cell in _cells(run, settings):
        arms: dict[str, Arm] = {row.policy: row.policy for row in cell if row.policy is not None}
        own = exported.get((at.pair, at.sampling, at.start_context))
        if own is not None and own.settings is None:
            arms[EXPORTED] = own.gamma(at.batch_size)
        for policy, arm in sorted(arms.items(), key=lambda one: (one[0] != EXPORTED, one[0])):
            purpose = _purpose(cell, arm, ("validation",) if policy == EXPORTED else ("validation", "timing"))
            if purpose is not None:
                fixed = _over_best_fixed(run, cell, arm, purpose)
                yield _row(run, at, cell, arm, purpose) | {"policy": policy} | fixed


def _purpose(cell: Sequence[ServedRow], arm: Arm, among: Sequence[Purpose]) -> Purpose | None:
    """Which blocks tell S of an arm: the first purpose that has some beside plain decoding."""
    return next((one for one in among if paired_blocks(cell, one, arm)), None)


def _row(run: Run, at: DecodedKey, cell: Sequence[ServedRow], arm: Arm, purpose: Purpose) -> dict[str, Any]:
    """What is known of an arm by its blocks."""
    blocks = paired_blocks(cell, purpose, arm)
    drafts = [own.drafts_per_round for _, own in blocks]
    return empty_row(at) | {
        "blocks": len(blocks),
        "tokens": sum(own.tokens or 0 for _, own in blocks),
        "lossless": True,
        "measured_in": purpose,
        "t_round_s": _mean([own.t_round_s for _, own in blocks]),
        "mean_gamma": _mean(drafts) if isinstance(arm, str) else float(arm),
        "rounds_counted": sum(own.rounds or 0 for _, own in blocks),
        "speedup_whole": _ratio([(own.tokens_per_s, plain.tokens_per_s) for plain, own in blocks]),
        **_interval(run, "speedup_measured", _log_speedups(run, cell, purpose, arm)),
    }


def _log_speedups(run: Run, cell: Sequence[ServedRow], purpose: Purpose, arm: Arm) -> FloatArray | None:
    replicates, seed = run.config.precision.replicates, (run.config.seed,)
    return speedup_replicates(cell, purpose, arm, replicates=replicates, seed=seed)


def _interval(run: Run, name: str, found: FloatArray | None) -> dict[str, float | None]:
    """The columns of a ratio of seconds per token with its interval, from replicates of its logarithm."""
    if found is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    value, low, high = interval_around(np.exp(found), run.config.precision.confidence)
    return {name: value, f"{name}_low": _known(low), f"{name}_high": _known(high)}


def _over_best_fixed(run: Run, cell: Sequence[ServedRow], arm: Arm, purpose: Purpose) -> dict[str, Any]:
    """The γ that was fastest in the blocks of a purpose, and an arm over it; {} where no γ was run beside it."""
    fixed: dict[int, float] = {}
    for gamma in sorted({row.gamma for row in cell if row.gamma}):
        own = _log_speedups(run, cell, purpose, gamma)
        if own is not None and paired_blocks(cell, purpose, arm, beside=gamma):
            fixed[gamma] = float(own[0])
    if not fixed:
        return {}
    best = max(fixed, key=lambda gamma: fixed[gamma])
    logs = np.log(speedups_of_blocks(paired_blocks(cell, purpose, arm, beside=best))).tolist()
    ratio = mean_replicates(logs, replicates=run.config.precision.replicates, seed=(run.config.seed,))
    return {"best_fixed_gamma": best, **_interval(run, "over_best_fixed", ratio)}


def _forced(run: Run, cell: Sequence[ServedRow], gamma: int, measured: float | None) -> dict[str, Any]:
    """What the measured costs give at the Ω of drafts that were accepted at a given rate, and at the Ω counted."""
    asked = run.config.validation.acceptance if run.config.validation is not None else None
    if asked is None:
        return {}
    alphas = np.array(asked[:gamma] if isinstance(asked, tuple) else [asked] * gamma)
    rows = [row for row in cell if row.purpose == "forced" and row.gamma == gamma]
    share = min(1.0, (_mean([row.drafts_per_round for row in rows]) or gamma) / gamma)
    omega = 1.0 + share * (float(tokens_per_round(np.cumprod(alphas))) - 1.0)
    counted = _mean([row.tokens_per_round_requests or row.tokens_per_round_counters for row in rows])
    rates = ", ".join(f"{alpha:g}" for alpha in alphas) if isinstance(asked, tuple) else f"{asked:g}"
    found: dict[str, Any] = {
        "lossless": False,
        "why_not_lossless": f"drafts were accepted at the rate {rates}",
        "tokens_per_round_predicted": omega,
        "tokens_per_round_counted": counted,
        "acceptance_error": None if counted is None else omega / counted - 1.0,
    }
    plain_s, round_s = (
        [row.t_round_s for row in cell if row.purpose == "timing" and row.gamma == one and row.t_round_s]
        for one in (0, gamma)
    )
    if not plain_s or not round_s or not measured:
        return found
    times = {"t_decode_s": median(plain_s), "t_round_s": median(round_s)}
    predicted = float(speedup(omega, **times))
    found |= {"speedup_predicted": predicted, "error": predicted / measured - 1.0}
    if counted is not None:
        from_counts = float(speedup(counted, **times))
        found |= {"speedup_from_counts": from_counts, "cost_error": from_counts / measured - 1.0}
    return found


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ratio(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """The geometric mean of own over other."""
    known = [np.log(own / other) for own, other in pairs if own and other]
    return float(np.exp(np.mean(known))) if known else None
