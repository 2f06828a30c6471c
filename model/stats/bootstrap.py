"""Replicates of everything compared: block timings by Student's t, prompts of acceptance by the bootstrap.

Every array here has the estimate in row 0 and R replicates in rows 1 … R, so that any formula of them (sums,
interpolation between cells, a speed-up) applies to all rows alike:

    median of blocks   m · exp(Σ_b z_b (x_b - x̄) / √(n (n - 1)) · √((n - 1) / χ²) + drift),   x_b the log of block b's
                       median; z standard normal and χ² of n - 1 degrees, the same ones in every arm of a cell
    prompt draws       weights (R, P): how often each prompt was drawn, the same for all γ, rules and cells
    pooled ratio       r + f · (r* - r),        r* = Σ num / Σ den over the drawn prompts,   f = √(P / (P - 1)) · t / z
    pooled rate        r · (r* / r)^f,          the same where both sums are above 0: no replicate of it is 0 or less

Blocks, not samples, are what is independent: the samples of a block share whatever the machine did meanwhile.  The
first line is a draw from the multivariate t of the means of the x_b, so that the interval of any product or quotient of
arms is Student's over its blocks, however the arms vary together.  Where an arm rises or falls steadily against the
others (|t| of its slope beyond the central 99 %), nothing says which end is the rule, and the drift seen is spread
evenly over the replicates.  The factor f is that of the expanded percentile interval (Hesterberg, Am. Stat. 69 (2015),
371).

    times_s = median_replicates(blocks, draw_blocks(len(blocks), 2000, seed))    # (1 + R,) seconds
    omega = ratio_replicates(committed, starts, prompt_draws)                    # (1 + R, G)

R replicates, P prompts, G gammas.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specgauge.model.checks import FloatArray, IntArray, positive_times_s

Blocks = Sequence[ArrayLike] | NDArray[Any]
"""Samples in seconds by block, each block (samples,) or (samples, marks); a (blocks, samples, …) array is one."""

_BLOCKS_STREAM, _PROMPTS_STREAM = 1, 2
_STEADY = 0.99
"""How unlikely by chance a slope over the blocks must be to count as a drift."""
_DRIFT_REACH = 0.7
"""Of the whole drift, how far a replicate may lie from its middle: the central 90 % then hold both ends, with room."""
_ROUNDING = 1e-9
_MEDIAN_OF_FEW = math.pi / 2 - 1
"""The median of n normal draws varies like the mean of (n + π/2 - 1) / (π/2): that of all samples more than the mean of
the blocks' medians, by which Student's t goes."""
_LARGEST_LOG = 30.0
"""Bound of a replicate's distance on the log scale: Student's t of few blocks has no largest value, a float has."""


@dataclass(frozen=True, kw_only=True)
class BlockDraws:
    """The chance behind the replicates of one cell, shared by its arms."""

    normals: FloatArray
    """(R, blocks) standard normal: how far each block pulls a replicate."""
    quantiles: FloatArray
    """(R,) in (0, 1): which quantile of χ² a replicate has, whatever its degrees of freedom."""
    moments: FloatArray
    """(R,) in (-1, 1): where in a drift a replicate stands, from the first block to the last."""
    biases: FloatArray
    """(R,) standard normal: what all blocks may share that no block tells."""


def draw_blocks(blocks: int, replicates: int, seed: int | Sequence[int]) -> BlockDraws:
    """Draws for the blocks of one cell; blocks is the most that any of its arms has.

    Give each cell its own seed, for instance (seed, cell number): its arms share draws, cells do not.
    """
    generator = np.random.default_rng([_BLOCKS_STREAM, *np.atleast_1d(seed)])
    return BlockDraws(
        normals=generator.standard_normal((replicates, blocks)),
        quantiles=1.0 - generator.random(replicates),
        moments=generator.uniform(-1.0, 1.0, replicates),
        biases=generator.standard_normal(replicates),
    )


def draw_prompts(prompts: int, replicates: int, seed: int | Sequence[int]) -> IntArray:
    """Weights (R, P): how often each of P prompts is in a replicate; one call serves all γ, rules and cells."""
    generator = np.random.default_rng([_PROMPTS_STREAM, *np.atleast_1d(seed)])
    return generator.multinomial(prompts, np.full(prompts, 1 / prompts), replicates)


def median_replicates(blocks: Blocks, draws: BlockDraws, name: str = "samples_s") -> FloatArray:
    """The median of all samples, and replicates that vary as much as blocks do: (1 + R,), or (1 + R, marks).

    With one block the replicates are NaN: a single block says nothing about others.

    Args:
        blocks: samples by block in the order taken, of equal or differing numbers.
        draws: of at least as many blocks.
        name: what errors call the samples.

    Raises:
        ValueError: there is no sample, a time that is not above 0, or fewer draws than blocks.
    """
    arrays = [positive_times_s(name, block) for block in blocks]
    if not arrays or any(array.size == 0 for array in arrays) or len({array.shape[1:] for array in arrays}) > 1:
        raise ValueError(f"{name}: expected blocks of samples, got {len(arrays)} blocks, one empty or of other marks")
    count, (replicates, most) = len(arrays), draws.normals.shape
    if count > most:
        raise ValueError(f"{name}: expected at most as many blocks as were drawn, got {count} for draws of {most}")
    estimate = np.median(np.concatenate(arrays), axis=0)
    result = np.full((1 + replicates, *estimate.shape), np.nan)
    result[0] = estimate
    if count > 1:
        logs = np.stack([np.log(np.median(array, axis=0)).ravel() for array in arrays])
        samples = sum(len(array) for array in arrays)
        wider = math.sqrt((1.0 + _MEDIAN_OF_FEW * count / samples) / (1.0 + _MEDIAN_OF_FEW / samples))
        distance = np.clip(wider * _student(logs, draws) + _drift(logs, draws), -_LARGEST_LOG, _LARGEST_LOG)
        result[1:] = estimate * np.exp(distance).reshape(replicates, *estimate.shape)
    return result


def _student(logs: FloatArray, draws: BlockDraws) -> FloatArray:
    """(R, marks) distances of the mean of `logs` (n, marks) from the truth: multivariate t of n - 1 degrees."""
    from scipy.special import chdtri

    count = logs.shape[0]
    chi_squared = chdtri(count - 1, draws.quantiles)
    weights = draws.normals[:, :count] / np.sqrt(count * chi_squared)[:, None]
    return np.asarray(weights @ (logs - logs.mean(axis=0)), dtype=np.float64)


def _drift(logs: FloatArray, draws: BlockDraws) -> FloatArray:
    """(R, marks) distances from the middle of a steady rise or fall of `logs` (n, marks); 0 where there is none."""
    from scipy.special import stdtrit

    count = logs.shape[0]
    nothing = np.zeros((draws.moments.size, logs.shape[1]))
    if count < 4:  # of three blocks, t is too wide already for a slope to say more
        return nothing
    place = np.arange(count) - (count - 1) / 2
    squares = float(place @ place)
    slope = place @ logs / squares
    rest = logs - logs.mean(axis=0) - place[:, None] * slope
    error = np.sqrt((rest**2).sum(axis=0) / (count - 2) / squares)
    is_steady = np.abs(slope) > np.maximum(error * float(stdtrit(count - 2, 0.5 + _STEADY / 2)), _ROUNDING)
    return np.where(is_steady, draws.moments[:, None] * slope * (count - 1) * _DRIFT_REACH, nothing)


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
    ordered = np.sort(np.asarray(replicates, dtype=np.float64), axis=0)
    low, high = (_quantile(ordered, 0.5 + side * confidence / 2) for side in (-1, 1))
    return low, high


def _quantile(ordered: FloatArray, share: float) -> FloatArray:
    """Between the two nearest of sorted values (R, …), linearly: `numpy.quantile` in a seventh of its time."""
    place = share * (ordered.shape[0] - 1)
    before = math.floor(place)
    lower, upper = ordered[before], ordered[min(before + 1, ordered.shape[0] - 1)]
    part, apart = place - before, upper - lower
    found = lower + apart * part if part < 0.5 else upper - apart * (1 - part)
    return np.where(np.isnan(ordered[-1]), np.nan, found)[()]


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
