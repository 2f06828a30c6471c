import io
import sys

import pytest

from specgauge.sweeps.progress import Bars, Lines, progress_to


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
    lines.start("timing", total=20, limit_s=60.0, is_fewest=True)
    for second, steps in ((110.0, 5), (121.0, 5), (131.0, 15), (151.0, 10), (165.0, 10)):
        now[0] = second
        lines.advance(steps)
    assert stream.getvalue().splitlines() == [
        "timing …",
        "timing: 5 of 20 or more, 30 s to 50 s left",  # 5 steps in 10 s
        "timing: 10 of 20 or more, 21 s to 39 s left",
        "timing: 25, at most 29 s left",
        "timing: 35, at most 9 s left",
        "timing: 45",
    ]
    lines.start("timing", total=20, limit_s=15.0, is_fewest=True)
    now[0] += 10.0
    lines.advance(10)
    assert stream.getvalue().splitlines()[-1] == "timing: 10 of 20 or more, about 5 s left", "the least takes longer"
    lines.start("decoding", total=1000, limit_s=60.0)
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
    bars.start("timing", total=20, done=10, limit_s=60.0, is_fewest=True)
    ends = []
    for steps in (5, 5, 5, 30, 5):
        now[0] += 15.0
        bars.advance(steps)
        (task,) = bars._bars.tasks
        ends.append((task.completed, task.total))
    assert ends == [(15, 20), (20, 20), (25, 30), (55, 55), (60, 60)]  # 15 steps in 45 s: 20 in 60 s


def test_a_stage_that_its_limit_cuts_short_never_foresees_more_than_that() -> None:
    """8 blocks in 20 s, then a warm-up of 40 s that is no part of the 60 s of decoding; the last block runs over."""
    stream, now = io.StringIO(), [0.0]
    lines, bars = Lines(stream, now=lambda: now[0]), Bars(io.StringIO(), now=lambda: now[0])
    for progress in (lines, bars):
        progress.start("decoding", total=80, done=10, limit_s=60.0)
    ends = []
    for seconds, aside, steps in ((20.0, 0.0, 8), (60.0, 40.0, 8), (30.0, 0.0, 1)):
        now[0] += seconds
        for progress in (lines, bars):
            progress.set_aside(aside)
            progress.advance(steps)
        (task,) = bars._bars.tasks
        ends.append((task.completed, task.total))
    assert stream.getvalue().splitlines()[1:] == [
        "decoding: 18 of 80, about 40 s left",
        "decoding: 26 of 80, about 20 s left",
        "decoding: 27 of 80, its time is nearly up",
    ]
    assert ends == [(18, 34), (26, 34), (27, 27)]


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
        progress.start("next", total=3, done=1)
        progress.advance()
        progress.say("[red]kept[/red] " + "x" * 200)
    text = terminal.getvalue()
    assert "timing [bold]p[/bold]" in text
    assert "3/3" in text
    assert "2/3" in text
    assert "left" in text
    assert "[red]kept[/red] " + "x" * 200 in text


def test_off_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_to(sys.stderr) as progress:
        assert isinstance(progress, Lines)
        progress.start("loading", total=1)
    assert capsys.readouterr().err == "loading …\n"
