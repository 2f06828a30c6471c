"""Which server has which γ, and in what order: servers that run side by side, or one that is started for each γ.

    for visit in visits(pair, gammas, …):
        async with visit as arms:                   # the servers are there
            arms[2].client, await arms[2].select()

A visit is a time in which some γ can be measured; the arms of one visit interleave. A server that is started for each γ
is visited in the order 0, 1, 2, 4, then 4, 2, 1, 0, and so on, so that what drifts hits all γ alike.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType

from specgauge.bench.serving.streams import OpenAIClient
from specgauge.configs.engines import EngineConfig

Connect = Callable[[EngineConfig, str], OpenAIClient]
"""A client of an engine at an address."""


def connect(engine: EngineConfig, base_url: str) -> OpenAIClient:
    """The client of an engine at an address; ValueError where its key is not in the environment."""
    return OpenAIClient(base_url, engine.model, api_key_env=engine.api_key_env, metrics_url=engine.metrics_url)


async def _nothing() -> None:
    """A server whose γ is what it is."""


@dataclass(kw_only=True)
class ServedArm:
    """One γ on a server that is there."""

    gamma: int
    client: OpenAIClient
    server: str | None = None
    """Its name, where there are several."""
    select: Callable[[], Awaitable[None]] = _nothing
    """Makes the server take this γ from now on."""
    warm: set[str] = field(default_factory=set)
    """Cells that it has warmed up in."""


class Visit(AbstractAsyncContextManager[Mapping[int, ServedArm]]):
    """Servers that are there from its beginning to its end, by γ; `lost` says why a γ cannot be measured in it."""

    blocks: range | None = None
    """Numbers of the blocks that are taken in it; None is as many as are needed."""

    def __init__(self, gammas: Sequence[int]) -> None:
        self.gammas = tuple(gammas)
        self.lost: dict[int, str] = {}


class RunningServers(Visit):
    """Servers that run, one for each γ."""

    def __init__(self, engines: Sequence[EngineConfig], open_client: Connect = connect) -> None:
        super().__init__([one.gamma for one in engines if one.gamma is not None])
        self._engines, self._open, self._stack = engines, open_client, AsyncExitStack()

    async def __aenter__(self) -> Mapping[int, ServedArm]:
        """The arms of the servers that answer and have the model.

        Raises:
            ValueError: none does, or a key is not in the environment.
        """
        found: dict[int, ServedArm] = {}
        for engine in self._engines:
            assert engine.base_url is not None
            assert engine.gamma is not None
            client = await self._stack.enter_async_context(self._open(engine, engine.base_url))
            try:
                await client.check_model()
            except ValueError as error:
                self.lost[engine.gamma] = str(error)
                continue
            found[engine.gamma] = ServedArm(gamma=engine.gamma, client=client, server=engine.base_url)
        if not found:
            await self._stack.aclose()
            raise ValueError(next(iter(self.lost.values())))
        return found

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the clients."""
        await self._stack.aclose()
