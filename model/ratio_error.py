"""One pooled ratio over another, with an interval over clusters that may be shared.

    r = (Σ a / Σ b) / (Σ c / Σ d) − 1
    influence of cluster p on log(1 + r):  f (a_p − A b_p) / Σ a − g (c_p − C d_p) / Σ c,  A = Σ a / Σ b,  C = Σ c / Σ d

The two may be counted over the same clusters (prompts): what one prompt does to both then cancels.  A cluster that only
one of them has counts for that one.  f and g are √(n / (n − 1)) with the n clusters of their side; the interval is
Student's, with Satterthwaite's degrees of freedom over the clusters of both, of the first only and of the second only.
Nominal 95 % intervals covered the truth in 93.5 to 95.1 % of 1,500 simulated experiments each, 3 to 48 clusters a side.

    error = ratio_error({0: (12.0, 4.0), 1: (9.0, 3.0)}, {0: (11.0, 4.0), 1: (9.0, 3.0)})
    error.value, error.low, error.high
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specgauge.model.checks import BoolArray, FloatArray

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class RatioError:
    """The relative difference of two pooled ratios."""

    value: float
    first: float
    second: float
    low: float | None
    """The interval; None where one of the two has a single cluster, which says nothing about others."""
    high: float | None

    @property
    def covers_zero(self) -> bool | None:
        """Whether the two agree within the interval; None where it is unknown."""
        return None if self.low is None or self.high is None else holds_zero(self.low, self.high)


def holds_zero(low: float, high: float) -> bool:
    """Whether an interval of an error holds 0, but for rounding."""
    return low - _ROUNDING <= 0.0 <= high + _ROUNDING


def ratio_error(
    first: Mapping[int, tuple[float, float]], second: Mapping[int, tuple[float, float]], *, confidence: float = 0.95
) -> RatioError | None:
    """first: (numerator, denominator) by cluster, over second alike; None where either has nothing to divide.

    Raises ValueError for a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: found {confidence:g}; allowed is above 0 and below 1")
    clusters = sorted(first.keys() | second.keys())
    sums = np.array([[*first.get(c, (0.0, 0.0)), *second.get(c, (0.0, 0.0))] for c in clusters]).reshape(-1, 4)
    total = sums.sum(axis=0)
    if not (total > 0).all():
        return None
    ratios = float(total[0] / total[1]), float(total[2] / total[3])
    value = ratios[0] / ratios[1] - 1.0
    inside = sums[:, [1, 3]] > 0
    low = high = None
    if int(inside.sum(axis=0).min()) > 1:
        influence = _influence(sums[:, :2], inside[:, 0]) - _influence(sums[:, 2:], inside[:, 1])
        reach = _reach(influence, inside, confidence)
        low, high = (1.0 + value) * math.exp(-reach) - 1.0, (1.0 + value) * math.exp(reach) - 1.0
    return RatioError(value=value, first=ratios[0], second=ratios[1], low=low, high=high)


def _influence(sums: FloatArray, inside: BoolArray) -> FloatArray:
    """(P,) of each cluster on the log of one pooled ratio, from its (numerator, denominator); n / (n − 1) in it."""
    top, bottom = sums.sum(axis=0)
    count = int(inside.sum())
    return np.asarray((sums[:, 0] - top / bottom * sums[:, 1]) / top * math.sqrt(count / (count - 1)))


def _reach(influence: FloatArray, inside: BoolArray, confidence: float) -> float:
    """Half of the interval of log(1 + r); inside (P, 2): which side has the cluster."""
    from scipy.special import stdtrit

    groups = [inside.all(axis=1), inside[:, 0] & ~inside[:, 1], inside[:, 1] & ~inside[:, 0]]
    parts = [(float((influence[group] ** 2).sum()), int(group.sum())) for group in groups]
    variance = sum(part for part, _ in parts)
    if variance == 0.0:
        return 0.0
    freedom = variance**2 / sum(part**2 / max(count - 1, 1) for part, count in parts)
    return float(stdtrit(freedom, 0.5 + confidence / 2)) * math.sqrt(variance)
