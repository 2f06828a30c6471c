"""The tables of the report: predictions, validation, policies, acceptance, timings, and cells without a number.

Columns that hold one value for the whole run are named once above the table instead. Times of a column share a unit.
Output: `Table`s of plain text for the template, which escapes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

from specgauge.reports.formatting import (
    UNKNOWN,
    TimeUnit,
    change,
    change_interval,
    interval,
    number,
    percent,
    point_words,
    speedup,
    time_unit,
)
from specgauge.reports.measurements import AcceptanceCurve, ArmSummary
from specgauge.reports.records import (
    Curves,
    Point,
    PolicyRow,
    PredictionRow,
    RecommendationRow,
    Setting,
    ValidationRow,
    by_size,
)

_NAMES = {
    "pair": "pair {}",
    "mode": "mode {}",
    "sampling": "{}",
    "draft_sampling": "draft sampling {}",
    "acceptance_rule": "{} rule",
}
_TIME_COLUMNS = {
    "t_decode_s": "T_decode",
    "t_draft_total_s": "C(γ)",
    "t_draft_catch_up_s": "Δ₂",
    "t_verify_s": "T_verify",
    "t_overhead_s": "ε",
    "t_round_s": "T_round",
}
_ARMS = {
    "decode": "T_decode",
    "draft": "C(γ_max), draft chain",
    "draft_catch_up": "first draft step, two tokens",
    "verify": "T_verify({})",
    "prefill_target": "prefill, target",
    "prefill_draft": "prefill, draft",
}
_FITTED, _LOSSLESS = "ε fitted at", "lossless"
_YES, _NO = "yes", "no"
_Decoded = TypeVar("_Decoded", ValidationRow, PolicyRow)
Chosen = Collection[tuple[Setting, Point, int]]
"""The γ to use: rows that stand out."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: its first cell is a heading; `chosen` rows stand out."""

    cells: Sequence[str]
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """Rows under a heading of their own."""

    heading: str
    rows: Sequence[Row]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; `words` are the indices of columns that hold words, not numbers."""

    caption: str = ""
    columns: Sequence[str]
    groups: Sequence[RowGroup]
    words: frozenset[int] = field(default_factory=frozenset)
    wide: frozenset[int] = field(default_factory=frozenset)
    """Indices of columns of sentences, which may wrap."""


def chosen_gammas(recommendations: Iterable[RecommendationRow]) -> set[tuple[Setting, Point, int]]:
    """The γ to use, by setting and point."""
    return {(one.setting, one.point, one.gamma) for one in recommendations if one.gamma is not None}


def prediction_table(curves: Curves, chosen: Chosen) -> Table | None:
    """Every prediction, grouped by setting and point; None without any."""
    rows = [row for points in curves.values() for curve in points.values() for row in curve]
    if not rows:
        return None
    unit = time_unit(row.t_round_s for row in rows)
    units = {name: unit.fitted(getattr(row, name) for row in rows) for name in _TIME_COLUMNS}
    common = common_parts(list(curves))
    extra = {
        "provenance": {row: _provenance(row) for row in rows},
        "label": {row: row.label or UNKNOWN for row in rows},
    }
    values = {name: {cells[row] for row in rows if row.status == "ok"} for name, cells in extra.items()}
    varied = [name for name in extra if len(values[name]) > 1]
    columns = [
        *("γ", "speed-up", "interval", "P(best)", "mark", "Ω", "interval", "A_γ"),
        *(f"{name}, {units[column].name}" for column, name in _TIME_COLUMNS.items()),
        *varied,
    ]
    groups = [
        RowGroup(
            heading=_point_heading(setting, point, common),
            rows=[
                Row(
                    cells=[*_prediction_cells(row, units), *(extra[name][row] for name in varied)],
                    chosen=(setting, point, row.gamma) in chosen,
                )
                for row in curve
            ],
        )
        for setting, points in curves.items()
        for point, curve in points.items()
    ]
    notes = _common_notes(common)
    notes += [f"every time and acceptance: {value}" for value in values["provenance"] if "provenance" not in varied]
    notes += [f"every speed-up is {value}" for value in values["label"] - {UNKNOWN} if "label" not in varied]
    return Table(
        caption="; ".join(notes),
        columns=columns,
        groups=groups,
        words=frozenset({columns.index("mark"), *range(8 + len(_TIME_COLUMNS), len(columns))}),
    )


def _prediction_cells(row: PredictionRow, units: Mapping[str, TimeUnit]) -> list[str]:
    marks = [word for word, on in (("best", row.is_best), ("recommended", row.is_recommended)) if on]
    is_known = row.status == "ok"
    return [
        str(row.gamma),
        number(row.speedup if is_known else None),
        interval(row.speedup_low, row.speedup_high) if is_known else UNKNOWN,
        percent(row.p_best if is_known else None),
        ", ".join(marks) if is_known else row.status,
        number(row.tokens_per_round),
        interval(row.tokens_per_round_low, row.tokens_per_round_high),
        number(row.full_acceptance),
        *(units[column].text(getattr(row, column)) for column in _TIME_COLUMNS),
    ]


def _provenance(row: PredictionRow) -> str:
    """Where a row's numbers come from: measured, interpolated or extrapolated."""
    if row.cost_known == row.acceptance_known:
        return row.cost_known or UNKNOWN
    return f"cost {row.cost_known or UNKNOWN}, acceptance {row.acceptance_known or UNKNOWN}"


def validation_table(rows: Sequence[ValidationRow], chosen: Chosen) -> Table:
    """Every γ decoded end to end, grouped by setting and point.

    Where ε was fitted and whether rows are lossless stand in columns of their own only where they differ.
    """
    unit = time_unit(row.t_overhead_s for row in rows)
    fitted, lossless = {row.overhead_from for row in rows}, {_lossless(row) for row in rows}
    columns = [
        *("γ", "S predicted", "S from counts", "S measured", "interval", "cost error"),
        *("Ω predicted", "Ω counted", "acceptance error", "95\u202f% interval", f"ε, {unit.name}"),
        *([_FITTED] if len(fitted) > 1 else []),
        *("rounds, counted / expected", "z", "whole requests"),
        *([_LOSSLESS] if len(lossless) > 1 else []),
    ]
    common = common_parts([row.setting for row in rows])
    groups = [
        RowGroup(
            heading=_point_heading(setting, point, common),
            rows=[
                Row(cells=_validation_cells(row, unit, columns), chosen=(setting, point, row.gamma) in chosen)
                for row in sorted(members, key=lambda row: row.gamma)
            ],
        )
        for setting, point, members in _by_point(rows)
    ]
    notes = _common_notes(common)
    notes += [f"every ε is fitted at {one}" for one in fitted if len(fitted) == 1 and one]
    for one in lossless if len(lossless) == 1 else ():
        notes.append("every row is lossless" if one == _YES else f"no row is lossless{one.removeprefix(_NO)}")
    return Table(
        caption="; ".join(notes),
        columns=columns,
        groups=groups,
        words=frozenset(columns.index(name) for name in (_FITTED, _LOSSLESS) if name in columns),
        wide=frozenset({columns.index(_LOSSLESS)} if _LOSSLESS in columns else ()),
    )


def _validation_cells(row: ValidationRow, unit: TimeUnit, columns: Collection[str]) -> list[str]:
    z = UNKNOWN if row.rounds_standard_errors is None else f"{row.rounds_standard_errors:+.1f}".replace("-", "−")
    return [
        str(row.gamma),
        number(row.speedup_predicted),
        number(row.speedup_from_counts),
        number(row.speedup_measured),
        interval(row.speedup_measured_low, row.speedup_measured_high),
        change(row.cost_error),
        number(row.tokens_per_round_predicted),
        number(row.tokens_per_round_counted),
        change(row.acceptance_error),
        change_interval(row.acceptance_error_low, row.acceptance_error_high),
        unit.text(row.t_overhead_s),
        *([row.overhead_from or UNKNOWN] if _FITTED in columns else []),
        f"{row.rounds_counted} / {number(row.rounds_expected, 1)}",
        f"{z}, unexpected" if row.rounds_agree is False else z,
        speedup(row.speedup_whole),
        *([_lossless(row)] if _LOSSLESS in columns else []),
    ]


def _lossless(row: ValidationRow) -> str:
    return _YES if row.lossless else ": ".join([_NO, *([row.why_not_lossless] if row.why_not_lossless else [])])


def policy_table(rows: Sequence[PolicyRow]) -> Table | None:
    """Every adaptive policy decoded, the fastest of a point first; None without any."""
    if not rows:
        return None
    common = common_parts([row.setting for row in rows])
    groups = [
        RowGroup(
            heading=_point_heading(setting, point, common),
            rows=[
                Row(cells=_policy_cells(row))
                for row in sorted(members, key=lambda row: row.speedup_measured or 0.0, reverse=True)
            ],
        )
        for setting, point, members in _by_point(rows)
    ]
    columns = [
        *("policy", "S measured", "interval", "S replayed", "error", "interval", "S from counts", "cost error"),
        *("best fixed γ", "over it", "interval", "drafts a round", "switches of γ / rounds"),
    ]
    return Table(caption="; ".join(_common_notes(common)), columns=columns, groups=groups, words=frozenset({0}))


def _policy_cells(row: PolicyRow) -> list[str]:
    return [
        row.policy,
        number(row.speedup_measured),
        interval(row.speedup_measured_low, row.speedup_measured_high),
        number(row.speedup_predicted),
        change(row.error),
        change_interval(row.error_low, row.error_high),
        number(row.speedup_from_counts),
        change(row.cost_error),
        UNKNOWN if row.best_fixed_gamma is None else str(row.best_fixed_gamma),
        speedup(row.over_best_fixed),
        interval(row.over_best_fixed_low, row.over_best_fixed_high),
        number(row.mean_gamma),
        f"{row.gamma_switches} / {row.rounds}",
    ]


def baseline_table(rows: Sequence[ValidationRow]) -> Table | None:
    """Our plain loop against the two other ways not to speculate, point by point; None where neither is known."""
    if all(row.plain_over_generate is None and row.plain_over_loop is None for row in rows):
        return None
    common = common_parts([row.setting for row in rows])
    grouped: dict[Setting, list[Row]] = {}
    for setting, point, (first, *_) in _by_point(rows):
        where = f"batch {point.batch_size}, context {point.context}"
        cells = [where, speedup(first.plain_over_generate), speedup(first.plain_over_loop)]
        grouped.setdefault(setting, []).append(Row(cells=cells))
    return Table(
        columns=["plain loop", "over generate()", "over the loop at γ\u00a0=\u00a00"],
        groups=[RowGroup(heading=_setting_heading(one, common), rows=own) for one, own in grouped.items()],
        words=frozenset({0}),
    )


def acceptance_table(acceptance: Sequence[AcceptanceCurve]) -> Table | None:
    """What the acceptance of every setting rests on, and its summaries in one number; None without any."""
    if not acceptance:
        return None
    varied = [
        (name, title)
        for name, title in (("pair", "pair"), ("draft_sampling", "draft sampling"), ("acceptance_rule", "rule"))
        if len({getattr(one.setting, name) for one in acceptance}) > 1
    ]
    gammas = ", ".join(str(gamma) for gamma in sorted({one.gamma for one in acceptance}))
    columns = [
        *("sampling", *(title for _, title in varied), f"Ω(γ\u00a0=\u00a0{gammas})"),
        *("α, overlap", "α, accepted", "α, from Ω", "prompts", "texts", "positions", "unknown", "repeated 4-grams"),
    ]
    rows = [
        Row(
            cells=[
                one.setting.sampling,
                *(getattr(one.setting, name) for name, _ in varied),
                number(one.tokens_per_round),
                number(one.alpha_overlap, 3),
                number(one.alpha_accepted, 3),
                number(one.alpha_omega, 3),
                str(one.prompts),
                str(one.texts),
                str(one.positions),
                percent(one.null_share),
                percent(one.repeated_ngrams),
            ]
        )
        for one in acceptance
    ]
    return Table(columns=columns, groups=[RowGroup(heading="", rows=rows)], words=frozenset(range(len(varied) + 1)))


def arm_words(arm: str) -> str:
    """The arm in the report's symbols."""
    name, _, gamma = arm.partition(":")
    return _ARMS[name].format(gamma)


def timing_table(arms: Sequence[ArmSummary]) -> Table | None:
    """Every timed arm with how well its time is known; None without any."""
    timed = [one for one in arms if one.samples]
    if not timed:
        return None
    unit = time_unit(one.median_s for one in timed)
    columns = ["arm", f"median, {unit.name}", "half-width", "samples", "blocks", "drift", f"first call, {unit.name}"]
    grouped: dict[str, list[Row]] = {}
    for one in timed:
        width = UNKNOWN if one.relative_half_width is None else f"±{percent(one.relative_half_width, 1)}"
        cells = [
            arm_words(one.arm),
            unit.text(one.median_s),
            width,
            str(one.samples),
            str(one.blocks),
            change(one.drift),
            unit.text(one.first_call_s),
            one.reason or one.status,
        ]
        grouped.setdefault(_cell_words(one, arms), []).append(Row(cells=cells))
    groups = [RowGroup(heading=heading, rows=rows) for heading, rows in grouped.items()]
    return Table(columns=[*columns, "status"], groups=groups, words=frozenset({0, 7}))


def broken_table(arms: Sequence[ArmSummary]) -> Table | None:
    """Cells with an arm that gave no number: which arms, their status and the reason; None when every arm did."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    sizes: dict[str, int] = {}
    for one in arms:
        where = _cell_words(one, arms)
        sizes[where] = sizes.get(where, 0) + 1
        if one.status != "ok":
            grouped.setdefault((where, one.status, one.reason), []).append(arm_words(one.arm))
    if not grouped:
        return None
    rows = [
        Row(cells=[where, status, "every arm" if len(names) == sizes[where] else ", ".join(names), reason or UNKNOWN])
        for (where, status, reason), names in grouped.items()
    ]
    return Table(
        columns=["cell", "status", "arms", "reason"],
        groups=[RowGroup(heading="", rows=rows)],
        words=frozenset(range(4)),
        wide=frozenset({2, 3}),
    )


def _by_point(rows: Sequence[_Decoded]) -> Iterator[tuple[Setting, Point, list[_Decoded]]]:
    """Rows of every setting and point, settings in order of appearance, points rising."""
    grouped: dict[Setting, dict[Point, list[_Decoded]]] = {}
    for row in rows:
        grouped.setdefault(row.setting, {}).setdefault(row.point, []).append(row)
    for setting, points in grouped.items():
        for point in sorted(points, key=by_size):
            yield setting, point, points[point]


def common_parts(settings: Sequence[Setting]) -> dict[str, str]:
    """The parts that all settings share, but for the sampling, which every heading names."""
    return {
        name: getattr(settings[0], name)
        for name in _NAMES
        if name != "sampling" and len({getattr(one, name) for one in settings}) == 1
    }


def _common_notes(common: Mapping[str, str]) -> list[str]:
    return [_NAMES[name].format(value) for name, value in common.items()]


def _setting_heading(setting: Setting, common: Mapping[str, str]) -> str:
    """A setting, named by what `common_parts` leaves out."""
    return ", ".join(
        _NAMES[part.name].format(getattr(setting, part.name)) for part in fields(setting) if part.name not in common
    )


def _point_heading(setting: Setting, point: Point, common: Mapping[str, str]) -> str:
    return f"{_setting_heading(setting, common)} · {point_words(point)}"


def _cell_words(one: ArmSummary, arms: Sequence[ArmSummary]) -> str:
    """A cell in words, with its pair and mode where the run has several."""
    words = [f"pair {one.cell.pair}"] if len({other.cell.pair for other in arms}) > 1 else []
    words += [f"mode {one.cell.mode}"] if len({other.cell.mode for other in arms}) > 1 else []
    words += [f"chain {one.cell.chain}"]
    return f"{', '.join(words)} · {point_words(one.point)}"
