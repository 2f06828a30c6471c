"""How far a run is: lines, bars, and the time left under every kind of limit."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

import pytest

from specgauge.sweeps.run.progress import NO_LIMITS, Bars, Limits, Lines, progress_to

Event = tuple[float, int] | tuple[float, int, float]
"""Seconds by the clock, steps done then, and seconds set aside before."""


def shown(
    total: int, events: Sequence[Event], done: int, limits: Limits
) -> tuple[list[str], list[tuple[float, float | None]]]:
    """The lines printed after the stage's own, and the steps and end that the bar showed after each event."""
    stream, now = io.StringIO(), [0.0]
    lines, bars = Lines(stream, now=lambda: now[0]), Bars(io.StringIO(), now=lambda: now[0])
    ends = []
    for progress in (lines, bars):
        now[0] = 0.0
        progress.start("before", total=9)
        progress.set_aside(5.0)
        progress.advance(4)
        progress.start("stage", total, done, limits)
        for second, steps, *aside in events:
            now[0] = second
            progress.set_aside(sum(aside))
            progress.advance(steps)
            ends += [(task.completed, task.total) for task in bars.drawn.tasks[1:]]
    before, stage, *said = stream.getvalue().splitlines()
    assert (before, stage) == ("before …", "stage …")
    return [line.removeprefix("stage: ") for line in said], ends


@pytest.mark.parametrize(
    ("total", "done", "limits", "events", "lines", "ends"),
    [
        (
            264, 60, NO_LIMITS, [(10, 2), (21, 5), (121, 97), (131, 100), (141, 60)],
            [
                "62 of 264",
                "67 of 264, about 9.8 min left",  # 7 steps in 21 s: 197 · 3 s
                "164 of 264, about 1.9 min left",  # 104 steps in 121 s
                "324 of 324",  # the longer a stage is, the rarer its lines: one in 14.1 s by now
            ],
            None,
        ),
        (
            20, 0, Limits(work_s=60.0, is_fewest=True), [(10, 5), (21, 5), (31, 15), (51, 10), (65, 10)],
            [
                "5 of 20 or more, 30 s to 50 s left",  # 5 steps in 10 s
                "10 of 20 or more, 21 s to 39 s left",
                "25, at most 29 s left",
                "35, at most 9 s left",
                "45, its time is up",
            ],
            None,
        ),
        (20, 0, Limits(work_s=15.0, is_fewest=True), [(10, 10)], ["10 of 20 or more, about 10 s left"], None),
        (20, 0, Limits(wall_s=15.0, is_fewest=True), [(10, 10)], ["10 of 20 or more, about 5 s left"], None),
        (1000, 0, Limits(work_s=60.0), [(12, 4)], ["4 of 1000, about 48 s left"], None),  # the limit, not the pace
        (10, 0, NO_LIMITS, [(25, 4, 20.0)], ["4 of 10, about 8 s left"], None),  # what is set aside has no pace
        (80, 0, Limits(work_s=90.0, wall_s=100.0), [(80, 8, 40.0)], ["8 of 80, about 20 s left"], None),
        (80, 0, Limits(work_s=0.0), [(15, 3)], ["3 of 80, its time is up"], [(3, 3)]),
        (  # 8 blocks in 20 s, then a warm-up of 40 s that is no part of the 60 s of decoding; the last block runs over
            80, 10, Limits(work_s=60.0), [(20, 8), (80, 8, 40.0), (110, 1)],
            ["18 of 80, about 40 s left", "26 of 80, about 20 s left", "27 of 80, its time is up"],
            [(18, 34), (26, 34), (27, 27)],
        ),
        (3, 0, NO_LIMITS, [(1, 1), (11, 1), (12, 1), (21.5, 1)], ["2 of 3", "4 of 4"], None),  # one in ten seconds
        (  # the end moves to where the limit should be: 15 steps in 45 s are 20 in 60 s
            20, 10, Limits(work_s=60.0, is_fewest=True), [(15, 5), (30, 5), (45, 5), (60, 30), (75, 5)], None,
            [(15, 20), (20, 20), (25, 30), (55, 55), (60, 60)],
        ),
        # a search for γ may take more blocks than it should: 30 in 30 s, and 30 s more
        (20, 0, Limits(work_s=60.0), [(15, 10), (30, 20)], None, [(10, 20), (30, 60)]),
    ],
)  # fmt: skip
def test_lines_say_the_time_left_and_a_bar_ends_where_its_stage_should(
    total: int,
    done: int,
    limits: Limits,
    events: Sequence[Event],
    lines: list[str] | None,
    ends: list[tuple[int, int]] | None,
) -> None:
    said, drawn = shown(total, events, done, limits)
    assert lines in (None, said)
    assert ends in (None, drawn)


def test_bars_draw_what_is_a_name_as_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with progress_to(terminal) as progress:
        assert isinstance(progress, Bars)
        progress.start("timing [bold]p[/bold]", total=2)
        progress.advance()
        progress.advance(2)
        progress.start("next", total=9, done=1)
        progress.advance(4)
        progress.say("[red]kept[/red] " + "x" * 200)
    text = terminal.getvalue()
    assert all(part in text for part in ("timing [bold]p[/bold]", "3/3", "5/9", "left", "[red]kept[/red] " + "x" * 200))


def test_off_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_to(sys.stderr) as progress:
        assert isinstance(progress, Lines)
        progress.start("loading", total=1)
    assert capsys.readouterr().err == "loading …\n"


def test_what_takes_long_moves_before_its_end() -> None:
    stream, now = io.StringIO(), [0.0]
    lines, bars = Lines(stream, now=lambda: now[0]), Bars(io.StringIO(), now=lambda: now[0])
    for progress in (lines, bars):
        now[0] = 0.0
        progress.start("stage", total=4)
        for second, part in ((5.0, 0.5), (10.0, 1.25), (11.0, 1.5)):
            now[0] = second
            progress.within(part)
    (task,) = bars.drawn.tasks
    assert (task.completed, task.total) == (1.5, 4)
    bars.advance(2)
    assert (task.completed, task.total) == (2, 4)
    assert stream.getvalue().splitlines() == ["stage …", "stage: 1.2 of 4"]
