from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from specgauge.model.validate import RatioError, holds_zero, ratio_error

Counts = dict[int, tuple[float, float]]

FEW = settings(max_examples=40)
numerators = st.integers(1, 50).map(float)
sides = st.dictionaries(st.integers(0, 12), st.tuples(numerators, numerators), min_size=2, max_size=8)


def close(value: float | None) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


def known(error: RatioError | None) -> tuple[float, float, float]:
    assert error is not None
    assert error.low is not None
    assert error.high is not None
    return error.value, error.low, error.high


def test_two_shared_clusters_by_hand() -> None:
    """First 21/7 = 3, influences ±(12 − 3·4)/21 = 0; second 20/7, influences ±(11 − 80/7)/20 = ∓3/140, times √2."""
    error = ratio_error({0: (12.0, 4.0), 1: (9.0, 3.0)}, {0: (11.0, 4.0), 1: (9.0, 3.0)})
    assert error is not None
    assert (error.first, error.second) == (3.0, close(20 / 7))
    assert error.value == close(0.05)
    reach = float(t.ppf(0.975, 1)) * math.sqrt(2 * 2 * (3 / 140) ** 2)
    assert known(error)[1:] == (close(1.05 * math.exp(-reach) - 1), close(1.05 * math.exp(reach) - 1))


def test_separate_clusters_by_hand() -> None:
    """Four clusters of 10 rounds against two of other prompts.

    First: 2 tokens a round, influences (15 − 20)/80 = −1/16 and 1/16, twice: variance 4/3 · 4/256 = 1/48 of 4 clusters.
    Second: 2 tokens a round, influences ±(18 − 20)/40 = ∓1/20: variance 2 · 2/400 = 1/100 of 2 clusters.
    """
    first = {0: (15.0, 10.0), 1: (25.0, 10.0), 2: (15.0, 10.0), 3: (25.0, 10.0)}
    value, low, high = known(ratio_error(first, {7: (18.0, 10.0), 8: (22.0, 10.0)}, confidence=0.9))
    variance = 1 / 48 + 1 / 100
    freedom = variance**2 / ((1 / 48) ** 2 / 3 + (1 / 100) ** 2 / 1)
    reach = float(t.ppf(0.95, freedom)) * math.sqrt(variance)
    assert (value, low, high) == (0.0, close(math.exp(-reach) - 1), close(math.exp(reach) - 1))


@FEW
@given(sides)
def test_the_same_counts_on_both_sides_differ_by_nothing(counts: Counts) -> None:
    error = ratio_error(counts, counts)
    assert known(error) == (0.0, 0.0, 0.0)


@FEW
@given(sides, sides)
def test_swapping_the_sides_inverts(first: Counts, second: Counts) -> None:
    value, low, high = known(ratio_error(first, second))
    there = known(ratio_error(second, first))
    assert there == (close(1 / (1 + value) - 1), close(1 / (1 + high) - 1), close(1 / (1 + low) - 1))


@FEW
@given(sides, sides, st.sampled_from([0.25, 3.0, 100.0]))
def test_units_do_not_matter(first: Counts, second: Counts, unit: float) -> None:
    value, low, high = known(ratio_error(first, second))
    scaled = {cluster: (unit * top, unit * bottom) for cluster, (top, bottom) in first.items()}
    assert known(ratio_error(scaled, second)) == (close(value), close(low), close(high))
    more = {cluster: (unit * top, bottom) for cluster, (top, bottom) in first.items()}
    found = known(ratio_error(more, second))
    assert found == tuple(close(unit * (1 + one) - 1) for one in (value, low, high))


@FEW
@given(sides, sides)
def test_names_of_clusters_and_clusters_without_a_count_do_not_matter(first: Counts, second: Counts) -> None:
    expected = tuple(close(one) for one in known(ratio_error(first, second)))
    assert (
        known(ratio_error({100 - c: v for c, v in first.items()}, {100 - c: v for c, v in second.items()})) == expected
    )
    assert known(ratio_error(first | {50: (0.0, 0.0)}, second | {51: (0.0, 0.0)})) == expected


@FEW
@given(sides, sides)
def test_the_value_lies_in_its_interval_and_more_confidence_is_wider(first: Counts, second: Counts) -> None:
    value, low, high = known(ratio_error(first, second))
    _, inner_low, inner_high = known(ratio_error(first, second, confidence=0.5))
    assert low - 1e-12 <= inner_low <= value + 1e-12
    assert value - 1e-12 <= inner_high <= high + 1e-12


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({}, {0: (1.0, 1.0)}),
        ({0: (1.0, 1.0)}, {0: (0.0, 0.0)}),
        ({0: (0.0, 3.0)}, {0: (1.0, 1.0)}),
    ],
)
def test_nothing_to_divide_is_none(first: Counts, second: Counts) -> None:
    assert ratio_error(first, second) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({0: (3.0, 2.0)}, {0: (2.0, 2.0)}),
        ({0: (3.0, 2.0)}, {1: (2.0, 2.0)}),
        ({0: (3.0, 2.0), 1: (0.0, 0.0)}, {0: (2.0, 2.0), 1: (0.0, 0.0)}),
        ({0: (3.0, 2.0)}, {0: (1.0, 1.0), 1: (1.0, 1.0)}),
        ({0: (1.0, 1.0), 1: (2.0, 1.0)}, {0: (2.0, 2.0)}),
    ],
)
def test_a_single_cluster_says_nothing_about_others(first: Counts, second: Counts) -> None:
    error = ratio_error(first, second)
    assert error is not None
    assert error.value == 0.5
    assert (error.low, error.high) == (None, None)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, math.nan])
def test_confidence_is_a_probability(confidence: float) -> None:
    with pytest.raises(ValueError, match=r"confidence: found .*; allowed is above 0 and below 1"):
        ratio_error({0: (1.0, 1.0)}, {0: (1.0, 1.0)}, confidence=confidence)


@pytest.mark.parametrize(("judged", "decoded"), [(8, 8), (30, 4)])
def test_intervals_cover_as_often_as_they_say(judged: int, decoded: int) -> None:
    """Both sides count the same prompts, each with its own acceptance; 200 experiments, 95 % nominal."""
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        rates = np.clip(generator.normal(0.6, 0.15, judged), 0.05, 0.95)

        def counts(prompts: int, rates: np.ndarray[tuple[int], np.dtype[np.float64]] = rates) -> Counts:
            accepted = generator.random((prompts, 15, 3)) < rates[:prompts, None, None]
            tokens = 15 + np.cumprod(accepted, axis=2).sum(axis=(1, 2))
            return {prompt: (float(count), 15.0) for prompt, count in enumerate(tokens)}

        _, low, high = known(ratio_error(counts(judged), counts(decoded)))
        covered += holds_zero(low, high)
    assert 0.88 <= covered / 200 <= 0.99
