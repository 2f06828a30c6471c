"""Break-even points, requirements, limits and sensitivities, against hand-derived values and finite differences."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.checks import FloatArray
from specgauge.model.costs import RoundCosts
from specgauge.model.sensitivity import (
    acceptance_iid,
    alpha_from_tokens_per_round,
    break_even_alpha,
    break_even_draft_total_s,
    required_alpha,
    sensitivities,
    speedup_iid,
    speedup_limits,
)
from specgauge.model.speedup import speedups, tokens_per_round_iid
from tests.model.made import made_costs


def costs(gamma: int = 4, **changes: float | list[float] | list[list[float]]) -> RoundCosts:
    return made_costs([gamma], **{"t_decode_s": 1.0, "t_draft_total_s": [0.4], "t_verify_s": [1.1], **changes})


@given(st.floats(0, 1), st.integers(1, 20))
def test_alpha_from_tokens_per_round_inverts_the_closed_form(alpha: float, gamma: int) -> None:
    omega = tokens_per_round_iid(alpha, gamma)
    found = alpha_from_tokens_per_round(omega, gamma)
    np.testing.assert_allclose(tokens_per_round_iid(found, gamma), omega, rtol=1e-12)


def test_alpha_from_tokens_per_round_at_its_ends_and_beyond() -> None:
    assert alpha_from_tokens_per_round([1.0, 1.5, 2.0], 1) == pytest.approx([0.0, 0.5, 1.0], abs=1e-15)
    with pytest.raises(ValueError, match=r"expected .*got 4\.2 at gamma 3; .*draft trees"):
        alpha_from_tokens_per_round(4.2, 3)


def test_break_even_alpha_of_one_draft_is_its_cost() -> None:
    one = costs(1, t_decode_s=[1.0, 1.0], t_draft_total_s=[[0.1], [0.25]], t_verify_s=[[1.0]] * 2)
    np.testing.assert_allclose(break_even_alpha(one), [[0.1], [0.25]], rtol=1e-14)


@settings(max_examples=40)
@given(st.floats(1.05, 3.0))
def test_required_alpha_gives_the_wanted_speedup(wanted: float) -> None:
    alpha = required_alpha(wanted, costs(t_draft_catch_up_s=0.05), batch_size=4)
    assert speedup_iid(alpha, costs(t_draft_catch_up_s=0.05), batch_size=4) == pytest.approx([wanted], rel=1e-12)


def test_required_alpha_is_nan_beyond_a_perfect_draft_zero_for_nothing_and_else_the_first_crossing() -> None:
    assert np.isnan(required_alpha(5 / 1.5 * 1.01, costs())).all()
    assert required_alpha(0.1, costs()).tolist() == [0.0]
    heavy = costs(t_draft_catch_up_s=3.0)  # makes S fall again
    rising = speedup_iid([[0.8], [1.0]], heavy)
    assert rising[0] > rising[1]
    assert required_alpha(float(rising[0, 0]), heavy)[0] <= 0.8 + 1e-12


def test_break_even_draft_cost_leaves_a_speedup_of_one() -> None:
    found = costs(2, t_decode_s=2.0, t_verify_s=[2.5], t_draft_catch_up_s=0.5, t_overhead_s=0.25)
    accepted = replace(acceptance_iid(0.5, [2]), tokens_per_round=np.array([3.0]), full_acceptance=np.array([0.5]))
    cost = break_even_draft_total_s(found, accepted)
    assert cost.tolist() == [3.0]
    assert speedups(replace(found, t_draft_total_s=cost), accepted).tolist() == [1.0]
    assert break_even_draft_total_s(costs(1, t_verify_s=[1.5]), acceptance_iid(0.0, [1])).tolist() == [-0.5]


@pytest.mark.parametrize(
    ("t_verify_s", "t_overhead_s", "expected"),
    [
        (2.5, -0.5, 3.75),  # 6 - (2.5 + 0.25 - 0.5): as without a floor
        (5.0, -4.0, 4.75),  # a free round would take 5: drafts of up to 3.75 are hidden in it, and 1 s more pays
        (6.0, -4.0, 3.75),  # S is 1 as long as the verification hides the draft
        (6.5, -4.0, -0.5),  # the verification alone is too long, whatever the rest saves
    ],
)
def test_break_even_draft_cost_where_no_round_is_shorter_than_its_verification(
    t_verify_s: float, t_overhead_s: float, expected: float
) -> None:
    """Omega T_decode is 6, pi Delta_2 is 1/4."""
    found = costs(2, t_decode_s=2.0, t_verify_s=[t_verify_s], t_draft_catch_up_s=0.5, t_overhead_s=t_overhead_s)
    accepted = replace(acceptance_iid(0.5, [2]), tokens_per_round=np.array([3.0]), full_acceptance=np.array([0.5]))
    assert break_even_draft_total_s(found, accepted).tolist() == [expected]
    at_s = [max(expected, 0.0) + more for more in (0.0, 0.25)]
    at = [speedups(replace(found, t_draft_total_s=np.array([c])), accepted).item() for c in at_s]
    assert at[0] == (1.0 if expected > 0 else 6 / 6.5)
    assert at[1] < 1.0


@settings(max_examples=60)
@given(st.floats(0.2, 0.9), st.integers(1, 8), st.integers(1, 4), st.floats(0.5, 3.0), st.floats(-3.0, 1.0))
def test_beyond_the_break_even_draft_cost_nothing_pays(
    alpha: float, gamma: int, rows: int, verify_s: float, overhead_s: float
) -> None:
    found = costs(gamma, t_verify_s=[verify_s], t_draft_catch_up_s=0.1, t_overhead_s=overhead_s)
    accepted = acceptance_iid(alpha, [gamma])
    limit = float(break_even_draft_total_s(found, accepted, batch_size=rows).item())

    def s(draft_s: float) -> float:
        return float(speedups(replace(found, t_draft_total_s=np.array([draft_s])), accepted, batch_size=rows).item())

    if limit >= 0:
        assert s(limit) >= 1 - 1e-9
    assert s(max(limit, 0.0) + 1e-6) < 1 or limit == pytest.approx(0, abs=2e-6)


def test_nothing_but_the_verification_counts_where_a_round_takes_it_alone() -> None:
    """alpha = 1/2, gamma = 2, T_decode = 1, T_verify = 2: Omega = 7/4, S = 7/8, Omega' = 2."""
    found = sensitivities(0.5, costs(2, t_verify_s=[2.0], t_draft_catch_up_s=0.5, t_overhead_s=-1.0))
    assert (found.per_t_draft_s.tolist(), found.per_t_verify_s.tolist()) == ([0.0], [-7 / 16])
    assert (found.per_alpha.tolist(), found.per_t_decode_s.tolist()) == ([1.0], [7 / 8])
    less = sensitivities(0.5, costs(2, t_verify_s=[2.0], t_draft_catch_up_s=0.5, t_overhead_s=-0.025))
    assert (less.per_t_draft_s < 0).all()


def test_leviathan_is_the_limit_of_free_verification() -> None:
    limits = speedup_limits(0.7, costs())
    omega = float(tokens_per_round_iid(0.7, 4))
    assert limits.free_verification == pytest.approx([omega / (4 * 0.1 + 1)], rel=1e-14)
    assert limits.free_draft == pytest.approx([omega / 1.1], rel=1e-14)
    assert limits.perfect_draft == pytest.approx([5 / 1.5], rel=1e-14)


@settings(max_examples=40)
@given(st.floats(0.05, 0.95), st.integers(1, 12), st.integers(1, 8))
def test_sensitivities_are_the_derivatives(alpha: float, gamma: int, rows: int) -> None:
    def at(draft: float = 0.1, verify: float = 1.2) -> RoundCosts:
        return costs(
            gamma, t_draft_total_s=[gamma * draft], t_verify_s=[verify], t_draft_catch_up_s=0.07, t_overhead_s=0.02
        )

    def slope(above: FloatArray, below: FloatArray) -> Any:
        return pytest.approx((above - below) / (2 * step), rel=2e-6, abs=1e-8)

    def s(found: RoundCosts, moved: float = 0.0) -> FloatArray:
        return speedup_iid(alpha + moved, found, batch_size=rows)

    found, step = sensitivities(alpha, at(), batch_size=rows), 1e-6
    assert found.per_alpha == slope(s(at(), step), s(at(), -step))
    assert found.per_t_draft_s == slope(s(at(draft=0.1 + step)), s(at(draft=0.1 - step)))
    assert found.per_t_verify_s == slope(s(at(verify=1.2 + step)), s(at(verify=1.2 - step)))
    assert found.per_t_decode_s == pytest.approx(s(at()), rel=1e-12)
