"""Costs drawn as far off as times were: their spread, what cancels, and that the estimate stays."""

import math
from dataclasses import replace

import numpy as np
import pytest

from specgauge.model.roofline.costs import REPLICATES, RooflineCosts, TimeErrors
from specgauge.model.roofline.step_time import Efficiency
from tests.model.roofline_cases import deployed

COSTS = RooflineCosts(
    target=deployed("llama-2-7b"),
    draft=deployed("tinyllama-1.1b"),
    efficiency=Efficiency(bandwidth_fraction=0.8, flops_fraction=0.5, launch_s=1e-5),
    t_overhead_s=1e-3,
).costs(8, 1000, [1, 2, 4])


def test_a_draft_has_numbers_of_its_own_where_its_times_were_measured() -> None:
    target, draft = deployed("llama-2-7b"), deployed("tinyllama-1.1b")
    common = Efficiency(bandwidth_fraction=0.8, flops_fraction=0.5, launch_s=1e-5)
    own = replace(common, launch_s=3e-5, token_s=1e-6)
    plain = RooflineCosts(target=target, draft=draft, efficiency=common).costs(8, 1000, [1, 2, 4])
    found = RooflineCosts(target=target, draft=draft, efficiency=common, draft_efficiency=own).costs(8, 1000, [1, 2, 4])
    more = 22 * 2e-5 + 8 * 1e-6  # 22 layers, 8 sequences, for each draft
    expected = plain.t_draft_total_s + np.array([1, 2, 4]) * more
    np.testing.assert_allclose(found.t_draft_total_s, expected, rtol=1e-12)
    np.testing.assert_array_equal(found.t_verify_s, plain.t_verify_s)
    # a step that is fed two tokens draws one: nothing more
    assert found.t_draft_catch_up_s == pytest.approx(plain.t_draft_catch_up_s, rel=1e-9)


def spread(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> float:
    return float(np.log(values[1:] / values[0]).std())


def test_a_known_overhead_is_a_cost() -> None:
    assert COSTS.t_overhead_s is not None
    assert COSTS.t_overhead_s.tolist() == [1e-3] * 3
    assert not COSTS.is_optimistic


def test_replicates_are_as_far_off_as_times_were() -> None:
    drawn = TimeErrors(decode=0.02, verify=0.03, ratio=0.04, draft=0.1).replicates(COSTS)
    assert drawn.t_verify_s.shape == (1 + REPLICATES, 3)
    assert drawn.t_decode_s[0] == COSTS.t_decode_s
    np.testing.assert_array_equal(drawn.t_verify_s[0], COSTS.t_verify_s)
    np.testing.assert_array_equal(drawn.t_draft_total_s[0], COSTS.t_draft_total_s)
    assert spread(drawn.t_decode_s) == pytest.approx(0.02, rel=0.1)
    assert spread(drawn.t_verify_s[:, 0]) == pytest.approx(0.03, rel=0.1)
    assert spread(drawn.t_verify_s[:, 0] / drawn.t_decode_s) == pytest.approx(0.04, rel=0.1)
    assert spread(drawn.t_draft_total_s[:, 2]) == pytest.approx(0.1, rel=0.1)
    assert drawn.t_draft_catch_up_s is not None
    assert spread(drawn.t_draft_catch_up_s) == pytest.approx(0.1, rel=0.1)


def test_errors_that_both_share_cancel() -> None:
    drawn = TimeErrors(decode=0.05, verify=0.05, ratio=0.0, draft=0.0).replicates(COSTS)
    ratio = drawn.t_verify_s / drawn.t_decode_s[:, np.newaxis]
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape), rtol=1e-12)
    np.testing.assert_array_equal(drawn.t_draft_total_s, np.broadcast_to(COSTS.t_draft_total_s, drawn.t_verify_s.shape))


def test_no_error_is_no_spread() -> None:
    drawn = TimeErrors(decode=0.0, verify=0.0, ratio=0.0, draft=0.0).replicates(COSTS, 3)
    np.testing.assert_array_equal(drawn.t_verify_s, np.broadcast_to(COSTS.t_verify_s, (4, 3)))


def test_the_interval_of_a_step() -> None:
    low, high = TimeErrors(decode=0.1, verify=0.0, ratio=0.1, draft=0.0).interval_s(2.0, 0.9)
    assert (low, high) == pytest.approx((2 * math.exp(-0.1644854), 2 * math.exp(0.1644854)), rel=1e-6)
