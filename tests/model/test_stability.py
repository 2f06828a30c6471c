import math

import numpy as np
import pytest

from specgauge.model.stability import Drift, drift, fewest_samples, median_interval


def coverage(count: int, rank: int) -> float:
    return 1 - 2 * float(sum(math.comb(count, i) for i in range(rank)) / 2**count)


@pytest.mark.parametrize(("count", "rank"), [(5, 1), (7, 1), (8, 2), (10, 2), (20, 6), (50, 19), (100, 42)])
def test_the_ranks_of_the_tables_at_ninety_per_cent(count: int, rank: int) -> None:
    samples = np.arange(1.0, count + 1)[::-1]
    found = median_interval(samples)
    assert (found.low_s, found.high_s) == (rank, count + 1 - rank)
    assert coverage(count, rank) >= 0.9 > coverage(count, rank + 1)
    assert found.median_s == (count + 1) / 2


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_too_few_samples_have_a_median_and_no_interval(count: int) -> None:
    found = median_interval([2.0] * count)
    assert found.median_s == 2.0
    assert found.low_s is None
    assert found.relative_half_width is None
    assert not found.meets(1.0)


@pytest.mark.parametrize(("confidence", "count"), [(0.5, 2), (0.8, 4), (0.9, 5), (0.95, 6), (0.99, 8)])
def test_fewest_samples(confidence: float, count: int) -> None:
    assert fewest_samples(confidence) == count
    assert median_interval(np.arange(1.0, count + 1), confidence).low_s == 1
    assert median_interval(np.arange(1.0, count), confidence).low_s is None


def test_relative_half_width_decides_when_to_stop() -> None:
    found = median_interval([0.98, 1.0, 1.0, 1.0, 1.04])
    assert found.relative_half_width == pytest.approx(0.03, abs=1e-12)
    assert found.meets(0.0301)
    assert not found.meets(0.0299)


def test_the_interval_covers_as_promised() -> None:
    generator = np.random.default_rng(0)
    samples = generator.lognormal(0, 1, (2000, 11))  # rank 3 of 11: 93.5 %
    covered = [
        (found.low_s or 0) <= 1.0 <= (found.high_s or 0) for found in (median_interval(row) for row in samples)
    ]  # fmt: skip
    assert np.mean(covered) == pytest.approx(coverage(11, 3), abs=5 * math.sqrt(0.06 / 2000))


def test_halves_that_differ_by_more_than_five_per_cent_drift() -> None:
    assert drift([1.0]) is None
    steady = drift([1.0, 1.04, 9.0, 1.04, 1.0])
    assert steady == Drift(earlier_s=1.02, later_s=1.02)
    assert not steady.drifted
    slower = drift([1.0, 1.0, 1.06, 1.06])
    assert slower is not None
    assert slower.relative_change == pytest.approx(0.06)
    assert slower.drifted
    faster = drift([1.0, 0.94])
    assert faster is not None
    assert faster.drifted


def test_bad_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="samples_s: found none"):
        median_interval([])
    with pytest.raises(ValueError, match=r"samples_s \(item 2\): found 0, allowed: seconds, above 0"):
        median_interval([1.0, 0.0])
    with pytest.raises(ValueError, match=r"samples_s .* a finite number"):
        drift([1.0, math.nan])
    with pytest.raises(ValueError, match="confidence: found 1"):
        median_interval([1.0], 1.0)
    with pytest.raises(ValueError, match="confidence: found 0"):
        fewest_samples(0)
