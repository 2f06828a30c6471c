"""How far a run is, and how long it should still take, on stderr: bars on a terminal, plain lines otherwise.

    with progress_to(sys.stderr) as progress:
        progress.start("timing", total=120, done=40, limits=Limits(work_s=300.0, is_fewest=True))
        progress.advance()
        progress.say("batch size 8: out of memory")

>>> size_text(3 * 2**30), duration_text(90)
('3 GiB', '1.5 min')
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.progress import TaskID


def size_text(size_bytes: int | None) -> str:
    """Bytes in MiB or GiB, `unknown` for None."""
    if size_bytes is None:
        return "unknown"
    mebibytes = size_bytes / 2**20
    return f"{mebibytes / 1024:.3g} GiB" if mebibytes >= 1000 else f"{mebibytes:.3g} MiB"


def duration_text(seconds: float) -> str:
    """Seconds in s, min or h, at least 1 s."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    if seconds < 3600:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / 3600:.3g} h"


LINE_EVERY_S = 10.0
LINE_EVERY_SHARE = 0.1
"""Of the time that a stage has taken: the longer it is, the rarer its lines."""
FEWEST_STEPS = 3
"""Steps of a stage that tell its pace."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What ends a stage before, or after, the steps that were foreseen."""

    work_s: float = math.inf
    """Seconds of its own work, without what is set aside."""
    wall_s: float = math.inf
    """Seconds by the clock."""
    is_fewest: bool = False
    """Whether all steps foreseen are taken, and more of them until a limit."""


NO_LIMITS = Limits()


@dataclass(kw_only=True)
class Stage:
    """What a stage has done and may still take, in seconds of one clock."""

    name: str = ""
    total: int = 0
    begun: int = 0
    """Steps that an earlier run had done."""
    done: int = 0
    part: float = 0.0
    """Of the steps that follow, what is done already."""
    limits: Limits = NO_LIMITS
    started_s: float = 0.0
    aside_s: float = 0.0

    @property
    def grows(self) -> bool:
        """Whether it continues as long as its limits allow."""
        return self.limits.is_fewest or self.done > self.total

    def pace_s(self, now_s: float) -> float | None:
        """Seconds a step; None before a few steps tell."""
        steps = self.done - self.begun
        return self._working_s(now_s) / steps if steps >= FEWEST_STEPS else None

    def _working_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.started_s - self.aside_s)

    def _wall_s(self, now_s: float) -> float:
        """Seconds by the clock until nothing more is done."""
        return max(0.0, self.limits.wall_s - (now_s - self.started_s))

    def limit_s(self, now_s: float) -> float:
        """Seconds until a limit ends what it need not do; infinite without one."""
        return min(max(0.0, self.limits.work_s - self._working_s(now_s)), self._wall_s(now_s))

    def end(self, now_s: float) -> int:
        """Steps it should have done in the end: as foreseen, or as many as its limits leave time for at its pace."""
        foreseen, pace_s, left_s = max(self.total, self.done), self.pace_s(now_s), self.limit_s(now_s)
        if left_s == math.inf or not pace_s or (self.limits.is_fewest and self.done <= self.total):
            return foreseen
        by_limit = self.done + round(left_s / pace_s)
        return max(foreseen, by_limit) if self.grows else min(foreseen, max(by_limit, self.done))

    def left(self, now_s: float) -> str:
        """The time left; empty before its pace is known, and where nothing is left of what was foreseen."""
        pace_s, limit_s = self.pace_s(now_s), self.limit_s(now_s)
        if pace_s is None or (self.done >= self.total and not (self.grows and limit_s < math.inf)):
            return ""
        foreseen_s = pace_s * max(0, self.total - self.done)
        must_s = foreseen_s if self.limits.is_fewest else 0.0
        if limit_s == math.inf:
            return f"about {duration_text(foreseen_s)} left"
        most_s = max(must_s, limit_s)
        if not self.grows:
            most_s = min(foreseen_s, most_s)
        most_s = min(most_s, self._wall_s(now_s))
        if most_s == 0.0:
            return "its time is up"
        if self.done >= self.total:
            return f"at most {duration_text(most_s)} left"
        if self.limits.is_fewest and most_s > foreseen_s:
            return f"{duration_text(foreseen_s)} to {duration_text(most_s)} left"
        return f"about {duration_text(most_s)} left"


class Progress:
    """What a run tells while it works; this one counts and shows nothing."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._stage = now, Stage()

    def start(self, stage: str, total: int, done: int = 0, limits: Limits = NO_LIMITS) -> None:
        """A stage of about `total` steps begins, `done` of them by an earlier run; the one before it has ended."""
        self._stage = Stage(name=stage, total=total, begun=done, done=done, limits=limits, started_s=self._now())

    def advance(self, steps: int = 1) -> None:
        """So many steps of the stage are done."""
        self._stage.done += steps
        self._stage.part = 0.0

    def within(self, steps: float) -> None:
        """So many of the steps that follow are done already: what takes long moves before its end."""
        self._stage.part = steps

    def set_aside(self, seconds: float) -> None:
        """So many seconds of the stage went into what its other steps do not need: no part of its pace or its work."""
        self._stage.aside_s += seconds

    def say(self, text: str) -> None:
        """One line that stays."""


class Lines(Progress):
    """Plain lines: one when a stage begins, then one every `LINE_EVERY_S` seconds at most, fewer in a long stage."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(now)
        self._stream, self._last_s = stream, 0.0

    def start(self, stage: str, total: int, done: int = 0, limits: Limits = NO_LIMITS) -> None:
        """Print the stage."""
        super().start(stage, total, done, limits)
        self._last_s = self._stage.started_s
        self.say(f"{stage} …")

    def advance(self, steps: int = 1) -> None:
        """Count, and print when the last line is old enough."""
        super().advance(steps)
        self._print_at_times()

    def within(self, steps: float) -> None:
        """Print when the last line is old enough."""
        super().within(steps)
        self._print_at_times()

    def _print_at_times(self) -> None:
        stage, now_s = self._stage, self._now()
        if now_s - self._last_s < max(LINE_EVERY_S, LINE_EVERY_SHARE * (now_s - stage.started_s)):
            return
        self._last_s = now_s
        or_more = " or more" if stage.limits.is_fewest and stage.done < stage.total else ""
        is_open = stage.done > stage.total and stage.limit_s(now_s) < math.inf
        of = "" if is_open else f" of {max(stage.total, stage.done)}{or_more}"
        left = stage.left(now_s)
        done = f"{stage.done + stage.part:.1f}" if stage.part else str(stage.done)
        self.say(f"{stage.name}: {done}{of}{', ' if left else ''}{left}")

    def say(self, text: str) -> None:
        """Print `text`."""
        print(text, file=self._stream, flush=True)


class Bars(Progress):
    """One bar for each stage."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        """Draw on the terminal `stream` inside `with bars.drawn`."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        super().__init__(now)
        self.drawn = RichProgress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
            console=Console(file=stream),
        )
        self._task: TaskID | None = None

    def start(self, stage: str, total: int, done: int = 0, limits: Limits = NO_LIMITS) -> None:
        """Add the stage's bar; what the one before it lacked is not to come."""
        if self._task is not None:
            self.drawn.update(self._task, total=self._stage.done, completed=self._stage.done, left="")
            self.drawn.stop_task(self._task)
        super().start(stage, total, done, limits)
        self._task = self.drawn.add_task(stage, total=max(total, done), completed=done, left="")

    def advance(self, steps: int = 1) -> None:
        """Move the bar, and its end to where a limit should be, if that is what ends the stage."""
        super().advance(steps)
        self._draw()

    def within(self, steps: float) -> None:
        """Move the bar."""
        super().within(steps)
        self._draw()

    def _draw(self) -> None:
        assert self._task is not None
        stage, now_s = self._stage, self._now()
        done, end = stage.done + stage.part, stage.end(now_s)
        self.drawn.update(self._task, completed=done, total=max(end, done), left=stage.left(now_s))

    def say(self, text: str) -> None:
        """Print `text` above the bars."""
        self.drawn.console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_to(stream: TextIO) -> Iterator[Progress]:
    """Bars where `stream` is a terminal, lines where it is not."""
    if not stream.isatty():
        yield Lines(stream)
        return
    bars = Bars(stream)
    with bars.drawn:
        yield bars
