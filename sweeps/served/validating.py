"""Run what was recommended: the γ of the answers, its neighbours and plain decoding, in blocks of their own.

    await ServedValidation(session, log, load, visits).run(recommended_gammas(run, pair))

Its blocks are rows of served.jsonl whose purpose is validation: no cost and no acceptance is made of them, so what they
say of S is told by other requests than those that the prediction follows from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from specgauge.sweeps.run.budget import BlockPace, Deadline
from specgauge.sweeps.run.decoded_cells import ValidationCell, validation_cells
from specgauge.sweeps.run.progress import Limits
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.served.blocks import served_block
from specgauge.sweeps.served.load import Load
from specgauge.sweeps.served.servers import ServedArm, Visit
from specgauge.sweeps.store.schema import DecodedKey
from specgauge.sweeps.store.served import ServedLog, ServedRow

BLOCKS = 4
"""Of each arm, for each repetition that is asked for; half of them in each visit of a server that is started."""
Visits = Callable[[Sequence[int], int], Iterable[Visit]]
"""The visits in which some γ take so many blocks."""


class ServedValidation:
    """The validation of one pair; `validate` of the configuration says where."""

    def __init__(self, session: Session, log: ServedLog, load: Load, visits: Visits) -> None:
        assert session.config.validation is not None
        self._session, self._config, self._asked = session, session.config, session.config.validation
        self._log, self._load, self._visits = log, load, visits
        self._pace = BlockPace()
        self._until = Deadline(self._asked.max_seconds, now=lambda: session.deadline.now_s)
        self._cells = {(cell.batch_size, cell.context): cell for cell in session.cells}

    async def run(self, recommended: Mapping[DecodedKey, int | None]) -> None:
        """Take the blocks that are missing; why a cell has none is kept in the session's outcome."""
        pair = self._session.pair.name
        cells, reasons = validation_cells(self._config, pair, recommended)
        self._session.outcome.validation_reasons |= reasons
        gammas = sorted({0, *(gamma for cell in cells for gamma in cell.gammas)})
        blocks = BLOCKS * self._asked.repetitions
        wanted = [(cell, gamma, block) for cell in cells for gamma in gammas for block in range(blocks)]
        if all(self._has(*one) for one in wanted):
            return
        stage = f"validating on the servers of {pair}"
        self._session.mark.stage(stage)
        total = sum(blocks * (1 + len(cell.gammas)) for cell in cells)
        limits = Limits(wall_s=min(self._until.left_s, self._session.deadline.left_s))
        self._session.progress.start(stage, total, limits=limits)
        for visit in self._visits(gammas, blocks):
            if self._until.is_spent or self._session.deadline.is_spent:
                self._session.leaves_out("blocks of validation", self._until)
                return
            async with visit as arms:
                for block in visit.blocks or range(blocks):
                    for cell in cells:
                        if not await self._cell(arms, cell, block):
                            return

    async def _cell(self, arms: Mapping[int, ServedArm], cell: ValidationCell, block: int) -> bool:
        """One block of every arm that is there; False where there is no time for it."""
        own = [arms[gamma] for gamma in (0, *cell.gammas) if gamma in arms]
        for index in np.random.default_rng((self._config.seed, block, len(own))).permutation(len(own)):
            arm = own[index]
            if self._has(cell, arm.gamma, block):
                continue
            place = self._place(cell, arm, block)
            takes_s = self._pace.expected_s(place.key[:-1])
            if not self._until.holds(takes_s) or self._session.leaves_out("blocks of validation", takes_s=takes_s):
                return False
            started_s = self._session.deadline.now_s
            try:
                at = self._cells[cell.key.batch_size, cell.key.start_context]
                if at.id not in arm.warm:
                    await self._load.warm_up(arm, at, cell.sampling)
                found = await self._load.block(arm, at, cell.sampling)
            except ValueError as error:
                self._session.outcome.validation_reasons[cell.label] = str(error)
                return True
            self._pace.took(place.key[:-1], self._session.deadline.now_s - started_s)
            kept = served_block(found, place).row
            self._log.add(kept)
            if kept.reason is not None:
                self._session.outcome.validation_reasons[cell.label] = kept.reason
            self._session.progress.advance()
        return True

    def _place(self, cell: ValidationCell, arm: ServedArm, block: int) -> ServedRow:
        return ServedRow(
            pair=cell.key.pair,
            sampling=cell.key.sampling,
            gamma=arm.gamma,
            batch_size=cell.key.batch_size,
            context=cell.key.start_context,
            block=block,
            purpose="validation",
            server=arm.server,
        )

    def _has(self, cell: ValidationCell, gamma: int, block: int) -> bool:
        if gamma and gamma not in cell.gammas:
            return True
        key = cell.key
        return any(
            (row.sampling, row.gamma, row.batch_size, row.context, row.block)
            == (key.sampling, gamma, key.batch_size, key.start_context, block)
            and row.reason is None
            for row in self._log.rows("validation", key.pair)
        )
