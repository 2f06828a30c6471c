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
    total: int, events: Sequence[Event], done: int = 0, limits: Limits = NO_LIMITS
) -> tuple[list[str], list[tuple[float, float | None, str]]]:
    """The lines printed after the stage's own, and what the bar showed after each event: steps, end, time left."""
    stream, now = io.StringIO(), [0.0]
    lines, bars = Lines(stream, now=lambda: now[0]), Bars(io.StringIO(), now=lambda: now[0])
    ends = []
    for progress in (lines, bars):
        now[0] = 0.0
        progress.start("stage", total, done, limits)
        for second, steps, *aside in events:
            now[0] = second
            progress.set_aside(sum(aside))
            progress.advance(steps)
            for task in bars.drawn.tasks:
                ends.append((task.completed, task.total, task.fields["left"]))
    stage, *said = stream.getvalue().splitlines()
    assert stage == "stage …"
    return [line.removeprefix("stage: ") for line in said], ends


def test_lines_say_progress_now_and_then() -> None:
    assert shown(3, [(1, 1), (11, 1), (12, 1), (21.5, 1)])[0] == ["2 of 3", "4 of 4"]


@pytest.mark.parametrize(
    ("total", "done", "limits", "events", "lines"),
    [
        (
            264, 60, NO_LIMITS, [(10, 2), (21, 5), (121, 97), (131, 100), (141, 60)],
            [
                "62 of 264",
                "67 of 264, about 9.8 min left",  # 7 steps in 21 s: 197 · 3 s
                "164 of 264, about 1.9 min left",  # 104 steps in 121 s
                "264 of 264",
                "324 of 324",
            ],
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
        ),
        (20, 0, Limits(work_s=15.0, is_fewest=True), [(10, 10)], ["10 of 20 or more, about 10 s left"]),  # all of them
        (20, 0, Limits(wall_s=15.0, is_fewest=True), [(10, 10)], ["10 of 20 or more, about 5 s left"]),  # by the clock
        (1000, 0, Limits(work_s=60.0), [(12, 4)], ["4 of 1000, about 48 s left"]),  # the limit, not the pace
        (10, 0, NO_LIMITS, [(25, 4, 20.0)], ["4 of 10, about 8 s left"]),  # what is set aside is no part of the pace
        (80, 0, Limits(work_s=90.0, wall_s=100.0), [(80, 8, 40.0)], ["8 of 80, about 20 s left"]),  # but of its own
    ],
)  # fmt: skip
def test_lines_say_the_time_left(
    total: int, done: int, limits: Limits, events: Sequence[Event], lines: list[str]
) -> None:
    assert shown(total, events, done, limits)[0] == lines


def test_a_new_stage_has_a_pace_of_its_own() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = Lines(stream, now=lambda: now[0])
    for seconds, aside, steps in ((25.0, 20.0, 4), (25.0, 0.0, 5)):
        lines.start("decoding", total=10)
        now[0] += seconds
        lines.set_aside(aside)
        lines.advance(steps)
    assert stream.getvalue().splitlines()[3] == "decoding: 5 of 10, about 25 s left"


def test_the_end_of_a_bar_moves_to_where_the_limit_should_be() -> None:
    """15 steps in 45 s: 20 in 60 s."""
    events = [(15.0, 5), (30.0, 5), (45.0, 5), (60.0, 30), (75.0, 5)]
    ends = shown(20, events, 10, Limits(work_s=60.0, is_fewest=True))[1]
    assert [end[:2] for end in ends] == [(15, 20), (20, 20), (25, 30), (55, 55), (60, 60)]


def test_a_stage_that_its_limit_cuts_short_never_foresees_more_than_that() -> None:
    """8 blocks in 20 s, then a warm-up of 40 s that is no part of the 60 s of decoding; the last block runs over."""
    lines, ends = shown(80, [(20.0, 8), (80.0, 8, 40.0), (110.0, 1)], 10, Limits(work_s=60.0))
    assert lines == ["18 of 80, about 40 s left", "26 of 80, about 20 s left", "27 of 80, its time is up"]
    assert [end[:2] for end in ends] == [(18, 34), (26, 34), (27, 27)]


def test_the_least_is_foreseen_whatever_the_limit() -> None:
    """Every cell gets its first block: 3 of 8 are decoded when no second is left, at 5 s each."""
    lines, ends = shown(80, [(15.0, 3)], limits=Limits(work_s=0.0, least=8))
    assert lines == ["3 of 80, about 25 s left"]
    assert ends == [(3, 8, "about 25 s left")]


def test_a_stage_that_passes_what_was_foreseen_continues_to_its_limit() -> None:
    """A search for γ may take more blocks than it should: 30 in 30 s, and 30 s more."""
    ends = shown(20, [(15.0, 10), (30.0, 20)], limits=Limits(work_s=60.0))[1]
    assert ends == [(10, 20, "about 15 s left"), (30, 60, "at most 30 s left")]


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
