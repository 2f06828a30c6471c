"""Small building blocks of inline SVG figures: elements, text, scales and ticks.

A figure is a string made of elements whose colours are CSS classes of the page, so that one figure serves the light,
the dark and the printed page, keeps its text as text, and needs no script, no font and nothing from outside. Every
text and attribute is escaped here: a name is text, never markup. Equal input gives equal bytes. Output:
`markupsafe.Markup` to put into the template.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

Point = tuple[float, float]

_CAP = 3.0
"""Half the length of an error bar's cap."""
_TICK_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


def element(tag: str, content: str | Markup = "", **attributes: object) -> Markup:
    """One element; `content` is escaped unless it is Markup; an attribute `stroke_width` is written `stroke-width`.

    A trailing underscore keeps an attribute's name off Python's keywords (`class_`); None leaves an attribute out.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{written}>{escape(content)}</{tag}>")


def figure(
    parts: Iterable[Markup], *, width: float, height: float, key: str, title: str, description: str, fixed: bool = False
) -> Markup:
    """A whole `<svg>` with a title and a description for those who do not see it.

    `key` makes the ids, so it must be unique on the page. `fixed` keeps the natural size (in CSS pixels) instead of
    filling the column, down to three quarters of it where there is less room; the page scrolls its box beyond that.
    """
    head = element("title", title, id=f"{key}-title") + element("desc", description, id=f"{key}-desc")
    size = {"width": width, "height": height, "style": f"min-width:{_plain(0.75 * width)}px"} if fixed else {}
    return element(
        "svg",
        head + Markup("").join(parts),
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        **size,
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
        class_="figure",
    )


def text(x: float, y: float, content: str, *, css: str = "label", anchor: str = "start") -> Markup:
    """A line of text with its baseline at (x, y); `anchor` is `start`, `middle` or `end`."""
    return element("text", content, x=x, y=y, text_anchor=anchor, class_=css)


def line(start: Point, end: Point, *, css: str, hover: str = "") -> Markup:
    """A straight line; `hover` is its tooltip."""
    return element("line", _hover(hover), x1=start[0], y1=start[1], x2=end[0], y2=end[1], class_=css)


def rect(x: float, y: float, width: float, height: float, *, css: str, hover: str = "", **more: object) -> Markup:
    """A rectangle from its upper left corner; `hover` is its tooltip."""
    return element("rect", _hover(hover), x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), class_=css, **more)


def polyline(points: Sequence[Point], *, css: str) -> Markup:
    """An open line through `points`."""
    return element("polyline", points=_points(points), class_=css)


def polygon(points: Sequence[Point], *, css: str) -> Markup:
    """A closed, filled shape."""
    return element("polygon", points=_points(points), class_=css)


def marker(centre: Point, shape: int, *, css: str, radius: float = 3.5, hover: str = "") -> Markup:
    """A marker whose shape (circle, square, triangle, diamond, by turns) tells series apart without their colour."""
    x, y = centre
    kind = shape % 4
    if kind == 0:
        return element("circle", _hover(hover), cx=x, cy=y, r=radius, class_=css)
    if kind == 1:
        side = 1.8 * radius
        return rect(x - side / 2, y - side / 2, side, side, css=css, hover=hover)
    reach = 1.3 * radius
    corners = [(x, y - reach), (x + reach, y + 0.8 * reach), (x - reach, y + 0.8 * reach)]
    if kind == 3:
        corners = [(x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y)]
    return element("polygon", _hover(hover), points=_points(corners), class_=css)


def error_bar(start: Point, end: Point, *, css: str, capped: tuple[bool, bool] = (True, True)) -> Markup:
    """A horizontal or vertical bar between two points, with a cap across its ends; an end cut off has none."""
    across = (0.0, _CAP) if start[1] == end[1] else (_CAP, 0.0)
    ends = [point for point, there in zip((start, end), capped, strict=True) if there]
    strokes = [(start, end)]
    strokes += [((x - across[0], y - across[1]), (x + across[0], y + across[1])) for x, y in ends]
    drawn = "".join(f"M{_plain(a)} {_plain(b)}L{_plain(c)} {_plain(d)}" for (a, b), (c, d) in strokes)
    return element("path", d=drawn, class_=css)


def hatch(x: float, y: float, width: float, height: float, *, css: str, gap: float = 8.0) -> Markup:
    """Rising diagonals cut to a rectangle (drawn out, since a pattern would need a reference inside the page)."""
    strokes = []
    offset = gap
    while offset < width + height:
        start = (x + max(0.0, offset - height), y + min(offset, height))
        end = (x + min(offset, width), y + max(0.0, offset - width))
        strokes.append(f"M{_plain(start[0])} {_plain(start[1])}L{_plain(end[0])} {_plain(end[1])}")
        offset += gap
    return element("path", d="".join(strokes), class_=css)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A linear map from data to drawing units."""

    low: float
    """Data value drawn at `start`."""
    high: float
    """Data value drawn at `end`; greater than `low`."""
    start: float
    """Coordinate of `low`."""
    end: float
    """Coordinate of `high`."""

    def __post_init__(self) -> None:
        """Refuse an empty range."""
        assert self.high > self.low, (self.low, self.high)

    def shows(self, value: float) -> bool:
        """Whether `value` lies on the axis."""
        return self.low <= value <= self.high

    def __call__(self, value: float) -> float:
        """The coordinate of `value`, held inside the axis."""
        inside = min(max(value, self.low), self.high)
        return self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most `most` round values (1, 2, 2.5 or 5 times a power of ten apart) inside [low, high]."""
    assert high > low, (low, high)
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    for step in (factor * power * scale for scale in (1.0, 10.0) for factor in _TICK_STEPS):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if step >= raw * (1 - 1e-9) and last - first + 1 <= most:
            return [round(index * step, 12) for index in range(first, last + 1)]
    raise AssertionError((low, high, most))


def tick_labels(values: Sequence[float]) -> list[str]:
    """Tick values with as many decimals as tell them apart."""
    for decimals in range(9):
        if all(abs(value - round(value, decimals)) < 1e-9 for value in values):
            return [f"{value:.{decimals}f}" for value in values]
    return [f"{value:g}" for value in values]


def _hover(content: str) -> Markup:
    return element("title", content) if content else Markup("")


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{_plain(x)},{_plain(y)}" for x, y in points)


def _plain(value: object) -> str:
    """Coordinates with two decimals at most, so that equal figures are equal bytes on every platform."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
