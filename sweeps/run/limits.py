"""What one run may spend, and what is left out when it is spent.

Cells over `limits.memory` are skipped before anything is loaded; once `limits.run_seconds` is spent nothing more is
begun, and what was left out is kept in words.

    budget = PairBudget(config=config, pair=pair, cells=cells, deadline=Deadline(60.0))
    for cell, reason in budget.too_large(): ...
    if budget.leaves_out("acceptance under greedy"): return

The seconds one call of `run` may spend, all pairs and processes together.

deadline = Deadline(config.limits.run_seconds)
if deadline.is_spent: ...                # begin nothing more
Deadline(deadline.left_s)                # in a process that is started now
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from specgauge.sweeps.describe import read_pair_sizes
from specgauge.sweeps.estimate import over_memory
from specgauge.sweeps.plan import Cell

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config


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


SPENT = f"left out: {RUN_SECONDS} is spent"
MISSING = "whatever was missing"
TOO_LARGE = "skipped: every cell is over limits.memory"


@dataclass(kw_only=True)
class PairBudget:
    """The limits of a run, held against one pair."""

    config: Config
    pair: PairConfig
    cells: Sequence[Cell]
    deadline: Deadline
    left_out: list[str] = field(default_factory=list)
    """What was left out when the seconds were spent, in words."""
    _skipped: set[str] = field(default_factory=set)

    @property
    def fitting(self) -> list[Cell]:
        """The cells that are measured."""
        return [cell for cell in self.cells if cell.id not in self._skipped]

    def too_large(self) -> Iterator[tuple[Cell, str]]:
        """Cells that are skipped from now on, each with its reason, by the sizes that the models' files tell by now.

        Raises:
            ValueError: a model directory is missing or damaged.
        """
        if self.config.limits.memory is None:
            return
        sizes = read_pair_sizes(self.pair)
        for cell in self.fitting:
            reason = over_memory(self.config, sizes, cell)
            if reason is not None:
                self._skipped.add(cell.id)
                yield cell, reason

    def timing_left_s(self, spent_s: Callable[[Cell], float]) -> float | None:
        """Seconds of work that the timing may still take, of which cells have spent some; None where nothing limits it.

        A cell and a batch size have limits of their own; each still gets its least number of blocks. What is left of
        the run is not in it.
        """
        precision = self.config.precision
        groups: dict[int, list[Cell]] = {}
        for cell in self.fitting:
            groups.setdefault(cell.batch_size, []).append(cell)
        total_s = 0.0
        for cells in groups.values():
            own_s = precision.max_cell_seconds
            limits_s = [precision.max_seconds, None if own_s is None else own_s * len(cells)]
            known_s = [limit for limit in limits_s if limit is not None]
            if not known_s:
                return None
            total_s += max(0.0, min(known_s) - sum(map(spent_s, cells)))
        return total_s

    def leaves_out(self, what: str) -> bool:
        """Whether something is not begun since the seconds are spent, which is kept in words."""
        if self.deadline.is_spent and what not in self.left_out:
            self.left_out.append(what)
        return self.deadline.is_spent
