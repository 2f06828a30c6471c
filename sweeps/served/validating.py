"""Run what was recommended and what is exported, beside plain decoding, in blocks of their own.

    found = exports(run, session)
    await ServedValidation(session, log, load, servers).run(recommended_gammas(run, pair), found)

The arms of a cell: plain decoding, the recommended γ and its neighbours, the γ that is exported there, γ = 0 by
schedule where that was timed, policies of the engine's own, and where the engine follows a schedule a server of the
exported one. Their blocks are rows of served.jsonl whose purpose is validation: no cost and no acceptance is made of
them, so what they say of S is told by other requests than those that the prediction follows from. Where acceptance is
forced the γ alone are run, to check costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from specgauge.configs.engines import EXPORTED
from specgauge.sweeps.exports.validated import validated_export
from specgauge.sweeps.plan import decoded_points
from specgauge.sweeps.run.budget import BlockPace, Deadline
from specgauge.sweeps.run.decoded_cells import ValidationCell, validation_cells
from specgauge.sweeps.run.progress import Limits
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.served.blocks import served_block
from specgauge.sweeps.served.load import Load
from specgauge.sweeps.served.servers import ArmKey, Arms, ServedArm, Visit
from specgauge.sweeps.served.visits import PairServers
from specgauge.sweeps.store.exported import ExportedRow, keep_exports, read_exports
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey
from specgauge.sweeps.store.served import Purpose, ServedLog, ServedRow

BLOCKS = 4
"""Of each arm, for each repetition that is asked for; half of them in each visit of a server that is started."""
OUT_OF_TIME = "blocks of validation"


def exports(run: Run, session: Session) -> list[ExportedRow]:
    """What is exported for each sampling setting and context that is validated: as before, or from the run as it is.

    None where acceptance is forced, or nothing is known.
    """
    config, pair = session.config, session.pair
    if config.validation is None or config.validation.acceptance is not None:
        return []
    contexts = sorted({point.context for point in decoded_points(config, pair.name)})
    wanted = [(pair.name, sampling.name, context) for sampling in config.sampling for context in contexts]
    known = {row.key: row for row in read_exports(run.path)}
    made = []
    for _, sampling, context in (key for key in wanted if key not in known):
        try:
            made.append(validated_export(run, pair, sampling=sampling, context=context))
        except ValueError as error:
            session.progress.say(f"pair {pair.name}: nothing is exported: {error}")
    if made:
        keep_exports(run.path, made)
    known |= {row.key: row for row in made}
    return [known[key] for key in wanted if key in known]


class ServedValidation:
    """The validation of one pair; `validate` of the configuration says where."""

    def __init__(self, session: Session, log: ServedLog, load: Load, servers: PairServers) -> None:
        assert session.config.validation is not None
        self._session, self._config, self._asked = session, session.config, session.config.validation
        self._log, self._load, self._servers = log, load, servers
        self._purpose: Purpose = "validation" if self._asked.acceptance is None else "forced"
        self._pace = BlockPace()
        self._until = Deadline(self._asked.max_seconds, now=lambda: session.deadline.now_s)
        self._cells = {(cell.batch_size, cell.context): cell for cell in session.cells}
        self._exported: dict[str, ExportedRow] = {}
        """By the arm of its server."""
        self._lost: dict[ArmKey, str] = {}

    async def run(self, recommended: Mapping[DecodedKey, int | None], exported: Iterable[ExportedRow] = ()) -> None:
        """Take the blocks that are missing; why a cell has none is kept in the session's outcome."""
        pair, exported = self._session.pair.name, list(exported)
        cells, reasons = validation_cells(self._config, pair, recommended)
        self._session.outcome.validation_reasons |= reasons
        cells = [_with_exported(cell, exported, self._config.grid.gamma) for cell in cells]
        self._exported = exported_arms(exported)
        blocks = BLOCKS * self._asked.repetitions
        missing = [
            (cell, arm, block)
            for cell in cells
            for arm in self._arms(cell)
            for block in range(blocks)
            if not self._has(cell, arm, block)
        ]
        if not missing:
            return
        stage = f"validating on the servers of {pair}"
        self._session.mark.stage(stage)
        total = sum(blocks * len(self._arms(cell)) for cell in cells)
        limits = Limits(wall_s=min(self._until.left_s, self._session.deadline.left_s))
        self._session.progress.start(stage, total, done=total - len(missing), limits=limits)
        gammas = sorted({0, *(gamma for cell in cells for gamma in cell.gammas)})
        settings = {arm: row.settings for arm, row in self._exported.items() if row.settings is not None}
        idle_from_s = self._until.now_s
        for visit in self._servers.validation(gammas, blocks, settings, alpha=self._asked.acceptance):
            numbers = visit.blocks or range(blocks)
            if not self._has_work(visit, cells, numbers):
                continue
            if self._until.is_spent or self._session.deadline.is_spent:
                self._session.leaves_out(OUT_OF_TIME, self._until)
                return
            async with visit as arms:
                self._until.wait(self._until.now_s - idle_from_s)  # the start of a server is no decoding
                for arm, why in visit.lost.items():
                    self._lose(cells, arm, why)
                for block in numbers:
                    for cell in cells:
                        if not await self._cell(arms, cell, block):
                            return
                idle_from_s = self._until.now_s

    def _has_work(self, visit: Visit, cells: Iterable[ValidationCell], numbers: range) -> bool:
        """Whether a visit has a block to take; a server is not started for none."""
        return any(
            not self._has(cell, arm, block)
            for cell in cells
            for arm in self._arms(cell)
            if arm in visit.arms and arm not in self._lost
            for block in numbers
        )

    def _arms(self, cell: ValidationCell) -> list[ArmKey]:
        """The arms of a cell."""
        found: list[ArmKey] = [0, *cell.gammas]
        pair, at = cell.key.pair, (cell.key.sampling, cell.key.batch_size, cell.key.start_context)
        timed = {(row.policy, row.sampling, row.batch_size, row.context) for row in self._log.rows("timing", pair)}
        found += [arm for arm in self._servers.at_zero if (arm, *at) in timed]
        if self._purpose == "validation":
            found += self._servers.policies
            found += [
                arm
                for arm, row in self._exported.items()
                if (row.sampling, row.context) == (cell.key.sampling, cell.key.start_context)
            ]
        return found

    def _lose(self, cells: Iterable[ValidationCell], arm: ArmKey, why: str) -> None:
        """Keep why an arm has no blocks."""
        words = f"γ = {arm}" if isinstance(arm, int) else f"arm {arm}"
        for cell in cells:
            if arm in self._arms(cell):
                self._session.outcome.validation_reasons[f"{cell.label}, {words}"] = why
        self._session.outcome.failed = True
        self._session.progress.say(f"pair {self._session.pair.name}, {words}: not validated: {why}")

    async def _cell(self, arms: Arms, cell: ValidationCell, block: int) -> bool:
        """One block of every arm that is there; False where there is no time for it."""
        own = [arms[arm] for arm in self._arms(cell) if arm in arms and arm not in self._lost]
        for index in np.random.default_rng((self._config.seed, block, len(own))).permutation(len(own)):
            arm = own[index]
            if self._has(cell, arm.key, block):
                continue
            place = self._place(cell, arm, block)
            takes_s = self._pace.expected_s(place.key[:-1])
            if not self._until.holds(takes_s) or self._session.leaves_out(OUT_OF_TIME, takes_s=takes_s):
                self._session.leaves_out(OUT_OF_TIME, self._until, takes_s=takes_s)
                return False
            started_s = self._session.deadline.now_s
            try:
                at = self._cells[cell.key.batch_size, cell.key.start_context]
                if at.id not in arm.warm:
                    await self._load.warm_up(arm, at, cell.sampling)
                found = await self._load.block(arm, at, cell.sampling)
            except ValueError as error:  # the others go on
                self._lost[arm.key] = str(error)
                self._lose([cell], arm.key, str(error))
                continue
            self._pace.took(place.key[:-1], self._session.deadline.now_s - started_s)
            kept = served_block(found, place).row
            self._log.add(kept)
            if kept.reason is not None:
                self._session.outcome.validation_reasons[f"{cell.label}, {kept.arm_words}"] = kept.reason
            self._session.progress.advance()
        return True

    def _place(self, cell: ValidationCell, arm: ServedArm, block: int) -> ServedRow:
        return ServedRow(
            pair=cell.key.pair,
            sampling=cell.key.sampling,
            gamma=arm.gamma if arm.policy is None else None,
            policy=None if arm.policy is None else self._policy(arm.policy),
            batch_size=cell.key.batch_size,
            context=cell.key.start_context,
            block=block,
            purpose=self._purpose,
            server=arm.server,
        )

    def _policy(self, arm: str) -> str:
        """As its rows call a policy: whatever is exported is one."""
        return EXPORTED if arm in self._exported else arm

    def _has(self, cell: ValidationCell, arm: ArmKey, block: int) -> bool:
        key, name = cell.key, arm if isinstance(arm, int) else self._policy(arm)
        place = (self._purpose, key.pair, key.sampling, name, key.batch_size, key.start_context, block)
        row = self._log.row(place)
        return row is not None and row.reason is None


def exported_arms(rows: Iterable[ExportedRow]) -> dict[str, ExportedRow]:
    """The servers that are started for what is exported, each with what it follows: one for every row of a schedule."""
    own = [row for row in rows if row.settings is not None]
    return {EXPORTED if not number else f"{EXPORTED}_{number + 1}": row for number, row in enumerate(own)}


def _with_exported(cell: ValidationCell, exported: Iterable[ExportedRow], grid: tuple[int, ...]) -> ValidationCell:
    """A cell with the γ that is exported there, where it is not among its own already."""
    for row in exported:
        gamma = row.gamma(cell.key.batch_size)
        if (row.sampling, row.context) == (cell.key.sampling, cell.key.start_context) and gamma in grid:
            return replace(cell, gammas=tuple(sorted({*cell.gammas, gamma})))
    return cell
