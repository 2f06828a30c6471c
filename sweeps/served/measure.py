"""Measure one pair whose tokens servers decode: blocks of load at every γ, batch size and context, interleaved.

    ServedPair(session).measure()  →  PairOutcome()                                      # nothing went wrong

A block is `batch_size` streams kept busy. In each visit of the servers all arms take turns, in another order every
block: plain decoding, every γ, and policies of the engine's own and γ = 0 by schedule, of which no cost is made. What
is in the run directory already is not measured again. An arm whose server is lost keeps the reason; the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.configs.engines import NGRAM
from specgauge.model.arms import APART, engine_arm, round_arm
from specgauge.model.search.search import SEARCH_NOTE
from specgauge.model.stats.medians import worst_half_width
from specgauge.sweeps.analysis.predictions import recommended_gammas
from specgauge.sweeps.plan import Cell, chains, decoded_tokens, settings_of
from specgauge.sweeps.run.budget import BlockPace, timing_left_s
from specgauge.sweeps.run.progress import Limits
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.served.blocks import ServedBlock, served_block
from specgauge.sweeps.served.launching import BLOCKS_A_VISIT
from specgauge.sweeps.served.load import Load, WrongServerError
from specgauge.sweeps.served.restarts import RestartCheck
from specgauge.sweeps.served.search import PARTS_A_START, PairSearch
from specgauge.sweeps.served.servers import ArmKey, Arms, Connect, ServedArm, Visit, connect, run_to_end
from specgauge.sweeps.served.texts import PromptTexts
from specgauge.sweeps.served.validating import ServedValidation, exports
from specgauge.sweeps.served.visits import PairServers
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import SETTLED
from specgauge.sweeps.store.served import PURPOSES, ServedLog, ServedRow

BLOCKS = "blocks of load"
SERVERS = "servers"
"""The folder of a run with the logs of servers that it started."""
ENDING_LOOKS, ENDING_LOOK_S = 20, 0.1
TIMING_SHARE = 0.7
"""Of the seconds of a pair, where what is recommended is validated afterwards."""
PROMPTS_A_BLOCK = 1 << 20
"""Numbers that the prompts of one call leave for those of the calls before."""


def arm_of(arm: ArmKey) -> str:
    """The arm of the journal: plain decoding, whole rounds, or tokens under a policy of the engine's own."""
    if isinstance(arm, str):
        return engine_arm(arm)
    return round_arm(arm) if arm else "decode"


class ServedPair:
    """One pair of an open run being measured on its servers."""

    def __init__(self, session: Session, open_client: Connect = connect) -> None:
        self._session, self._config, self._pair = session, session.config, session.pair
        self._journal, self._log = session.run.journal, ServedLog(session.run.path)
        self._servers = PairServers(
            pair=session.pair,
            folder=session.run.path / SERVERS,
            streams=max(cell.batch_size for cell in session.cells),
            largest=max(session.config.grid.gamma),
            open_client=open_client,
        )
        self._gammas = (0, *session.config.grid.gamma)
        self._arms: tuple[ArmKey, ...] = (*self._gammas, *self._servers.at_zero, *self._servers.policies)
        self._pace = BlockPace()
        self._samplings = {
            chain: next(one for one in self._config.sampling if settings_of(one) == settings)
            for chain, settings in chains(self._config).items()
        }
        workload = self._config.workload
        known = sum(len(self._log.rows(purpose, self._pair.name)) for purpose in PURPOSES)
        self._texts = PromptTexts(
            [prompt.text for prompt in session.prompts.prompts],
            is_chat=workload.chat_template == "always",
            first=known * PROMPTS_A_BLOCK,
        )
        self._load = self._load_of(workload.max_new_tokens)
        self._check = RestartCheck(session, self._log, self._load)
        self._until = session.deadline.share(1.0 if self._config.validation is None else TIMING_SHARE)
        self._search = PairSearch(self._config, self._pair.name, self._log)
        self._failed: dict[tuple[str, str], str] = {}
        """Why an arm of a cell is not tried again in this call."""

    def measure(self) -> PairOutcome:
        """Measure what is missing.

        Raises:
            StorageError: the disk refused a write.
        """
        outcome = self._session.outcome
        try:
            with self._session.mark:
                run_to_end(self.run())
        except ValueError as error:
            outcome.bad_input = f"pair {self._pair.name}: {error}"
        return outcome

    async def run(self) -> None:
        """As `measure`; ValueError where no server can be used."""
        await self._time()
        if self._config.validation is not None:
            run = Run.open(self._session.run.path)
            load = self._load_of(decoded_tokens(self._config))
            validation = ServedValidation(self._session, self._log, load, self._servers)
            found = exports(run, self._session)
            await validation.run(recommended_gammas(run, self._pair.name), found)

    def _load_of(self, new_tokens: int) -> Load:
        return Load(
            self._texts,
            max_new_tokens=new_tokens,
            samples=self._config.precision.block_samples,
            looks_up=any(one.method == NGRAM for one in self._pair.engines),
        )

    async def _time(self) -> None:
        """The blocks that costs and acceptance are made of, and those of the engine's own policies beside them."""
        self._start()
        while await self._pass() and self._add_cells():
            pass
        if self._servers.launch is None:
            given = {one.gamma for one in self._pair.engines}
            for gamma in self._gammas:
                if gamma not in given:
                    self._skip(gamma, f"no server of γ = {gamma} is given")
        self._keep_left_out()

    def _start(self) -> None:
        """The stage begins, or goes on with more cells."""
        stage = f"load on the servers of {self._pair.name}"
        cells, precision = self._session.cells, self._config.precision
        self._session.mark.stage(stage)
        done = sum(len(self._blocks(cell, arm)) for cell in cells for arm in self._arms)
        limits = Limits(
            work_s=timing_left_s(precision, cells, self._spent_s), wall_s=self._until.left_s, is_fewest=True
        )
        fewest = len(cells) * len(self._arms) * precision.min_blocks
        self._session.progress.start(stage, fewest, done=done, limits=limits)

    async def _pass(self) -> bool:
        """Visit every server until all is known of the cells; False where the time ended before."""
        precision = self._config.precision
        blocks = max(BLOCKS_A_VISIT, -(-precision.min_blocks // 2))
        for visit in self._servers.timing(self._gammas, blocks=blocks, most=precision.max_blocks):
            self._take_up(visit.stands_in)
            if not self._has_work(visit):
                continue
            if self._session.leaves_out(BLOCKS, self._until):
                return False
            async with visit as found:
                if visit.purpose == "restart":
                    await self._check.take(visit, found)
                    continue
                for arm, why in visit.lost.items():
                    self._give_up(arm, why)
                await self._visit(visit, found)
            if visit.refused is not None or visit.stands_in:
                for arm in self._servers.at_zero:
                    self._skip(
                        arm, visit.refused or "no plain server runs beside it: γ = 0 is taken for plain decoding"
                    )
            if visit.refused is not None:
                self._session.progress.say(f"pair {self._pair.name}: a server for each γ: {visit.refused}")
        return not self._until.is_spent

    def _add_cells(self) -> bool:
        """Go on with batch sizes at which another γ may be the best, where there are any."""
        launch = self._servers.launch
        found = self._search.more_cells(self._session.cells, parts=2 if launch is None else PARTS_A_START)
        if not found:
            return False
        self._session.cells += found
        sizes = ", ".join(map(str, sorted({cell.batch_size for cell in found})))
        self._session.progress.say(f"pair {self._pair.name}: batch size {sizes} too, since another γ may be best there")
        self._start()
        return True

    def _spent_s(self, cell: Cell) -> float:
        """Seconds that a cell's blocks took."""
        return sum(line.device_s or 0.0 for arm in self._arms for line in self._blocks(cell, arm).values())

    def _has_work(self, visit: Visit) -> bool:
        """Whether a visit has a block to take; a server is not started for none."""
        if visit.purpose == "restart":
            return self._check.has_work(visit)
        numbers = visit.blocks or range(self._config.precision.max_blocks)
        return any(
            block not in self._blocks(cell, arm) and not self._is_closed(cell, arm)
            for cell in self._session.cells
            for arm in visit.arms
            if not self._is_left_out(cell, arm)
            for block in numbers
            if not self._is_known(cell, block, visit.arms)
        )

    async def _visit(self, visit: Visit, arms: Arms) -> None:
        precision = self._config.precision
        for block in visit.blocks or range(precision.max_blocks):
            open_cells = [cell for cell in self._session.cells if not self._is_known(cell, block, visit.arms)]
            if not open_cells or not arms:
                return
            for cell in open_cells:
                order = np.random.default_rng((self._config.seed, block, int(cell.id, 16))).permutation(len(arms))
                own = [list(arms.values())[index] for index in order]
                for arm in sorted(own, key=lambda arm: 0 if self._blocks(cell, arm.key) else arm.gamma):
                    if not self._is_left_out(cell, arm.key) and not await self._arm(arm, cell, block):
                        return

    def _blocks(self, cell: Cell, arm: ArmKey) -> dict[int, Any]:
        """The journal's lines of an arm that need not be measured again, by block."""
        lines, at = self._journal.latest.items(), (cell.id, arm_of(arm))
        own = {key[2]: line for key, line in lines if key[:2] == at}
        return {number: line for number, line in own.items() if line.status in SETTLED}

    def _is_known(self, cell: Cell, block: int, arms: Iterable[ArmKey]) -> bool:
        """Whether a cell needs no block of this number: its seconds are spent, or these arms are known well enough."""
        precision = self._config.precision
        if block < precision.min_blocks:
            return False
        spent_s = sum(self._spent_s(one) for one in self._session.cells if one.batch_size == cell.batch_size)
        if precision.max_seconds is not None and spent_s >= precision.max_seconds:
            return True
        if precision.max_cell_seconds is not None and self._spent_s(cell) >= precision.max_cell_seconds:
            return True
        return all(self._is_converged(cell, arm) for arm in arms)

    def _is_left_out(self, cell: Cell, arm: ArmKey) -> bool:
        """Whether a γ cannot be the best of a cell; where its server is started for it alone, of any cell."""
        launch = self._servers.launch
        cells = [cell] if launch is None or launch.is_live else self._session.cells
        return isinstance(arm, int) and all(self._why_left_out(one, arm) is not None for one in cells)

    def _why_left_out(self, cell: Cell, arm: ArmKey) -> str | None:
        if arm == 0 or isinstance(arm, str):
            return None
        return self._search.leaves_out(self._samplings[cell.chain].name, (cell.batch_size, cell.context), arm)

    def _keep_left_out(self) -> None:
        """Record why γ that cannot be the best of a cell have no block there, or too few to be weighed."""
        for cell in self._session.cells:
            for gamma in self._gammas:
                taken, why = self._blocks(cell, gamma), self._why_left_out(cell, gamma)
                if (
                    why is not None
                    and len(taken) < self._config.precision.min_blocks
                    and not self._is_closed(cell, gamma)
                ):
                    line = {"axes": cell.axes, "arm": arm_of(gamma), "block": max(taken, default=-1) + 1}
                    notes = {SEARCH_NOTE: "decided"}
                    self._journal.append({**line, "status": "skipped", "reason": why, "samples_s": [], "notes": notes})

    def _is_closed(self, cell: Cell, arm: ArmKey) -> bool:
        """Whether an arm takes no further block: it failed in this call, or the server cannot hold that many."""
        lines = self._blocks(cell, arm).values()
        return (cell.id, arm_of(arm)) in self._failed or any(line.status != "ok" for line in lines)

    def _is_converged(self, cell: Cell, arm: ArmKey) -> bool:
        if self._is_closed(cell, arm) or self._is_left_out(cell, arm):
            return True
        at, sampling = (cell.batch_size, cell.context), self._samplings[cell.chain].name
        if isinstance(arm, int) and self._search.is_open(sampling, at, arm):
            return False
        lines = self._blocks(cell, arm).values()
        if self._config.grid.is_searched:  # S of the best one is asked for, not the time of every arm
            return len(lines) >= self._config.precision.min_blocks
        samples = [sample for line in lines for sample in line.samples_s]
        precision = self._config.precision
        return bool(samples) and worst_half_width(samples, precision.confidence) <= precision.relative_ci

    async def _arm(self, arm: ServedArm, cell: Cell, block: int) -> bool:
        """Measure a block of an arm, where it is missing; False where there is no time for it."""
        name = arm_of(arm.key)
        if block in self._blocks(cell, arm.key) or self._is_closed(cell, arm.key):
            return True
        clock, sampling = self._session.deadline, self._samplings[cell.chain]
        if self._session.leaves_out(BLOCKS, self._until, takes_s=self._pace.expected_s((cell.id, name))):
            return False
        self._session.mark.block(cell.id, name, block)
        try:
            warm: Sequence[LoadBlock] = ()
            if cell.id not in arm.warm:
                warm = await self._load.warm_up(arm, cell, sampling)
            started_s = clock.now_s
            found = await self._load.block(arm, cell, sampling)
            if (why := arm.check()) is not None:
                raise WrongServerError(f"{arm.client.base_url}: {why}")
        except ValueError as error:
            gone = await _gone(arm)
            self._fail(cell, arm.key, gone or str(error), status="killed" if gone else "failed")
            if gone or isinstance(error, WrongServerError):
                self._give_up(arm.key, gone or str(error))
            return True
        took_s = clock.now_s - started_s
        gone = None if found.void is None else await _gone(arm)
        self._pace.took((cell.id, name), took_s)
        for one in self._config.sampling:
            if settings_of(one) == settings_of(sampling):
                self._keep(arm, cell, block, found, warm, sampling=one.name, took_s=took_s, gone=gone)
        self._session.progress.advance()
        return True

    def _keep(
        self,
        arm: ServedArm,
        cell: Cell,
        block: int,
        found: LoadBlock,
        warm: Sequence[LoadBlock],
        *,
        sampling: str,
        took_s: float,
        gone: str | None,
    ) -> None:
        """Keep a block: its counts and row first, so that a block of the journal has both."""
        place = ServedRow(
            pair=self._pair.name,
            sampling=sampling,
            gamma=arm.gamma if arm.policy is None else None,
            policy=arm.policy,
            batch_size=cell.batch_size,
            context=cell.context,
            block=block,
            server=arm.server,
        )
        own = served_block(found, place, arm.steps(found))
        self._log.add(own.row, own.counts)
        if own.status == "failed":
            self._fail(cell, arm.key, gone or own.row.reason or "", block, "killed" if gone else "failed")
            return
        if (cell.id, arm_of(arm.key), block) in self._journal.latest and block in self._blocks(cell, arm.key):
            return  # another setting of the same chain
        self._journal.append(self._line(arm, cell, block, own, warm, took_s))

    def _line(
        self, arm: ServedArm, cell: Cell, block: int, own: ServedBlock, warm: Sequence[LoadBlock], took_s: float
    ) -> dict[str, Any]:
        warmed = [one.t_round_s if arm.policy is None else one.tpot_s for one in warm]
        return {
            "axes": cell.axes,
            "arm": arm_of(arm.key),
            "block": block,
            "status": own.status,
            "reason": own.row.reason,
            "samples_s": [[own.sample_s]] if own.sample_s is not None else [],
            "warmup_s": [[seconds] for seconds in warmed if seconds],
            "first_call_s": arm.start_s if warm else None,
            "device_s": took_s,
            "notes": {APART: True} if self._servers.launch is not None and not arm.fields else {},
        }

    def _fail(self, cell: Cell, arm: ArmKey, reason: str, block: int = 0, status: str = "failed") -> None:
        """Record a block that could not be measured, and do not try the arm again in this call."""
        name = arm_of(arm)
        self._failed[cell.id, name] = reason
        self._session.outcome.failed = True
        self._session.progress.say(f"pair {self._pair.name}, {name}, batch size {cell.batch_size}: {status}: {reason}")
        self._journal.append(
            {"axes": cell.axes, "arm": name, "block": block, "status": status, "reason": reason, "samples_s": []}
        )

    def _give_up(self, arm: ArmKey, reason: str) -> None:
        """Record that an arm cannot be measured: in every cell where it has no block."""
        for cell in self._session.cells:
            if not self._blocks(cell, arm) and (cell.id, arm_of(arm)) not in self._failed:
                self._fail(cell, arm, reason)

    def _take_up(self, arms: Iterable[ArmKey]) -> None:
        """Try arms again whose own servers were lost, since another takes them."""
        names = set(map(arm_of, arms))
        self._failed = {key: why for key, why in self._failed.items() if key[1] not in names}

    def _skip(self, arm: ArmKey, reason: str) -> None:
        for cell in self._session.cells:
            if not self._blocks(cell, arm):
                line = {"axes": cell.axes, "arm": arm_of(arm), "block": 0, "samples_s": []}
                self._journal.append({**line, "status": "skipped", "reason": reason})


async def _gone(arm: ServedArm) -> str | None:
    """Why a server that was started here is gone, where it is: a process that just broke off takes a moment to end."""
    for _ in range(ENDING_LOOKS if arm.start_s is not None else 1):
        if (why := arm.ended()) is not None:
            return why
        await asyncio.sleep(ENDING_LOOK_S)
    return None
