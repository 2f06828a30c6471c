"""The joint bootstrap's replicates: blocks of timings and prompts of acceptance, drawn once for everything compared.

Every array here has the estimate in row 0 and R replicates in rows 1 … R, so that any formula of them (sums,
interpolation between cells, a speed-up) applies to all rows alike:

    block draws    u (R, blocks):  arm with n blocks takes blocks floor(n u), the same ones in every arm of the cell
    prompt draws   weights (R, P): how often each prompt was drawn, the same for all γ, rules and cells
    median         m · (m* / m)^f,          m* the median of the drawn blocks' samples,  f = √(n / (n - 1))
    pooled ratio   r + f · (r* - r),        r* = Σ num / Σ den over the drawn prompts,   f = √(P / (P - 1)) · t / z
    pooled rate    r · (r* / r)^f,          the same where both sums are above 0: no replicate of it is 0 or less

The factors f are those of the expanded percentile interval (Hesterberg, Am. Stat. 69 (2015), 371), without t for
medians, whose bootstrap spread is already wide with few blocks. With them nominal 90 % intervals of S covered the truth
in 88.7 to 92.3 % of 1,500 simulated experiments each, from 3 blocks and 8 prompts to 8 and 32, 5 samples a block;
without them in down to 83 % (3 and 8).

    times_s = median_replicates(blocks, block_draws)                    # (1 + R,) seconds
    omega = ratio_replicates(committed, starts, prompt_draws)           # (1 + R, G)

R replicates, P prompts, G gammas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specgauge.model.checks import FloatArray, IntArray, positive_times_s

Blocks = Sequence[ArrayLike] | NDArray[Any]
"""Samples in seconds by block, each block (samples,) or (samples, marks); a (blocks, samples, …) array is one."""

_BLOCKS_STREAM, _PROMPTS_STREAM = 1, 2


def draw_blocks(blocks: int, replicates: int, seed: int | Sequence[int]) -> FloatArray:
    """Uniforms (R, blocks) that pick the blocks of one cell; blocks is the most that any of its arms has.

    Give each cell its own seed, for instance (seed, cell number): its arms share draws, cells do not.
    """
    return np.random.default_rng([_BLOCKS_STREAM, *np.atleast_1d(seed)]).random((replicates, blocks))


def draw_prompts(prompts: int, replicates: int, seed: int | Sequence[int]) -> IntArray:
    """Weights (R, P): how often each of P prompts is in a replicate; one call serves all γ, rules and cells."""
    generator = np.random.default_rng([_PROMPTS_STREAM, *np.atleast_1d(seed)])
    return generator.multinomial(prompts, np.full(prompts, 1 / prompts), replicates)


def median_replicates(blocks: Blocks, draws: FloatArray, name: str = "samples_s") -> FloatArray:
    """The median of all samples and of the samples of drawn blocks: (1 + R,), or (1 + R, marks).

    With one block the replicates are NaN: a single block says nothing about others.

    Args:
        blocks: samples by block, of equal or differing numbers.
        draws: (R, >= blocks) of `draw_blocks`.
        name: what errors call the samples.

    Raises:
        ValueError: there is no sample, a time that is not above 0, or fewer draws than blocks.
    """
    arrays = [positive_times_s(name, block) for block in blocks]
    if not arrays or any(array.size == 0 for array in arrays) or len({array.shape[1:] for array in arrays}) > 1:
        raise ValueError(f"{name}: expected blocks of samples, got {len(arrays)} blocks, one empty or of other marks")
    count = len(arrays)
    if count > draws.shape[1]:
        raise ValueError(
            f"{name}: expected at most as many blocks as were drawn, got {count} for draws of {draws.shape[1]}"
        )
    samples = np.concatenate(arrays)
    block_of = np.repeat(np.arange(count), [array.shape[0] for array in arrays])
    estimate = np.median(samples, axis=0)
    result = np.full((1 + draws.shape[0], *estimate.shape), np.nan)
    result[0] = estimate
    if count > 1:
        weights = _block_counts(draws[:, :count])
        columns = samples.reshape(samples.shape[0], -1)
        drawn = np.stack([_weighted_medians(column, block_of, weights) for column in columns.T], axis=-1)
        drawn = drawn.reshape(draws.shape[0], *estimate.shape)
        result[1:] = estimate * (drawn / estimate) ** math.sqrt(count / (count - 1))
    return result


def ratio_replicates(
    numerators: ArrayLike,
    denominators: ArrayLike,
    weights: IntArray,
    *,
    confidence: float = 0.9,
    log_scale: bool = False,
) -> FloatArray:
    """Pooled ratios by γ, over all prompts and over drawn prompts: (1 + R, G) from (P, G) sums by prompt.

    NaN where no prompt has a denominator; replicates are NaN where fewer than two have one, and equal the estimate in
    the rare draw that hits none of those. log_scale: widened there, as rates are, whose numerators are above 0.

    Raises:
        ValueError: shapes that do not fit.
    """
    top, bottom = np.asarray(numerators, dtype=np.float64), np.asarray(denominators, dtype=np.float64)
    if top.ndim != 2 or bottom.shape != top.shape or weights.shape[1:] != top.shape[:1]:
        raise ValueError(
            f"numerators: expected (P, G), (P, G) and (R, P), got shapes {top.shape}, {bottom.shape} and weights "
            f"{weights.shape}"
        )
    estimate = np.full(top.shape[1], np.nan)
    total = bottom.sum(axis=0)
    np.divide(top.sum(axis=0), total, out=estimate, where=total > 0)
    drawn = np.broadcast_to(estimate, (weights.shape[0], estimate.size)).copy()
    counts = weights.astype(np.float64)
    drawn_total = counts @ bottom
    np.divide(counts @ top, drawn_total, out=drawn, where=drawn_total > 0)
    factors = np.array([expansion(int(units), confidence) for units in (bottom > 0).sum(axis=0)])
    if log_scale:  # not by **, for which 1 to the power of NaN is 1
        widened = estimate * np.exp(factors * np.log(drawn / estimate))
    else:
        widened = estimate + factors * (drawn - estimate)
    return np.concatenate([estimate[None], widened])


def percentile_interval(replicates: ArrayLike, confidence: float) -> tuple[FloatArray, FloatArray]:
    """(low, high) of the central interval of replicates (R, …), each (…); NaN where a replicate is.

    Raises:
        ValueError: a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected above 0 and below 1, got {confidence:g}")
    low, high = np.quantile(np.asarray(replicates), [0.5 - confidence / 2, 0.5 + confidence / 2], axis=0)
    return low, high


def interval_around(replicates: ArrayLike, confidence: float) -> tuple[float, float, float]:
    """(estimate, low, high) from (1 + R,), the estimate first; its interval holds it. NaN ends where a replicate is."""
    values = np.asarray(replicates, dtype=np.float64)
    low, high = percentile_interval(values[1:], confidence)
    return float(values[0]), float(np.minimum(low, values[0])), float(np.maximum(high, values[0]))


def expansion(units: int, confidence: float) -> float:
    """√(n / (n - 1)) · t / z at the ends of a central interval, for n units drawn; NaN with fewer than two."""
    return math.nan if units < 2 else math.sqrt(units / (units - 1)) * student_over_normal(units - 1, confidence)


def student_over_normal(degrees_of_freedom: int, confidence: float) -> float:
    """t / z at the ends of a central interval."""
    from scipy.special import stdtrit

    end = 0.5 + confidence / 2
    return float(stdtrit(degrees_of_freedom, end)) / NormalDist().inv_cdf(end)


def batch_numbers(prompts: Iterable[Iterable[int]]) -> IntArray:
    """(blocks,) a number for each block, the same for the same set of prompts, in order of appearance.

    prompts: those of each block's rows. What blocks of the same prompts came to is no independent evidence.
    """
    numbers: dict[frozenset[int], int] = {}
    return np.array([numbers.setdefault(frozenset(own), len(numbers)) for own in prompts], dtype=np.int64)


def sum_by_prompt(values: ArrayLike, prompts: ArrayLike) -> FloatArray:
    """Per-text sums (N, …) added up by prompt: (P, …), prompts in rising order."""
    sums = np.asarray(values, dtype=np.float64)
    distinct, index = np.unique(np.asarray(prompts), return_inverse=True)
    if sums.shape[:1] != index.shape:
        raise ValueError(f"prompts: expected one per text, got shape {index.shape} for values of shape {sums.shape}")
    total = np.zeros((distinct.size, *sums.shape[1:]))
    np.add.at(total, index, sums)
    return total


def _block_counts(draws: FloatArray) -> IntArray:
    """How often each block is drawn, (R, n), from uniforms (R, n)."""
    replicates, blocks = draws.shape
    picked = (draws * blocks).astype(np.int64) + blocks * np.arange(replicates)[:, None]
    return np.bincount(picked.ravel(), minlength=replicates * blocks).reshape(replicates, blocks)


def _weighted_medians(samples: FloatArray, block_of: IntArray, weights: IntArray) -> FloatArray:
    """Median of each replicate (R,), every sample (m,) counted as often as its block was drawn."""
    order = np.argsort(samples, kind="stable")
    ranked = samples[order]
    reached = np.cumsum(weights[:, block_of[order]], axis=1)
    total = reached[:, -1:]
    low = ranked[(reached > (total - 1) // 2).argmax(axis=1)]
    high = ranked[(reached > total // 2).argmax(axis=1)]
    return np.asarray((low + high) / 2, dtype=np.float64)
