"""Bandits over γ: each γ is an arm, its reward the tokens per second of a round at known costs (arXiv 2505.15141).

    reward = (tokens of a row, mean over rows) / T_round(γ), over the most any arm could give: in [0, 1]

UCB plays every arm once, then the largest mean + width √(2 ln t / n). EXP3 draws from p ∝ exp(-η_t L), where L adds
up (1 - reward) / p of the arms drawn and η_t = √(ln K / (K t)). Arm 0 is plain decoding: its reward is known and needs
no exploring by UCB. Draws come from counters, so a call repeats itself; call number and round number make them.

    UcbPolicy(t_round_s=(1.0, 1.2, 1.4)).begin().gamma         # the first arm that is not known: 1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specgauge.model.checks import FloatArray, IntArray, numbers, positive_times_s
from specgauge.model.policies.policy import GammaChoices, RoundPolicy, RoundSeen, check_cap
from specgauge.model.sampling import inverse_cdf, uniforms

ARM_DRAWS = 8
"""The purpose of a bandit's uniforms."""


@dataclass(frozen=True, kw_only=True)
class UcbPolicy(RoundPolicy):
    """Upper confidence bounds."""

    t_round_s: tuple[float, ...]
    """Seconds of a round of 0 … γ_max drafts: one arm each."""
    width: float = 1.0
    """How far beyond its mean an arm is hoped to be."""

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0 and a width below 0."""
        check_cap("ucb", len(self.t_round_s) - 1)
        positive_times_s("t_round_s", self.t_round_s)
        if numbers("ucb: width", self.width) < 0:
            raise ValueError(f"ucb: found width {self.width:g}; allowed is 0 or more")

    def begin_many(self, calls: int) -> UcbChoices:
        """Knowing nothing of any arm but 0."""
        return UcbChoices(self, calls)


class UcbChoices(GammaChoices):
    """Calls of UCB."""

    def __init__(self, policy: UcbPolicy, calls: int) -> None:
        self._rewards = _Rewards(policy.t_round_s)
        self._width = policy.width
        self._sums = np.zeros((calls, len(policy.t_round_s)))
        self._counts = np.zeros((calls, len(policy.t_round_s)))
        self._rounds = np.zeros(calls)
        self._sums[:, 0] = self._rewards.of(np.ones(1), np.zeros(1, dtype=np.int64))
        self.gammas = self._next()

    def observe(self, seen: RoundSeen) -> None:
        """Reward the arm that was asked for; the known one only lets time pass, which widens the others' bounds."""
        tokens, learns = _tokens(seen), seen.drafts
        plays = learns | (seen.active.any(axis=1) & (self.gammas == 0))
        self._rounds += plays
        call = np.flatnonzero(learns)
        arm = self.gammas[call]
        self._sums[call, arm] += self._rewards.of(tokens[call], arm)
        self._counts[call, arm] += 1
        self.gammas = np.where(plays, self._next(), self.gammas)

    def _next(self) -> IntArray:
        counts = np.maximum(self._counts, 1)
        spread = np.sqrt(2 * np.log(np.maximum(self._rounds, 1))[:, None] / counts)
        bounds = self._sums / counts + self._width * spread
        bounds[self._counts == 0] = np.inf
        bounds[:, 0] = self._sums[:, 0]
        return np.asarray(bounds.argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class Exp3Policy(RoundPolicy):
    """Exponential weights that assume nothing of how rewards come about."""

    t_round_s: tuple[float, ...]
    """Seconds of a round of 0 … γ_max drafts: one arm each."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0."""
        check_cap("exp3", len(self.t_round_s) - 1)
        positive_times_s("t_round_s", self.t_round_s)

    def begin_many(self, calls: int) -> Exp3Choices:
        """All arms alike."""
        return Exp3Choices(self, calls)


class Exp3Choices(GammaChoices):
    """Calls of EXP3."""

    def __init__(self, policy: Exp3Policy, calls: int) -> None:
        self._rewards, self._seed = _Rewards(policy.t_round_s), policy.seed
        self._losses = np.zeros((calls, len(policy.t_round_s)))
        self._rounds = np.ones(calls, dtype=np.int64)
        self.gammas = self._draw()

    def observe(self, seen: RoundSeen) -> None:
        """Charge the arm for what it did not earn, over the chance of having drawn it.

        A round at γ = 0 is an arm like others; one that asked for drafts and had none teaches nothing.
        """
        learns = seen.active.any(axis=1) & (seen.drafts | (self.gammas == 0))
        call = np.flatnonzero(learns)
        arm = self.gammas[call]
        reward = self._rewards.of(_tokens(seen)[call], arm)
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
        return inverse_cdf(self._probabilities(), uniforms(self._seed, calls, 0, self._rounds, ARM_DRAWS))


class _Rewards:
    """Tokens per second of a round by arm, over the most that any arm could give."""

    def __init__(self, t_round_s: tuple[float, ...]) -> None:
        self._rounds_s = np.array(t_round_s)
        self._most = float((np.arange(1, self._rounds_s.size + 1) / self._rounds_s).max())

    def of(self, tokens: FloatArray, arms: IntArray) -> FloatArray:
        """(…) tokens, (…) arms -> (…) in [0, 1]."""
        return np.asarray(tokens / self._rounds_s[arms] / self._most, dtype=np.float64)


def _tokens(seen: RoundSeen) -> FloatArray:
    """(L,) tokens of a round, mean over active rows, the replacement or bonus included."""
    rows = np.maximum(seen.active.sum(axis=1), 1)
    return np.asarray(seen.accepted.sum(axis=1) / rows + 1.0, dtype=np.float64)
