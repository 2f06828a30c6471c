"""One pooled ratio over another, with an interval over clusters that may be shared.

    r = (Σ a / Σ b) / (Σ c / Σ d) − 1
    influence of cluster p on log(1 + r):  (a_p − A b_p) / Σ a − (c_p − C d_p) / Σ c,   A = Σ a / Σ b,  C = Σ c / Σ d

The two may be counted over the same clusters (prompts): what one prompt does to both then cancels.  A cluster that only
one of them has counts for that one.

    error = ratio_error({0: (12.0, 4.0), 1: (9.0, 3.0)}, {0: (11.0, 4.0), 1: (9.0, 3.0)})
    error.value, error.low, error.high
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class RatioError:
    """The relative difference of two pooled ratios."""

    value: float
    first: float
    second: float
    low: float | None
    """The interval; None from a single cluster."""
    high: float | None

    @property
    def covers_zero(self) -> bool | None:
        """Whether the two agree within the interval; None where it is unknown."""
        if self.low is None or self.high is None:
            return None
        return self.low - _ROUNDING <= 0.0 <= self.high + _ROUNDING


_ROUNDING = 1e-9


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
    ratios = total[0] / total[1], total[2] / total[3]
    value = float(ratios[0] / ratios[1] - 1.0)
    low = high = None
    if len(clusters) > 1:
        from scipy.stats import t

        influence = (sums[:, 0] - ratios[0] * sums[:, 1]) / total[0] - (sums[:, 2] - ratios[1] * sums[:, 3]) / total[2]
        count = len(clusters)
        error = math.sqrt(float((influence**2).sum()) * count / (count - 1))
        reach = float(t.ppf(0.5 + confidence / 2, count - 1)) * error
        low, high = float((1.0 + value) * math.exp(-reach) - 1.0), float((1.0 + value) * math.exp(reach) - 1.0)
    return RatioError(value=value, first=float(ratios[0]), second=float(ratios[1]), low=low, high=high)
