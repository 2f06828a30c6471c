"""Every beginning of a spread order stands for all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.stats.ordering import spread_order


def test_the_median_first_then_the_quartiles() -> None:
    assert spread_order(np.arange(8.0)) == [4, 2, 6, 1, 5, 3, 7, 0]
    assert spread_order(np.array([30.0, 10.0, 20.0])) == [2, 1, 0]
    assert spread_order(np.array([5.0])) == [0]
    assert spread_order(np.array([])) == []


def test_what_is_not_known_comes_last_as_it_stood() -> None:
    nan = math.nan
    assert spread_order(np.array([nan, 3.0, nan, 1.0])) == [1, 3, 0, 2]
    assert spread_order(np.full(3, nan)) == [0, 1, 2]


@given(st.lists(st.floats(0, 1) | st.just(math.nan), max_size=70))
def test_every_index_once(values: list[float]) -> None:
    assert sorted(spread_order(np.array(values))) == list(range(len(values)))


@pytest.mark.parametrize("count", [5, 32, 50])
def test_every_beginning_has_a_mean_near_that_of_all(count: int) -> None:
    """Ranks of the first n are within 1 / n of evenly spread; the first ones of a list may be any."""
    order = np.array(spread_order(np.linspace(0.0, 1.0, count)))
    for first in range(1, count + 1):
        mean = float((order[:first] / (count - 1)).mean())
        assert abs(mean - 0.5) <= 0.5 / first + 1 / count
