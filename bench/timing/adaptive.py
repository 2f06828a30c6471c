"""Time the cells of one pair only where it can still change which γ is best (`specgauge.model.search.search`).

    measure_adaptively(pair, cells, questions={cell_id: [question]}, gammas=range(1, 17), …)      # as measure_cells

A step of a cell is one block of each arm that the search asks for; its number is the block's.  The steps of cells of
one batch size are interleaved.  What to time next follows from the journal alone, so a run that was stopped resumes
with what is missing of its last step.  γ that were not timed, or in too few blocks to be weighed, are recorded as
``skipped`` with the bound that excluded them.

The smallest and the largest batch size and context come first; a cell that lies between cells already timed is checked
against the costs they make one expect, and searched only where it does not keep to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specgauge.bench.models.pair import LoadedPair
from specgauge.bench.models.static_graphs import Compilation
from specgauge.bench.timing.arm_runner import ArmRunner
from specgauge.bench.timing.blocks import BlockRecord, TimingCell
from specgauge.bench.timing.cell_timer import CellState, CellTimer
from specgauge.bench.timing.clock import Clock, clock_for
from specgauge.model.arms import PREFILL_ARMS, round_arms, verify_arm
from specgauge.model.costs import RoundCosts
from specgauge.model.search.candidates import SearchObjective, SearchSettings
from specgauge.model.search.levels import ArmLevels, BlockSummary, summarise_block
from specgauge.model.search.search import SEARCH_NOTE, Step, expected_levels, next_step, searched_costs
from specgauge.model.settings import Point


@dataclass(kw_only=True)
class AdaptiveCellTimer(CellTimer):
    """Times the cells of one pair as a search for γ asks for it."""

    cells: Sequence[TimingCell]
    """All that this timer will measure."""
    questions: Mapping[str, Sequence[SearchObjective]]
    """Those of each cell by its id, at least one."""
    _summaries: dict[tuple[str, str, int], BlockSummary] = field(init=False, default_factory=dict)
    _reason: str = field(init=False, default="opening")
    _expected: dict[str, ArmLevels | None] = field(init=False, default_factory=dict)
    _around: dict[str, dict[Point, RoundCosts]] = field(init=False, default_factory=dict)
    _steps: dict[tuple[str, int | None, int, bool], Step] = field(init=False, default_factory=dict)

    def settings(self, cell: TimingCell) -> SearchSettings:
        """What the search of a cell looks for."""
        return SearchSettings(
            gammas=tuple(self.gammas),
            batch_size=cell.batch_size,
            catches_up=self.catches_up,
            transfers=self.pair.transfers,
            relative_ci=self.precision.relative_ci,
            interval_confidence=self.precision.confidence,
            min_blocks=self.precision.min_blocks,
            max_blocks=self.precision.max_blocks,
        )

    def taken(self, cell: TimingCell, arm: str) -> list[int]:
        """Numbers of an arm's blocks with samples, in rising order."""
        return sorted(n for n, block in self.journal.blocks(cell.cell_id, arm).items() if block.status == "ok")

    def summaries(self, cell: TimingCell, before: int | None = None) -> dict[str, dict[int, BlockSummary]]:
        """The blocks of a cell's rounds, all or those of the steps before one."""
        found: dict[str, dict[int, BlockSummary]] = {}
        for arm in round_arms(self.gammas, catches_up=self.catches_up, transfers=self.pair.transfers):
            numbers = [number for number in self.taken(cell, arm) if before is None or number < before]
            found[arm] = {number: self._summary(cell, arm, number) for number in numbers}
        return found

    def _summary(self, cell: TimingCell, arm: str, number: int) -> BlockSummary:
        key = cell.cell_id, arm, number
        if key not in self._summaries:
            self._summaries[key] = summarise_block(self.journal.blocks(cell.cell_id, arm)[number].samples_s)
        return self._summaries[key]

    def step(self, cell: TimingCell, *, is_spent: bool, before: int | None = None) -> Step:
        """What the search of a cell asks for after all steps, or after those before one."""
        summaries = self.summaries(cell, before)
        key = cell.cell_id, before, sum(map(len, summaries.values())), is_spent
        if key not in self._steps:
            self._steps[key] = next_step(
                self.settings(cell),
                self.questions[cell.cell_id],
                summaries,
                expected=self.expected(cell),
                is_spent=is_spent,
            )
        return self._steps[key]

    def due(self, cell: TimingCell, *, is_spent: bool) -> tuple[int, Step, list[str]]:
        """The number of the step to take, the search's word on it, and the arms it still needs; none at the end."""
        last = max((n for arm in self.arms for n in self.taken(cell, arm)), default=None)
        if last is not None and not is_spent:
            step = self.step(cell, is_spent=False, before=last)
            missing = [arm for arm in self._with_prefills(cell, step, last) if last not in self.taken(cell, arm)]
            if missing:
                return last, step, missing
        number = 0 if last is None else last + 1
        step = self.step(cell, is_spent=is_spent)
        while step.arms and any(number in self.journal.blocks(cell.cell_id, arm) for arm in self.arms):
            number += 1  # an earlier end of the search, with less time, has said there what it left out
        return number, step, self._with_prefills(cell, step, number)

    def _with_prefills(self, cell: TimingCell, step: Step, number: int) -> list[str]:
        """The arms of a step; the first ones have the prefills as well."""
        arm = PREFILL_ARMS[0]
        before = sum(taken < number for taken in self.taken(cell, arm))
        prefills = PREFILL_ARMS if step.arms and before < self.stopping.least_blocks(arm) else ()
        return [*step.arms, *prefills]

    def finished(self, state: CellState) -> bool:
        """Whether a cell needs no further block: given up, or its search has ended; then what it left out is kept."""
        if state.given_up:
            return True
        if any(block.status != "ok" and SEARCH_NOTE not in block.notes for block in self.stopping.recorded(state.cell)):
            state.given_up = True
            return True
        number, step, arms = self.due(state.cell, is_spent=self.is_spent(state.cell))
        if not arms:
            self._keep_left_out(state.cell, number, step)
        return not arms

    def is_spent(self, cell: TimingCell) -> bool:
        """Whether the seconds of a cell, or of all cells of its batch size, are spent."""
        together = [one for one in self.cells if one.batch_size == cell.batch_size]
        limits, stopping = self.precision, self.stopping
        return stopping.has_spent(together, limits.max_seconds) or stopping.has_spent([cell], limits.max_cell_seconds)

    def _keep_left_out(self, cell: TimingCell, number: int, step: Step) -> None:
        """Record why each γ without the least blocks has no more of them; anew where more time has changed that."""
        for gamma in self.gammas:
            arm = verify_arm(gamma)
            recorded = self.journal.blocks(cell.cell_id, arm)
            taken = self.taken(cell, arm)
            later = [n for n, block in recorded.items() if block.status != "ok" and n > max(taken, default=-1)]
            said = bool(later) and recorded[max(later)].reason == step.why_left_out(gamma)
            if len(taken) < self.precision.min_blocks and not said:
                self.journal.record(
                    BlockRecord(
                        cell_id=cell.cell_id,
                        arm=arm,
                        block=max([number - 1, *later]) + 1,
                        status="skipped",
                        reason=step.why_left_out(gamma),
                        notes={SEARCH_NOTE: step.reason},
                    )
                )

    def measure_group(self, cells: Sequence[TimingCell], prompts: Sequence[Sequence[int]]) -> None:
        """Search all cells of one batch size, their steps interleaved; returns when each is done."""
        states = [CellState(cell=cell) for cell in cells]
        bench: ArmRunner | None = None
        for wave in _waves(states):
            pending = [state for state in wave if not self.finished(state)]
            if pending and bench is None:
                bench = self.open_bench([state for state in states if not state.given_up], prompts)
            lap = 0
            while bench is not None and (pending := [state for state in pending if not self.finished(state)]):
                order = np.random.default_rng((self.seed, lap))
                for index in order.permutation(len(pending)):
                    self._take_step(bench, pending[index], states, order)
                lap += 1
            for state in wave:
                self._remember(state)

    def _take_step(
        self, bench: ArmRunner, state: CellState, states: Sequence[CellState], order: np.random.Generator
    ) -> None:
        """One block of each arm that a cell's search asks for; none once it is given up or time is spent."""
        if state.given_up:
            return
        number, step, arms = self.due(state.cell, is_spent=self.is_spent(state.cell))
        self._reason = step.reason
        if arms:
            self.guarded(bench, state, states, order.permutation(arms).tolist(), number)

    def notes_of(self, cell: TimingCell, compilation: Compilation) -> dict[str, Any]:
        """Also under which rule of the search a block is taken."""
        return {**super().notes_of(cell, compilation), SEARCH_NOTE: self._reason}

    def _remember(self, state: CellState) -> None:
        """Keep what a cell whose search has ended costs; nothing where it was given up."""
        costs = searched_costs(self.summaries(state.cell), self.gammas, min_blocks=self.precision.min_blocks)
        if costs is not None and not state.given_up:
            self._around.setdefault(state.cell.chain, {})[_point(state.cell)] = costs

    def expected(self, cell: TimingCell) -> ArmLevels | None:
        """What the cells of earlier waves make of one that lies between them; None where it does not."""
        if cell.cell_id not in self._expected:
            self._expected[cell.cell_id] = expected_levels(
                self._around.get(cell.chain, {}), _point(cell), self.gammas, catches_up=self.catches_up
            )
        return self._expected[cell.cell_id]


def _point(cell: TimingCell) -> Point:
    return Point(batch_size=cell.batch_size, context=cell.context)


def _waves(states: Sequence[CellState]) -> list[list[CellState]]:
    """The smallest and largest context of each chain, then those between."""
    ends: dict[str, tuple[int, int]] = {}
    for state in states:
        low, high = ends.get(state.cell.chain, (state.cell.context,) * 2)
        ends[state.cell.chain] = min(low, state.cell.context), max(high, state.cell.context)
    outer = [state for state in states if state.cell.context in ends[state.cell.chain]]
    return [outer, [state for state in states if state.cell.context not in ends[state.cell.chain]]]


def batch_order(batch_sizes: Iterable[int]) -> list[int]:
    """The smallest, the largest, and those between in rising order."""
    rising = sorted(set(batch_sizes))
    return rising[:1] + rising[1:][-1:] + rising[1:-1]


def measure_adaptively(
    pair: LoadedPair,
    cells: Sequence[TimingCell],
    *,
    prompts: Sequence[Sequence[int]],
    clock: Clock | None = None,
    **options: Any,
) -> None:
    """As `measure_cells`, where a search for γ asks for it; ``options`` are the fields of `AdaptiveCellTimer`."""
    timer = AdaptiveCellTimer(pair=pair, cells=cells, clock=clock or clock_for(*pair.devices), **options)
    timer.measure(cells, prompts, batch_order(cell.batch_size for cell in cells))
