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
        progress.start("next", total=1)
        progress.say("[red]kept[/red] " + "x" * 200)
    text = terminal.getvalue()
    assert "timing [bold]p[/bold]" in text
    assert "3/3" in text
    assert "[red]kept[/red] " + "x" * 200 in text


def test_off_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_to(sys.stderr) as progress:
        assert isinstance(progress, Lines)
        progress.start("loading", total=1)
    assert capsys.readouterr().err == "loading …\n"
