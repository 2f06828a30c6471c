"""The tables of what was decoded end to end: prediction against measurement, and the three baselines.

Output: `Table`s of plain text for the template, which escapes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from specgauge.reports.formatting import (
    UNKNOWN,
    TimeUnit,
    change,
    change_interval,
    interval,
    number,
    speedup,
    time_unit,
)
from specgauge.reports.records import Place, Strategy, Verified
from specgauge.reports.tables import Row, RowGroup, Table, common_notes, common_parts, place_heading

_WORDS = ("ε fitted at", "lossless")


def verification_table(rows: Sequence[Verified], chosen: Collection[tuple[Strategy, Place, int]]) -> Table:
    """Every gamma decoded, grouped by strategy and place; `chosen` rows (those recommended) stand out."""
    unit = time_unit(one.t_overhead_s for one in rows)
    columns = [
        "γ",
        "S predicted",
        "S from counts",
        "S measured",
        "interval",
        "cost error",
        "Ω predicted",
        "Ω counted",
        "acceptance error",
        "95\u202f% interval",
        f"ε, {unit.name}",
        _WORDS[0],
        "rounds counted",
        "expected",
        "z",
        "whole requests",
        _WORDS[1],
    ]
    common = common_parts([one.strategy for one in rows])
    groups = [
        RowGroup(
            heading=place_heading(*cell, common),
            rows=[Row(cells=_cells(one, unit), chosen=one.key in chosen) for one in members],
        )
        for cell, members in _by_cell(rows)
    ]
    words = frozenset(columns.index(name) for name in _WORDS)
    return Table(
        caption="; ".join(common_notes(common)),
        columns=columns,
        groups=groups,
        words=words,
        wide=frozenset({len(columns) - 1}) if not all(one.lossless for one in rows) else frozenset(),
    )


def baseline_table(rows: Sequence[Verified]) -> Table | None:
    """Our plain loop against the two other ways not to speculate, cell by cell; None where neither is known."""
    cells = [(cell, members[0]) for cell, members in _by_cell(rows)]
    if all(one.plain_over_generate is None and one.plain_over_loop is None for _, one in cells):
        return None
    common = common_parts([one.strategy for one in rows])
    return Table(
        caption="",
        columns=["cell", "plain loop over generate()", "plain loop over the loop at γ\u00a0=\u00a00"],
        groups=[
            RowGroup(
                heading="",
                rows=[
                    Row(
                        cells=[
                            place_heading(*cell, common),
                            speedup(one.plain_over_generate),
                            speedup(one.plain_over_loop),
                        ]
                    )
                    for cell, one in cells
                ],
            )
        ],
        words=frozenset({0}),
    )


def _by_cell(rows: Sequence[Verified]) -> Iterator[tuple[tuple[Strategy, Place], list[Verified]]]:
    """Rows of every strategy and place, strategies in order of appearance, places and gammas rising."""
    grouped: dict[Strategy, dict[Place, list[Verified]]] = {}
    for one in rows:
        grouped.setdefault(one.strategy, {}).setdefault(one.place, []).append(one)
    for strategy, places in grouped.items():
        for place, members in sorted(places.items()):
            yield (strategy, place), sorted(members, key=lambda one: one.gamma)


def _cells(one: Verified, unit: TimeUnit) -> list[str]:
    return [
        str(one.gamma),
        number(one.speedup_predicted),
        number(one.speedup_from_counts),
        number(one.speedup_measured),
        interval(one.speedup_measured_low, one.speedup_measured_high),
        change(one.cost_error),
        number(one.tokens_per_round_predicted),
        number(one.tokens_per_round_counted),
        change(one.acceptance_error),
        change_interval(one.acceptance_error_low, one.acceptance_error_high),
        unit.text(one.t_overhead_s),
        one.overhead_from or UNKNOWN,
        str(one.rounds_counted),
        number(one.rounds_expected, 1),
        _standard_errors(one),
        speedup(one.speedup_whole),
        "yes" if one.lossless else f"no: {one.why_not_lossless}" if one.why_not_lossless else "no",
    ]


def _standard_errors(one: Verified) -> str:
    z = UNKNOWN if one.rounds_standard_errors is None else f"{one.rounds_standard_errors:+.1f}"
    return f"{z}, unexpected" if one.rounds_agree is False else z
