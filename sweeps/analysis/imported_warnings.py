"""What a reader must know of a run that another program measured: what its files leave unknown. Plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specgauge.model.arms import Arm
from specgauge.sweeps.analysis.cell_estimate import ONE_RUN_SPREAD
from specgauge.sweeps.analysis.timings import UNMEASURED, CellTimings
from specgauge.sweeps.analysis.warnings import point_text
from specgauge.sweeps.store.rows import row_of
from specgauge.sweeps.store.rundir import ENVIRONMENT, Run
from specgauge.sweeps.store.schema import WarningRow
from specgauge.sweeps.text_table import count

NOTES = "notes"
"""The warnings that the import left in environment.json."""


def imported_warnings(run: Run, pair: str, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    """Warnings about what was imported of one pair.

    Raises:
        ValueError: the notes of the import were altered.
    """
    notes = run.environment.get(NOTES, [])
    for number, note in enumerate(notes if isinstance(notes, list) else [notes]):
        yield row_of(WarningRow, note, f"{run.path / ENVIRONMENT}, {NOTES}[{number}]")
    yield from _no_plain(pair, cells)
    yield from _no_rounds(pair, cells)
    yield from _one_run(pair, cells)
    if any(cell.has_whole_rounds for cell in cells) and not any(_has_parts(cell) for cell in cells):
        yield WarningRow(
            code="parts_unknown",
            message=f"pair {pair}: rounds were timed whole; these files do not tell T_draft and T_verify apart",
            remedy="nothing for the best γ; to tell what bounds a round, measure the pair with `specgauge run`",
        )


def _has_parts(cell: CellTimings) -> bool:
    return any(arm.blocks for arm in cell.arms.values() if Arm.parse(arm.arm).kind in ("draft", "verify"))


def _no_plain(pair: str, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    rounds = [cell for cell in cells if cell.has_whole_rounds and cell.arms["decode"].status != "ok"]
    if rounds:
        yield WarningRow(
            code="plain_missing",
            message=f"pair {pair}: no plain decoding (γ = 0) in {count(len(rounds), 'cell')}, first "
            f"{point_text(rounds[0].cell)}: without it no speed-up is known there",
            remedy="run the engine without speculation at the same batch size and context, and import that too",
        )


def _no_rounds(pair: str, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    missing = [
        (cell, gamma)
        for cell in cells
        if cell.arms["decode"].status == "ok"
        for gamma in cell.gammas
        if cell.trouble(gamma)[0] == UNMEASURED
    ]
    if missing:
        cell, gamma = missing[0]
        yield WarningRow(
            code="rounds_missing",
            message=f"pair {pair}: no time of a round in {len(missing)} of {len(cells) * len(cell.gammas)} points of "
            f"γ, first γ = {gamma}, {point_text(cell.cell)}: {cell.trouble(gamma)[1]}",
            remedy="only γ with times at that point compete there; import runs at the others to have them compared",
        )


def _one_run(pair: str, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    arms = [arm for cell in cells for arm in cell.arms.values() if arm.is_apart]
    alone = [arm for arm in arms if len(arm.blocks) == 1]
    if alone:
        yield WarningRow(
            code="one_run",
            message=f"pair {pair}: {len(alone)} of {len(arms)} times come from one run each; a spread of "
            f"{100 * ONE_RUN_SPREAD:g} % from run to run is assumed there",
            remedy="repeat the engine's runs (three of each) and import all files together",
        )
