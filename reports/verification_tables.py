"""The tables of what was decoded end to end: prediction against measurement, adaptive policies, the three baselines.

Output: `Table`s of plain text for the template, which escapes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypeVar

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
from specgauge.reports.records import Place, Strategy, Verified, VerifiedPolicy
from specgauge.reports.tables import Row, RowGroup, Table, common_notes, common_parts, place_heading, strategy_heading

_FITTED, _LOSSLESS = "ε fitted at", "lossless"
_Decoded = TypeVar("_Decoded", Verified, VerifiedPolicy)


def verification_table(rows: Sequence[Verified], chosen: Collection[tuple[object, ...]]) -> Table:
    """Every gamma decoded, grouped by strategy and place; `chosen` rows (those recommended) stand out.

    Where ε was fitted and whether rows are lossless stand in columns of their own only where they differ.
    """
    unit = time_unit(one.t_overhead_s for one in rows)
    fitted, lossless = {one.overhead_from for one in rows}, {_lossless(one) for one in rows}
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
        *([_FITTED] if len(fitted) > 1 else []),
        "rounds, counted / expected",
        "z",
        "whole requests",
        *([_LOSSLESS] if len(lossless) > 1 else []),
    ]
    common = common_parts([one.strategy for one in rows])
    groups = [
        RowGroup(
            heading=place_heading(*cell, common),
            rows=[
                Row(cells=_cells(one, unit, columns), chosen=one.key in chosen)
                for one in sorted(members, key=lambda one: one.gamma)
            ],
        )
        for cell, members in _by_cell(rows)
    ]
    notes = common_notes(common)
    notes += [f"every ε is fitted at {one}" for one in fitted if len(fitted) == 1 and one]
    notes += [_every_row(one) for one in lossless if len(lossless) == 1]
    return Table(
        caption="; ".join(notes),
        columns=columns,
        groups=groups,
        words=frozenset(columns.index(name) for name in (_FITTED, _LOSSLESS) if name in columns),
        wide=frozenset({columns.index(_LOSSLESS)} if _LOSSLESS in columns else ()),
    )


def policy_table(rows: Sequence[VerifiedPolicy]) -> Table | None:
    """Every adaptive policy decoded, the fastest of a cell first; None without any."""
    if not rows:
        return None
    common = common_parts([one.strategy for one in rows])
    groups = [
        RowGroup(
            heading=place_heading(*cell, common),
            rows=[
                Row(cells=_policy_cells(one)) for one in sorted(members, key=lambda one: -(one.speedup_measured or 0))
            ],
        )
        for cell, members in _by_cell(rows)
    ]
    return Table(
        caption="; ".join(common_notes(common)),
        columns=[
            "policy",
            "S measured",
            "interval",
            "S replayed",
            "error",
            "interval",
            "S from counts",
            "cost error",
            "best fixed γ",
            "over it",
            "interval",
            "drafts a round",
            "switches of γ / rounds",
        ],
        groups=groups,
        words=frozenset({0}),
    )


def _policy_cells(one: VerifiedPolicy) -> list[str]:
    return [
        one.policy,
        number(one.speedup_measured),
        interval(one.speedup_measured_low, one.speedup_measured_high),
        number(one.speedup_predicted),
        change(one.error),
        change_interval(one.error_low, one.error_high),
        number(one.speedup_from_counts),
        change(one.cost_error),
        UNKNOWN if one.best_fixed_gamma is None else str(one.best_fixed_gamma),
        speedup(one.over_best_fixed),
        interval(one.over_best_fixed_low, one.over_best_fixed_high),
        number(one.mean_gamma),
        f"{one.gamma_switches} / {one.rounds}",
    ]


def baseline_table(rows: Sequence[Verified]) -> Table | None:
    """Our plain loop against the two other ways not to speculate, cell by cell; None where neither is known."""
    if all(one.plain_over_generate is None and one.plain_over_loop is None for one in rows):
        return None
    common = common_parts([one.strategy for one in rows])
    grouped: dict[Strategy, list[Row]] = {}
    for (strategy, place), members in _by_cell(rows):
        first = members[0]
        cells = [
            f"batch {place.batch_size}, context {place.context}",
            speedup(first.plain_over_generate),
            speedup(first.plain_over_loop),
        ]
        grouped.setdefault(strategy, []).append(Row(cells=cells))
    return Table(
        caption="",
        columns=["plain loop", "over generate()", "over the loop at γ\u00a0=\u00a00"],
        groups=[RowGroup(heading=strategy_heading(one, common), rows=own) for one, own in grouped.items()],
        words=frozenset({0}),
    )


def _by_cell(rows: Sequence[_Decoded]) -> Iterator[tuple[tuple[Strategy, Place], list[_Decoded]]]:
    """Rows of every strategy and place, strategies in order of appearance, places rising."""
    grouped: dict[Strategy, dict[Place, list[_Decoded]]] = {}
    for one in rows:
        grouped.setdefault(one.strategy, {}).setdefault(one.place, []).append(one)
    for strategy, places in grouped.items():
        for place, members in sorted(places.items()):
            yield (strategy, place), members


def _cells(one: Verified, unit: TimeUnit, columns: Collection[str]) -> list[str]:
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
        *([one.overhead_from or UNKNOWN] if _FITTED in columns else []),
        f"{one.rounds_counted} / {number(one.rounds_expected, 1)}",
        _standard_errors(one),
        speedup(one.speedup_whole),
        *([_lossless(one)] if _LOSSLESS in columns else []),
    ]


_YES, _NO = "yes", "no"


def _lossless(one: Verified) -> str:
    return _YES if one.lossless else ": ".join([_NO, *([one.why_not_lossless] if one.why_not_lossless else [])])


def _every_row(lossless: str) -> str:
    return "every row is lossless" if lossless == _YES else f"no row is lossless{lossless.removeprefix(_NO)}"


def _standard_errors(one: Verified) -> str:
    z = UNKNOWN if one.rounds_standard_errors is None else f"{one.rounds_standard_errors:+.1f}".replace("-", "−")
    return f"{z}, unexpected" if one.rounds_agree is False else z
