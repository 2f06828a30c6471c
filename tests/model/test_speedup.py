"""The speed-up algebra: closed forms pinned by hand, limits, and what is refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgauge.model.speedup import (
    accepted_draft_tokens,
    best_gamma,
    catch_up_probability,
    measured_speedup,
    nearest_gamma,
    recommended_gamma,
    round_time_s,
    round_times_by_drafts_s,
    round_times_s,
    speedup,
    speedups,
    survival_iid,
    throughput_tokens_per_s,
    time_per_token_s,
    tokens_per_round,
    tokens_per_round_by_gamma,
    tokens_per_round_iid,
    with_overhead_s,
    within_limits,
)
from tests.model.made import made_acceptance, made_costs


@given(st.floats(0, 1), st.integers(1, 40))
def test_closed_form_equals_the_sum_of_survival(alpha: float, gamma: int) -> None:
    np.testing.assert_allclose(
        tokens_per_round_iid(alpha, np.arange(1, gamma + 1)),
        tokens_per_round_by_gamma(survival_iid(alpha, gamma)),
        rtol=1e-12,
    )


@given(st.floats(1e-12, 1e-3))
def test_closed_form_loses_nothing_near_one(gap: float) -> None:
    alpha = 1.0 - gap
    direct = sum(alpha**i for i in range(17))
    assert float(tokens_per_round_iid(alpha, 16)) == pytest.approx(direct, rel=1e-13)


def test_round_time_adds_each_part_once() -> None:
    t_round = round_time_s(
        t_draft_total_s=4.0,
        t_verify_s=8.0,
        t_draft_catch_up_s=2.0,
        full_acceptance=0.5,
        batch_size=[1, 2],
        t_overhead_s=0.25,
    )
    assert t_round.tolist() == [13.25, 13.75]
    assert float(round_time_s(t_draft_total_s=4.0, t_verify_s=8.0, t_transfer_s=0.5)) == 12.5
    assert float(round_time_s(t_draft_total_s=4.0, t_verify_s=8.0)) == 12.0


@pytest.mark.parametrize(
    ("overhead_s", "round_s"), [(1.0, 13.5), (-1.0, 11.5), (-4.5, 8.0), (-4.75, 8.0), (-99.0, 8.0)]
)
def test_no_round_is_shorter_than_its_verification(overhead_s: float, round_s: float) -> None:
    """C + π Δ₂ = 4 + 1/2: an ε below 0 takes away no more than that."""
    costs = {"t_draft_total_s": 4.0, "t_verify_s": 8.0, "t_draft_catch_up_s": 1.0, "full_acceptance": 0.5}
    assert float(round_time_s(**costs, t_overhead_s=overhead_s)) == round_s
    assert float(with_overhead_s(12.5, 8.0, overhead_s)) == round_s


COSTS = made_costs(
    [1, 2],
    t_decode_s=[8.0, 4.0],
    t_draft_total_s=[[1.0, 2.0], [0.5, 1.0]],
    t_verify_s=[[8.0, 9.0], [4.0, 6.0]],
    t_draft_catch_up_s=[1.0, 2.0],
    t_overhead_s=[[0.5], [-1.0]],
)


def test_costs_of_many_cells_are_joined_with_one_acceptance() -> None:
    """A_γ = 1/2, 1/4; with two rows π = 3/4, 7/16. In the second cell ε = -1 takes C(1) + π Δ₂ = 1/2 + 3/2 to 1."""
    acceptance = made_acceptance([1.5, 1.75], [0.5, 0.25])
    one = round_times_s(COSTS, acceptance)
    assert one.tolist() == [[10.0, 11.75], [4.5, 6.5]]
    crossing = replace(COSTS, t_transfer_s=np.array([[0.25, 0.5], [0.5, 1.0]]))
    assert round_times_s(crossing, acceptance).tolist() == [[10.25, 12.25], [5.0, 7.5]]
    assert round_times_s(COSTS, acceptance, batch_size=[1, 2]).tolist() == [[10.0, 11.75], [5.0, 6.875]]
    assert speedups(COSTS, acceptance).tolist() == [[1.2, 1.75 * 8 / 11.75], [1.5 * 4 / 4.5, 1.75 * 4 / 6.5]]
    assert np.isnan(speedups(COSTS, replace(acceptance, tokens_per_round=np.array([np.nan, 1.0])))[:, 0]).all()
    nothing = replace(COSTS, t_draft_total_s=0 * COSTS.t_verify_s, t_verify_s=0 * COSTS.t_verify_s)
    with pytest.raises(ValueError, match="got a round of no time"):
        round_times_s(replace(nothing, t_draft_catch_up_s=None, t_overhead_s=None), acceptance)


def test_rounds_of_any_number_of_drafts_start_with_the_plain_step_of_the_loop() -> None:
    assert round_times_by_drafts_s(COSTS).tolist() == [[8.5, 9.5, 11.5], [4.0, 4.0, 6.0]]
    crossing = replace(COSTS, t_transfer_s=np.array([0.25, 0.5]))
    assert round_times_by_drafts_s(crossing).tolist() == [[8.5, 9.75, 12.0], [4.0, 4.0, 6.5]]
    assert round_times_by_drafts_s(replace(COSTS, t_overhead_s=None))[0].tolist() == [8.0, 9.0, 11.0]


@given(st.floats(0, 0.999), st.data())
def test_alpha_at_or_below_the_draft_cost_never_pays(cost: float, data: st.DataObject) -> None:
    """With verification for nothing; one draft has S = (1 + α) / (1 + c)."""
    alpha, gammas = data.draw(st.floats(0, cost)), np.arange(1, 33)
    t_round = round_time_s(t_draft_total_s=cost * gammas, t_verify_s=1.0)
    s = speedup(tokens_per_round_iid(alpha, gammas), t_decode_s=1.0, t_round_s=t_round)
    assert np.all(s <= 1 + 1e-12)
    assert float(s[0]) == pytest.approx((1 + alpha) / (1 + cost), rel=1e-14)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (tokens_per_round_iid([0.0, 1.0], 5), [1.0, 6.0]),
        (tokens_per_round_iid([0.0, 0.3, 1.0], 0), [1.0, 1.0, 1.0]),
        (tokens_per_round_iid([0.5, 1.0], [[1], [2]]), [[1.5, 2.0], [1.75, 3.0]]),
        (tokens_per_round([0.75, 0.5, 0.25]), 2.5),
        (accepted_draft_tokens(2.5), 1.5),
        (catch_up_probability(0.3), 0.3),
        (catch_up_probability(0.5, 3), 0.875),
        (catch_up_probability([0.0, 1.0], 64), [0.0, 1.0]),
        (speedup(1 - 1e-15, t_decode_s=1.0, t_round_s=2.0), 0.5 * (1 - 1e-15)),  # misses 1 by rounding
        (measured_speedup([6, 3], 2.0, plain_tokens=4, plain_seconds=2.0), [1.5, 0.75]),
        (time_per_token_s(2.5, t_round_s=0.5), 0.2),
        (throughput_tokens_per_s(2.5, t_round_s=0.5, batch_size=8), 40.0),
        (within_limits([1.0, 2.0, 3.0], 2.0), [True, True, False]),
        (within_limits([1.0, 2.0]), [True, True]),
        # the best is the smallest of equals, 0 where nothing is left; recommended the smallest within 1 %
        (best_gamma([1.5, 1.7, 1.7], [1, 2, 4]), 2),
        (best_gamma([[1.1, 1.2, 1.3], [1.3, 1.2, 1.1]], [1, 2, 4]), [4, 1]),
        (best_gamma([1.5, np.nan, 1.7], [1, 2, 4], allowed=[True, False, False]), 1),
        (best_gamma([1.5, 1.6, 1.7], [1, 2, 4], allowed=[False, False, False]), 0),
        (recommended_gamma([1.98, 1.979, 2.0], [1, 2, 3]), 1),
        (recommended_gamma([1.97, 1.98, 2.0], [1, 2, 3]), 2),
        (recommended_gamma([1.97, 1.98, 2.0], [1, 2, 3], allowed=[True, False, True]), 3),
        # the nearest is the smaller of two
        (np.array([nearest_gamma(3, one) for one in ((1, 3, 5), (5, 1))]), [3, 1]),
        (np.array([nearest_gamma(6, (5, 1)), nearest_gamma(2, (9,))]), [5, 9]),
    ],
)
def test_values_by_hand(found: NDArray[Any], expected: object) -> None:
    assert found.tolist() == expected


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tokens_per_round_iid(1.2, 3), "alpha: expected a probability .*got 1.2"),
        (lambda: tokens_per_round_iid(0.5, 1.5), "gamma: expected a whole number, at least 0, got 1.5"),
        (lambda: tokens_per_round(0.5), "survival: expected .*got one number"),
        (lambda: round_time_s(t_draft_total_s=-1, t_verify_s=1), "t_draft_total_s: expected seconds, .*got -1"),
        (lambda: round_time_s(t_draft_total_s=0, t_verify_s=0), "t_round_s: expected seconds, above 0, got 0"),
        (
            lambda: round_time_s(t_draft_total_s=1, t_verify_s=1, t_draft_catch_up_s=1),
            "full_acceptance: expected .* beside t_draft_catch_up_s",
        ),
        (lambda: speedup(0.9, t_decode_s=1, t_round_s=1), "tokens_per_round: expected at least 1 .*, got 0.9"),
        (lambda: within_limits(1, 0.0), "max_itl_s: expected seconds, above 0, got 0"),
        (lambda: best_gamma([1.0], [1, 2]), "speedups: expected one for each of 2 gammas, got 1"),
        (lambda: best_gamma([1.0, np.nan], [1, 2]), "speedups: expected numbers, got NaN"),
        (lambda: best_gamma([1.0, 1.1], [2, 1]), "gammas: expected a rising list"),
    ],
)
def test_bad_input_is_one_clear_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_round_timed_whole_is_the_round_whatever_its_parts() -> None:
    costs = made_costs([1, 2], t_decode_s=1.0, t_draft_total_s=[0.25, 0.5], t_verify_s=[1.25, 1.5], t_overhead_s=0.25)
    acceptance = made_acceptance([1.5, 1.75], [0.5, 0.25])
    whole = replace(costs, t_round_s=np.array([3.0, np.nan]))
    assert round_times_s(whole, acceptance).tolist() == [3.0, 2.25]
    assert speedups(whole, acceptance).tolist() == [0.5, 1.75 / 2.25]
    assert round_times_by_drafts_s(replace(whole, t_overhead_s=np.full(2, 0.25))).tolist() == [1.25, 3.0, 2.25]
    unknown = replace(whole, t_draft_total_s=np.full(2, np.nan), t_overhead_s=None)
    assert round_times_s(unknown, acceptance)[0] == 3.0


def test_nothing_to_catch_up_needs_no_full_acceptance() -> None:
    costs = made_costs([1], t_decode_s=1.0, t_draft_total_s=[0.25], t_verify_s=[1.25], t_draft_catch_up_s=0.0)
    assert round_times_s(costs, made_acceptance([1.5], [np.nan])).tolist() == [1.5]
