"""One figure against another on equal axes: a point on the diagonal was predicted as it was measured.

Bars are intervals; one that crosses the diagonal holds the other figure. Colour tells the sampling, the marker's shape
the batch size (open ones after the first four). Output: one square `<svg>` a panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from specgauge.reports.panel import Frame, PanelSize
from specgauge.reports.svg import error_bar, figure, line, marker, tick_labels, ticks

SQUARE = PanelSize(width=350, height=362)
"""Its plotting area is as wide as it is high."""
SHAPES = 4
"""Different shapes of markers."""
_ROOM = 0.06
_LONGEST_BAR = 1.25


@dataclass(frozen=True, kw_only=True)
class ScatterPoint:
    """One point; intervals are (low, high) or None where there is none."""

    x: float
    y: float
    x_ends: tuple[float, float] | None
    y_ends: tuple[float, float] | None
    colour: str
    """A class that sets the colour."""
    shape: int
    words: str
    """What it is and its two figures."""


def marker_class(shape: int) -> str:
    """`dot` for the first shapes, `measured` (open) for those after them."""
    return "dot" if shape // SHAPES % 2 == 0 else "measured"


def scatter_domain(points: Iterable[ScatterPoint]) -> tuple[float, float]:
    """A range for both axes that shows every point, and the bars unless they dwarf them; (0, 1) without any."""
    points = list(points)
    if not points:
        return 0.0, 1.0
    values = [value for one in points for value in (one.x, one.y)]
    ends = [end for one in points for bar in (one.x_ends, one.y_ends) if bar is not None for end in bar]
    low = max(min(values + ends), min(values) / _LONGEST_BAR)
    high = min(max(values + ends), max(values) * _LONGEST_BAR)
    room = _ROOM * (high - low) or 0.1
    return low - room, high + room


def scatter_panel(points: Sequence[ScatterPoint], x_title: str, y_title: str, *, key: str, title: str) -> Markup:
    """One panel: the diagonal, a bar for every interval, and the points over them."""
    low, high = scatter_domain(points)
    frame = Frame.over(SQUARE, (low, high), (low, high))
    values = ticks(low, high)
    labels = tick_labels(values)
    parts = frame.axes(values, x_title, y_title, labels)
    parts.append(line((frame.x(low), frame.y(low)), (frame.x(high), frame.y(high)), css="plain"))
    for one in points:
        x, y = frame.x(one.x), frame.y(one.y)
        css = f"measured-bar {one.colour}"
        if one.x_ends is not None:
            first, last = one.x_ends
            capped = frame.x.shows(first), frame.x.shows(last)
            parts.append(error_bar((frame.x(first), y), (frame.x(last), y), css=css, capped=capped))
        if one.y_ends is not None:
            first, last = one.y_ends
            capped = frame.y.shows(first), frame.y.shows(last)
            parts.append(error_bar((x, frame.y(first)), (x, frame.y(last)), css=css, capped=capped))
    for one in points:
        css = f"{marker_class(one.shape)} {one.colour}"
        parts.append(marker((frame.x(one.x), frame.y(one.y)), one.shape, css=css, hover=one.words, radius=4))
    description = " ".join(f"{one.words}." for one in points)
    return figure(parts, width=SQUARE.width, height=SQUARE.height, key=key, title=title, description=description)
