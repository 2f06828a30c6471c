"""A block of load on the simulated engine, in simulated time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from specgauge.bench.serving.closed_loop import LoadBlock, run_block
from specgauge.bench.serving.streams import OpenAIClient, Prompt
from tests.engine_server.engine import Engine, EngineSettings
from tests.engine_server.simulated import EngineTransport, simulate

PROMPTS: tuple[Prompt, ...] = tuple(f"prompt {number} of some words" for number in range(400))
T = TypeVar("T")


def engine_of(**settings: Any) -> Engine:
    return Engine(EngineSettings(**settings))


def with_client(engine: Engine, work: Callable[[OpenAIClient], Coroutine[Any, Any, T]], **client: Any) -> T:
    """What some work with a client of the engine gives."""

    async def run() -> T:
        given = {"model": engine.settings.model, "transport": EngineTransport(engine), **client}
        async with OpenAIClient("http://engine", **given) as one:
            return await work(one)

    return simulate(run())


def block_of(
    engine: Engine,
    *,
    batch_size: int = 4,
    requests: int = 8,
    max_new_tokens: int = 32,
    prompts: tuple[Prompt, ...] = PROMPTS,
    client: dict[str, Any] | None = None,
    **more: Any,
) -> LoadBlock:
    given: dict[str, Any] = {"gamma": engine.settings.gamma, "poll_s": 0.05, **more}

    async def measure(one: OpenAIClient) -> LoadBlock:
        return await run_block(one, prompts[:requests], batch_size=batch_size, max_new_tokens=max_new_tokens, **given)

    return with_client(engine, measure, **(client or {}))
