"""One alpha from counts: the likelihood's maximum, its interval, and the test that says when it misleads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.acceptance.alpha import (
    alpha_from_accepted_over_drafted,
    one_alpha_from_clusters,
    one_alpha_from_counts,
    one_alpha_from_survival,
    wilson_interval,
)
from specgauge.model.speedup import survival_iid, tokens_per_round_iid


def test_alpha_judged_is_accepted_over_judged_not_over_drafted() -> None:
    fit = one_alpha_from_counts([3, 2, 1], [4, 3, 2])
    assert fit.alpha_judged == 6 / 9
    assert fit.alpha_judged != 6 / 12


def test_alpha_omega_reproduces_the_measured_tokens_per_round() -> None:
    fit = one_alpha_from_counts([60, 45, 9], [100, 60, 45])
    assert float(tokens_per_round_iid(fit.alpha_omega, 3)) == pytest.approx(1 + 0.6 + 0.45 + 0.09, rel=1e-12)


def test_wilson_interval_by_hand() -> None:
    low, high = wilson_interval(0.5, 1, 0.9)
    z2 = 1.6448536269514722**2
    half = (0.25 * z2 + z2 * z2 / 4) ** 0.5 / (1 + z2)
    assert (low, high) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-12)
    assert wilson_interval(0.0, 10, 0.9)[0] == 0.0
    assert wilson_interval(1.0, 10, 0.9)[1] == 1.0


def test_even_counts_fit_and_uneven_counts_mislead() -> None:
    even = one_alpha_from_counts([8000, 6400, 5120], [10000, 8000, 6400])
    assert not even.misleads
    assert even.p_value == pytest.approx(1.0)
    assert even.verdict == "one alpha describes these rates"
    uneven = one_alpha_from_counts([9400, 7000, 3000], [10000, 9400, 7000])
    assert uneven.misleads
    assert uneven.verdict.startswith("one alpha misleads: tokens per round off by")


def test_few_uneven_counts_prove_nothing() -> None:
    fit = one_alpha_from_counts([3, 1], [4, 3])
    assert fit.worst_error > 0.01
    assert not fit.misleads
    assert "not ruled out by these few counts" in fit.verdict


def test_likelihood_ratio_of_two_positions_by_hand() -> None:
    fit = one_alpha_from_counts([30, 10], [40, 30])
    expected = 2 * sum(
        n * np.log(n / (total * share))
        for n, total, share in [(30, 40, 4 / 7), (10, 40, 3 / 7), (10, 30, 4 / 7), (20, 30, 3 / 7)]
    )
    from math import erfc, sqrt

    assert fit.p_value == pytest.approx(erfc(sqrt(expected / 2)), rel=1e-10)


@pytest.mark.parametrize(("accepted", "alpha"), [([0, 0], 0.0), ([5, 5], 1.0)])
def test_certain_counts_have_one_rate(accepted: list[int], alpha: float) -> None:
    judged = [5, accepted[0]]
    fit = one_alpha_from_counts(accepted, judged)
    assert fit.alpha_judged == alpha
    assert not fit.misleads


@given(st.floats(0.01, 0.99), st.integers(1, 10))
def test_iid_rates_are_their_own_alpha(alpha: float, gamma: int) -> None:
    fit = one_alpha_from_survival(survival_iid(alpha, gamma))
    assert fit.alpha_judged == pytest.approx(alpha, rel=1e-12)
    assert fit.alpha_omega == pytest.approx(alpha, rel=1e-9)
    assert fit.low is None
    assert not fit.misleads


def test_accepted_over_drafted_inverts_to_the_same_alpha_at_every_gamma() -> None:
    gammas = np.array([1, 2, 4, 7, 10])
    ratios = (tokens_per_round_iid(0.8, gammas) - 1) / gammas
    np.testing.assert_allclose(alpha_from_accepted_over_drafted(ratios, gammas), 0.8, rtol=1e-12)


@pytest.mark.parametrize(
    ("accepted", "judged", "message"),
    [
        ([0], [0], "judged: found no judged draft"),
        ([3, 2], [4, 1], r"accepted \(position 2\): found 2 of 1 judged, allowed: at most 1"),
        ([1.5], [2], r"accepted \(item 1\): found 1\.5, allowed: a whole number"),
    ],
)
def test_impossible_counts_are_refused(accepted: list[float], judged: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_alpha_from_counts(accepted, judged)
    with pytest.raises(ValueError, match="judged: found no judged draft"):
        one_alpha_from_clusters([0.0], [0.0], [0.5])
    with pytest.raises(ValueError, match="confidence: found 1"):
        wilson_interval(0.5, 10, 1.0)
