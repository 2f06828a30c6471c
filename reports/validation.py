"""The validation section: what decoding end to end found beside the predictions, in sentences, figures and tables.

The error of a predicted speed-up is split in two: S from the rounds that were counted is wrong by the costs alone, Ω
predicted against counted is the acceptance alone. Output: a `ValidationSection` for the template.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specgauge.configs.engines import AT_ZERO, EXPORTED
from specgauge.reports.figures import (
    Ends,
    ScatterPoint,
    SeriesStyle,
    draw_scatter,
    is_open,
    marker,
    scatter_is_cut,
    series_styles,
)
from specgauge.reports.formatting import (
    UNKNOWN,
    change,
    change_interval,
    count,
    interval,
    number,
    point_words,
    sentence,
    speedup,
    speedup_span,
    time_unit,
    unbroken,
)
from specgauge.reports.inline_svg import Size
from specgauge.reports.records import RESUME, ReportData, by_point
from specgauge.reports.sections import CUT, GLYPHS, Block, LegendEntry, panel, setting_titles
from specgauge.reports.tables import (
    Chosen,
    Columns,
    Row,
    RowGroup,
    Table,
    chosen_gammas,
    common_fields,
    point_table,
    setting_heading,
)
from specgauge.sweeps.analysis.served import zero_words
from specgauge.sweeps.analysis.validation import OTHER_CONTEXTS, ValidationSummary, outcome
from specgauge.sweeps.store.rows import plain
from specgauge.sweeps.store.schema import ValidationRow

CONFIG_SECTION = "validate"
"""What asks for validation in a configuration."""
NOT_ASKED = (
    f"Nothing was decoded end to end: a new run with {CONFIG_SECTION}: {{}} in its configuration decodes the γ it "
    "recommends and their neighbours, and holds these predictions against them."
)
NOT_HERE = "An imported run is another program's measurement: nothing was decoded end to end to hold against it."
NOT_YET = (
    f"The configuration asks for texts decoded end to end ({CONFIG_SECTION}), but none has been held against these "
    "predictions yet: {remedy}."
)
_SQUARE = Size(width=350, height=362)
_SCATTERS = (
    ("Whole error: S predicted", "predicted S", "measured", "S", "speedup_predicted", "speedup_measured"),
    ("Cost error: S from counts", "S from counts", "measured", "S", "speedup_from_counts", "speedup_measured"),
    (
        *("Acceptance error: Ω predicted", "predicted Ω", "counted", "Ω"),
        *("tokens_per_round_predicted", "tokens_per_round_counted"),
    ),
)
"""Caption, y title, how x was found and what it is, and the columns of y and x."""
_FITTED, _LOSSLESS = "ε timed at", "lossless"
_YES, _NO = "yes", "no"


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
    are_engines: bool = False
    """Whether the policies are those of a server's engine."""
    baselines: Table | None = None


def validation_section(data: ReportData, samplings: Sequence[str]) -> ValidationSection:
    """The section of a run; `samplings` names every sampling setting, in the order that gives them their colours."""
    summary = data.validation_summary
    if summary is None:
        if data.is_imported:
            return ValidationSection(missing=NOT_HERE)
        not_yet = NOT_YET.format(remedy=data.more_time or RESUME)
        return ValidationSection(missing=NOT_ASKED if data.config.validation is None else not_yet)
    return ValidationSection(
        found=unbroken(sentence(summary.text())),
        forced=_forced(data.validation),
        facts=[
            (what, unbroken(words)) for what, words in (*_facts(summary, data.validation), *policy_facts(data.policies))
        ],
        blocks=scatter_blocks(data.validation, samplings),
        table=validation_table(data.validation, chosen_gammas(data.recommendations)),
        policies=policy_table(data.policies),
        are_engines=any(row.measured_in is not None for row in data.policies),
        baselines=baseline_table(data.validation),
    )


def _forced(rows: Sequence[ValidationRow]) -> str:
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


def _facts(summary: ValidationSummary, rows: Sequence[ValidationRow]) -> Iterator[tuple[str, str]]:
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
        yield "overhead ε", f"timed at other contexts than the one it is validated at in {_of(elsewhere, known)}"
    lossless = _of(summary.rows - summary.forced, summary.rows)
    yield "lossless", f"{lossless}{'' if summary.forced else ': the texts follow the distribution of the target alone'}"
    texts = summary.texts_same + summary.texts_tied + summary.texts_differ
    if texts:
        yield (
            "greedy texts",
            f"of {texts}, {summary.texts_same} are plain decoding's token for token, {summary.texts_tied} leave it "
            f"where rounding decides between two tokens, {summary.texts_differ} elsewhere",
        )
    if summary.whole_low is not None:
        span = speedup_span([summary.whole_low, summary.whole_high])
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
    return f"{row.sampling}, {point_words(row.point)}, γ = {row.gamma}"


def scatter_blocks(rows: Sequence[ValidationRow], samplings: Sequence[str]) -> list[Block]:
    """Three panels for every pair, mode, draft sampling and rule: S predicted, S from counts, and Ω."""
    styles = series_styles(samplings)
    titles = setting_titles(row.setting for row in rows)
    sizes = sorted({row.batch_size for row in rows})
    grouped: dict[str, list[ValidationRow]] = {}
    for row in rows:
        grouped.setdefault(titles[row.setting], []).append(row)
    blocks = []
    for order, (title, members) in enumerate(grouped.items()):
        panels = [
            panel(
                draw_scatter,
                caption,
                _SQUARE,
                key=f"validation-{order}-{place}",
                titles=(caption, f"{how} {what}", y_title),
                marks=[CUT] if scatter_is_cut(points) else [],
                points=points,
            )
            for place, (caption, y_title, how, what, y_name, x_name) in enumerate(_SCATTERS)
            if (points := list(_scatter_points(members, y_name, x_name, how, styles, sizes)))
        ]
        if panels:
            blocks.append(Block(title=title, legend=_scatter_legend(members, styles, sizes), panels=panels, columns=3))
    return blocks


def _scatter_points(
    rows: Iterable[ValidationRow],
    y_name: str,
    x_name: str,
    how: str,
    styles: Mapping[str, SeriesStyle],
    sizes: Sequence[int],
) -> Iterator[ScatterPoint]:
    """A point for every row that knows both; S measured has an interval, and Ω predicted one from that of its error."""
    for row in rows:
        y, x = getattr(row, y_name), getattr(row, x_name)
        if x is None or y is None:
            continue
        x_ends: Ends = (row.speedup_measured_low, row.speedup_measured_high)
        y_ends: Ends = (None, None)
        if x_name == "tokens_per_round_counted":
            low, high = row.acceptance_error_low, row.acceptance_error_high
            x_ends = (None, None)
            y_ends = (None if low is None else x * (1.0 + low), None if high is None else x * (1.0 + high))
        yield ScatterPoint(
            x=x,
            y=y,
            x_ends=x_ends,
            y_ends=y_ends,
            style=styles[row.sampling],
            shape=sizes.index(row.batch_size),
            words=f"{_row_words(row)}: {number(y)} against {number(x)} {how} ({change(y / x - 1)})",
        )


def _scatter_legend(
    rows: Sequence[ValidationRow], styles: Mapping[str, SeriesStyle], sizes: Sequence[int]
) -> list[LegendEntry]:
    """Colours by sampling and shapes by batch size, of what `rows` hold."""
    names = {row.sampling for row in rows}
    own = {row.batch_size for row in rows}
    legend = [LegendEntry(words=name, kind="patch", role=styles[name].role) for name in styles if name in names]
    legend += [
        LegendEntry(words=f"batch {size}", kind="", glyph=GLYPHS[marker(shape)][is_open(shape)])
        for shape, size in enumerate(sizes)
        if size in own
    ]
    return [*legend, LegendEntry(words="interval", kind="interval"), LegendEntry(words="as predicted", kind="plain")]


def validation_table(rows: Sequence[ValidationRow], chosen: Chosen) -> Table:
    """Every γ decoded end to end, grouped by setting and point.

    Where ε was timed and whether rows are lossless stand in columns of their own only where they differ.
    """
    unit = time_unit(row.t_overhead_s for row in rows)
    columns: Columns[ValidationRow] = [
        ("γ", lambda row: str(row.gamma)),
        ("S predicted", lambda row: number(row.speedup_predicted)),
        ("S from counts", lambda row: number(row.speedup_from_counts)),
        ("S measured", lambda row: number(row.speedup_measured)),
        ("interval", lambda row: interval(row.speedup_measured_low, row.speedup_measured_high)),
        ("cost error", lambda row: change(row.cost_error)),
        ("Ω predicted", lambda row: number(row.tokens_per_round_predicted)),
        ("Ω counted", lambda row: number(row.tokens_per_round_counted)),
        ("acceptance error", lambda row: change(row.acceptance_error)),
        ("95\u202f% interval", lambda row: change_interval(row.acceptance_error_low, row.acceptance_error_high)),
        (f"ε, {unit.name}", lambda row: unit.text(row.t_overhead_s)),
        (_FITTED, lambda row: row.overhead_from or UNKNOWN),
        ("rounds, counted / expected", lambda row: f"{row.rounds_counted} / {number(row.rounds_expected, 1)}"),
        ("z", _standard_errors),
        ("whole requests", lambda row: speedup(row.speedup_whole)),
        (_LOSSLESS, _lossless),
    ]
    notes: list[str] = []
    fitted, lossless = {row.overhead_from for row in rows}, {_lossless(row) for row in rows}
    if len(fitted) == 1:
        columns = [column for column in columns if column[0] != _FITTED]
        notes += [f"every ε is timed at {where}" for where in fitted if where]
    if len(lossless) == 1:
        columns = [column for column in columns if column[0] != _LOSSLESS]
        notes += [f"{'every' if words == _YES else 'no'} row is lossless{words.lstrip('yesno')}" for words in lossless]
    if all(row.rounds_standard_errors is None for row in rows):  # nothing was left to chance
        columns = [column for column in columns if column[0] != "z"]
    grouped = by_point(rows, _gamma)
    return point_table(grouped, columns, notes, words=(_FITTED, _LOSSLESS), wide=(_LOSSLESS,), chosen=chosen)


def _gamma(row: ValidationRow) -> int:
    return row.gamma or 0


def _standard_errors(row: ValidationRow) -> str:
    z = UNKNOWN if row.rounds_standard_errors is None else f"{row.rounds_standard_errors:+.1f}".replace("-", "−")
    return f"{z}, unexpected" if row.rounds_agree is False else z


def _lossless(row: ValidationRow) -> str:
    if row.lossless or not row.why_not_lossless:
        return _YES if row.lossless else _NO
    return f"{_NO}: {row.why_not_lossless}"


def _against_best(row: ValidationRow) -> str:
    if row.best_fixed_gamma is None:
        return UNKNOWN
    return outcome(row.over_best_fixed_low, row.over_best_fixed_high)


_POLICY_COLUMNS: Columns[ValidationRow] = [
    ("policy", lambda row: row.policy or ""),
    ("S measured", lambda row: number(row.speedup_measured)),
    ("interval", lambda row: interval(row.speedup_measured_low, row.speedup_measured_high)),
    ("against plain", lambda row: outcome(row.speedup_measured_low, row.speedup_measured_high)),
    ("S replayed", lambda row: number(row.speedup_predicted)),
    ("error", lambda row: change(row.error)),
    ("interval", lambda row: change_interval(row.error_low, row.error_high)),
    ("S from counts", lambda row: number(row.speedup_from_counts)),
    ("cost error", lambda row: change(row.cost_error)),
    ("best fixed γ", lambda row: UNKNOWN if row.best_fixed_gamma is None else str(row.best_fixed_gamma)),
    ("over it", lambda row: speedup(row.over_best_fixed)),
    ("interval", lambda row: interval(row.over_best_fixed_low, row.over_best_fixed_high)),
    ("against it", _against_best),
    ("drafts a round", lambda row: number(row.mean_gamma)),
    ("switches of γ / rounds", lambda row: f"{number(row.gamma_switches, 0)} / {number(row.rounds, 0)}"),
    ("whole requests", lambda row: speedup(row.speedup_whole)),
]
_OF_REPLAY = ("S replayed", "error", "S from counts", "cost error", "switches of γ / rounds")
"""Columns that are known of policies that were decoded here."""
_OF_SERVERS = ("against plain", "against it", "whole requests")
"""Those of policies of a server's engine."""


def policy_table(rows: Sequence[ValidationRow]) -> Table | None:
    """Every policy that was run, the fastest of a point first; None without any."""
    if not rows:
        return None
    columns, is_served = _POLICY_COLUMNS, all(row.measured_in is not None for row in rows)
    if is_served:  # each interval stands behind what it is of
        left_out = {place + 1 for place, (title, _) in enumerate(columns) if title == "error"}
        left_out |= {place for place, (title, _) in enumerate(columns) if title in _OF_REPLAY}
        columns = [column for place, column in enumerate(columns) if place not in left_out]
    else:
        columns = [column for column in columns if column[0] not in _OF_SERVERS]
    grouped = by_point(rows, lambda row: -(row.speedup_measured or 0.0))
    return point_table(grouped, columns, words=("policy", "against plain", "against it"))


def policy_facts(rows: Sequence[ValidationRow]) -> Iterator[tuple[str, str]]:
    """Whether what was exported won, batch size by batch size, and what γ = 0 costs where a schedule says it."""
    own = [row for row in rows if row.policy == EXPORTED and row.speedup_measured is not None]
    if own:
        fixed = [row for row in own if row.best_fixed_gamma is not None]
        against = [("plain decoding", own, "speedup_measured"), ("the best fixed γ", fixed, "over_best_fixed")]
        yield (
            "exported, as run",
            "; ".join(f"against {name} {_outcomes(some, of)}" for name, some, of in against if some),
        )
    if words := zero_words(map(plain, rows)):
        yield AT_ZERO, words


def _outcomes(rows: Sequence[ValidationRow], name: str) -> str:
    """`won at batch size 1, undecided at 4, 16`."""
    found: dict[str, list[str]] = {}
    several = len({(row.setting, row.context) for row in rows}) > 1
    for row in rows:
        where = point_words(row.point) if several else str(row.batch_size)
        found.setdefault(outcome(getattr(row, f"{name}_low"), getattr(row, f"{name}_high")), []).append(where)
    at = "" if several else "batch size "
    return ", ".join(f"{words} at {at}{', '.join(dict.fromkeys(places))}" for words, places in found.items())


def baseline_table(rows: Sequence[ValidationRow]) -> Table | None:
    """Our plain loop against the two other ways not to speculate, point by point; None where neither is known."""
    if all(row.plain_over_generate is None and row.plain_over_loop is None for row in rows):
        return None
    grouped, groups = by_point(rows, _gamma), []
    for setting, points in grouped.items():
        own = []
        for point, (first, *_) in points.items():
            if first.plain_over_generate is None and first.plain_over_loop is None:
                continue  # not among the cells that were held against them
            where = f"batch {point.batch_size}, context {point.context}"
            own.append(Row(cells=[where, speedup(first.plain_over_generate), speedup(first.plain_over_loop)]))
        groups += [RowGroup(heading=setting_heading(setting, common_fields(list(grouped))), rows=own)] if own else []
    return Table(
        columns=["plain loop", "over generate()", "over the loop at γ\u00a0=\u00a00"],
        groups=groups,
        words=frozenset({0}),
    )
