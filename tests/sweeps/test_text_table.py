"""Plain text tables."""

from specgauge.sweeps.text_table import cell_text, milliseconds, rounded, span_text, text_table


def test_numbers_stand_right_and_text_left() -> None:
    assert text_table(["name", "S"], [["a", 1.23456], ["long name", None], ["b", 10]]).splitlines() == [
        "name           S",
        "a          1.235",
        "long name      -",
        "b             10",
    ]


def test_cells_are_text_that_commands_nothing_and_zero_has_no_sign() -> None:
    assert [cell_text(value) for value in ("a\x1b[31m\n", True, "[bold]x")] == ["a\\x1b[31m\\n", "yes", "[bold]x"]
    assert (milliseconds(0.5), milliseconds(None)) == (500.0, None)
    assert [str(rounded(value)) for value in (3.332e-17, -2e-4, -0.0126, 5.3491)] == ["0.0", "0.0", "-0.013", "5.349"]


def test_a_span_that_is_shown_alike_at_both_ends_is_one_value() -> None:
    assert span_text([1.5, 1.03, 1.2], "{:.2f}") == "1.03 to 1.50"
    assert span_text([0.981, 0.984], "{:.2f}") == "0.98"
