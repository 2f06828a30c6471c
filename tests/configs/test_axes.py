from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specgauge.configs.fields import LARGEST_GAMMA

from specgauge.configs.schema import GridConfig

BOUNDS = st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 70))


def gamma(written: Any) -> tuple[int, ...]:
    return GridConfig(gamma=written).gamma


@pytest.mark.parametrize(
    ("written", "values"),
    [
        (4, (4,)),
        ([4, 1, 4, 2], (1, 2, 4)),
        ("1:6", (1, 2, 3, 4, 5, 6)),
        ("1:8:2", (1, 3, 5, 7)),
        ("5:5", (5,)),
        (" 2:3 ", (2, 3)),
        ({"from": 1, "to": 8, "step": 3}, (1, 4, 7)),
        ({"from": 2, "to": 4}, (2, 3, 4)),
        ((3, 2), (2, 3)),
    ],
)
def test_each_way_to_write_an_axis(written: Any, values: tuple[int, ...]) -> None:
    assert gamma(written) == values


def test_the_largest_range_is_a_thousand_values() -> None:
    assert GridConfig.model_validate({"context": "1:1000"}).context == tuple(range(1, 1001))
    with pytest.raises(ValidationError, match="allowed: a range of at most 1000 values"):
        GridConfig.model_validate({"context": "1:1001"})


@given(BOUNDS)
def test_text_and_mapping_mean_the_same_range(bounds: tuple[int, int, int]) -> None:
    first, last, step = bounds
    mapping = {"from": first, "to": last, "step": step}
    if last < first:
        for written in (f"{first}:{last}:{step}", mapping):
            with pytest.raises(ValidationError, match="a range that ends where it starts or later"):
                gamma(written)
        return
    values = gamma(f"{first}:{last}:{step}")
    assert values == gamma(mapping)
    assert values[0] == first
    assert last - step < values[-1] <= last
    assert all(after - before == step for before, after in pairwise(values))


@given(st.lists(st.integers(1, LARGEST_GAMMA), min_size=1, max_size=30))
def test_a_list_becomes_its_sorted_set(written: list[int]) -> None:
    assert gamma(written) == tuple(sorted(set(written)))


@given(st.text("0123456789:-+ ._ex٣", max_size=12))
def test_any_text_is_a_range_or_one_clear_fault(text: str) -> None:
    try:
        values = gamma(text)
    except ValidationError as error:
        (detail,) = error.errors()
        assert "allowed: " in detail["msg"]
    else:
        assert values
        assert all(1 <= value <= LARGEST_GAMMA for value in values)
        assert ":" in text
