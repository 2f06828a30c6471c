"""Whether other programs took the processor while a sample ran, counted by the system and not told by its time.

    sample, is_disturbed = watched_for_neighbours(work)

A thread that loses its core to another program is switched involuntarily (getrusage(2), ru_nivcsw).  On two idle cores
that happened 3 times a second of one thread's work and 54 times of two threads', for housekeeping; beside a program
that kept one of the cores busy 100 to 240 times and over a thousand times.  How long the sample took has no part in it,
so that taking such a sample again favours no fast ones.  Systems that do not count report nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MOST_SWITCHES, MOST_SWITCHES_PER_S = 1, 80.0
"""Involuntary switches of any sample, and for each second of it, that an idle machine's own housekeeping explains."""

Result = TypeVar("Result")


def involuntary_switches() -> int:
    """Of all threads of this process, since it began; 0 where the system does not count them."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def watched_for_neighbours(work: Callable[[], Result]) -> tuple[Result, bool]:
    """What `work` returns, and whether more switches came meanwhile than an idle machine makes."""
    before, started_s = involuntary_switches(), time.monotonic()
    found = work()
    housekeeping = MOST_SWITCHES + MOST_SWITCHES_PER_S * (time.monotonic() - started_s)
    return found, involuntary_switches() - before > housekeeping
