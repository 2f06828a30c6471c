import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import t as student

from specgauge.model.stats.bootstrap import (
    draw_blocks,
    draw_prompts,
    interval_around,
    median_replicates,
    percentile_interval,
    ratio_replicates,
)


def test_draws_repeat_with_the_seed_and_differ_between_cells_and_sources() -> None:
    first, again, other = (draw_blocks(6, 10, seed) for seed in [(0, 3), (0, 3), (0, 4)])
    for name in ("normals", "quantiles", "moments"):
        assert getattr(first, name).tolist() == getattr(again, name).tolist()
        assert getattr(first, name).tolist() != getattr(other, name).tolist()
    assert first.normals.shape == (10, 6)
    assert draw_prompts(6, 10, 0).tolist() == draw_prompts(6, 10, 0).tolist()
    assert draw_prompts(6, 10, 0).tolist() != draw_prompts(6, 10, 1).tolist()
    assert (draw_prompts(6, 10, 0).sum(axis=1) == 6).all()


RAGGED = [np.array([1.0, 5.0, 6.0]), np.array([2.0]), np.array([3.0, 4.0])]


@pytest.mark.parametrize("blocks", [RAGGED, list(np.random.default_rng(0).lognormal(0, 0.1, (6, 5)))])
def test_intervals_of_medians_are_students_over_blocks(blocks: list[NDArray[np.float64]]) -> None:
    found = median_replicates(blocks, draw_blocks(len(blocks), 100_000, 1))
    estimate = float(np.median(np.concatenate(blocks)))
    assert found[0] == estimate
    logs = np.log([np.median(block) for block in blocks])
    error = logs.std(ddof=1) / math.sqrt(len(blocks)) * student.ppf(0.95, len(blocks) - 1)
    samples, few = sum(map(len, blocks)), math.pi / 2 - 1  # of a median of n: π / 2 / (n + π / 2 - 1)
    error *= math.sqrt((1 + few * len(blocks) / samples) / (1 + few / samples))
    low, high = np.log(percentile_interval(found[1:], 0.9)) - math.log(estimate)
    assert (low, high) == (pytest.approx(-error, rel=0.03), pytest.approx(error, rel=0.03))


@pytest.mark.parametrize(("slope", "noise", "reaches_the_ends"), [(0.05, 0.001, True), (0.0, 0.01, False)])
def test_a_steady_drift_reaches_both_its_ends(slope: float, noise: float, reaches_the_ends: bool) -> None:
    logs = slope * np.arange(8) + noise * np.array([1, -1, -1, 1, 1, -1, -1, 1])
    low, high = percentile_interval(median_replicates(np.exp(logs)[:, None], draw_blocks(8, 4000, 0))[1:], 0.9)
    assert bool(low < math.exp(logs[0]) and high > math.exp(logs[-1])) == reaches_the_ends


def test_replicates_stay_finite_however_far_blocks_are_apart() -> None:
    found = median_replicates([[1e-9], [1e9]], draw_blocks(2, 20_000, 0))
    assert np.isfinite(found).all()
    assert (found > 0).all()


def test_marks_of_a_chain_and_arms_of_a_cell_share_their_blocks() -> None:
    chain = np.cumsum(np.random.default_rng(3).random((4, 5, 3)) + 1, axis=2)
    draws = draw_blocks(7, 50, 0)
    found = median_replicates(chain, draws)
    assert found.shape == (51, 3)
    for mark in range(3):
        np.testing.assert_allclose(found[:, mark], median_replicates(chain[:, :, mark], draws), rtol=1e-13)
    np.testing.assert_allclose(median_replicates(2 * chain, draws), 2 * found, rtol=1e-13)
    with pytest.raises(ValueError, match=r"decode: expected .*got 8 for draws of 7"):
        median_replicates(np.ones((8, 2)), draws, "decode")


def test_a_single_block_or_prompt_says_nothing_about_others() -> None:
    found = median_replicates([[1.0, 2.0, 4.0]], draw_blocks(1, 5, 0))
    assert found[0] == 2.0
    assert np.isnan(found[1:]).all()
    ratio = ratio_replicates([[3.0, 4.0]], [[2.0, 2.0]], draw_prompts(1, 5, 0))
    assert ratio[0].tolist() == [1.5, 2.0]
    assert np.isnan(ratio[1:]).all()


def test_bad_blocks_and_shapes_are_refused() -> None:
    draws = draw_blocks(3, 5, 0)
    for blocks in ([], [[1.0], []], [[[1.0, 2.0]], [[1.0]]]):
        with pytest.raises(ValueError, match="verify:2: expected blocks"):
            median_replicates(blocks, draws, "verify:2")
    assert median_replicates(np.ones((2, 2)), draws).tolist() == [1.0] * 6  # fewer blocks than draws
    with pytest.raises(ValueError, match=r"decode: expected .*got 8 for draws of 3"):
        median_replicates(np.ones((8, 2)), draws, "decode")
    with pytest.raises(ValueError, match="seconds, above 0"):
        median_replicates([[1.0], [-1.0]], draws)
    with pytest.raises(ValueError, match=r"numerators: expected .*got shapes"):
        ratio_replicates([[1.0]], [[1.0]], draw_prompts(2, 5, 0))


def test_ratio_replicates_pool_and_spread_by_the_factor() -> None:
    generator = np.random.default_rng(1)
    top, bottom = generator.random((8, 3)) + 1, generator.random((8, 3)) + 1
    weights = draw_prompts(8, 100, 0)
    found = ratio_replicates(top, bottom, weights)
    pooled = top.sum(axis=0) / bottom.sum(axis=0)
    np.testing.assert_allclose(found[0], pooled, rtol=1e-14)
    factor = math.sqrt(8 / 7) * student.ppf(0.95, 7) / 1.6448536269514722
    for replicate in range(100):
        drawn = (weights[replicate] @ top) / (weights[replicate] @ bottom)
        np.testing.assert_allclose(found[1 + replicate], pooled + factor * (drawn - pooled), rtol=1e-12)


def test_prompts_without_a_start_neither_count_nor_divide() -> None:
    top, bottom = np.array([[3.0], [0.0], [5.0]]), np.array([[2.0], [0.0], [2.0]])
    weights = np.array([[0, 3, 0], [3, 0, 0], [1, 1, 1]])
    found = ratio_replicates(top, bottom, weights)[:, 0]
    assert found[0] == 2.0
    assert found[1] == 2.0
    factor = math.sqrt(2) * student.ppf(0.95, 1) / 1.6448536269514722
    assert found[2] == pytest.approx(2.0 + factor * (1.5 - 2.0), rel=1e-12)
    assert np.isnan(ratio_replicates(np.zeros((3, 1)), np.zeros((3, 1)), weights)).all()


@pytest.mark.parametrize("shape", [(1,), (2,), (200,), (7, 3), (201, 2, 2)])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_percentiles_are_those_of_numpy(shape: tuple[int, ...], confidence: float) -> None:
    drawn = np.random.default_rng(3).standard_normal(shape)
    expected = np.quantile(drawn, [0.5 - confidence / 2, 0.5 + confidence / 2], axis=0)
    np.testing.assert_array_equal(percentile_interval(drawn, confidence), expected)


def test_percentiles_of_what_is_not_a_number_are_none() -> None:
    low, high = percentile_interval([[1.0, math.nan], [2.0, 3.0], [3.0, 4.0]], 0.5)
    np.testing.assert_array_equal(low, [1.5, math.nan])
    np.testing.assert_array_equal(high, [2.5, math.nan])


def test_a_percentile_interval_is_central() -> None:
    replicates = np.stack([np.arange(101.0), np.full(101, np.nan)], axis=1)
    low, high = percentile_interval(replicates, 0.9)
    assert (low[0], high[0]) == (pytest.approx(5.0), pytest.approx(95.0))
    assert math.isnan(low[1])
    assert math.isnan(high[1])
    with pytest.raises(ValueError, match=r"confidence: expected above 0 and below 1, got 1"):
        percentile_interval(replicates, 1.0)


@pytest.mark.parametrize("batches", [2, 4, 8])
def test_ratios_of_rates_cover_as_often_as_they_say(batches: int) -> None:
    """Batches at a pace of their own (40 %), arms with 10 % of noise each; nominal 90 % covers 85 to 90 % of 1,000."""
    generator = np.random.default_rng(batches)
    covered = 0
    for _ in range(200):
        pace = generator.normal(0, 0.4, (batches, 1))
        tokens = np.repeat(generator.integers(40, 60, (batches, 1)), 2, axis=1)
        seconds = tokens * [1.0, 1.5] * np.exp(pace + generator.normal(0, 0.1, (batches, 2)))
        weights = draw_prompts(batches, 100, int(generator.integers(2**32)))
        rates = ratio_replicates(tokens, seconds, weights, log_scale=True)
        _, low, high = interval_around(rates[:, 0] / rates[:, 1], 0.9)
        assert low > 0
        covered += low <= 1.5 <= high
    assert 0.82 <= covered / 200 <= 0.95
