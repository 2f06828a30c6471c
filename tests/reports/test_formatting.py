import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.settings import Point
from specgauge.reports.formatting import (
    change,
    change_interval,
    count,
    duration,
    interval,
    listed,
    number,
    percent,
    point_words,
    printable,
    ranges,
    sentence,
    speedup,
    time_unit,
)


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (None, "–"),
        (0.01234, "12.3 ms"),
        (0.0009996, "1000 µs"),
        (0.00000321, "3.21 µs"),
        (1.5, "1.50 s"),
        (59.94, "59.9 s"),
        (190.0, "3 min 10 s"),
        (3660.0, "1 h 1 min"),
        (0.0, "0.00 ms"),
    ],
)
def test_a_duration_has_three_digits_and_its_unit(value_s: float | None, text: str) -> None:
    assert duration(value_s) == text


def test_a_column_of_times_shares_the_unit_of_its_median() -> None:
    unit = time_unit([0.0101, 0.0007, None, 0.25])
    assert (unit.name, unit.decimals) == ("ms", 1)
    assert [unit.text(value) for value in (0.0101, 0.0007, None, 0.25)] == ["10.1", "0.7", "–", "250.0"]
    assert unit.fitted([0.00015, 0.0002]).text(0.00015) == "0.150"
    assert unit.fitted([None]).text(0.0101) == "10.1"
    assert time_unit([None, None]).text(None) == "–"
    assert unit.text(-0.00086) == "−0.9", "a minus, as long as a plus"


@pytest.mark.parametrize(
    ("share", "decimals", "text"),
    [
        (0.123, 0, "12\u202f%"),
        (0.0, 0, "0\u202f%"),
        (1.0, 0, "100\u202f%"),
        (0.004, 0, "<1\u202f%"),
        (0.9991, 0, ">99\u202f%"),
        (0.0004, 1, "<0.1\u202f%"),
        (0.99996, 1, ">99.9\u202f%"),
        (None, 0, "–"),
    ],
)
def test_a_share_is_never_rounded_to_none_or_all(share: float | None, decimals: int, text: str) -> None:
    assert percent(share, decimals) == text


def test_numbers_and_intervals() -> None:
    assert speedup(1.4249) == "1.42\u202f×"
    assert speedup(12.34) == "12.3\u202f×"
    assert speedup(None) == "–"
    assert number(2.345, 1) == "2.3"
    assert interval(1.376, 1.464) == "1.38–1.46"
    assert interval(None, 1.0) == "–"


def test_words() -> None:
    assert [count(1, "token"), count(2, "token")] == ["1 token", "2 tokens"]
    assert point_words(Point(batch_size=4, context=256)) == "batch 4, 256 tokens of context"
    assert printable("a\x00b\n\ud800é") == "a\ufffdb\n\ufffdé"
    assert [sentence("a b"), sentence("A!"), sentence("")] == ["A b.", "A!", ""]
    assert [listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"], "or")] == ["a", "a and b", "a, b or c"]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([4], "4"),
        ([1, 4], "1 or 4"),
        ([1, 4, 16], "1 to 16"),
        ([1, 16], "1 or 16"),
        ([1, 4, 16, 256], "1 to 16 or 256"),
        ([64, 16, 4, 1, 256], "1 to 256"),
    ],
)
def test_neighbours_on_the_grid_become_a_range(values: list[int], text: str) -> None:
    assert ranges(values, [1, 4, 16, 64, 256]) == text


@given(st.lists(st.one_of(st.none(), st.floats(1e-9, 1e5)), min_size=1))
def test_every_known_time_prints_as_a_number(values_s: list[float | None]) -> None:
    unit = time_unit(values_s)
    for value_s in values_s:
        text = unit.text(value_s)
        if value_s is None:
            assert text == "–"
        else:
            assert abs(float(text) * unit.seconds - value_s) <= 0.51 * unit.seconds * 10**-unit.decimals


def test_changes_have_a_sign() -> None:
    assert [change(share) for share in (0.034, -0.0346, 0.0, None)] == [
        "+3.4\u202f%",
        "−3.5\u202f%",
        "+0.0\u202f%",
        "–",
    ]
    assert change(0.5, 0) == "+50\u202f%"
    assert change_interval(-0.072, 0.1336) == "−7.2 to +13.4\u202f%"
    assert change_interval(None, 0.1) == "–"
