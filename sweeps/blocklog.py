"""The journal as the timing loop sees it: blocks by cell and arm.

What failed or was killed in an earlier run is not shown, so that this run measures it again; what fails now is shown.
Cells that are to be left alone show everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from specgauge.sweeps.deadline import OutOfTimeError
from specgauge.sweeps.journal import Journal
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.records import SETTLED, JournalLine
from specgauge.sweeps.working import WorkingMark

if TYPE_CHECKING:
    from specgauge.bench.blocks import BlockRecord, Status


class BlockLog:
    """Reads and writes the blocks of the planned cells (`specgauge.bench.blocks.BlockJournal`)."""

    def __init__(
        self,
        journal: Journal,
        cells: Iterable[Cell],
        *,
        mark: WorkingMark,
        left_alone: Iterable[str] = (),
        notes: Mapping[str, Any] | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take up what the open `journal` holds of `cells`; `mark` says where work is.

        notes: what every new block carries; is_over: whether no further block may begin.
        """
        self._journal, self._mark, alone = journal, mark, set(left_alone)
        self._notes, self._is_over = dict(notes or {}), is_over
        self._cells = {cell.id: cell for cell in cells}
        self._blocks: dict[tuple[str, str], dict[int, BlockRecord]] = {}
        self.has_failures = False
        for line in journal.latest.values():
            if line.status in SETTLED or line.cell in alone:
                self._show(line)

    def _show(self, line: JournalLine) -> None:
        self._blocks.setdefault((line.cell, line.arm), {})[line.block] = _block(line)

    def blocks(self, cell_id: str, arm: str) -> dict[int, BlockRecord]:
        """The recorded blocks of an arm, by number."""
        return self._blocks.get((cell_id, arm), {})

    def spent_s(self, cell_id: str, arms: Iterable[str]) -> float:
        """Seconds that the recorded blocks of these arms took."""
        return sum(block.device_s for arm in arms for block in self.blocks(cell_id, arm).values())

    def begin(self, cell_id: str, arm: str, block: int) -> None:
        """Say that a block is under way, its first arm named.

        Raises:
            OutOfTimeError: none may begin any more.
        """
        if self._is_over():
            raise OutOfTimeError("no further block may begin")
        self.turn(cell_id, arm, block)

    def turn(self, cell_id: str, arm: str, block: int) -> None:
        """Say whose turn it is: a death there is its doing."""
        self._mark.block(cell_id, arm, block)

    def record(self, block: BlockRecord) -> None:
        """Keep a block for good.

        Raises:
            StorageError: the disk refused it.
        """
        line = self._journal.append(
            {
                "axes": self._cells[block.cell_id].axes,
                "arm": block.arm,
                "block": block.block,
                "status": block.status,
                "reason": block.reason,
                "samples_s": block.samples_s,
                "first_call_s": block.first_call_s,
                "warmup_s": block.warmup_s,
                "device_s": block.device_s,
                "notes": {**block.notes, **self._notes},
            }
        )
        self.has_failures |= line.status == "failed"
        self._show(line)

    def give_up(self, cells: Iterable[Cell], arms: Iterable[str], status: Status, reason: str) -> None:
        """Record why every arm of `cells` that has no block has none."""
        from specgauge.bench.blocks import BlockRecord

        names = tuple(arms)
        for cell in cells:
            for arm in names:
                if not self.blocks(cell.id, arm):
                    self.record(BlockRecord(cell_id=cell.id, arm=arm, block=0, status=status, reason=reason))


def _block(line: JournalLine) -> BlockRecord:
    from specgauge.bench.blocks import BlockRecord

    return BlockRecord(
        cell_id=line.cell,
        arm=line.arm,
        block=line.block,
        status=line.status,
        reason=line.reason,
        samples_s=[list(sample) for sample in line.samples_s],
        first_call_s=line.first_call_s,
        warmup_s=[list(sample) for sample in line.warmup_s],
        device_s=line.device_s or 0.0,
        notes=dict(line.notes),
    )
