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
from dataclasses import dataclass
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


@dataclass(kw_only=True)
class _Stage:
    """What a stage has done and may still take, in seconds of one clock."""

    name: str = ""
    total: int = 0
    begun: int = 0
    """Steps that an earlier run had done."""
    done: int = 0
    limit_s: float | None = None
    is_fewest: bool = False
    started_s: float = 0.0
    aside_s: float = 0.0

    def working_s(self, now_s: float) -> float:
        """Seconds that tell its pace and count for its limit."""
        return max(0.0, now_s - self.started_s - self.aside_s)

    def most_s(self, now_s: float) -> float | None:
        """Seconds until its limit; None without one."""
        return None if self.limit_s is None else max(0.0, self.limit_s - self.working_s(now_s))

    def end(self, now_s: float) -> int:
        """Steps it should have done in the end: as foreseen, or as many as its limit leaves time for at its pace."""
        foreseen, steps, left_s = max(self.total, self.done), self.done - self.begun, self.most_s(now_s)
        is_by_limit = self.done > self.total if self.is_fewest else steps >= FEWEST_STEPS
        if left_s is None or not is_by_limit or not steps or self.working_s(now_s) == 0.0:
            return foreseen
        by_limit = self.done + round(steps * left_s / self.working_s(now_s))
        return by_limit if self.is_fewest else min(foreseen, by_limit)


class Lines:
    """Plain lines: one when a stage begins, then at most one every `LINE_EVERY_S` seconds."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        """Write to `stream`; `now` tells the time in seconds."""
        self._stream, self._now = stream, now
        self._stage, self._last_s = _Stage(), 0.0

    def start(
        self, stage: str, total: int, done: int = 0, limit_s: float | None = None, *, is_fewest: bool = False
    ) -> None:
        """Print the stage."""
        self._last_s = self._now()
        self._stage = _Stage(
            name=stage,
            total=total,
            begun=done,
            done=done,
            limit_s=limit_s,
            is_fewest=is_fewest,
            started_s=self._last_s,
        )
        self.say(f"{stage} …")

    def advance(self, steps: int = 1) -> None:
        """Count, and print when the last line is old enough."""
        stage = self._stage
        stage.done += steps
        if self._now() - self._last_s >= LINE_EVERY_S:
            self._last_s = self._now()
            more = stage.done > stage.total and stage.limit_s is not None
            or_more = " or more" if stage.is_fewest and stage.done < stage.total else ""
            of = "" if more else f" of {max(stage.total, stage.done)}{or_more}"
            self.say(f"{stage.name}: {stage.done}{of}{self._left()}")

    def _left(self) -> str:
        """The time left at the pace of this stage so far, within its limit; nothing before or after that is known."""
        stage, now_s = self._stage, self._now()
        steps, left, most_s = stage.done - stage.begun, stage.total - stage.done, stage.most_s(now_s)
        if steps < FEWEST_STEPS:
            return ""
        if left <= 0:
            return f", at most {duration_text(most_s)} left" if left < 0 and most_s else ""
        left_s = stage.working_s(now_s) / steps * left
        if most_s is None or (stage.is_fewest and not most_s):
            return f", about {duration_text(left_s)} left"
        if stage.is_fewest and most_s > left_s:
            return f", {duration_text(left_s)} to {duration_text(most_s)} left"
        return f", about {duration_text(min(left_s, most_s))} left" if most_s else ", its time is nearly up"

    def set_aside(self, seconds: float) -> None:
        """Leave them out of the pace."""
        self._stage.aside_s += seconds

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
        self._now, self._stage = now, _Stage()

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
        self._finish()
        self._stage = _Stage(
            name=stage,
            total=total,
            begun=done,
            done=done,
            limit_s=limit_s,
            is_fewest=is_fewest,
            started_s=self._now(),
        )
        self._task = self._bars.add_task(stage, total=max(total, done), completed=done)

    def _finish(self) -> None:
        if self._task is not None:
            self._bars.update(self._task, total=self._stage.done, completed=self._stage.done)
            self._bars.stop_task(self._task)

    def advance(self, steps: int = 1) -> None:
        """Move the bar, and its end to where the limit should be, if that is what ends the stage."""
        assert self._task is not None
        self._stage.done += steps
        self._bars.update(self._task, completed=self._stage.done, total=self._stage.end(self._now()))

    def set_aside(self, seconds: float) -> None:
        """Leave them out of the pace."""
        self._stage.aside_s += seconds

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
