"""S(gamma) with its interval, one panel a place: is a curve over the plain-decoding line at 1, and where is its top?

Input: the curves of one (pair, mode, draft sampling, rule), a series per sampling setting. Every panel of the block
shares the y axis, so that panels can be compared. Output: one `<svg>` a panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from specgauge.reports.formatting import interval, number, speedup
from specgauge.reports.panel import Frame, PanelSize, SeriesStyle, band, gamma_range
from specgauge.reports.records import Prediction
from specgauge.reports.svg import figure, line, marker, polyline

_ROOM = 0.06
_TALLEST_INTERVAL = 1.5


def speedup_domain(predictions: Iterable[Prediction]) -> tuple[float, float]:
    """A y range that shows every speed-up, the line at 1, and the intervals unless they dwarf the curves."""
    rows = [one for one in predictions if one.speedup is not None]
    values = [1.0, *(one.speedup for one in rows if one.speedup is not None)]
    lows = [one.speedup_low for one in rows if one.speedup_low is not None]
    highs = [one.speedup_high for one in rows if one.speedup_high is not None]
    low = max(min(values + lows), min(values) / _TALLEST_INTERVAL)
    high = min(max(values + highs), max(values) * _TALLEST_INTERVAL)
    room = _ROOM * (high - low) or 0.1
    return max(0.0, low - room), high + room


def speedup_panel(
    series: Mapping[str, Sequence[Prediction]],
    styles: Mapping[str, SeriesStyle],
    marked: Mapping[str, int],
    y_range: tuple[float, float],
    *,
    size: PanelSize,
    key: str,
    title: str,
) -> Markup:
    """One panel: a curve with its band for every series of `series`, a ring at `marked[name]` (the gamma to use)."""
    gammas = sorted({one.gamma for curve in series.values() for one in curve})
    frame = Frame.over(size, gamma_range(gammas), y_range)
    parts = frame.axes(gammas, "γ, draft tokens per round", "speed-up over plain decoding")
    for name, curve in series.items():
        parts += _bands(frame, curve, styles[name])
    parts.append(line((frame.x.start, frame.y(1.0)), (frame.x.end, frame.y(1.0)), css="plain"))
    for name, curve in series.items():
        parts += _curve(frame, name, curve, styles[name], marked.get(name))
    words = [_in_words(name, curve, marked.get(name)) for name, curve in series.items()]
    return figure(parts, width=size.width, height=size.height, key=key, title=title, description=" ".join(words))


def _bands(frame: Frame, curve: Sequence[Prediction], style: SeriesStyle) -> list[Markup]:
    return [
        band(
            frame,
            [
                (one.gamma, one.speedup_low, one.speedup_high)
                for one in run
                if one.speedup_low is not None and one.speedup_high is not None
            ],
            style,
        )
        for run in _runs(curve)
    ]


def _curve(
    frame: Frame, name: str, curve: Sequence[Prediction], style: SeriesStyle, marked: int | None
) -> list[Markup]:
    parts = []
    for run in _runs(curve):
        points = [(frame.x(one.gamma), frame.y(one.speedup or 0.0)) for one in run]
        if len(points) > 1:
            parts.append(polyline(points, css=f"curve {style.css}{style.dash}"))
        for one, point in zip(run, points, strict=True):
            hover = (
                f"{name}, γ = {one.gamma}: {speedup(one.speedup)} "
                f"({interval(one.speedup_low, one.speedup_high)}), {number(one.tokens_per_round)} tokens per round"
            )
            if one.gamma == marked:
                parts.append(marker(point, 0, css=f"ring {style.css}", radius=8))
            parts.append(marker(point, style.index, css=f"dot {style.css}", hover=hover))
    return parts


def _runs(curve: Sequence[Prediction]) -> list[list[Prediction]]:
    """Stretches of a curve without an unknown speed-up between them."""
    runs: list[list[Prediction]] = [[]]
    for one in curve:
        if one.speedup is None:
            runs.append([])
        else:
            runs[-1].append(one)
    return [run for run in runs if run]


def _in_words(name: str, curve: Sequence[Prediction], marked: int | None) -> str:
    values = ", ".join(f"{one.gamma}: {speedup(one.speedup)}" for one in curve)
    answer = f" γ = {marked} is recommended." if marked is not None else ""
    return f"{name}, speed-up by γ: {values}.{answer}"
