"""Blocks of samples: the cell and arm one belongs to, what it holds, and the journal it is kept in.

    journal.record(BlockRecord(cell_id="0f3a", arm="verify:3", block=0, status="ok", samples_s=[[0.0123], [0.0121]]))
    journal.blocks("0f3a", "verify:3")  →  {0: BlockRecord(…)}

A block without samples says why there are none: its status and its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

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
        """Be told that a block is under way, its first arm named; may raise where none may begin any more."""

    def turn(self, cell_id: str, arm: str, block: int) -> None:
        """Be told whose turn it is in the block under way."""

    def record(self, block: BlockRecord) -> None:
        """Keep a block for good before returning."""


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
