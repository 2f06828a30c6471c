"""The figure sections of the report: which panels there are, what stands over each, and what its legend says.

A block holds the panels of one pair, mode, draft sampling and rule, a series for every sampling setting. Output:
`Block`s for the template.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from specgauge.model.settings import Point, Setting
from specgauge.reports import figures
from specgauge.reports.formatting import point_words, speedup
from specgauge.reports.inline_svg import Hover, Size, inline_figure
from specgauge.reports.records import DO_NOT, SPECULATE, UNDECIDED, Curve, Curves, Validated, best_of
from specgauge.reports.summaries import AcceptanceCurve, conditional, cost_bars, cost_domain
from specgauge.reports.tables import common_fields, setting_heading
from specgauge.sweeps.store.schema import RecommendationRow, ValidationRow

MOST_PANELS = 24
"""Blocks of a section with more panels than this open one at a time."""
_SIZES = {2: Size(width=400, height=250), 3: Size(width=350, height=230)}
"""Panels stand two or three in a row and are drawn at about the width they are shown at."""
_CELL_WIDTH, _CELL_HEIGHT, _AXIS_TITLE_WIDTH = 68, 48, 90
_GAMMA = "γ, draft tokens per round"
_SHORT = {DO_NOT: "do not", UNDECIDED: "undecided"}
CUT = "arrows: an interval goes on"
GLYPHS = {"o": "●○", "s": "■□", "^": "▲△", "D": "◆◇"}
"""Markers in a legend, filled and open."""


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """A swatch and its words."""

    words: str
    kind: str
    """How the style sheet draws the swatch: `curve`, `plain`, `band`, `patch`, `interval`, or empty."""
    role: str = "ink"
    """The colour's name in the style sheet."""
    glyph: str = ""
    """A marker over it."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small plot with the text over it."""

    caption: str
    svg: Markup
    marks: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Block:
    """Panels that share a legend and a y axis."""

    title: str
    legend: Sequence[LegendEntry]
    panels: Sequence[Panel]
    columns: int
    """Panels in a row where there is room: 2 or 3."""


def setting_titles(settings: Iterable[Setting]) -> dict[Setting, str]:
    """The block of every setting, alike for those that differ by sampling only: a title of what differs otherwise."""
    settings = list(settings)
    unnamed = {"sampling", *common_fields(settings)}
    return {one: setting_heading(one, unnamed) for one in settings}


def panel(
    draw: Callable[..., Hover],
    caption: str,
    size: Size,
    *,
    key: str,
    titles: tuple[str, str, str],
    marks: Sequence[str] = (),
    **drawn: Any,
) -> Panel:
    """What `draw` makes of `drawn`, under its caption.

    `titles` are those of the figure (for those who do not see it) and of its two axes.
    """
    title, x_title, y_title = titles
    svg = inline_figure(partial(draw, **drawn), size, key=key, title=title, x_title=x_title, y_title=y_title)
    return Panel(caption=caption, svg=svg, marks=marks)


def speedup_blocks(
    curves: Curves, recommendations: Iterable[RecommendationRow], samplings: Sequence[str], validated: Validated
) -> list[Block]:
    """S(γ) of every point, a block for every pair, mode, draft sampling and rule, with what was measured."""
    styles = figures.series_styles(samplings)
    decided = {(one.setting, one.point): one for one in recommendations if one.speedup.value is not None}
    blocks = []
    for order, (title, members) in enumerate(_by_title(curves).items()):
        decoded = [row for row in validated.values() if row.setting in members]
        rows = [row for points in members.values() for curve in points.values() for row in curve]
        y_range = figures.speedup_domain(rows, decoded)
        shown = [point for point in _points(members) if any(map(best_of, _series(members, point).values()))]
        panels = []
        for point in shown:
            answers = {one.sampling: decided[one, point] for one in members if (one, point) in decided}
            series, where = _series(members, point), point_words(point)
            measured = {name: [row for row in decoded if (row.sampling, row.point) == (name, point)] for name in series}
            ends = [
                *(end for curve in series.values() for row in curve for end in (row.speedup_low, row.speedup_high)),
                *(end for own in measured.values() for row in own for end in _measured_ends(row)),
            ]
            to_use = {name: one.gamma for name, one in answers.items() if one.decision == SPECULATE and one.gamma}
            panels.append(
                panel(
                    figures.draw_speedup,
                    where,
                    _SIZES[_columns(shown)],
                    key=f"speedup-{order}-{point.batch_size}-{point.context}",
                    titles=(f"Speed-up by γ, {where}", _GAMMA, "speed-up over plain decoding"),
                    marks=[*(f"{name}: {_answer_words(one)}" for name, one in answers.items()), *_cut(ends, y_range)],
                    series=series,
                    styles=styles,
                    to_use=to_use,
                    measured=measured,
                    y_range=y_range,
                )
            )
        legend = [
            *_series_legend(styles, (one.sampling for one in members)),
            LegendEntry(words="plain decoding, S = 1", kind="plain"),
            LegendEntry(words="γ to use", kind="ring", glyph="○"),
            LegendEntry(words="interval", kind="band"),
        ]
        if decoded:
            legend.append(LegendEntry(words="measured end to end, with its interval", kind="interval", glyph="○"))
        if shown:
            blocks.append(Block(title=title, legend=legend, panels=panels, columns=_columns(shown)))
    return blocks


def _cut(ends: Iterable[float | None], limits: tuple[float, float]) -> list[str]:
    return [CUT] if figures.is_cut(ends, limits) else []


def _measured_ends(row: ValidationRow) -> tuple[float | None, float | None]:
    return row.speedup_measured_low, row.speedup_measured_high


def cost_blocks(curves: Curves, samplings: Sequence[str]) -> list[Block]:
    """The cost of a round at every point; settings with equal costs (one timing chain) share a block."""
    styles = figures.series_styles(samplings)
    blocks: list[Block] = []
    for title, members in _by_cost(curves).items():
        points = [point for point in _points(members) if cost_bars(_series(members, point))]
        domain = cost_domain(_series(members, point) for point in points)
        if domain is None:
            continue
        unit, top = domain
        panels = [
            panel(
                figures.draw_cost,
                point_words(point),
                _SIZES[_columns(points)],
                key=f"cost-{len(blocks)}-{point.batch_size}-{point.context}",
                titles=(f"Cost of a round by γ, {point_words(point)}", _GAMMA, f"{unit.name} per round"),
                series=_series(members, point),
                styles=styles,
                unit=unit,
                top=top,
            )
            for point in points
        ]
        is_crossed = any(bar.transfer_s > 0 for point in points for bar in cost_bars(_series(members, point)))
        legend = [
            LegendEntry(words="C(γ), drafts", kind="patch", role="bar-draft"),
            *[LegendEntry(words="T_transfer(γ), between devices", kind="patch", role="bar-transfer")] * is_crossed,
            LegendEntry(words="T_verify(γ)", kind="patch", role="bar-verify"),
            LegendEntry(words="π·Δ₂, catching up", kind="patch", role="bar-rest"),
        ]
        if any(bar.overhead_s is not None for point in points for bar in cost_bars(_series(members, point))):
            legend.append(LegendEntry(words="ε, overhead", kind="patch", role="bar-overhead"))
        legend.append(LegendEntry(words="T_decode", kind="plain"))
        names = dict.fromkeys(one.sampling for one in members)
        legend += [_marker_entry(styles[name], f"Ω(γ)·T_decode, {name}") for name in names]
        blocks.append(Block(title=title, legend=legend, panels=panels, columns=_columns(points)))
    return blocks


def acceptance_blocks(acceptance: Sequence[AcceptanceCurve], samplings: Sequence[str]) -> list[Block]:
    """Survival and conditional acceptance by position, a block for every pair, draft sampling and rule."""
    styles = figures.series_styles(samplings)
    titles = setting_titles(one.setting for one in acceptance)
    grouped: dict[str, list[AcceptanceCurve]] = {}
    for one in acceptance:
        grouped.setdefault(titles[one.setting], []).append(one)
    blocks = []
    for order, (title, members) in enumerate(grouped.items()):
        survival = {one.setting.sampling: one.survival for one in members}
        ends = {one.setting.sampling: (one.low, one.high) for one in members}
        steps = {name: conditional(values) for name, values in survival.items()}
        plots = {
            "Survival: drafts 1 to i are all accepted": (survival, ends),
            "Acceptance of draft i, given all before it": (steps, {}),
        }
        panels = [
            panel(
                figures.draw_acceptance,
                words,
                _SIZES[2],
                key=f"acceptance-{order}-{place}",
                titles=(words, "position of the draft in its round", "probability"),
                series=series,
                intervals=intervals,
                styles=styles,
            )
            for place, (words, (series, intervals)) in enumerate(plots.items())
        ]
        legend = [*_series_legend(styles, survival), LegendEntry(words="interval", kind="band")]
        blocks.append(Block(title=title, legend=legend, panels=panels, columns=2))
    return blocks


def heat_map(
    points: Mapping[Point, Curve],
    answers: Mapping[Point, RecommendationRow],
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
    *,
    key: str,
    title: str,
) -> Markup:
    """The heat map of one setting: S and γ of the answers; cells without a number say why (`oom`, `skipped`, …)."""
    cells = {}
    for point, curve in points.items():
        best, answer = best_of(curve), answers.get(point)
        if answer is not None and answer.speedup.value is not None:
            gamma = answer.recommended_gamma or (None if best is None else best.gamma)
            cells[point] = figures.HeatCell(speedup=answer.speedup.value, gamma=gamma, note=answer.decision)
        elif best is not None:
            cells[point] = figures.HeatCell(speedup=best.speedup, gamma=best.gamma, note="")
        else:
            note = next((row.status for row in curve if row.status != "ok"), figures.NO_DATA)
            cells[point] = figures.HeatCell(speedup=None, gamma=None, note=note)
    return heat_map_figure(cells, batch_sizes, contexts, key=key, title=title)


def heat_map_figure(
    cells: Mapping[Point, figures.HeatCell],
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
    *,
    key: str,
    title: str,
) -> Markup:
    """The heat map of these cells, as large as they need."""
    left, right, top, bottom = 58, 8, 20, 40
    across, down = _CELL_WIDTH * len(contexts), _CELL_HEIGHT * len(batch_sizes)
    beyond = max(0, _AXIS_TITLE_WIDTH - across)
    size = Size(
        width=left + across + beyond + right,
        height=top + down + bottom,
        left=left,
        right=right + beyond,
        top=top,
        bottom=bottom,
    )
    draw = partial(figures.draw_heat_map, cells=cells, batch_sizes=batch_sizes, contexts=contexts)
    return inline_figure(draw, size, key=key, title=title, x_title="context, tokens", y_title="batch size", fixed=True)


def colour_key() -> Markup:
    """A strip that explains the colours of the heat maps."""
    return inline_figure(
        figures.draw_colour_key,
        Size(width=256, height=32, left=20, right=20, top=0, bottom=20),
        key="colour-key",
        title="Colours",
        description="Orange is slower than plain decoding, blue is faster, white is equal.",
        fixed=True,
    )


def _by_title(curves: Curves) -> dict[str, dict[Setting, Mapping[Point, Curve]]]:
    """Settings that differ by sampling only, under a title that tells them from the others."""
    grouped: dict[str, dict[Setting, Mapping[Point, Curve]]] = {}
    for setting, title in setting_titles(curves).items():
        grouped.setdefault(title, {})[setting] = curves[setting]
    return grouped


def _by_cost(curves: Curves) -> dict[str, dict[Setting, Mapping[Point, Curve]]]:
    """Settings of one pair and mode whose costs are equal everywhere, under a title that tells them apart."""
    grouped: dict[tuple[str, object], dict[Setting, Mapping[Point, Curve]]] = {}
    for title, members in _by_title(curves).items():
        for setting, points in members.items():
            costs = tuple(
                (point, row.gamma, row.t_decode_s, row.t_draft_total_s, row.round_verify_s)
                for point, curve in points.items()
                for row in curve
            )
            grouped.setdefault((title, costs), {})[setting] = points
    split = len(grouped) > len({title for title, _ in grouped})
    titled: dict[str, dict[Setting, Mapping[Point, Curve]]] = {}
    for (title, _), members in grouped.items():
        names = "sampling " + ", ".join(dict.fromkeys(setting.sampling for setting in members))
        titled[", ".join(words for words in (title, names if split else "") if words)] = members
    return titled


def _columns(points: Sequence[Point]) -> int:
    """Two columns for two contexts, and for at most two panels; else three."""
    contexts = len({point.context for point in points})
    return 2 if contexts == 2 or len(points) <= 2 else 3


def _points(members: Curves) -> list[Point]:
    return sorted({point for points in members.values() for point in points})


def _series(members: Curves, point: Point) -> dict[str, Curve]:
    return {setting.sampling: points[point] for setting, points in members.items() if point in points}


def _answer_words(one: RecommendationRow) -> str:
    what = f"γ = {one.gamma}" if one.decision == SPECULATE else _SHORT[one.decision]
    return f"{what}, {speedup(one.speedup.value)}"


def _series_legend(styles: Mapping[str, figures.SeriesStyle], names: Iterable[str]) -> list[LegendEntry]:
    return [
        LegendEntry(
            words=name,
            kind="curve dashed" if styles[name].line == figures.DASHED else "curve",
            role=styles[name].role,
            glyph=GLYPHS[styles[name].marker][0],
        )
        for name in dict.fromkeys(names)
    ]


def _marker_entry(style: figures.SeriesStyle, words: str) -> LegendEntry:
    return LegendEntry(words=words, kind="", role=style.role, glyph=GLYPHS[style.marker][0])
