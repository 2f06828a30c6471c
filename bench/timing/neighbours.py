"""What the system says of other programs while something is measured, and taking it again where they disturbed it.

    sample, disturbance = calm(work, retakes, on_cpu=True)    # `specgauge.model.stats.disturbance` says by what

Processor seconds and involuntary switches are this process's own (getrusage(2)); steal is read from /proc/stat,
pressure from /proc/pressure/cpu, and is unknown on systems without them.  All of it takes some 30 microseconds.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch

from specgauge.model.stats.disturbance import Disturbance

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MOST_RETAKES = 2
"""Of one sample."""
FEWEST_RETAKES, LEAST_CALMED = 6, 0.25
"""Retakes after which at least this share must have helped for further ones."""

Result = TypeVar("Result")


def involuntary_switches() -> int | None:
    """Of all threads of this process, since it began; None where the system does not count them."""
    return None if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def usable_cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def steal_s() -> float | None:
    """Seconds that the host gave to others since it began, the mean of all processors; None where that is unknown."""
    try:
        fields = _first_line("/proc/stat").split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError, AttributeError):  # AttributeError: Windows has no sysconf
        return None


def pressure_s() -> float | None:
    """Seconds in which something waited for a processor, since the system began; None where that is unknown."""
    try:
        return int(_first_line("/proc/pressure/cpu").rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None


def _first_line(path: str) -> str:
    file = os.open(path, os.O_RDONLY)  # a fifth of the time that a text file takes
    try:
        return os.read(file, 512).partition(b"\n")[0].decode("ascii")
    finally:
        os.close(file)


def watched_for_neighbours(work: Callable[[], Result], *, on_cpu: bool) -> tuple[Result, Disturbance]:
    """What `work` returns, and what the system counted meanwhile; `disturbed` is 1 or 0. on_cpu: all work is there."""
    before = steal_s(), pressure_s(), involuntary_switches(), time.process_time(), time.monotonic()
    found = work()
    after = steal_s(), pressure_s(), involuntary_switches(), time.process_time(), time.monotonic()
    steal, pressure, switches = (
        None if one is None or two is None else max(two - one, 0)
        for one, two in zip(before[:3], after[:3], strict=True)
    )
    counted = Disturbance(
        threads=torch.get_num_threads() if on_cpu else 1,  # which only feeds the device
        wall_s=after[4] - before[4],
        processor_s=after[3] - before[3],
        involuntary_switches=None if switches is None else int(switches),
        steal_s=steal,
        pressure_s=pressure,
    )
    return found, replace(counted, disturbed=int(counted.is_disturbed(on_cpu=on_cpu, cores=usable_cores())))


@dataclass(kw_only=True)
class Retakes:
    """What came of taking something again, in one cell."""

    fewest: int = FEWEST_RETAKES
    retaken: int = 0
    calmed: int = 0
    """How many of those were left alone then."""

    @property
    def help(self) -> bool:
        """Whether it is worth taking something again: no more on a machine that is busy throughout."""
        return self.retaken < self.fewest or self.calmed >= LEAST_CALMED * self.retaken


def calm(
    work: Callable[[], Result],
    retakes: Retakes,
    *,
    on_cpu: bool,
    most: int = MOST_RETAKES,
    spare_s: float = math.inf,
) -> tuple[Result, Disturbance]:
    """What `work` returns, done again where other programs disturbed it and that may help; the last counts.

    on_cpu: whether all of it is done there. most: retakes of this work. spare_s: seconds that they may take in all,
    each as long as the one before.
    """
    retaken_s = 0.0
    for retake in range(most + 1):
        found, counted = watched_for_neighbours(work, on_cpu=on_cpu)
        wall_s = counted.wall_s or 0.0
        retakes.calmed += retake > 0 and not counted.disturbed
        if not counted.disturbed or retake == most or not retakes.help or retaken_s + wall_s > spare_s:
            break
        retakes.retaken += 1
        retaken_s += wall_s
    return found, replace(counted, retaken=retake, retaken_s=retaken_s)
