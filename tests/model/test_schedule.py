"""Schedules and break-even batch sizes against lists by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.schedule import (
    MOST_SIZES,
    break_even_batch_size,
    gamma_schedule,
    paying_ranges,
    sizes_between,
)


def steps(
    sizes: list[int], gammas: list[int], values: list[list[float]], allowed: list[list[bool]] | None = None
) -> list[tuple[int, ...]]:
    found = gamma_schedule(sizes, gammas, values, allowed)
    return [(one.first, one.last, one.gamma) for one in found]


def test_every_batch_size_has_the_smallest_gamma_within_a_percent() -> None:
    values = [[1.5, 2.0], [1.8, 1.79], [1.79, 1.8], [1.7, 1.8], [0.9, 0.5]]
    assert steps([1, 2, 3, 4, 5], [1, 3], values) == [(1, 1, 3), (2, 3, 1), (4, 4, 3), (5, 5, 0)]


def test_what_lies_between_two_sizes_belongs_to_the_smaller() -> None:
    assert steps([1, 8, 64], [2], [[1.5], [1.5], [0.5]]) == [(1, 63, 2), (64, 64, 0)]


def test_plain_decoding_is_told_where_speculation_gains_under_a_percent() -> None:
    assert steps([1, 2, 3], [1], [[0.5], [1.005], [1.2]]) == [(1, 2, 0), (3, 3, 1)]


def test_limits_take_gammas_out() -> None:
    assert steps([1, 2], [1, 2], [[1.2, 2.0], [1.2, 2.0]], [[True, True], [True, False]]) == [(1, 1, 2), (2, 2, 1)]
    assert steps([1], [1], [[2.0]], [[False]]) == [(1, 1, 0)]


@pytest.mark.parametrize(("sizes", "values"), [([2, 1], [[1.0], [1.0]]), ([1], [[1.0, 2.0]]), ([1], [[float("nan")]])])
def test_a_schedule_needs_rising_sizes_and_an_s_for_each(sizes: list[int], values: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"^speedups"):
        gamma_schedule(sizes, [1], values)


@pytest.mark.parametrize(
    ("best", "ranges", "break_even"),
    [
        ([1.5, 1.2, 1.0, 0.9], [(1, 2)], 4),
        ([0.9, 1.2, 1.3, 1.4], [(2, 8)], None),
        ([1.1, 0.9, 1.3, 0.9], [(1, 1), (4, 4)], 2),
        ([0.9, 0.9, 1.0, 0.9], [], None),
        ([1.1, 1.1, 1.1, 1.1], [(1, 8)], None),
    ],
)
def test_where_it_pays(best: list[float], ranges: list[tuple[int, int]], break_even: int | None) -> None:
    assert paying_ranges([1, 2, 4, 8], best) == ranges
    assert break_even_batch_size([1, 2, 4, 8], best) == break_even


def test_every_size_of_a_small_range_and_as_many_of_a_large_one() -> None:
    assert sizes_between(3, 6).tolist() == [3, 4, 5, 6]
    wide = sizes_between(1, 65_536)
    assert (wide[0], wide[-1]) == (1, 65_536)
    assert wide.size <= MOST_SIZES
    assert np.all(np.diff(wide) > 0)


@given(st.data(), st.integers(1, 6), st.integers(1, 3))
def test_a_schedule_has_no_gap_and_loses_at_most_a_percent(data: st.DataObject, sizes: int, gammas: int) -> None:
    speed = st.floats(0.25, 4.0)
    values = np.array(
        data.draw(st.lists(st.lists(speed, min_size=gammas, max_size=gammas), min_size=sizes, max_size=sizes))
    )
    found = gamma_schedule(range(1, sizes + 1), range(1, gammas + 1), values)
    assert [found[0].first, *(one.last + 1 for one in found)] == [*(one.first for one in found), sizes + 1]
    for one in found:
        for size in range(one.first, one.last + 1):
            row = [1.0, *values[size - 1]]
            assert row[one.gamma] >= 0.99 * max(row)
