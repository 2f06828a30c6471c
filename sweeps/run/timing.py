"""The journal as the timing loop sees it, and what a search for γ is told of acceptance.

What failed or was killed in an earlier run is not shown, so that this run measures it again; what fails now is shown.
Cells that are to be left alone show everything.

What a search for γ is told of acceptance: the questions of each cell, one for every way of judging that it serves.

    questions = search_questions(Run.open(path), pair.name, cells)         # by the cell's id; none without acceptance

A greedy draft of a drawing setting is searched for at the draft times of the setting's own chain, which are a little
longer; its answer takes the right ones. ε stays out of the search, as it does of what is decoded end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.search.candidates import SearchQuestion
from specgauge.sweeps.analysis.settings import RunSetting, run_settings
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.run.limits import OutOfTimeError
from specgauge.sweeps.store.checkpoint import Checkpoint
from specgauge.sweeps.store.journal import Journal
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import SETTLED, JournalLine

if TYPE_CHECKING:
    from specgauge.bench.timing.blocks import BlockRecord, Status


class BlockLog:
    """Reads and writes the blocks of the planned cells (`specgauge.bench.timing.blocks.BlockJournal`)."""

    def __init__(
        self,
        journal: Journal,
        cells: Iterable[Cell],
        *,
        mark: Checkpoint,
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
        from specgauge.bench.timing.blocks import BlockRecord

        names = tuple(arms)
        for cell in cells:
            for arm in names:
                if not self.blocks(cell.id, arm):
                    self.record(BlockRecord(cell_id=cell.id, arm=arm, block=0, status=status, reason=reason))


def _block(line: JournalLine) -> BlockRecord:
    from specgauge.bench.timing.blocks import BlockRecord

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


REPLICATES = 200
"""Draws of prompts that say which γ others could make best."""


def search_questions(run: Run, pair: str, cells: Iterable[Cell]) -> dict[str, list[SearchQuestion]]:
    """The questions of every cell of a pair for which acceptance is recorded, by the cell's id.

    Raises:
        ValueError: an acceptance file is damaged.
    """
    found = list(run_settings(run, {}, pairs=[pair]))
    questions: dict[str, list[SearchQuestion]] = {}
    for cell in cells:
        own = [(setting, setting.acceptance_at(cell.context)) for setting in found if setting.chain == cell.chain]
        known = [(setting, accepted) for setting, accepted in own if accepted is not None and accepted.is_known.any()]
        if known:
            questions[cell.id] = [_question(setting, accepted, several=len(known) > 1) for setting, accepted in known]
    return questions


def _question(setting: RunSetting, acceptance: Acceptance, *, several: bool) -> SearchQuestion:
    words = [
        f"sampling {setting.sampling}",
        f"{setting.key.draft_sampling} draft",
        f"{setting.key.acceptance_rule} rule",
    ]
    few = replace(acceptance, tokens_per_round=acceptance.tokens_per_round[: 1 + REPLICATES])
    return SearchQuestion(acceptance=few, label=", ".join(words) if several else "")
