import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from specgauge.model.settings import Point
from specgauge.reports import figures, inline_svg
from specgauge.reports.figures import WHITE
from specgauge.reports.inline_svg import COLOURS, Hover, Size, inline_figure
from specgauge.reports.plot import MEASURED, line_labels, plot_format, speedup_figure, write_plot
from specgauge.reports.records import SPECULATE, ReportData, read_report_data
from specgauge.reports.summaries import cost_domain
from specgauge.sweeps.store.schema import PredictionRow, ValidationRow
from tests.reports.pages import Page
from tests.reports.synthetic import GREEDY, Shape, a_record, build_run, curve
from tests.sweeps.made import known


def drawn(draw: Callable[..., Hover], *values: Any, **more: Any) -> tuple[Axes, Hover]:
    axes = Figure().add_subplot()
    return axes, draw(axes, *values, **more)


def found(axes: Axes, gid: str) -> list[Any]:
    return [artist for artist in axes.get_children() if artist.get_gid() == gid]


def points(axes: Axes, gid: str) -> list[tuple[float, float]]:
    """Coordinates of the markers or line drawn under an id."""
    lines: list[Line2D] = found(axes, gid)
    return [(float(x), float(y)) for line in lines for x, y in np.asarray(line.get_xydata()).tolist()]


def test_styles_go_round_and_dash_lines_once_the_colours_are_used_up() -> None:
    styles = list(figures.series_styles([f"s{index}" for index in range(7)]).values())
    assert [style.marker for style in styles[:5]] == ["o", "s", "^", "D", "o"]
    assert len({style.colour for style in styles[:6]}) == 6
    assert [style.line == figures.DASHED for style in styles] == [False] * 6 + [True]
    assert styles[6].role == styles[0].role


def test_series_that_share_a_colour_keep_the_words_of_each() -> None:
    names = [f"s{index}" for index in range(7)]
    styles, rows = figures.series_styles(names), curve()[:1]
    series, measured = dict.fromkeys(names, rows), {name: [a_record(gamma=1)] for name in names}
    speedups = partial(
        figures.draw_speedup,
        series=series,
        styles=styles,
        to_use={},
        measured=measured,
        y_range=figures.speedup_domain(rows),
    )
    unit, top = known(cost_domain([series]))
    costs = partial(figures.draw_cost, series=series, styles=styles, unit=unit, top=top)
    acceptance = partial(figures.draw_acceptance, series={name: [0.5] for name in names}, intervals={}, styles=styles)
    for kind, draw in (("dots", speedups), ("measured", speedups), ("dots", costs), ("dots", acceptance)):
        hover = drawn(draw)[1]
        assert [words.split(",")[0] for words in hover[f"{kind} s0"]] == ["s0", "s6"]
        assert [words.split(",")[0] for words in hover[f"{kind} s1"]] == ["s1"]
        svg = inline_figure(draw, Size(width=400, height=300), key="k", title="t")
        assert svg.count("<title>s6,") == (2 if draw is speedups else 1)


def speedup_axes(rows: list[PredictionRow], *measured: ValidationRow, **to_use: int) -> tuple[Axes, Hover]:
    return drawn(
        figures.draw_speedup, {"t1": rows}, figures.series_styles(["t1"]), to_use, {"t1": measured}, (0.5, 2.0)
    )


def test_a_speedup_panel_has_a_dot_for_every_gamma_a_band_a_ring_and_the_line_at_one() -> None:
    axes, hover = speedup_axes(curve(), t1=2)
    expected = [(one.gamma, one.speedup) for one in curve()]
    assert points(axes, "dots s0") == points(axes, "curve s0") == expected
    assert points(axes, "ring") == [expected[1]]
    assert [line.get_ydata() for line in found(axes, "plain")] == [[1.0, 1.0]]
    assert axes.get_ylim() == (0.5, 2.0)
    (band,) = found(axes, "band s0")
    low, high = band.get_datalim(axes.transData).intervaly
    assert (low, high) == (min(one.speedup_low or 9 for one in curve()), max(one.speedup_high or 0 for one in curve()))
    one = curve()[1]
    assert hover["dots s0"][1].startswith(
        f"t1, γ = 2, to use: {one.speedup:.2f}\u202f× ({one.speedup_low:.2f}–{one.speedup_high:.2f}), 2.19 tokens"
    )
    assert len(hover["dots s0"]) == 6


def test_an_unknown_speedup_breaks_the_curve_and_its_band() -> None:
    rows = curve()
    rows[2] = replace(rows[2], speedup=None, speedup_low=None, speedup_high=None)
    axes, hover = speedup_axes(rows)
    assert np.isnan(points(axes, "curve s0")[2][1])
    assert [x for x, _ in points(axes, "dots s0")] == [1, 2, 4, 5, 6]
    assert len(hover["dots s0"]) == 5
    (band,) = found(axes, "band s0")
    assert len(band.get_paths()) == 2


def test_one_gamma_is_a_dot_with_a_thick_interval() -> None:
    axes, _ = speedup_axes(curve()[:1])
    assert (found(axes, "curve s0"), len(points(axes, "dots s0"))) == ([], 1)
    (bar,) = found(axes, "band s0")
    assert isinstance(bar, LineCollection)
    assert list(np.atleast_1d(bar.get_linewidth())) == [5]


def test_the_speedup_axis_shows_the_line_at_one_and_tames_wild_intervals() -> None:
    low, high = figures.speedup_domain(curve())
    assert low < 1.0 < high
    wild = figures.speedup_domain(curve(speedup=1.2, speedup_low=0.01, speedup_high=50.0))
    # values span 1 to 1.2; intervals are shown down to 1 / 1.5 and up to 1.2 · 1.5, with 6 % of that as room
    assert wild == pytest.approx((1 / 1.5 - 0.068, 1.8 + 0.068))
    assert figures.speedup_domain([]) == (0.9, 1.1)
    assert figures.speedup_domain(curve(), [a_record(speedup_measured=3.0, speedup_measured_high=3.2)])[1] > 3.2
    # of few blocks: 2.0 (0.1 to 40) is given room up to 2.4, where values span 1 to 2; 6 % of 1.4 are room
    wide = figures.speedup_domain(
        [], [a_record(speedup_measured=2.0, speedup_measured_low=0.1, speedup_measured_high=40.0)]
    )
    assert wide == pytest.approx((1.0 - 0.084, 2.4 + 0.084))


def test_what_was_measured_stands_open_beside_its_gamma() -> None:
    axes, hover = speedup_axes(curve(), a_record(gamma=2), a_record(gamma=3, speedup_measured_low=None))
    (markers,) = found(axes, "measured s0")
    assert markers.get_markerfacecolor() == COLOURS["page"]
    assert points(axes, "measured s0") == [(2.12, 1.5), (3.12, 1.5)]
    (bars,) = found(axes, "interval")
    assert [segment.tolist() for segment in bars.get_segments()] == [[[2.12, 1.4], [2.12, 1.6]]]
    assert points(axes, "cap") == [(2.12, 1.4), (2.12, 1.6)]
    assert hover["measured s0"] == [
        "t1, γ = 2, measured end to end: 1.50\u202f× (1.40–1.60)",
        "t1, γ = 3, measured end to end: 1.50\u202f× (–)",
    ]


def test_an_end_beyond_the_axis_is_an_arrow() -> None:
    ends = {"speedup_measured_low": 0.1, "speedup_measured_high": 40.0}
    axes, _ = speedup_axes(curve(), a_record(gamma=2, **ends), a_record(gamma=3, speedup_measured_low=0.1))
    low, high = axes.get_ylim()
    assert [(mark.get_marker(), mark.get_xydata().tolist()) for mark in found(axes, "cut")] == [
        ("v", [[2.12, low], [3.12, low]]), ("^", [[2.12, high]]),
    ]  # fmt: skip
    assert points(axes, "cap") == [(3.12, 1.6)]
    across, _ = drawn(figures.draw_scatter, [a_point(1.0, 2.0, x_ends=(0.01, 50.0))])
    assert [mark.get_marker() for mark in found(across, "cut")] == ["<", ">"]
    assert points(across, "cut") == [(across.get_xlim()[0], 2.0), (across.get_xlim()[1], 2.0)]
    assert figures.scatter_is_cut([a_point(1.0, 2.0, x_ends=(0.01, 50.0))])
    assert not figures.scatter_is_cut([a_point(1.0, 2.0)])


def cost_axes(rows: list[PredictionRow]) -> tuple[Axes, Hover]:
    return drawn(figures.draw_cost, {"t1": rows}, figures.series_styles(["t1"]), *known(cost_domain([{"t1": rows}])))


def test_cost_parts_are_stacked_to_the_round() -> None:
    axes, hover = cost_axes(curve())
    parts: list[list[Rectangle]] = [found(axes, f"bar {part}") for part in ("draft", "verify", "rest")]
    for one, draft, verify, rest in zip(curve(), *parts, strict=True):
        assert draft.get_height() == pytest.approx(1e3 * (one.t_draft_total_s or 0))
        assert verify.get_y() == draft.get_height()
        assert verify.get_height() == pytest.approx(1e3 * (one.t_verify_s or 0))
        assert rest.get_y() + rest.get_height() == pytest.approx(1e3 * (one.t_round_s or 0))
    assert found(axes, "bar overhead") == []
    assert hover["plain"] == ["T_decode: 10.1 ms"]
    assert points(axes, "plain")[0][1] == pytest.approx(10.064)
    # Ω(1) · T_decode = 1.7 · 10.064 ms
    assert points(axes, "dots s0")[0] == pytest.approx((1.0, 17.1088))
    assert hover["dots s0"][0] == "t1, γ = 1: plain decoding of the same tokens takes 17.1 ms"


def test_an_acceptance_panel_draws_what_is_known() -> None:
    series = {"a": [0.8, None, 0.6], "b": [0.5]}
    intervals = {"a": ([0.7, None, 0.5], [0.9, None, 0.7]), "b": ([None], [None])}
    axes, hover = drawn(figures.draw_acceptance, series, intervals, figures.series_styles(["a", "b"]))
    assert points(axes, "curve s0") == points(axes, "dots s0") == [(1, 0.8), (3, 0.6)]
    assert (found(axes, "curve s1"), points(axes, "dots s1")) == ([], [(1, 0.5)])
    (bars,) = found(axes, "band s0")
    assert [segment.tolist() for segment in bars.get_segments()] == [[[1, 0.7], [1, 0.9]], [[3, 0.5], [3, 0.7]]]
    assert found(axes, "band s1") == []
    assert hover == {"dots s0": ["a, position 1: 0.800", "a, position 3: 0.600"], "dots s1": ["b, position 1: 0.500"]}
    assert axes.get_ylim() == (0.0, 1.0)


def test_break_even_runs_between_the_cells() -> None:
    # one row, 1.2 and 0.8: S = 1 half-way between the centres at 0.5 and 1.5, from the upper to the lower edge
    (path,) = figures.break_even_lines([[1.2, 0.8]])
    assert {x for x, _ in path} == {1.0}
    assert {path[0][1], path[-1][1]} == {0.0, 1.0}
    (column,) = figures.break_even_lines([[0.8], [1.2]])
    assert {y for _, y in column} == {1.0}
    assert {column[0][0], column[-1][0]} == {0.0, 1.0}
    # 1.3 and 0.9: three quarters of the way from the centre at 0.5 to the one at 1.5
    (between,) = figures.break_even_lines([[1.3, 0.9]])
    assert [x for x, _ in between] == pytest.approx([1.25] * len(between))


@pytest.mark.parametrize("grid", [[[1.2]], [[0.9]], [[None]], [[1.2, 1.3], [1.1, 1.05]], [[None, None]]])
def test_no_line_where_nothing_crosses(grid: list[list[float | None]]) -> None:
    assert figures.break_even_lines(grid) == []


def test_the_line_reaches_cells_without_a_number_and_does_not_enter_them() -> None:
    (path,) = figures.break_even_lines([[1.3, 1.3, None], [0.9, 0.9, None]])
    assert {y for _, y in path} == {1.25}
    assert {path[0][0], path[-1][0]} == {0.0, 2.0}
    for over, under, spans in (
        # under the hole: (1.3 + .9 + .9) / 3 at its corners, .9 between them: S = 1 a quarter of the way, at 1.125
        ([1.3, None, 1.3], [0.9, 0.9, 0.9], [(0.0, 1.125), (1.875, 3.0)]),
        ([0.9, None, 0.9], [1.3, None, 1.3], [(0.0, 1.0), (2.0, 3.0)]),
    ):
        across = [[x for x, _ in path] for path in figures.break_even_lines([over, under])]
        assert sorted((min(x), max(x)) for x in across) == list(map(pytest.approx, spans))


def test_a_heat_map_says_every_cell() -> None:
    cells = {
        Point(batch_size=1, context=64): figures.HeatCell(speedup=1.42, gamma=3, note="speculate"),
        Point(batch_size=4, context=64): figures.HeatCell(speedup=0.93, gamma=1, note="do not speculate"),
        Point(batch_size=1, context=256): figures.HeatCell(speedup=None, gamma=None, note="oom"),
    }
    axes, hover = drawn(figures.draw_heat_map, cells, [1, 4], [64, 256])
    assert [text.get_text() for text in found(axes, "cell-value")] == ["0.93", "1.42"]
    assert [text.get_text() for text in found(axes, "cell-gamma")] == ["γ = 1", "γ = 3"]
    assert [text.get_text() for text in found(axes, "cell-note")] == ["no data", "oom"]
    assert [bool(cell.get_hatch()) for cell in found(axes, "cell")] == [False, True, False, True]
    assert hover["cell"] == [
        "batch 4, context 64: 0.93\u202f× at γ = 1, do not speculate",
        "batch 4, context 256: no data",
        "batch 1, context 64: 1.42\u202f× at γ = 3, speculate",
        "batch 1, context 256: oom",
    ]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["4", "1"], "the smallest batch stands lowest"
    assert axes.get_ylim() == (2, 0)
    over = [artist.get_zorder() for gid in ("contour", "cell-value") for artist in found(axes, gid)]
    assert over[0] < min(over[1:]), "numbers stand over the line"


def test_numbers_in_cells_are_readable() -> None:
    for value in (0.01, 0.4, 0.7, 0.9, 0.99, 1.0, 1.01, 1.2, 1.5, 1.8, 2.5, 40.0):
        assert figures.contrast(*figures.cell_colours(value)) >= 4.5, value
        assert not set(figures.cell_colours(value)) & set(COLOURS.values()), "not taken for a colour of the page"


def test_orange_is_slower_and_blue_is_faster() -> None:
    slower, faster = figures.cell_colours(0.8)[0], figures.cell_colours(1.25)[0]
    assert int(slower[1:3], 16) > int(slower[5:7], 16)
    assert int(faster[1:3], 16) < int(faster[5:7], 16)
    assert figures.cell_colours(2.0) == figures.cell_colours(50.0)
    assert figures.contrast("#000000", "#ffffff") == pytest.approx(21)
    axes, _ = drawn(figures.draw_colour_key)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.50\u202f×", "1.00\u202f×", "2.00\u202f×"]


def a_point(x: float, y: float, **more: Any) -> figures.ScatterPoint:
    plain: dict[str, Any] = {"x": x, "y": y, "style": figures.series_style(0), "shape": 0, "words": f"{x}, {y}"}
    return figures.ScatterPoint(**(plain | more))


def test_both_axes_show_the_same_range() -> None:
    # from 1 to 2, with 6 % of that on either side
    assert figures.scatter_domain([a_point(1.0, 2.0)]) == pytest.approx((0.94, 2.06))
    assert figures.scatter_domain([a_point(1.5, 1.5)]) == pytest.approx((1.4, 1.6))
    assert figures.scatter_domain([a_point(1.0, 2.0, x_ends=(0.9, 1.1))]) == pytest.approx((0.9 - 0.066, 2.0 + 0.066))
    # bars that dwarf the points: as far as 1 / 1.25 and 2 · 1.25
    assert figures.scatter_domain([a_point(1.0, 2.0, y_ends=(0.01, 50.0))]) == pytest.approx((0.8 - 0.102, 2.5 + 0.102))
    axes, _ = drawn(figures.draw_scatter, [a_point(1.0, 2.0)])
    assert axes.get_xlim() == axes.get_ylim() == pytest.approx((0.94, 2.06))
    assert points(axes, "plain") == [pytest.approx((0.94, 0.94)), pytest.approx((2.06, 2.06))]


def test_every_interval_is_a_bar_and_every_point_says_what_it_is() -> None:
    first = a_point(1.0, 1.2, x_ends=(0.9, 1.1), words="a & b")
    second = a_point(1.1, 1.0, y_ends=(0.9, 1.2), style=figures.series_style(1), shape=5)
    axes, hover = drawn(figures.draw_scatter, [first, second])
    bars = [segment.tolist() for bar in found(axes, "interval") for segment in bar.get_segments()]
    assert bars == [[[0.9, 1.2], [1.1, 1.2]], [[1.1, 0.9], [1.1, 1.2]]]
    assert (points(axes, "dots s0"), points(axes, "open s1")) == ([(1.0, 1.2)], [(1.1, 1.0)])
    assert hover == {"dots s0": ["a & b"], "open s1": ["1.1, 1.0"]}


SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("plot") / "run", Shape(contexts=(64,), gammas=(1, 2, 3)))


def test_the_same_run_gives_the_same_bytes_in_each_format(run: Path, tmp_path: Path) -> None:
    for ending, signature in SIGNATURES.items():
        written = write_plot(run, tmp_path / f"speedup.{ending}").read_bytes()
        assert written.startswith(signature)
        assert ending != "svg" or write_plot(run, tmp_path / "again.svg").read_bytes() == written


def test_another_format_or_folder_is_refused_before_anything_is_drawn(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected ending \.png, \.svg, \.pdf, got '\.gif'$"):
        write_plot(run, tmp_path / "speedup.gif")
    (tmp_path / "d.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")
    places = {"no/x.png": "the folder .*no does not exist", "d.png": "is a directory", "pipe.png": "is no file"}
    for name, what in places.items():
        with pytest.raises(ValueError, match=f"{name}: {what}"):
            plot_format(tmp_path / name)


def test_labels_say_only_what_differs() -> None:
    assert line_labels([GREEDY]) == {GREEDY: "greedy"}
    two = replace(GREEDY, sampling="t1", acceptance_rule="match")
    assert line_labels([GREEDY, two]) == {GREEDY: "greedy, ratio", two: "t1, match"}


@pytest.fixture(scope="module")
def data(run: Path) -> ReportData:
    return read_report_data(run)


def legend(data: ReportData) -> list[str]:
    (found,) = speedup_figure(data).legends
    return [text.get_text() for text in found.get_texts()]


def rings(data: ReportData) -> list[tuple[str, float]]:
    """Title of the panel and γ of every ring."""
    return [
        (axes.get_title(), gamma)
        for axes in speedup_figure(data).axes
        for line in axes.lines
        if line.get_gid() == "ring"
        for gamma in np.asarray(line.get_xdata()).tolist()
    ]


def test_a_ring_is_where_the_answer_is_to_speculate_and_the_legend_says_so(data: ReportData) -> None:
    assert {one.decision for one in data.recommendations} == {SPECULATE}
    words = ["plain decoding", *sorted({row.setting.sampling for row in data.predictions}), "90\u202f% interval"]
    first, *others = (replace(one, decision="undecided") for one in data.recommendations)
    one_left = replace(data, recommendations=[first, *data.recommendations[1:]])
    expected = [(f"batch {one.batch_size}, context {one.context}", one.gamma) for one in data.recommendations[1:]]
    assert sorted(rings(one_left)) == sorted(expected)
    assert legend(one_left) == [*words, "γ to use"]
    undecided = replace(data, recommendations=[first, *others])
    assert (rings(undecided), legend(undecided)) == ([], words)


def test_what_was_measured_is_drawn_and_told(data: ReportData) -> None:
    assert MEASURED not in legend(data)
    decoded = replace(data, validation=[a_record(), a_record(gamma=3)])
    assert MEASURED in legend(decoded)
    markers = [line for axes in speedup_figure(decoded).axes for line in axes.lines if line.get_gid() == "measured s0"]
    assert [np.asarray(line.get_ydata()).tolist() for line in markers] == [[1.5, 1.5]]


SIZE = Size(width=300, height=200)
HOSTILE = '<script>"x"</script> & $\\frac \x00 \u4f60'


def draw(axes: Axes) -> Hover:
    axes.plot([1, 2, 3], [0.5, 1.0, 1.5], "o", color=COLOURS["s0"], gid="dots s0")
    axes.axhline(1.0, color=COLOURS["ink"], gid="plain")
    axes.add_patch(Rectangle((1, 0.5), 1, 1, facecolor=COLOURS["faint"], edgecolor=COLOURS["muted"], hatch="//"))
    axes.text(2, 1, HOSTILE, color=WHITE)
    return {"dots s0": ["one", HOSTILE, "three"], "plain": ["at 1"]}


def inlined(key: str = "k", fixed: bool = False) -> Markup:
    return inline_figure(draw, SIZE, key=key, title="A <b>", x_title="γ", y_title="S", fixed=fixed)


@pytest.fixture(scope="module")
def svg() -> Markup:
    return inlined()


def test_it_is_sound_html_that_loads_nothing(svg: Markup) -> None:
    page = Page(f"<!DOCTYPE html>\n{svg}")
    assert page.ids[:2] == ["k-title", "k-desc"]
    assert 'role="img" aria-labelledby="k-title k-desc"' in svg
    assert not re.search(r"http|xlink|xmlns|<\?xml|<!DOCTYPE|<style|<metadata|\d{4}-\d\d-\d\d", svg)


def test_two_figures_of_a_page_share_no_id_and_equal_ones_are_equal(svg: Markup) -> None:
    Page(f"<!DOCTYPE html>\n{svg}{inlined('other')}")
    assert inlined() == svg


def test_colours_are_the_pages_and_text_is_text_in_its_font(svg: Markup) -> None:
    used = set(re.findall(r"var\(--([\w-]+)\)", svg))
    assert {"s0", "ink", "muted", "faint", "font"} <= used
    assert set(re.findall(r"#[0-9a-f]{6}(?=[;\"])", svg)) == {WHITE}
    assert re.findall(r"<text[^>]*>(γ|S)</text>", svg) == ["γ", "S"]
    assert "DejaVu" not in svg


def test_marks_say_what_they_are(svg: Markup) -> None:
    root = ElementTree.fromstring(svg)
    (dots,) = [group for group in root.iter("g") if group.get("class") == "dots s0"]
    assert [use[0].text for use in dots.iter("use")] == ["one", HOSTILE.replace("\x00", "\ufffd"), "three"]
    (line,) = [group for group in root.iter("g") if group.get("class") == "plain"]
    assert line[0].text == "at 1"
    assert root[0].text == "A <b>"
    assert (root[1].text or "").startswith("one. ")
    assert "<script" not in svg


def test_a_mark_without_its_text_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="zip"):
        inline_figure(lambda axes: draw(axes) | {"dots s0": ["one"]}, SIZE, key="k", title="t")


def test_coordinates_have_two_decimals_at_most(svg: Markup) -> None:
    assert not re.search(r'(?:\b(?:d|x|y|width)|transform)="[^"]*\.\d{3}', svg)


def test_a_fixed_figure_keeps_its_size(svg: Markup) -> None:
    assert 'viewBox="0 0 300 200"' in svg
    assert " width=" not in svg.partition(">")[0]
    assert 'width="300" height="200" style="min-width:225px"' in inlined(fixed=True)


def test_every_colour_has_a_dark_twin_and_is_told_from_the_others() -> None:
    assert len(set(COLOURS.values())) == len(COLOURS)
    css = (Path(inline_svg.__file__).parent / "report.css").read_text(encoding="utf-8")
    assert {role: len(re.findall(f"--{role}: #", css)) for role in COLOURS} == dict.fromkeys(COLOURS, 2)
