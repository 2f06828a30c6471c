"""Clocks: how long work really took, on devices that return before they finish.

A launch on a GPU returns at once; only a synchronise tells when the work ended.  Every timing of specgauge goes through
`timed_marks`, which synchronises before the first mark and after the last step, and never in between: a wait after each
step would show launch latency that a real round hides.  Only work of several devices is waited for at every mark: no
event of one of them stands behind the work of another.

    marks = timed_marks(clock, [step] * 4)       # cumulative seconds C(1) … C(4)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from specgauge.bench.devices import distinct_devices


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


class JointClock:
    """The host's clock for work on several devices: a mark waits until all of it has ended."""

    marks_on_host = True

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

    def elapsed_s(self, start: float, end: float) -> float:
        """Seconds between two host times."""
        return end - start


def clock_for(*devices: torch.device) -> Clock:
    """CUDA events for a CUDA device, the host's clock for all others, and a joint one for several devices."""
    clocks: list[Clock] = [
        CudaClock(device) if device.type == "cuda" else HostClock(device) for device in distinct_devices(devices)
    ]
    assert clocks, "no device"
    return clocks[0] if len(clocks) == 1 else JointClock(clocks)


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
