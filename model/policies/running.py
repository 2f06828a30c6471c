"""Policies that follow what was accepted lately: GammaTune's running mean, and goodput with known costs.

GammaTune (arXiv 2504.00030): after a fully accepted round γ grows by δ; otherwise γ = ⌈γ̄⌉ with

    γ̄ ← clip((1 - η) γ̄ + η A, lowest, cap)             A accepted drafts of the round, η = .3, δ = 2

Goodput (SmartSpec, arXiv 2406.14066; vLLM's manager of dynamic speculation): with c_i the running share of drafts at
place i that were accepted where those before them were, and A_i = Π_{j<=i} c_j,

    γ = argmax_g (1 + Σ_{i<=g} A_i) / T_round(g)         γ = 0 included

Counts fade, so that the shares follow the text, and lean on the pooled share where a place was rarely judged. γ changes
only for a gain over `margin`. At γ = 0 nothing is learnt: every `probe_every` rounds one draft is made all the same.

    GoodputPolicy(t_round_s=(1.0, 1.2, 1.4), prior_rate=0.7).begin().gamma
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specgauge.model.checks import FloatArray, positive_times_s, probabilities
from specgauge.model.policies.policy import GammaChoices, RoundPolicy, RoundSeen, check_cap


@dataclass(frozen=True, kw_only=True)
class GammaTunePolicy(RoundPolicy):
    """GammaTune's running mean of accepted drafts."""

    start: int = 5
    lowest: int = 1
    cap: int = 16
    rise: int = 2
    """δ."""
    weight: float = 0.3
    """η."""

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that do not hold the start, a rise below 0 and a weight outside [0, 1]."""
        if not 1 <= self.lowest <= self.start <= self.cap or self.rise < 0:
            raise ValueError(
                f"gammatune: found lowest {self.lowest}, start {self.start}, cap {self.cap}, rise {self.rise}; "
                "allowed is 1 <= lowest <= start <= cap and a rise of 0 or more"
            )
        probabilities("gammatune: weight", self.weight)

    def begin_many(self, calls: int) -> GammaTuneChoices:
        """At `start` again, the mean too."""
        return GammaTuneChoices(self, calls)


class GammaTuneChoices(GammaChoices):
    """Calls of GammaTune; a batch's A is the mean over its rows that had drafts."""

    def __init__(self, policy: GammaTunePolicy, calls: int) -> None:
        self._policy = policy
        self.gammas = np.full(calls, policy.start)
        self._means = np.full(calls, float(policy.start))

    def observe(self, seen: RoundSeen) -> None:
        """Rise, or follow the mean."""
        policy = self._policy
        mean = seen.accepted.sum(axis=1) / np.maximum((seen.drafted > 0).sum(axis=1), 1)
        followed = np.clip((1 - policy.weight) * self._means + policy.weight * mean, policy.lowest, policy.cap)
        self._means = np.where(seen.drafts & ~seen.full, followed, self._means)
        risen = np.minimum(self.gammas + policy.rise, policy.cap)
        asked = np.where(seen.full, risen, np.ceil(self._means).astype(np.int64))
        self.gammas = np.where(seen.drafts, asked, self.gammas)


@dataclass(frozen=True, kw_only=True)
class GoodputPolicy(RoundPolicy):
    """The γ of the largest expected tokens per second, by running shares and known costs."""

    t_round_s: tuple[float, ...]
    """Seconds of a round of 0 … γ_max drafts."""
    prior_rate: float = 0.7
    """The share accepted that a call begins with."""
    prior_weight: float = 4.0
    """How many judged drafts it counts for, and the pooled share at each place."""
    memory: float = 0.95
    """What a round leaves of earlier counts."""
    margin: float = 0.02
    """The relative gain in goodput that a change of γ must promise."""
    probe_every: int = 16
    """Rounds at γ = 0 until one draft is made; 0 never."""

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0, rates outside [0, 1] and weights below 0."""
        check_cap("goodput", len(self.t_round_s) - 1)
        positive_times_s("t_round_s", self.t_round_s)
        probabilities("goodput: prior_rate", self.prior_rate)
        probabilities("goodput: memory", self.memory)
        if self.prior_weight <= 0 or self.margin < 0 or self.probe_every < 0:
            raise ValueError(
                f"goodput: found prior_weight {self.prior_weight:g}, margin {self.margin:g}, probe_every "
                f"{self.probe_every}; allowed are a weight above 0, a margin and a number of rounds of 0 or more"
            )

    def begin_many(self, calls: int) -> GoodputChoices:
        """At the best γ for the prior rate."""
        return GoodputChoices(self, calls)


class GoodputChoices(GammaChoices):
    """Calls of the goodput rule; rows of a batch are pooled."""

    def __init__(self, policy: GoodputPolicy, calls: int) -> None:
        self._policy = policy
        self._rounds_s = np.array(policy.t_round_s)
        depth = self._rounds_s.size - 1
        self._judged, self._accepted = np.zeros((calls, depth)), np.zeros((calls, depth))
        self._idle = np.zeros(calls, dtype=np.int64)
        self._best = self.goodputs().argmax(axis=1)
        self.gammas = self._best.copy()

    def observe(self, seen: RoundSeen) -> None:
        """Count the judged places of the round, then choose."""
        policy, places = self._policy, np.arange(self._judged.shape[1])
        made, kept = seen.drafted[:, :, None] > places, seen.accepted[:, :, None]
        judged = (made & (kept >= places)).sum(axis=1)
        passed = (made & (kept > places)).sum(axis=1)
        learns = seen.drafts
        fade = np.where(learns, policy.memory, 1.0)[:, None]
        self._judged = fade * self._judged + judged
        self._accepted = fade * self._accepted + passed
        values = self.goodputs()
        best = values.argmax(axis=1)
        call = np.arange(best.size)
        better = values[call, best] > (1 + policy.margin) * values[call, self._best]
        self._best = np.where(learns & better, best, self._best)
        self._idle = np.where(learns | (self._best > 0), 0, self._idle + 1)
        if policy.probe_every and places.size:
            self.gammas = np.where(self._idle >= policy.probe_every, 1, self._best)
        else:
            self.gammas = self._best.copy()

    def goodputs(self) -> FloatArray:
        """(L, γ_max + 1) expected tokens per second of one row."""
        policy = self._policy
        weight = policy.prior_weight
        pooled = (self._accepted.sum(axis=1) + weight * policy.prior_rate) / (self._judged.sum(axis=1) + weight)
        shares = (self._accepted + weight * pooled[:, None]) / (self._judged + weight)
        tokens = np.ones((shares.shape[0], shares.shape[1] + 1))
        tokens[:, 1:] += np.cumsum(np.cumprod(shares, axis=1), axis=1)
        return np.asarray(tokens / self._rounds_s, dtype=np.float64)
