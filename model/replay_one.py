"""One policy as it is, over recorded texts it was not tuned on: the seconds it should take, plain decoding beside it.

    seconds = replayed_seconds(policy, texts.of_prompts([1, 3, 5]), costs, replicates=100, seed=0)
    seconds.speedup

Seconds of several pieces add up, so that a policy tuned twice, on each half of the prompts, is held against all of
them. Rounds are played as `specgauge.model.replay_rounds` has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from specgauge.model.policies import RoundPolicy
from specgauge.model.policy_costs import RoundCosts
from specgauge.model.replay_rounds import batches, play, rejections
from specgauge.model.replay_texts import ReplayTexts


@dataclass(frozen=True, kw_only=True)
class ReplayedSeconds:
    """Of all texts, each once."""

    plain_s: float
    policy_s: float

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        return self.plain_s / self.policy_s

    def __add__(self, other: ReplayedSeconds) -> ReplayedSeconds:
        """Both pieces together."""
        return ReplayedSeconds(plain_s=self.plain_s + other.plain_s, policy_s=self.policy_s + other.policy_s)


def replayed_seconds(
    policy: RoundPolicy, texts: ReplayTexts, costs: RoundCosts, *, replicates: int, seed: int
) -> ReplayedSeconds:
    """Means over `replicates` replays, in batches drawn anew for each; ValueError as `play`."""
    calls = batches(texts, costs.batch_size, replicates, seed)
    coins = rejections(texts, int(calls.replicates.max()) + 1, seed)
    longest = texts.judged.lengths[calls.texts].max(axis=1)
    return ReplayedSeconds(
        plain_s=float(longest.sum()) * costs.t_decode_s / replicates,
        policy_s=float(play(policy, texts, calls, coins, costs).time_s.sum()) / replicates,
    )
