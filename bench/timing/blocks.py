"""Blocks of samples: the cell and arm one belongs to, what it holds, and when there are enough.

    journal.record(BlockRecord(cell_id="0f3a", arm="verify:3", block=0, status="ok", samples_s=[[0.0123], [0.0121]]))
    journal.blocks("0f3a", "verify:3")  →  {0: BlockRecord(…)}

A block without samples says why there are none: its status and its reason.  A `StoppingRule` says when the blocks of a
cell are enough: every median is known well, or the seconds for more are spent.

    stopping = StoppingRule(arms=arm_names([1, 2, 3]), precision=precision, journal=journal, drafts_by_lookup=False)
    stopping.converged(cell) or stopping.out_of_budget([cell], precision.max_cell_seconds)

All of it follows from the journal. A cell is not out of budget before the least blocks of every arm are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from specgauge.configs.schema import PrecisionConfig
from specgauge.model.arms import PREFILL_BLOCKS, is_prefill
from specgauge.model.checks import FloatArray
from specgauge.model.sampling import SamplingSettings
from specgauge.model.stats.disturbance import Disturbance
from specgauge.model.stats.medians import worst_half_width

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
    disturbance: Disturbance | None = None
    """Of the samples."""


class BlockJournal(Protocol):
    """What has been measured already, and where new blocks go."""

    def blocks(self, cell_id: str, arm: str) -> dict[int, BlockRecord]:
        """Recorded blocks of an arm by number, whatever their status."""

    def begin(self, cell_id: str, arm: str, block: int) -> None:
        """Be told that a block is running, its first arm named; may raise where none may begin any more."""

    def begin_arm(self, cell_id: str, arm: str, block: int) -> None:
        """Be told which arm of the running block is sampled next."""

    def record(self, block: BlockRecord) -> None:
        """Keep a block for good before returning."""


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """What the cells of one pair need at least, and may take at most."""

    arms: Sequence[str]
    precision: PrecisionConfig
    journal: BlockJournal
    drafts_by_lookup: bool
    """Whether drafts are looked up in the text, instead of a model writing them."""

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
        """What an arm is compared with: its own median (None), but T_decode for lookups and transfers, microseconds."""
        if arm != "transfer" and (arm != "draft" or not self.drafts_by_lookup):
            return None
        return float(np.median(_samples(self.journal.blocks(cell.cell_id, "decode"))))

    def least_blocks(self, arm: str) -> int:
        """Blocks of an arm that are taken whatever they cost; a prefill never has more than its own most."""
        return min(self.precision.min_blocks, PREFILL_BLOCKS) if is_prefill(arm) else self.precision.min_blocks

    def recorded(self, cell: TimingCell) -> list[BlockRecord]:
        """Every block of a cell, whatever its status."""
        return [block for arm in self.arms for block in self.journal.blocks(cell.cell_id, arm).values()]

    def out_of_budget(self, cells: Sequence[TimingCell], limit_s: float | None) -> bool:
        """Whether cells have spent their seconds, and each of them has its least number of blocks."""
        return self.has_spent(cells, limit_s) and all(self._has_least(cell) for cell in cells)

    def has_spent(self, cells: Sequence[TimingCell], limit_s: float | None) -> bool:
        """Whether cells have spent their seconds, in this run and the ones it resumes, if those are limited."""
        return limit_s is not None and sum(block.device_s for cell in cells for block in self.recorded(cell)) >= limit_s

    def _has_least(self, cell: TimingCell) -> bool:
        """Whether a cell has its least number of blocks, or was given up and gets no more."""
        if any(block.status != "ok" for block in self.recorded(cell)):
            return True
        return all(len(self.journal.blocks(cell.cell_id, arm)) >= self.least_blocks(arm) for arm in self.arms)


def _samples(blocks: Mapping[int, BlockRecord]) -> FloatArray:
    """(n, marks) samples of all blocks, in seconds."""
    return np.array([sample for block in blocks.values() for sample in block.samples_s])
