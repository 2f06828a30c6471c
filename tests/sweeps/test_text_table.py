"""Plain text tables."""

import pytest

from specgauge.sweeps.text_table import cell_text, milliseconds, rounded, text_table


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


@pytest.mark.parametrize(
    ("value", "shown"), [(3.332e-17, "0.0"), (-2e-4, "0.0"), (-0.0126, "-0.013"), (5.3491, "5.349")]
)
def test_what_rounds_to_nothing_has_no_digits_and_no_sign(value: float, shown: str) -> None:
    assert str(rounded(value)) == shown
