"""Speculative sampling as exact arithmetic: one position, and a chain of positions by enumeration.

    accepted(x)  = draft(x) * accept(x)        accept(x) = min(1, target(x) / draft(x))  (ratio)  or  target(x)  (match)
    deficit      = target - accepted           what the accepted path leaves missing
    residual     = deficit / sum(deficit)      what a rejected position commits instead
    output       = accepted + sum(draft - accepted) * residual  =  target

A greedy draft proposes its argmax, so its proposal distribution is one-hot at the lowest index of the maximum.
Nothing is floored and nothing divides by zero: where nothing can be rejected the residual is all zeros.
Source: Leviathan et al., arXiv 2211.17192, section 2.3 and appendix A.1; Chen et al., arXiv 2302.01318, algorithm 2.

    >>> law = position_law([0.2, 0.4, 0.4], [0.1, 0.1, 0.8])
    >>> law.residual.round(12).tolist(), round(float(law.overlap), 12)
    ([0.25, 0.75, 0.0], 0.6)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, distribution, whole_numbers

AcceptanceRule = Literal["ratio", "match"]
"""How a draft is judged: `ratio` min(1, target/draft); `match` where the target's own sample equals it."""
DraftSampling = Literal["same", "greedy"]
"""How a draft is drawn: with the target's sampling settings, or as its argmax."""
NextProbs = Callable[[tuple[int, ...]], ArrayLike]
"""Next-token probabilities (V,) after the tokens of a prefix."""
SequenceLaw = dict[tuple[int, ...], float]
"""Probability of each token sequence; sequences without mass are absent."""


@dataclass(frozen=True, kw_only=True)
class PositionLaw:
    """Everything about one position; every array has the shape (…, V) of the inputs or (…) where it says so."""

    target_probs: FloatArray
    draft_probs: FloatArray
    """What proposals are drawn from: one-hot for a greedy draft."""
    accept: FloatArray
    """Probability that a proposal of this token is accepted; 0 where it is never proposed."""
    accepted: FloatArray
    """Mass that reaches the token as an accepted draft."""
    surplus: FloatArray
    """draft_probs - accepted: mass proposed in vain."""
    deficit: FloatArray
    """target_probs - accepted: mass that has to come from the residual."""
    residual: FloatArray
    """deficit normalised to 1; all zeros where nothing can be rejected."""
    overlap: FloatArray
    """Probability that the proposal is accepted, shape (…)."""

    @property
    def rejected(self) -> FloatArray:
        """Probability that the proposal is rejected, shape (…)."""
        return np.asarray(self.surplus.sum(axis=-1), dtype=np.float64)

    @property
    def replaced(self) -> FloatArray:
        """Mass that reaches the token through a rejection."""
        return np.asarray(self.rejected[..., np.newaxis] * self.residual, dtype=np.float64)

    @property
    def output(self) -> FloatArray:
        """The law of the committed token, by both paths."""
        return self.accepted + self.replaced


def position_law(
    target_probs: ArrayLike,
    draft_probs: ArrayLike,
    *,
    rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
) -> PositionLaw:
    """The law of one position, or of a batch of positions (…, V); both distributions broadcast.

    Raises ValueError for probabilities outside [0, 1] or that do not sum to 1, and for unknown rules.
    """
    if rule not in get_args(AcceptanceRule):
        raise ValueError(f"rule: found {rule!r}, allowed: ratio, match")
    target = distribution("target_probs", target_probs)
    draft = proposal_probs(draft_probs, draft_sampling)
    if target.shape[-1] != draft.shape[-1]:
        raise ValueError(
            f"draft_probs: found {draft.shape[-1]} tokens for {target.shape[-1]} in target_probs, allowed: one for each"
        )
    target, draft = np.broadcast_arrays(target, draft)
    if rule == "match":
        accept = np.where(draft > 0, target, 0.0)
        accepted = target * draft
        deficit = target * (1.0 - draft)
    else:
        divisor = np.where(draft > target, draft, 1.0)
        accept = np.where(draft > target, target / divisor, np.where(draft > 0, 1.0, 0.0))
        accepted = np.minimum(target, draft)
        deficit = np.maximum(target - draft, 0.0)
    missing = deficit.sum(axis=-1, keepdims=True)
    return PositionLaw(
        target_probs=target,
        draft_probs=draft,
        accept=accept,
        accepted=accepted,
        surplus=draft - accepted,
        deficit=deficit,
        residual=deficit / np.where(missing > 0, missing, 1.0),
        overlap=np.minimum(accepted.sum(axis=-1), 1.0),  # a sum of float64 may end a rounding error above 1
    )


def proposal_probs(draft_probs: ArrayLike, draft_sampling: DraftSampling = "same") -> FloatArray:
    """What proposals are drawn from: `draft_probs` (…, V) themselves, or one-hot at the lowest index of the maximum."""
    draft = distribution("draft_probs", draft_probs)
    if draft_sampling == "same":
        return draft
    if draft_sampling != "greedy":
        raise ValueError(f"draft_sampling: found {draft_sampling!r}, allowed: same, greedy")
    return np.asarray(np.arange(draft.shape[-1]) == np.argmax(draft, axis=-1)[..., np.newaxis], dtype=np.float64)


def round_law(
    target: NextProbs,
    draft: NextProbs,
    gamma: int,
    *,
    prefix: tuple[int, ...] = (),
    rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
) -> SequenceLaw:
    """The law of the 1 … gamma + 1 tokens that one round commits after `prefix`, by enumeration of every path."""
    drafts = int(whole_numbers("gamma", gamma, minimum=0))
    law: SequenceLaw = {}

    def add(tokens: tuple[int, ...], mass: float) -> None:
        if mass > 0:
            law[tokens] = law.get(tokens, 0.0) + mass

    def walk(committed: tuple[int, ...], mass: float) -> None:
        after = prefix + committed
        if len(committed) == drafts:
            for token, probability in enumerate(distribution("target", target(after))):
                add((*committed, token), mass * float(probability))
            return
        here = position_law(target(after), draft(after), rule=rule, draft_sampling=draft_sampling)
        for token in range(here.accepted.size):
            if here.accepted[token] > 0:
                walk((*committed, token), mass * float(here.accepted[token]))
            add((*committed, token), mass * float(here.replaced[token]))

    walk((), 1.0)
    return law


def sequence_law(
    target: NextProbs,
    draft: NextProbs,
    gamma: int,
    tokens: int,
    *,
    rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
) -> SequenceLaw:
    """The law of the first `tokens` tokens as rounds commit them, each round's overrun cut off."""
    length = int(whole_numbers("tokens", tokens, minimum=0))
    law: SequenceLaw = {}
    open_prefixes: SequenceLaw = {(): 1.0}
    while open_prefixes:
        prefix, mass = open_prefixes.popitem()
        if len(prefix) == length:
            law[prefix] = law.get(prefix, 0.0) + mass
            continue
        drafts = min(gamma, length - len(prefix) - 1)
        for committed, share in round_law(
            target, draft, drafts, prefix=prefix, rule=rule, draft_sampling=draft_sampling
        ).items():
            text = prefix + committed
            open_prefixes[text] = open_prefixes.get(text, 0.0) + mass * share
    return law


def target_sequence_law(target: NextProbs, tokens: int) -> SequenceLaw:
    """The law of the first `tokens` tokens drawn from the target alone."""
    law: SequenceLaw = {(): 1.0}
    for _ in range(int(whole_numbers("tokens", tokens, minimum=0))):
        longer: SequenceLaw = {}
        for prefix, mass in law.items():
            for token, probability in enumerate(distribution("target", target(prefix))):
                if probability > 0:
                    longer[(*prefix, token)] = mass * float(probability)
        law = longer
    return law
