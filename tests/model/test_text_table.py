"""Plain text tables."""

from specgauge.model.text_table import cell_text, milliseconds, text_table


def test_numbers_stand_right_and_text_left() -> None:
    assert text_table(["name", "S"], [["a", 1.23456], ["long name", None], ["b", 10]]).splitlines() == [
        "name           S",
        "a          1.235",
        "long name      -",
        "b             10",
    ]


def test_nothing_in_a_cell_reaches_the_terminal_as_a_command() -> None:
    assert cell_text("a\x1b[31m\n") == "a\\x1b[31m\\n"
    assert cell_text(True) == "yes"
    assert cell_text("[bold]x") == "[bold]x"


def test_milliseconds_keep_the_unknown_unknown() -> None:
    assert milliseconds(0.5) == 500.0
    assert milliseconds(None) is None
