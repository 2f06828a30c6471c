import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from specgauge.reports import inline_svg
from specgauge.reports.figures import WHITE
from specgauge.reports.inline_svg import COLOURS, Hover, Size, inline_figure
from tests.reports.pages import Page

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
