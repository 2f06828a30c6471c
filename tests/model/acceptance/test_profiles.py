"""Profiles from every kind of measurement; the four look-alike numbers of one set of rounds kept apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.acceptance.profiles import (
    profile_from_alpha,
    profile_from_conditional,
    profile_from_counts,
    profile_from_histogram,
    profile_from_marginal,
    profile_from_rounds,
    profile_from_tokens_per_round,
    profile_from_totals,
    profile_from_trajectories,
)
from specgauge.model.provenance import Provenance
from specgauge.model.speedup import tokens_per_round_iid


def test_rounds_of_3_2_1_0_accepted_at_gamma_3() -> None:
    profile = profile_from_rounds([3, 2, 1, 0], [3, 3, 3, 3])
    assert profile.survival.tolist() == [0.75, 0.5, 0.25]
    np.testing.assert_allclose(profile.conditional, [3 / 4, 2 / 3, 1 / 2], rtol=1e-15)
    assert profile.tokens_per_round([1, 2, 3]).tolist() == [1.75, 2.25, 2.5]
    assert profile.at([1, 2, 3, 4]).provenance.tolist() == [
        Provenance.INTERPOLATED,
        Provenance.INTERPOLATED,
        Provenance.MEASURED,
        Provenance.EXTRAPOLATED,
    ]
    assert profile.fit is not None
    assert profile.fit.alpha_judged == 6 / 9


def test_every_way_to_count_the_same_rounds_agrees() -> None:
    wanted = [0.75, 0.5, 0.25]
    for profile in (
        profile_from_histogram([1, 1, 1, 1]),
        profile_from_counts([3, 2, 1], rounds=4),
        profile_from_counts([3, 2, 1], judged=[4, 3, 2]),
        profile_from_marginal(wanted),
        profile_from_conditional([3 / 4, 2 / 3, 1 / 2]),
    ):
        np.testing.assert_allclose(profile.survival, wanted, rtol=1e-15)
        assert profile.tail_rate == pytest.approx(0.5, rel=1e-15)
        np.testing.assert_allclose(profile.survival_at(5), [0.75, 0.5, 0.25, 0.125, 0.0625], rtol=1e-14)


@given(st.floats(0, 1), st.integers(1, 12))
def test_one_alpha_is_assumed_everywhere(alpha: float, gamma: int) -> None:
    profile = profile_from_alpha(alpha)
    np.testing.assert_allclose(profile.tokens_per_round([gamma]), tokens_per_round_iid(alpha, gamma), rtol=1e-12)
    assert profile.at([1, gamma]).provenance.tolist() == [Provenance.ASSUMED, Provenance.ASSUMED]
    np.testing.assert_allclose(profile.full_acceptance([gamma]), [alpha**gamma], rtol=1e-12)


def test_totals_give_omega_at_their_gamma_and_no_accepted_over_drafted() -> None:
    profile = profile_from_totals(accepted=208, drafted=260, rounds=52)
    assert profile.gamma_drafted == 5
    assert profile.tokens_per_round([5]) == pytest.approx([5.0], rel=1e-12)
    assert profile.tail_rate == pytest.approx(0.927, abs=5e-4)
    assert profile.at([4, 5, 6]).provenance.tolist() == [
        Provenance.ASSUMED,
        Provenance.MEASURED,
        Provenance.EXTRAPOLATED,
    ]


def test_rounds_of_different_gamma_are_judged_where_drafted() -> None:
    profile = profile_from_rounds([1, 0, 1, 2], [1, 2, 2, 2])
    assert profile.survival.tolist() == [0.75, 0.375]
    assert profile.at([2]).provenance.tolist() == [Provenance.INTERPOLATED]


def test_positions_never_judged_end_the_profile() -> None:
    profile = profile_from_counts([4, 0], judged=[8, 0])
    assert profile.gamma_drafted == 1
    assert profile.at([1, 2]).provenance.tolist() == [Provenance.MEASURED, Provenance.EXTRAPOLATED]


def test_longest_runs_that_never_happened_still_count_as_drafted() -> None:
    profile = profile_from_histogram([2, 2], gamma=3)
    assert profile.survival.tolist() == [0.5, 0.0, 0.0]
    assert profile.tokens_per_round([3, 6]).tolist() == [1.5, 1.5]
    assert profile.conditional.tolist() == [0.5, 0.0, 0.0]


def test_conditional_rates_may_rise() -> None:
    assert profile_from_conditional([0.5, 1.0, 0.8]).survival.tolist() == [0.5, 0.5, 0.4]


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(lambda h: sum(h) > 0))
def test_histogram_mean_is_accepted_drafts(histogram: list[int]) -> None:
    profile = profile_from_histogram(histogram)
    mean = sum(j * n for j, n in enumerate(histogram)) / sum(histogram)
    assert profile.tokens_per_round([len(histogram) - 1]) == pytest.approx([1 + mean], rel=1e-12)


def test_tokens_per_round_by_gamma_are_reproduced_and_others_assumed() -> None:
    profile = profile_from_tokens_per_round([1, 2, 4], [1.94, 2.77, 4.03])
    assert profile.tokens_per_round([1, 2, 4]) == pytest.approx([1.94, 2.77, 4.03], rel=1e-12)
    assert profile.at([1, 2, 3, 4, 6]).provenance.tolist() == [
        Provenance.MEASURED,
        Provenance.MEASURED,
        Provenance.ASSUMED,
        Provenance.MEASURED,
        Provenance.EXTRAPOLATED,
    ]


def test_trajectories_of_one_rate_measure_every_gamma() -> None:
    acceptance = np.full((3, 400), 0.8)
    profile = profile_from_trajectories(acceptance, acceptance, [400, 400, 399], [False] * 3, gamma_max=4)
    np.testing.assert_allclose(
        profile.tokens_per_round([1, 2, 3, 4]), tokens_per_round_iid(0.8, [1, 2, 3, 4]), rtol=1e-12
    )
    assert profile.at([1, 4, 5]).provenance.tolist() == [
        Provenance.MEASURED,
        Provenance.MEASURED,
        Provenance.EXTRAPOLATED,
    ]
    assert profile.tail_rate == pytest.approx(0.8, rel=1e-12)
    assert profile.fit is not None
    assert profile.fit.alpha_judged == pytest.approx(0.8, rel=1e-12)
    assert not profile.fit.misleads


def test_trajectories_know_where_rounds_start() -> None:
    acceptance = np.tile([1.0, 0.0], (2, 200))
    profile = profile_from_trajectories(acceptance, acceptance, [400, 400], [False, False], gamma_max=2)
    assert profile.survival_at(1).tolist() == [1.0]
    assert profile.survival_at(2).tolist() == [1.0, 0.0]
    assert profile.fit is not None
    assert profile.fit.misleads


def test_an_accepted_end_of_text_has_no_bonus() -> None:
    sure = np.ones((1, 3))
    profile = profile_from_trajectories(sure, sure, [3], [True], gamma_max=3)
    assert profile.lost_bonus.tolist() == [0.5, 0.0, 1.0]
    assert profile.tokens_per_round([3]).tolist() == [3.0]


def test_alpha_of_trajectories_has_an_interval_over_prompts() -> None:
    rates = np.repeat([[0.6], [0.9]], 100, axis=1)
    common = {"lengths": [100, 100], "ended_by_eos": [False, False], "gamma_max": 2}
    apart = profile_from_trajectories(rates, rates, **common)  # type: ignore[arg-type]
    together = profile_from_trajectories(rates, rates, prompts=[7, 7], **common)  # type: ignore[arg-type]
    assert apart.fit is not None
    assert together.fit is not None
    assert apart.fit.low is not None
    assert apart.fit.low < apart.fit.alpha_judged == together.fit.alpha_judged
    assert together.fit.low is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: profile_from_marginal([0.5, 0.6]), "rates: found 0.5 at position 1 and 0.6 at position 2"),
        (lambda: profile_from_marginal([]), "rates: found shape"),
        (lambda: profile_from_conditional([[0.5], [0.4]]), "conditional rates: found shape"),
        (lambda: profile_from_alpha(1.5), "alpha: found 1.5"),
        (
            lambda: profile_from_counts([3, 4], rounds=5),
            r"accepted \(position 2\): found 4 for 3 accepted at position 1",
        ),
        (lambda: profile_from_counts([6], rounds=5), r"accepted \(position 1\): found 6 for 5 rounds.*draft tree"),
        (lambda: profile_from_counts([0], rounds=0), "rounds: found 0, allowed: a whole number, at least 1"),
        (lambda: profile_from_counts([1]), "rounds, judged: found both or neither"),
        (lambda: profile_from_counts([1], judged=[2, 1]), "judged: found 2 positions for 1 in accepted"),
        (lambda: profile_from_counts([0], judged=[0]), "judged: found no judged draft"),
        (
            lambda: profile_from_histogram([1, 1, 1], gamma=1),
            "histogram: found rounds with 2 accepted at gamma 1.*trees",
        ),
        (lambda: profile_from_histogram([4]), "histogram: found one entry"),
        (lambda: profile_from_rounds([2], [1]), r"accepted \(round 1\): found 2 of 1 drafted"),
        (lambda: profile_from_rounds([2], [1, 1]), "drafted: found 2 rounds for 1 in accepted"),
        (
            lambda: profile_from_trajectories([[0.5]], [[0.5]], [1], [False], gamma_max=2),
            "gamma_max: found 2 for texts of",
        ),
        (lambda: profile_from_tokens_per_round([1, 2], [1.5]), "tokens_per_round: found 1 values for gammas"),
        (lambda: profile_from_tokens_per_round([2, 1], [1.5, 1.5]), "gammas that rise"),
        (lambda: profile_from_tokens_per_round([3], [4.5]), "at most gamma \\+ 1.*draft trees"),
        (lambda: profile_from_totals(accepted=5, drafted=7, rounds=2), "drafted: found 7 in 2 rounds"),
        (lambda: profile_from_totals(accepted=9, drafted=4, rounds=2), "at most gamma \\+ 1.*draft trees"),
    ],
)
def test_bad_input_is_one_clear_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
