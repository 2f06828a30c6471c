"""Matplotlib figures as inline SVG of the page: its colours, its font, hover text, light and dark from one drawing.

Figures are drawn in the style sheet's light colours, which become `var(--…)` in the page, so that one drawing serves
the light, the dark and the printed page. Text stays text and takes the page's font. The group ids that `figures` gives
its artists become classes, and the marks in them get `<title>`s. Equal input gives equal bytes; nothing is loaded.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specgauge.reports.formatting import printable

Hover = dict[str, list[str]]
"""Hover text of the marks drawn under a group id, in the order in which they were drawn."""
_CSS = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
_DRAWN = r"--(page|ink|muted|faint|bar-\w+|s\d): (#[0-9a-f]{6})"
COLOURS: dict[str, str] = dict(reversed(re.findall(_DRAWN, _CSS)))
"""Light colours of the style sheet by role (its first ones: the dark ones follow them there)."""
STYLE: dict[Any, Any] = {
    "axes.facecolor": "none",
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.labelpad": 6,
    "axes.titlesize": "medium",
    "axes.titley": 1.02,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 12,
    "grid.color": COLOURS["faint"],
    "hatch.color": COLOURS["muted"],
    "hatch.linewidth": 0.5,
    "path.simplify": False,
    "svg.fonttype": "none",
    "text.color": COLOURS["ink"],
    "text.parse_math": False,
    "xtick.bottom": False,
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.left": False,
    "ytick.labelcolor": COLOURS["muted"],
}
_UNITS_PER_INCH = 72
_ROLES = {colour: f"var(--{role})" for role, colour in COLOURS.items()}
_COLOUR = re.compile("|".join(COLOURS.values()))
_FONT = re.compile(r"'DejaVu Sans'[^;]*sans-serif")
_DECIMALS = re.compile(r"-?\d+\.\d+")
_REFERENCE = re.compile(r"#([\w-]+)")
_OWN_ID = re.compile(r"[a-z][a-z -]*[a-z](?: s\d)?")
_GEOMETRY = {"d", "x", "y", "width", "height", "transform"}
_BY_POINTS: Mapping[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


@dataclass(frozen=True, kw_only=True)
class Size:
    """A figure and the margins around its axes, in units of about a CSS pixel."""

    width: float
    height: float
    left: float = 44.0
    right: float = 8.0
    top: float = 26.0
    bottom: float = 38.0


def inline_figure(
    draw: Callable[[Axes], Hover],
    size: Size,
    *,
    key: str,
    title: str,
    description: str = "",
    x_title: str = "",
    y_title: str = "",
    fixed: bool = False,
) -> Markup:
    """What `draw` draws into a pair of axes, as an `<svg>` with a title and a description for those who do not see it.

    `key` makes the ids, so it must be unique on the page. The description is the marks' hover text unless it is given.
    `fixed` keeps the natural size instead of filling the column, down to three quarters of it where there is less room.
    """
    with mpl.rc_context({**STYLE, "svg.hashsalt": key}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the page's font draws the text
        figure = Figure(figsize=(size.width / _UNITS_PER_INCH, size.height / _UNITS_PER_INCH))
        across, down = size.width - size.left - size.right, size.height - size.top - size.bottom
        corner = (size.left / size.width, size.bottom / size.height)
        axes = figure.add_axes((*corner, across / size.width, down / size.height))
        hover = draw(axes)
        figure.patch.set_visible(False)
        axes.patch.set_visible(False)
        axes.set_xlabel(x_title)
        axes.annotate(y_title, (0, 1), xytext=(2 - size.left, 10), color=COLOURS["muted"], **_BY_POINTS)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata=_NO_METADATA)
    root = ElementTree.fromstring(printable(drawn.getvalue()))
    _strip(root)
    _add_hover(root, hover)
    words = description or " ".join(f"{text}." for texts in hover.values() for text in texts)
    _label(root, key, title, words)
    if fixed:
        root.attrib |= {"width": f"{size.width:g}", "height": f"{size.height:g}"}
        root.attrib["style"] = f"min-width:{0.75 * size.width:g}px"
    return Markup(printable(ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)))


def _strip(root: ElementTree.Element) -> None:
    """Leave plain HTML: no namespaces, style sheets or metadata, ids only where something refers to them."""
    view_box = root.attrib["viewBox"]
    root.attrib.clear()
    root.attrib |= {"class": "figure", "viewBox": _rounded(view_box)}
    elements = list(root.iter())
    used = {
        name
        for element in elements
        for value in element.attrib.values()
        if "href" in value or "#" in value
        for name in _REFERENCE.findall(value)
    }
    for element in elements:
        element.tag = _local(element.tag)
        element.text = (element.text or "").strip()
        element.tail = None
        for child in list(element):
            if _local(child.tag) in ("metadata", "style"):
                element.remove(child)
        attributes = dict(element.attrib)
        element.attrib.clear()
        for name, value in attributes.items():
            element.attrib |= _attribute(_local(name), value, used)


def _attribute(name: str, value: str, used: set[str]) -> Mapping[str, str]:
    if name == "id" and value not in used:
        return {"class": value} if _OWN_ID.fullmatch(value) else {}
    if name == "style":
        value = _FONT.sub("var(--font)", _COLOUR.sub(lambda found: _ROLES[found[0]], value))
    elif name in _GEOMETRY:
        value = _rounded(value)
        if value.startswith("rotate(0 "):
            return {}
    elif name == "fill" and value in _ROLES:
        return {"style": f"fill: {_ROLES[value]}"}
    return {name: value}


def _add_hover(root: ElementTree.Element, hover: Hover) -> None:
    for name, texts in hover.items():
        for mark, text in zip(_marks(root, name), texts, strict=True):
            title = ElementTree.Element("title")
            title.text = text
            mark.insert(0, title)


def _marks(root: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """The markers of a class, or what is drawn once under it."""
    for group in root.iter("g"):
        if group.get("class") == name:
            uses = list(group.iter("use"))
            yield from uses or [group]


def _label(root: ElementTree.Element, key: str, title: str, description: str) -> None:
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(tag, {"id": f"{key}-{tag}"})
        element.text = text
        root.insert(place, element)
    root.attrib |= {"role": "img", "aria-labelledby": f"{key}-title {key}-desc"}


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _rounded(geometry: str) -> str:
    """Two decimals at most and single blanks."""
    short = _DECIMALS.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), geometry)
    return " ".join(short.replace("-0 ", "0 ").split())
