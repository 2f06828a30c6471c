"""The cost of a round against plain decoding: gamma drafts and one verification stacked, T_decode as a line.

A bar's parts are C(gamma), the whole draft chain, T_verify(gamma), the overhead where it is known, and what is left of
T_round (catching up). For every sampling setting a marker stands at Omega(gamma) · T_decode, the time plain decoding
needs for the tokens such a round commits: where it stands over the bar, speculation pays. Output: one `<svg>` a panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from specgauge.reports.formatting import TimeUnit, duration, time_unit
from specgauge.reports.panel import Frame, PanelSize, SeriesStyle, gamma_range
from specgauge.reports.records import Prediction
from specgauge.reports.svg import figure, line, marker, rect

_BAR = 0.62
_ROOM = 1.06
_ROUNDING = 1e-9
"""Share of a round below which what its parts leave of it is the rounding of their sum."""


@dataclass(frozen=True, kw_only=True)
class CostBar:
    """One bar; parts in seconds. The last two are the largest among the series, which share the others."""

    gamma: int
    draft_s: float
    verify_s: float
    rest_s: float
    overhead_s: float | None
    """ε; None where no decoder has measured it. Noise can make it negative, which takes nothing off the bar."""

    @property
    def total_s(self) -> float:
        """The whole round."""
        return self.draft_s + self.verify_s + self.rest_s + max(0.0, self.overhead_s or 0.0)


def cost_bars(series: Mapping[str, Sequence[Prediction]]) -> list[CostBar]:
    """The bars of a panel, in rising gamma, where drafting and verification are both known."""
    bars: dict[int, CostBar] = {}
    for one in (one for curve in series.values() for one in curve):
        if one.t_draft_total_s is None or one.round_verify_s is None:
            continue
        left_s = (one.t_round_s or 0.0) - one.t_draft_total_s - one.round_verify_s - max(0.0, one.t_overhead_s or 0.0)
        if left_s < _ROUNDING * (one.t_round_s or 0.0):
            left_s = 0.0
        before = [bars[one.gamma]] if one.gamma in bars else []
        overheads_s = [value for value in (one.t_overhead_s, *(bar.overhead_s for bar in before)) if value is not None]
        bars[one.gamma] = CostBar(
            gamma=one.gamma,
            draft_s=one.t_draft_total_s,
            verify_s=one.round_verify_s,
            rest_s=max(0.0, left_s, *(bar.rest_s for bar in before)),
            overhead_s=max(overheads_s, default=None),
        )
    return [bars[gamma] for gamma in sorted(bars)]


def cost_domain(panels: Iterable[Mapping[str, Sequence[Prediction]]]) -> tuple[TimeUnit, float] | None:
    """The unit and the upper end of the y axis (in that unit) over all panels; None without a known cost."""
    heights_s = [0.0]
    for series in panels:
        heights_s += [bar.total_s for bar in cost_bars(series)]
        heights_s += [height for curve in series.values() for one in curve if (height := plain_s(one)) is not None]
    top_s = max(heights_s)
    if top_s <= 0:
        return None
    unit = time_unit([top_s])
    return unit, _ROOM * top_s / unit.seconds


def plain_s(one: Prediction) -> float | None:
    """Omega · T_decode in seconds: plain decoding of the tokens that a round commits."""
    if one.tokens_per_round is None or one.t_decode_s is None:
        return None
    return one.tokens_per_round * one.t_decode_s


def cost_panel(
    series: Mapping[str, Sequence[Prediction]],
    styles: Mapping[str, SeriesStyle],
    domain: tuple[TimeUnit, float],
    *,
    size: PanelSize,
    key: str,
    title: str,
) -> Markup:
    """One panel: a stacked bar for every gamma, the line of T_decode, and Omega · T_decode of every series."""
    unit, top = domain
    gammas = sorted({one.gamma for curve in series.values() for one in curve})
    frame = Frame.over(size, gamma_range(gammas), (0.0, top))
    parts = frame.axes(gammas, "γ, draft tokens per round", f"{unit.name} per round")
    bars = cost_bars(series)
    for bar in bars:
        parts += _bar(frame, bar, unit)
    decode_s = next((one.t_decode_s for curve in series.values() for one in curve if one.t_decode_s is not None), None)
    if decode_s is not None:
        height = frame.y(decode_s / unit.seconds)
        hover = f"T_decode: {duration(decode_s)}"
        parts.append(line((frame.x.start, height), (frame.x.end, height), css="plain", hover=hover))
    for order, (name, curve) in enumerate(series.items()):
        offset = (order - (len(series) - 1) / 2) * min(10.0, 0.5 * _column(frame) / max(len(series), 1))
        for one in curve:
            length_s = plain_s(one)
            if length_s is not None:
                centre = (frame.x(one.gamma) + offset, frame.y(length_s / unit.seconds))
                hover = f"{name}, γ = {one.gamma}: plain decoding of the same tokens takes {duration(length_s)}"
                parts.append(marker(centre, styles[name].index, css=f"dot {styles[name].css}", hover=hover, radius=4))
    words = [_in_words(bar) for bar in bars]
    description = f"T_decode is {duration(decode_s)}. {' '.join(words)}"
    return figure(parts, width=size.width, height=size.height, key=key, title=title, description=description)


def _bar(frame: Frame, bar: CostBar, unit: TimeUnit) -> list[Markup]:
    width = _BAR * _column(frame)
    left = frame.x(bar.gamma) - width / 2
    parts, below_s = [], 0.0
    names = [("C(γ)", "draft", bar.draft_s), ("T_verify", "verify", bar.verify_s), ("π·Δ₂", "rest", bar.rest_s)]
    if bar.overhead_s is not None:
        names.append(("ε", "overhead", max(0.0, bar.overhead_s)))
    for name, css, length_s in names:
        upper = frame.y((below_s + length_s) / unit.seconds)
        lower = frame.y(below_s / unit.seconds)
        hover = f"γ = {bar.gamma}, {name}: {duration(length_s)} of {duration(bar.total_s)}"
        parts.append(rect(left, upper, width, lower - upper, css=f"bar {css}", hover=hover))
        below_s += length_s
    return parts


def _in_words(bar: CostBar) -> str:
    overhead = "" if bar.overhead_s is None else f", overhead {duration(max(0.0, bar.overhead_s))}"
    return f"γ = {bar.gamma}: drafts {duration(bar.draft_s)}, verification {duration(bar.verify_s)}{overhead}."


def _column(frame: Frame) -> float:
    """Width of one gamma's column in drawing units."""
    return (frame.x.end - frame.x.start) / (frame.x.high - frame.x.low)
