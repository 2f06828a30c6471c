"""Whether one vLLM that takes every γ in turn costs what a server started with a γ alone costs: two γ are checked.

    check = RestartCheck(session, log, load)
    await check.take(visit, arms)                            # blocks of served.jsonl whose purpose is restart

A schedule of γ has other CUDA graphs than one γ, and a step of ours before every step. Both servers are compared as
their clients see them, since a server of one γ has no log of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from specgauge.sweeps.analysis.restarts import is_live, restart_ratios
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.served.blocks import served_block
from specgauge.sweeps.served.load import Load
from specgauge.sweeps.served.servers import Arms, Visit
from specgauge.sweeps.store.served import ServedLog, ServedRow


class RestartCheck:
    """The check of one pair: blocks of every cell on the servers of single γ, which no cost is made of."""

    def __init__(self, session: Session, log: ServedLog, load: Load) -> None:
        self._session, self._log, self._load = session, log, load
        self._samplings = {one.name: one for one in session.config.sampling}

    def has_work(self, visit: Visit) -> bool:
        """Whether a visit has a block to take."""
        return any(True for _ in self._missing(visit))

    async def take(self, visit: Visit, arms: Arms) -> None:
        """Take the blocks that are missing, and say what they show; a server that is lost costs the check alone."""
        pair, say = self._session.pair.name, self._session.progress.say
        for gamma, why in visit.lost.items():
            say(f"pair {pair}: γ = {gamma} is not checked by restart: {why}")
        for cell, place in self._missing(visit):
            arm = arms.get(place.arm)
            if arm is None or self._session.deadline.is_spent:
                continue
            try:
                if cell.id not in arm.warm:
                    await self._load.warm_up(arm, cell, self._samplings[place.sampling])
                found = await self._load.block(arm, cell, self._samplings[place.sampling])
            except ValueError as error:
                say(f"pair {pair}: γ = {place.gamma} is not checked by restart: {error}")
                return
            self._log.add(served_block(found, place).row)
        for one in restart_ratios(self._rows(), confidence=self._session.config.precision.confidence):
            if one.gamma in visit.gammas:
                say(f"pair {pair}: {one.line}")

    def _rows(self) -> list[ServedRow]:
        pair = self._session.pair.name
        return [row for purpose in ("timing", "restart") for row in self._log.rows(purpose, pair)]

    def _missing(self, visit: Visit) -> Iterator[tuple[Cell, ServedRow]]:
        """Blocks that are to be taken, by number, of cells that the live server was measured in."""
        own = self._rows()
        live = {(row.sampling, row.gamma, row.batch_size, row.context) for row in own if is_live(row)}
        done = {row.key for row in own if row.reason is None}
        for block in visit.blocks or ():
            for cell in self._session.cells:
                for sampling in self._samplings:
                    for gamma in visit.gammas:
                        place = ServedRow(
                            pair=self._session.pair.name,
                            sampling=sampling,
                            gamma=gamma,
                            batch_size=cell.batch_size,
                            context=cell.context,
                            block=block,
                            purpose="restart",
                        )
                        at = (sampling, gamma, cell.batch_size, cell.context)
                        if at in live and place.key not in done:
                            yield cell, place
