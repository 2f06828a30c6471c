from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.settings import Point
from specgauge.reports import formatting

GRID = [1, 4, 16, 64, 256]


@pytest.mark.parametrize(
    ("write", "values", "text"),
    [
        (formatting.duration, (None,), "–"),
        (formatting.duration, (0.01234,), "12.3 ms"),
        (formatting.duration, (0.0009996,), "1000 µs"),
        (formatting.duration, (0.00000321,), "3.21 µs"),
        (formatting.duration, (59.94,), "59.9 s"),
        (formatting.duration, (190.0,), "3 min 10 s"),
        (formatting.duration, (3660.0,), "1 h 1 min"),
        (formatting.duration, (0.0,), "0.00 ms"),
        (formatting.percent, (0.123,), "12\u202f%"),
        (formatting.percent, (0.0,), "0\u202f%"),
        (formatting.percent, (1.0,), "100\u202f%"),
        (formatting.percent, (0.004,), "<1\u202f%"),
        (formatting.percent, (0.9991,), ">99\u202f%"),
        (formatting.percent, (0.0004, 1), "<0.1\u202f%"),
        (formatting.percent, (0.99996, 1), ">99.9\u202f%"),
        (formatting.percent, (None,), "–"),
        (formatting.change, (0.034,), "+3.4\u202f%"),
        (formatting.change, (-0.0346,), "−3.5\u202f%"),
        (formatting.change, (None,), "–"),
        (formatting.change, (0.5, 0), "+50\u202f%"),
        (formatting.change_interval, (-0.072, 0.1336), "−7.2 to +13.4\u202f%"),
        (formatting.change_interval, (None, 0.1), "–"),
        (formatting.speedup, (1.4249,), "1.42\u202f×"),
        (formatting.speedup, (12.34,), "12.3\u202f×"),
        (formatting.speedup, (None,), "–"),
        (formatting.number, (2.345, 1), "2.3"),
        (formatting.interval, (1.376, 1.464), "1.38–1.46"),
        (formatting.interval, (None, 1.0), "–"),
        (formatting.count, (1, "token"), "1 token"),
        (formatting.count, (2, "token"), "2 tokens"),
        (formatting.listed, (["a"],), "a"),
        (formatting.listed, (["a", "b"],), "a and b"),
        (formatting.listed, (["a", "b", "c"], "or"), "a, b or c"),
        (formatting.sentence, ("a b",), "A b."),
        (formatting.sentence, ("A!",), "A!"),
        (formatting.sentence, ("",), ""),
        (formatting.printable, ("a\x00b\n\ud800é",), "a\ufffdb\n\ufffdé"),
        (formatting.point_words, (Point(batch_size=4, context=256),), "batch 4, 256 tokens of context"),
        (formatting.ranges, ([4], GRID), "4"),
        (formatting.ranges, ([1, 4, 16], GRID), "1 to 16"),
        (formatting.ranges, ([1, 16], GRID), "1 or 16"),
        (formatting.ranges, ([1, 4, 16, 256], GRID), "1 to 16 or 256"),
        (formatting.ranges, ([64, 16, 4, 1, 256], GRID), "1 to 256"),
    ],
)
def test_what_is_printed(write: Callable[..., str], values: tuple[Any, ...], text: str) -> None:
    assert write(*values) == text


def test_a_column_of_times_shares_the_unit_of_its_median() -> None:
    unit = formatting.time_unit([0.0101, 0.0007, None, 0.25])
    assert (unit.name, unit.decimals) == ("ms", 1)
    assert [unit.text(value) for value in (0.0101, 0.0007, None, 0.25)] == ["10.1", "0.7", "–", "250.0"]
    assert unit.fitted([0.00015, 0.0002]).text(0.00015) == "0.150"
    assert unit.fitted([None]).text(0.0101) == "10.1"
    assert formatting.time_unit([None, None]).text(None) == "–"
    assert unit.text(-0.00086) == "−0.9", "a minus, as long as a plus"


@given(st.lists(st.one_of(st.none(), st.floats(1e-9, 1e5)), min_size=1))
def test_every_known_time_prints_as_a_number(values_s: list[float | None]) -> None:
    unit = formatting.time_unit(values_s)
    for value_s in values_s:
        text = unit.text(value_s)
        if value_s is None:
            assert text == "–"
        else:
            assert abs(float(text) * unit.seconds - value_s) <= 0.51 * unit.seconds * 10**-unit.decimals
