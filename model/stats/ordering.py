"""Orders in which the first few stand for all: evenly spread texts tell more of a workload than the first ones do."""

from __future__ import annotations

import numpy as np

from specgauge.model.checks import FloatArray


def spread_order(values: FloatArray) -> list[int]:
    """Indices of `values` (N,) in an order whose every beginning is spread evenly over their ranks.

    Ranks follow the van der Corput sequence in base 2 (1/2, 1/4, 3/4, 1/8, …; Kuipers and Niederreiter, Uniform
    Distribution of Sequences, 1974, chapter 2.3): the median comes first, then the quartiles. NaN comes last.
    """
    by_rank = np.argsort(values, kind="stable")  # which puts NaN last
    known = int(np.count_nonzero(~np.isnan(values)))
    bits = max(known - 1, 0).bit_length()
    fractions = (
        [int(format(place, f"0{bits}b")[::-1], 2) / (1 << bits) for place in range(1, 1 << bits)] if bits else []
    )
    ranks = dict.fromkeys([*(int(known * fraction) for fraction in fractions), *range(len(values))])
    return [int(by_rank[rank]) for rank in ranks]
