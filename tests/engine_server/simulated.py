"""Simulated time: an event loop whose clock jumps to the next timer, and a transport from client to engine."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import httpx

from tests.engine_server.answers import answer
from tests.engine_server.engine import Engine, GoneError

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Where nothing is to be read, the time that was to be waited for has passed."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0 if timeout is not None else None)
        if not ready and timeout:
            self.now_s += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def simulate(work: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in simulated time, which passes at once."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(work)


class _Body(httpx.AsyncByteStream):
    def __init__(self, parts: AsyncIterator[bytes]) -> None:
        self._parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._parts:
                yield part
        except GoneError as error:
            raise httpx.ReadError("connection reset") from error

    async def aclose(self) -> None:
        close = getattr(self._parts, "aclose", None)
        if close is not None:
            await close()


class EngineTransport(httpx.AsyncBaseTransport):
    """What a client of the engine is given instead of a network."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sent: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        body = await request.aread()
        try:
            got = await answer(
                self.engine, request.method, request.url.path, request.headers.get("Authorization"), body
            )
        except GoneError as error:
            raise httpx.ConnectError("connection refused") from error
        headers = {"Content-Type": got.content_type}
        if got.parts is None:
            return httpx.Response(got.status, headers=headers, content=got.body)
        return httpx.Response(got.status, headers=headers, stream=_Body(got.parts))
