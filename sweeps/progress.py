"""How far a run is, and how long it should still take, on stderr: bars on a terminal, plain lines otherwise.

with progress_to(sys.stderr) as progress:
    progress.start("timing", total=120, done=40)
    progress.advance()
    progress.say("batch size 8: out of memory")
    progress.start("timing", total=120, limit_s=300.0, is_fewest=True)    # or more steps, but no more seconds
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from specgauge.sweeps.units import duration_text

if TYPE_CHECKING:
    from rich.progress import TaskID

LINE_EVERY_S = 10.0
FEWEST_STEPS = 3
"""Steps of a stage that tell its pace."""


class Progress(Protocol):
    """What a run tells while it works."""

    def start(
        self, stage: str, total: int, done: int = 0, limit_s: float | None = None, *, is_fewest: bool = False
    ) -> None:
        """A stage of about `total` steps begins, `done` of them by an earlier run; the one before it has ended.

        limit_s: seconds after which no more than the least is done, however many steps were foreseen.
        is_fewest: whether all `total` steps are taken, and more of them until `limit_s`.
        """

    def advance(self, steps: int = 1) -> None:
        """So many steps of the stage are done."""

    def set_aside(self, seconds: float) -> None:
        """So many seconds of the stage went into what its other steps do not need: they tell nothing of its pace."""

    def say(self, text: str) -> None:
        """One line that stays."""


class Lines:
    """Plain lines: one when a stage begins, then at most one every `LINE_EVERY_S` seconds."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        """Write to `stream`; `now` tells the time in seconds."""
        self._stream, self._now = stream, now
        self._stage, self._begun, self._done, self._total = "", 0, 0, 0
        self._started = self._last = self._aside_s = 0.0
        self._limit_s: float | None = None
        self._is_fewest = False

    def start(
        self, stage: str, total: int, done: int = 0, limit_s: float | None = None, *, is_fewest: bool = False
    ) -> None:
        """Print the stage."""
        self._is_fewest = is_fewest
        self._stage, self._begun, self._done, self._total, self._limit_s = stage, done, done, total, limit_s
        self._started = self._last = self._now()
        self._aside_s = 0.0
        self.say(f"{stage} …")

    def advance(self, steps: int = 1) -> None:
        """Count, and print when the last line is old enough."""
        self._done += steps
        if self._now() - self._last >= LINE_EVERY_S:
            self._last = self._now()
            more = self._done > self._total and self._limit_s is not None
            or_more = " or more" if self._is_fewest and self._done < self._total else ""
            of = "" if more else f" of {max(self._total, self._done)}{or_more}"
            self.say(f"{self._stage}: {self._done}{of}{self._left()}")

    def _left(self) -> str:
        """The time left at the pace of this stage so far, within its limit; nothing before that is known."""
        steps, left, spent_s = self._done - self._begun, self._total - self._done, self._now() - self._started
        most_s = None if self._limit_s is None else max(0.0, self._limit_s - spent_s)
        if steps < FEWEST_STEPS:
            return ""
        if left > 0:
            left_s = max(0.0, spent_s - self._aside_s) / steps * left
            if self._is_fewest and most_s is not None and most_s > left_s:
                return f", {duration_text(left_s)} to {duration_text(most_s)} left"
            return f", about {duration_text(min(left_s, most_s) if most_s else left_s)} left"
        return f", at most {duration_text(most_s)} left" if left < 0 and most_s else ""

    def set_aside(self, seconds: float) -> None:
        """Leave them out of the pace."""
        self._aside_s += seconds

    def say(self, text: str) -> None:
        """Print `text`."""
        print(text, file=self._stream, flush=True)


class Bars:
    """One bar for each stage."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        """Draw on the terminal `stream`; `open` and `close` it around the work. `now` tells the time in seconds."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bars = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(file=stream),
        )
        self._task: TaskID | None = None
        self._now, self._started = now, 0.0
        self._begun, self._done, self._total = 0, 0, 0
        self._limit_s: float | None = None

    def open(self) -> None:
        """Begin to draw."""
        self._bars.start()

    def close(self) -> None:
        """Leave the bars as they are."""
        self._bars.stop()

    def start(
        self, stage: str, total: int, done: int = 0, limit_s: float | None = None, *, is_fewest: bool = False
    ) -> None:
        """Add the stage's bar; what the one before it lacked is not to come."""
        del is_fewest  # the end moves once it is reached
        self._finish()
        self._begun, self._done, self._total = done, done, total
        self._started, self._limit_s = self._now(), limit_s
        self._task = self._bars.add_task(stage, total=max(total, done), completed=done)

    def _finish(self) -> None:
        if self._task is not None:
            self._bars.update(self._task, total=self._done, completed=self._done)
            self._bars.stop_task(self._task)

    def advance(self, steps: int = 1) -> None:
        """Move the bar; more steps than foreseen move its end to where the limit should be."""
        assert self._task is not None
        self._done += steps
        total = max(self._total, self._done)
        spent_s = self._now() - self._started
        if self._done > self._total and self._limit_s is not None and spent_s > 0.0:
            total = max(total, self._begun + round((self._done - self._begun) * self._limit_s / spent_s))
        self._bars.update(self._task, completed=self._done, total=total)

    def set_aside(self, seconds: float) -> None:
        """Nothing: a bar goes by its latest steps."""

    def say(self, text: str) -> None:
        """Print `text` above the bars."""
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_to(stream: TextIO) -> Iterator[Progress]:
    """Bars where `stream` is a terminal, lines where it is not."""
    if not stream.isatty():
        yield Lines(stream)
        return
    bars = Bars(stream)
    bars.open()
    try:
        yield bars
    finally:
        bars.close()
