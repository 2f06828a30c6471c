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
from tests.model.leviathan import leviathan_speedup
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


def test_leviathan_is_the_limit_of_free_verification() -> None:
    limits = speedup_limits(0.7, costs())
    omega = float(tokens_per_round_iid(0.7, 4))
    assert limits.free_verification == pytest.approx(leviathan_speedup([0.7], 4, 0.1), rel=1e-14)
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
