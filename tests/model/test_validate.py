"""Predictions against what was decoded: exact intervals and z by hand, and intervals that cover what they claim."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t

from specgauge.model.validate import PairedSpeeds, holds_zero, ratio_error, round_check
from tests.model.made import known

Counts = dict[int, tuple[float, float]]

FEW = settings(max_examples=40)
numerators = st.integers(1, 50).map(float)
sides = st.dictionaries(st.integers(0, 12), st.tuples(numerators, numerators), min_size=2, max_size=8)


def close(value: Any) -> Any:
    return None if value is None else pytest.approx(value, rel=1e-9, abs=1e-9)


def test_two_shared_clusters_by_hand() -> None:
    """First 21/7 = 3, influences ±(12 − 3·4)/21 = 0; second 20/7, influences ±(11 − 80/7)/20 = ∓3/140, times √2."""
    error = ratio_error({0: (12.0, 4.0), 1: (9.0, 3.0)}, {0: (11.0, 4.0), 1: (9.0, 3.0)})
    assert error is not None
    assert (error.first, error.second) == (3.0, close(20 / 7))
    reach = float(t.ppf(0.975, 1)) * math.sqrt(2 * 2 * (3 / 140) ** 2)
    assert known(error) == close((0.05, 1.05 * math.exp(-reach) - 1, 1.05 * math.exp(reach) - 1))


def test_separate_clusters_by_hand() -> None:
    """Four clusters of 10 rounds against two of other prompts.

    First: 2 tokens a round, influences (15 − 20)/80 = −1/16 and 1/16, twice: variance 4/3 · 4/256 = 1/48 of 4 clusters.
    Second: 2 tokens a round, influences ±(18 − 20)/40 = ∓1/20: variance 2 · 2/400 = 1/100 of 2 clusters.
    """
    first = {0: (15.0, 10.0), 1: (25.0, 10.0), 2: (15.0, 10.0), 3: (25.0, 10.0)}
    found = known(ratio_error(first, {7: (18.0, 10.0), 8: (22.0, 10.0)}, confidence=0.9))
    variance = 1 / 48 + 1 / 100
    freedom = variance**2 / ((1 / 48) ** 2 / 3 + (1 / 100) ** 2 / 1)
    reach = float(t.ppf(0.95, freedom)) * math.sqrt(variance)
    assert found == close((0.0, math.exp(-reach) - 1, math.exp(reach) - 1))


@FEW
@given(sides, sides, st.sampled_from([0.25, 3.0, 100.0]))
def test_sides_units_and_names_of_clusters(first: Counts, second: Counts, unit: float) -> None:
    assert known(ratio_error(first, first)) == (0.0, 0.0, 0.0)
    value, low, high = known(ratio_error(first, second))
    swapped = known(ratio_error(second, first))
    assert swapped == close((1 / (1 + value) - 1, 1 / (1 + high) - 1, 1 / (1 + low) - 1))
    scaled = {cluster: (unit * top, unit * bottom) for cluster, (top, bottom) in first.items()}
    assert known(ratio_error(scaled, second)) == close((value, low, high))
    more = {cluster: (unit * top, bottom) for cluster, (top, bottom) in first.items()}
    assert known(ratio_error(more, second)) == close(tuple(unit * (1 + one) - 1 for one in (value, low, high)))
    renamed = ({100 - cluster: counts for cluster, counts in side.items()} for side in (first, second))
    assert known(ratio_error(*renamed)) == close((value, low, high))
    assert known(ratio_error(first | {50: (0.0, 0.0)}, second | {51: (0.0, 0.0)})) == close((value, low, high))
    _, inner_low, inner_high = known(ratio_error(first, second, confidence=0.5))
    assert low - 1e-12 <= inner_low <= value + 1e-12
    assert value - 1e-12 <= inner_high <= high + 1e-12


@pytest.mark.parametrize(
    ("first", "second"),
    [({}, {}), ({}, {0: (1.0, 1.0)}), ({0: (1.0, 1.0)}, {0: (0.0, 0.0)}), ({0: (0.0, 3.0)}, {0: (1.0, 1.0)})],
)
def test_nothing_to_divide_is_none(first: Counts, second: Counts) -> None:
    assert ratio_error(first, second) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({0: (3.0, 2.0)}, {1: (2.0, 2.0)}),
        ({0: (3.0, 2.0), 1: (0.0, 0.0)}, {0: (2.0, 2.0), 1: (0.0, 0.0)}),
        ({0: (3.0, 2.0)}, {0: (1.0, 1.0), 1: (1.0, 1.0)}),
        ({0: (1.0, 1.0), 1: (2.0, 1.0)}, {0: (2.0, 2.0)}),
    ],
)
def test_a_single_cluster_says_nothing_about_others(first: Counts, second: Counts) -> None:
    error = ratio_error(first, second)
    assert error is not None
    assert (error.value, error.low, error.high) == (0.5, None, None)


@pytest.mark.parametrize(("predicted", "decoded"), [(8, 8), (30, 4)])
def test_intervals_of_ratios_cover_as_often_as_they_say(predicted: int, decoded: int) -> None:
    """Both sides count the same prompts, each with its own acceptance; 200 experiments, 95 % nominal."""
    generator = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        rates = np.clip(generator.normal(0.6, 0.15, predicted), 0.05, 0.95)

        def counts(prompts: int, rates: np.ndarray[tuple[int], np.dtype[np.float64]] = rates) -> Counts:
            accepted = generator.random((prompts, 15, 3)) < rates[:prompts, None, None]
            tokens = 15 + np.cumprod(accepted, axis=2).sum(axis=(1, 2))
            return {prompt: (float(count), 15.0) for prompt, count in enumerate(tokens)}

        _, low, high = known(ratio_error(counts(predicted), counts(decoded)))
        covered += holds_zero(low, high)
    assert 0.88 <= covered / 200 <= 0.99


def speeds(seconds: Any, prompts: Any, committed: Any = None) -> PairedSpeeds:
    times = np.asarray(seconds, dtype=np.float64)
    tokens = np.full(times.shape, 12.0) if committed is None else np.asarray(committed, dtype=np.float64)
    return PairedSpeeds(gammas=(1, 2, 4), committed=tokens, seconds=times, prompts=np.asarray(prompts))


def test_speeds_are_sums_over_sums() -> None:
    """36 tokens in 4 + 8 s, 24 in 6 + 2 s, 24 in 3 + 5 s: 3, 3 and 3 tokens a second, and then one that is faster."""
    found = speeds([[4, 6, 3], [8, 2, 5]], [0, 1], [[12, 12, 12], [24, 12, 12]])
    assert found.best() == 1
    assert found.share_of_best(2).value == pytest.approx(1.0, rel=1e-15)
    faster = speeds([[4, 6, 3], [8, 2, 3]], [0, 1], [[12, 12, 12], [24, 12, 12]])
    assert faster.best() == 4
    assert [faster.share_of_best(gamma).value for gamma in (2, 4)] == pytest.approx([0.75, 1.0], rel=1e-15)
    with pytest.raises(ValueError, match="not in tuple"):
        faster.share_of_best(3)


def test_what_the_blocks_cannot_say_of_these_prompts_or_of_others_is_none() -> None:
    once = speeds([[1, 2, 3], [1, 3, 4]], [0, 1]).share_of_best(2)
    assert once.half_width is None
    assert once.half_width_of_others is not None
    one_prompt = speeds([[1, 2, 3], [1, 3, 4]], [7, 7]).share_of_best(2)
    assert one_prompt.half_width is not None
    assert one_prompt.half_width_of_others is None
    by_prompt = speeds([[1, 2, 3], [1, 2, 3], [1, 5, 6], [1, 5, 6]], [0, 0, 1, 1]).share_of_best(2)
    assert by_prompt.half_width == pytest.approx(0.0, abs=1e-12)
    assert (by_prompt.half_width_of_others or 0) > 0.1


def test_the_best_is_uncertain_where_another_may_be_faster() -> None:
    """Two γ of which now one, now the other is faster: which is best is chance, and so is what the other loses."""
    share = speeds([[1.0, 1.3, 9.0], [1.25, 1.0, 9.0]] * 4, [0, 0, 1, 1, 2, 2, 3, 3]).share_of_best(1)
    assert share.value == 1.0
    assert 0.02 < (share.half_width or 0) < 0.2
    sure = speeds([[1.0, 1.3, 9.0], [1.0, 1.4, 9.0]] * 4, [0, 0, 1, 1, 2, 2, 3, 3]).share_of_best(1)
    assert (sure.value, sure.half_width, sure.half_width_of_others) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(("prompts", "repetitions"), [(1, 3), (4, 2), (8, 3)])
def test_intervals_of_shares_cover_what_they_claim(prompts: int, repetitions: int) -> None:
    """The share of these prompts had they been decoded forever: inside in 95 % of 300 experiments, give or take."""
    generator = np.random.default_rng(3)
    inside = 0
    for _ in range(300):
        level = np.exp(generator.normal([0.3, 0.0, 2.0], 0.1, (prompts, 1, 3)))
        noise = np.exp(generator.normal(0.0, 0.02, (prompts, repetitions, 3)))
        found = speeds((level * noise).reshape(-1, 3), np.repeat(np.arange(prompts), repetitions)).share_of_best(1)
        truth = level[:, 0, 1].sum() / level[:, 0, 0].sum()
        assert found.half_width is not None
        inside += abs(found.value - truth) <= found.half_width
    assert 0.9 <= inside / 300 <= 0.99


def test_z_by_hand() -> None:
    """Differences 1, −1, 3: total 3, deviation 2, so z = 3 / (√3 · 2); of t with 2 degrees, p = 1 − z / √(z² + 2)."""
    check = round_check([11, 9, 13], [10.0, 10.0, 10.0])
    assert check.standard_errors == pytest.approx(3 / (math.sqrt(3) * 2), abs=1e-12)
    assert check.p_value == pytest.approx(1 - math.sqrt(0.75) / math.sqrt(0.75 + 2), abs=1e-12)
    assert (check.counted, check.expected, check.prompts, check.agrees) == (33, 30.0, 3, True)
    assert check.warning() is None


def test_five_standard_errors_disagree_in_one_line() -> None:
    """100 prompts that differ by 1 ± 2: z is near 5."""
    expected = np.full(100, 20.0)
    counted = expected + np.where(np.arange(100) % 2 == 0, 3, -1)
    check = round_check(counted.astype(int), expected)
    assert check.standard_errors == pytest.approx(100 / (10 * 2 * math.sqrt(100 / 99)), abs=1e-9)
    assert not check.agrees
    assert check.warning() == (
        "the decoder took 2100 rounds where its own texts' acceptance says 2000.0, +5.0 standard errors; "
        "decoder and acceptance do not describe the same process"
    )


@pytest.mark.parametrize(
    ("counted", "expected", "agrees", "z", "p_value"),
    [
        # z is 9, but with one degree of freedom p = 2 arctan(1 / 9) / π = .07
        ([30, 29], [25.0, 25.0], True, 9.0, 2 * math.atan(1 / 9) / math.pi),
        # greedy rounds leave nothing to chance: no difference agrees, the same one in 16 prompts does not
        ([4, 7], [4.0, 7.0], True, None, None),
        ([5, 8] * 8, [4.0, 7.0] * 8, False, None, 2.0**-15),
        ([5, 8], [4.0, 7.0], True, None, 0.5),
        # one prompt tells roughly: a difference over its expected rounds
        ([9], [6.0], True, None, None),
        ([13], [6.0], False, None, None),
    ],
)
def test_few_prompts_prove_little(
    counted: list[int], expected: list[float], agrees: bool, z: float | None, p_value: float | None
) -> None:
    check = round_check(counted, expected)
    assert (check.agrees, check.standard_errors, check.p_value) == (agrees, close(z), close(p_value))


def test_rounding_of_probabilities_is_no_disagreement() -> None:
    assert round_check([1000, 1000], [1000 - 1e-4, 1000 - 1.1e-4]).agrees


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *((lambda c=c: ratio_error({}, {}, confidence=c), "confidence: ") for c in (0.0, 1.0, math.nan)),
        (
            lambda: speeds(np.ones((1, 2)), [0], np.ones((2, 3))),
            r"committed: .*\(2, 3\) and \(1, 2\) of 1 blocks and 3",
        ),
        (lambda: speeds(np.ones((2, 3)), [0, 1], np.zeros((2, 3))), "committed: expected .*got 0"),
        (lambda: speeds(np.full((2, 3), -1.0), [0, 1]), "seconds: expected .*got -1"),
        (lambda: round_check([], []), "rounds: expected .*got shapes"),
        (lambda: round_check([1, 2], [1.0]), "rounds: expected .*got shapes"),
        (lambda: round_check([[1]], [[1.0]]), "rounds: expected .*got shapes"),
    ],
)
def test_what_cannot_be_compared_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
