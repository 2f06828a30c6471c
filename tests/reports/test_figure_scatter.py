import re
from typing import Any

import pytest

from specgauge.reports.figure_scatter import ScatterPoint, marker_class, scatter_domain, scatter_panel
from tests.reports.pages import read_page


def a_point(x: float, y: float, **more: Any) -> ScatterPoint:
    plain: dict[str, Any] = {"x_ends": None, "y_ends": None, "colour": "c0", "shape": 0, "words": f"{x} and {y}"}
    return ScatterPoint(x=x, y=y, **(plain | more))


def panel(*points: ScatterPoint) -> str:
    svg = scatter_panel(points, "measured S", "predicted S", key="k", title="T")
    read_page(f"<!DOCTYPE html>\n{svg}")
    return svg


def test_both_axes_show_the_same_range() -> None:
    # from 1 to 2, with 6 % of that on either side
    assert scatter_domain([a_point(1.0, 2.0)]) == pytest.approx((0.94, 2.06))
    assert scatter_domain([a_point(1.5, 1.5)]) == pytest.approx((1.4, 1.6))
    assert scatter_domain([]) == (0.0, 1.0)


def test_bars_widen_the_range_unless_they_dwarf_the_points() -> None:
    assert scatter_domain([a_point(1.0, 2.0, x_ends=(0.9, 1.1))]) == pytest.approx((0.9 - 0.066, 2.0 + 0.066))
    # as far as 1 / 1.25 and 2 · 1.25
    assert scatter_domain([a_point(1.0, 2.0, y_ends=(0.01, 50.0))]) == pytest.approx((0.8 - 0.102, 2.5 + 0.102))


def test_the_diagonal_runs_from_corner_to_corner_of_a_square() -> None:
    (ends,) = re.findall(r'x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)" class="plain"', panel(a_point(1, 2)))
    x1, y1, x2, y2 = map(float, ends)
    assert (x2 - x1, y1 - y2) == (298.0, 298.0)


def test_a_point_predicted_as_measured_lies_on_the_diagonal() -> None:
    (centre,) = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', panel(a_point(1.5, 1.5)))
    # the middle of the square from 44 to 342 and from 324 up to 26
    assert centre == ("193", "175")


def test_every_interval_is_a_bar_and_every_point_says_what_it_is() -> None:
    svg = panel(a_point(1.0, 1.2, x_ends=(0.9, 1.1), words="a & b"), a_point(1.1, 1.0, y_ends=(0.9, 1.2), colour="c1"))
    assert (svg.count('class="measured-bar c0"'), svg.count('class="measured-bar c1"')) == (1, 1)
    assert svg.count("<title>a &amp; b</title>") == 1
    assert "a &amp; b. 1.1 and 1.0." in svg


def test_a_bar_cut_off_by_the_axis_has_no_cap_there() -> None:
    whole, cut = (panel(a_point(1.0, 2.0, y_ends=(1.5, high))) for high in (2.2, 50.0))
    (drawn,), (short,) = (re.findall(r'<path d="([^"]*)" class="measured-bar', svg) for svg in (whole, cut))
    assert (drawn.count("M"), short.count("M")) == (3, 2)


def test_shapes_go_round_filled_then_open() -> None:
    assert [marker_class(shape) for shape in (0, 3, 4, 7, 8)] == ["dot", "dot", "measured", "measured", "dot"]
