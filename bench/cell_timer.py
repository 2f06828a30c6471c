"""Takes the blocks of the cells of one batch size, in turns, and contains what goes wrong in one of them.

    timer.measure_group(cells, prompts)        # every cell known well enough, out of budget, or given up with a reason

Each block is one arm of one cell: first calls and one warm-up of a shape are kept apart, and a compile among the
samples fails the block.  A cell that fails is given up alone; one that runs out of memory takes the larger contexts of
its chain along.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from specgauge.bench.arms import Workbench
from specgauge.bench.blocks import BlockJournal, BlockRecord, Status, TimingCell, first_line
from specgauge.bench.builds import Built, built, nothing_built
from specgauge.bench.cache import capacity_bucket
from specgauge.bench.clock import Clock
from specgauge.bench.memory import free_memory, is_out_of_memory, peak_memory_bytes
from specgauge.bench.models import LoadedPair
from specgauge.bench.stopping import StoppingRule
from specgauge.bench.suspension import undisturbed
from specgauge.configs.precision import PrecisionConfig
from specgauge.model.arms import PREFILL_BLOCKS, arm_names, is_prefill


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
        self.stopping = StoppingRule(
            arms=self.arms, precision=precision, journal=journal, looks_up=pair.ngram is not None
        )

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
            samples = undisturbed(lambda: [sample() for _ in range(1 if prefill else self.precision.block_samples)])
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
        cell, stopping = state.cell, self.stopping
        return stopping.converged(cell) or stopping.out_of_budget([cell], self.precision.max_cell_seconds)

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
                for arm in order.permutation(self.arms).tolist():
                    if self.pending(state, arm, block) and not state.given_up:
                        self.guarded(bench, state, states, arm, block)
            if all(self.finished(state) for state in states):
                return

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


def skip_reason(cell: TimingCell) -> str:
    """Why a larger cell is not tried."""
    return f"out of memory already at batch size {cell.batch_size}, context {cell.context}"
