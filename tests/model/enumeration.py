"""A round of speculative sampling by enumeration of every path, for decoders and trees to be held against."""

from __future__ import annotations

from collections.abc import Callable

from numpy.typing import ArrayLike

from specgauge.model.checks import distribution
from specgauge.model.exact import AcceptanceRule, DraftSampling, position_distribution

NextProbs = Callable[[tuple[int, ...]], ArrayLike]
"""Next-token probabilities (V,) after the tokens of a prefix."""
SequenceDistribution = dict[tuple[int, ...], float]
"""Probability of each token sequence; sequences without mass are absent."""


def round_distribution(
    target: NextProbs,
    draft: NextProbs,
    gamma: int,
    *,
    prefix: tuple[int, ...] = (),
    rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
) -> SequenceDistribution:
    """The distribution of the 1 … gamma + 1 tokens that one round commits after `prefix`."""
    found: SequenceDistribution = {}

    def add(tokens: tuple[int, ...], mass: float) -> None:
        if mass > 0:
            found[tokens] = found.get(tokens, 0.0) + mass

    def walk(committed: tuple[int, ...], mass: float) -> None:
        after = prefix + committed
        if len(committed) == gamma:
            for token, probability in enumerate(distribution("target", target(after))):
                add((*committed, token), mass * float(probability))
            return
        here = position_distribution(target(after), draft(after), rule=rule, draft_sampling=draft_sampling)
        for token in range(here.accepted.size):
            if here.accepted[token] > 0:
                walk((*committed, token), mass * float(here.accepted[token]))
            add((*committed, token), mass * float(here.replaced[token]))

    walk((), 1.0)
    return found
