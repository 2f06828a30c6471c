"""Batch × context: the best speed-up of every cell, with the break-even line S = 1 between the cells.

The line is the contour of the speed-up interpolated linearly between the cells' centres and held constant to the outer
edges and to cells without a number, which it does not enter. Grids of one row, one column or one cell work the same.
Colours are those of a diverging, colour-blind-safe scale around 1 with the text colour chosen for contrast. Output: one
`<svg>`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import contourpy  # matplotlib's own contour library
import numpy as np
from markupsafe import Markup

from specgauge.reports.formatting import speedup, speedup_decimals
from specgauge.reports.records import Place
from specgauge.reports.svg import Point, element, figure, hatch, polyline, rect, text

CELL_WIDTH, CELL_HEIGHT = 68.0, 48.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 58.0, 20.0, 8.0, 40.0
_TITLE_WIDTH = 90.0
_SLOWER = ((247, 243, 238), (233, 163, 104), (166, 78, 10))
_FASTER = ((240, 244, 248), (112, 173, 214), (8, 81, 146))
_FULL_COLOUR = math.log(2.0)
"""|log S| at which the colour is at its strongest: twice as fast or half as fast."""


@dataclass(frozen=True, kw_only=True)
class HeatCell:
    """One cell: its best speed-up and gamma, or why there is none."""

    speedup: float | None
    gamma: int | None
    note: str
    """Decision of a known cell, status (`oom`, `skipped`, …) of an unknown one."""


def heat_map(
    cells: Mapping[Place, HeatCell], batch_sizes: Sequence[int], contexts: Sequence[int], *, key: str, title: str
) -> Markup:
    """The heat map over `batch_sizes` (rows, smallest below) and `contexts` (columns)."""
    rows, columns = sorted(batch_sizes, reverse=True), sorted(contexts)
    width = _LEFT + max(CELL_WIDTH * len(columns), _TITLE_WIDTH) + _RIGHT
    height = _TOP + CELL_HEIGHT * len(rows) + _BOTTOM
    parts, words = [text(2, 12, "batch size", css="axis-title")], []
    empty = HeatCell(speedup=None, gamma=None, note="no data")
    numbers: list[Markup] = []
    for down, batch_size in enumerate(rows):
        parts.append(text(_LEFT - 8, _TOP + CELL_HEIGHT * (down + 0.5) + 4, str(batch_size), anchor="end"))
        for across, context in enumerate(columns):
            cell = cells.get(Place(batch_size, context), empty)
            corner = (_LEFT + CELL_WIDTH * across, _TOP + CELL_HEIGHT * down)
            parts += _background(corner, cell, f"batch {batch_size}, context {context}")
            numbers += _number(corner, cell)
            words.append(f"Batch {batch_size}, context {context}: {_in_words(cell)}.")
    for across, context in enumerate(columns):
        x = _LEFT + CELL_WIDTH * (across + 0.5)
        parts.append(text(x, height - _BOTTOM + 15, str(context), anchor="middle"))
    centre = _LEFT + max(CELL_WIDTH * len(columns), _TITLE_WIDTH) / 2
    parts.append(text(centre, height - 6, "context, tokens", css="axis-title", anchor="middle"))
    for path in break_even_lines([[cells.get(Place(b, c), empty).speedup for c in columns] for b in rows]):
        points = [(_LEFT + CELL_WIDTH * x, _TOP + CELL_HEIGHT * y) for x, y in path]
        parts += [polyline(points, css="contour-edge"), polyline(points, css="contour")]
    parts += numbers  # over the line, so that it never crosses out a number
    return figure(parts, width=width, height=height, key=key, title=title, description=" ".join(words), fixed=True)


def break_even_lines(values: Sequence[Sequence[float | None]]) -> list[list[Point]]:
    """Contours S = 1 of a grid of speed-ups (rows × columns): paths of (x, y) in cells from the upper left corner.

    Drawn over the cells' centres, edges and corners, where a value is the mean of the known cells that meet there; a
    cell without a number has no value at its centre, so no path enters it.
    """
    grid = np.array([[math.nan if value is None else value for value in row] for row in values], dtype=np.float64)
    height, width = grid.shape
    padded = np.pad(grid, 1, constant_values=math.nan)
    down, across = np.arange(2 * height + 1), np.arange(2 * width + 1)
    meeting = [
        padded[np.ix_(rows, columns)]
        for rows in ((down + 1) // 2, down // 2 + 1)
        for columns in ((across + 1) // 2, across // 2 + 1)
    ]
    means = np.ma.masked_invalid(meeting).mean(axis=0)
    lines = contourpy.contour_generator(x=across / 2, y=down / 2, z=means, corner_mask=False).lines(1.0)
    return [[(float(x), float(y)) for x, y in np.asarray(path)] for path in lines]


def _background(corner: Point, cell: HeatCell, where: str) -> list[Markup]:
    x, y = corner
    hover = f"{where}: {_in_words(cell)}"
    if cell.speedup is None:
        return [
            rect(x, y, CELL_WIDTH, CELL_HEIGHT, css="cell unknown", hover=hover),
            hatch(x, y, CELL_WIDTH, CELL_HEIGHT, css="hatch"),
        ]
    return [rect(x, y, CELL_WIDTH, CELL_HEIGHT, css="cell", hover=hover, fill=cell_colours(cell.speedup)[0])]


def _number(corner: Point, cell: HeatCell) -> list[Markup]:
    x, y = corner[0] + CELL_WIDTH / 2, corner[1]
    if cell.speedup is None:
        return [
            rect(corner[0] + 4, y + CELL_HEIGHT / 2 - 10, CELL_WIDTH - 8, 20, css="cell-note-back", rx=3),
            text(x, y + CELL_HEIGHT / 2 + 4, cell.note, css="cell-note", anchor="middle"),
        ]
    fill, ink = cell_colours(cell.speedup)
    lines = (
        ("cell-value", 22, f"{cell.speedup:.{speedup_decimals(cell.speedup)}f}"),
        ("cell-small", 38, f"γ = {cell.gamma}"),
    )
    return [
        element("text", content, x=x, y=y + down, text_anchor="middle", class_=css, fill=ink, stroke=fill)
        for css, down, content in lines
    ]


def cell_colours(value: float) -> tuple[str, str]:
    """Fill and ink of a cell with speed-up `value`: orange below 1, blue above, nearly white at 1."""
    stops = _FASTER if value >= 1 else _SLOWER
    strength = min(1.0, abs(math.log(max(value, 1e-9))) / _FULL_COLOUR)
    first, second, part = (
        (stops[0], stops[1], 2 * strength) if strength < 0.5 else (stops[1], stops[2], 2 * strength - 1)
    )
    fill = tuple(round(a + part * (b - a)) for a, b in zip(first, second, strict=True))
    inks = ((17, 17, 17), (255, 255, 255))
    ink = max(inks, key=lambda one: contrast(fill, one))
    return _hex(fill), _hex(ink)


def contrast(one: Sequence[int], other: Sequence[int]) -> float:
    """Contrast ratio of two sRGB colours (0–255), 1 to 21, as WCAG 2 defines it."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Sequence[int]) -> float:
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _hex(colour: Sequence[int]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def _in_words(cell: HeatCell) -> str:
    if cell.speedup is None:
        return cell.note
    return f"{speedup(cell.speedup)} at γ = {cell.gamma}" + (f", {cell.note}" if cell.note else "")


def colour_key(*, key: str) -> Markup:
    """A strip that explains the colours, from half as fast to twice as fast."""
    values = [2.0 ** (step / 4) for step in range(-4, 5)]
    left, wide = 20.0, 24.0
    parts = [rect(left + wide * i, 0, wide, 12, css="cell", fill=cell_colours(v)[0]) for i, v in enumerate(values)]
    parts += [
        text(left + wide * (i + 0.5), 27, speedup(values[i]), anchor="middle")
        for i in (0, len(values) // 2, -1 % len(values))
    ]
    description = "Orange is slower than plain decoding, blue is faster, white is equal."
    width = 2 * left + wide * len(values)
    return figure(parts, width=width, height=32, key=key, title="Colours", description=description, fixed=True)
