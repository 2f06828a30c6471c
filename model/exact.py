"""Speculative sampling as exact arithmetic at one position.

    accepted(x)  = draft(x) * accept(x)        accept(x) = min(1, target(x) / draft(x))  (ratio)  or  target(x)  (match)
    deficit      = target - accepted           what the accepted path leaves missing
    residual     = deficit / sum(deficit)      the residual distribution: what a rejected position commits instead
    output       = accepted + sum(draft - accepted) * residual  =  target

A greedy draft proposes its argmax, so its proposal distribution is one-hot at the lowest index of the maximum.
Where nothing can be rejected the residual is all zeros.
Leviathan et al., arXiv 2211.17192, section 2.3 and appendix A.1; Chen et al., arXiv 2302.01318, algorithm 2.

    >>> here = position_distribution([0.2, 0.4, 0.4], [0.1, 0.1, 0.8])
    >>> here.residual.round(12).tolist(), round(float(here.overlap), 12)
    ([0.25, 0.75, 0.0], 0.6)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, distribution

AcceptanceRule = Literal["ratio", "match"]
"""The accept-reject test: `ratio` min(1, target/draft); `match` where the target's own sample equals it."""
DraftSampling = Literal["same", "greedy"]
"""How a draft is drawn: with the target's sampling settings, or as its argmax."""


@dataclass(frozen=True, kw_only=True)
class PositionDistribution:
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
        """The distribution of the committed token, by both paths."""
        return self.accepted + self.replaced


def position_distribution(
    target_probs: ArrayLike,
    draft_probs: ArrayLike,
    *,
    rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
) -> PositionDistribution:
    """The distributions of one position, or of a batch of positions (…, V); target and draft broadcast.

    Raises:
        ValueError: probabilities outside [0, 1] or that do not sum to 1, or an unknown rule.
    """
    if rule not in get_args(AcceptanceRule):
        raise ValueError(f"rule: expected ratio, match, got {rule!r}")
    target = distribution("target_probs", target_probs)
    draft = proposal_probs(draft_probs, draft_sampling)
    if target.shape[-1] != draft.shape[-1]:
        raise ValueError(
            f"draft_probs: expected one for each, got {draft.shape[-1]} tokens for {target.shape[-1]} in target_probs"
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
    return PositionDistribution(
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
        raise ValueError(f"draft_sampling: expected same, greedy, got {draft_sampling!r}")
    return np.asarray(np.arange(draft.shape[-1]) == np.argmax(draft, axis=-1)[..., np.newaxis], dtype=np.float64)
