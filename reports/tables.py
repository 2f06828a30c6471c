"""The tables of the report: predictions, validation, policies, acceptance, timings, and cells without a number.

Columns that hold one value for the whole run are named once above the table instead. Times of a column share a unit.
Output: `Table`s of plain text for the template, which escapes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from specgauge.model.arms import Arm
from specgauge.model.checks import finite_or_none
from specgauge.model.settings import Point, Setting
from specgauge.model.stats.medians import drift, worst_half_width
from specgauge.reports.formatting import (
    UNKNOWN,
    TimeUnit,
    change,
    interval,
    number,
    percent,
    point_words,
    probability,
    time_unit,
    with_interval,
)
from specgauge.reports.records import Curves
from specgauge.reports.summaries import ALL_PROMPTS, AcceptanceCurve
from specgauge.sweeps.analysis.answers import Recommendations
from specgauge.sweeps.analysis.cell_estimate import GroupAcceptance
from specgauge.sweeps.analysis.timings import ArmTimings, CellTimings
from specgauge.sweeps.answer_table import tokens_per_second, verdict
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.side_by_side import side_by_side
from specgauge.sweeps.store.schema import CellRow, PredictionRow, RecommendationRow

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
    "t_transfer_s": "T_transfer",
    "t_verify_s": "T_verify",
    "t_overhead_s": "ε",
    "t_round_s": "T_round",
}
_ARMS = {
    "decode": "T_decode",
    "draft": "C(γ_max), draft chain",
    "draft_catch_up": "first draft step, two tokens",
    "transfer": "T_transfer(γ_max), drafts to the target's device",
    "verify": "T_verify({})",
    "round": "T_round({}), whole",
    "prefill_target": "prefill, target",
    "prefill_draft": "prefill, draft",
}
_Shown = TypeVar("_Shown")
_Row = TypeVar("_Row", bound=CellRow)
Columns: TypeAlias = list[tuple[str, Callable[[_Shown], str]]]
"""Titles, each with the text of a row's cell."""
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


ANSWER_COLUMNS = (
    *("batch", "context", "verdict", "γ", "speed-up S", "predicted S", "measured S", "whole requests"),
    *("Ω, mean acceptance\u00a0length", "plain, tokens/s", "speculative, tokens/s", "round, ms"),
)


def answer_table(answers: Recommendations, words: Callable[[Setting], str]) -> Table | None:
    """The answer of every cell in figures, grouped by setting; None without any. As in the terminal, with intervals."""
    by_setting: dict[str, list[Row]] = {}
    for entry in answers.entries:
        by_setting.setdefault(words(_setting_of(entry)), []).append(Row(cells=_answer_cells(entry, answers)))
    if not by_setting:
        return None
    groups = [RowGroup(heading=heading[:1].upper() + heading[1:], rows=rows) for heading, rows in by_setting.items()]
    return Table(columns=ANSWER_COLUMNS, groups=groups, words=frozenset({2}))


def _setting_of(entry: Mapping[str, Any]) -> Setting:
    return Setting(**{name: entry[name] for name in Setting.__dataclass_fields__})


def _answer_cells(entry: Mapping[str, Any], answers: Recommendations) -> list[str]:
    row = answers.measured(entry)
    measured = (None,) * 3 if row is None else tuple(row[f"speedup_measured{end}"] for end in ("", "_low", "_high"))
    spans = [*(tuple(entry[name].values()) for name in ("speedup", "speedup_predicted")), measured]
    round_s = entry["t_round_s"]
    return [
        str(entry["batch_size"]),
        str(entry["context"]),
        verdict(entry),
        str(entry["recommended_gamma"] or UNKNOWN),
        *(with_interval(*span) for span in spans),
        number(None if row is None else row["speedup_whole"]),
        number(entry["tokens_per_round"]),
        *(UNKNOWN if rate is None else f"{rate:.0f}" for rate in tokens_per_second(entry)),
        number(None if round_s is None else 1e3 * round_s),
    ]


def side_table(answers: Recommendations) -> Table | None:
    """The alternatives for one target at each point, the fastest first; None where nothing has any."""
    rankings = side_by_side(answers)
    if not rankings:
        return None
    is_one = len({one.target for one in rankings}) == 1
    groups = []
    for ranking in rankings:
        heading = f"sampling {ranking.sampling} · {point_words(ranking.point)}"
        rows = []
        for one in ranking.alternatives:
            entry, speedup = one.entry, one.entry["speedup"]
            cells = [one.name, one.draft, entry["mode"], one.standing, str(entry["recommended_gamma"] or UNKNOWN)]
            cells += [with_interval(*speedup.values()), number(entry["tokens_per_round"]), f"{one.tokens_per_s:.0f}"]
            rows.append(Row(cells=cells, chosen=one.standing == "best"))
        groups.append(RowGroup(heading=heading if is_one else f"target {ranking.target} · {heading}", rows=rows))
    titles = ["pair", "draft", "mode", "of these", "γ", "speed-up S", "Ω, mean acceptance\u00a0length", "tokens/s"]
    return Table(
        caption=f"Target {rankings[0].target}" if is_one else "",
        columns=titles,
        groups=groups,
        words=frozenset({0, 1, 2, 3}),
        wide=frozenset({1}),
    )


def prediction_table(curves: Curves, chosen: Chosen, losing: Collection[tuple[Setting, Point]] = ()) -> Table | None:
    """Every prediction, grouped by setting and point; None without any. losing: where no γ pays."""
    rows = [row for points in curves.values() for curve in points.values() for row in curve]
    if not rows:
        return None
    unit = time_unit(row.t_round_s for row in rows)
    columns: Columns[PredictionRow] = [
        ("γ", lambda row: str(row.gamma)),
        ("speed-up", lambda row: number(row.speedup if row.status == "ok" else None)),
        ("interval", lambda row: interval(row.speedup_low, row.speedup_high) if row.status == "ok" else UNKNOWN),
        ("P(best)", lambda row: probability(row.p_best if row.status == "ok" else None)),
        ("mark", lambda row: _mark(row, chosen, losing)),
        ("Ω", lambda row: number(row.tokens_per_round)),
        ("interval", lambda row: interval(row.tokens_per_round_low, row.tokens_per_round_high)),
        ("A_γ", lambda row: number(row.full_acceptance)),
        *(
            _time_column(unit, rows, name, title)
            for name, title in _TIME_COLUMNS.items()
            if name != "t_transfer_s" or any(row.t_transfer_s is not None for row in rows)
        ),
    ]
    notes: list[str] = []
    known = [row for row in rows if row.status == "ok"]
    provenance, labels = {_provenance(row) for row in known}, {row.label for row in known}
    if len(provenance) > 1:
        columns.append(("provenance", _provenance))
    else:
        notes += [f"every time and acceptance: {words}" for words in provenance]
    if len(labels) > 1:
        columns.append(("label", lambda row: row.label or UNKNOWN))
    else:
        notes += [f"every speed-up is {words}" for words in labels if words]
    return point_table(curves, columns, notes, words=("mark", "provenance", "label"), chosen=chosen)


def _mark(row: PredictionRow, chosen: Chosen, losing: Collection[tuple[Setting, Point]]) -> str:
    """What a γ is: the one to use, or the one of the largest S; neither where it loses."""
    if row.status != "ok":
        return row.status
    if (row.setting, row.point, row.gamma) in chosen:
        return "to use"
    return "largest S" if row.is_best and (row.setting, row.point) not in losing else ""


def _time_column(
    unit: TimeUnit, rows: Iterable[PredictionRow], name: str, title: str
) -> tuple[str, Callable[[PredictionRow], str]]:
    fitted = unit.fitted(getattr(row, name) for row in rows)
    return f"{title}, {unit.name}", lambda row: fitted.text(getattr(row, name))


def _provenance(row: PredictionRow) -> str:
    """Where a row's numbers come from: measured, imported, interpolated or extrapolated."""
    if row.cost_provenance == row.acceptance_provenance:
        return row.cost_provenance or UNKNOWN
    return f"cost {row.cost_provenance or UNKNOWN}, acceptance {row.acceptance_provenance or UNKNOWN}"


def acceptance_table(acceptance: Sequence[AcceptanceCurve]) -> Table | None:
    """What the acceptance of every setting rests on, and its summaries in one number; None without any."""
    if not acceptance:
        return None
    gammas = ", ".join(str(gamma) for gamma in sorted({one.gamma for one in acceptance}))
    columns: Columns[AcceptanceCurve] = [
        ("sampling", lambda one: one.setting.sampling),
        ("pair", lambda one: one.setting.pair),
        ("draft sampling", lambda one: one.setting.draft_sampling),
        ("rule", lambda one: one.setting.acceptance_rule),
    ]
    columns[1:] = [column for column in columns[1:] if len({column[1](one) for one in acceptance}) > 1]
    words = frozenset(range(len(columns)))
    columns += [
        (f"Ω(γ\u00a0=\u00a0{gammas})", lambda one: number(one.tokens_per_round)),
        ("α, overlap", lambda one: number(one.alpha_overlap, 3)),
        ("α, accepted", lambda one: number(one.alpha_accepted, 3)),
        ("α, from Ω", lambda one: number(one.alpha_omega, 3)),
        ("prompts", lambda one: str(one.texts.prompts)),
        ("texts", lambda one: str(one.texts.padded.lengths.size)),
        ("positions", lambda one: str(one.texts.positions)),
        ("unknown", lambda one: percent(one.texts.null_share)),
        ("repeated 4-grams", lambda one: percent(one.texts.repeated_share())),
    ]
    rows = [Row(cells=[text(one) for _, text in columns]) for one in acceptance]
    return Table(columns=[title for title, _ in columns], groups=[RowGroup(heading="", rows=rows)], words=words)


MOST_GAMMAS, NO_CATEGORY = 3, "none given"
"""Of Ω by category; the others stand in `Run.acceptance_by`."""


def category_table(acceptance: Sequence[AcceptanceCurve], to_use: Iterable[int]) -> Table | None:
    """Ω of each category of prompts with its interval, at the γ to use, or of none at the largest; None without any."""
    shown = [one for one in acceptance if one.categories]
    if not shown:
        return None
    gammas = sorted({*to_use})[:MOST_GAMMAS] or [max(one.gamma for one in shown)]
    common = common_fields([one.setting for one in shown])
    columns: Columns[GroupAcceptance] = [
        ("category", lambda group: NO_CATEGORY if group.group is None else str(group.group)),
        ("prompts", lambda group: str(group.prompts)),
    ]
    columns += map(_omega_column, gammas)
    groups = [
        RowGroup(
            heading=setting_heading(one.setting, {*common, "mode"}),
            rows=[
                Row(cells=[text(group) for _, text in columns], chosen=group.group == ALL_PROMPTS)
                for group in one.categories
            ],
        )
        for one in shown
    ]
    return Table(columns=[title for title, _ in columns], groups=groups, words=frozenset({0}))


def _omega_column(gamma: int) -> tuple[str, Callable[[GroupAcceptance], str]]:
    return f"Ω(γ\u00a0=\u00a0{gamma})", lambda group: with_interval(*_of_gamma(group, gamma))


def _of_gamma(group: GroupAcceptance, gamma: int) -> tuple[float | None, float | None, float | None]:
    index = group.gammas.tolist().index(gamma)
    omega, low, high = (finite_or_none(ends[index]) for ends in (group.tokens_per_round, group.low, group.high))
    return omega, low, high


def timing_table(cells: Sequence[CellTimings], confidence: float) -> Table | None:
    """Every timed arm with how well its time is known; None without any.

    Samples of all blocks are pooled; a chain of drafts is as long as its last mark and as well known as its worst.
    Disturbed samples are those kept; steal and pressure are shares of the time that all samples took.
    """
    timed = [arm for one in cells for arm in one.arms.values() if arm.blocks]
    if not timed:
        return None
    unit = time_unit(arm.median_s[-1] for arm in timed)
    columns: Columns[ArmTimings] = [
        ("arm", lambda arm: _arm_words(arm.arm)),
        (f"median, {unit.name}", lambda arm: unit.text(arm.median_s[-1])),
        ("half-width", lambda arm: _half_width(finite_or_none(worst_half_width(arm.samples_s, confidence)))),
        ("samples", lambda arm: str(len(arm.samples_s))),
        ("blocks", lambda arm: str(len(arm.blocks))),
        ("drift", lambda arm: change(drift(arm.samples_as_taken_s[:, -1]))),
        ("disturbed", lambda arm: str(arm.disturbance.disturbed)),
        ("retaken", lambda arm: str(arm.disturbance.retaken)),
        ("steal", lambda arm: _share(arm.disturbance.steal_s, arm.disturbance.wall_s)),
        ("pressure", lambda arm: _share(arm.disturbance.pressure_s, arm.disturbance.wall_s)),
        (f"first call, {unit.name}", lambda arm: unit.text(arm.first_call_s)),
        ("status", lambda arm: arm.reason or arm.status),
    ]
    groups = []
    for one in cells:
        rows = [Row(cells=[text(arm) for _, text in columns]) for arm in one.arms.values() if arm.blocks]
        groups += [RowGroup(heading=_cell_words(one.cell, cells), rows=rows)] if rows else []
    return Table(columns=[title for title, _ in columns], groups=groups, words=frozenset({0, 11}))


def _share(part_s: float | None, wall_s: float | None) -> str:
    return UNKNOWN if part_s is None or not wall_s else percent(part_s / wall_s)


def _half_width(share: float | None) -> str:
    return UNKNOWN if share is None else f"±{percent(share, 1)}"


def broken_table(cells: Sequence[CellTimings]) -> Table | None:
    """Cells with an arm that gave no number: which arms, their status and the reason; None when every arm did."""
    rows = []
    for one in cells:
        missing: dict[tuple[str, str], list[str]] = {}
        for arm, status, reason in _without_number(one):
            missing.setdefault((status, reason), []).append(arm)
        for (status, reason), names in missing.items():
            which = "every arm" if len(names) == len(one.arms) else ", ".join(names)
            rows.append(Row(cells=[_cell_words(one.cell, cells), status, which, reason or UNKNOWN]))
    if not rows:
        return None
    return Table(
        columns=["cell", "status", "arms", "reason"],
        groups=[RowGroup(heading="", rows=rows)],
        words=frozenset(range(4)),
        wide=frozenset({2, 3}),
    )


def _without_number(cell: CellTimings) -> Iterator[tuple[str, str, str]]:
    """Arms without a number, each with its status and the reason; of another program's runs, rounds by γ."""
    if cell.is_apart:
        yield from ((f"γ = {gamma}", *cell.trouble(gamma)) for gamma in cell.gammas if cell.trouble(gamma)[0] != "ok")
        return
    yield from ((_arm_words(arm.arm), arm.status, arm.reason) for arm in cell.arms.values() if arm.status != "ok")


def _arm_words(arm: str) -> str:
    parsed = Arm.parse(arm)
    return _ARMS[parsed.kind].format(parsed.gamma)


def point_table(
    rows: Mapping[Setting, Mapping[Point, Sequence[_Row]]],
    columns: Columns[_Row],
    notes: Iterable[str] = (),
    *,
    words: Collection[str] = (),
    wide: Collection[str] = (),
    chosen: Chosen = (),
) -> Table:
    """A group of rows for every setting and point, under what all settings share and the `notes`.

    `words` and `wide` are titles of columns.
    """
    common = common_fields(list(rows))
    groups = [
        RowGroup(
            heading=f"{setting_heading(setting, common)} · {point_words(point)}",
            rows=[
                Row(
                    cells=[text(row) for _, text in columns],
                    chosen=(setting, point, getattr(row, "gamma", 0)) in chosen,
                )
                for row in own
            ],
        )
        for setting, points in rows.items()
        for point, own in points.items()
    ]
    titles = [title for title, _ in columns]
    return Table(
        caption="; ".join([*(_NAMES[name].format(value) for name, value in common.items()), *notes]),
        columns=titles,
        groups=groups,
        words=frozenset(place for place, title in enumerate(titles) if title in words),
        wide=frozenset(place for place, title in enumerate(titles) if title in wide),
    )


def common_fields(settings: Sequence[Setting]) -> dict[str, str]:
    """The fields that all settings share, but for the sampling, which every heading names."""
    return {
        name: getattr(settings[0], name)
        for name in _NAMES
        if name != "sampling" and len({getattr(one, name) for one in settings}) == 1
    }


def setting_heading(setting: Setting, common: Collection[str]) -> str:
    """A setting, named by the fields that are not in `common`."""
    return ", ".join(words.format(getattr(setting, name)) for name, words in _NAMES.items() if name not in common)


def _cell_words(cell: Cell, cells: Sequence[CellTimings]) -> str:
    """A cell in words, with its pair and mode where the run has several."""
    words = [f"pair {cell.pair}"] if len({other.cell.pair for other in cells}) > 1 else []
    words += [f"mode {cell.mode}"] if len({other.cell.mode for other in cells}) > 1 else []
    point = Point(batch_size=cell.batch_size, context=cell.context)
    return f"{', '.join([*words, f'chain {cell.chain}'])} · {point_words(point)}"
