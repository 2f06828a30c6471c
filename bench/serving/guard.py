"""A process between a measurement and the server it starts, so that the server ends with it, however it ends.

Run by path, with the standard library alone: `python -I guard.py STOP_SECONDS COMMAND…`. It starts the command in a
session of its own, writes the process id to stdout, and ends the whole process group when the command ends or stdin is
closed, which the system does where the measurement dies. What left the group becomes this process's child (on Linux),
and is ended too. It exits with the command's status, 128 more than a signal.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_SUBREAPER = 36
_LOOK_S = 0.05


def main() -> int:
    """Start, wait, end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    stop_s = float(sys.argv[1])
    output = os.dup(1)
    server = subprocess.Popen(
        sys.argv[2:], stdin=subprocess.DEVNULL, stdout=2, stderr=2, start_new_session=True, preexec_fn=_as_before
    )
    os.write(output, f"{server.pid}\n".encode())
    while server.poll() is None:
        readable, _, _ = select.select([0], [], [], _LOOK_S)
        if readable and not os.read(0, 1):
            break
    end_group(server, stop_s)
    code = server.returncode
    return 128 - code if code < 0 else code


def _as_before() -> None:
    """What this process ignores, its command does not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def end_group(server: subprocess.Popen[bytes], stop_s: float) -> None:
    """Ask every process of the group to end, and make those that have not after `stop_s`."""
    until = time.monotonic() + stop_s
    _signal(server.pid, signal.SIGTERM)
    while time.monotonic() < until and (server.poll() is None or _is_alive(server.pid)):
        _reap(server)
        time.sleep(_LOOK_S)
    _signal(server.pid, signal.SIGKILL)
    server.wait()
    for child in _children():
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
    _reap(server)


def _signal(group: int, number: int) -> None:
    with suppress(OSError):
        os.killpg(group, number)


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _children() -> list[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    with suppress(OSError):
        return [int(word) for word in path.read_text().split()]
    return []


def _reap(server: subprocess.Popen[bytes]) -> None:
    """Take leave of orphans, but not of the server, whose status is waited for."""
    for child in _children():
        if child != server.pid:
            with suppress(OSError):
                os.waitpid(child, os.WNOHANG)


if __name__ == "__main__":
    sys.exit(main())
