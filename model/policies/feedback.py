"""Policies that fix γ before each round, from what earlier rounds of the call accepted.

heuristic    transformers' schedule: γ grows by 2 after a fully accepted round, else shrinks by 1.

gammatune    arXiv 2504.00030: after a fully accepted round γ grows by δ = 2; otherwise γ = ⌈γ̄⌉ with
             γ̄ ← clip((1 - η) γ̄ + η A, lowest, cap), A accepted drafts of the round, η = .3.

goodput      SmartSpec, arXiv 2406.14066: γ = argmax_g (1 + Σ_{i<=g} A_i) / T_round(g), γ = 0 included, A_i the product
             of running shares of drafts at place i that were accepted where those before them were. Counts fade, and
             lean on the pooled share where a place was rarely tested. γ changes only for a gain over `margin`. At γ = 0
             nothing is learnt: every `probe_every` rounds one draft is made all the same.

ucb, exp3    bandits, arXiv 2505.15141: each γ is an arm, its reward the tokens per second of a round at known costs,
             over the most any arm could give. UCB plays every arm once, then the largest mean + width √(2 ln t / n);
             arm 0 is plain decoding, whose reward needs no exploring. EXP3 draws from p ∝ exp(-η_t L), where L adds up
             (1 - reward) / p of the arms drawn and η_t = √(ln K / (K t)). Draws come from counters, so calls repeat.

    GoodputPolicy(t_round_s=(1.0, 1.2, 1.4), prior_rate=0.7).begin().gamma

L calls side by side, B rows of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specgauge.model.checks import FloatArray, IntArray, numbers, probabilities
from specgauge.model.policies.policy import GammaChoices, GammaPolicy, RoundSeen, check_rounds
from specgauge.model.sampling import inverse_cdf, uniforms
from specgauge.model.speedup import speedup, tokens_per_round_by_gamma

ARM_DRAWS = 8
"""The purpose of a bandit's uniforms."""


class _HeuristicChoices(GammaChoices):
    def __init__(self, policy: HeuristicPolicy, calls: int) -> None:
        super().__init__(np.full(calls, policy.start))
        self._policy = policy

    def observe(self, seen: RoundSeen) -> None:
        policy = self._policy
        risen = np.minimum(self.gammas + policy.rise, policy.cap)
        fallen = np.maximum(self.gammas - policy.fall, policy.lowest)
        self.gammas = np.where(seen.drafts, np.where(seen.full, risen, fallen), self.gammas)


@dataclass(frozen=True, kw_only=True)
class HeuristicPolicy(GammaPolicy):
    """transformers' schedule: γ grows by 2 after a fully accepted round, else shrinks by 1, within bounds."""

    choices = _HeuristicChoices

    start: int = 5
    lowest: int = 1
    cap: int = 16
    rise: int = 2
    fall: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that do not hold the start, and for steps below 0."""
        _check_schedule("heuristic", self.lowest, self.start, self.cap, steps=(self.rise, self.fall))


def _check_schedule(name: str, lowest: int, start: int, cap: int, *, steps: tuple[int, ...]) -> None:
    if not 1 <= lowest <= start <= cap:
        raise ValueError(f"{name}: expected 1 <= lowest <= start <= cap, got lowest {lowest}, start {start}, cap {cap}")
    if min(steps) < 0:
        raise ValueError(f"{name}: expected steps of 0 or more, got {min(steps)}")


class _GammaTuneChoices(GammaChoices):
    """A batch's A is the mean over its rows that had drafts."""

    def __init__(self, policy: GammaTunePolicy, calls: int) -> None:
        super().__init__(np.full(calls, policy.start))
        self._policy = policy
        self._means = np.full(calls, float(policy.start))

    def observe(self, seen: RoundSeen) -> None:
        policy = self._policy
        mean = seen.accepted.sum(axis=1) / np.maximum((seen.drafted > 0).sum(axis=1), 1)
        followed = np.clip((1 - policy.weight) * self._means + policy.weight * mean, policy.lowest, policy.cap)
        self._means = np.where(seen.drafts & ~seen.full, followed, self._means)
        risen = np.minimum(self.gammas + policy.rise, policy.cap)
        asked = np.where(seen.full, risen, np.ceil(self._means).astype(np.int64))
        self.gammas = np.where(seen.drafts, asked, self.gammas)


@dataclass(frozen=True, kw_only=True)
class GammaTunePolicy(GammaPolicy):
    """GammaTune's running mean of accepted drafts."""

    choices = _GammaTuneChoices

    start: int = 5
    lowest: int = 1
    cap: int = 16
    rise: int = 2
    """δ."""
    weight: float = 0.3
    """η."""

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that do not hold the start, a rise below 0 and a weight outside [0, 1]."""
        _check_schedule("gammatune", self.lowest, self.start, self.cap, steps=(self.rise,))
        probabilities("gammatune: weight", self.weight)


class GoodputChoices(GammaChoices):
    """Calls of the goodput rule; rows of a batch are pooled."""

    def __init__(self, policy: GoodputPolicy, calls: int) -> None:
        self._policy = policy
        self._rounds_s = np.array(policy.t_round_s)
        depth = self._rounds_s.size - 1
        self._tested, self._accepted = np.zeros((calls, depth)), np.zeros((calls, depth))
        self._idle = np.zeros(calls, dtype=np.int64)
        self._best = self.goodputs().argmax(axis=1)
        super().__init__(self._best.copy())

    def observe(self, seen: RoundSeen) -> None:
        """Count the tested places of the round, then choose."""
        policy, places = self._policy, np.arange(self._tested.shape[1])
        made, kept = seen.drafted[:, :, None] > places, seen.accepted[:, :, None]
        tested = (made & (kept >= places)).sum(axis=1)
        passed = (made & (kept > places)).sum(axis=1)
        learns = seen.drafts
        fade = np.where(learns, policy.memory, 1.0)[:, None]
        self._tested = fade * self._tested + tested
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
        """(L, γ_max + 1) expected tokens per second of one row: S over a step of one second."""
        policy = self._policy
        weight = policy.prior_weight
        pooled = (self._accepted.sum(axis=1) + weight * policy.prior_rate) / (self._tested.sum(axis=1) + weight)
        shares = (self._accepted + weight * pooled[:, None]) / (self._tested + weight)
        survival = np.cumprod(shares, axis=1)
        tokens = np.concatenate([np.ones((survival.shape[0], 1)), tokens_per_round_by_gamma(survival)], axis=1)
        return speedup(tokens, t_decode_s=1.0, t_round_s=self._rounds_s)


@dataclass(frozen=True, kw_only=True)
class GoodputPolicy(GammaPolicy):
    """The γ of the largest expected tokens per second, by running shares and known costs."""

    choices = GoodputChoices

    t_round_s: tuple[float, ...]
    """Seconds of a round of 0 … γ_max drafts."""
    prior_rate: float = 0.7
    """The share accepted that a call begins with."""
    prior_weight: float = 4.0
    """How many tested drafts it counts for, and the pooled share at each place."""
    memory: float = 0.95
    """What a round leaves of earlier counts."""
    margin: float = 0.02
    """The relative gain in goodput that a change of γ must promise."""
    probe_every: int = 16
    """Rounds at γ = 0 until one draft is made; 0 never."""

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0, rates outside [0, 1] and weights below 0."""
        check_rounds("goodput", self.t_round_s)
        probabilities("goodput: prior_rate", self.prior_rate)
        probabilities("goodput: memory", self.memory)
        if self.prior_weight <= 0 or self.margin < 0 or self.probe_every < 0:
            raise ValueError(
                "goodput: expected a weight above 0, a margin and a number of rounds of 0 or more, got prior_weight "
                f"{self.prior_weight:g}, margin {self.margin:g}, probe_every {self.probe_every}"
            )


class _UcbChoices(GammaChoices):
    def __init__(self, policy: UcbPolicy, calls: int) -> None:
        self._policy = policy
        self._sums = np.zeros((calls, len(policy.t_round_s)))
        self._counts = np.zeros((calls, len(policy.t_round_s)))
        self._rounds = np.zeros(calls)
        self._sums[:, 0] = _rewards(policy.t_round_s, np.ones(1), np.zeros(1, dtype=np.int64))
        super().__init__(self._next())

    def observe(self, seen: RoundSeen) -> None:
        """Reward the arm that was asked for; the known one only lets time pass, which widens the others' bounds."""
        tokens, learns = _tokens(seen), seen.drafts
        plays = learns | (seen.active.any(axis=1) & (self.gammas == 0))
        self._rounds += plays
        call = np.flatnonzero(learns)
        arm = self.gammas[call]
        self._sums[call, arm] += _rewards(self._policy.t_round_s, tokens[call], arm)
        self._counts[call, arm] += 1
        self.gammas = np.where(plays, self._next(), self.gammas)

    def _next(self) -> IntArray:
        counts = np.maximum(self._counts, 1)
        spread = np.sqrt(2 * np.log(np.maximum(self._rounds, 1))[:, None] / counts)
        bounds = self._sums / counts + self._policy.width * spread
        bounds[self._counts == 0] = np.inf
        bounds[:, 0] = self._sums[:, 0]
        return np.asarray(bounds.argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class UcbPolicy(GammaPolicy):
    """Upper confidence bounds."""

    choices = _UcbChoices

    t_round_s: tuple[float, ...]
    """Seconds of a round of 0 … γ_max drafts: one arm each."""
    width: float = 1.0
    """How far beyond its mean an arm is hoped to be."""

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0 and a width below 0."""
        check_rounds("ucb", self.t_round_s)
        if numbers("ucb: width", self.width) < 0:
            raise ValueError(f"ucb: expected 0 or more, got width {self.width:g}")


class _Exp3Choices(GammaChoices):
    def __init__(self, policy: Exp3Policy, calls: int) -> None:
        self._policy = policy
        self._losses = np.zeros((calls, len(policy.t_round_s)))
        self._rounds = np.ones(calls, dtype=np.int64)
        super().__init__(self._draw())

    def observe(self, seen: RoundSeen) -> None:
        """Charge the arm for what it did not earn, over the chance of having drawn it.

        A round at γ = 0 is an arm like others; one that asked for drafts and had none teaches nothing.
        """
        learns = seen.active.any(axis=1) & (seen.drafts | (self.gammas == 0))
        call = np.flatnonzero(learns)
        arm = self.gammas[call]
        reward = _rewards(self._policy.t_round_s, _tokens(seen)[call], arm)
        self._losses[call, arm] += (1.0 - reward) / self._probabilities()[call, arm]
        self._rounds += learns
        self.gammas = np.where(learns, self._draw(), self.gammas)

    def _probabilities(self) -> FloatArray:
        arms = self._losses.shape[1]
        rates = np.sqrt(np.log(max(arms, 2)) / (arms * self._rounds))
        weights = np.exp(-rates[:, None] * (self._losses - self._losses.min(axis=1, keepdims=True)))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float64)

    def _draw(self) -> IntArray:
        calls = np.arange(self._rounds.size)
        return inverse_cdf(self._probabilities(), uniforms(self._policy.seed, calls, 0, self._rounds, ARM_DRAWS))


@dataclass(frozen=True, kw_only=True)
class Exp3Policy(GammaPolicy):
    """Exponential weights that assume nothing of how rewards come about."""

    choices = _Exp3Choices

    t_round_s: tuple[float, ...]
    """Seconds of a round of 0 … γ_max drafts: one arm each."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0."""
        check_rounds("exp3", self.t_round_s)


def _rewards(t_round_s: tuple[float, ...], tokens: FloatArray, arms: IntArray) -> FloatArray:
    """Tokens (…) per second of rounds of arms (…), over the most that any arm could give: (…) in [0, 1]."""
    rounds_s = np.array(t_round_s)
    most = float((np.arange(1, rounds_s.size + 1) / rounds_s).max())
    return np.asarray(tokens / rounds_s[arms] / most, dtype=np.float64)


def _tokens(seen: RoundSeen) -> FloatArray:
    """(L,) tokens of a round, mean over active rows, the replacement or bonus included."""
    rows = np.maximum(seen.active.sum(axis=1), 1)
    return np.asarray(seen.accepted.sum(axis=1) / rows + 1.0, dtype=np.float64)
