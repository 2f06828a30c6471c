import re
from dataclasses import replace

import pytest

from specgauge.reports.figure_acceptance import acceptance_panel, conditional
from specgauge.reports.figure_cost import cost_bars, cost_domain, cost_panel, plain_s
from specgauge.reports.figure_heatmap import HeatCell, break_even_lines, cell_colours, contrast, heat_map
from specgauge.reports.figure_speedup import speedup_domain, speedup_panel
from specgauge.reports.panel import SMALL, WIDE, series_styles
from specgauge.reports.records import Place, Prediction, prediction
from tests.reports.pages import read_page
from tests.reports.synthetic import Shape, prediction_rows
from tests.reports.verified_rows import a_record


def curve(**changes: object) -> list[Prediction]:
    shape = Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(64,))
    return [prediction(row | changes) for row in prediction_rows(shape)]


def checked(svg: str) -> str:
    read_page(f"<!DOCTYPE html>\n{svg}")
    return svg


def count(svg: str, css: str) -> int:
    return len(re.findall(rf'class="{css}"', svg))


# ---------------------------------------------------------------------------------------------------- speed-up


def test_a_speedup_panel_has_a_dot_for_every_gamma_a_band_a_ring_and_the_line_at_one() -> None:
    series, styles = {"t1": curve()}, series_styles(["t1"])
    svg = checked(speedup_panel(series, styles, {"t1": 2}, (0.5, 2.0), size=SMALL, key="k", title="T"))
    assert (count(svg, "dot c0"), count(svg, "band c0"), count(svg, "ring c0"), count(svg, "plain")) == (6, 1, 1, 1)
    one = curve()[1]
    assert f"t1, γ = 2: {one.speedup:.2f}\u202f× ({one.speedup_low:.2f}–{one.speedup_high:.2f}), 2.19 tokens" in svg
    assert "γ = 2 is recommended." in svg


def test_the_line_at_one_stands_where_one_is() -> None:
    svg = speedup_panel({"t1": curve()}, series_styles(["t1"]), {}, (0.0, 2.0), size=SMALL, key="k", title="T")
    (y1, y2) = re.findall(r'y1="([\d.]+)" x2="[\d.]+" y2="([\d.]+)" class="plain"', svg)[0]
    # the plotting area reaches from 26 down to 230 − 38 = 192: 1 of 2 is its middle
    assert (y1, y2) == ("109", "109")


def test_an_unknown_speedup_breaks_the_curve() -> None:
    rows = curve()
    rows[2] = prediction(prediction_rows(Shape(alphas={"t1": 0.7}))[2] | {"speedup": None})
    svg = checked(speedup_panel({"t1": rows}, series_styles(["t1"]), {}, (0.5, 2.0), size=SMALL, key="k", title="T"))
    assert (count(svg, "curve c0"), count(svg, "dot c0"), count(svg, "band c0")) == (2, 5, 2)
    assert "3: –" in svg


def test_one_gamma_is_a_dot_with_a_whisker() -> None:
    svg = speedup_panel({"t1": curve()[:1]}, series_styles(["t1"]), {}, (0.5, 2.0), size=SMALL, key="k", title="T")
    assert (count(svg, "curve c0"), count(svg, "dot c0"), count(svg, "whisker c0")) == (0, 1, 1)


def test_the_speedup_axis_shows_the_line_at_one_and_tames_wild_intervals() -> None:
    low, high = speedup_domain(curve())
    assert low < 1.0 < high
    wild = speedup_domain(curve(speedup=1.2, speedup_low=0.01, speedup_high=50.0))
    # values span 1 to 1.2; intervals are shown down to 1 / 1.5 and up to 1.2 · 1.5, with 6 % of that as room
    assert wild == pytest.approx((1 / 1.5 - 0.068, 1.8 + 0.068))
    assert speedup_domain([]) == (0.9, 1.1)


def test_what_was_measured_stands_open_beside_its_gamma() -> None:
    rows = [a_record(sampling="t1", gamma=2), a_record(sampling="t1", gamma=3, speedup_measured_low=None)]
    svg = checked(
        speedup_panel({"t1": curve()}, series_styles(["t1"]), {}, (0.5, 2.0), rows, size=SMALL, key="k", title="T")
    )
    assert (count(svg, "measured c0"), count(svg, "measured-bar c0"), count(svg, "dot c0")) == (2, 1, 6)
    predicted, found = (
        re.findall(rf'cx="([\d.]+)" cy="[\d.]+" r="3.5" class="{css} c0"', svg) for css in ("dot", "measured")
    )
    # 298 units for six gammas: 49.7 a column, so the markers stand the full 8 units aside
    assert [float(x) - float(predicted[at]) for x, at in zip(found, (1, 2), strict=True)] == pytest.approx(
        [8, 8], abs=0.01
    )
    assert "t1, γ = 2, measured end to end: 1.50\u202f× (1.40–1.60)." in svg


def test_measured_markers_of_many_series_stay_in_their_column() -> None:
    names = [f"s{index}" for index in range(6)]
    rows = [a_record(sampling=name, gamma=1) for name in names]
    series = {name: curve() for name in names}
    svg = speedup_panel(series, series_styles(names), {}, (0.5, 2.0), rows, size=SMALL, key="k", title="T")
    bars = [float(x) for x in re.findall(r'<path d="M([\d.]+) [\d.]+L[^"]*" class="measured-bar', svg)]
    # the first column is 44 to 93.7 wide, its middle 68.8; four tenths of 49.7 are 19.9
    assert min(bars) == pytest.approx(68.83 + 19.87 / 6, abs=0.02)
    assert max(bars) == pytest.approx(68.83 + 19.87, abs=0.02)


def test_the_speedup_axis_shows_what_was_measured() -> None:
    low, high = speedup_domain(curve(), [a_record(speedup_measured=3.0, speedup_measured_high=3.2)])
    assert low < 1.0
    assert high > 3.2
    # of few blocks: 2.0 (0.1 to 40) is given room up to 2.4, where values span 1 to 2; 6 % of 1.4 are room
    wide = speedup_domain([], [a_record(speedup_measured=2.0, speedup_measured_low=0.1, speedup_measured_high=40.0)])
    assert wide == pytest.approx((1.0 - 0.084, 2.4 + 0.084))


# -------------------------------------------------------------------------------------------------------- cost


def test_cost_bars_stack_to_the_round() -> None:
    bars = cost_bars({"t1": curve()})
    assert [bar.gamma for bar in bars] == [1, 2, 3, 4, 5, 6]
    for bar, one in zip(bars, curve(), strict=True):
        assert (bar.draft_s, bar.verify_s) == (one.t_draft_total_s, one.t_verify_s)
        assert bar.total_s == pytest.approx(one.t_round_s)


def test_the_rest_of_a_shared_bar_is_the_largest() -> None:
    low, high = curve(t_round_s=0.02), curve(t_round_s=0.03)
    (bar,) = cost_bars({"a": low[:1], "b": high[:1]})
    assert bar.rest_s == pytest.approx(0.03 - (low[0].t_draft_total_s or 0) - (low[0].t_verify_s or 0))


def test_a_known_overhead_is_a_part_of_its_own() -> None:
    one = curve()[1]
    assert one.t_round_s is not None
    (bar,) = cost_bars({"t1": [replace(one, t_overhead_s=0.002, t_round_s=one.t_round_s + 0.002)]})
    assert bar.overhead_s == 0.002
    assert bar.rest_s == pytest.approx(cost_bars({"t1": [one]})[0].rest_s)
    assert bar.total_s == pytest.approx(one.t_round_s + 0.002)
    series = {"t1": [replace(one, t_overhead_s=0.002)]}
    domain = cost_domain([series])
    assert domain is not None
    svg = checked(cost_panel(series, series_styles(["t1"]), domain, size=WIDE, key="k", title="T"))
    assert count(svg, "bar overhead") == 1
    assert "γ = 2, ε: 2.00 ms of" in svg
    assert "overhead 2.00 ms." in svg


def test_an_overhead_that_noise_made_negative_takes_nothing_off_the_bar() -> None:
    one = curve()[0]
    (bar,) = cost_bars({"t1": [replace(one, t_overhead_s=-0.001)]})
    assert bar.overhead_s == -0.001
    assert bar.total_s == pytest.approx(one.t_round_s)


def test_the_overhead_of_a_shared_bar_is_the_largest_known() -> None:
    one = curve()[0]
    shared = {name: [replace(one, t_overhead_s=value)] for name, value in (("a", 0.001), ("b", None), ("c", 0.003))}
    assert cost_bars(shared)[0].overhead_s == 0.003
    assert cost_bars({"b": [one]})[0].overhead_s is None


def test_unknown_costs_have_no_bar_and_no_axis() -> None:
    rows = curve(t_verify_s=None, t_verify_mean_s=None, t_decode_s=None)
    assert cost_bars({"t1": rows}) == []
    assert cost_domain([{"t1": rows}]) is None


def test_a_cost_panel_shows_parts_plain_decoding_and_its_line() -> None:
    series = {"t1": curve()}
    domain = cost_domain([series])
    assert domain is not None
    assert domain[0].name == "ms"
    svg = checked(cost_panel(series, series_styles(["t1"]), domain, size=WIDE, key="k", title="T"))
    assert [count(svg, f"bar {part}") for part in ("draft", "verify", "rest")] == [6, 6, 6]
    assert (count(svg, "dot c0"), count(svg, "plain")) == (6, 1)
    assert "T_decode: 10.1 ms" in svg
    # Ω(1) · T_decode = 1.7 · 10.064 ms
    assert plain_s(curve()[0]) == pytest.approx(1.7 * 0.010064)
    assert "t1, γ = 1: plain decoding of the same tokens takes 17.1 ms" in svg


# -------------------------------------------------------------------------------------------------- acceptance


def test_conditional_acceptance_is_the_ratio_of_neighbours() -> None:
    assert conditional([0.8, 0.4, 0.1]) == pytest.approx([0.8, 0.5, 0.25])
    assert conditional([0.5, 0.0, 0.0]) == [0.5, 0.0, None]
    assert conditional([0.5, None, 0.1]) == [0.5, None, None]


def test_an_acceptance_panel_draws_what_is_known() -> None:
    svg = acceptance_panel(
        {"a": [0.8, 0.6, None], "b": [0.5]},
        {"a": [(1, 0.7, 0.9), (2, 0.5, 0.7)], "b": []},
        series_styles(["a", "b"]),
        size=WIDE,
        key="k",
        title="T",
        y_title="probability",
    )
    checked(svg)
    assert (count(svg, "dot c0"), count(svg, "dot c1"), count(svg, "curve c0"), count(svg, "curve c1")) == (2, 1, 1, 0)
    assert (count(svg, "band c0"), count(svg, "band c1")) == (1, 0)
    assert "a, position 2: 0.600" in svg


# ---------------------------------------------------------------------------------------------------- heat map


def test_break_even_runs_between_the_cells() -> None:
    # one row, 1.2 and 0.8: S = 1 half-way between the centres at 0.5 and 1.5, from the upper to the lower edge
    (path,) = break_even_lines([[1.2, 0.8]])
    assert {x for x, _ in path} == {1.0}
    assert {path[0][1], path[-1][1]} == {0.0, 1.0}
    (column,) = break_even_lines([[0.8], [1.2]])
    assert {y for _, y in column} == {1.0}
    assert {column[0][0], column[-1][0]} == {0.0, 1.0}


def test_break_even_is_interpolated() -> None:
    # 1.3 and 0.9: three quarters of the way from the centre at 0.5 to the one at 1.5
    (path,) = break_even_lines([[1.3, 0.9]])
    assert [x for x, _ in path] == pytest.approx([1.25] * len(path))


@pytest.mark.parametrize("grid", [[[1.2]], [[0.9]], [[None]], [[1.2, 1.3], [1.1, 1.05]], [[None, None]]])
def test_no_line_where_nothing_crosses(grid: list[list[float | None]]) -> None:
    assert break_even_lines(grid) == []


def spans(paths: list[list[tuple[float, float]]]) -> list[tuple[float, float]]:
    return sorted((min(x for x, _ in path), max(x for x, _ in path)) for path in paths)


def test_the_line_reaches_cells_without_a_number_and_does_not_enter_them() -> None:
    (path,) = break_even_lines([[1.3, 1.3, None], [0.9, 0.9, None]])
    assert {y for _, y in path} == {1.25}
    assert {path[0][0], path[-1][0]} == {0.0, 2.0}
    hole = break_even_lines([[1.3, None, 1.3], [0.9, 0.9, 0.9]])
    # under the hole: (1.3 + .9 + .9) / 3 at its corners, .9 between them: S = 1 a quarter of the way, at 1.125
    assert spans(hole) == [pytest.approx((0.0, 1.125)), pytest.approx((1.875, 3.0))]
    split = break_even_lines([[0.9, None, 0.9], [1.3, None, 1.3]])
    assert spans(split) == [(0.0, 1.0), (2.0, 3.0)]


def test_a_heat_map_says_every_cell() -> None:
    cells = {
        Place(1, 64): HeatCell(speedup=1.42, gamma=3, note="speculate"),
        Place(4, 64): HeatCell(speedup=0.93, gamma=1, note="do not speculate"),
        Place(1, 256): HeatCell(speedup=None, gamma=None, note="oom"),
    }
    svg = checked(heat_map(cells, [1, 4], [64, 256], key="k", title="T"))
    assert re.findall(r'class="cell-value"[^>]*>([^<]+)', svg) == ["0.93", "1.42"]
    assert re.findall(r'class="cell-small"[^>]*>([^<]+)', svg) == ["γ = 1", "γ = 3"]
    assert re.findall(r'class="cell-note"[^>]*>([^<]+)', svg) == ["no data", "oom"]
    assert count(svg, "hatch") == 2
    assert "Batch 1, context 64: 1.42\u202f× at γ = 3, speculate." in svg
    assert svg.index(">4<") < svg.index(">1<"), "the smallest batch stands lowest"
    assert svg.rindex('class="contour"') < svg.index('class="cell-value"'), "numbers stand over the line"


@pytest.mark.parametrize("value", [0.01, 0.4, 0.7, 0.9, 0.99, 1.0, 1.01, 1.2, 1.5, 1.8, 2.5, 40.0])
def test_numbers_in_cells_are_readable(value: float) -> None:
    fill, ink = (tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in cell_colours(value))
    assert contrast(fill, ink) >= 4.5


def test_orange_is_slower_and_blue_is_faster() -> None:
    slower, faster = cell_colours(0.8)[0], cell_colours(1.25)[0]
    assert int(slower[1:3], 16) > int(slower[5:7], 16)
    assert int(faster[1:3], 16) < int(faster[5:7], 16)
    assert cell_colours(2.0) == cell_colours(50.0)
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
