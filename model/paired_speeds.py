"""Which γ was fastest among those decoded side by side, and what another one loses against it, block by block.

    speed(γ)         = Σ_b committed_b(γ) / Σ_b seconds_b(γ)
    share of best(γ) = speed(γ) / max_γ' speed(γ')              over the same blocks

The largest speed is sought anew in every replicate, so that the interval also doubts which γ is the best.  Two
intervals answer two questions.  *On these prompts*: had they been decoded again, with other coins at other moments?
Blocks are drawn within each prompt (or batch of prompts).  *On others like them*: prompts are drawn, with all their
blocks.  Both are widened as few units demand: √(n / (n - 1)) · t / z, with n blocks of a prompt, or n prompts.

    speeds = PairedSpeeds(gammas=(1, 2), committed=…, seconds=…, prompts=…)
    speeds.best(), speeds.share_of_best(1).half_width

n blocks, G gammas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specgauge.model.bootstrap import draw_prompts, expansion, percentile_interval, student_over_normal
from specgauge.model.checks import FloatArray, IntArray

REPLICATES = 2000
CONFIDENCE = 0.95
_Shares = Callable[[FloatArray], FloatArray]
"""The share of the best under weights (R, n) of blocks, (R,)."""


@dataclass(frozen=True, kw_only=True)
class ShareOfBest:
    """Speed at one γ over that of the fastest; half-widths of 95 % intervals, None where the blocks cannot say."""

    value: float
    """At most 1."""
    half_width: float | None
    """Had the same prompts been decoded again; None where none was decoded twice."""
    half_width_of_others: float | None
    """On other prompts like these, the coins and moments of these blocks included; None with fewer than two."""


@dataclass(frozen=True, kw_only=True)
class PairedSpeeds:
    """Blocks that were decoded at every γ."""

    gammas: tuple[int, ...]
    committed: FloatArray
    """(n, G) tokens, above 0."""
    seconds: FloatArray
    """(n, G), above 0, in which they were committed."""
    prompts: IntArray
    """(n,) which prompts a block decoded, as one number."""

    def __post_init__(self) -> None:
        """Raise ValueError for shapes that do not fit, no block, or a value that is not above 0."""
        shape = (self.prompts.size, len(self.gammas))
        if self.committed.shape != shape or self.seconds.shape != shape or 0 in shape:
            raise ValueError(
                f"committed: found shapes {self.committed.shape} and {self.seconds.shape} of {self.prompts.size} "
                f"blocks and {len(self.gammas)} gammas; allowed are (blocks, gammas), one of each at least"
            )
        for name, values in (("committed", self.committed), ("seconds", self.seconds)):
            if not (values > 0).all():
                raise ValueError(f"{name}: found {values.min():g}, allowed: values above 0")

    def best(self) -> int:
        """The fastest γ, the smaller one of two that are equal."""
        return self.gammas[int(np.argmax(self.committed.sum(axis=0) / self.seconds.sum(axis=0)))]

    def share_of_best(self, gamma: int) -> ShareOfBest:
        """What one γ has of the speed of the fastest.

        Raises ValueError for a γ that was not decoded.
        """
        own = self.gammas.index(gamma)

        def shares(weights: FloatArray) -> FloatArray:
            speeds = (weights @ self.committed) / (weights @ self.seconds)
            return np.asarray(speeds[:, own] / speeds.max(axis=1), dtype=np.float64)

        value = float(shares(np.ones((1, self.prompts.size)))[0])
        return ShareOfBest(
            value=value, half_width=self._again(shares, value), half_width_of_others=self._others(shares, value)
        )

    def _again(self, shares: _Shares, value: float) -> float | None:
        """Half the interval of replicates that draw each prompt's blocks anew."""
        clusters = [np.flatnonzero(self.prompts == prompt) for prompt in np.unique(self.prompts)]
        fewest = min(cluster.size for cluster in clusters)
        if fewest < 2:
            return None
        generator = np.random.default_rng(0)
        weights = np.zeros((REPLICATES, self.prompts.size))
        for cluster in clusters:
            weights[:, cluster] = generator.multinomial(
                cluster.size, np.full(cluster.size, 1 / cluster.size), REPLICATES
            )
        factor = math.sqrt(fewest / (fewest - 1)) * student_over_normal(self.prompts.size - len(clusters), CONFIDENCE)
        return _half_width(shares(weights), value, factor)

    def _others(self, shares: _Shares, value: float) -> float | None:
        """Half the interval of replicates that draw prompts with all their blocks."""
        _, prompt_of = np.unique(self.prompts, return_inverse=True)
        count = int(prompt_of.max()) + 1
        if count < 2:
            return None
        drawn = draw_prompts(count, REPLICATES, 0)
        return _half_width(shares(drawn[:, prompt_of].astype(np.float64)), value, expansion(count, CONFIDENCE))


def _half_width(replicates: FloatArray, value: float, factor: float) -> float:
    """Half the central interval, its spread on the log scale widened by the factor."""
    low, high = percentile_interval(value * (replicates / value) ** factor, CONFIDENCE)
    return (min(1.0, float(high)) - float(low)) / 2
