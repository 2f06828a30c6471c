import io
import sys

import pytest

from specgauge.sweeps.run.progress import Bars, Limits, Lines, progress_to


def test_lines_say_a_stage_at_once_and_its_progress_now_and_then() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = Lines(stream, now=lambda: now[0])
    lines.start("timing", total=3)
    for second in (1.0, 11.0, 12.0, 21.5):
        now[0] = second
        lines.advance()
    lines.say("batch size 8: out of memory")
    assert stream.getvalue().splitlines() == [
        "timing …",
        "timing: 2 of 3",
        "timing: 4 of 4",
        "batch size 8: out of memory",
    ]


def test_lines_say_the_time_left_once_a_few_steps_tell_the_pace() -> None:
    stream, now = io.StringIO(), [100.0]
    lines = Lines(stream, now=lambda: now[0])
    lines.start("timing", total=264, done=60)
    for second, steps in ((110.0, 2), (121.0, 5), (221.0, 97), (231.0, 100), (241.0, 60)):
        now[0] = second
        lines.advance(steps)
    assert stream.getvalue().splitlines() == [
        "timing …",
        "timing: 62 of 264",
        "timing: 67 of 264, about 9.8 min left",  # 7 steps in 21 s: 197 · 3 s
        "timing: 164 of 264, about 1.9 min left",  # 104 steps in 121 s
        "timing: 264 of 264",
        "timing: 324 of 324",
    ]


def test_lines_say_the_most_time_left_where_more_steps_are_taken_than_foreseen() -> None:
    stream, now = io.StringIO(), [100.0]
    lines = Lines(stream, now=lambda: now[0])
    lines.start("timing", total=20, limits=Limits(work_s=60.0, is_fewest=True))
    for second, steps in ((110.0, 5), (121.0, 5), (131.0, 15), (151.0, 10), (165.0, 10)):
        now[0] = second
        lines.advance(steps)
    assert stream.getvalue().splitlines() == [
        "timing …",
        "timing: 5 of 20 or more, 30 s to 50 s left",  # 5 steps in 10 s
        "timing: 10 of 20 or more, 21 s to 39 s left",
        "timing: 25, at most 29 s left",
        "timing: 35, at most 9 s left",
        "timing: 45, its time is up",
    ]
    lines.start("timing", total=20, limits=Limits(work_s=15.0, is_fewest=True))
    now[0] += 10.0
    lines.advance(10)
    assert stream.getvalue().splitlines()[-1] == "timing: 10 of 20 or more, about 10 s left", "all 20 are taken"
    lines.start("timing", total=20, limits=Limits(wall_s=15.0, is_fewest=True))
    now[0] += 10.0
    lines.advance(10)
    assert stream.getvalue().splitlines()[-1] == "timing: 10 of 20 or more, about 5 s left", "but by the clock"
    lines.start("decoding", total=1000, limits=Limits(work_s=60.0))
    now[0] += 12.0
    lines.advance(4)
    assert stream.getvalue().splitlines()[-1] == "decoding: 4 of 1000, about 48 s left", "the limit, not the pace"


def test_seconds_set_aside_tell_nothing_of_the_pace() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = Lines(stream, now=lambda: now[0])
    lines.start("decoding", total=10)
    now[0] = 25.0
    lines.set_aside(20.0)
    lines.advance(4)
    lines.start("decoding", total=10)
    now[0] = 50.0
    lines.advance(5)
    assert stream.getvalue().splitlines()[1::2] == [
        "decoding: 4 of 10, about 8 s left",
        "decoding: 5 of 10, about 25 s left",
    ]


def test_the_end_of_a_bar_moves_to_where_the_limit_should_be() -> None:
    now = [0.0]
    bars = Bars(io.StringIO(), now=lambda: now[0])
    bars.start("timing", total=20, done=10, limits=Limits(work_s=60.0, is_fewest=True))
    ends = []
    for steps in (5, 5, 5, 30, 5):
        now[0] += 15.0
        bars.advance(steps)
        (task,) = bars.drawn.tasks
        ends.append((task.completed, task.total))
    assert ends == [(15, 20), (20, 20), (25, 30), (55, 55), (60, 60)]  # 15 steps in 45 s: 20 in 60 s


def test_a_stage_that_its_limit_cuts_short_never_foresees_more_than_that() -> None:
    """8 blocks in 20 s, then a warm-up of 40 s that is no part of the 60 s of decoding; the last block runs over."""
    stream, now = io.StringIO(), [0.0]
    lines, bars = Lines(stream, now=lambda: now[0]), Bars(io.StringIO(), now=lambda: now[0])
    for progress in (lines, bars):
        progress.start("decoding", total=80, done=10, limits=Limits(work_s=60.0))
    ends = []
    for seconds, aside, steps in ((20.0, 0.0, 8), (60.0, 40.0, 8), (30.0, 0.0, 1)):
        now[0] += seconds
        for progress in (lines, bars):
            progress.set_aside(aside)
            progress.advance(steps)
        (task,) = bars.drawn.tasks
        ends.append((task.completed, task.total))
    assert stream.getvalue().splitlines()[1:] == [
        "decoding: 18 of 80, about 40 s left",
        "decoding: 26 of 80, about 20 s left",
        "decoding: 27 of 80, its time is up",
    ]
    assert ends == [(18, 34), (26, 34), (27, 27)]


def test_what_is_set_aside_counts_for_the_clock_alone() -> None:
    """100 s by the clock, of which a warm-up takes 40: 40 s of work have left 20."""
    stream, now = io.StringIO(), [0.0]
    lines = Lines(stream, now=lambda: now[0])
    lines.start("decoding", total=80, limits=Limits(work_s=90.0, wall_s=100.0))
    now[0] = 80.0
    lines.set_aside(40.0)
    lines.advance(8)
    assert stream.getvalue().splitlines()[-1] == "decoding: 8 of 80, about 20 s left"


def test_the_least_is_foreseen_whatever_the_limit() -> None:
    """Every cell gets its first block: 3 of 8 are decoded when no second is left, at 5 s each."""
    stream, now = io.StringIO(), [0.0]
    lines, bars = Lines(stream, now=lambda: now[0]), Bars(io.StringIO(), now=lambda: now[0])
    for progress in (lines, bars):
        progress.start("decoding", total=80, limits=Limits(work_s=0.0, least=8))
    now[0] = 15.0
    for progress in (lines, bars):
        progress.advance(3)
    assert stream.getvalue().splitlines()[-1] == "decoding: 3 of 80, about 25 s left"
    (task,) = bars.drawn.tasks
    assert (task.completed, task.total, task.fields["left"]) == (3, 8, "about 25 s left")


def test_a_stage_that_passes_what_was_foreseen_continues_to_its_limit() -> None:
    """A search for γ may take more blocks than it should: 30 in 30 s, and 30 s more."""
    now = [0.0]
    bars = Bars(io.StringIO(), now=lambda: now[0])
    bars.start("timing", total=20, limits=Limits(work_s=60.0))
    ends = []
    for steps in (10, 20):
        now[0] += 15.0
        bars.advance(steps)
        (task,) = bars.drawn.tasks
        ends.append((task.completed, task.total, task.fields["left"]))
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
    assert "timing [bold]p[/bold]" in text
    assert "3/3" in text
    assert "5/9" in text
    assert "left" in text
    assert "[red]kept[/red] " + "x" * 200 in text


def test_off_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_to(sys.stderr) as progress:
        assert isinstance(progress, Lines)
        progress.start("loading", total=1)
    assert capsys.readouterr().err == "loading …\n"
