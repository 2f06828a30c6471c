"""Clocks: how long work really took on devices that return before they finish, stops of the process left out.

`timed_marks` synchronises before the first mark and after the last step, and never in between: a wait after each step
would show launch latency that a real round hides.  Only work of several devices is waited for at every mark: no event
of one of them stands behind the work of another.

    marks = timed_marks(clock, [step] * 4)       # cumulative seconds C(1) … C(4)

A time that spans a stop of the process (Ctrl-Z and `fg`, a scheduler) says nothing of the work.  SIGCONT ends every
stop; whatever was running when it came is done once more.  A frozen container sends no signal and is not noticed.

    samples = undisturbed(lambda: [sample() for _ in range(5)])
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Protocol, TypeVar

import torch

from specgauge.bench.device import distinct_devices
from specgauge.bench.ranks import current_ranks


class Clock(Protocol):
    """What timing needs of a device."""

    marks_on_host: bool
    """True where a mark reads the host's time (then the last mark must follow the synchronise)."""

    def synchronize(self) -> None:
        """Wait until all work given to the device has ended."""

    def mark(self) -> Any:
        """A point in time, taken without waiting where work is on one device."""

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Seconds between two marks, valid after a synchronise."""


class HostClock:
    """For the CPU, where work has ended when its call returns; on other devices it synchronises as well."""

    marks_on_host = True

    def __init__(self, device: torch.device | None = None) -> None:
        self._device = device

    def synchronize(self) -> None:
        """Wait for the device, where it has a queue."""
        if self._device is not None and self._device.type == "mps":
            torch.mps.synchronize()

    def mark(self) -> float:
        """The host's monotonic clock, in seconds."""
        return time.perf_counter()

    def elapsed_s(self, start: float, end: float) -> float:
        """Seconds between two host times."""
        return end - start


class CudaClock:
    """CUDA events on the current stream of one device."""

    marks_on_host = False

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def synchronize(self) -> None:
        """Wait for every stream of the device."""
        torch.cuda.synchronize(self._device)

    def mark(self) -> torch.cuda.Event:
        """An event recorded behind all work queued so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def elapsed_s(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds on the device between two events."""
        return float(start.elapsed_time(end)) * 1e-3


class JointClock(HostClock):
    """The host's clock for work on several devices: a mark waits until all of it has ended."""

    def __init__(self, clocks: Sequence[Clock], now: Callable[[], float] = time.perf_counter) -> None:
        """Take a clock of each device; ``now`` is the host's monotonic clock, in seconds."""
        self._clocks, self._now = tuple(clocks), now

    def synchronize(self) -> None:
        """Wait for every device."""
        for clock in self._clocks:
            clock.synchronize()

    def mark(self) -> float:
        """The host's time once every device has ended its work."""
        self.synchronize()
        return self._now()


class RanksClock:
    """A clock of rank 0 for a model that is split over ranks: it starts and ends when every rank has ended its work."""

    def __init__(self, clock: Clock, wait: Callable[[], None]) -> None:
        """Take this rank's own clock, and what waits for all others."""
        self._clock, self._wait = clock, wait
        self.marks_on_host = clock.marks_on_host

    def synchronize(self) -> None:
        """Wait for this rank's devices, then for the other ranks."""
        self._clock.synchronize()
        self._wait()

    def mark(self) -> Any:
        """A point in time of this rank, which waits for no other."""
        return self._clock.mark()

    def elapsed_s(self, start: Any, end: Any) -> float:
        """Seconds between two marks of this rank."""
        return self._clock.elapsed_s(start, end)


def clock_for(*devices: torch.device) -> Clock:
    """CUDA events for a CUDA device, the host's clock for all others, and a joint one for several devices.

    In a process that leads others, one that waits for all of them.
    """
    clocks: list[Clock] = [
        CudaClock(device) if device.type == "cuda" else HostClock(device) for device in distinct_devices(devices)
    ]
    assert clocks, "no device"
    clock = clocks[0] if len(clocks) == 1 else JointClock(clocks)
    ranks = current_ranks()
    return clock if ranks is None or not ranks.is_leader else RanksClock(clock, ranks.wait)


def timed_marks(clock: Clock, steps: Sequence[Callable[[], object]]) -> list[float]:
    """Run the steps in order; cumulative seconds after each, from a synchronised start to a synchronised end."""
    assert steps, "nothing to time"
    clock.synchronize()
    start = clock.mark()
    marks = []
    for step in steps:
        step()
        marks.append(clock.mark())
    clock.synchronize()
    if clock.marks_on_host:
        marks[-1] = clock.mark()
    return [clock.elapsed_s(start, mark) for mark in marks]


Result = TypeVar("Result")


class _Stops:
    """How often this process continued after a stop, since somebody asked first."""

    def __init__(self) -> None:
        self.count, self._watches = 0, False

    def watch(self) -> None:
        """Count from now on; only the main thread may say so."""
        if self._watches or threading.current_thread() is not threading.main_thread():
            return
        signal.signal(signal.SIGCONT, self._continued)
        self._watches = True

    def _continued(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
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
