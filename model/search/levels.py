"""How long the arms of a cell take at one pace of the machine, from blocks that do not hold every arm.

    log t[a, b] = level_a + pace_b + noise          arm a, block b; t the median of the block's samples

A search times some arms in some blocks only, and a machine that slows down would favour the arms of its fast minutes.
Weighted least squares tells the two apart: what the arms of a block have in common is its pace. A contrast of levels,
whose coefficients add up to 0, is free of it, and only contrasts have a variance here. The noise of an arm is that
between successive samples of a block, at least that of the typical arm (few samples may agree by chance), and more
where blocks differ by more than their samples explain.

    levels = fit_levels({"decode": {0: summarise_block([[0.020], [0.021]]), …}, "verify:4": {1: …}, …})
    levels.seconds("verify:4"), levels.variance(contrast)

A arms, B blocks. A chain of marks (`draft`) is levelled by its last mark; the others are shares of it, by sample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, positive_times_s

STEP_OF_NORMAL = 0.9539
"""Median distance of two draws from a normal distribution, in standard deviations: √2 · Φ⁻¹(3/4)."""
SMALLEST_NOISE = 1e-5
"""What samples that all agree are still taken to differ by, as a share of their time."""
TRUSTED = 4
"""Degrees of freedom that the noise within blocks counts for when blocks are asked whether they differ by more."""
_SMALL = 1e-6
_PACE_DIGITS = 12
"""Digits of a pace that are not rounding: samples of a machine that kept its pace stay as they are."""

Summaries = Mapping[str, Mapping[int, "BlockSummary"]]
"""Blocks by arm and number."""


@dataclass(frozen=True, kw_only=True)
class BlockSummary:
    """What the fit needs of one block of one arm."""

    log_s: float
    """Logarithm of the median of the last mark, in seconds."""
    count: int
    """Samples."""
    steps: FloatArray
    """(count − 1,) distances of the logarithms of successive samples."""
    log_shares: FloatArray
    """(count, marks) logarithm of each mark over the last one of its sample."""


def summarise_block(samples_s: ArrayLike) -> BlockSummary:
    """The summary of samples (n, marks) in seconds; ValueError without samples and for times that are not above 0."""
    samples = positive_times_s("samples_s", samples_s)
    if samples.ndim != 2 or samples.size == 0:
        raise ValueError(f"samples_s: expected (samples, marks), at least one of each, got shape {samples.shape}")
    logs = np.log(samples)
    last = logs[:, -1]
    return BlockSummary(
        log_s=float(_middle(last)),
        count=last.size,
        steps=np.abs(np.diff(last)),
        log_shares=logs - last[:, None],
    )


@dataclass(frozen=True, kw_only=True)
class ArmLevels:
    """The arms at the mean pace of the blocks, with what their ratios are known to."""

    arms: tuple[str, ...]
    log_s: FloatArray
    """(A,) logarithms of seconds."""
    covariance: FloatArray
    """(A, A) of `log_s` in units of `scale`, for contrasts only."""
    scale: float
    """How much more blocks differ than their samples explain; infinite where nothing tells."""
    reach: FloatArray
    """(A, A) projection onto the contrasts that the blocks connect."""
    blocks: FloatArray
    """(A,) blocks of each arm."""
    block_variance: FloatArray
    """(A,) variance of the logarithm of one block's median, in units of `scale`."""
    paces: Mapping[int, float]
    """Logarithm of each block's pace, in rising order; they add up to 0."""
    shares: Mapping[str, FloatArray]
    """Marks of each arm as shares of its last one, (marks,)."""
    share_covariance: Mapping[str, FloatArray]
    """(marks, marks) of their logarithms."""

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Place of each arm."""
        return {arm: place for place, arm in enumerate(self.arms)}

    def seconds(self, arm: str) -> float:
        """The last mark of an arm, in seconds."""
        return math.exp(self.log_s[self.index[arm]])

    def marks_s(self, arm: str) -> FloatArray:
        """(marks,) all marks of an arm, in seconds."""
        return np.asarray(self.seconds(arm) * self.shares[arm], dtype=np.float64)

    def catch_up_s(self) -> float:
        """Δ₂: what a first draft step that feeds two tokens takes beyond one of one."""
        return max(0.0, self.seconds("draft_catch_up") - float(self.marks_s("draft")[0]))

    def variance(self, contrasts: ArrayLike) -> FloatArray:
        """(K,) variances of contrasts (K, A) of `log_s`, each adding up to 0; infinite where no blocks connect them."""
        wanted = np.asarray(contrasts, dtype=np.float64)
        found = np.einsum("ka,ab,kb->k", wanted, self.covariance, wanted)
        missed = np.abs(wanted - wanted @ self.reach).max(axis=1, initial=0.0)
        unknown = (missed > _SMALL) | (np.isinf(self.scale) & (np.abs(wanted).max(axis=1, initial=0.0) > 0))
        return np.where(unknown, np.inf, np.maximum(found, 0.0) * (0.0 if np.isinf(self.scale) else self.scale))


def exact_levels(marks_s: Mapping[str, ArrayLike]) -> ArmLevels:
    """Levels of arms whose marks (marks,) are exact: what a model expects of a cell."""
    arms = tuple(marks_s)
    marks = {arm: positive_times_s(arm, values) for arm, values in marks_s.items()}
    nothing = np.zeros((len(arms), len(arms)))
    return ArmLevels(
        arms=arms,
        log_s=np.array([math.log(marks[arm][-1]) for arm in arms]),
        covariance=nothing,
        scale=1.0,
        reach=np.eye(len(arms)),
        blocks=np.zeros(len(arms)),
        block_variance=np.zeros(len(arms)),
        paces={},
        shares={arm: values / values[-1] for arm, values in marks.items()},
        share_covariance={arm: np.zeros((values.size, values.size)) for arm, values in marks.items()},
    )


def fit_levels(summaries: Summaries) -> ArmLevels:
    """Levels of all arms that have a block; ValueError without any."""
    arms = tuple(arm for arm, blocks in summaries.items() if blocks)
    if not arms:
        raise ValueError("summaries: expected at least one, got no block")
    numbers = sorted({number for arm in arms for number in summaries[arm]})
    place = {number: at for at, number in enumerate(numbers)}
    logs = np.full((len(arms), len(numbers)), np.nan)
    for row, arm in enumerate(arms):
        for number, block in summaries[arm].items():
            logs[row, place[number]] = block.log_s
    by_arm = {arm: list(summaries[arm].values()) for arm in arms}
    variance, is_known = _block_variances(list(by_arm.values()))
    there = np.isfinite(logs)
    weights = np.where(there, 1.0 / variance[:, None], 0.0)
    total = weights.sum(axis=0)
    filled = np.where(there, logs, 0.0)
    normal = np.diag(weights.sum(axis=1)) - (weights / total) @ weights.T
    inverse = np.linalg.pinv(normal, rcond=1e-10, hermitian=True)
    centred = filled - (weights * filled).sum(axis=0) / total
    levels = inverse @ (weights * centred).sum(axis=1)
    paces = (weights * (filled - levels[:, None])).sum(axis=0) / total
    levels, paces = levels + paces.mean(), paces - paces.mean()
    residuals = np.where(there, logs - levels[:, None] - paces, 0.0)
    freedom = int(there.sum()) - len(numbers) - round(float(np.trace(normal @ inverse)))
    scale = _overdispersion(float((weights * residuals**2).sum()), freedom, is_known)
    return ArmLevels(
        arms=arms,
        log_s=levels,
        covariance=inverse,
        scale=scale,
        reach=inverse @ normal,
        blocks=there.sum(axis=1).astype(np.float64),
        block_variance=variance,
        paces=dict(zip(numbers, paces.tolist(), strict=True)),
        shares={arm: np.exp(_middle(_log_shares(own))) for arm, own in by_arm.items()},
        share_covariance={
            arm: _share_covariance(own, max(1.0, scale) if is_known else 1.0) for arm, own in by_arm.items()
        },
    )


def level_blocks(samples_s: Mapping[str, Mapping[int, FloatArray]]) -> dict[str, dict[int, FloatArray]]:
    """Samples (n, marks) by arm and block, each block at the mean pace of all; errors as `fit_levels`."""
    levels = fit_levels(
        {arm: {number: summarise_block(block) for number, block in blocks.items()} for arm, blocks in samples_s.items()}
    )
    paces = {number: math.exp(round(pace, _PACE_DIGITS)) for number, pace in levels.paces.items()}
    return {
        arm: {number: block / paces[number] for number, block in blocks.items()} for arm, blocks in samples_s.items()
    }


def _block_variances(own: Sequence[Sequence[BlockSummary]]) -> tuple[FloatArray, bool]:
    """(A,) variances of the logarithm of a block's median by the noise within blocks; 1 where blocks hold one sample.

    Of a median of n normal draws the variance is close to π/2 · σ²/n.
    """
    steps = [np.concatenate([block.steps for block in blocks]) for blocks in own]
    known = [float(_middle(one)) / STEP_OF_NORMAL for one in steps if one.size]
    if len(known) < len(steps):
        return np.ones(len(own)), False
    typical = max(float(_middle(np.array(known))), SMALLEST_NOISE)
    counts = np.array([sum(block.count for block in blocks) / len(blocks) for blocks in own])
    return math.pi / 2 * np.maximum(known, typical) ** 2 / counts, True


def _overdispersion(squares: float, freedom: int, is_known: bool) -> float:
    """How much more blocks differ than their samples explain, at least 1; infinite where nothing tells."""
    if is_known:
        return max(1.0, (squares + TRUSTED) / (max(freedom, 0) + TRUSTED))
    return max(squares / freedom, SMALLEST_NOISE**2) if freedom > 0 else math.inf


def _middle(values: FloatArray) -> FloatArray:
    """The median along the first axis, without numpy's checks: a search asks for thousands."""
    ranked = np.sort(values, axis=0)
    return np.asarray((ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2, dtype=np.float64)


def _log_shares(blocks: Sequence[BlockSummary]) -> FloatArray:
    return np.concatenate([block.log_shares for block in blocks])


def _share_covariance(blocks: Sequence[BlockSummary], scale: float) -> FloatArray:
    shares = _log_shares(blocks)
    if min(shares.shape) < 2:
        return np.zeros((shares.shape[1],) * 2)
    return np.asarray(np.atleast_2d(np.cov(shares.T)) * (math.pi / 2 * scale / shares.shape[0]), dtype=np.float64)
