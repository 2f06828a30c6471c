"""Profiles from every kind of measurement, and one alpha against rates per position."""

from collections.abc import Callable
from math import erfc, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.acceptance.profiles import (
    AcceptanceProfile,
    OneAlpha,
    one_alpha,
    profile_from_alpha,
    profile_from_conditional,
    profile_from_counts,
    profile_from_histogram,
    profile_from_marginal,
    profile_from_tokens_per_round,
    profile_from_totals,
    run_distribution,
    wilson_interval,
)
from specgauge.model.settings import Provenance
from specgauge.model.speedup import survival_iid, tokens_per_round_iid
from tests.model.made import made_acceptance

ASSUMED, MEASURED, EXTRAPOLATED = Provenance.ASSUMED, Provenance.MEASURED, Provenance.EXTRAPOLATED


@pytest.mark.parametrize(
    "profile",
    [
        profile_from_histogram([1, 1, 1, 1]),
        profile_from_counts([3, 2, 1], rounds=4),
        profile_from_marginal([0.75, 0.5, 0.25]),
        profile_from_conditional([3 / 4, 2 / 3, 1 / 2]),
    ],
)
def test_rounds_of_3_2_1_0_accepted_at_gamma_3(profile: AcceptanceProfile) -> None:
    np.testing.assert_allclose(profile.survival_at(5), [0.75, 0.5, 0.25, 0.125, 0.0625], rtol=1e-14)
    np.testing.assert_allclose(profile.at([1, 2, 3]).tokens_per_round, [1.75, 2.25, 2.5], rtol=1e-15)
    assert profile.at([1, 2, 3, 4]).provenance.tolist() == [
        Provenance.INTERPOLATED,
        Provenance.INTERPOLATED,
        MEASURED,
        EXTRAPOLATED,
    ]
    np.testing.assert_allclose(run_distribution(profile.survival), [0.25] * 4, rtol=1e-15)


@given(st.floats(0, 1), st.integers(1, 12))
def test_one_alpha_is_assumed_everywhere(alpha: float, gamma: int) -> None:
    profile = profile_from_alpha(alpha)
    np.testing.assert_allclose(profile.at([gamma]).tokens_per_round, tokens_per_round_iid(alpha, gamma), rtol=1e-12)
    assert profile.at([1, gamma]).provenance.tolist() == [ASSUMED, ASSUMED]
    np.testing.assert_allclose(profile.at([gamma]).full_acceptance, [alpha**gamma], rtol=1e-12)


def test_totals_give_omega_at_their_gamma_and_no_accepted_over_drafted() -> None:
    profile = profile_from_totals(accepted=208, drafted=260, rounds=52)
    assert profile.gamma_drafted == 5
    assert profile.at([5]).tokens_per_round == pytest.approx([5.0], rel=1e-12)
    assert profile.tail_rate == pytest.approx(0.927, abs=5e-4)  # alpha_omega, published
    assert profile.at([4, 5, 6]).provenance.tolist() == [ASSUMED, MEASURED, EXTRAPOLATED]


def test_longest_runs_that_never_happened_still_count_as_drafted_and_conditional_rates_may_rise() -> None:
    profile = profile_from_histogram([2, 2], gamma=3)
    assert profile.survival.tolist() == [0.5, 0.0, 0.0]
    assert profile.at([3, 6]).tokens_per_round.tolist() == [1.5, 1.5]
    assert profile_from_conditional([0.5, 1.0, 0.8]).survival.tolist() == [0.5, 0.5, 0.4]


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(any))
def test_histogram_mean_is_accepted_drafts(histogram: list[int]) -> None:
    mean = np.average(np.arange(len(histogram)), weights=histogram)
    found = profile_from_histogram(histogram).at([len(histogram) - 1])
    assert found.tokens_per_round == pytest.approx([1 + mean], rel=1e-12)


def test_tokens_per_round_by_gamma_are_reproduced_and_others_assumed() -> None:
    profile = profile_from_tokens_per_round([1, 2, 4], [1.94, 2.77, 4.03])
    assert profile.at([1, 2, 4]).tokens_per_round == pytest.approx([1.94, 2.77, 4.03], rel=1e-12)
    assert profile.at([1, 2, 3, 4, 6]).provenance.tolist() == [MEASURED, MEASURED, ASSUMED, MEASURED, EXTRAPOLATED]


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: profile_from_marginal([0.5, 0.6]), "rates: expected .*got 0.5 at position 1 and 0.6 at position 2"),
        (lambda: profile_from_marginal([]), "rates: expected .*got shape"),
        (lambda: profile_from_conditional([[0.5], [0.4]]), "conditional rates: expected .*got shape"),
        (lambda: profile_from_counts([3, 4], rounds=5), r"accepted \(position 2\): expected .*got 4 for 3"),
        (lambda: profile_from_counts([6], rounds=5), r"accepted \(position 1\): expected .*got 6 for 5 rounds"),
        (
            lambda: profile_from_histogram([1, 1, 1], gamma=1),
            "histogram: expected .*got rounds with 2 accepted at gamma 1",
        ),
        (lambda: profile_from_histogram([4]), "histogram: expected .*got one entry"),
        (lambda: profile_from_tokens_per_round([1, 2], [1.5]), "tokens_per_round: expected .*got 1 values for gammas"),
        (lambda: profile_from_tokens_per_round([2, 1], [1.5, 1.5]), "gammas that rise"),
        (lambda: profile_from_tokens_per_round([3], [4.5]), "at most gamma"),
        (lambda: profile_from_totals(accepted=5, drafted=7, rounds=2), "drafted: expected .*got 7 in 2 rounds"),
        (lambda: profile_from_totals(accepted=9, drafted=4, rounds=2), "at most gamma"),
    ],
)
def test_bad_input_is_one_line(call: Callable[[], object], place: str) -> None:
    with pytest.raises(ValueError, match=place) as caught:
        call()
    assert "\n" not in str(caught.value)


def fitted(accepted: list[int], rounds: int) -> OneAlpha:
    fit = profile_from_counts(accepted, rounds=rounds).fit
    assert fit is not None
    return fit


def test_the_alphas_of_counts_are_accepted_over_tested_and_that_of_the_measured_tokens_per_round() -> None:
    assert fitted([3, 2, 1], 4).alpha_accepted == 6 / 9
    fit = fitted([60, 45, 9], 100)
    assert float(tokens_per_round_iid(fit.alpha_omega, 3)) == pytest.approx(1 + 0.6 + 0.45 + 0.09, rel=1e-12)
    for accepted, alpha in (([0, 0], 0.0), ([5, 5], 1.0)):
        certain = fitted(accepted, 5)
        assert (certain.alpha_accepted, certain.misleads) == (alpha, False)


def test_wilson_interval_by_hand() -> None:
    z2 = 1.6448536269514722**2
    half = (0.25 * z2 + z2 * z2 / 4) ** 0.5 / (1 + z2)
    assert wilson_interval(0.5, 1, 0.9) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-12)
    assert wilson_interval(0.0, 10, 0.9)[0] == 0.0
    assert wilson_interval(1.0, 10, 0.9)[1] == 1.0


def test_even_counts_fit_uneven_counts_mislead_and_few_prove_nothing() -> None:
    even = fitted([8000, 6400, 5120], 10000)
    assert not even.misleads
    assert even.p_value == pytest.approx(1.0)
    assert fitted([9400, 7000, 3000], 10000).misleads
    few = fitted([3, 1], 4)
    assert few.worst_error > 0.01
    assert not few.misleads
    assert len({even.verdict, fitted([9400, 7000, 3000], 10000).verdict, few.verdict}) == 3


def test_likelihood_ratio_of_two_positions_by_hand() -> None:
    expected = 2 * sum(
        n * np.log(n / (total * share))
        for n, total, share in [(30, 40, 4 / 7), (10, 40, 3 / 7), (10, 30, 4 / 7), (20, 30, 3 / 7)]
    )
    assert fitted([30, 10], 40).p_value == pytest.approx(erfc(sqrt(expected / 2)), rel=1e-10)


@given(st.floats(0.01, 0.99), st.integers(1, 10))
def test_iid_rates_are_their_own_alpha(alpha: float, gamma: int) -> None:
    fit = one_alpha(survival_iid(alpha, gamma))
    assert fit.alpha_accepted == pytest.approx(alpha, rel=1e-12)
    assert fit.alpha_omega == pytest.approx(alpha, rel=1e-9)
    assert fit.low is None
    assert not fit.misleads


def test_the_first_rows_of_everything_that_has_replicates() -> None:
    rows = np.arange(6.0).reshape(3, 2)
    accepted = made_acceptance(1 + rows, rows / 8, draft_count_distribution=np.arange(18.0).reshape(3, 2, 3))
    few = accepted.first(2)
    assert few.tokens_per_round.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert few.full_acceptance.tolist() == [[0.0, 0.125], [0.25, 0.375]]
    np.testing.assert_array_equal(few.draft_count_distribution, np.arange(12.0).reshape(2, 2, 3))
    assert few.drafts_per_round.shape == (2, 2)
    alone = accepted.estimate
    assert alone.tokens_per_round.tolist() == alone.first(1).tokens_per_round.tolist() == [1.0, 2.0]
    assert alone.drafts_per_round.shape == (2,)
