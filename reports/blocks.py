"""Blocks of panels: what may share one legend and one y axis, and the swatches that legends are made of.

A block holds the panels of one pair, mode, draft sampling and rule, under a title that tells it from the others of the
run. Output: `Block`s for the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from specgauge.reports.formatting import count
from specgauge.reports.panel import SeriesStyle
from specgauge.reports.records import Place, Strategy
from specgauge.reports.svg import element, line, marker

MOST_PANELS = 24
"""Blocks of a section with more panels than this open one at a time."""


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A swatch and its words."""

    swatch: Markup
    words: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small plot with the text over it."""

    caption: str
    marks: Sequence[LegendEntry]
    svg: Markup


@dataclass(frozen=True, kw_only=True)
class Block:
    """Panels that share a legend and a y axis."""

    title: str
    legend: Sequence[LegendEntry]
    panels: Sequence[Panel]
    columns: int
    """Panels in a row where there is room: 2 or 3."""

    @property
    def size(self) -> int:
        """Number of panels."""
        return len(self.panels)


def rule_titles(strategies: Iterable[Strategy]) -> dict[Strategy, str]:
    """The block of every strategy, alike for those that differ by sampling only: a title of what differs otherwise."""
    keys = {one: (one.pair, one.mode, one.draft_sampling, one.acceptance_rule) for one in strategies}
    names = ("pair {}", "mode {}", "draft sampling {}", "{} rule")
    varied = [len({key[i] for key in keys.values()}) > 1 for i in range(4)]
    return {
        one: ", ".join(name.format(part) for name, part, vary in zip(names, key, varied, strict=True) if vary)
        for one, key in keys.items()
    }


def caption(place: Place) -> str:
    """A place in words: `batch 4, 256 tokens of context`."""
    return f"batch {place.batch_size}, {count(place.context, 'token')} of context"


def series_swatch(style: SeriesStyle, *, dot_only: bool = False) -> Markup:
    """The line and marker of a series, or its marker alone."""
    parts = [] if dot_only else [line((1, 8), (27, 8), css=f"curve {style.css}{style.dash}")]
    return icon(*parts, marker((14, 8), style.index, css=f"dot {style.css}", radius=4))


def line_swatch(css: str) -> Markup:
    """A line of a class."""
    return icon(line((1, 8), (27, 8), css=css))


def block_swatch(css: str) -> Markup:
    """An area of a class."""
    return icon(element("rect", x=2, y=2, width=24, height=12, class_=css))


def icon(*parts: Markup) -> Markup:
    """A swatch of anything drawn into 28 × 16 units."""
    return element("svg", Markup("").join(parts), viewBox="0 0 28 16", aria_hidden="true")
