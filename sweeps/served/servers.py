"""Servers that are visited: a time in which some γ can be measured, whose arms interleave; here those that run.

async with RunningServers(pair.engines) as arms:                   # the servers answer
    await arms[2].select()
    arms[2].client
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.bench.serving.live_steps import LiveRounds
from specgauge.bench.serving.streams import OpenAIClient
from specgauge.configs.engines import AT_ZERO, EngineConfig
from specgauge.sweeps.store.served import Purpose

T = TypeVar("T")
Connect = Callable[[EngineConfig, str], OpenAIClient]
"""A client of an engine at an address."""


def connect(engine: EngineConfig, base_url: str) -> OpenAIClient:
    """The client of an engine at an address; ValueError where its key is not in the environment."""
    return OpenAIClient(base_url, engine.model, api_key_env=engine.api_key_env, metrics_url=engine.metrics_url)


async def _nothing() -> None:
    """A server whose γ is what it is."""


def _well() -> str | None:
    """Nothing to say."""
    return None


def _untold(block: LoadBlock) -> None:
    """An engine that logs no steps."""


ArmKey = int | str
"""A γ, 0 of plain decoding, or the name of a policy of the engine's own."""


@dataclass(kw_only=True)
class ServedArm:
    """One γ, or a policy of the engine's own, on a server that is there."""

    gamma: int
    """Drafts of a round; 0 under a policy, which chooses them."""
    policy: str | None = None
    client: OpenAIClient
    server: str | None = None
    """Its name, where there are several."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Of its requests, where they say which γ is theirs."""
    select: Callable[[], Awaitable[None]] = _nothing
    """Makes the server take this γ from now on."""
    check: Callable[[], str | None] = _well
    """Why the last block was not of this γ; None where it was."""
    steps: Callable[[LoadBlock], LiveRounds | None] = _untold
    """Rounds of a block that the engine itself logged; None where it logs none."""
    ended: Callable[[], str | None] = _well
    """Why the server is gone; None while it runs."""
    start_s: float | None = None
    """Seconds from its start until it answered, where it was started here: loading, compiling, capturing."""
    warm: set[str] = field(default_factory=set)
    """Cells that it has warmed up in."""

    @property
    def key(self) -> ArmKey:
        """What the arm is called."""
        return self.gamma if self.policy is None else self.policy

    @property
    def fixed_gamma(self) -> int | None:
        """γ of all its rounds; None under a policy that chooses it."""
        return self.gamma if self.policy in (None, AT_ZERO) else None


Arms = Mapping[ArmKey, ServedArm]


class Visit(AbstractAsyncContextManager[Arms]):
    """Servers that are there from its beginning to its end, by arm; `lost` says why one cannot be measured in it."""

    blocks: range | None = None
    """Numbers of the blocks that are taken in it; None is as many as are needed."""
    refused: str | None = None
    """Why a server that was to take every γ does not, so that each needs its own."""
    purpose: Purpose = "timing"
    stands_in: tuple[ArmKey, ...] = ()
    """Arms that it takes in the place of servers of their own, which did not start."""

    def __init__(self, arms: Sequence[ArmKey]) -> None:
        self.arms = tuple(arms)
        self.lost: dict[ArmKey, str] = {}

    @property
    def gammas(self) -> tuple[int, ...]:
        """Those of its arms that are a γ."""
        return tuple(arm for arm in self.arms if isinstance(arm, int))


def running_key(engine: EngineConfig) -> ArmKey:
    """The arm of a server that runs."""
    if engine.arm is not None:
        return engine.arm
    assert engine.gamma is not None
    return engine.gamma


class RunningServers(Visit):
    """Servers that run, one for each γ or policy."""

    def __init__(self, engines: Sequence[EngineConfig], open_client: Connect = connect) -> None:
        super().__init__([running_key(one) for one in engines])
        self._engines, self._open, self._stack = engines, open_client, AsyncExitStack()

    async def __aenter__(self) -> Arms:
        """The arms of the servers that answer and have the model.

        Raises:
            ValueError: none does, or a key is not in the environment.
        """
        found: dict[ArmKey, ServedArm] = {}
        for engine in self._engines:
            assert engine.base_url is not None
            key = running_key(engine)
            client = await self._stack.enter_async_context(self._open(engine, engine.base_url))
            try:
                await client.check_model()
            except ValueError as error:
                self.lost[key] = str(error)
                continue
            found[key] = ServedArm(gamma=engine.gamma or 0, policy=engine.arm, client=client, server=engine.base_url)
        if not found:
            await self._stack.aclose()
            raise ValueError(next(iter(self.lost.values())))
        return found

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the clients."""
        await self._stack.aclose()


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """What some work gives, as `asyncio.run`; tasks that an interruption breaks off are not complained of."""
    is_interrupted = False

    def told(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not is_interrupted and not isinstance(context.get("exception"), KeyboardInterrupt):
            loop.default_exception_handler(context)

    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(told)
        try:
            return runner.run(work)
        except KeyboardInterrupt:
            is_interrupted = True
            raise
