"""S as servers gave it: γ against plain decoding at the same concurrency, block by block, as rows of validation.csv.

    S measured      seconds per token of plain decoding over those of γ, while all streams decode; the mean over blocks
    of requests     tokens a second of γ over those of plain decoding, prefills included

Blocks for validation count where there are any, else those that costs were made of: they then say whether a round's
time and tokens add up to what clients see, and nothing about other texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from specgauge.model.stats.bootstrap import interval_around
from specgauge.sweeps.analysis.decoded import empty_row
from specgauge.sweeps.analysis.served import mean_replicates, paired_blocks, speedups_of_blocks
from specgauge.sweeps.analysis.settings import RunSetting
from specgauge.sweeps.store.counts import read_counts
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey
from specgauge.sweeps.store.served import ServedRow, read_served

Blocks = Mapping[int, Mapping[int, ServedRow]]
"""Of one cell, by γ and number."""


def served_validation(
    run: Run, settings: Iterable[RunSetting], predicted: Mapping[tuple[DecodedKey, int], float]
) -> Iterator[dict[str, Any]]:
    """A row for every cell and γ above 0 that was measured beside plain decoding; predicted: S by cell and γ."""
    rows = [row for row in read_served(run.path) if row.reason is None]
    counts = read_counts(run.path) if rows else ()
    for setting in settings:
        key = setting.key
        own = [row for row in rows if (row.pair, row.sampling) == (key.pair, key.sampling)]
        for batch_size, context in sorted({(row.batch_size, row.context) for row in own}):
            cell = [row for row in own if (row.batch_size, row.context) == (batch_size, context)]
            at = DecodedKey(
                pair=key.pair,
                mode=key.mode,
                sampling=key.sampling,
                draft_sampling=key.draft_sampling,
                acceptance_rule=key.acceptance_rule,
                batch_size=batch_size,
                start_context=context,
            )
            for gamma in sorted({row.gamma for row in cell if row.gamma}):
                rounds = sum(
                    one.rounds or 0
                    for one in counts
                    if (one.pair, one.sampling, one.gamma) == (key.pair, key.sampling, gamma)
                    and (one.batch_size, one.context) == (batch_size, context)
                )
                found = _row(run, at, cell, gamma, predicted.get((at, gamma)))
                if found is not None:
                    yield found | {"rounds_counted": rounds}


def _row(
    run: Run, at: DecodedKey, cell: Sequence[ServedRow], gamma: int, predicted: float | None
) -> dict[str, Any] | None:
    for purpose in ("validation", "timing"):
        blocks = paired_blocks(cell, purpose, gamma)
        if blocks:
            break
    else:
        return None
    logs = np.log(speedups_of_blocks(blocks)).tolist()
    measured = mean_replicates(logs, replicates=run.config.precision.replicates, seed=(run.config.seed,))
    row = empty_row(at) | {
        "gamma": gamma,
        "blocks": len(blocks),
        "tokens": sum(own.tokens or 0 for _, own in blocks),
        "lossless": True,
        "measured_in": purpose,
        "t_round_s": _mean([own.t_round_s for _, own in blocks]),
        "speedup_whole": _ratio([(own.tokens_per_s, plain.tokens_per_s) for plain, own in blocks]),
    }
    if measured is not None:
        value, low, high = interval_around(np.exp(measured), run.config.precision.confidence)
        row |= {"speedup_measured": value, "speedup_measured_low": _known(low), "speedup_measured_high": _known(high)}
        if predicted is not None:
            row |= {"speedup_predicted": predicted, "error": predicted / value - 1.0}
    return row


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ratio(pairs: Sequence[tuple[float | None, float | None]]) -> float | None:
    """The geometric mean of own over other."""
    known = [np.log(own / other) for own, other in pairs if own and other]
    return float(np.exp(np.mean(known))) if known else None
