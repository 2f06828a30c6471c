"""The seconds one call of `run` may spend, all pairs and processes together.

deadline = Deadline(config.limits.run_seconds)
if deadline.is_spent: ...                # begin nothing more
Deadline(deadline.left_s)                # in a process that is started now
"""

from __future__ import annotations

import time
from collections.abc import Callable

RUN_SECONDS = "limits.run_seconds"


class OutOfTimeError(TimeoutError):
    """Something was to begin after the seconds were spent."""


class Deadline:
    """Begins when it is made; without seconds it is never reached."""

    def __init__(self, seconds: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """`seconds` from now on; `now` tells the time in seconds."""
        self._now = now
        self._ends_s = None if seconds is None else now() + seconds

    @property
    def left_s(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self._ends_s is None else max(0.0, self._ends_s - self._now())

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be begun."""
        return self.left_s == 0.0
