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
    assert draw_blocks(6, 10, (0, 3)).tolist() == draw_blocks(6, 10, (0, 3)).tolist()
    assert draw_blocks(6, 10, (0, 3)).tolist() != draw_blocks(6, 10, (0, 4)).tolist()
    assert draw_prompts(6, 10, 0).tolist() == draw_prompts(6, 10, 0).tolist()
    assert draw_prompts(6, 10, 0).tolist() != draw_prompts(6, 10, 1).tolist()
    assert (draw_prompts(6, 10, 0).sum(axis=1) == 6).all()


RAGGED = [np.array([1.0, 5.0, 6.0]), np.array([2.0]), np.array([3.0, 4.0])]


@pytest.mark.parametrize("blocks", [RAGGED, list(np.random.default_rng(0).lognormal(0, 0.1, (6, 5)))])
def test_median_replicates_are_medians_of_the_drawn_samples_spread_by_the_factor(
    blocks: list[NDArray[np.float64]],
) -> None:
    count, draws = len(blocks), draw_blocks(len(blocks), 200, 1)
    found = median_replicates(blocks, draws)
    assert found.shape == (201,)
    assert found[0] == np.median(np.concatenate(blocks))
    for replicate in range(200):
        drawn = float(np.median(np.concatenate([blocks[int(u * count)] for u in draws[replicate]])))
        spread = (drawn / found[0]) ** math.sqrt(count / (count - 1))
        assert found[1 + replicate] == pytest.approx(found[0] * spread, rel=1e-12)


def test_marks_of_a_chain_share_their_blocks() -> None:
    generator = np.random.default_rng(3)
    chain = np.cumsum(generator.random((4, 5, 3)) + 1, axis=2)
    draws = draw_blocks(4, 50, 0)
    found = median_replicates(chain, draws)
    assert found.shape == (51, 3)
    for mark in range(3):
        assert found[:, mark].tolist() == median_replicates(chain[:, :, mark], draws).tolist()
    assert (np.diff(found, axis=1) > 0).all()


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
