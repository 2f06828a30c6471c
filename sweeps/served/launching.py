"""Servers that are started for a visit and end with it: one for each γ, or one that takes every γ in turn.

StartedServer(launch, 2, blocks=range(3))            visits: 0, 1, 2, 4, then 4, 2, 1, 0: what drifts hits all alike
LiveServer(launch, (1, 2, 4, AT_ZERO), …)            between two visits of a plain server, and with γ = 0 as an arm:
                                                     it costs what a schedule does that says 0, not what plain decoding
                                                     costs; then servers of two γ alone, which check it
RequestServer(launch, (0, 1, 2, 4), …)               a llama.cpp whose build takes γ from each request
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from specgauge.bench.serving.closed_loop import LoadBlock
from specgauge.bench.serving.live_gamma import LiveGamma, for_all
from specgauge.bench.serving.live_steps import LiveRounds, rounds_in
from specgauge.bench.serving.presets import METHODS, Command, Served, filled, preset
from specgauge.bench.serving.request_gamma import gamma_fields, unheeded
from specgauge.bench.serving.server import LaunchedServer, free_port
from specgauge.bench.serving.streams import OpenAIClient
from specgauge.configs.engines import AT_ZERO, EngineConfig
from specgauge.sweeps.served.servers import ArmKey, Arms, Connect, ServedArm, Visit, connect
from specgauge.sweeps.store.served import LIVE, Purpose

BLOCKS_A_VISIT = 3
"""Blocks of a cell that a server takes before it is ended, at least."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """An engine that is started, and where its files go."""

    engine: EngineConfig
    folder: Path
    """Of logs, and of files that commands read."""
    streams: int
    """The most that it must hold at once."""
    open_client: Connect = connect
    alpha: float | tuple[float, ...] | None = None
    """How often drafts are accepted, whatever the models say; None is as they do."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the engine's speculation, beside ours or in their place."""

    @property
    def served(self) -> Served | None:
        """What the presets of its kind need; None where the user's command says all."""
        engine, launch = self.engine, self.engine.launch
        assert launch is not None
        if engine.kind not in METHODS or (engine.target is None and launch.command is not None):
            return None
        is_told = engine.draft is not None or engine.method not in (None, "draft_model")
        if launch.command is not None and not is_told:
            return None
        return Served(
            kind=engine.kind,
            target=engine.target or "",
            draft=engine.draft,
            method=engine.drafts_by,
            slots=self.streams,
            alpha=self.alpha,
            own=self.own,
            options=launch.options,
        )

    def under(self, policy: str, own: Mapping[str, Any]) -> Launch:
        """The engine under a policy of its own, whose files stand apart."""
        return replace(self, own=own, folder=self.folder / policy)

    def command(self, gamma: int, port: int) -> Command:
        """What is started for a γ.

        Raises:
            ValueError: the command says nothing of γ, or its kind has no words for its method.
        """
        launch, served = self.engine.launch, self.served
        assert launch is not None
        if launch.command is not None:
            return filled(launch.command, gamma=gamma, port=port, folder=self.folder, served=served)
        assert served is not None
        return preset(served, gamma=gamma, port=port, folder=self.folder)

    def live_command(self, gammas: Sequence[int], port: int) -> Command:
        """What is started for all these γ, its environment aside; ValueError as `command`."""
        launch, served = self.engine.launch, self.served
        assert launch is not None
        assert served is not None
        live, largest = for_all(served, gammas), max(gammas)
        if launch.command is None:
            return preset(live, gamma=largest, port=port, folder=self.folder)
        made = filled(launch.command, gamma=largest, port=port, folder=self.folder, served=live)
        return replace(made, words=(*made.words, *live.options))

    @property
    def is_live(self) -> bool:
        """Whether one server is to take every γ in turn."""
        launch = self.engine.launch
        return launch is not None and launch.live and self.engine.kind == "vllm" and self.served is not None

    @property
    def is_by_request(self) -> bool:
        """Whether one server may take every γ, each request its own, if its build does."""
        launch = self.engine.launch
        return launch is not None and launch.live and self.engine.kind == "llama_cpp"

    def server(self, command: Command, port: int, name: str) -> LaunchedServer:
        """The server of a command, not started yet."""
        launch, key = self.engine.launch, self.engine.api_key_env
        assert launch is not None
        command.write_files()
        return LaunchedServer(
            command.words,
            port=port,
            log=self.folder / f"{name}.log",
            env={**launch.env, **command.env},
            ready_seconds=launch.ready_seconds,
            stop_seconds=launch.stop_seconds,
            secrets=[os.environ.get(key, "")] if key else [],
        )


class _Started(Visit):
    """A server that is started on entering."""

    def __init__(self, launch: Launch, arms: Sequence[ArmKey], blocks: range) -> None:
        super().__init__(arms)
        self.blocks = blocks
        self._launch, self._stack = launch, AsyncExitStack()

    async def _start(self, server: LaunchedServer) -> OpenAIClient:
        """Start it, in a thread so that an interruption ends it at once; the client has its model.

        Raises:
            ValueError, RuntimeError, OSError: as `LaunchedServer`, or the server has no such model.
        """
        self._stack.callback(server.stop)
        await asyncio.to_thread(server.__enter__)
        engine = self._launch.engine
        client = await self._stack.enter_async_context(self._launch.open_client(engine, server.base_url))
        await client.check_model()
        return client

    def _lose(self, error: Exception) -> Arms:
        self.lost = dict.fromkeys(self.arms, str(error))
        return {}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server, and whatever it started."""
        await self._stack.aclose()


class StartedServer(_Started):
    """The server of one γ, or of a policy whose rounds have up to γ drafts."""

    def __init__(
        self, launch: Launch, gamma: int, blocks: range, *, policy: str | None = None, purpose: Purpose = "timing"
    ) -> None:
        super().__init__(launch, [gamma if policy is None else policy], blocks)
        self._gamma, self._policy, self.purpose = gamma, policy, purpose

    async def __aenter__(self) -> Arms:
        """The arm; none where the server did not start, which `lost` tells."""
        gamma, policy, port = self._gamma, self._policy, free_port()
        try:
            server = self._launch.server(self._launch.command(gamma, port), port, policy or f"gamma-{gamma}")
            client = await self._start(server)
        except (ValueError, RuntimeError, OSError) as error:
            await self._stack.aclose()
            return self._lose(error)
        except BaseException:
            await self._stack.aclose()
            raise
        arm = ServedArm(
            gamma=gamma if policy is None else 0,
            policy=policy,
            client=client,
            ended=server.ended,
            start_s=server.start_s,
        )
        return {arm.key: arm}


class LiveServer(_Started):
    """One vLLM that takes every γ in turn, between its steps; `AT_ZERO` among its arms is γ = 0 beside a plain server.

    `plain` is the visit of that one: where it could not be started, γ = 0 here stands in for it.
    """

    def __init__(self, launch: Launch, gammas: Sequence[int], blocks: range, *, plain: Visit | None = None) -> None:
        is_alone = plain is None or 0 in plain.lost
        super().__init__(launch, [*gammas, 0 if is_alone else AT_ZERO], blocks)
        self.stands_in = (0,) if is_alone else ()

    async def __aenter__(self) -> Arms:
        """The arms; none where the server did not start so, which `refused` tells."""
        launch, port = self._launch, free_port()
        own = launch.engine.launch
        assert launch.served is not None
        assert own is not None
        live: LiveGamma | None = None
        try:
            live = LiveGamma(launch.folder / LIVE)
            gammas = [gamma for gamma in self.gammas if gamma]
            made = live.command(launch.served, gammas, port=port, base={**os.environ, **own.env}, command=own.command)
            server = launch.server(made, port, LIVE)
            client = await self._start(server)
            if live.engine is None:
                raise RuntimeError("the server started, and its scheduler told nothing")
            if not live.engine.drafts_fewer:
                raise RuntimeError(f"vLLM {live.engine.version} drafts the largest γ whatever is set")
        except (ValueError, RuntimeError, OSError) as error:
            await self._stack.aclose()
            self.refused = (live and live.refusal) or str(error)  # the log's last lines do not have the cause
            return {}
        except BaseException:
            await self._stack.aclose()
            raise
        found = [
            ServedArm(
                gamma=gamma,
                policy=AT_ZERO if arm == AT_ZERO else None,
                client=client,
                server=LIVE,
                select=partial(_select, live, gamma),
                check=partial(_check, live, gamma),
                steps=partial(_steps, live),
                ended=server.ended,
                start_s=server.start_s,
            )
            for arm in self.arms
            for gamma in [0 if isinstance(arm, str) else arm]
        ]
        return {arm.key: arm for arm in found}


class RequestServer(_Started):
    """One server of the largest γ whose requests have each their own, where its build takes that from them.

    Where it does not, which `refused` tells, it is a server of the largest γ alone, for the blocks that those have.
    """

    def __init__(self, launch: Launch, gammas: Sequence[int], blocks: range, *, otherwise: range) -> None:
        super().__init__(launch, gammas, blocks)
        self._otherwise = otherwise

    async def __aenter__(self) -> Arms:
        """The arms; none where the server did not start, which `lost` tells."""
        gammas, port = self.gammas, free_port()
        largest = max(gammas)
        try:
            server = self._launch.server(self._launch.command(largest, port), port, f"gamma-{largest}")
            client = await self._start(server)
            self.refused = await _refusal(client, gammas)
        except (ValueError, RuntimeError, OSError) as error:
            await self._stack.aclose()
            self.refused, self.arms = str(error), (largest,)
            return self._lose(error)
        except BaseException:
            await self._stack.aclose()
            raise
        if self.refused is not None:
            self.arms, self.blocks = (largest,), self._otherwise
        return {
            gamma: ServedArm(
                gamma=gamma,
                client=client,
                fields=gamma_fields(gamma) if self.refused is None else {},
                ended=server.ended,
                start_s=server.start_s,
            )
            for gamma in (gammas if self.refused is None else (largest,))
        }


async def _refusal(client: OpenAIClient, gammas: Sequence[int]) -> str | None:
    try:
        return await unheeded(client, gammas)
    except ValueError as error:
        return str(error)


async def _select(live: LiveGamma, gamma: int) -> None:
    live.set(gamma)


def _steps(live: LiveGamma, block: LoadBlock) -> LiveRounds | None:
    """The rounds of a block; None where stages of the engine work on several steps at once."""
    is_told = live.engine is not None and live.engine.pipeline == 1
    return rounds_in(live.steps(), block) if is_told else None


def _check(live: LiveGamma, gamma: int) -> str | None:
    """Why the last block was not decoded at a γ; None where its steps were."""
    steps = live.steps()
    last = steps[-1].serial if steps else None
    own = [step for step in steps if step.serial == last]
    if not own or any(step.gamma != gamma for step in own[1:]):
        found = sorted({step.gamma for step in own[1:]})
        return f"expected steps of γ = {gamma}, the engine's had {', '.join(map(str, found)) or 'none'}"
    return None


def checked_gammas(launch: Launch, gammas: Sequence[int]) -> list[int]:
    """The γ of a live server that are checked by restart: the largest, which it was started with, and the middle."""
    own = sorted(gamma for gamma in gammas if gamma)
    is_checked = launch.is_live and launch.engine.launch is not None and launch.engine.launch.check_live
    return sorted({own[(len(own) - 1) // 2], own[-1]}) if is_checked and own else []


def launched_visits(
    launch: Launch,
    gammas: Sequence[int],
    *,
    blocks: int,
    most: int,
    checked: Sequence[int] = (),
    policies: Mapping[str, tuple[Launch, int]] = {},
) -> Iterator[Visit]:
    """The visits of an engine that is started: by arm and back, `blocks` of each cell in one, up to `most` of them all.

    A live vLLM is one visit, between two of a plain server and of every policy, and followed by servers of the γ that
    are `checked`; a llama.cpp that takes γ from its requests is one alone. Where they refuse, every γ has a server of
    its own, as every policy has: its launch and the most drafts that it may take. The caller ends where everything is
    known.
    """
    order: list[ArmKey] = [*gammas, *policies]

    def started(arm: ArmKey, first: int) -> Visit:
        own = range(first, min(first + blocks, most))
        if isinstance(arm, int):
            return StartedServer(launch, arm, own)
        under, gamma = policies[arm]
        return StartedServer(under, gamma, own, policy=arm)

    if launch.is_live:
        apart: list[ArmKey] = [0, *policies]
        before = [started(arm, 0) for arm in apart]
        yield from before
        live = LiveServer(launch, [gamma for gamma in gammas if gamma], range(most), plain=before[0])
        yield live
        if live.refused is None:
            yield from (StartedServer(launch, gamma, range(blocks), purpose="restart") for gamma in checked)
            yield from (started(arm, blocks) for arm in reversed(apart) if blocks < most)
            return
    is_begun = False
    if launch.is_by_request and any(gammas):
        yield from (started(arm, 0) for arm in policies)
        by_request = RequestServer(launch, gammas, range(most), otherwise=range(min(blocks, most)))
        yield by_request
        if by_request.refused is None:
            yield from (started(arm, blocks) for arm in reversed(list(policies)) if blocks < most)
            return
        is_begun, largest = True, max(gammas)
        order = [largest, *(arm for arm in order if arm != largest)]
    for first in range(0, most, blocks):
        visits = [started(arm, first) for arm in order]
        yield from visits[1:] if is_begun else visits
        is_begun = False
        order.reverse()
