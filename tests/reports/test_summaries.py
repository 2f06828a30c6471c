from dataclasses import replace

import pytest

from specgauge.reports.summaries import acceptance_curves, conditional, cost_bars, cost_domain
from specgauge.sweeps.store.schema import PredictionRow
from tests.reports.synthetic import Shape, predicted
from tests.sweeps.made import acceptance_frame

ONE = Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(64,))


def curve(**changes: object) -> list[PredictionRow]:
    return predicted(ONE, **changes)


def test_acceptance_comes_from_the_recorded_positions() -> None:
    (one,) = acceptance_curves({("p", "t1"): acceptance_frame(12, 40, 0.7)}, ONE.config())
    assert one.setting.mode == ""
    assert one.survival == pytest.approx([0.7**place for place in range(1, 7)])
    assert one.low == pytest.approx(one.survival), "every prompt is alike"
    assert one.tokens_per_round == pytest.approx(sum(0.7**place for place in range(7)))
    assert (one.alpha_overlap, one.alpha_accepted, one.alpha_omega) == pytest.approx((0.7, 0.7, 0.7))
    assert (one.texts.prompts, one.texts.positions, one.texts.null_share) == (12, 480, 0.0)


def test_single_prompts_have_no_interval_and_positions_outside_the_support_are_counted() -> None:
    frame = acceptance_frame(1, 40, 0.7)
    frame.loc[::4, ["target_prob", "draft_prob"]] = float("nan")
    (one,) = acceptance_curves({("p", "t1"): frame}, ONE.config())
    assert set(one.low) == {None}
    assert one.texts.null_share == 0.25


def test_conditional_acceptance_is_the_ratio_of_neighbours() -> None:
    assert conditional([0.8, 0.4, 0.1]) == pytest.approx([0.8, 0.5, 0.25])
    assert conditional([0.5, 0.0, 0.0]) == [0.5, 0.0, None]
    assert conditional([0.5, None, 0.1]) == [0.5, None, None]
    assert conditional([0.5, 0.625, 0.25]) == [0.5, 1.0, 0.4]


def test_the_rest_and_the_overhead_of_a_shared_bar_are_the_largest() -> None:
    low, high = curve(t_round_s=0.02), curve(t_round_s=0.03)
    (bar,) = cost_bars({"a": low[:1], "b": high[:1]})
    assert bar.rest_s == pytest.approx(0.03 - (low[0].t_draft_total_s or 0) - (low[0].t_verify_s or 0))
    one = curve()[0]
    shared = {name: [replace(one, t_overhead_s=value)] for name, value in (("a", 0.001), ("b", None), ("c", 0.003))}
    assert cost_bars(shared)[0].overhead_s == 0.003


def test_an_overhead_that_noise_made_negative_takes_nothing_off_the_bar() -> None:
    one = curve()[0]
    (bar,) = cost_bars({"t1": [replace(one, t_overhead_s=-0.001)]})
    assert bar.overhead_s == -0.001
    assert bar.total_s == pytest.approx(one.t_round_s)
    assert one.t_round_s is not None
    (bar,) = cost_bars({"t1": [replace(one, t_overhead_s=0.002, t_round_s=one.t_round_s + 0.002)]})
    assert bar.total_s == pytest.approx(one.t_round_s + 0.002)


def test_unknown_costs_have_no_bar_and_no_axis() -> None:
    rows = curve(t_verify_s=None, t_verify_mean_s=None, t_decode_s=None)
    assert cost_bars({"t1": rows}) == []
    assert cost_domain([{"t1": rows}]) is None
    domain = cost_domain([{"t1": curve()}])
    assert domain is not None
    assert domain[0].name == "ms"
    # the tallest: Ω(6) · T_decode = 3.06 · 10.064 ms
    assert domain[1] == pytest.approx(1.06 * sum(0.7**place for place in range(7)) * 10.064)
