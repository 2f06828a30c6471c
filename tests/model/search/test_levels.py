"""Levels of arms that were timed in different blocks: free of the pace of blocks, as uncertain as they should be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.search.levels import (
    SMALLEST_NOISE,
    STEP_OF_NORMAL,
    TRUSTED,
    BlockSummary,
    exact_levels,
    fit_levels,
    level_blocks,
    summarise_block,
)

SPREAD = 0.02


def block(seconds: float, spread: float = 0.0) -> BlockSummary:
    """Five samples around a median, successive ones `spread` apart in their logarithms."""
    return summarise_block([[seconds * math.exp(spread * step)] for step in (-2, -1, 0, 1, 2)])


def test_a_block_is_its_median_and_how_its_samples_differ() -> None:
    found = summarise_block([[1.0, 2.0], [1.0, 4.0], [4.0, 8.0]])
    assert found.log_s == pytest.approx(math.log(4.0))
    assert found.count == 3
    assert found.steps == pytest.approx([math.log(2)] * 2)
    assert np.exp(found.log_shares) == pytest.approx(np.array([[0.5, 1.0], [0.25, 1.0], [0.5, 1.0]]))


@pytest.mark.parametrize("samples", [[], [[]], [[0.0]], [[math.nan]], [1.0]])
def test_blocks_without_times_are_refused(samples: Any) -> None:
    with pytest.raises(ValueError, match=r"samples_s.*: expected"):
        summarise_block(samples)
    with pytest.raises(ValueError, match=r"summaries: expected .*got no block"):
        fit_levels({"decode": {}})


@given(
    st.lists(st.floats(0.001, 1000), min_size=2, max_size=5),
    st.lists(st.floats(0.2, 5), min_size=2, max_size=5),
    st.data(),
)
def test_paces_cancel_whatever_blocks_an_arm_missed(
    seconds: list[float], paces: list[float], data: st.DataObject
) -> None:
    """Without noise, ratios of arms are exact as long as every block holds the first arm, or any other known one."""
    arms = [f"arm {number}" for number in range(len(seconds))]
    present = {arms[0]: list(range(len(paces)))}
    for arm in arms[1:]:
        present[arm] = data.draw(st.lists(st.sampled_from(range(len(paces))), min_size=1, unique=True))
    levels = fit_levels(
        {arm: {b: block(time_s * paces[b]) for b in present[arm]} for arm, time_s in zip(arms, seconds, strict=True)}
    )
    first = levels.seconds(arms[0])
    for arm, time_s in zip(arms, seconds, strict=True):
        assert levels.seconds(arm) / first == pytest.approx(time_s / seconds[0], rel=1e-6)
    assert sum(levels.paces.values()) == pytest.approx(0.0, abs=1e-9)
    for number, pace in levels.paces.items():
        assert pace - levels.paces[0] == pytest.approx(math.log(paces[number] / paces[0]), abs=1e-6)


def test_the_uncertainty_of_a_ratio_is_that_of_medians_in_shared_blocks() -> None:
    levels = fit_levels({arm: {b: block(t, SPREAD) for b in range(4)} for arm, t in (("a", 1.0), ("b", 3.0))})
    one_block = math.pi / 2 * (SPREAD / STEP_OF_NORMAL) ** 2 / 5
    assert levels.scale == 1.0
    assert levels.variance([[1.0, -1.0], [0.0, 0.0]]) == pytest.approx([2 * one_block / 4, 0.0])
    assert levels.block_variance == pytest.approx([one_block] * 2)


def test_an_arm_is_held_against_another_through_a_third_or_not_at_all() -> None:
    """b was never timed beside c: their ratio has the uncertainty of both their ratios to a."""
    a, b, c = ({0: block(1.0, SPREAD), 1: block(2.0, SPREAD)}, {0: block(3.0, SPREAD)}, {1: block(8.0, SPREAD)})
    levels = fit_levels({"a": a, "b": b, "c": c})
    one_block = float(levels.block_variance[0])
    assert levels.seconds("c") / levels.seconds("b") == pytest.approx(4 / 3)
    assert levels.variance([[1.0, -1.0, 0.0], [0.0, 1.0, -1.0]]) == pytest.approx([2 * one_block, 4 * one_block])
    apart = fit_levels({"a": {0: block(1.0)}, "b": {1: block(2.0)}, "c": {0: block(1.0)}})
    assert apart.variance([[1.0, -1.0, 0.0], [1.0, 0.0, -1.0]]).tolist() == [math.inf, pytest.approx(0.0, abs=1e-9)]


def test_the_typical_arm_is_the_least_noise_of_any_and_samples_that_all_agree_still_differ() -> None:
    levels = fit_levels({"calm": {0: block(1.0)}, "one": {0: block(1.0, 0.02)}, "two": {0: block(1.0, 0.06)}})
    calm, one, two = levels.block_variance
    assert calm == pytest.approx(one)
    assert two == pytest.approx(9 * one)
    agree = fit_levels({"a": {0: block(1.0)}, "b": {0: block(2.0)}})
    assert agree.variance([[1.0, -1.0]]) == pytest.approx([2 * math.pi / 2 * SMALLEST_NOISE**2 / 5])


def test_blocks_that_differ_by_more_than_their_samples_widen_every_interval() -> None:
    times = {"a": [1.0, 1.1], "b": [1.1, 1.0]}
    levels = fit_levels({arm: {b: block(t, SPREAD) for b, t in enumerate(own)} for arm, own in times.items()})
    one_block = float(levels.block_variance[0])
    residual = math.log(1.1) / 2  # both arms, both blocks; four observations, one degree of freedom
    scale = (4 * residual**2 / one_block + TRUSTED) / (1 + TRUSTED)
    assert levels.scale == pytest.approx(scale)
    assert levels.variance([[1.0, -1.0]]) == pytest.approx([scale * one_block])


def test_blocks_of_one_sample_tell_their_noise_by_each_other() -> None:
    def single(seconds: float) -> BlockSummary:
        return summarise_block([[seconds]])

    alone = fit_levels({"a": {0: single(1.0)}, "b": {0: single(2.0)}})
    assert alone.variance([[1.0, -1.0], [0.0, 0.0]]).tolist() == [math.inf, 0.0]
    levels = fit_levels({"a": {0: single(1.0), 1: single(1.1)}, "b": {0: single(1.1), 1: single(1.0)}})
    assert levels.variance([[1.0, -1.0]]) == pytest.approx([4 * (math.log(1.1) / 2) ** 2])


def test_marks_of_a_chain_are_shares_of_the_last_whatever_the_pace() -> None:
    chain = {b: summarise_block([[pace, 3 * pace, 4 * pace]] * 3) for b, pace in enumerate((1.0, 2.0))}
    levels = fit_levels({"draft": chain, "decode": {0: block(10.0), 1: block(20.0)}})
    assert levels.marks_s("draft") / levels.seconds("decode") == pytest.approx([0.1, 0.3, 0.4])
    assert levels.share_covariance["draft"] == pytest.approx(np.zeros((3, 3)))
    levels = fit_levels({"draft": {0: summarise_block([[1.0, 4.0], [2.0, 4.0]])}, "decode": {0: block(1.0)}})
    of_median = math.pi / 2 * (math.log(2) ** 2 / 2) / 2
    assert levels.share_covariance["draft"] == pytest.approx(np.array([[of_median, 0.0], [0.0, 0.0]]))


def test_what_is_taken_as_it_is_is_exact() -> None:
    levels = exact_levels({"decode": [2.0], "draft": [0.5, 1.0]})
    assert levels.seconds("decode") == pytest.approx(2.0)
    assert levels.marks_s("draft") == pytest.approx([0.5, 1.0])
    assert levels.variance([[1.0, -1.0]]).tolist() == [0.0]
    with pytest.raises(ValueError, match=r"decode.*: expected .*got 0"):
        exact_levels({"decode": [0.0]})


def test_blocks_are_brought_to_one_pace() -> None:
    """Block 1 is four times as slow as block 0: both are taken at twice the pace of block 0."""
    decode = {0: np.full((3, 1), 1.0), 1: np.full((3, 1), 4.0)}
    found = level_blocks({"decode": decode, "draft": {1: np.array([[0.4, 0.8]] * 2)}, "verify:1": {}})
    assert [found["decode"][number].tolist() for number in (0, 1)] == [[[pytest.approx(2.0)]] * 3] * 2
    assert found["draft"][1] == pytest.approx(np.array([[0.2, 0.4]] * 2))
    assert found["verify:1"] == {}
