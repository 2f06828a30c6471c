"""How γ is chosen from round to round: one γ per round for all rows of a batch, learnt from what was accepted.

A policy is plain data; `begin` starts a call anew, so nothing learnt in one call reaches the next. Before a round the
decoder asks for `gamma`, the most drafts it may make; after each draft of the round it may ask `goes_on`, and it tells
`observe` what became of them:

    choice = FixedPolicy(gamma=5).begin()
    choice.gamma                                               # 5
    choice.goes_on(1, top_probs=[0.9], entropies_nats=[0.3])   # after the first draft: another one? True
    choice.observe(drafted=[5], accepted=[5])

Some fix γ before the round (`specgauge.model.policies.feedback`), others stop while drafting, by the confidence of the
draft just made (`specgauge.model.policies.stopping`). Each is written for L calls side by side, B rows of each
(`GammaChoices`), as a replay runs them; a decoder's single call is a view of that (`OneCall`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from specgauge.model.checks import LARGEST_GAMMA, BoolArray, FloatArray, IntArray, positive_times_s


class GammaChoice(Protocol):
    """A policy at work in one call."""

    @property
    def gamma(self) -> int:
        """The most drafts of the next round."""

    def goes_on(self, depth: int, top_probs: Sequence[float], entropies_nats: Sequence[float]) -> bool:
        """Whether to draft once more after `depth` >= 1 drafts, whose last had these signals, one per active row.

        NaN stands for a row that may draft no more (its limit is near). Depths 1, 2, … are asked in turn, until the
        answer is no or no row may draft more.
        """

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Learn how many drafts each active row of a round had, and how many of them were accepted."""


@dataclass(frozen=True, kw_only=True)
class Signals:
    """What the draft says of itself at its latest step, (L, B) each; NaN where a row may draft no more."""

    top_probs: FloatArray
    """Its largest probability."""
    entropies_nats: FloatArray
    active_rows: IntArray
    """(L,) rows of each call that have not ended, those among them that may draft no more."""


@dataclass(frozen=True, kw_only=True)
class RoundSeen:
    """What became of a round's drafts, (L, B) each; zero where a row is not active."""

    drafted: IntArray
    accepted: IntArray
    active: BoolArray
    """Rows that had not ended when the round began."""

    @property
    def drafts(self) -> BoolArray:
        """(L,) calls in which some row had drafts: the others teach nothing about acceptance."""
        return np.asarray((self.drafted > 0).any(axis=1), dtype=np.bool_)

    @property
    def full(self) -> BoolArray:
        """(L,) calls in which every row kept all the drafts it had."""
        return np.asarray((self.drafted == self.accepted).all(axis=1), dtype=np.bool_)


class GammaChoices:
    """A policy at work in L calls at once, which know nothing of each other; this one keeps to its γ."""

    def __init__(self, gammas: IntArray) -> None:
        self.gammas = gammas
        """(L,) the most drafts of each call's next round."""

    def goes_on(self, depth: int, signals: Signals) -> BoolArray:  # noqa: ARG002 (a γ fixed before reads no signals)
        """(L,) as in `GammaChoice`; calls whose rows are all NaN are not asked, and learn nothing."""
        return np.asarray(depth < self.gammas, dtype=np.bool_)

    def observe(self, seen: RoundSeen) -> None:
        """Learn from a round."""


class GammaPolicy:
    """A way of choosing γ, as plain data, for one call or many."""

    reads_signals: bool = False
    """Whether `goes_on` looks at the signals; where not, nobody asks it and γ is fixed before the round."""
    choices: ClassVar[type[Any]]
    """The `GammaChoices` of so many calls, made from the policy and their number."""

    def begin_many(self, calls: int) -> GammaChoices:
        """Start `calls` calls side by side, knowing nothing of earlier ones."""
        begun: GammaChoices = self.choices(self, calls)
        return begun

    def begin(self) -> GammaChoice:
        """Start one call, knowing nothing of earlier ones."""
        return OneCall(self.begin_many(1))


class OneCall:
    """One call of a policy, with plain numbers in and out: what a decoder works with."""

    def __init__(self, choices: GammaChoices) -> None:
        self._choices = choices

    @property
    def gamma(self) -> int:
        """As in `GammaChoice`, like the others."""
        return int(self._choices.gammas[0])

    def goes_on(self, depth: int, top_probs: Sequence[float], entropies_nats: Sequence[float]) -> bool:
        """Whether to draft once more."""
        signals = Signals(
            top_probs=np.array([top_probs], dtype=np.float64),
            entropies_nats=np.array([entropies_nats], dtype=np.float64),
            active_rows=np.array([len(top_probs)], dtype=np.int64),
        )
        return bool(self._choices.goes_on(depth, signals)[0])

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Learn from a round."""
        made = np.array([drafted], dtype=np.int64)
        kept = np.array([accepted], dtype=np.int64)
        self._choices.observe(RoundSeen(drafted=made, accepted=kept, active=np.ones(made.shape, dtype=np.bool_)))


def check_cap(name: str, cap: int, *, lowest: int = 0) -> None:
    """Raise ValueError for a largest γ outside `lowest` … LARGEST_GAMMA."""
    if not lowest <= cap <= LARGEST_GAMMA:
        raise ValueError(f"{name}: expected {lowest} to {LARGEST_GAMMA}, got a largest gamma of {cap}")


def check_rounds(name: str, t_round_s: tuple[float, ...]) -> None:
    """Raise ValueError for seconds of rounds of 0 … γ_max drafts that are not above 0, or too many of them."""
    check_cap(name, len(t_round_s) - 1)
    positive_times_s("t_round_s", t_round_s)


@dataclass(frozen=True, kw_only=True)
class FixedPolicy(GammaPolicy):
    """The same γ in every round."""

    gamma: int

    def __post_init__(self) -> None:
        """Raise ValueError for a γ below 0."""
        if self.gamma < 0:
            raise ValueError(f"gamma: expected 0 (plain decoding) or more, got {self.gamma}")

    def begin_many(self, calls: int) -> GammaChoices:
        """Each at γ, whatever they see."""
        return GammaChoices(np.full(calls, self.gamma))


def decodes_plainly(policy: object) -> bool:
    """Whether a policy never drafts: who knows that before the first round needs no speculative loop, nor its ε."""
    return isinstance(policy, FixedPolicy) and policy.gamma == 0
