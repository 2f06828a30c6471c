"""What a reader must know of a run that another program measured: what its files leave unknown. Plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specgauge.model.arms import Arm
from specgauge.model.speedup import RECOMMENDED_TOLERANCE, speedups
from specgauge.sweeps.analysis.cell_estimate import ONE_RUN_SPREAD
from specgauge.sweeps.analysis.counted_rounds import costs_of_cells
from specgauge.sweeps.analysis.counts import counted_acceptance
from specgauge.sweeps.analysis.settings import RunSetting
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


def between_warnings(run: Run, setting: RunSetting, cells: Sequence[CellTimings]) -> Iterator[WarningRow]:
    """A warning where a γ between those measured would be clearly better, if rounds grow evenly from one to the next.

    It is no answer: between two γ a round may take a step. cells: those of the setting.
    """
    table, measured = costs_of_cells(cells), run.config.grid.gamma
    every = list(range(min(measured), max(measured) + 1))
    if table is None or setting.rounds is None or len(every) == len(measured):
        return
    counts = run.counts(setting.key.pair, setting.key.sampling)
    found = counted_acceptance(counts, every, replicates=0, seed=0, confidence=run.config.precision.confidence)
    acceptance = found.only([gamma for gamma, known in zip(every, found.is_known, strict=True) if known]).estimate
    better = []
    for cell in cells:
        own = [gamma for gamma in acceptance.gammas.tolist() if cell.is_whole(gamma)]
        if len(own) < 2 or cell.arms["decode"].status != "ok":
            continue
        inside = acceptance.only([gamma for gamma in acceptance.gammas.tolist() if own[0] <= gamma <= own[-1]])
        point = cell.cell
        costs = table.costs(point.batch_size, point.context, inside.gammas)
        values = speedups(costs, inside, batch_size=point.batch_size)
        best = int(np.argmax(values))
        top = max(value for gamma, value in zip(inside.gammas.tolist(), values.tolist(), strict=True) if gamma in own)
        if values[best] > max(top / (1 - RECOMMENDED_TOLERANCE), 1.0):
            better.append((float(values[best] / top) - 1, int(inside.gammas[best]), cell))
    if better:
        gain, gamma, cell = max(better, key=lambda one: one[0])
        yield WarningRow(
            code="gamma_between",
            message=f"pair {setting.key.pair}, sampling {setting.key.sampling}: in {count(len(better), 'cell')} a γ "
            f"between those measured may be better; most γ = {gamma}, by {100 * gain:.0f} % if rounds grow evenly, "
            f"{point_text(cell.cell)}",
            remedy="add it to grid.gamma, give its server, and measure again with --fresh"
            if run.is_served
            else "run the engine at that γ too, and import it with the others",
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
