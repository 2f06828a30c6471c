"""Break-even points, requirements, limits and sensitivities, against hand-derived values and finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.sensitivity import (
    RoundParts,
    alpha_from_tokens_per_round,
    break_even_alpha,
    break_even_draft_total_s,
    leviathan_speedup,
    operations_factor,
    required_alpha,
    sensitivities,
    speedup_limits,
)
from specgauge.model.speedup import tokens_per_round_iid


def parts(**changes: float) -> RoundParts:
    values = {"gamma": 4, "t_decode_s": 1.0, "t_draft_total_s": 0.4, "t_verify_s": 1.1}
    return RoundParts(**{**values, **changes})


@given(st.floats(0, 1), st.integers(1, 20))
def test_alpha_from_tokens_per_round_inverts_the_closed_form(alpha: float, gamma: int) -> None:
    omega = tokens_per_round_iid(alpha, gamma)
    found = alpha_from_tokens_per_round(omega, gamma)
    np.testing.assert_allclose(tokens_per_round_iid(found, gamma), omega, rtol=1e-12)


def test_alpha_from_tokens_per_round_at_its_ends() -> None:
    assert alpha_from_tokens_per_round([1.0, 1.5, 2.0], 1) == pytest.approx([0.0, 0.5, 1.0], abs=1e-15)


def test_more_tokens_than_a_chain_commits_is_a_draft_tree() -> None:
    with pytest.raises(ValueError, match=r"found 4\.2 at gamma 3, allowed: at most gamma \+ 1.*draft trees"):
        alpha_from_tokens_per_round(4.2, 3)


def test_break_even_alpha_of_one_draft_is_its_cost() -> None:
    one = RoundParts(gamma=1, t_decode_s=1.0, t_draft_total_s=[0.1, 0.25], t_verify_s=1.0)
    np.testing.assert_allclose(break_even_alpha(one), [0.1, 0.25], rtol=1e-14)


@settings(max_examples=40)
@given(st.floats(1.05, 3.0))
def test_required_alpha_gives_the_wanted_speedup(wanted: float) -> None:
    alpha = required_alpha(wanted, parts(t_draft_catch_up_s=0.05, batch_size=4))
    assert float(parts(t_draft_catch_up_s=0.05, batch_size=4).speedup(alpha)) == pytest.approx(wanted, rel=1e-12)


def test_required_alpha_is_nan_beyond_a_perfect_draft_and_zero_for_nothing() -> None:
    limit = 5 / 1.5
    found = required_alpha([[limit * 1.01], [0.1]], RoundParts(**{**vars(parts()), "t_decode_s": np.array([1.0, 1.0])}))
    assert np.isnan(found[0]).all()
    assert found[1].tolist() == [0.0, 0.0]


def test_required_alpha_finds_the_first_crossing_when_catch_up_makes_s_fall_again() -> None:
    heavy = parts(t_draft_catch_up_s=3.0)
    rising = heavy.speedup(np.array([0.8, 1.0]))
    assert rising[0] > rising[1]
    wanted = float(rising[0])
    assert float(required_alpha(wanted, heavy)) <= 0.8 + 1e-12


def test_break_even_draft_cost_leaves_a_speedup_of_one() -> None:
    cost = break_even_draft_total_s(
        3.0, t_decode_s=2.0, t_verify_s=2.5, t_draft_catch_up_s=0.5, full_acceptance=0.5, t_overhead_s=0.25
    )
    assert float(cost) == 3.0
    assert float(break_even_draft_total_s(1.0, t_decode_s=1.0, t_verify_s=1.5)) == -0.5


def test_operations_factor_of_a_free_draft_that_is_never_and_always_right() -> None:
    assert operations_factor(tokens_per_round_iid([0.0, 1.0], 3), 3, 0.0).tolist() == [4.0, 1.0]
    assert float(operations_factor(2.0, 3, 0.5)) == 2.75


def test_leviathan_is_the_limit_of_free_verification() -> None:
    limits = speedup_limits(0.7, parts())
    assert float(limits.free_verification) == pytest.approx(float(leviathan_speedup(0.7, 4, 0.1)), rel=1e-14)
    omega = float(tokens_per_round_iid(0.7, 4))
    assert float(limits.free_draft) == pytest.approx(omega / 1.1, rel=1e-14)
    assert float(limits.perfect_draft) == pytest.approx(5 / 1.5, rel=1e-14)


@settings(max_examples=40)
@given(st.floats(0.05, 0.95), st.integers(1, 12), st.integers(1, 8))
def test_sensitivities_are_the_derivatives(alpha: float, gamma: int, rows: int) -> None:
    def s(alpha: float = alpha, draft: float = 0.1, verify: float = 1.2, decode: float = 1.0) -> float:
        at = RoundParts(
            gamma=gamma,
            t_decode_s=decode,
            t_draft_total_s=gamma * draft,
            t_verify_s=verify,
            t_draft_catch_up_s=0.07,
            batch_size=rows,
            t_overhead_s=0.02,
        )
        return float(at.speedup(alpha))

    at = RoundParts(
        gamma=gamma,
        t_decode_s=1.0,
        t_draft_total_s=gamma * 0.1,
        t_verify_s=1.2,
        t_draft_catch_up_s=0.07,
        batch_size=rows,
        t_overhead_s=0.02,
    )
    found, step = sensitivities(alpha, at), 1e-6
    assert float(found.per_alpha) == pytest.approx((s(alpha + step) - s(alpha - step)) / (2 * step), rel=2e-6, abs=1e-8)
    assert float(found.per_t_draft_s) == pytest.approx(
        (s(draft=0.1 + step) - s(draft=0.1 - step)) / (2 * step), rel=2e-6, abs=1e-8
    )
    assert float(found.per_t_verify_s) == pytest.approx(
        (s(verify=1.2 + step) - s(verify=1.2 - step)) / (2 * step), rel=2e-6, abs=1e-8
    )
    assert float(found.per_t_decode_s) == pytest.approx(s(), rel=1e-12)


def test_one_pass_for_all_drafts_has_one_step() -> None:
    steps = sensitivities(0.8, parts(), draft_steps=[1, 4]).per_t_draft_s
    assert float(steps[1]) == pytest.approx(4 * float(steps[0]), rel=1e-14)
