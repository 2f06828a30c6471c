"""One policy as it is, over recorded texts it was not tuned on: the seconds it should take, plain decoding beside it.

    seconds = replayed_seconds(policy, texts.of_prompts([1, 3, 5]), costs, replicates=100, seed=0)
    seconds.speedup
    seconds.of_prompts([3, 3, 5])               # (plain seconds, the policy's) of a batch as it was decoded

Pieces are joined, so that a policy tuned twice, on each half of the prompts, is held against all of them. Rounds are
played as `specgauge.model.replay_rounds` has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, IntArray
from specgauge.model.policies import RoundPolicy
from specgauge.model.policy_costs import RoundCosts
from specgauge.model.replay_rounds import batches, play, rejections, time_by_text
from specgauge.model.replay_texts import ReplayTexts
from specgauge.model.texts import sum_by_prompt


@dataclass(frozen=True, kw_only=True)
class ReplayedSeconds:
    """What a text of each prompt should take on average; in a batch, its share of what the batch takes."""

    prompts: IntArray
    """(P,) their numbers, each once."""
    plain_s: FloatArray
    """(P,)"""
    policy_s: FloatArray
    """(P,)"""

    @property
    def speedup(self) -> float:
        """Over plain decoding, every prompt once."""
        return float(self.plain_s.sum() / self.policy_s.sum())

    def joined(self, other: ReplayedSeconds) -> ReplayedSeconds:
        """The prompts of both."""
        return ReplayedSeconds(
            prompts=np.concatenate([self.prompts, other.prompts]),
            plain_s=np.concatenate([self.plain_s, other.plain_s]),
            policy_s=np.concatenate([self.policy_s, other.policy_s]),
        )

    def of_prompts(self, numbers: ArrayLike) -> tuple[float, float] | None:
        """Seconds of plain decoding and of the policy, each prompt as often as it is named; None if one is unknown."""
        index = {number: place for place, number in enumerate(self.prompts.tolist())}
        places = [index.get(number) for number in np.asarray(numbers).tolist()]
        known = [place for place in places if place is not None]
        if len(known) < len(places):
            return None
        return float(self.plain_s[known].sum()), float(self.policy_s[known].sum())


def replayed_seconds(
    policy: RoundPolicy, texts: ReplayTexts, costs: RoundCosts, *, replicates: int, seed: int
) -> ReplayedSeconds:
    """Means over `replicates` replays, in batches drawn anew for each; ValueError as `play`."""
    calls = batches(texts, costs.batch_size, replicates, seed)
    coins = rejections(texts, int(calls.replicates.max()) + 1, seed)
    plain_s = texts.judged.lengths[calls.texts].max(axis=1) * costs.t_decode_s
    policy_s = play(policy, texts, calls, coins, costs).time_s
    played = np.bincount(calls.texts.ravel())  # every text at least once per replicate, some fill up a batch
    prompts, texts_of = np.unique(texts.prompts, return_counts=True)
    plain_of, policy_of = (
        sum_by_prompt(time_by_text(time_s, calls, texts) / played, texts.prompts) / texts_of
        for time_s in (plain_s, policy_s)
    )
    return ReplayedSeconds(prompts=prompts, plain_s=plain_of, policy_s=policy_of)
