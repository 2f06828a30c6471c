"""Policies that stop drafting when the draft's own entropy says so; the draft that made them stop is verified too.

SVIP (arXiv 2411.18462) stops where √H > h: √H bounds how far draft and target differ up to a constant. AdaEDL (arXiv
2410.18351) bounds acceptance from below by 1 - √(.2 H), H in nats, and stops where that is under λ. λ follows the share
of drafts accepted, as the threshold of Draft & Verify (arXiv 2309.08168) does:

    share ← β₁ share + (1 - β₁) accepted / drafted                        starts at the goal
    λ     ← β₂ λ + (1 - β₂) (λ + ε if share <= goal else λ - ε)           goal .9, β₁ .5, β₂ .9, ε .01

A batch has one γ per round: it goes on while the mean over its rows that still draft is on the right side.

    SvipPolicy(threshold=0.6, cap=8).begin().goes_on(1, top_probs=[0.9], entropies_nats=[0.25])      # √.25 <= .6: True
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specgauge.model.checks import BoolArray, FloatArray, numbers, probabilities
from specgauge.model.policies.policy import GammaChoices, RoundPolicy, RoundSeen, Signals, check_cap


@dataclass(frozen=True, kw_only=True)
class SvipPolicy(RoundPolicy):
    """Stop where the root of the draft's entropy exceeds a threshold."""

    reads_signals: ClassVar[bool] = True

    threshold: float = 0.6
    """h, in √nats."""
    cap: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError for a threshold that is no number and a cap below 1."""
        numbers("svip: threshold", self.threshold)
        check_cap("svip", self.cap, lowest=1)

    def begin_many(self, calls: int) -> SvipChoices:
        """It learns nothing, so there is nothing to forget."""
        return SvipChoices(self, calls)


class SvipChoices(GammaChoices):
    """Calls of SVIP."""

    def __init__(self, policy: SvipPolicy, calls: int) -> None:
        self._threshold = policy.threshold
        self.gammas = np.full(calls, policy.cap)

    def goes_on(self, depth: int, signals: Signals) -> BoolArray:
        """Where the mean of √H is within the threshold."""
        return (depth < self.gammas) & (_row_mean(np.sqrt(signals.entropies_nats)) <= self._threshold)

    def observe(self, seen: RoundSeen) -> None:
        """Learn nothing."""


@dataclass(frozen=True, kw_only=True)
class AdaEdlPolicy(RoundPolicy):
    """Stop where a lower bound of acceptance by entropy falls under a threshold that follows the share accepted."""

    reads_signals: ClassVar[bool] = True

    start: float = 0.4
    """λ at the start of a call."""
    goal: float = 0.9
    share_memory: float = 0.5
    """β₁."""
    threshold_memory: float = 0.9
    """β₂."""
    step: float = 0.01
    """ε."""
    entropy_weight: float = 0.2
    cap: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError for shares outside [0, 1], a step or weight below 0 and a cap below 1."""
        for name in ("start", "goal", "share_memory", "threshold_memory"):
            probabilities(f"adaedl: {name}", getattr(self, name))
        if self.step < 0 or self.entropy_weight < 0:
            raise ValueError(
                f"adaedl: found step {self.step:g}, entropy_weight {self.entropy_weight:g}; allowed is 0 or more"
            )
        check_cap("adaedl", self.cap, lowest=1)

    def begin_many(self, calls: int) -> AdaEdlChoices:
        """At `start` again."""
        return AdaEdlChoices(self, calls)


class AdaEdlChoices(GammaChoices):
    """Calls of AdaEDL."""

    def __init__(self, policy: AdaEdlPolicy, calls: int) -> None:
        self._policy = policy
        self.gammas = np.full(calls, policy.cap)
        self.thresholds = np.full(calls, policy.start)
        """(L,) λ."""
        self._shares = np.full(calls, policy.goal)

    def goes_on(self, depth: int, signals: Signals) -> BoolArray:
        """Where the mean of the bounds is not under λ."""
        bounds = _row_mean(1.0 - np.sqrt(self._policy.entropy_weight * signals.entropies_nats))
        return (depth < self.gammas) & (bounds >= self.thresholds)

    def observe(self, seen: RoundSeen) -> None:
        """Move λ by the share accepted of all rows' drafts."""
        policy, made = self._policy, seen.drafted.sum(axis=1)
        share = seen.accepted.sum(axis=1) / np.maximum(made, 1)
        smoothed = policy.share_memory * self._shares + (1 - policy.share_memory) * share
        self._shares = np.where(made > 0, smoothed, self._shares)
        towards = self.thresholds + np.where(self._shares <= policy.goal, policy.step, -policy.step)
        moved = policy.threshold_memory * self.thresholds + (1 - policy.threshold_memory) * towards
        self.thresholds = np.where(made > 0, moved, self.thresholds)


def _row_mean(values: FloatArray) -> FloatArray:
    """(L, B) -> (L,) mean over rows that still draft, NaN (which compares as false) where none does."""
    if values.shape[1] == 1:
        return values[:, 0]
    drafting = ~np.isnan(values)
    rows = drafting.sum(axis=1)
    total = np.where(drafting, values, 0.0).sum(axis=1)
    return np.where(rows > 0, total / np.maximum(rows, 1), np.nan)
