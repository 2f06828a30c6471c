"""The engine behind a real port: on a thread of the test's process, or as a process of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from tests.engine_server.answers import answer
from tests.engine_server.engine import Engine, GoneError

HOST = "127.0.0.1"


def application(engine: Engine, gone: asyncio.Event | None = None) -> web.Application:
    async def handle(request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            got = await answer(engine, request.method, request.path, request.headers.get("Authorization"), body)
        except GoneError:
            return _reset(request, gone)
        if got.parts is None:
            return web.Response(status=got.status, body=got.body, headers={"Content-Type": got.content_type})
        response = web.StreamResponse(status=got.status, headers={"Content-Type": got.content_type})
        await response.prepare(request)
        try:
            async for part in got.parts:
                await response.write(part)
        except GoneError:
            return _reset(request, gone)
        except ConnectionError:
            await got.parts.aclose()  # type: ignore[attr-defined]
            return response
        await response.write_eof()
        return response

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    return app


def _reset(request: web.Request, gone: asyncio.Event | None) -> web.StreamResponse:
    """The connection breaks, as where the process dies."""
    if request.transport is not None:
        request.transport.abort()
    if gone is not None:
        gone.set()
    return web.Response(status=500)


@contextmanager
def running(engine: Engine) -> Iterator[str]:
    """The engine at a free port, as a base URL; ended with the block."""
    started, ports = threading.Event(), []
    loops: list[asyncio.AbstractEventLoop] = []
    stopping: list[asyncio.Event] = []

    async def serve() -> None:
        runner = web.AppRunner(application(engine), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, HOST, 0)
        await site.start()
        loops.append(asyncio.get_running_loop())
        stopping.append(asyncio.Event())
        ports.append(runner.addresses[0][1])
        started.set()
        await stopping[0].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(30)
    try:
        yield f"http://{HOST}:{ports[0]}"
    finally:
        loops[0].call_soon_threadsafe(stopping[0].set)
        thread.join(30)
