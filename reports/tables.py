"""The tables of the report: predictions, acceptance, timings, and parts without a number.

Columns that hold one value for the whole run are named once above the table instead. Times of a column share a unit.
Output: `Table`s of plain text for the template, which escapes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specgauge.reports.acceptance_curves import AcceptanceCurve
from specgauge.reports.blocks import caption
from specgauge.reports.formatting import UNKNOWN, TimeUnit, change, interval, number, percent, time_unit
from specgauge.reports.records import Answer, Curves, Place, Prediction, Strategy
from specgauge.reports.timings import PartTiming, arm_words

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
    "round_verify_s": "T_verify",
    "t_overhead_s": "ε",
    "t_round_s": "T_round",
}


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

    caption: str
    columns: Sequence[str]
    groups: Sequence[RowGroup]
    words: frozenset[int] = field(default_factory=frozenset)
    wide: frozenset[int] = field(default_factory=frozenset)
    """Indices of columns of sentences, which may wrap."""


def prediction_table(curves: Curves, answers: Iterable[Answer]) -> Table | None:
    """Every prediction, grouped by strategy and place; None without any."""
    rows = [one for places in curves.values() for curve in places.values() for one in curve]
    if not rows:
        return None
    chosen = {(one.strategy, one.place, one.gamma) for one in answers if one.gamma is not None}
    units = _time_columns(rows)
    common = common_parts(list(curves))
    known = {_known(one) for one in rows if one.status == "ok"}
    labels = {one.label for one in rows if one.status == "ok"}
    columns = [
        "γ",
        "speed-up",
        "interval",
        "P(best)",
        "mark",
        "Ω",
        "interval",
        "A_γ",
        *(f"{name}, {units[column].name}" for column, name in _TIME_COLUMNS.items()),
        *(["known"] if len(known) > 1 else []),
        *(["label"] if len(labels) > 1 else []),
    ]
    groups = [
        RowGroup(
            heading=place_heading(strategy, place, common),
            rows=[
                Row(
                    cells=[
                        *_prediction_cells(one, units),
                        *([_known(one)] if len(known) > 1 else []),
                        *([one.label or UNKNOWN] if len(labels) > 1 else []),
                    ],
                    chosen=(strategy, place, one.gamma) in chosen,
                )
                for one in curve
            ],
        )
        for strategy, places in curves.items()
        for place, curve in places.items()
    ]
    notes = common_notes(common)
    notes += [f"every time and acceptance: {known.copy().pop()}"] if len(known) == 1 else []
    notes += [f"every speed-up is {labels.copy().pop()}"] if len(labels) == 1 and labels != {""} else []
    return Table(
        caption="; ".join(notes),
        columns=columns,
        groups=groups,
        words=frozenset({columns.index("mark"), *range(8 + len(_TIME_COLUMNS), len(columns))}),
    )


def acceptance_table(acceptance: Sequence[AcceptanceCurve]) -> Table | None:
    """What the acceptance of every strategy rests on, and its summaries in one number; None without any."""
    if not acceptance:
        return None
    varied = [
        (name, title)
        for name, title in (("pair", "pair"), ("draft_sampling", "draft sampling"), ("acceptance_rule", "rule"))
        if len({getattr(one, name) for one in acceptance}) > 1
    ]
    gammas = {one.gamma for one in acceptance}
    columns = [
        "sampling",
        *(title for _, title in varied),
        f"Ω(γ\u00a0=\u00a0{', '.join(str(gamma) for gamma in sorted(gammas))})",
        "α, overlap",
        "α, judged",
        "α, from Ω",
        "prompts",
        "texts",
        "positions",
        "unknown",
        "repeated 4-grams",
    ]
    rows = [
        Row(
            cells=[
                one.sampling,
                *(getattr(one, name) for name, _ in varied),
                number(one.tokens_per_round),
                number(one.alpha_overlap, 3),
                number(one.alpha_judged, 3),
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
    return Table(
        caption="", columns=columns, groups=[RowGroup(heading="", rows=rows)], words=frozenset(range(len(varied) + 1))
    )


def timing_table(parts: Sequence[PartTiming]) -> Table | None:
    """Every timed part with how well it is known; None without any."""
    timed = [one for one in parts if one.samples]
    if not timed:
        return None
    unit = time_unit(one.median_s for one in timed)
    columns = [
        "part",
        f"median, {unit.name}",
        "half-width",
        "samples",
        "blocks",
        "drift",
        f"first call, {unit.name}",
        "status",
    ]
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
        grouped.setdefault(_cell_words(one, parts), []).append(Row(cells=cells))
    groups = [RowGroup(heading=heading, rows=rows) for heading, rows in grouped.items()]
    return Table(caption="", columns=columns, groups=groups, words=frozenset({0, 7}))


def broken_table(parts: Sequence[PartTiming]) -> Table | None:
    """Cells with a part that gave no number: which parts, their status and the reason; None when every part did."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    sizes: dict[str, int] = {}
    for one in parts:
        where = _cell_words(one, parts)
        sizes[where] = sizes.get(where, 0) + 1
        if one.status != "ok":
            grouped.setdefault((where, one.status, one.reason), []).append(arm_words(one.arm))
    if not grouped:
        return None
    rows = [
        Row(cells=[where, status, "every part" if len(arms) == sizes[where] else ", ".join(arms), reason or UNKNOWN])
        for (where, status, reason), arms in grouped.items()
    ]
    return Table(
        caption="",
        columns=["cell", "status", "parts", "reason"],
        groups=[RowGroup(heading="", rows=rows)],
        words=frozenset(range(4)),
        wide=frozenset({2, 3}),
    )


def _time_columns(rows: Sequence[Prediction]) -> dict[str, TimeUnit]:
    """One unit for all columns of times, with decimals for each."""
    unit = time_unit(one.t_round_s for one in rows)
    return {column: unit.fitted(getattr(one, column) for one in rows) for column in _TIME_COLUMNS}


def _prediction_cells(one: Prediction, units: Mapping[str, TimeUnit]) -> list[str]:
    if one.status != "ok":
        return [str(one.gamma), *[UNKNOWN] * 3, one.status, *_common_cells(one, units)]
    marks = [word for word, on in (("best", one.is_best), ("recommended", one.is_recommended)) if on]
    return [
        str(one.gamma),
        number(one.speedup),
        interval(one.speedup_low, one.speedup_high),
        percent(one.p_best),
        ", ".join(marks),
        *_common_cells(one, units),
    ]


def _common_cells(one: Prediction, units: Mapping[str, TimeUnit]) -> list[str]:
    return [
        number(one.tokens_per_round),
        interval(one.tokens_per_round_low, one.tokens_per_round_high),
        number(one.full_acceptance),
        *(units[column].text(getattr(one, column)) for column in _TIME_COLUMNS),
    ]


def _known(one: Prediction) -> str:
    if one.cost_known == one.acceptance_known:
        return one.cost_known or UNKNOWN
    return f"cost {one.cost_known or UNKNOWN}, acceptance {one.acceptance_known or UNKNOWN}"


def common_notes(common: Mapping[str, str]) -> list[str]:
    """What all strategies share, in words."""
    return [_NAMES[name].format(value) for name, value in common.items()]


def common_parts(strategies: Sequence[Strategy]) -> dict[str, str]:
    """The parts that all strategies share, but for the sampling, which every heading names."""
    return {
        name: getattr(strategies[0], name)
        for name in Strategy._fields
        if name != "sampling" and len({getattr(one, name) for one in strategies}) == 1
    }


def strategy_heading(strategy: Strategy, common: Mapping[str, str]) -> str:
    """A strategy, named by what `common_parts` leaves out."""
    return ", ".join(_NAMES[name].format(getattr(strategy, name)) for name in Strategy._fields if name not in common)


def place_heading(strategy: Strategy, place: Place, common: Mapping[str, str]) -> str:
    """A place under a strategy."""
    return f"{strategy_heading(strategy, common)} · {caption(place)}"


def _cell_words(one: PartTiming, parts: Sequence[PartTiming]) -> str:
    """A cell in words, with its pair and mode where the run has several."""
    words = [f"pair {one.cell.pair}"] if len({other.cell.pair for other in parts}) > 1 else []
    words += [f"mode {one.cell.mode}"] if len({other.cell.mode for other in parts}) > 1 else []
    words += [f"chain {one.cell.chain}"]
    return f"{', '.join(words)} · {caption(one.place)}"
