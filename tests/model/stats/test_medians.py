"""The distribution-free interval of a median: exact ranks, coverage, and when it does not exist."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specgauge.model.stats.medians import (
    drift,
    median_interval,
    order_statistic_rank,
    relative_half_width,
    worst_half_width,
)


@pytest.mark.parametrize(
    ("count", "confidence", "rank"),
    [
        (1, 0.9, None),
        (4, 0.9, None),  # 1 - 2/16 = 0.875
        (5, 0.9, 1),  # 1 - 2/32 = 0.9375
        (8, 0.9, 2),  # 1 - 2·9/256 = 0.9297
        (10, 0.9, 2),  # l = 3 covers 1 - 2·56/1024 = 0.891
        (15, 0.9, 4),  # 1 - 2·576/32768 = 0.965; l = 5 covers 0.882
        (15, 0.8, 5),
    ],
)
def test_ranks(count: int, confidence: float, rank: int | None) -> None:
    assert order_statistic_rank(count, confidence) == rank


def test_intervals_and_half_widths_by_hand() -> None:
    samples = [3.0, 1.0, 2.0, 5.0, 4.0]
    assert median_interval(samples) == (1.0, 5.0)
    assert relative_half_width(samples) == pytest.approx(2.0 / 3.0)
    assert relative_half_width([0.01] * 5) == 0.0
    assert median_interval([1.0, 1.0, 1.0, 1.0]) is None
    assert relative_half_width([1.0]) == relative_half_width([]) == math.inf
    # the worst mark, or its share of a round: the interval of five samples is their range
    steady, wide = [1.0] * 5, [0.5, 1.0, 1.0, 1.0, 1.5]
    assert worst_half_width(np.array([steady, wide]).T) == relative_half_width(wide) == 0.5
    assert worst_half_width(np.array([steady, wide]).T, round_s=100.0) == 0.005
    assert worst_half_width(np.empty((0, 1))) == worst_half_width(np.empty((0, 1)), round_s=100.0) == math.inf


@pytest.mark.parametrize("samples", [[1.0, math.nan, 1.0, 1.0, 1.0], [math.inf] * 6])
def test_values_that_are_not_finite_are_refused(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="not finite"):
        median_interval(samples)


def test_coverage_on_a_skewed_law() -> None:
    draws = np.random.default_rng(5).exponential(size=(2000, 25))
    rank = order_statistic_rank(25, 0.9)
    assert rank == 8
    ordered = np.sort(draws, axis=1)
    covered = (ordered[:, rank - 1] <= math.log(2)) & (ordered[:, -rank] >= math.log(2))
    exact = 1 - 2 * sum(math.comb(25, k) for k in range(8)) / 2**25
    assert covered.mean() == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 2000))


def test_drift_compares_halves() -> None:
    assert drift([1.0, 1.0, 1.1, 1.1]) == pytest.approx(0.1)
    assert drift([2.0, 2.0, 9.0, 1.0, 1.0]) == pytest.approx(-0.5)
    assert drift([1.0, 1.0, 1.0]) is None
