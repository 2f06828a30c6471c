"""A server that is started for a measurement, and whose every process ends with it.

    with LaunchedServer(["vllm", "serve", …], port=8000, log=run / "servers" / "gamma2.log") as server:
        server.base_url, server.start_s
        server.ended()                 # why, where it is gone; None while it runs

It runs under `guard.py`, in a process group of its own. That group is ended when the block ends, on Ctrl-C, and where
this process dies in any way. All that the server prints is in the log.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from specgauge.bench.serving import guard

HOST = "127.0.0.1"
READY_S = 900.0
STOP_S = 30.0
GUARD_S = 10.0
"""That the guard has after the time it gives the server."""
_ASKED = ("/health", "/v1/models")
_ANSWERS = (200, 401, 403)
"""Statuses of a server that is ready; the last ones want a key."""
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.05, 1.0
_LINES, _LONGEST_LINE = 4, 160
_READ_BYTES = 64 * 1024


def free_port() -> int:
    """A port that nothing listens on now."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


class LaunchedServer:
    """A server's command, started and waited for on entering the block."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        port: int,
        log: Path,
        env: Mapping[str, str] | None = None,
        ready_seconds: float = READY_S,
        stop_seconds: float = STOP_S,
        secrets: Sequence[str] = (),
    ) -> None:
        """Prepare; `secrets` are left out of what errors quote of the log, and of the log once it has ended."""
        self.command = tuple(command)
        self.port = port
        self.base_url = f"http://{HOST}:{port}"
        self.log = log
        self.start_s: float | None = None
        """Seconds from its start until it answered."""
        self._env = {**os.environ, **(env or {})}
        self._ready_seconds, self._stop_seconds, self._secrets = ready_seconds, stop_seconds, secrets
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    def __enter__(self) -> Self:
        """Start it and wait until it answers.

        Raises:
            ValueError: no such command, or the port is taken.
            RuntimeError: it ended while it started, with the last lines of its log, or it was not ready in time.
            OSError: its log cannot be written.
        """
        self._check()
        begun = time.monotonic()
        try:
            self._start()
            self._wait(begun)
        except BaseException:
            self.stop()
            raise
        self.start_s = time.monotonic() - begun
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End its processes."""
        self.stop()

    def ended(self) -> str | None:
        """Why it is gone, in a line with the last of its log; None while it runs."""
        code = None if self._guard is None else self._guard.poll()
        if code is None:
            return None
        how = f"exit code {code}" if 0 <= code <= 128 else f"signal {-code if code < 0 else code - 128}"
        return f"{self._name}: the server ended with {how}; {self._last_lines()}"

    def stop(self) -> None:
        """End every process of it; once it has ended, nothing."""
        try:
            self._end()
        finally:
            self._clean()

    def _end(self) -> None:
        own = self._guard
        if own is None or own.stdin is None:
            return
        with suppress(OSError):
            own.stdin.close()
        try:
            own.wait(self._stop_seconds + GUARD_S)
        except subprocess.TimeoutExpired:
            own.kill()
            own.wait()
        except BaseException:  # a second Ctrl-C does not wait
            own.kill()
            own.wait()
            self._kill()
            raise
        if own.returncode < 0:  # nobody else ends what it guarded
            self._kill()

    def _clean(self) -> None:
        """Take the secrets out of its log, which a server may print with its options or its environment."""
        secrets = [secret.encode() for secret in self._secrets if secret]
        if not secrets or self._guard is None:
            return
        cleaned = self.log.with_name(f"{self.log.name}.cleaned")
        with self.log.open("rb") as log, cleaned.open("wb") as kept:
            for line in log:
                for secret in secrets:
                    line = line.replace(secret, "…".encode())
                kept.write(line)
        cleaned.replace(self.log)

    def _kill(self) -> None:
        if self._pid is not None:
            with suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)

    @property
    def _name(self) -> str:
        return Path(self.command[0]).name

    def _check(self) -> None:
        if os.name != "posix":
            raise ValueError("launch: starting a server needs Linux or macOS; start it yourself and give its base_url")
        if shutil.which(self.command[0], path=self._env.get("PATH")) is None:
            raise ValueError(f"launch: expected a command that is installed, got {self.command[0]!r}")
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((HOST, self.port))
            except OSError as error:
                raise ValueError(
                    f"launch: expected a free port, {self.port} is taken; is a server of an earlier run still up? end "
                    "it, or give another port"
                ) from error

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        arguments = [sys.executable, "-I", "-S", str(Path(guard.__file__).resolve()), str(self._stop_seconds)]
        with self.log.open("ab") as log:
            self._guard = subprocess.Popen(
                [*arguments, *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        assert self._guard.stdout is not None
        with self._guard.stdout as told:
            line = told.readline()
        self._pid = int(line) if line.strip() else None

    def _wait(self, begun: float) -> None:
        look_s = _FIRST_LOOK_S
        while not self._is_ready():
            if (why := self.ended()) is not None:
                raise RuntimeError(why.replace("the server ended", "the server ended while it started"))
            if time.monotonic() - begun > self._ready_seconds:
                raise RuntimeError(
                    f"{self._name}: expected the server to answer at {self.base_url} within {self._ready_seconds:g} s, "
                    f"it did not; raise launch.ready_seconds; {self._last_lines()}"
                )
            time.sleep(look_s)
            look_s = min(2 * look_s, _LONGEST_LOOK_S)

    def _is_ready(self) -> bool:
        for path in _ASKED:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=5)
            try:
                connection.request("GET", path)
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException):
                return False
            finally:
                connection.close()
            if status in _ANSWERS:
                return True
            if status != 404:
                return False
        return False

    def _last_lines(self) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _READ_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            text = ""
        for secret in filter(None, self._secrets):
            text = text.replace(secret, "…")
        lines = [line.strip()[:_LONGEST_LINE] for line in text.splitlines() if line.strip()]
        if not lines:
            return f"it printed nothing ({self.log})"
        return f"the last lines of {self.log}: {' | '.join(lines[-_LINES:])}"
