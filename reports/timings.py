"""How well every timed part is known: its median, the half-width of its interval, drift, and what went wrong.

Samples of all blocks are pooled; a `draft` sample is a chain, whose length is the whole of it and whose half-width is
that of its worst mark, as when it was measured. Output: one `PartTiming` per planned (cell, arm).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from specgauge.model.arms import is_prefill
from specgauge.model.provenance import finite_or_none
from specgauge.model.stats.medians import drift, worst_half_width
from specgauge.reports.records import Place
from specgauge.sweeps.analysis.timings import ArmTimings, CellTimings
from specgauge.sweeps.plan import Cell


@dataclass(frozen=True, kw_only=True)
class PartTiming:
    """One arm of one planned cell over all its blocks; times in seconds, unknown None."""

    cell: Cell
    arm: str
    status: str
    """`ok` where there are samples, else `oom`, `skipped`, `failed`, `killed` or `unmeasured`."""
    reason: str
    samples: int
    blocks: int
    median_s: float | None
    """Of the last mark."""
    relative_half_width: float | None
    """Half the interval of the median over the median, the worst mark's; None with too few samples."""
    first_call_s: float | None
    drift: float | None
    """Median of the later half of the samples over that of the earlier half, minus one; None with too few."""

    @property
    def place(self) -> Place:
        """Batch size and context of the cell."""
        return Place(self.cell.batch_size, self.cell.context)

    @property
    def is_prefill(self) -> bool:
        """Prefills are timed a fixed number of times and do not enter the speed-up of a round."""
        return is_prefill(self.arm)


def part_timings(cells: Iterable[CellTimings], confidence: float) -> list[PartTiming]:
    """Every planned part of `cells`, in order; `confidence` is that of the intervals."""
    return [_part(one.cell, arm, confidence) for one in cells for arm in one.arms.values()]


def arm_words(arm: str) -> str:
    """The arm in the report's symbols."""
    name, _, gamma = arm.partition(":")
    words = {
        "decode": "T_decode",
        "draft": "C(γ_max), draft chain",
        "draft_catch_up": "first draft step, two tokens",
        "verify": f"T_verify({gamma})",
        "prefill_target": "prefill, target",
        "prefill_draft": "prefill, draft",
    }
    return words[name]


def _part(cell: Cell, timings: ArmTimings, confidence: float) -> PartTiming:
    samples = timings.samples_s
    last = samples[:, -1]
    return PartTiming(
        cell=cell,
        arm=timings.arm,
        status=timings.status,
        reason=timings.reason,
        samples=last.size,
        blocks=len(timings.blocks),
        median_s=float(np.median(last)) if last.size else None,
        relative_half_width=finite_or_none(worst_half_width(samples, confidence)),
        first_call_s=timings.first_call_s,
        drift=drift(timings.samples_as_taken_s[:, -1]),
    )
