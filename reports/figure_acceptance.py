"""Acceptance by position in a round: survival A_i, and acceptance of draft i given that all before it were accepted.

The second is flat when one alpha describes the pair; a fall or rise along it is what the i.i.d. model misses. Input:
survival of every series at the largest gamma. Output: one `<svg>` a panel, probability from 0 to 1 over i = 1 … gamma.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from specgauge.reports.formatting import number
from specgauge.reports.panel import Frame, PanelSize, SeriesStyle, band, gamma_range
from specgauge.reports.svg import figure, marker, polyline


def conditional(survival: Sequence[float | None]) -> list[float | None]:
    """A_i / A_(i-1) for i = 1 …, with A_0 = 1; None where no round gets that far."""
    before = [1.0, *survival[:-1]]
    return [now / past if now is not None and past else None for now, past in zip(survival, before, strict=True)]


def acceptance_panel(
    series: Mapping[str, Sequence[float | None]],
    bands: Mapping[str, Sequence[tuple[int, float, float]]],
    styles: Mapping[str, SeriesStyle],
    *,
    size: PanelSize,
    key: str,
    title: str,
    y_title: str,
) -> Markup:
    """One panel: a line for every series of probabilities by position (index 0 is the round's first draft).

    `bands` holds (position, low, high) for the series that have intervals.
    """
    positions = list(range(1, max(len(values) for values in series.values()) + 1))
    frame = Frame.over(size, gamma_range(positions), (0.0, 1.0))
    parts = frame.axes(positions, "position of the draft in its round", y_title)
    parts += [band(frame, ends, styles[name]) for name, ends in bands.items()]
    words = []
    for name, values in series.items():
        style = styles[name]
        known = [(place, value) for place, value in enumerate(values, start=1) if value is not None]
        points = [(frame.x(place), frame.y(value)) for place, value in known]
        if len(points) > 1:
            parts.append(polyline(points, css=f"curve {style.css}{style.dash}"))
        for (place, value), point in zip(known, points, strict=True):
            hover = f"{name}, position {place}: {number(value, 3)}"
            parts.append(marker(point, style.index, css=f"dot {style.css}", hover=hover))
        words.append(f"{name}: {', '.join(number(value) for value in values)}.")
    return figure(parts, width=size.width, height=size.height, key=key, title=title, description=" ".join(words))
