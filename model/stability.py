"""When to stop sampling a time, and whether it drifted: order statistics only, no assumption on the noise.

    interval of a median:  [x_(k), x_(n+1-k)],  the largest k with  1 - 2 P(Bin(n, 1/2) < k) >= confidence
    half-width:            (high - low) / (2 median),  compared with precision.relative_ci
    drift:                 median of the later half / median of the earlier half - 1,  reported over 5 %

The interval is exact for independent samples of any continuous law (David & Nagaraja, Order Statistics, 7.1); samples
of one block share its conditions, so what a result's doubt is made of resamples blocks (`specgauge.model.bootstrap`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import positive_times_s

DRIFT_THRESHOLD = 0.05


@dataclass(frozen=True, kw_only=True)
class MedianInterval:
    """A median with its distribution-free interval; the ends are None with too few samples for the confidence."""

    median_s: float
    low_s: float | None
    high_s: float | None

    @property
    def relative_half_width(self) -> float | None:
        """Half the interval's width over the median; None where the interval is unknown."""
        if self.low_s is None or self.high_s is None:
            return None
        return (self.high_s - self.low_s) / (2 * self.median_s)

    def meets(self, relative_ci: float) -> bool:
        """Is the median known to within relative_ci on either side?"""
        width = self.relative_half_width
        return width is not None and width <= relative_ci


@dataclass(frozen=True, kw_only=True)
class Drift:
    """The two halves of a series of samples in the order they were taken."""

    earlier_s: float
    """Median of the first half."""
    later_s: float
    """Median of the second half; the middle one of an odd number is in neither."""

    @property
    def relative_change(self) -> float:
        """How much slower (above 0) or faster the later half is."""
        return self.later_s / self.earlier_s - 1

    @property
    def drifted(self) -> bool:
        """Did the halves differ by more than 5 %?"""
        return abs(self.relative_change) > DRIFT_THRESHOLD


def median_interval(samples_s: ArrayLike, confidence: float = 0.9) -> MedianInterval:
    """The median of samples (n,) in seconds and its interval at a confidence in (0, 1).

    At 0.9, five samples are the fewest that give an interval (their range). Raises ValueError without samples, for
    times that are not above 0 and for a confidence outside (0, 1).
    """
    times = np.sort(positive_times_s("samples_s", samples_s).ravel())
    if times.size == 0:
        raise ValueError("samples_s: found none; allowed is at least one time")
    rank = _interval_rank(times.size, confidence)
    return MedianInterval(
        median_s=float(np.median(times)),
        low_s=float(times[rank - 1]) if rank else None,
        high_s=float(times[-rank]) if rank else None,
    )


def fewest_samples(confidence: float = 0.9) -> int:
    """The fewest samples for which a median has an interval at this confidence: 5 at 0.9."""
    _check_confidence(confidence)
    return math.ceil(1 - math.log2(1 - confidence))


def drift(samples_s: ArrayLike) -> Drift | None:
    """Compare the halves of samples (n,) taken one after the other; None with fewer than two.

    Raises ValueError for times that are not above 0.
    """
    times = positive_times_s("samples_s", samples_s).ravel()
    half = times.size // 2
    if half == 0:
        return None
    return Drift(earlier_s=float(np.median(times[:half])), later_s=float(np.median(times[-half:])))


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: found {confidence:g}; allowed is above 0 and below 1")


@lru_cache(maxsize=4096)
def _interval_rank(count: int, confidence: float) -> int:
    """The largest k with 1 - 2 P(Bin(count, 1/2) < k) >= confidence; 0 when there is none."""
    _check_confidence(confidence)
    allowed = (1 - confidence) / 2 * (1 + 1e-12)
    below, term, rank = 0, 1, 0
    while rank <= count // 2:
        below += term
        if below / (1 << count) > allowed:
            return rank
        term = term * (count - rank) // (rank + 1)
        rank += 1
    return (count + 1) // 2
