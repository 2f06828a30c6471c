"""S(gamma) with its interval, one panel a place: is a curve over the plain-decoding line at 1, and where is its top?

Input: the curves of one (pair, mode, draft sampling, rule), a series per sampling setting, and what was measured end to
end, which stands as open markers with their intervals beside the predicted ones. Every panel of the block shares the
y axis, so that panels can be compared. Output: one `<svg>` a panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from markupsafe import Markup

from specgauge.reports.formatting import interval, number, speedup
from specgauge.reports.panel import Frame, PanelSize, SeriesStyle, band, gamma_range
from specgauge.reports.records import Prediction, Verified
from specgauge.reports.svg import error_bar, figure, line, marker, polyline

_ROOM = 0.06
_TALLEST_INTERVAL, _TALLEST_MEASURED = 1.5, 1.2
_ASIDE, _APART = 0.4, 8.0
"""Measured markers stand within this share of a column beside their gamma, and at most this far apart."""


def speedup_domain(predictions: Iterable[Prediction], measured: Iterable[Verified] = ()) -> tuple[float, float]:
    """A y range that shows every speed-up, the line at 1, and the intervals unless they dwarf the curves.

    Intervals of what was measured are shown as far as a fifth from it: those of few blocks are wide.
    """
    rows = [(one.speedup, one.speedup_low, one.speedup_high) for one in predictions]
    rows += [_tamed(one.speedup_measured, one.speedup_measured_low, one.speedup_measured_high) for one in measured]
    values = [1.0, *(value for value, _, _ in rows if value is not None)]
    lows = [low for value, low, _ in rows if value is not None and low is not None]
    highs = [high for value, _, high in rows if value is not None and high is not None]
    low = max(min(values + lows), min(values) / _TALLEST_INTERVAL)
    high = min(max(values + highs), max(values) * _TALLEST_INTERVAL)
    room = _ROOM * (high - low) or 0.1
    return max(0.0, low - room), high + room


def _tamed(
    value: float | None, low: float | None, high: float | None
) -> tuple[float | None, float | None, float | None]:
    """A measured speed-up with the part of its interval that the axis makes room for."""
    if value is None:
        return value, None, None
    return (
        value,
        None if low is None else max(low, value / _TALLEST_MEASURED),
        None if high is None else min(high, value * _TALLEST_MEASURED),
    )


def speedup_panel(
    series: Mapping[str, Sequence[Prediction]],
    styles: Mapping[str, SeriesStyle],
    marked: Mapping[str, int],
    y_range: tuple[float, float],
    measured: Sequence[Verified] = (),
    *,
    size: PanelSize,
    key: str,
    title: str,
) -> Markup:
    """One panel: a curve with its band for every series, a ring at `marked[name]` (the gamma to use), what is measured.

    `measured` are the rows of this place.
    """
    gammas = sorted({one.gamma for curve in series.values() for one in curve})
    frame = Frame.over(size, gamma_range(gammas), y_range)
    parts = frame.axes(gammas, "γ, draft tokens per round", "speed-up over plain decoding")
    for name, curve in series.items():
        parts += _bands(frame, curve, styles[name])
    parts.append(line((frame.x.start, frame.y(1.0)), (frame.x.end, frame.y(1.0)), css="plain"))
    for name, curve in series.items():
        parts += _curve(frame, name, curve, styles[name], marked.get(name))
    for order, name in enumerate(series):
        found = [one for one in measured if one.strategy.sampling == name]
        parts += _measured(frame, found, styles[name], (order + 1) * _apart(frame, len(series)))
    words = [_in_words(name, curve, marked.get(name)) for name, curve in series.items()]
    words += [_measured_words(one) for one in measured]
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


def _apart(frame: Frame, series: int) -> float:
    """Drawing units from one measured marker to the next of the same gamma."""
    column = (frame.x.end - frame.x.start) / (frame.x.high - frame.x.low)
    return min(_APART, _ASIDE * column / series)


def _measured(frame: Frame, rows: Sequence[Verified], style: SeriesStyle, aside: float) -> list[Markup]:
    """Open markers with their intervals, `aside` drawing units to the right of their gamma."""
    parts = []
    for one in rows:
        x = frame.x(one.gamma) + aside
        if one.speedup_measured_low is not None and one.speedup_measured_high is not None:
            low, high = one.speedup_measured_low, one.speedup_measured_high
            capped = frame.y.shows(low), frame.y.shows(high)
            css = f"measured-bar {style.css}"
            parts.append(error_bar((x, frame.y(low)), (x, frame.y(high)), css=css, capped=capped))
        centre = (x, frame.y(one.speedup_measured or 0.0))
        hover = _measured_words(one)
        parts.append(marker(centre, style.index, css=f"measured {style.css}", hover=hover))
    return parts


def _measured_words(one: Verified) -> str:
    ends = interval(one.speedup_measured_low, one.speedup_measured_high)
    return f"{one.strategy.sampling}, γ = {one.gamma}, measured end to end: {speedup(one.speedup_measured)} ({ends})."


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
