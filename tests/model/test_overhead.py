"""The overhead of a round: exact recovery, optimality of the fit, leave-one-out by refitting."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specgauge.model.overhead import OverheadFit, fit_overhead, relative_errors

OMEGA = np.array([2.0, 2.5, 3.0, 2.0])
DECODE = np.array([0.010, 0.012, 0.020, 0.016])
COSTS = np.array([0.016, 0.020, 0.030, 0.025])
GROUPS = ["a", "b", "a", "a"]
Array = NDArray[np.float64]


def measured(overhead: float) -> Array:
    return np.asarray(OMEGA * DECODE / (COSTS + overhead))


def test_implied_overhead_and_relative_errors_by_hand() -> None:
    rounds_s = np.array([6.0, 4.0, 3.0])
    found = fit_overhead(
        np.ones(3),
        t_decode_s=np.ones(3),
        t_costs_s=np.full(3, 4.0),
        t_verify_s=1.0,
        speedup_measured=1 / rounds_s,
        groups=["a", "b", "c"],
    )
    np.testing.assert_allclose(found.t_overhead_s, [2.0, 0.0, -1.0], rtol=1e-12, atol=1e-12)
    assert relative_errors([1.5, 0.5], [1.0, 1.0]).tolist() == [0.5, -0.5]


def fitted(speedups: Array, groups: Sequence[str] = GROUPS, rows: Sequence[int] = range(4)) -> OverheadFit:
    own = list(rows)
    costs: dict[str, Any] = {"t_decode_s": DECODE[own], "t_costs_s": COSTS[own], "t_verify_s": 0.01}
    return fit_overhead(OMEGA[own], **costs, speedup_measured=speedups[own], groups=groups)


def test_no_round_is_predicted_shorter_than_its_verification() -> None:
    fit = fit_overhead([2.0], t_decode_s=[3.0], t_costs_s=[4.0], t_verify_s=3.5, speedup_measured=[2.0], groups=["a"])
    assert fit.t_overhead_s == pytest.approx([-1.0])
    assert fit.speedup == pytest.approx([2 * 3 / 3.5])


def test_groups_keep_their_order_and_their_own_overhead() -> None:
    fit = fitted(np.where([g == "a" for g in GROUPS], measured(0.002), measured(0.005)))
    assert [(g.group, g.rows) for g in fit.groups] == [("a", 3), ("b", 1)]
    np.testing.assert_allclose([g.t_overhead_s for g in fit.groups], [0.002, 0.005], atol=1e-12)
    assert fit.groups[1].loo_mean_abs_error is None


@settings(max_examples=40)
@given(st.lists(st.floats(0.7, 1.3), min_size=4, max_size=4))
def test_the_fit_is_the_least_squares_optimum_and_leave_one_out_refits(noise: list[float]) -> None:
    speedups = measured(0.003) * noise
    fit = fitted(speedups, ["all"] * 4)
    best = fit.groups[0].t_overhead_s

    def loss(overhead: float) -> float:
        return float(np.sum((measured(overhead) / speedups - 1) ** 2))

    assert all(loss(best) <= loss(best + step) + 1e-15 for step in (-1e-3, -1e-5, 1e-5, 1e-3))
    errors = []
    for left_out in range(4):
        refit = fitted(speedups, ["all"] * 3, [row for row in range(4) if row != left_out]).groups[0].t_overhead_s
        errors.append(abs(measured(refit) / speedups - 1)[left_out])
    assert (fit.loo_mean_abs_error, fit.loo_worst_abs_error) == pytest.approx((np.mean(errors), max(errors)), rel=1e-7)


def test_every_row_has_a_group_and_a_speedup() -> None:
    with pytest.raises(ValueError, match=r"groups: expected .*got 1 for 4 predicted and 4 measured"):
        fitted(measured(0.0), ["a"])
    with pytest.raises(ValueError, match=r"speedup_measured \(item 1\): expected a number above 0, got 0"):
        fitted(0 * OMEGA)
