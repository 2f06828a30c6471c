"""Reading durations, lists and ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.cli.parsing import parse_counts, parse_duration_s, parse_durations_s, parse_gammas, parse_numbers


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("19.05ms", 0.01905),
        ("0.5 s", 0.5),
        ("120us", 0.00012),
        ("120µs", 0.00012),
        ("120 μs", 0.00012),
        ("80ns", 8e-8),
        ("1.5", 1.5),
        (" 2e-3 ", 0.002),
        (".5ms", 0.0005),
        ("0", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@given(st.floats(0, 1e6))
def test_plain_seconds_are_kept_to_the_last_bit(value: float) -> None:
    assert parse_duration_s(repr(value)) == value
    assert parse_duration_s(f"{value!r}s") == value


def test_lists() -> None:
    assert parse_durations_s("1ms, 2 s,3") == [0.001, 2.0, 3.0]
    assert parse_numbers(".2, .4,-1e1") == [0.2, 0.4, -10.0]
    assert parse_counts("3, 0,12") == [3, 0, 12]


@pytest.mark.parametrize(
    ("text", "gammas"),
    [
        ("4", [4]),
        ("1,2,4", [1, 2, 4]),
        ("1:4", [1, 2, 3, 4]),
        ("1:8:3", [1, 4, 7]),
        ("5:5", [5]),
        ("1:1000", [*range(1, 1001)]),
    ],
)
def test_gammas(text: str, gammas: list[int]) -> None:
    assert parse_gammas(text) == gammas


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: parse_duration_s("5 parsecs", "t_decode"),
            r"t_decode: found unit 'parsecs' in '5 parsecs', allowed: s, ms",
        ),
        (lambda: parse_duration_s("5 msec"), r"found unit 'msec'.*\(nearest: ms\)"),
        (lambda: parse_duration_s("5 MS"), r"found unit 'MS'.*\(nearest: ms\)"),
        (lambda: parse_duration_s("fast"), "duration: found 'fast', allowed: a number and a unit"),
        (lambda: parse_duration_s(""), "found ''"),
        (lambda: parse_duration_s("-3ms"), "found '-3ms', allowed: a time of at least 0"),
        (lambda: parse_duration_s("1e999"), "found '1e999'"),
        (lambda: parse_duration_s("nan"), "found 'nan'"),
        (lambda: parse_durations_s("1ms,,2ms"), "found an empty entry in '1ms,,2ms'"),
        (lambda: parse_numbers("1,x"), r"numbers \(item 2\): found 'x', allowed: a finite number"),
        (lambda: parse_numbers("1,inf"), r"numbers \(item 2\): found 'inf', allowed: a finite number"),
        (lambda: parse_numbers("1_0"), "found '1_0', allowed: a finite number"),
        (lambda: parse_numbers(" "), "numbers: found nothing"),
        (lambda: parse_counts("1,-2"), r"counts \(item 2\): found '-2', allowed: a whole number, at least 0"),
        (lambda: parse_counts("1.5"), "found '1.5'"),
        (lambda: parse_gammas("0"), "gamma: found 0, allowed: at least 1"),
        (lambda: parse_gammas("4:1"), "gamma: found '4:1', allowed: FIRST:LAST"),
        (lambda: parse_gammas("1:"), "gamma: found '1:', allowed: FIRST:LAST"),
        (lambda: parse_gammas("1:8:0"), "gamma: found '1:8:0'"),
        (lambda: parse_gammas("1:2:3:4"), "gamma: found '1:2:3:4'"),
        (lambda: parse_gammas("2,2"), "gamma: found '2,2', allowed: values that rise"),
        (lambda: parse_gammas("1:100000000"), "gamma: found 100000000, allowed: at most 1000 drafts a round"),
        (lambda: parse_gammas("1,1001"), "gamma: found 1001, allowed: at most 1000"),
        (lambda: parse_counts("1" * 5000), "found '111.*', allowed: a whole number, at least 0"),
        (lambda: parse_gammas("-1"), r"gamma \(item 1\): found '-1', allowed: a whole number, from 1 to 1000"),
        (lambda: parse_gammas(""), "gamma: found nothing, allowed: values"),
        (lambda: parse_gammas("a:b"), r"gamma \(item 1\): found 'a'"),
    ],
)
def test_bad_quantities_are_one_clear_line(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
