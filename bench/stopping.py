"""When the blocks of a cell are enough: every median is known well, or the seconds for more are spent.

    stopping = StoppingRule(arms=arm_names([1, 2, 3]), precision=precision, journal=journal, looks_up=False)
    stopping.converged(cell) or stopping.out_of_budget([cell], precision.max_cell_seconds)

All of it follows from the journal. A cell is not out of budget before the least blocks of every arm are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specgauge.bench.blocks import BlockJournal, BlockRecord, TimingCell
from specgauge.configs.schema import PrecisionConfig
from specgauge.model.arms import PREFILL_BLOCKS, is_prefill
from specgauge.model.checks import FloatArray
from specgauge.model.precision import worst_half_width


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """What the cells of one pair need at least, and may take at most."""

    arms: Sequence[str]
    precision: PrecisionConfig
    journal: BlockJournal
    looks_up: bool
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
        """What an arm is held against: its own median (None), but T_decode for lookups, microseconds of a round."""
        if arm != "draft" or not self.looks_up:
            return None
        return float(np.median(_samples(self.journal.blocks(cell.cell_id, "decode"))))

    def least_blocks(self, arm: str) -> int:
        """Blocks of an arm that are taken whatever they cost; a prefill never has more than its own most."""
        return min(self.precision.min_blocks, PREFILL_BLOCKS) if is_prefill(arm) else self.precision.min_blocks

    def spent_s(self, cells: Sequence[TimingCell]) -> float:
        """Seconds already spent on these cells, in this run and the ones it resumes."""
        return sum(
            block.device_s
            for cell in cells
            for arm in self.arms
            for block in self.journal.blocks(cell.cell_id, arm).values()
        )

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


def _samples(blocks: Mapping[int, BlockRecord]) -> FloatArray:
    """(n, marks) samples of all blocks, in seconds."""
    return np.array([sample for block in blocks.values() for sample in block.samples_s])
