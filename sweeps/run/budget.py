"""The seconds that a run, a pair and a stage may take, and whether another block fits.

pair = Deadline(config.limits.run_seconds).share(1 / pairs)
acceptance = pair.share(ACCEPTANCE_SHARE)              # what it leaves is there for timing and decoding
if acceptance.holds(pace.expected_s(cell)): ...        # else nothing more of it is begun
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specgauge.configs.schema import PrecisionConfig
    from specgauge.sweeps.plan import Cell

ACCEPTANCE_SHARE = 0.3
"""Of the seconds left when acceptance begins; the others are for timing and decoding end to end."""
WRITING_SHARE = 0.5
"""Of those, where all texts are written before the first is passed over."""
TIMING_SHARE = 0.4
"""Of the seconds left when timing begins; the others are for decoding end to end."""


def needed_s(left_out_s: Mapping[str, float | None], *, timing_share: float) -> float | None:
    """Seconds of a pair's share in which all that was left out fits, each stage in what it may take; None if unknown.

    left_out_s: what was left out should take, by stage: `loading` before all others, `acceptance`, `timing` and
    `decoding`; None where nothing tells.
    timing_share: what timing may take of the seconds left when it begins.
    """
    known = {stage: seconds for stage, seconds in left_out_s.items() if seconds is not None}
    if len(known) < len(left_out_s):
        return None
    acceptance_s, timing_s = known.get("acceptance", 0.0), known.get("timing", 0.0)
    stages_s = (
        acceptance_s / ACCEPTANCE_SHARE,
        acceptance_s + timing_s / timing_share,
        acceptance_s + timing_s + known.get("decoding", 0.0),
    )
    return known.get("loading", 0.0) + max(stages_s)


class Deadline:
    """The seconds one call of `run` may spend, all pairs and processes together; without seconds there is no end."""

    def __init__(self, seconds: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """`seconds` from now on; `now` tells the time in seconds."""
        self._now = now
        self._ends_s = math.inf if seconds is None else now() + seconds

    def share(self, fraction: float) -> Deadline:
        """The end of a stage that may take this fraction of what is left now."""
        stage = Deadline(now=self._now)
        stage._ends_s = self._ends_s if fraction >= 1.0 else self._now() + fraction * self.left_s
        return stage

    def shares(self, parts: int) -> Iterator[Deadline]:
        """The ends of so many parts of a stage, alike; what one leaves is shared by those that follow."""
        return (self.share(1 / (parts - place)) for place in range(parts))

    def wait(self, seconds: float) -> None:
        """Let it end so much later: what was waited for is none of its own work."""
        self._ends_s += seconds

    @property
    def now_s(self) -> float:
        """The time in seconds, by the clock that it goes by."""
        return self._now()

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0; infinite without a limit."""
        return max(0.0, self._ends_s - self._now())

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is to be begun."""
        return self.left_s == 0.0

    def holds(self, seconds: float) -> bool:
        """Whether what should take so long may still be begun."""
        return 0.0 < self.left_s >= seconds


class BlockPace:
    """What the next block of a cell should take: at the pace of its last one, else of the slowest of other cells.

    The work of a block, where it is given, is what it should take by what is known before: a block of twice the work of
    the last one should take twice as long.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[float, float]] = {}
        """Seconds and work of a cell's last block, work 0 where it is not known."""
        self._slowest = 0.0
        """Seconds of a cell's first block for each second of its work."""

    def took(self, cell: Hashable, seconds: float, work_s: float | None = None) -> None:
        """A block of a cell took so long."""
        if cell not in self._last and work_s:
            self._slowest = max(self._slowest, seconds / work_s)
        self._last[cell] = seconds, work_s or 0.0

    def expected_s(self, cell: Hashable, work_s: float | None = None) -> float:
        """Seconds of the next one; 0 where nothing tells."""
        if cell not in self._last:
            return self._slowest * (work_s or 0.0)
        last_s, last_work_s = self._last[cell]
        return last_s * work_s / last_work_s if work_s and last_work_s else last_s


def timing_left_s(precision: PrecisionConfig, cells: Sequence[Cell], spent_s: Callable[[Cell], float]) -> float:
    """Seconds of work that the timing may still take, of which cells have spent some; infinite without a limit.

    A cell and a batch size have limits of their own; each still gets its least number of blocks. What is left of the
    run is not in it.
    """
    total_s = 0.0
    for batch_size in dict.fromkeys(cell.batch_size for cell in cells):
        own = [cell for cell in cells if cell.batch_size == batch_size]
        limits_s = (precision.max_seconds or math.inf, (precision.max_cell_seconds or math.inf) * len(own))
        total_s += max(0.0, min(limits_s) - sum(map(spent_s, own)))
    return total_s
