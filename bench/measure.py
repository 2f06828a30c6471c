"""Time the cells of one pair: arms interleaved in blocks, until every median is known well enough.

A cell is (chain, batch size, context) of a loaded pair.  All cells of one batch size share caches and are visited in
turn, a block of each arm at a time, in an order shuffled by block, so that a machine that slows down hits all arms
alike.  A cell stops when the interval of every arm's median is narrower than ``precision.relative_ci`` of it, or when
its blocks, its own seconds or those of its batch size are spent.  First calls and one warm-up are kept apart.

    measure_cells(pair, cells, gammas=[1, 2, 3], prompts=prompts, precision=precision, journal=journal, seed=0)

Out of memory is a result: the cell's arms are recorded as ``oom``, larger cells of the same chain as ``skipped``.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch

from specgauge.bench.arms import Workbench
from specgauge.bench.builds import Built, built, nothing_built
from specgauge.bench.cache import capacity_bucket
from specgauge.bench.clock import Clock, clock_for
from specgauge.bench.memory import free_memory, is_out_of_memory, peak_memory_bytes
from specgauge.bench.models import LoadedPair
from specgauge.configs.contexts import check_context
from specgauge.configs.precision import PrecisionConfig
from specgauge.model.arms import PREFILL_BLOCKS, arm_names, is_prefill
from specgauge.model.checks import FloatArray
from specgauge.model.precision import worst_half_width
from specgauge.model.sampling import SamplingSettings

Status = Literal["ok", "oom", "skipped", "failed", "killed"]


@dataclass(frozen=True, kw_only=True)
class TimingCell:
    """One point of the grid under one chain of processors."""

    cell_id: str
    chain: str
    settings: SamplingSettings
    batch_size: int
    context: int


@dataclass(frozen=True, kw_only=True)
class BlockRecord:
    """What one block of one arm gave; becomes one journal line."""

    cell_id: str
    arm: str
    block: int
    status: Status
    reason: str | None = None
    samples_s: list[list[float]] = field(default_factory=list)
    """Each sample's cumulative marks."""
    first_call_s: float | None = None
    """The first call of this shape in this process (allocation, kernel selection); never part of the samples."""
    warmup_s: list[list[float]] = field(default_factory=list)
    device_s: float = 0.0
    """Wall time spent on this block, less what compiling and capturing took."""
    notes: dict[str, Any] = field(default_factory=dict)


class BlockJournal(Protocol):
    """What has been measured already, and where new blocks go."""

    def blocks(self, cell_id: str, arm: str) -> dict[int, BlockRecord]:
        """Recorded blocks of an arm by number, whatever their status."""

    def begin(self, cell_id: str, arm: str, block: int) -> None:
        """Be told that a block is under way; nothing of it is known yet."""

    def record(self, block: BlockRecord) -> None:
        """Keep a block for good before returning."""


@dataclass(kw_only=True)
class CellState:
    """One cell while its batch size is measured."""

    cell: TimingCell
    given_up: bool = False
    warm: set[str] = field(default_factory=set)


class CellTimer:
    """Times the cells of one pair and batch size."""

    def __init__(
        self,
        pair: LoadedPair,
        *,
        gammas: Sequence[int],
        precision: PrecisionConfig,
        journal: BlockJournal,
        clock: Clock,
        seed: int,
        progress: Callable[[str], None] | None,
    ) -> None:
        self.pair, self.gammas, self.precision, self.journal = pair, list(gammas), precision, journal
        self.clock, self.seed, self.progress = clock, seed, progress
        self.arms = arm_names(self.gammas, catches_up=pair.ngram is None)

    def converged(self, cell: TimingCell) -> bool:
        """Whether every arm but the prefills has enough blocks and a narrow enough interval."""
        for arm in self.arms:
            if is_prefill(arm):
                continue
            blocks = self.journal.blocks(cell.cell_id, arm)
            if len(blocks) < self.precision.min_blocks:
                return False
            half = worst_half_width(_samples(blocks), self.precision.confidence, round_s=self._round_s(cell, arm))
            if half > self.precision.relative_ci:
                return False
        return True

    def _round_s(self, cell: TimingCell, arm: str) -> float | None:
        """What an arm is held against: its own median (None), but T_decode for lookups, microseconds of a round."""
        if arm != "draft" or self.pair.ngram is None:
            return None
        return float(np.median(_samples(self.journal.blocks(cell.cell_id, "decode"))))

    def measure_block(self, bench: Workbench, state: CellState, arm: str, block: int) -> None:
        """Take one block of samples of an arm and record it."""
        cell, started = state.cell, time.monotonic()
        first_call: float | None = None
        warmups: list[list[float]] = []

        def sample() -> list[float]:
            return bench.sample(arm, cell.context, cell.settings, self.clock)

        self.journal.begin(cell.cell_id, arm, block)
        prefill, before = is_prefill(arm), built()
        if arm not in state.warm:
            first_call = sample()[-1]
            if not prefill:
                warmups.append(sample())
            state.warm.add(arm)
        building = built().since(before)
        with nothing_built(f"{arm} at batch size {cell.batch_size}, context {cell.context}"):
            samples = [sample() for _ in range(1 if prefill else self.precision.block_samples)]
        self.journal.record(
            BlockRecord(
                cell_id=cell.cell_id,
                arm=arm,
                block=block,
                status="ok",
                samples_s=samples,
                first_call_s=first_call,
                warmup_s=warmups,
                device_s=time.monotonic() - started - building.seconds,
                notes={
                    "peak_memory_bytes": peak_memory_bytes(self.pair.target.device),
                    "capacity_target": bench.target_cache.capacity,
                    "capacity_draft": bench.draft_capacity,
                    **self.notes_of(cell, building),
                },
            )
        )
        if self.progress is not None:
            self.progress(arm)

    def notes_of(self, cell: TimingCell, building: Built) -> dict[str, Any]:
        """What a block's notes say besides memory: in a mode other than eager, the slots that forwards cover, and what
        its first calls built.
        """
        if self.pair.target.mode == "eager":
            return {}
        return {
            "bucket": capacity_bucket(cell.context + max(self.gammas) + 1),
            "graphs_built": building.count,
            "build_s": building.seconds,
        }

    def give_up(self, state: CellState, status: Status, reason: str) -> None:
        """Record a reason for every arm of the cell that has no block yet, and leave the cell."""
        state.given_up = True
        for arm in self.arms:
            if not self.journal.blocks(state.cell.cell_id, arm):
                self.journal.record(
                    BlockRecord(cell_id=state.cell.cell_id, arm=arm, block=0, status=status, reason=reason)
                )

    def _free(self) -> None:
        """Give back the memory of what failed, and of buffers that wait for the next cache of their size."""
        free_memory()
        self.pair.release()
        free_memory()

    def spent_s(self, cells: Sequence[TimingCell]) -> float:
        """Seconds already spent on these cells, in this run and the ones it resumes."""
        return sum(
            block.device_s
            for cell in cells
            for arm in self.arms
            for block in self.journal.blocks(cell.cell_id, arm).values()
        )

    def least_blocks(self, arm: str) -> int:
        """Blocks of an arm that are taken whatever they cost; a prefill never has more than its own most."""
        return min(self.precision.min_blocks, PREFILL_BLOCKS) if is_prefill(arm) else self.precision.min_blocks

    def pending(self, state: CellState, arm: str, block: int) -> bool:
        """Whether this block of the arm still has to be measured."""
        if is_prefill(arm) and block >= PREFILL_BLOCKS:
            return False
        return block not in self.journal.blocks(state.cell.cell_id, arm)

    def finished(self, state: CellState) -> bool:
        """Whether a cell needs no further block: given up, recorded as such earlier, or known well enough."""
        if state.given_up:
            return True
        recorded = [b for arm in self.arms for b in self.journal.blocks(state.cell.cell_id, arm).values()]
        if any(block.status != "ok" for block in recorded):
            state.given_up = True
            return True
        return self.converged(state.cell) or self.out_of_budget([state.cell], self.precision.max_cell_seconds)

    def open_bench(self, states: Sequence[CellState], prompts: Sequence[Sequence[int]]) -> Workbench | None:
        """A workbench for the largest context that fits; what does not fit, or fails otherwise, is given up."""
        while todo := [s for s in states if not s.given_up]:
            largest = max(s.cell.context for s in todo)
            self._begin_opening(next(s for s in todo if s.cell.context == largest))
            try:
                with torch.inference_mode():
                    return Workbench(
                        self.pair,
                        prompts,
                        batch_size=todo[0].cell.batch_size,
                        max_context=largest,
                        gamma_max=max(self.gammas),
                        seed=self.seed,
                    )
            except OSError:  # the journal or a file of the model: not this batch size's fault
                raise
            except Exception as error:
                status: Status = "oom" if is_out_of_memory(error) else "failed"
                reason = first_line(error)
            self._free()
            for state in todo:
                if status == "failed" or state.cell.context == largest:
                    self.give_up(state, status, reason)
        return None

    def _begin_opening(self, state: CellState) -> None:
        """Say that memory is taken for a cell, as its next block of the first arm: a death there is its doing."""
        cell, arm = state.cell.cell_id, self.arms[0]
        known = self.journal.blocks(cell, arm)
        self.journal.begin(cell, arm, next(block for block in itertools.count() if block not in known))

    def measure_group(self, cells: Sequence[TimingCell], prompts: Sequence[Sequence[int]]) -> None:
        """Measure all cells of one batch size, interleaved; returns when each is done or out of budget."""
        states = [CellState(cell=cell) for cell in cells]
        pending = [state for state in states if not self.finished(state)]
        if not pending or self.out_of_budget(cells, self.precision.max_seconds):
            return
        bench = self.open_bench(pending, prompts)
        if bench is None:
            return
        for block in range(self.precision.max_blocks):
            if block >= self.precision.min_blocks and self.out_of_budget(cells, self.precision.max_seconds):
                return
            order = np.random.default_rng((self.seed, block))
            for index in order.permutation(len(states)):
                state = states[index]
                if self.finished(state):
                    continue
                for arm in order.permutation(self.arms).tolist():
                    if self.pending(state, arm, block) and not state.given_up:
                        self.guarded(bench, state, states, arm, block)
            if all(self.finished(state) for state in states):
                return

    def out_of_budget(self, cells: Sequence[TimingCell], limit_s: float | None) -> bool:
        """Whether cells have spent their seconds, and each of them has its least number of blocks."""
        return self.has_spent(cells, limit_s) and all(self._has_least(cell) for cell in cells)

    def has_spent(self, cells: Sequence[TimingCell], limit_s: float | None) -> bool:
        """Whether cells have spent their seconds, if those are limited."""
        return limit_s is not None and self.spent_s(cells) >= limit_s

    def _has_least(self, cell: TimingCell) -> bool:
        """Whether a cell has its least number of blocks, or was given up and gets no more."""
        recorded = {arm: self.journal.blocks(cell.cell_id, arm) for arm in self.arms}
        if any(block.status != "ok" for blocks in recorded.values() for block in blocks.values()):
            return True
        return all(len(blocks) >= self.least_blocks(arm) for arm, blocks in recorded.items())

    def guarded(self, bench: Workbench, state: CellState, states: Sequence[CellState], arm: str, block: int) -> None:
        """Measure a block; out of memory or a failure ends this cell (and larger contexts), never the others."""
        try:
            self.measure_block(bench, state, arm, block)
            return
        except OSError:  # the journal could not be written: not this cell's fault
            raise
        except Exception as error:
            status: Status = "oom" if is_out_of_memory(error) else "failed"
            reason = first_line(error)
        self._free()
        self.journal.record(BlockRecord(cell_id=state.cell.cell_id, arm=arm, block=block, status=status, reason=reason))
        self.give_up(state, status, reason)
        if status == "oom":
            for other in states:
                if (
                    not other.given_up
                    and other.cell.chain == state.cell.chain
                    and other.cell.context > state.cell.context
                ):
                    self.give_up(other, "skipped", skip_reason(state.cell))


def _samples(blocks: Mapping[int, BlockRecord]) -> FloatArray:
    """(n, marks) samples of all blocks, in seconds."""
    return np.array([sample for block in blocks.values() for sample in block.samples_s])


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def skip_reason(cell: TimingCell) -> str:
    """Why a larger cell is not tried."""
    return f"out of memory already at batch size {cell.batch_size}, context {cell.context}"


def measure_cells(
    pair: LoadedPair,
    cells: Sequence[TimingCell],
    *,
    gammas: Sequence[int],
    prompts: Sequence[Sequence[int]],
    precision: PrecisionConfig,
    journal: BlockJournal,
    seed: int,
    clock: Clock | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Time every cell of a pair, smallest batch size first; results go to the journal, nothing recorded is repeated.

    ``prompts`` are token ids of the workload; rows are made of them (`specgauge.bench.arms.timing_rows`).
    Raises ValueError when a context does not fit into the models' limits.
    """
    check_contexts(pair, cells, max(gammas))
    timer = CellTimer(
        pair,
        gammas=gammas,
        precision=precision,
        journal=journal,
        clock=clock if clock is not None else clock_for(pair.target.device),
        seed=seed,
        progress=progress,
    )
    measure_groups(timer, cells, prompts, sorted({cell.batch_size for cell in cells}))


def measure_groups(
    timer: CellTimer, cells: Sequence[TimingCell], prompts: Sequence[Sequence[int]], batch_sizes: Iterable[int]
) -> None:
    """Measure the cells of each batch size in turn; those larger than one without memory are skipped."""
    for batch_size in batch_sizes:
        group = [cell for cell in cells if cell.batch_size == batch_size]
        for cell in group:
            smaller = next((c for c in cells if _dominates(cell, c) and _ran_out_of_memory(timer, c)), None)
            if smaller is not None:
                timer.give_up(CellState(cell=cell), "skipped", skip_reason(smaller))
        timer.measure_group(group, prompts)
        free_memory()


def _dominates(larger: TimingCell, smaller: TimingCell) -> bool:
    """Whether a cell needs at least the memory of another, smaller one of the same chain."""
    return (
        larger is not smaller
        and larger.chain == smaller.chain
        and larger.batch_size >= smaller.batch_size
        and larger.context >= smaller.context
    )


def _ran_out_of_memory(timer: CellTimer, cell: TimingCell) -> bool:
    return any(b.status == "oom" for arm in timer.arms for b in timer.journal.blocks(cell.cell_id, arm).values())


def check_contexts(pair: LoadedPair, cells: Sequence[TimingCell], gamma_max: int) -> None:
    """Raise ValueError when a context and a round on top of it exceed what either model takes."""
    largest = max(cell.context for cell in cells)
    for loaded in pair.models:
        check_context(loaded.name, context=largest, gamma_max=gamma_max, max_context=loaded.max_context)
