"""What a simulation returns: sums of each replication, and their means with standard errors.

Ratios are pooled (sum over sum) and carry the standard error of a ratio,
sd(top - ratio * bottom) / (mean bottom * sqrt R).  R replications, N requests in each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from specgauge.model.checks import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A Monte Carlo mean and its standard error (NaN from a single replication)."""

    value: float
    standard_error: float

    def agrees_with(self, expected: float, *, standard_errors: float = 4.0) -> bool:
        """Whether `expected` lies within so many standard errors (a hair is left for rounding)."""
        return abs(self.value - expected) <= standard_errors * self.standard_error + 1e-9 * abs(expected)


@dataclass(frozen=True, kw_only=True)
class SimulatedRuns:
    """Sums of each replication, (R,), and the seconds at which each request ended, (R, N)."""

    seconds: FloatArray
    batch_rounds: IntArray
    row_rounds: IntArray
    """Rounds counted once for each active row."""
    emitted: IntArray
    drafted: IntArray
    accepted: IntArray
    finished_s: FloatArray
    started_s: FloatArray
    """(R, N): when the request entered a slot, its prefill still ahead."""

    def tokens_per_round(self) -> Estimate:
        """Tokens per row and round, pooled over replications (whole texts, shrunk last rounds included)."""
        return _ratio(self.emitted, self.row_rounds)

    def mean_seconds(self) -> Estimate:
        """Seconds until the last request of a replication ends."""
        return _mean(self.seconds)

    def mean_batch_rounds(self) -> Estimate:
        """Rounds until the last request of a replication ends."""
        return _mean(self.batch_rounds)

    def throughput_tokens_per_s(self) -> Estimate:
        """Tokens per second over whole replications."""
        return _ratio(self.emitted, self.seconds)

    def mean_request_seconds(self) -> Estimate:
        """Seconds from a request's entering a slot to its end."""
        return _mean(np.asarray((self.finished_s - self.started_s).mean(axis=1)))


def _mean(values: FloatArray | IntArray) -> Estimate:
    error = float(values.std(ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.nan
    return Estimate(value=float(values.mean()), standard_error=error)


def _ratio(top: FloatArray | IntArray, bottom: FloatArray | IntArray) -> Estimate:
    """sum / sum over replications, with the standard error of a ratio."""
    value = float(top.sum() / bottom.sum())
    spread = _mean(np.asarray(top - value * bottom, dtype=np.float64))
    return Estimate(value=value, standard_error=spread.standard_error / float(bottom.mean()))
