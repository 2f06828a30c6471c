"""The servers of a pair as visits: those that costs are taken on, and those that validate what they recommend.

servers = PairServers(pair=pair, folder=run.path / "servers", streams=16, largest=4)
servers.policies                                  # the engine's own, beside every γ
servers.timing([0, 2, 4], blocks=3, most=20)      # plain decoding, every γ and every policy
servers.validation([0, 2], 4, {"exported": {…}})  # and a server of what the run exports
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specgauge.configs.engines import AT_ZERO
from specgauge.configs.pairs import PairConfig
from specgauge.sweeps.served.launching import Launch, checked_gammas, launched_visits
from specgauge.sweeps.served.servers import ArmKey, Connect, RunningServers, Visit, connect, running_key

Alpha = float | tuple[float, ...] | None


@dataclass(frozen=True, kw_only=True)
class PairServers:
    """The servers of one pair, whether they run or are started."""

    pair: PairConfig
    folder: Path
    """Where the logs of servers that are started go, and files that they read."""
    streams: int
    """The most that a server must hold at once."""
    largest: int
    """The largest γ of the grid: the most drafts of a policy that does not say otherwise."""
    open_client: Connect = connect

    @property
    def launch(self) -> Launch | None:
        """How the server is started; None where servers run."""
        engine = self.pair.engines[0]
        if engine.launch is None:
            return None
        return Launch(
            engine=engine, folder=self.folder / self.pair.name, streams=self.streams, open_client=self.open_client
        )

    @property
    def policies(self) -> tuple[str, ...]:
        """The engine's own, by the names of their arms."""
        running = [one.arm for one in self.pair.engines if one.arm is not None]
        return (*running, *(one.name for one in self.pair.engines[0].arms))

    @property
    def at_zero(self) -> tuple[str, ...]:
        """The arm of γ = 0 on a server that takes every γ in turn; none where every γ has a server of its own."""
        return (AT_ZERO,) if self.launch is not None and self.launch.is_live else ()

    @property
    def follows(self) -> str | None:
        """The setting of its speculation that has γ by batch size; None where no server can be started with one."""
        return self.pair.engines[0].follows

    def launches(self, exported: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, tuple[Launch, int]]:
        """How the server of each policy is started, and of what is exported, with the most drafts of a round."""
        launch, engine = self.launch, self.pair.engines[0]
        if launch is None:
            return {}
        found = {}
        for one in engine.arms:
            most = one.most(engine.kind, self.largest)
            found[one.name] = launch.under(one.name, one.speculative), most if isinstance(most, int) else self.largest
        return found | {name: (launch.under(name, own), self.largest) for name, own in (exported or {}).items()}

    def forced(self, launch: Launch, alpha: Alpha) -> Launch:
        """The engine that accepts drafts at a given rate, its logs apart."""
        return replace(launch, alpha=alpha, folder=launch.folder / "forced")

    def timing(self, gammas: Sequence[int], *, blocks: int, most: int) -> Iterable[Visit]:
        """The visits in which every γ and every policy is measured: up to `most` blocks, `blocks` in one visit."""
        launch = self.launch
        if launch is None:
            return [RunningServers(self.pair.engines, self.open_client)]
        checked = checked_gammas(launch, gammas)
        return launched_visits(launch, gammas, blocks=blocks, most=most, checked=checked, policies=self.launches())

    def validation(
        self,
        gammas: Sequence[int],
        blocks: int,
        exported: Mapping[str, Mapping[str, Any]],
        *,
        alpha: Alpha = None,
    ) -> Iterable[Visit]:
        """The visits that validate: half of the blocks there, half back.

        exported: settings of servers by the names of their arms; alpha: how often drafts are accepted, where that is
        forced: the engine's own policies then are of no interest.
        """
        launch = self.launch
        if launch is None:
            wanted: set[ArmKey] = {*gammas, *self.policies}
            return [RunningServers([one for one in self.pair.engines if running_key(one) in wanted], self.open_client)]
        if alpha is None:
            policies = self.launches(exported)
            return launched_visits(launch, gammas, blocks=blocks // 2, most=blocks, policies=policies)
        return launched_visits(self.forced(launch, alpha), gammas, blocks=blocks // 2, most=blocks)
