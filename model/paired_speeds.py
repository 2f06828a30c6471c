"""Which γ was fastest among those decoded side by side, and how surely: speeds compared block by block.

    speed(γ) = Σ_b committed_b(γ) / Σ_b seconds_b(γ)
    ratio    = speed(γ) / speed(γ'), over the same blocks

Two intervals answer two questions. *On these prompts*: had they been decoded again, with other coins at other moments?
Blocks are drawn within each prompt (or batch of prompts), and the spread is widened by √(n / (n - 1)) for its n blocks,
which is what drawing from n understates. *On others like them*: prompts are drawn, with all their blocks.

    speeds = PairedSpeeds(gammas=(1, 2), committed=…, seconds=…, prompts=…)
    speeds.best(), speeds.ratio(1, 2).half_width

n blocks, G gammas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specgauge.model.bootstrap import expansion, percentile_interval
from specgauge.model.checks import FloatArray, IntArray

REPLICATES = 2000
CONFIDENCE = 0.95
_Ratios = Callable[[FloatArray], FloatArray]
"""The ratio of two speeds under weights (R, n) of blocks, (R,)."""


@dataclass(frozen=True, kw_only=True)
class SpeedRatio:
    """Speed at one γ over that at another; half-widths of 95 % intervals, None where the blocks cannot say."""

    value: float
    half_width: float | None
    """Had the same prompts been decoded again; None where none was decoded twice."""
    half_width_of_others: float | None
    """On other prompts like these; None with fewer than two."""


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

    def ratio(self, gamma: int, other: int) -> SpeedRatio:
        """Speed at one γ over that at another; exactly 1, known exactly, where they are the same.

        Raises ValueError for a γ that was not decoded.
        """
        own, its = self.gammas.index(gamma), self.gammas.index(other)
        if own == its:
            return SpeedRatio(value=1.0, half_width=0.0, half_width_of_others=0.0)

        def ratios(weights: FloatArray) -> FloatArray:
            tokens, seconds = weights @ self.committed[:, [own, its]], weights @ self.seconds[:, [own, its]]
            speeds = tokens / seconds
            return np.asarray(speeds[:, 0] / speeds[:, 1], dtype=np.float64)

        value = float(ratios(np.ones((1, self.prompts.size)))[0])
        return SpeedRatio(
            value=value, half_width=self._again(ratios, value), half_width_of_others=self._others(ratios, value)
        )

    def _again(self, ratios: _Ratios, value: float) -> float | None:
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
        return _half_width(ratios(weights), value, math.sqrt(fewest / (fewest - 1)))

    def _others(self, ratios: _Ratios, value: float) -> float | None:
        """Half the interval of replicates that draw prompts with all their blocks."""
        _, prompt_of = np.unique(self.prompts, return_inverse=True)
        count = int(prompt_of.max()) + 1
        if count < 2:
            return None
        drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), REPLICATES)
        return _half_width(ratios(drawn[:, prompt_of].astype(np.float64)), value, expansion(count, CONFIDENCE))


def _half_width(replicates: FloatArray, value: float, factor: float) -> float:
    """Half the central interval, its spread on the log scale widened by the factor."""
    low, high = percentile_interval(value * (replicates / value) ** factor, CONFIDENCE)
    return float(high - low) / 2
