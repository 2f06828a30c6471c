"""Shorthands of fields: axes and their ranges, sizes in bytes, names, and numbers that are kept as one form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specgauge.configs.fields import LARGEST_GAMMA, is_name
from specgauge.configs.schema import GridConfig, LimitsConfig, SamplingConfig
from specgauge.configs.variants import part_of_name


def gamma(written: Any) -> tuple[int, ...]:
    return GridConfig(gamma=written).gamma


@pytest.mark.parametrize(
    ("written", "values"),
    [
        (4, (4,)),
        ([4, 1, 4, 2], (1, 2, 4)),
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
    with pytest.raises(ValidationError, match="refused"):
        GridConfig.model_validate({"context": "1:1001"})


@given(st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 70)))
def test_text_and_mapping_mean_the_same_range(bounds: tuple[int, int, int]) -> None:
    first, last, step = bounds
    for written in (f"{first}:{last}:{step}", {"from": first, "to": last, "step": step}):
        if first <= last:
            assert gamma(written) == tuple(range(first, last + 1, step))
        else:
            with pytest.raises(ValidationError, match="refused"):
                gamma(written)


@given(st.text("0123456789:-+ ._ex٣", max_size=12))
def test_any_text_is_a_range_or_refused(text: str) -> None:
    values: tuple[int, ...] | None = None
    places = set()
    try:
        values = gamma(text)
    except ValidationError as error:
        places = {detail["loc"][0] for detail in error.errors()}
    assert places == (set() if values else {"gamma"})
    assert all(1 <= value <= LARGEST_GAMMA for value in values or ())
    assert ":" in text or not values


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("8GiB", 8 * 2**30), ("8 GiB", 8 * 2**30), ("0.5MiB", 2**19), ("4.1kB", 4100), ("80GB", 80 * 10**9), ("7B", 7),
        (123, 123), (None, None), (f"{1 << 60}B", 1 << 60),
    ],
)  # fmt: skip
def test_memory_is_bytes_or_text_with_a_unit(written: object, size: int | None) -> None:
    assert LimitsConfig.model_validate({"memory": written}).memory == size


@pytest.mark.parametrize("name", ["a", "A_b-1.5", "_x", "a" * 100, "qwen2.5-7b-with-0.5b"])
def test_names_fit_for_files(name: str) -> None:
    assert is_name(name)
    assert SamplingConfig(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-a", "a-", "a.", "a b", "a/b", "a\\b", "a\n", "ä", "a--b", "a" * 101]
)
def test_names_unfit_for_files(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(ValidationError, match=r"name\n.*(string_pattern_mismatch|unprintable)"):
        SamplingConfig(name=name)


@given(st.text("aZ9é /:.-_\n", min_size=1, max_size=30))
def test_any_value_is_a_part_of_a_name(value: str) -> None:
    assert is_name(f"p-{part_of_name(value)}") or part_of_name(value) == "_"


def test_whole_numbers_become_floats_where_a_number_is_meant() -> None:
    setting = SamplingConfig.model_validate({"name": "t", "temperature": 1, "top_p": 1, "top_k": 0})
    assert (setting.temperature, setting.top_p, setting.top_k) == (1.0, 1.0, 0)
    assert isinstance(setting.temperature, float)
    assert str(SamplingConfig(name="t", temperature=-0.0).temperature) == "0.0"
