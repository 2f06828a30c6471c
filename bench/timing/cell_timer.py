"""Time the cells of one pair: arms interleaved in blocks, until every median is known well enough.

A cell is (chain, batch size, context) of a loaded pair.  Cells of one batch size share caches and are interleaved, a
block at a time: a sample of each arm after the other, in an order shuffled by block, so that a machine that slows down
hits all arms alike.  A cell stops when the interval of every arm's median is narrower than ``precision.relative_ci`` of
it, or when its blocks, its own seconds or those of its batch size are spent.

    measure_cells(pair, cells, gammas=[1, 2, 3], prompts=prompts, precision=precision, journal=journal, seed=0)

First calls and one warm-up of a shape are kept apart, and a compile among the samples fails the block.  A sample during
which other programs took the processor is taken again, as long as that helps; what stays disturbed is counted in the
block's `disturbance`.  Out of memory is a result: the cell's arms are recorded as ``oom``, larger cells of the same
chain as ``skipped``; a cell that fails otherwise is given up alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from specgauge.bench.cache.cache import capacity_bucket
from specgauge.bench.device import free_memory, is_out_of_memory, on_cpu, peak_memory_bytes
from specgauge.bench.models.pair import LoadedPair
from specgauge.bench.models.static_graphs import Compilation, compiled_so_far, no_compilation
from specgauge.bench.timing.arm_runner import ArmRunner
from specgauge.bench.timing.blocks import BlockJournal, BlockRecord, Status, StoppingRule, TimingCell, first_line
from specgauge.bench.timing.clock import Clock, clock_for, undisturbed, watched
from specgauge.bench.timing.gpu_state import GpuWatch, gpu_watch
from specgauge.bench.timing.neighbours import Retakes, calm
from specgauge.configs.schema import PrecisionConfig, check_context
from specgauge.model.arms import PREFILL_BLOCKS, arm_names, is_prefill
from specgauge.model.stats.disturbance import Disturbance, added_up


@dataclass(kw_only=True)
class CellState:
    """One cell while its batch size is measured."""

    cell: TimingCell
    given_up: bool = False
    warm: set[str] = field(default_factory=set)
    sampled: str = ""
    """The arm that was sampled last."""
    retakes: Retakes = field(default_factory=Retakes)


@dataclass(kw_only=True)
class _Taken:
    """What one arm's block holds so far."""

    samples_s: list[list[float]] = field(default_factory=list)
    warmups_s: list[list[float]] = field(default_factory=list)
    first_call_s: float | None = None
    compilation: Compilation = field(default_factory=Compilation)
    device_s: float = 0.0
    disturbances: list[Disturbance] = field(default_factory=list)
    """Of each of `samples_s`."""


@dataclass(kw_only=True)
class CellTimer:
    """Times the cells of one pair."""

    pair: LoadedPair
    gammas: Sequence[int]
    precision: PrecisionConfig
    journal: BlockJournal
    clock: Clock
    seed: int
    progress: Callable[[str], None] | None = None
    sends_distributions: bool = True
    """Whether what a draft on another device drew from goes to the target with its drafts, as the ratio rule needs."""
    catches_up: bool = field(init=False)
    """Whether a model drafts; lookups have nothing to catch up with."""
    arms: Sequence[str] = field(init=False)
    stopping: StoppingRule = field(init=False)
    read_gpus: GpuWatch = field(init=False)

    def __post_init__(self) -> None:
        """Derive the arms and what ends a cell."""
        self.catches_up = self.pair.drafts_with_model
        self.arms = arm_names(self.gammas, catches_up=self.catches_up, transfers=self.pair.transfers)
        self.stopping = StoppingRule(
            arms=self.arms, precision=self.precision, journal=self.journal, drafts_by_lookup=not self.catches_up
        )
        self.read_gpus = gpu_watch(self.pair.devices)

    def measure_block(self, bench: ArmRunner, state: CellState, arms: Sequence[str], block: int) -> None:
        """Take one block of samples of several arms of a cell, interleaved, and record it.

        What slows the machine down for a moment thus slows them all down, and the ratio of two arms keeps its value.
        """
        cell, taken = state.cell, {arm: _Taken() for arm in arms}
        self.journal.begin(cell.cell_id, arms[0], block)
        try:
            for turn in range(self.precision.block_samples):
                for arm in arms:
                    if turn and is_prefill(arm):
                        continue
                    state.sampled = arm
                    self.journal.begin_arm(cell.cell_id, arm, block)
                    self._warm_up(bench, state, arm, taken[arm])
                    with no_compilation(f"{arm} at batch size {cell.batch_size}, context {cell.context}"):
                        sample, disturbance = self._calm_sample(bench, state, arm, taken[arm])
                    taken[arm].samples_s.append(sample)
                    taken[arm].disturbances.append(disturbance)
        finally:  # what fails in one arm, or stops them all, does not cost the others what they have
            gpus = self.read_gpus()
            for arm, found in taken.items():
                whole = 1 if is_prefill(arm) else self.precision.block_samples
                if found.samples_s and (arm != state.sampled or len(found.samples_s) == whole):
                    self._record(bench, cell, arm, block, found, gpus)

    def _calm_sample(
        self, bench: ArmRunner, state: CellState, arm: str, taken: _Taken
    ) -> tuple[list[float], Disturbance]:
        """One sample, taken again where other programs disturbed it and that may help."""

        def sample() -> list[float]:
            marks, seconds = undisturbed(partial(self._sample, bench, state, arm))
            taken.device_s += seconds
            return marks

        return calm(sample, state.retakes, on_cpu=on_cpu(self.pair.devices))

    def _warm_up(self, bench: ArmRunner, state: CellState, arm: str, taken: _Taken) -> None:
        """First call and warm-up of an arm that this process has not run in this cell; prefills have the call alone."""
        if arm in state.warm:
            return
        before = compiled_so_far()
        (first, seconds), was_stopped = watched(partial(self._sample, bench, state, arm))
        if not was_stopped:  # it cannot be taken again: there is one first call
            taken.first_call_s, taken.device_s = first[-1], seconds
        if not is_prefill(arm):
            warm_up, seconds = undisturbed(partial(self._sample, bench, state, arm))
            taken.warmups_s.append(warm_up)
            taken.device_s += seconds
        taken.compilation = compiled_so_far().since(before)
        state.warm.add(arm)

    def _sample(self, bench: ArmRunner, state: CellState, arm: str) -> tuple[list[float], float]:
        """One sample of an arm, and the seconds that it took all in all, but for those that compiled something."""
        started, before = time.monotonic(), compiled_so_far()
        sample = bench.sample(arm, state.cell.context, state.cell.settings, self.clock)
        return sample, time.monotonic() - started - compiled_so_far().since(before).seconds

    def _record(
        self, bench: ArmRunner, cell: TimingCell, arm: str, block: int, taken: _Taken, gpus: Disturbance
    ) -> None:
        self.journal.record(
            BlockRecord(
                cell_id=cell.cell_id,
                arm=arm,
                block=block,
                status="ok",
                samples_s=taken.samples_s,
                first_call_s=taken.first_call_s,
                warmup_s=taken.warmups_s,
                device_s=taken.device_s,
                notes={
                    "peak_memory_bytes": peak_memory_bytes(self.pair.devices),
                    **bench.capacities,
                    **self.notes_of(cell, taken.compilation),
                },
                disturbance=added_up(taken.disturbances).on_gpus(gpus, len(taken.samples_s)),
            )
        )
        if self.progress is not None:
            self.progress(arm)

    def notes_of(self, cell: TimingCell, compilation: Compilation) -> dict[str, Any]:
        """What a block's notes say besides memory: unless eager, slots that forwards cover, and what was compiled."""
        if self.pair.target.mode == "eager":
            return {}
        return {
            "bucket": capacity_bucket(cell.context + max(self.gammas) + 1),
            "graphs_built": compilation.count,
            "build_s": compilation.seconds,
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

    def pending(self, state: CellState, arm: str, block: int) -> bool:
        """Whether this block of the arm still has to be measured."""
        if is_prefill(arm) and block >= PREFILL_BLOCKS:
            return False
        return block not in self.journal.blocks(state.cell.cell_id, arm)

    def finished(self, state: CellState) -> bool:
        """Whether a cell needs no further block: given up, recorded as such earlier, or known well enough."""
        if state.given_up:
            return True
        if any(block.status != "ok" for block in self.stopping.recorded(state.cell)):
            state.given_up = True
            return True
        cell, stopping = state.cell, self.stopping
        return stopping.converged(cell) or stopping.out_of_budget([cell], self.precision.max_cell_seconds)

    def open_bench(self, states: Sequence[CellState], prompts: Sequence[Sequence[int]]) -> ArmRunner | None:
        """A workbench for the largest context that fits; what does not fit, or fails otherwise, is given up."""
        while todo := [s for s in states if not s.given_up]:
            largest = max(s.cell.context for s in todo)
            self._begin_opening(next(s for s in todo if s.cell.context == largest))
            try:
                with torch.inference_mode():
                    return ArmRunner(
                        self.pair,
                        prompts,
                        batch_size=todo[0].cell.batch_size,
                        max_context=largest,
                        gamma_max=max(self.gammas),
                        seed=self.seed,
                        sends_distributions=self.sends_distributions,
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

    def measure(
        self, cells: Sequence[TimingCell], prompts: Sequence[Sequence[int]], batch_sizes: Iterable[int]
    ) -> None:
        """Measure the cells of one batch size after the other; those larger than one without memory are skipped.

        Raises:
            ValueError: a context does not fit into the models' limits.
        """
        check_contexts(self.pair, cells, max(self.gammas))
        for batch_size in batch_sizes:
            group = [cell for cell in cells if cell.batch_size == batch_size]
            for cell in group:
                smaller = next((c for c in cells if _dominates(cell, c) and self._ran_out_of_memory(c)), None)
                if smaller is not None:
                    self.give_up(CellState(cell=cell), "skipped", skip_reason(smaller))
            self.measure_group(group, prompts)
            free_memory()

    def _ran_out_of_memory(self, cell: TimingCell) -> bool:
        return any(block.status == "oom" for block in self.stopping.recorded(cell))

    def measure_group(self, cells: Sequence[TimingCell], prompts: Sequence[Sequence[int]]) -> None:
        """Measure all cells of one batch size, interleaved; returns when each is done or out of budget."""
        states = [CellState(cell=cell) for cell in cells]
        pending = [state for state in states if not self.finished(state)]
        if not pending or self.stopping.out_of_budget(cells, self.precision.max_seconds):
            return
        bench = self.open_bench(pending, prompts)
        if bench is None:
            return
        for block in range(self.precision.max_blocks):
            if block >= self.precision.min_blocks and self.stopping.out_of_budget(cells, self.precision.max_seconds):
                return
            order = np.random.default_rng((self.seed, block))
            for index in order.permutation(len(states)):
                state = states[index]
                if self.finished(state):
                    continue
                arms = [arm for arm in order.permutation(self.arms).tolist() if self.pending(state, arm, block)]
                if arms:
                    self.guarded(bench, state, states, arms, block)
            if all(self.finished(state) for state in states):
                return

    def guarded(
        self, bench: ArmRunner, state: CellState, states: Sequence[CellState], arms: Sequence[str], block: int
    ) -> None:
        """Measure a block; out of memory or a failure ends this cell (and larger contexts), never the others."""
        state.sampled = arms[0]
        try:
            self.measure_block(bench, state, arms, block)
            return
        except OSError:  # the journal could not be written: not this cell's fault
            raise
        except Exception as error:
            status: Status = "oom" if is_out_of_memory(error) else "failed"
            reason = first_line(error)
        self._free()
        self.journal.record(
            BlockRecord(cell_id=state.cell.cell_id, arm=state.sampled, block=block, status=status, reason=reason)
        )
        self.give_up(state, status, reason)
        if status == "oom":
            for other in states:
                if not other.given_up and _dominates(other.cell, state.cell):
                    self.give_up(other, "skipped", skip_reason(state.cell))


def skip_reason(cell: TimingCell) -> str:
    """Why a larger cell is not tried."""
    return f"out of memory already at batch size {cell.batch_size}, context {cell.context}"


def _dominates(larger: TimingCell, smaller: TimingCell) -> bool:
    """Whether a cell needs at least the memory of another, smaller one of the same chain."""
    return (
        larger is not smaller
        and larger.chain == smaller.chain
        and larger.batch_size >= smaller.batch_size
        and larger.context >= smaller.context
    )


def check_contexts(pair: LoadedPair, cells: Sequence[TimingCell], gamma_max: int) -> None:
    """Refuse contexts before anything is timed.

    Raises:
        ValueError: a context and a round on top of it exceed what either model takes.
    """
    largest = max(cell.context for cell in cells)
    for loaded in pair.models:
        check_context(loaded.name, context=largest, tokens=gamma_max + 1, max_context=loaded.max_context)


def measure_cells(
    pair: LoadedPair,
    cells: Sequence[TimingCell],
    *,
    prompts: Sequence[Sequence[int]],
    batch_sizes: Iterable[int] | None = None,
    clock: Clock | None = None,
    **options: Any,
) -> None:
    """Time the cells of a pair, smallest batch size first; results go to the journal, nothing recorded is repeated.

    ``prompts`` are token ids, of which rows are made (`timing_rows`); ``batch_sizes`` are those timed now, all of them
    by default; ``options`` are the fields of `CellTimer`.

    Raises:
        ValueError: a context does not fit into the models' limits.
    """
    timer = CellTimer(pair=pair, clock=clock or clock_for(*pair.devices), **options)
    timer.measure(cells, prompts, sorted({cell.batch_size for cell in cells} if batch_sizes is None else batch_sizes))
