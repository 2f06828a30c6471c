"""Times that a stop of the process fell into are taken again: Ctrl-Z and `fg`, a scheduler that suspends jobs.

The clock goes on while a process is stopped, so a time that spans a stop says nothing of the work. SIGCONT ends every
stop and is counted; whatever was under way when it came is done once more.

    samples = undisturbed(lambda: [sample() for _ in range(5)])

A frozen container or a virtual machine that was paused sends no signal and is not noticed.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")

_GOES_ON = getattr(signal, "SIGCONT", None)
"""None where processes cannot be stopped by signal."""


class _Stops:
    """How often this process went on after a stop, since somebody asked first."""

    def __init__(self) -> None:
        self.count, self._watches = 0, False

    def watch(self) -> None:
        """Count from now on; only the main thread may say so."""
        if self._watches or _GOES_ON is None or threading.current_thread() is not threading.main_thread():
            return
        signal.signal(_GOES_ON, self._went_on)
        self._watches = True

    def _went_on(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.count += 1


_STOPS = _Stops()


def watched(work: Callable[[], Result]) -> tuple[Result, bool]:
    """What `work` returns, and whether the process was stopped meanwhile."""
    _STOPS.watch()
    before = _STOPS.count
    return work(), _STOPS.count != before


def undisturbed(work: Callable[[], Result]) -> Result:
    """What `work` returns when the process was not stopped meanwhile; done again as often as it was."""
    while True:
        found, was_stopped = watched(work)
        if not was_stopped:
            return found
