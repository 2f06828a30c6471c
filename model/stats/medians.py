"""How well a median is known: a distribution-free interval from order statistics, and when two halves drifted apart.

For n independent samples, the interval from the l-th smallest to the l-th largest covers the median with probability
1 − 2·P(Bin(n, 1/2) < l), whatever the distribution (Conover, Practical Nonparametric Statistics, section 3.2).

    low, high = median_interval(samples, confidence=0.9)
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike


@lru_cache(maxsize=4096)
def order_statistic_rank(count: int, confidence: float) -> int | None:
    """The largest l (1-based) whose interval, l-th smallest to l-th largest, covers with `confidence`; None if none."""
    tail, rank = 0.0, 0
    for below in range(count // 2):
        tail += math.comb(count, below) / 2**count
        if 1.0 - 2.0 * tail < confidence:
            break
        rank = below + 1
    return rank or None


def median_interval(samples: ArrayLike, confidence: float = 0.9) -> tuple[float, float] | None:
    """(low, high) around the median of 1-D samples; None where there are too few for the confidence asked.

    Raises:
        ValueError: samples that are not finite, or a confidence outside (0, 1).
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence: expected a number in (0, 1), got {confidence}")
    values = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    if not np.isfinite(values).all():
        raise ValueError("samples: expected finite numbers, got a value that is not finite")
    rank = order_statistic_rank(values.size, confidence)
    if rank is None:
        return None
    return float(values[rank - 1]), float(values[-rank])


def relative_half_width(samples: ArrayLike, confidence: float = 0.9) -> float:
    """Half the interval of the median as a fraction of the median; infinite where it is not known at all."""
    interval = median_interval(samples, confidence)
    middle = 0.0 if interval is None else float(np.median(np.asarray(samples, dtype=np.float64)))
    return (interval[1] - interval[0]) / 2.0 / middle if interval is not None and middle > 0.0 else math.inf


def worst_half_width(samples: ArrayLike, confidence: float = 0.9, *, round_s: float | None = None) -> float:
    """`relative_half_width` of the mark that is known worst, of samples (n, marks).

    With `round_s` it is a fraction of a round of so many seconds instead of the mark's own median: what matters of an
    arm far shorter than its round.
    """
    marks = np.asarray(samples, dtype=np.float64).T
    if round_s is None:
        return max(relative_half_width(mark, confidence) for mark in marks)
    intervals = [median_interval(mark, confidence) for mark in marks]
    return max(math.inf if ends is None else (ends[1] - ends[0]) / 2.0 / round_s for ends in intervals)


def drift(samples: ArrayLike) -> float | None:
    """The later half's median over the earlier half's, minus 1; None with fewer than four samples.

    Samples are in the order they were taken; a machine that heats up and throttles shows a positive drift.
    """
    values = np.asarray(samples, dtype=np.float64).ravel()
    half = values.size // 2
    if half < 2:
        return None
    early = float(np.median(values[:half]))
    return float(np.median(values[-half:])) / early - 1.0 if early > 0.0 else None
