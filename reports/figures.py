"""The figures of the report, drawn into matplotlib axes that the caller gives, for the page and for `--plot` alike.

    heat map      the best S of every batch size and context, with the break-even line S = 1 between the cells
    S(γ)          with its interval as a band, a ring at the γ to use, and what was measured end to end as open markers
    cost          γ drafts, one verification and the rest stacked; a marker at Ω(γ) · T_decode over its bar: it pays
    acceptance    survival by position in a round, or acceptance given that all drafts before were accepted
    scatter       predicted against measured on equal axes, with intervals

Every `draw_…` returns the hover text of its marks, by the group id they are drawn under.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import contourpy  # matplotlib's own contour library
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from specgauge.model.settings import Point
from specgauge.reports.formatting import TimeUnit, duration, interval, number, speedup, speedup_decimals
from specgauge.reports.inline_svg import COLOURS, Hover
from specgauge.reports.records import Curve
from specgauge.reports.summaries import cost_bars, plain_s
from specgauge.sweeps.store.schema import PredictionRow, ValidationRow

FloatArray = NDArray[np.float64]
Values = Sequence[float | None] | FloatArray
Series = Mapping[str, Curve]
"""The curves of one panel by the name in the legend."""

_SERIES = sum(role.startswith("s") for role in COLOURS)
WHITE, BLACK = "#fffffe", "#111111"
"""Alike on the light and the dark page, unlike the roles'."""
DASHED = (0, (4, 3))
_MOST_X_LABELS = 12
_ROOM = 0.06
"""Share of an axis that stays free beyond what is drawn."""
BAND_ALPHA = 0.16


@dataclass(frozen=True, kw_only=True)
class SeriesStyle:
    """How one series looks."""

    role: str
    """The colour's name in the style sheet."""
    colour: str
    """The light page's."""
    marker: str
    line: Any
    """Matplotlib's line style, `DASHED` once the colours are used up."""


def marker(index: int) -> str:
    """Circle, square, triangle, diamond, and again."""
    return "os^D"[index % 4]


def series_style(index: int) -> SeriesStyle:
    """Colours and shapes go round, and lines are dashed once the colours are used up."""
    role, line = f"s{index % _SERIES}", DASHED if index >= _SERIES else "-"
    return SeriesStyle(role=role, colour=COLOURS[role], marker=marker(index), line=line)


def series_styles(names: Iterable[str]) -> dict[str, SeriesStyle]:
    """A style for every name, in the order given."""
    return {name: series_style(index) for index, name in enumerate(dict.fromkeys(names))}


_TALLEST_INTERVAL, _TALLEST_MEASURED = 1.5, 1.2
_BESIDE, _COLUMN = 0.12, 0.45
"""How far right of its γ a measured point stands, so that it does not hide the predicted one, and the last of them."""


def speedup_domain(predictions: Iterable[PredictionRow], measured: Iterable[ValidationRow] = ()) -> tuple[float, float]:
    """A y range that shows every speed-up, the line at 1, and the intervals unless they dwarf the curves.

    Intervals of what was measured are shown as far as a fifth from it: those of few blocks are wide.
    """
    rows = [(row.speedup, row.speedup_low, row.speedup_high) for row in predictions]
    for row in measured:
        value, low, high = row.speedup_measured, row.speedup_measured_low, row.speedup_measured_high
        if value is not None:
            low = None if low is None else max(low, value / _TALLEST_MEASURED)
            high = None if high is None else min(high, value * _TALLEST_MEASURED)
            rows.append((value, low, high))
    values = [1.0, *(value for value, _, _ in rows if value is not None)]
    lows = [low for value, low, _ in rows if value is not None and low is not None]
    highs = [high for value, _, high in rows if value is not None and high is not None]
    low, high = _domain(values, lows, highs, _TALLEST_INTERVAL)
    return max(0.0, low), high


def draw_speedup(
    axes: Axes,
    series: Series,
    styles: Mapping[str, SeriesStyle],
    to_use: Mapping[str, int],
    measured: Mapping[str, Sequence[ValidationRow]],
    y_range: tuple[float, float],
) -> Hover:
    """A curve with its band for every series, a ring at `to_use[name]`, and the rows of `measured[name]` beside it."""
    hover: Hover = {}
    _gamma_axis(axes, series)
    axes.set_ylim(y_range)
    axes.axhline(1.0, color=COLOURS["ink"], linestyle=DASHED, linewidth=1.5, gid="plain")
    for name, curve in series.items():
        style = styles[name]
        gammas = [row.gamma for row in curve]
        _draw_band(axes, gammas, [row.speedup_low for row in curve], [row.speedup_high for row in curve], style)
        known = [row for row in curve if row.speedup is not None]
        _draw_curve(axes, gammas, [row.speedup for row in curve], style)
        hover.setdefault(f"dots {style.role}", []).extend(
            f"{name}, γ = {row.gamma}{', to use' if row.gamma == to_use.get(name) else ''}: {speedup(row.speedup)} "
            f"({interval(row.speedup_low, row.speedup_high)}), {number(row.tokens_per_round)} tokens per round"
            for row in known
        )
        ring = [row for row in known if row.gamma == to_use.get(name)]
        _draw_markers(axes, [row.gamma for row in ring], [row.speedup for row in ring], style.colour, "o", "ring", 15)
    for order, name in enumerate(series, start=1):
        rows, style = measured.get(name, ()), styles[name]
        x = [(row.gamma or 0) + order * min(_BESIDE, _COLUMN / len(series)) for row in rows]
        ends = [(row.speedup_measured_low, row.speedup_measured_high) for row in rows]
        _draw_intervals(axes, x, ends, style.colour, vertical=True)
        values = [row.speedup_measured for row in rows]
        _draw_markers(axes, x, values, style.colour, style.marker, f"measured {style.role}", 6.5)
        hover.setdefault(f"measured {style.role}", []).extend(
            f"{name}, γ = {row.gamma}, measured end to end: {speedup(row.speedup_measured)} "
            f"({interval(row.speedup_measured_low, row.speedup_measured_high)})"
            for row in rows
        )
    return hover


_BAR = 0.62


def draw_cost(axes: Axes, series: Series, styles: Mapping[str, SeriesStyle], unit: TimeUnit, top: float) -> Hover:
    """A stacked bar for every γ, the line of T_decode, and a marker at Ω · T_decode for every series, up to `top`."""
    hover: Hover = {}
    _gamma_axis(axes, series)
    axes.set_ylim(0.0, top)
    bars = cost_bars(series)
    below_s = np.zeros(len(bars))
    parts = {
        "draft": ("C(γ)", [bar.draft_s for bar in bars]),
        "transfer": ("T_transfer", [bar.transfer_s for bar in bars]),
        "verify": ("T_verify", [bar.verify_s for bar in bars]),
        "rest": ("π·Δ₂", [bar.rest_s for bar in bars]),
        "overhead": ("ε", [max(0.0, bar.overhead_s or 0.0) for bar in bars]),
    }
    if all(bar.overhead_s is None for bar in bars):
        del parts["overhead"]
    if not any(bar.transfer_s for bar in bars):
        del parts["transfer"]
    for part, (words, lengths_s) in parts.items():
        drawn = axes.bar(
            [bar.gamma for bar in bars],
            np.array(lengths_s) / unit.seconds,
            _BAR,
            below_s / unit.seconds,
            color=COLOURS[f"bar-{part}"],
            edgecolor=COLOURS["page"],
            linewidth=0.75,
        )
        for patch in drawn:
            patch.set_gid(f"bar {part}")
        hover[f"bar {part}"] = [
            f"γ = {bar.gamma}, {words}: {duration(length_s)} of {duration(bar.total_s)}"
            for bar, length_s in zip(bars, lengths_s, strict=True)
        ]
        below_s += lengths_s
    decode_s = next((row.t_decode_s for curve in series.values() for row in curve if row.t_decode_s is not None), None)
    if decode_s is not None:
        height = decode_s / unit.seconds
        axes.axhline(height, color=COLOURS["ink"], linestyle=DASHED, linewidth=1.5, gid="plain")
        hover["plain"] = [f"T_decode: {duration(decode_s)}"]
    for order, (name, curve) in enumerate(series.items()):
        beside = (order - (len(series) - 1) / 2) * min(0.2, 0.5 / len(series))
        known = [(row.gamma, length_s) for row in curve if (length_s := plain_s(row)) is not None]
        x = [gamma + beside for gamma, _ in known]
        y = [length_s / unit.seconds for _, length_s in known]
        style = styles[name]
        _draw_markers(axes, x, y, style.colour, style.marker, f"dots {style.role}", 8)
        hover.setdefault(f"dots {style.role}", []).extend(
            f"{name}, γ = {gamma}: plain decoding of the same tokens takes {duration(length_s)}"
            for gamma, length_s in known
        )
    return hover


def draw_acceptance(
    axes: Axes,
    series: Mapping[str, Values],
    intervals: Mapping[str, tuple[Values, Values]],
    styles: Mapping[str, SeriesStyle],
) -> Hover:
    """A line for every series of probabilities by position (index 0 is the round's first draft), some with (low, high).

    The conditional one is flat where one α describes the pair; a fall or rise along it is what the i.i.d. model misses.
    """
    hover: Hover = {}
    positions = list(range(1, max(len(values) for values in series.values()) + 1))
    _category_axis(axes, positions)
    axes.set_ylim(0.0, 1.0)
    for name, values in series.items():
        style, own = styles[name], positions[: len(values)]
        if name in intervals:
            _draw_band(axes, own, *intervals[name], style)
        _draw_curve(axes, own, values, style, breaks=False)
        hover.setdefault(f"dots {style.role}", []).extend(
            f"{name}, position {position}: {number(value, 3)}"
            for position, value in zip(own, values, strict=True)
            if value is not None
        )
    return hover


_MAP = LinearSegmentedColormap.from_list("speedup", ["#a64e0a", "#e9a368", "#f5f4f2", "#70add6", "#085192"])
"""Orange below 1, blue above, nearly white at 1; at its strongest where twice as fast or half as fast."""
NO_DATA = "no data"
_NOTE_WIDTH = 100.0
"""Points times letters that fit into a cell."""


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """One cell: its best speed-up and γ, or why there is none."""

    speedup: float | None
    gamma: int | None
    note: str
    """Decision of a known cell, status (`oom`, `skipped`, …) of an unknown one."""


def cell_colours(value: float) -> tuple[str, str]:
    """Fill and ink of a cell with speed-up `value`."""
    red, green, blue, _ = _MAP((np.log2(max(value, 1e-9)) + 1.0) / 2.0)
    fill = to_hex((red, green, blue))
    return fill, BLACK if contrast(fill, BLACK) > contrast(fill, WHITE) else WHITE


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21, as WCAG 2 defines it."""
    light = []
    for colour in (one, other):
        linear = [c / 12.92 if c <= 0.04 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


def break_even_lines(values: Sequence[Values]) -> list[list[tuple[float, float]]]:
    """Contours S = 1 of a grid of speed-ups (rows × columns): paths of (x, y) in cells from the upper left corner.

    Linear between the cells' centres and held constant to the outer edges: drawn over centres, edges and corners, where
    a value is the mean of the known cells that meet there; a cell without a number has no value at its centre, so no
    path enters it.
    """
    grid = np.array([[np.nan if value is None else value for value in row] for row in values], dtype=np.float64)
    height, width = grid.shape
    padded = np.pad(grid, 1, constant_values=np.nan)
    down, across = np.arange(2 * height + 1), np.arange(2 * width + 1)
    meeting = [
        padded[np.ix_(rows, columns)]
        for rows in ((down + 1) // 2, down // 2 + 1)
        for columns in ((across + 1) // 2, across // 2 + 1)
    ]
    means = np.ma.masked_invalid(meeting).mean(axis=0)
    lines = contourpy.contour_generator(x=across / 2, y=down / 2, z=means, corner_mask=False).lines(1.0)
    return [[(float(x), float(y)) for x, y in np.asarray(path)] for path in lines]


def draw_heat_map(
    axes: Axes, cells: Mapping[Point, HeatCell], batch_sizes: Sequence[int], contexts: Sequence[int]
) -> Hover:
    """The cells over `batch_sizes` (rows, smallest below) and `contexts` (columns), and the break-even line."""
    rows, columns = sorted(batch_sizes, reverse=True), sorted(contexts)
    empty = HeatCell(speedup=None, gamma=None, note=NO_DATA)
    grid = [[cells.get(Point(batch_size=b, context=c), empty) for c in columns] for b in rows]
    words = []
    for down, (batch_size, row) in enumerate(zip(rows, grid, strict=True)):
        for across, (context, cell) in enumerate(zip(columns, row, strict=True)):
            _draw_cell(axes, across, down, cell)
            found = cell.note
            if cell.speedup is not None:
                found = f"{speedup(cell.speedup)} at γ = {cell.gamma}{cell.note and f', {cell.note}'}"
            words.append(f"batch {batch_size}, context {context}: {found}")
    for path in break_even_lines([[cell.speedup for cell in row] for row in grid]):
        x, y = zip(*path, strict=True)
        axes.plot(x, y, color=WHITE, linewidth=5, gid="contour-edge", zorder=3)
        axes.plot(x, y, color=BLACK, linewidth=2.5, gid="contour", zorder=3)
    axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0))
    axes.set_xticks(np.arange(len(columns)) + 0.5, [str(context) for context in columns])
    axes.set_yticks(np.arange(len(rows)) + 0.5, [str(batch_size) for batch_size in rows])
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    return {"cell": words}


def _draw_cell(axes: Axes, across: int, down: int, cell: HeatCell) -> None:
    """A coloured rectangle with its numbers, or a hatched one that says why; numbers stand over the break-even line."""
    box = {"boxstyle": "square,pad=0.15", "edgecolor": "none"}
    text: Mapping[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
    corner, x = (across, down), across + 0.5
    if cell.speedup is None:
        fill = COLOURS["faint"]
        axes.add_patch(Rectangle(corner, 1, 1, fc=fill, ec=COLOURS["muted"], hatch="//", lw=0, gid="cell"))
        size = min(12.0, _NOTE_WIDTH / max(len(cell.note), 1))
        look: Mapping[str, Any] = {"size": size, "bbox": box | {"facecolor": COLOURS["page"]}}
        axes.text(x, down + 0.5, cell.note, gid="cell-note", **look, **text)
    else:
        fill, ink = cell_colours(cell.speedup)
        box |= {"facecolor": fill}
        axes.add_patch(Rectangle(corner, 1, 1, fc=fill, ec="none", gid="cell"))
        value = f"{cell.speedup:.{speedup_decimals(cell.speedup)}f}"
        axes.text(x, down + 0.36, value, color=ink, size=15, weight="bold", gid="cell-value", bbox=box, **text)
        axes.text(x, down + 0.73, f"γ = {cell.gamma}", color=ink, gid="cell-gamma", bbox=box, **text)
    axes.add_patch(Rectangle(corner, 1, 1, fc="none", ec=COLOURS["page"], lw=1.5))


def draw_colour_key(axes: Axes) -> Hover:
    """A strip that explains the colours of the heat map, from half as fast to twice as fast."""
    values = [2.0 ** (step / 4) for step in range(-4, 5)]
    axes.bar(range(9), [1.0] * 9, 1.0, color=[cell_colours(value)[0] for value in values])
    axes.set_xticks([0, 4, 8], [speedup(values[at]) for at in (0, 4, 8)])
    axes.set(xlim=(-0.5, 8.5), ylim=(0, 1), yticks=[])
    axes.spines["bottom"].set_visible(False)
    return {}


_LONGEST_BAR = 1.25
Ends = tuple[float | None, float | None]


@dataclass(frozen=True, kw_only=True)
class ScatterPoint:
    """One point: colour by sampling, shape by batch size; intervals are (low, high)."""

    x: float
    y: float
    x_ends: Ends = (None, None)
    y_ends: Ends = (None, None)
    style: SeriesStyle
    shape: int
    words: str
    """What it is and its two figures."""


def scatter_is_cut(points: Sequence[ScatterPoint]) -> bool:
    """Whether an interval goes on beyond the axes."""
    return is_cut([end for point in points for end in (*point.x_ends, *point.y_ends)], scatter_domain(points))


def is_open(shape: int) -> bool:
    """Whether the markers of a shape are hollow: those of every second round."""
    return shape // 4 % 2 == 1


def scatter_domain(points: Sequence[ScatterPoint]) -> tuple[float, float]:
    """A range for both axes that shows every point, and the intervals unless they dwarf them."""
    values = [value for point in points for value in (point.x, point.y)]
    ends = [end for point in points for end in (*point.x_ends, *point.y_ends) if end is not None]
    return _domain(values, ends, ends, _LONGEST_BAR)


def draw_scatter(axes: Axes, points: Sequence[ScatterPoint]) -> Hover:
    """The diagonal, where a figure was predicted as it was measured, and the points with their intervals."""
    hover: Hover = {}
    low, high = scatter_domain(points)
    axes.set(xlim=(low, high), ylim=(low, high))
    axes.plot([low, high], [low, high], color=COLOURS["ink"], linestyle=DASHED, linewidth=1.5, gid="plain")
    for point in points:
        colour, gid = point.style.colour, f"{'open' if is_open(point.shape) else 'dots'} {point.style.role}"
        _draw_intervals(axes, [point.y], [point.x_ends], colour, vertical=False)
        _draw_intervals(axes, [point.x], [point.y_ends], colour, vertical=True)
        _draw_markers(axes, [point.x], [point.y], colour, marker(point.shape), gid, 8)
        hover.setdefault(gid, []).append(point.words)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(_round_ticks())
    return hover


def is_cut(ends: Iterable[float | None], limits: tuple[float, float]) -> bool:
    """Whether an end of an interval lies beyond an axis's limits."""
    return any(end is not None and not limits[0] <= end <= limits[1] for end in ends)


def _domain(values: list[float], lows: list[float], highs: list[float], longest: float) -> tuple[float, float]:
    """A range that shows every value, and the ends of intervals up to `longest` times the outermost, with room."""
    low = max(min(values + lows), min(values) / longest)
    high = min(max(values + highs), max(values) * longest)
    room = _ROOM * (high - low) or 0.1
    return low - room, high + room


def _gamma_axis(axes: Axes, series: Series) -> None:
    _category_axis(axes, sorted({row.gamma for curve in series.values() for row in curve}))


def _category_axis(axes: Axes, values: Sequence[int]) -> None:
    """A column of its own for every value, labels under at most a dozen, and round values on the other axis."""
    axes.set_xlim(values[0] - 0.5, values[-1] + 0.5)
    axes.set_xticks(values[:: -(-len(values) // _MOST_X_LABELS)])
    axes.yaxis.set_major_locator(_round_ticks())


def _round_ticks() -> MaxNLocator:
    return MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10])


def _numbers(values: Values) -> FloatArray:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)


def _draw_curve(axes: Axes, x: Sequence[float], values: Values, style: SeriesStyle, *, breaks: bool = True) -> None:
    """A line with its markers; an unknown value breaks it, or is passed over."""
    at, known = np.array(x, dtype=np.float64), _numbers(values)
    there = ~np.isnan(known)
    line_x, line_y = (at, known) if breaks else (at[there], known[there])
    if there.sum() > 1:
        axes.plot(line_x, line_y, color=style.colour, linestyle=style.line, linewidth=2, gid=f"curve {style.role}")
    _draw_markers(axes, at[there], known[there], style.colour, style.marker, f"dots {style.role}", 7)


def _draw_band(axes: Axes, x: Sequence[int], low: Values, high: Values, style: SeriesStyle) -> None:
    """The area between `low` and `high` of neighbouring x values; a thick bar where one stands alone."""
    at, lower, upper = np.array(x, dtype=np.float64), _numbers(low), _numbers(high)
    known = ~np.isnan(lower + upper)
    alone = known & ~np.r_[False, known[:-1]] & ~np.r_[known[1:], False]
    shown = known & ~alone
    look: Mapping[str, Any] = {"color": style.colour, "gid": f"band {style.role}"}
    if shown.any():
        axes.fill_between(at, lower, upper, where=list(shown), alpha=BAND_ALPHA, linewidth=0, **look)
    if alone.any():
        axes.vlines(at[alone], lower[alone], upper[alone], alpha=0.4, linewidth=5, **look)


def _draw_markers(axes: Axes, x: Values, y: Values, colour: str, shape: str, gid: str, size: float) -> None:
    kind = gid.partition(" ")[0]
    face = {"dots": colour, "ring": "none"}.get(kind, COLOURS["page"])
    edge, width = (COLOURS["page"], 1.0) if kind == "dots" else (colour, 2.0 if kind == "ring" else 1.6)
    look: Mapping[str, Any] = {"mfc": face, "mec": edge, "mew": width, "clip_on": False, "zorder": 3}
    if len(x):
        axes.plot(
            _numbers(x),
            _numbers(y),
            shape,
            color=colour,
            markersize=size * (0.85 if shape in "sD" else 1.0),
            gid=gid,
            **look,
        )


def _draw_intervals(axes: Axes, across: Sequence[float], ends: Sequence[Ends], colour: str, *, vertical: bool) -> None:
    """Bars where both ends are known, with a cap at each end, or an arrow where it lies beyond the axis's limits."""
    both = zip(across, ends, strict=True)
    known = [(at, low, high) for at, (low, high) in both if low is not None and high is not None]
    if not known:
        return
    lines, cap, arrows = (axes.vlines, "_", "v^") if vertical else (axes.hlines, "|", "<>")
    limits = axes.get_ylim() if vertical else axes.get_xlim()
    at, low, high = zip(*known, strict=True)
    lines(at, low, high, colors=colour, linewidth=1.3, gid="interval", zorder=2.5)
    look: Mapping[str, Any] = {"color": colour, "zorder": 2.5, "mew": 1.3}
    caps = [(place, end) for place, *own in known for end in own if limits[0] <= end <= limits[1]]
    cut = {
        arrows[0]: [(place, limits[0]) for place, end, _ in known if end < limits[0]],
        arrows[1]: [(place, limits[1]) for place, _, end in known if end > limits[1]],
    }
    for shape, points in {cap: caps, **cut}.items():
        if points:
            drawn = np.array(points).T if vertical else np.array(points).T[::-1]
            is_cap = shape == cap
            axes.plot(*drawn, shape, markersize=6, gid="cap" if is_cap else "cut", clip_on=is_cap, **look)
