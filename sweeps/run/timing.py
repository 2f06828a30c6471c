"""The journal as the timing loop sees it, and what a search for γ is told of acceptance.

What failed or was killed in an earlier run is not shown, so that this run measures it again; what fails now is shown,
and so is everything of a cell that is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.search.candidates import SearchObjective
from specgauge.sweeps.analysis.settings import RunSetting, run_settings
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.run.budget import BlockPace
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import SETTLED, JournalLine

if TYPE_CHECKING:
    from specgauge.bench.timing.blocks import BlockRecord, Status

TIMING_BLOCKS = "blocks of timing"
"""As what was left out is told."""
REPLICATES = 200
"""Draws of prompts that say which γ others could make best."""


class OutOfTimeError(TimeoutError):
    """A block was to begin after the seconds were spent."""


class BlockLog:
    """Reads and writes the blocks of a pair's cells (`specgauge.bench.timing.blocks.BlockJournal`)."""

    def __init__(self, session: Session) -> None:
        self._session, self._journal = session, session.run.journal
        self._axes = {cell.id: cell.axes for cell in session.cells}
        self._notes = {} if session.pair.threads is None else {"threads": session.pair.threads}
        self._blocks: dict[tuple[str, str], dict[int, BlockRecord]] = {}
        self._pace = BlockPace()
        self._running: tuple[str, float] | None = None
        """The cell of the block that began last, and when."""
        self.until = session.deadline
        """When no further block begins."""
        for line in self._journal.latest.values():
            if line.status in SETTLED or session.skips("timing", line.cell):
                self._show(line)

    def _show(self, line: JournalLine) -> None:
        self._blocks.setdefault((line.cell, line.arm), {})[line.block] = _block(line)

    def blocks(self, cell_id: str, arm: str) -> dict[int, BlockRecord]:
        """The recorded blocks of an arm, by number."""
        return self._blocks.get((cell_id, arm), {})

    def of(self, cell: Cell) -> list[BlockRecord]:
        """The recorded blocks of all arms of a cell."""
        return [block for arm in self._session.arms for block in self.blocks(cell.id, arm).values()]

    def begin(self, cell_id: str, arm: str, block: int) -> None:
        """Say that a block is running, its first arm named.

        Raises:
            OutOfTimeError: none may begin any more: by the cell's last one there is no time for it.
        """
        now_s = self.until.now_s
        if self._running is not None:
            cell, since_s = self._running
            self._pace.took(cell, now_s - since_s)
        if self._session.leaves_out(TIMING_BLOCKS, self.until, takes_s=self._pace.expected_s(cell_id)):
            raise OutOfTimeError("no further block may begin")
        self._running = (cell_id, now_s)
        self.begin_arm(cell_id, arm, block)

    def begin_arm(self, cell_id: str, arm: str, block: int) -> None:
        """Say which arm is measured: a death there is its doing."""
        self._session.mark.block(cell_id, arm, block)

    def record(self, block: BlockRecord) -> None:
        """Keep a block for good.

        Raises:
            StorageError: the disk refused it.
        """
        record = asdict(block)
        axes = self._axes[record.pop("cell_id")]
        line = self._journal.append({"axes": axes, **record, "notes": {**block.notes, **self._notes}})
        self._session.outcome.failed |= line.status == "failed"
        self._show(line)

    def give_up(self, cells: Iterable[Cell], status: Status, reason: str) -> None:
        """Record why every arm of `cells` that has no block has none."""
        from specgauge.bench.timing.blocks import BlockRecord

        for cell in cells:
            for arm in self._session.arms:
                if not self.blocks(cell.id, arm):
                    self.record(BlockRecord(cell_id=cell.id, arm=arm, block=0, status=status, reason=reason))


def _block(line: JournalLine) -> BlockRecord:
    from specgauge.bench.timing.blocks import BlockRecord

    left_out = ("cell_id", "disturbance")  # which no loop asks for
    content = {one.name: getattr(line, one.name) for one in fields(BlockRecord) if one.name not in left_out}
    return BlockRecord(cell_id=line.cell, **content | {"device_s": line.device_s or 0.0})


def search_objectives(run: Run, pair: str, cells: Iterable[Cell]) -> dict[str, list[SearchObjective]]:
    """The questions of every cell of a pair for which acceptance is recorded, by the cell's id.

    One for every setting that the cell serves. A greedy draft of a drawing setting is searched for at the draft times
    of the setting's own chain, which are a little longer; its answer takes the right ones. ε stays out of the search,
    as it does of what is decoded end to end.

    Raises:
        ValueError: an acceptance file is damaged.
    """
    found = list(run_settings(run, {}, pairs=[pair]))
    questions: dict[str, list[SearchObjective]] = {}
    for cell in cells:
        own = [(setting, setting.acceptance_at(cell.context)) for setting in found if setting.chain == cell.chain]
        known = [(setting, accepted) for setting, accepted in own if accepted is not None and accepted.is_known.any()]
        if known:
            questions[cell.id] = [_question(setting, accepted, several=len(known) > 1) for setting, accepted in known]
    return questions


def _question(setting: RunSetting, acceptance: Acceptance, *, several: bool) -> SearchObjective:
    key = setting.key
    label = f"sampling {key.sampling}, {key.draft_sampling} draft, {key.acceptance_rule} rule"
    return SearchObjective(acceptance=acceptance.first(1 + REPLICATES), label=label if several else "")
