"""The figure sections of the report and the validation section: panels, the text over each, legends, and sentences.

A block holds the panels of one pair, mode, draft sampling and rule, a series for every sampling setting. Validation is
decoding end to end to check the predictions: the error of a predicted speed-up is split in two, since S from the rounds
that were counted is wrong by the costs alone, and Ω predicted against counted is the acceptance alone.
Output: `Block`s and a `ValidationSection` for the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from specgauge.reports.figures import (
    NO_DATA,
    HeatCell,
    ScatterPoint,
    SeriesStyle,
    conditional,
    cost_bars,
    cost_domain,
    draw_acceptance,
    draw_colour_key,
    draw_cost,
    draw_heat_map,
    draw_scatter,
    draw_speedup,
    is_open,
    marker,
    series_styles,
    speedup_domain,
)
from specgauge.reports.formatting import PER_CENT, TIMES, change, count, number, point_words, sentence, speedup
from specgauge.reports.inline_svg import Size, inline_figure
from specgauge.reports.measurements import AcceptanceCurve
from specgauge.reports.records import (
    DO_NOT,
    SPECULATE,
    UNDECIDED,
    Curve,
    Curves,
    Point,
    RecommendationRow,
    ReportData,
    Setting,
    Validated,
    ValidationRow,
    best_of,
    by_size,
)
from specgauge.reports.tables import Table, baseline_table, chosen_gammas, policy_table, validation_table
from specgauge.sweeps.verification import OTHER_CONTEXTS
from specgauge.sweeps.verification_summary import VerificationSummary

MOST_PANELS = 24
"""Blocks of a section with more panels than this open one at a time."""
CONFIG_SECTION = "verify"
"""What asks for validation in a configuration."""
NOT_ASKED = (
    f"Nothing was decoded end to end: a new run with {CONFIG_SECTION}: {{}} in its configuration decodes the γ it "
    "recommends and their neighbours, and holds these predictions against them."
)
NOT_YET = (
    f"The configuration asks for texts decoded end to end ({CONFIG_SECTION}), but none has been held against these "
    "predictions yet: run the same `specgauge run` again, it goes on where it stopped."
)
_SIZES = {2: Size(width=400, height=250), 3: Size(width=350, height=230)}
"""Panels stand two or three in a row and are drawn at about the width they are shown at."""
_SQUARE = Size(width=350, height=362)
_CELL_WIDTH, _CELL_HEIGHT, _AXIS_TITLE_WIDTH = 68, 48, 90
_GAMMA = "γ, draft tokens per round"
_SHORT = {DO_NOT: "do not", UNDECIDED: "undecided"}
_GLYPHS = {"o": "●○", "s": "■□", "^": "▲△", "D": "◆◇"}
Grouped = Mapping[Setting, Mapping[Point, Curve]]


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

    @property
    def size(self) -> int:
        """Number of panels."""
        return len(self.panels)


@dataclass(frozen=True, kw_only=True)
class ValidationSection:
    """What the template prints; empty but for `missing` where nothing was decoded."""

    missing: str = ""
    """One sentence on how to have texts decoded; empty where some were."""
    found: str = ""
    """The outcome in one sentence."""
    forced: str = ""
    """Why the texts are not the target's; empty where they are."""
    facts: Sequence[tuple[str, str]] = ()
    blocks: Sequence[Block] = ()
    table: Table | None = None
    policies: Table | None = None
    """None where none was decoded."""
    baselines: Table | None = None


def setting_titles(settings: Iterable[Setting]) -> dict[Setting, str]:
    """The block of every setting, alike for those that differ by sampling only: a title of what differs otherwise."""
    names = {"pair": "pair {}", "mode": "mode {}", "draft_sampling": "draft sampling {}", "acceptance_rule": "{} rule"}
    settings = list(settings)
    varied = {part: name for part, name in names.items() if len({getattr(one, part) for one in settings}) > 1}
    return {one: ", ".join(name.format(getattr(one, part)) for part, name in varied.items()) for one in settings}


def speedup_blocks(
    curves: Curves, recommendations: Iterable[RecommendationRow], samplings: Sequence[str], validated: Validated
) -> list[Block]:
    """S(γ) of every point, a block for every pair, mode, draft sampling and rule, with what was measured."""
    styles = series_styles(samplings)
    decided = {(one.setting, one.point): one for one in recommendations if one.speedup is not None}
    blocks = []
    for order, (title, members) in enumerate(_by_title(curves).items()):
        decoded = [row for row in validated.values() if row.setting in members]
        rows = [row for points in members.values() for curve in points.values() for row in curve]
        y_range = speedup_domain(rows, decoded)
        shown = [point for point in _points(members) if any(map(best_of, _series(members, point).values()))]
        panels = []
        for point in shown:
            answers = {one.sampling: decided[one, point] for one in members if (one, point) in decided}
            series, where = _series(members, point), point_words(point)
            measured = {
                name: [row for row in decoded if (row.setting.sampling, row.point) == (name, point)] for name in series
            }
            to_use = {name: one.gamma for name, one in answers.items() if one.decision == SPECULATE and one.gamma}
            svg = inline_figure(
                partial(
                    draw_speedup, series=series, styles=styles, to_use=to_use, measured=measured, y_range=y_range
                ),
                _SIZES[_columns(shown)],
                key=f"speedup-{order}-{point.batch_size}-{point.context}",
                title=f"Speed-up by γ, {where}",
                x_title=_GAMMA,
                y_title="speed-up over plain decoding",
            )
            marks = [f"{name}: {_answer_words(one)}" for name, one in answers.items()]
            panels.append(Panel(caption=where, marks=marks, svg=svg))
        legend = [*_series_legend(styles, (one.sampling for one in members))]
        legend.append(LegendEntry(words="plain decoding, S = 1", kind="plain"))
        legend.append(LegendEntry(words="γ to use", kind="ring", glyph="○"))
        legend.append(LegendEntry(words="interval", kind="band"))
        if decoded:
            legend.append(LegendEntry(words="measured end to end, with its interval", kind="interval", glyph="○"))
        if shown:
            blocks.append(Block(title=title, legend=legend, panels=panels, columns=_columns(shown)))
    return blocks


def cost_blocks(curves: Curves, samplings: Sequence[str]) -> list[Block]:
    """The cost of a round at every point; settings with equal costs (one timing chain) share a block."""
    styles = series_styles(samplings)
    blocks: list[Block] = []
    for title, members in _by_cost(curves).items():
        points = [point for point in _points(members) if cost_bars(_series(members, point))]
        domain = cost_domain(_series(members, point) for point in points)
        if domain is None:
            continue
        unit, top = domain
        panels = [
            Panel(
                caption=point_words(point),
                svg=inline_figure(
                    partial(draw_cost, series=_series(members, point), styles=styles, unit=unit, top=top),
                    _SIZES[_columns(points)],
                    key=f"cost-{len(blocks)}-{point.batch_size}-{point.context}",
                    title=f"Cost of a round by γ, {point_words(point)}",
                    x_title=_GAMMA,
                    y_title=f"{unit.name} per round",
                ),
            )
            for point in points
        ]
        legend = [
            LegendEntry(words="C(γ), drafts", kind="patch", role="bar-draft"),
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
    styles = series_styles(samplings)
    titles = setting_titles(one.setting for one in acceptance)
    grouped: dict[str, list[AcceptanceCurve]] = {}
    for one in acceptance:
        grouped.setdefault(titles[one.setting], []).append(one)
    blocks = []
    for order, (title, members) in enumerate(grouped.items()):
        survival = {one.setting.sampling: one.survival for one in members}
        intervals = {one.setting.sampling: (one.low, one.high) for one in members}
        steps = {name: conditional(values) for name, values in survival.items()}
        plots = {
            "Survival: drafts 1 to i are all accepted": partial(draw_acceptance, series=survival, intervals=intervals),
            "Acceptance of draft i, given all before it": partial(draw_acceptance, series=steps, intervals={}),
        }
        panels = [
            Panel(
                caption=words,
                svg=inline_figure(
                    partial(draw, styles=styles),
                    _SIZES[2],
                    key=f"acceptance-{order}-{place}",
                    title=words,
                    x_title="position of the draft in its round",
                    y_title="probability",
                ),
            )
            for place, (words, draw) in enumerate(plots.items())
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
    """The heat map of one setting; cells without a number say why (`oom`, `skipped`, …)."""
    cells = {}
    for batch_size in batch_sizes:
        for context in contexts:
            point = Point(batch_size=batch_size, context=context)
            curve = points.get(point, ())
            best = best_of(curve)
            if best is not None:
                note = answers[point].decision if point in answers else ""
                cells[point] = HeatCell(speedup=best.speedup, gamma=best.gamma, note=note)
            else:
                note = next((row.status for row in curve if row.status != "ok"), NO_DATA)
                cells[point] = HeatCell(speedup=None, gamma=None, note=note)
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
    draw = partial(draw_heat_map, cells=cells, batch_sizes=batch_sizes, contexts=contexts)
    return inline_figure(draw, size, key=key, title=title, x_title="context, tokens", fixed=True)


def colour_key() -> Markup:
    """A strip that explains the colours of the heat maps."""
    return inline_figure(
        draw_colour_key,
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
                (point, row.gamma, row.t_decode_s, row.t_draft_total_s, row.t_verify_s)
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
    """Two columns for one or two contexts or panels, else three."""
    contexts = len({point.context for point in points})
    return 2 if contexts == 2 or len(points) <= 2 else 3


def _points(members: Grouped) -> list[Point]:
    return sorted({point for points in members.values() for point in points}, key=by_size)


def _series(members: Grouped, point: Point) -> dict[str, Curve]:
    return {setting.sampling: points[point] for setting, points in members.items() if point in points}


def _answer_words(one: RecommendationRow) -> str:
    if one.decision == SPECULATE:
        return f"γ = {one.gamma}, {speedup(one.speedup)}"
    return f"{_SHORT[one.decision]}, {speedup(one.speedup)}"


def _series_legend(styles: Mapping[str, SeriesStyle], names: Iterable[str]) -> list[LegendEntry]:
    """A line with its marker for every series."""
    return [
        LegendEntry(
            words=name,
            kind="curve dashed" if styles[name].dashed else "curve",
            role=styles[name].role,
            glyph=_GLYPHS[styles[name].marker][0],
        )
        for name in dict.fromkeys(names)
    ]


def _marker_entry(style: SeriesStyle, words: str) -> LegendEntry:
    return LegendEntry(words=words, kind="", role=style.role, glyph=_GLYPHS[style.marker][0])


# ---------------------------------------------------------------------------------------------------------- validation


def validation_section(data: ReportData, samplings: Sequence[str]) -> ValidationSection:
    """The section of a run; `samplings` names every sampling setting, in the order that gives them their colours."""
    summary = data.validation_summary
    if summary is None:
        return ValidationSection(missing=NOT_ASKED if data.config.verify is None else NOT_YET)
    return ValidationSection(
        found=_unbroken(sentence(summary.text())),
        forced=_forced(data.validation),
        facts=[(what, _unbroken(words)) for what, words in _facts(summary, data.validation)],
        blocks=scatter_blocks(data.validation, samplings),
        table=validation_table(data.validation, chosen_gammas(data.recommendations)),
        policies=policy_table(data.policies),
        baselines=baseline_table(data.validation),
    )


def _unbroken(words: str) -> str:
    """Text in which no line breaks between a number and its per-cent sign, or before the number of a γ."""
    return words.replace(" %", PER_CENT).replace("γ = ", "γ\u00a0=\u00a0")


def _forced(rows: Sequence[ValidationRow]) -> str:
    """A notice on the rows whose texts are not the target's, with the reasons."""
    forced = [row for row in rows if not row.lossless]
    if not forced:
        return ""
    which = "None of these texts is" if len(forced) == len(rows) else f"{len(forced)} of {len(rows)} rows are not"
    reasons = sorted({row.why_not_lossless for row in forced if row.why_not_lossless})
    why = f" ({'; '.join(reasons)})" if reasons else ""
    return (
        f"{which} lossless{why}: such texts do not follow the target's distribution and say nothing about the draft. "
        "They check the cost model alone."
    )


def _facts(summary: VerificationSummary, rows: Sequence[ValidationRow]) -> Iterator[tuple[str, str]]:
    """(what, finding) of all rows together; a row is a cell at one γ."""
    decoded = f"{count(summary.cells, 'cell')}, {count(summary.rows, 'row')} of the table below (a cell at one γ each)"
    yield "decoded", decoded
    if summary.speedup is not None:
        yield "S predicted", f"{summary.speedup.text()}{_worst(rows, 'error')}"
    if summary.cost is not None:
        yield "cost error", f"S from the rounds counted {summary.cost.text()}{_worst(rows, 'cost_error')}"
    if summary.acceptance_known:
        holds = _of(summary.acceptance_agrees, summary.acceptance_known)
        yield "acceptance error", f"its 95 % interval holds 0 in {holds}"
    if summary.rounds_known:
        agree = _of(summary.rounds_agree, summary.rounds_known)
        yield "rounds counted", f"as many as expected on the very texts, chance aside, in {agree}"
    elsewhere = sum(row.overhead_from == OTHER_CONTEXTS for row in rows)
    known = sum(row.t_overhead_s is not None for row in rows)
    if known:
        yield "overhead ε", f"fitted at other contexts than the one it is validated at in {_of(elsewhere, known)}"
    lossless = _of(summary.rows - summary.forced, summary.rows)
    yield "lossless", f"{lossless}{'' if summary.forced else ': the texts follow the distribution of the target alone'}"
    texts = summary.texts_same + summary.texts_tied + summary.texts_differ
    if texts:
        yield (
            "greedy texts",
            f"of {texts}, {summary.texts_same} are plain decoding's token for token, {summary.texts_tied} leave it "
            f"where rounding decides between two tokens, {summary.texts_differ} elsewhere",
        )
    if summary.whole_low is not None and summary.whole_high is not None:
        low, high = speedup(summary.whole_low), speedup(summary.whole_high)
        span = high if low == high else f"{low.removesuffix(TIMES)} to {high}"
        yield "whole requests", f"{span} plain decoding, prefills and ragged ends included"


def _of(some: int, total: int) -> str:
    return f"all {total} rows" if some == total > 1 else f"{some} of {count(total, 'row')}"


def _worst(rows: Sequence[ValidationRow], name: str) -> str:
    """Where an error is largest and which way; empty with a single row."""
    known = [(value, row) for row in rows if (value := getattr(row, name)) is not None]
    if len(known) < 2:
        return ""
    value, row = max(known, key=lambda pair: abs(pair[0]))
    return f" (too {'high' if value > 0 else 'low'}: {_row_words(row)})"


def _row_words(row: ValidationRow) -> str:
    return f"{row.setting.sampling}, {point_words(row.point)}, γ = {row.gamma}"


def scatter_blocks(rows: Sequence[ValidationRow], samplings: Sequence[str]) -> list[Block]:
    """Three panels for every pair, mode, draft sampling and rule: S predicted, S from counts, and Ω."""
    styles = series_styles(samplings)
    titles = setting_titles(row.setting for row in rows)
    sizes = sorted({row.point.batch_size for row in rows})
    grouped: dict[str, list[ValidationRow]] = {}
    for row in rows:
        grouped.setdefault(titles[row.setting], []).append(row)
    blocks = []
    for order, (title, members) in enumerate(grouped.items()):
        figures = {
            ("Whole error: S predicted", "measured S", "predicted S"): [
                _speedup_point(row, row.speedup_predicted, styles, sizes) for row in members
            ],
            ("Cost error: S from counts", "measured S", "S from the rounds counted"): [
                _speedup_point(row, row.speedup_from_counts, styles, sizes) for row in members
            ],
            ("Acceptance error: Ω predicted", "counted Ω", "predicted Ω"): [
                _acceptance_point(row, styles, sizes) for row in members
            ],
        }
        panels = [
            Panel(
                caption=words,
                svg=inline_figure(
                    partial(draw_scatter, points=known),
                    _SQUARE,
                    key=f"validation-{order}-{place}",
                    title=words,
                    x_title=x_title,
                    y_title=y_title,
                ),
            )
            for place, ((words, x_title, y_title), points) in enumerate(figures.items())
            if (known := [point for point in points if point is not None])
        ]
        if panels:
            blocks.append(Block(title=title, legend=_scatter_legend(members, styles, sizes), panels=panels, columns=3))
    return blocks


def _speedup_point(
    row: ValidationRow, value: float | None, styles: Mapping[str, SeriesStyle], sizes: Sequence[int]
) -> ScatterPoint | None:
    found = row.speedup_measured
    if value is None or found is None:
        return None
    return ScatterPoint(
        x=found,
        y=value,
        x_ends=(row.speedup_measured_low, row.speedup_measured_high),
        style=styles[row.setting.sampling],
        shape=sizes.index(row.point.batch_size),
        words=f"{_row_words(row)}: {number(value)} against {number(found)} measured ({change(value / found - 1)})",
    )


def _acceptance_point(
    row: ValidationRow, styles: Mapping[str, SeriesStyle], sizes: Sequence[int]
) -> ScatterPoint | None:
    value, found = row.tokens_per_round_predicted, row.tokens_per_round_counted
    if value is None or found is None:
        return None
    low, high = row.acceptance_error_low, row.acceptance_error_high
    return ScatterPoint(
        x=found,
        y=value,
        y_ends=(None, None) if low is None or high is None else (found * (1.0 + low), found * (1.0 + high)),
        style=styles[row.setting.sampling],
        shape=sizes.index(row.point.batch_size),
        words=f"{_row_words(row)}: {number(value)} against {number(found)} counted ({change(row.acceptance_error)})",
    )


def _scatter_legend(
    rows: Sequence[ValidationRow], styles: Mapping[str, SeriesStyle], sizes: Sequence[int]
) -> list[LegendEntry]:
    """Colours by sampling and shapes by batch size, of what `rows` hold."""
    names = {row.setting.sampling for row in rows}
    own = {row.point.batch_size for row in rows}
    legend = [LegendEntry(words=name, kind="patch", role=styles[name].role) for name in styles if name in names]
    legend += [
        LegendEntry(words=f"batch {size}", kind="", glyph=_GLYPHS[marker(shape)][is_open(shape)])
        for shape, size in enumerate(sizes)
        if size in own
    ]
    legend.append(LegendEntry(words="interval", kind="interval"))
    legend.append(LegendEntry(words="as predicted", kind="plain"))
    return legend
