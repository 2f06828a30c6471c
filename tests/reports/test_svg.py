import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from specgauge.reports.svg import Scale, element, error_bar, figure, hatch, marker, polyline, tick_labels, ticks


def test_text_and_attributes_are_escaped() -> None:
    made = element("text", '<script>"x"</script>', class_='a"b', stroke_width=1.5, fill=None)
    assert made == '<text class="a&#34;b" stroke-width="1.5">&lt;script&gt;&#34;x&#34;&lt;/script&gt;</text>'


def test_a_figure_says_what_it_is() -> None:
    made = figure([Markup("<g></g>")], width=10.0, height=5.0, key="k", title="A <b>", description="D & d")
    assert 'role="img" aria-labelledby="k-title k-desc"' in made
    assert '<title id="k-title">A &lt;b&gt;</title><desc id="k-desc">D &amp; d</desc><g></g>' in made
    assert 'viewBox="0 0 10 5"' in made
    assert " width=" not in made
    assert ' width="10" height="5" style="min-width:7.5px"' in figure(
        [], width=10.0, height=5.0, key="k", title="t", description="d", fixed=True
    )


def test_coordinates_have_two_decimals_at_most() -> None:
    assert polyline([(1 / 3, 2.0), (3.999, 0.1)], css="c") == '<polyline points="0.33,2 4,0.1" class="c"></polyline>'


def test_markers_differ_in_shape() -> None:
    kinds = [marker((0, 0), shape, css="c").split()[0] for shape in range(4)]
    assert kinds == ["<circle", "<rect", "<polygon", "<polygon"]
    assert marker((0, 0), 2, css="c") != marker((0, 0), 3, css="c")
    assert marker((0, 0), 4, css="c") == marker((0, 0), 0, css="c")
    assert "<title>a &lt; b</title>" in marker((0, 0), 1, css="c", hover="a < b")


def test_hatching_stays_inside_its_rectangle() -> None:
    made = hatch(10, 20, 16, 8, css="h", gap=8)
    # offsets 8 and 16: from the left edge down to the top, then from the lower edge to the right one
    assert made == '<path d="M10 28L18 20M18 28L26 20" class="h"></path>'


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0]),
        (0.9, 2.0, [1.0, 1.25, 1.5, 1.75, 2.0]),
        (0.0, 47.0, [0.0, 10.0, 20.0, 30.0, 40.0]),
        (0.98, 1.02, [0.98, 0.99, 1.0, 1.01, 1.02]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected, abs=1e-12)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_lie_inside_and_are_few(low: float, width: float) -> None:
    high = low + width
    if high - low < 1e-9 * max(abs(low), abs(high)):
        return
    found = ticks(low, high)
    assert 1 <= len(found) <= 5
    assert all(low - 1e-6 * width - 1e-9 <= one <= high + 1e-6 * width + 1e-9 for one in found)
    assert found == sorted(found)


def test_tick_labels_share_their_decimals() -> None:
    assert tick_labels([1.0, 1.25, 1.5]) == ["1.00", "1.25", "1.50"]
    assert tick_labels([0.0, 10.0]) == ["0", "10"]


def test_a_scale_holds_values_inside_its_axis() -> None:
    scale = Scale(low=0, high=2, start=100, end=20)
    assert [scale(0), scale(1), scale(2), scale(9), scale(-1)] == [100, 60, 20, 20, 100]
    with pytest.raises(AssertionError):
        Scale(low=1, high=1, start=0, end=1)


def test_error_bars_have_a_cap_at_the_ends_that_are_shown() -> None:
    assert error_bar((10.0, 5.0), (20.0, 5.0), css="c") == '<path d="M10 5L20 5M10 2L10 8M20 2L20 8" class="c"></path>'
    assert error_bar((10.0, 9.0), (10.0, 5.0), css="c", capped=(False, True)) == (
        '<path d="M10 9L10 5M7 5L13 5" class="c"></path>'
    )


def test_a_scale_knows_what_it_shows() -> None:
    scale = Scale(low=0, high=2, start=100, end=20)
    assert [scale.shows(value) for value in (-0.1, 0, 2, 2.1)] == [False, True, True, False]
