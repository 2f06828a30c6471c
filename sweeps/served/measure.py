"""Measure one pair whose tokens servers decode: blocks of load at every γ, batch size and context, interleaved.

    ServedPair(session).measure()  →  PairOutcome()                                      # nothing went wrong

A block is `batch_size` streams kept busy. In each visit of the servers all γ take turns, in another order every block;
what is in the run directory already is not measured again. A γ whose server is lost keeps the reason; the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.configs.engines import NGRAM
from specgauge.model.arms import APART, round_arm
from specgauge.model.search.search import SEARCH_NOTE
from specgauge.model.stats.medians import worst_half_width
from specgauge.sweeps.analysis.predictions import recommended_gammas
from specgauge.sweeps.plan import Cell, chains, decoded_tokens, settings_of
from specgauge.sweeps.run.budget import BlockPace
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.served.blocks import ServedBlock, served_block
from specgauge.sweeps.served.launching import BLOCKS_A_VISIT, Launch, checked_gammas, launched_visits
from specgauge.sweeps.served.load import Load, WrongServerError
from specgauge.sweeps.served.restarts import RestartCheck
from specgauge.sweeps.served.search import PairSearch
from specgauge.sweeps.served.servers import Connect, RunningServers, ServedArm, Visit, connect, run_to_end
from specgauge.sweeps.served.texts import PromptTexts
from specgauge.sweeps.served.validating import ServedValidation
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import SETTLED
from specgauge.sweeps.store.served import ServedLog, ServedRow

BLOCKS = "blocks of load"
SERVERS = "servers"
"""The folder of a run with the logs of servers that it started."""
ENDING_LOOKS, ENDING_LOOK_S = 20, 0.1
TIMING_SHARE = 0.7
"""Of the seconds of a pair, where what is recommended is validated afterwards."""
PROMPTS_A_BLOCK = 1 << 20
"""Numbers that the prompts of one call leave for those of the calls before."""


def arm_of(gamma: int) -> str:
    """The arm of the journal: plain decoding, or whole rounds."""
    return round_arm(gamma) if gamma else "decode"


class ServedPair:
    """One pair of an open run being measured on its servers."""

    def __init__(self, session: Session, open_client: Connect = connect) -> None:
        self._session, self._config, self._pair = session, session.config, session.pair
        self._journal, self._log = session.run.journal, ServedLog(session.run.path)
        self._open_client, self._gammas = open_client, [0, *session.config.grid.gamma]
        self._pace = BlockPace()
        self._samplings = {
            chain: next(one for one in self._config.sampling if settings_of(one) == settings)
            for chain, settings in chains(self._config).items()
        }
        workload = self._config.workload
        known = sum(len(self._log.rows(purpose, self._pair.name)) for purpose in ("timing", "validation"))
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
            recommended = recommended_gammas(Run.open(self._session.run.path), self._pair.name)
            load = self._load_of(decoded_tokens(self._config))
            await ServedValidation(self._session, self._log, load, self._validation_visits).run(recommended)

    def _load_of(self, new_tokens: int) -> Load:
        return Load(
            self._texts,
            max_new_tokens=new_tokens,
            samples=self._config.precision.block_samples,
            looks_up=any(one.method == NGRAM for one in self._pair.engines),
        )

    async def _time(self) -> None:
        """The blocks that costs and acceptance are made of."""
        gammas = self._gammas
        stage = f"load on the servers of {self._pair.name}"
        cells, arms = self._session.cells, len(gammas)
        least = self._config.precision.min_blocks
        self._session.mark.stage(stage)
        done = sum(len(self._blocks(cell, gamma)) for cell in cells for gamma in gammas)
        self._session.progress.start(stage, len(cells) * arms * least, done=done)
        for visit in self._visits(gammas):
            if not self._has_work(visit):
                continue
            if self._session.leaves_out(BLOCKS, self._until):
                break
            async with visit as found:
                if visit.purpose == "restart":
                    await self._check.take(visit, found)
                    continue
                for gamma, why in visit.lost.items():
                    self._give_up(gamma, why)
                await self._visit(visit, found)
            if visit.refused is not None:
                self._session.progress.say(f"pair {self._pair.name}: a server for each γ: {visit.refused}")
        given = {one.gamma for one in self._pair.engines}
        for gamma in gammas:
            if None not in given and gamma not in given:
                self._skip(gamma, f"no server of γ = {gamma} is given")
        self._keep_left_out()

    def _visits(self, gammas: Sequence[int]) -> Iterable[Visit]:
        """The visits of the pair's servers, in order."""
        precision = self._config.precision
        if self._launch is None:
            return [RunningServers(self._pair.engines, self._open_client)]
        blocks = max(BLOCKS_A_VISIT, -(-precision.min_blocks // 2))
        checked = checked_gammas(self._launch, gammas)
        return launched_visits(self._launch, gammas, blocks=blocks, most=precision.max_blocks, checked=checked)

    def _validation_visits(self, gammas: Sequence[int], blocks: int) -> Iterable[Visit]:
        if self._launch is not None:
            return launched_visits(self._launch, gammas, blocks=blocks // 2, most=blocks)
        return [RunningServers([one for one in self._pair.engines if one.gamma in gammas], self._open_client)]

    @property
    def _launch(self) -> Launch | None:
        """How the pair's server is started; None where its servers run."""
        engine = self._pair.engines[0]
        if engine.launch is None:
            return None
        return Launch(
            engine=engine,
            folder=self._session.run.path / SERVERS / self._pair.name,
            streams=max(cell.batch_size for cell in self._session.cells),
            open_client=self._open_client,
        )

    def _has_work(self, visit: Visit) -> bool:
        """Whether a visit has a block to take; a server is not started for none."""
        if visit.purpose == "restart":
            return self._check.has_work(visit)
        numbers = visit.blocks or range(self._config.precision.max_blocks)
        return any(
            block not in self._blocks(cell, gamma) and not self._is_closed(cell, gamma)
            for cell in self._session.cells
            for gamma in visit.gammas
            if not self._is_left_out(cell, gamma)
            for block in numbers
            if not self._is_known(cell, block, visit.gammas)
        )

    async def _visit(self, visit: Visit, arms: Mapping[int, ServedArm]) -> None:
        precision = self._config.precision
        for block in visit.blocks or range(precision.max_blocks):
            open_cells = [cell for cell in self._session.cells if not self._is_known(cell, block, visit.gammas)]
            if not open_cells or not arms:
                return
            for cell in open_cells:
                order = np.random.default_rng((self._config.seed, block, int(cell.id, 16))).permutation(len(arms))
                own = [list(arms.values())[index] for index in order]
                for arm in sorted(own, key=lambda arm: 0 if self._blocks(cell, arm.gamma) else arm.gamma):
                    if not self._is_left_out(cell, arm.gamma) and not await self._arm(arm, cell, block):
                        return

    def _blocks(self, cell: Cell, gamma: int) -> dict[int, Any]:
        """The journal's lines of an arm that need not be measured again, by block."""
        lines = self._journal.latest.items()
        own = {key[2]: line for key, line in lines if key[:2] == (cell.id, arm_of(gamma))}
        return {number: line for number, line in own.items() if line.status in SETTLED}

    def _is_known(self, cell: Cell, block: int, gammas: Iterable[int]) -> bool:
        """Whether a cell needs no block of this number: its seconds are spent, or these γ are known well enough."""
        precision, arms = self._config.precision, self._gammas
        if block < precision.min_blocks:
            return False
        spent_s = sum(
            line.device_s or 0.0
            for gamma in arms
            for other in self._session.cells
            if other.batch_size == cell.batch_size
            for line in self._blocks(other, gamma).values()
        )
        if precision.max_seconds is not None and spent_s >= precision.max_seconds:
            return True
        own_s = sum(line.device_s or 0.0 for gamma in arms for line in self._blocks(cell, gamma).values())
        if precision.max_cell_seconds is not None and own_s >= precision.max_cell_seconds:
            return True
        return all(self._is_converged(cell, gamma) for gamma in gammas)

    def _is_left_out(self, cell: Cell, gamma: int) -> bool:
        """Whether a γ cannot be the best of a cell; where its server is started for it alone, of any cell."""
        cells = [cell] if self._launch is None or self._launch.is_live else self._session.cells
        return all(self._why_left_out(one, gamma) is not None for one in cells)

    def _why_left_out(self, cell: Cell, gamma: int) -> str | None:
        sampling = self._samplings[cell.chain].name
        return self._search.leaves_out(sampling, (cell.batch_size, cell.context), gamma) if gamma else None

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

    def _is_closed(self, cell: Cell, gamma: int) -> bool:
        """Whether an arm takes no further block: it failed in this call, or the server cannot hold that many."""
        lines = self._blocks(cell, gamma).values()
        return (cell.id, arm_of(gamma)) in self._failed or any(line.status != "ok" for line in lines)

    def _is_converged(self, cell: Cell, gamma: int) -> bool:
        if self._is_closed(cell, gamma) or self._is_left_out(cell, gamma):
            return True
        at, sampling = (cell.batch_size, cell.context), self._samplings[cell.chain].name
        if self._search.is_open(sampling, at, gamma):
            return False
        lines = self._blocks(cell, gamma).values()
        if self._config.grid.is_searched:  # S of the best one is asked for, not the time of every arm
            return len(lines) >= self._config.precision.min_blocks
        samples = [sample for line in lines for sample in line.samples_s]
        precision = self._config.precision
        return bool(samples) and worst_half_width(samples, precision.confidence) <= precision.relative_ci

    async def _arm(self, arm: ServedArm, cell: Cell, block: int) -> bool:
        """Measure a block of an arm, where it is missing; False where there is no time for it."""
        name = arm_of(arm.gamma)
        if block in self._blocks(cell, arm.gamma) or self._is_closed(cell, arm.gamma):
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
            self._fail(cell, arm.gamma, gone or str(error), status="killed" if gone else "failed")
            if gone or isinstance(error, WrongServerError):
                self._give_up(arm.gamma, gone or str(error))
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
            gamma=arm.gamma,
            batch_size=cell.batch_size,
            context=cell.context,
            block=block,
            server=arm.server,
        )
        own = served_block(found, place, arm.steps(found))
        self._log.add(own.row, own.counts)
        if own.status == "failed":
            self._fail(cell, arm.gamma, gone or own.row.reason or "", block, "killed" if gone else "failed")
            return
        if (cell.id, arm_of(arm.gamma), block) in self._journal.latest and block in self._blocks(cell, arm.gamma):
            return  # another setting of the same chain
        self._journal.append(self._line(arm, cell, block, own, warm, took_s))

    def _line(
        self, arm: ServedArm, cell: Cell, block: int, own: ServedBlock, warm: Sequence[LoadBlock], took_s: float
    ) -> dict[str, Any]:
        warmed = [one.t_round_s for one in warm if one.t_round_s is not None]
        return {
            "axes": cell.axes,
            "arm": arm_of(arm.gamma),
            "block": block,
            "status": own.status,
            "reason": own.row.reason,
            "samples_s": [[own.t_round_s]] if own.t_round_s is not None else [],
            "warmup_s": [[seconds] for seconds in warmed],
            "first_call_s": arm.start_s if warm else None,
            "device_s": took_s,
            "notes": {APART: True} if self._launch is not None and not arm.fields else {},
        }

    def _fail(self, cell: Cell, gamma: int, reason: str, block: int = 0, status: str = "failed") -> None:
        """Record a block that could not be measured, and do not try the arm again in this call."""
        name = arm_of(gamma)
        self._failed[cell.id, name] = reason
        self._session.outcome.failed = True
        self._session.progress.say(f"pair {self._pair.name}, {name}, batch size {cell.batch_size}: {status}: {reason}")
        self._journal.append(
            {"axes": cell.axes, "arm": name, "block": block, "status": status, "reason": reason, "samples_s": []}
        )

    def _give_up(self, gamma: int, reason: str) -> None:
        """Record that a γ cannot be measured: in every cell where it has no block."""
        for cell in self._session.cells:
            if not self._blocks(cell, gamma) and (cell.id, arm_of(gamma)) not in self._failed:
                self._fail(cell, gamma, reason)

    def _skip(self, gamma: int, reason: str) -> None:
        for cell in self._session.cells:
            if not self._blocks(cell, gamma):
                line = {"axes": cell.axes, "arm": arm_of(gamma), "block": 0, "samples_s": []}
                self._journal.append({**line, "status": "skipped", "reason": reason})


async def _gone(arm: ServedArm) -> str | None:
    """Why a server that was started here is gone, where it is: a process that just broke off takes a moment to end."""
    for _ in range(ENDING_LOOKS if arm.start_s is not None else 1):
        if (why := arm.ended()) is not None:
            return why
        await asyncio.sleep(ENDING_LOOK_S)
    return None
