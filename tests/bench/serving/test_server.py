"""A launched server: it is ready when it answers, and nothing of it is left, however its start or its end went."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from specgauge.bench.serving.closed_loop import LoadBlock, run_block
from specgauge.bench.serving.server import LaunchedServer, free_port
from specgauge.bench.serving.streams import OpenAIClient

ROOT = Path(__file__).parents[3]

HTTP = """
import http.server, sys, time
time.sleep({delay})
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == '/v1/models' else 404); self.end_headers()
    def log_message(self, *given): pass
http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
"""
CHILD = """
import os, subprocess, sys, pathlib
child = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'], stdout=subprocess.PIPE, start_new_session={leaves})
child.stdout.readline()
pathlib.Path({path!r}).write_text(str(child.pid))
"""  # noqa: E501


def command(port: int, before: str = "", *, delay: float = 0.0) -> list[str]:
    return [sys.executable, "-c", before + HTTP.format(delay=delay), str(port)]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pid: int) -> bool:
    until = time.monotonic() + 300
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not is_alive(pid)


def test_it_is_ready_once_it_answers_and_its_log_is_kept(tmp_path: Path) -> None:
    port = free_port()
    before = "import sys; print('loading', file=sys.stderr, flush=True)\n"
    with LaunchedServer(command(port, before, delay=0.1), port=port, log=tmp_path / "logs" / "one.log") as server:
        assert server.ended() is None
        assert server.start_s is not None
        assert server.start_s > 0.1
        assert server.base_url == f"http://127.0.0.1:{port}"
    assert (tmp_path / "logs" / "one.log").read_text() == "loading\n"
    assert "signal 15" in (server.ended() or "")
    with socket.socket() as one:
        assert one.connect_ex(("127.0.0.1", port)) != 0


def test_a_server_that_crashes_as_it_starts_shows_the_last_of_its_log(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "server.log"
    before = "for n in range(9): print('line', n)\nraise SystemExit('the key sekret does not fit')\n"
    with (
        pytest.raises(RuntimeError) as told,
        LaunchedServer(command(port, before), port=port, log=log, secrets=["sekret"]),
    ):
        pass
    assert str(told.value).endswith(
        f"the server ended while it started with exit code 1; the last lines of {log}: line 6 | line 7 | line 8 | "
        "the key … does not fit"
    )
    kept = log.read_text()
    assert "sekret" not in kept
    assert kept.endswith("line 8\nthe key … does not fit\n")
    assert [path.name for path in tmp_path.iterdir()] == ["server.log"]


def test_a_server_that_is_never_ready_is_ended(tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "pid"
    before = CHILD.format(path=str(path), leaves=False)
    with (
        pytest.raises(RuntimeError, match=r"within 1 s, it did not; raise launch.ready_seconds"),
        LaunchedServer(
            command(port, before, delay=600), port=port, log=tmp_path / "log", ready_seconds=1, stop_seconds=0.2
        ),
    ):
        pass
    assert gone(int(path.read_text()))


def test_a_taken_port_and_a_missing_command_are_told_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        port = one.getsockname()[1]
        with (
            pytest.raises(ValueError, match=f"{port} is taken; is a server of an earlier"),
            LaunchedServer(command(port), port=port, log=tmp_path / "log"),
        ):
            pass
    with (
        pytest.raises(ValueError, match="expected a command that is installed, got 'no-such-server'"),
        LaunchedServer(["no-such-server"], port=free_port(), log=tmp_path / "log"),
    ):
        pass
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("leaves", [False, True])
def test_every_process_of_it_ends_with_the_block(tmp_path: Path, leaves: bool) -> None:
    """A child that does not listen to SIGTERM, in the group or out of it."""
    port, path = free_port(), tmp_path / "pid"
    before = CHILD.format(path=str(path), leaves=leaves)
    with LaunchedServer(command(port, before), port=port, log=tmp_path / "log", stop_seconds=0.2):
        child = int(path.read_text())
        assert is_alive(child)
    assert gone(child)


def test_a_crash_in_the_middle_ends_what_it_left(tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "pid"
    before = CHILD.format(path=str(path), leaves=False) + "pathlib.Path('own').write_text(str(os.getpid()))\n"
    with LaunchedServer(
        [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r})\n{before}{HTTP.format(delay=0)}", str(port)],
        port=port, log=tmp_path / "log", stop_seconds=0.2,
    ) as server:  # fmt: skip
        os.kill(int((tmp_path / "own").read_text()), signal.SIGKILL)
        assert gone(int(path.read_text()))
        until = time.monotonic() + 300
        while (why := server.ended()) is None and time.monotonic() < until:
            time.sleep(0.02)
    assert why is not None
    assert "the server ended with signal 9; it printed nothing" in why


def test_it_ends_where_its_guard_was_killed(tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "pid"
    before = CHILD.format(path=str(path), leaves=False)
    with LaunchedServer(command(port, before), port=port, log=tmp_path / "log", stop_seconds=0.2) as server:
        (guard,) = [
            int(found.name) for found in Path("/proc").iterdir() if found.name.isdecimal() and is_guard_of(found, port)
        ]
        os.kill(guard, signal.SIGKILL)
        assert gone(guard)
        assert "signal 9" in (server.ended() or "")
    assert gone(int(path.read_text()))


def is_guard_of(process: Path, port: int) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith(b"guard.py") for word in words) and str(port).encode() in words


def test_a_server_that_crashes_while_it_is_measured(tmp_path: Path) -> None:
    """The simulated engine as a process: the block is void, and the server's end is told with its log."""
    port, log = free_port(), tmp_path / "engine.log"
    settings = json.dumps({"crash_after": 6, "step_s": 0.002})
    engine = [sys.executable, "-m", "tests.engine_server", "--port", str(port), "--gamma", "2", "--settings", settings]

    async def measure(base_url: str) -> LoadBlock:
        async with OpenAIClient(base_url, "target") as client:
            return await run_block(client, [f"a {n}" for n in range(20)], batch_size=2, max_new_tokens=8, gamma=2)

    env = {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    with LaunchedServer(engine, port=port, log=log, env=env) as server:
        block = asyncio.run(measure(server.base_url))
        until = time.monotonic() + 300
        while (why := server.ended()) is None and time.monotonic() < until:
            time.sleep(0.02)
    assert block.void is not None
    assert 2 <= len(block.done) <= 5
    assert why is not None
    assert why.endswith(
        f"exit code 1; the last lines of {log}: loading the model at gamma 2 | ready on port {port} | "
        "RuntimeError: the simulated engine crashed"
    )


OWNER = """
import sys, time
from pathlib import Path
from specgauge.bench.serving.closed_loop import LoadBlock, run_block
from specgauge.bench.serving.server import LaunchedServer
port = int(sys.argv[1])
with LaunchedServer(sys.argv[3:], port=port, log=Path(sys.argv[2]), stop_seconds=.2):
    print('up', flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_it_ends_where_its_owner_dies(tmp_path: Path, number: signal.Signals) -> None:
    port, path = free_port(), tmp_path / "pid"
    before = CHILD.format(path=str(path), leaves=False)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(port), str(tmp_path / "log"), *command(port, before)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert owner.stdout is not None
    with owner.stdout:
        assert owner.stdout.readline() == b"up\n"
    owner.send_signal(number)
    owner.wait(30)
    assert gone(int(path.read_text()))
