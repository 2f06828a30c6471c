"""How γ is chosen from round to round: one γ per round for all rows of a batch, learnt from what was accepted.

A policy is data; `begin` starts a call anew, so nothing learnt in one call reaches the next.

    choice = HeuristicPolicy().begin()
    gamma = choice.gamma
    choice.observe(drafted=[5], accepted=[5])      # choice.gamma is 7 now
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class GammaChoice(Protocol):
    """A policy at work in one call."""

    @property
    def gamma(self) -> int:
        """γ asked for in the next round."""

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Learn how many drafts each active row of a round had, and how many of them were accepted."""


class GammaPolicy(Protocol):
    """A way of choosing γ."""

    def begin(self) -> GammaChoice:
        """Start a call, knowing nothing of earlier ones."""


@dataclass(frozen=True, kw_only=True)
class FixedPolicy:
    """The same γ in every round."""

    gamma: int

    def __post_init__(self) -> None:
        """Raise ValueError for a γ below 0."""
        if self.gamma < 0:
            raise ValueError(f"gamma: found {self.gamma}; allowed is 0 (plain decoding) or more")

    def begin(self) -> FixedPolicy:
        """There is nothing to forget."""
        return self

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Learn nothing."""


@dataclass(frozen=True, kw_only=True)
class HeuristicPolicy:
    """transformers' schedule: γ grows by 2 after a fully accepted round, else shrinks by 1, within bounds."""

    start: int = 5
    lowest: int = 1
    cap: int = 16
    rise: int = 2
    fall: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that do not hold the start, and for steps below 0."""
        if not 1 <= self.lowest <= self.start <= self.cap:
            raise ValueError(
                f"heuristic: found lowest {self.lowest}, start {self.start}, cap {self.cap}; "
                "allowed is 1 <= lowest <= start <= cap"
            )
        if self.rise < 0 or self.fall < 0:
            raise ValueError(f"heuristic: found rise {self.rise}, fall {self.fall}; allowed are steps of 0 or more")

    def begin(self) -> HeuristicChoice:
        """At `start` again."""
        return HeuristicChoice(self)


class HeuristicChoice:
    """One call of the schedule."""

    def __init__(self, policy: HeuristicPolicy) -> None:
        self._policy = policy
        self.gamma = policy.start

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Rise when all rows that had drafts kept them all; a round without drafts says nothing."""
        if not any(drafted):
            return
        policy = self._policy
        if list(drafted) == list(accepted):
            self.gamma = min(self.gamma + policy.rise, policy.cap)
        else:
            self.gamma = max(self.gamma - policy.fall, policy.lowest)
