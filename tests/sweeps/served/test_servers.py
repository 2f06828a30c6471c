"""Work on servers that is interrupted."""

import asyncio
import gc
import os
import signal
import time
from contextlib import suppress

import pytest

from specgauge.sweeps.served.servers import run_to_end


def test_a_second_interruption_leaves_no_complaints_of_asyncio(caplog: pytest.LogCaptureFixture) -> None:
    async def stream() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(30)
        raise ValueError("the connection broke off")

    async def work() -> None:
        streams = [asyncio.create_task(stream())]
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(30)
        finally:  # as a server is stopped, which takes its time
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
            assert not streams[0].done()

    with pytest.raises(KeyboardInterrupt):
        run_to_end(work())
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_what_nobody_waits_for_is_told_where_nothing_was_interrupted(caplog: pytest.LogCaptureFixture) -> None:
    async def lost() -> None:
        raise ValueError("nobody looks")

    async def work() -> int:
        task = asyncio.create_task(lost())
        await asyncio.sleep(0)
        del task
        gc.collect()
        return 3

    assert run_to_end(work()) == 3
    assert [record.name for record in caplog.records] == ["asyncio"]
