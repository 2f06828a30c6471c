"""The frame of a small plot: plotting area, axes with ticks and titles, and how a series looks.

Panels are drawn at about the width they are shown at, so that text keeps its size from a phone to a desk: `SMALL` ones
stand three in a row, `WIDE` ones two. Nothing is written inside the plotting area; names stand in the page's own text
beside it, where they cannot overlap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from specgauge.reports.svg import Point, Scale, line, polygon, text, tick_labels, ticks

_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 8.0, 26.0, 38.0
_MOST_X_LABELS = 12
COLOURS = 6
"""Number of series colours in the style sheet (classes `c0` …)."""


@dataclass(frozen=True, kw_only=True)
class PanelSize:
    """Width and height of a panel in drawing units."""

    width: float
    height: float


SMALL = PanelSize(width=350, height=230)
WIDE = PanelSize(width=440, height=260)


@dataclass(frozen=True, kw_only=True)
class SeriesStyle:
    """How one series is drawn; the colour's class and the marker's shape go together."""

    index: int

    @property
    def css(self) -> str:
        """The class that sets the colour."""
        return f"c{self.index % COLOURS}"

    @property
    def dash(self) -> str:
        """A class that dashes the line once the colours are used up."""
        return " dashed" if self.index >= COLOURS else ""


def series_styles(names: Sequence[str]) -> Mapping[str, SeriesStyle]:
    """A style for every name, in the order given."""
    return {name: SeriesStyle(index=index) for index, name in enumerate(dict.fromkeys(names))}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A plotting area with its two scales."""

    size: PanelSize
    x: Scale
    y: Scale

    @classmethod
    def over(cls, size: PanelSize, x_range: tuple[float, float], y_range: tuple[float, float]) -> Frame:
        """The area of a panel of `size` over these data ranges."""
        return cls(
            size=size,
            x=Scale(low=x_range[0], high=x_range[1], start=_LEFT, end=size.width - _RIGHT),
            y=Scale(low=y_range[0], high=y_range[1], start=size.height - _BOTTOM, end=_TOP),
        )

    def axes(
        self, x_values: Sequence[float], x_title: str, y_title: str, x_labels: Sequence[str] | None = None
    ) -> list[Markup]:
        """Horizontal grid lines with their values, the base line, labels under `x_values`, and both titles.

        `x_labels` are what is written under `x_values`, where that is not the values themselves.
        """
        labels = [str(value) for value in x_values] if x_labels is None else x_labels
        parts = [text(2, 12, y_title, css="axis-title")]
        levels = ticks(self.y.low, self.y.high)
        for level, label in zip(levels, tick_labels(levels), strict=True):
            height = self.y(level)
            parts.append(line((self.x.start, height), (self.x.end, height), css="grid"))
            parts.append(text(self.x.start - 6, height + 4, label, anchor="end"))
        parts.append(line((self.x.start, self.y.start), (self.x.end, self.y.start), css="axis"))
        every = -(-len(x_values) // _MOST_X_LABELS)
        parts.extend(
            text(self.x(value), self.y.start + 16, label, anchor="middle")
            for value, label in list(zip(x_values, labels, strict=True))[::every]
        )
        parts.append(
            text((self.x.start + self.x.end) / 2, self.size.height - 4, x_title, css="axis-title", anchor="middle")
        )
        return parts


def gamma_range(gammas: Sequence[int]) -> tuple[float, float]:
    """The x range that gives every gamma a column of its own width."""
    return min(gammas) - 0.5, max(gammas) + 0.5


def band(frame: Frame, ends: Sequence[tuple[int, float, float]], style: SeriesStyle) -> Markup:
    """The area between the (low, high) of neighbouring x values; a bar where there is only one."""
    upper: list[Point] = [(frame.x(x), frame.y(high)) for x, _, high in ends]
    lower: list[Point] = [(frame.x(x), frame.y(low)) for x, low, _ in ends]
    if len(ends) == 1:
        return line(upper[0], lower[0], css=f"whisker {style.css}")
    return polygon(upper + lower[::-1], css=f"band {style.css}") if ends else Markup("")
