"""One policy as it is, over batches that it decoded: what their prompts' recorded texts should take, and plain ones.

    seconds = replayed_seconds(policy, texts, [[1, 3], [5, 1]], costs, replicates=100, seed=0)
    seconds.plain_s / seconds.policy_s          # a ratio a batch
    seconds.speedup

Rounds are played as `specgauge.model.replay_rounds` has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray
from specgauge.model.policies import RoundPolicy
from specgauge.model.policy_costs import RoundCosts
from specgauge.model.replay_rounds import batches_of_prompts, play, rejections
from specgauge.model.replay_texts import ReplayTexts


@dataclass(frozen=True, kw_only=True)
class ReplayedSeconds:
    """What each of L batches should take, a mean over replays."""

    plain_s: FloatArray
    """(L,)"""
    policy_s: FloatArray
    """(L,)"""

    @property
    def speedup(self) -> float:
        """Over plain decoding, all batches together."""
        return float(self.plain_s.sum() / self.policy_s.sum())


def replayed_seconds(
    policy: RoundPolicy, texts: ReplayTexts, prompts: ArrayLike, costs: RoundCosts, *, replicates: int, seed: int
) -> ReplayedSeconds:
    """Play each batch `replicates` times.

    prompts: (L, B) the prompt of every row, B the batch size of the costs.
    Raises ValueError as `play` and `batches_of_prompts`, and for another batch size.
    """
    numbers = np.asarray(prompts, dtype=np.int64)
    if numbers.ndim != 2 or numbers.shape[1] != costs.batch_size:
        raise ValueError(f"prompts: found shape {numbers.shape}; allowed is (L, {costs.batch_size}), a row a batch")
    played = texts.of_prompts(numbers)
    calls = batches_of_prompts(played, numbers, replicates)
    coins = rejections(played, int(calls.replicates.max(initial=0)) + 1, seed)
    longest = played.judged.lengths[calls.texts].max(axis=1)
    plain_s, policy_s = longest * costs.t_decode_s, play(policy, played, calls, coins, costs).time_s
    return ReplayedSeconds(
        plain_s=plain_s.reshape(-1, replicates).mean(axis=1), policy_s=policy_s.reshape(-1, replicates).mean(axis=1)
    )
