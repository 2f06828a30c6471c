"""One position, or a chain of them, explained: both paths to every token, and the probability tree of a round.

    explanation = explain([[.2, .4, .4]], [[.1, .1, .8]], names=["A", "B", "C"])
    explanation_document(explanation)      # plain numbers, for --json

Position i is reached when the drafts before it were accepted; the distributions of a position do not depend on which
tokens those were.  K positions, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.profiles import run_distribution
from specgauge.model.checks import FloatArray, distribution
from specgauge.model.exact import AcceptanceRule, DraftSampling, PositionDistribution, position_distribution
from specgauge.model.speedup import tokens_per_round

MOST_POSITIONS = 64
"""A longer chain is no tree that anybody reads: its text would grow with the square of the positions."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The distribution at each drafted position and of the round they make."""

    names: tuple[str, ...]
    rule: AcceptanceRule
    draft_sampling: DraftSampling
    positions: tuple[PositionDistribution, ...]
    """One for each draft, arrays of shape (V,)."""
    bonus: FloatArray | None
    """The target's probabilities after the last accepted draft, (V,); None where they are not given."""

    @property
    def survival(self) -> FloatArray:
        """A_1 … A_K: the first i drafts are all accepted."""
        return np.asarray(np.cumprod([float(here.overlap) for here in self.positions]), dtype=np.float64)

    @property
    def tokens_per_round(self) -> float:
        """Omega of the round."""
        return float(tokens_per_round(self.survival))


def explain(
    target_probs: Sequence[ArrayLike],
    draft_probs: Sequence[ArrayLike],
    *,
    names: Sequence[str] | None = None,
    rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
) -> Explanation:
    """Explain K drafted positions; `target_probs` may have one position more, where the bonus is drawn.

    `names` default to the token ids 0, 1, ….

    Raises:
        ValueError: lists of different lengths, more than `MOST_POSITIONS` drafts, or probabilities outside [0, 1] or
            that do not sum to 1.
    """
    if len(draft_probs) > MOST_POSITIONS:
        raise ValueError(f"draft_probs: expected at most {MOST_POSITIONS}, got {len(draft_probs)} positions")
    if not draft_probs or len(target_probs) - len(draft_probs) not in (0, 1):
        raise ValueError(
            "target_probs: expected at least one, as many of both, or one more of target_probs for the bonus, got "
            f"{len(target_probs)} positions for {len(draft_probs)} in draft_probs"
        )
    size = np.size(target_probs[0])
    labels = token_names(names, size)
    checked = []
    for kind, positions in (("target_probs", target_probs), ("draft_probs", draft_probs)):
        for i, probs in enumerate(positions):
            where = kind if len(draft_probs) == 1 and i == 0 else f"{kind}, position {i + 1}"
            if np.size(probs) != size:
                raise ValueError(f"{where}: expected {size}, as in target_probs, got {np.size(probs)} probabilities")
            checked.append(distribution(where, probs))
    target, draft = checked[: len(target_probs)], checked[len(target_probs) :]
    explained = [
        position_distribution(t, d, rule=rule, draft_sampling=draft_sampling)
        for t, d in zip(target, draft, strict=False)
    ]
    return Explanation(
        names=labels,
        rule=rule,
        draft_sampling=draft_sampling,
        positions=tuple(explained),
        bonus=target[len(draft)] if len(target) > len(draft) else None,
    )


def token_names(names: Sequence[str] | None, tokens: int) -> tuple[str, ...]:
    """The names of tokens, their ids where none are given; ValueError unless each of them has its own."""
    labels = tuple(map(str, range(tokens) if names is None else names))
    if len(labels) != tokens:
        raise ValueError(f"names: expected {tokens}, one for each token, got {len(labels)}")
    if len(set(labels)) < tokens:
        raise ValueError(f"names: expected a different one for each token, got {', '.join(labels)}")
    return labels


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """Everything as plain numbers, for JSON."""
    return {
        "rule": explanation.rule,
        "draft_sampling": explanation.draft_sampling,
        "positions": [
            {
                "position": i,
                "overlap": float(here.overlap),
                "rejected": float(here.rejected),
                "tokens": _tokens(explanation.names, here),
            }
            for i, here in enumerate(explanation.positions, start=1)
        ],
        "survival": explanation.survival.tolist(),
        "tokens_per_round": explanation.tokens_per_round,
        "tree": tree(explanation),
    }


def tree(explanation: Explanation) -> list[dict[str, Any]]:
    """The leaves of the round's probability tree: rejected at 1, at 2, …, or everything accepted.

    `last_token_probs` is None for a bonus whose distribution is not given.
    """
    leaves: list[dict[str, Any]] = []
    for accepted, probability in enumerate(run_distribution(explanation.survival).tolist()):
        full = accepted == len(explanation.positions)
        last = explanation.bonus if full else explanation.positions[accepted].residual
        leaves.append(
            {
                "accepted": accepted,
                "probability": probability,
                "tokens": accepted + 1,
                "last_token": "bonus" if full else "residual",
                "last_token_probs": None if last is None else dict(zip(explanation.names, last.tolist(), strict=True)),
            }
        )
    return leaves


def _tokens(names: Sequence[str], here: PositionDistribution) -> list[dict[str, Any]]:
    same = ("accept", "accepted", "surplus", "deficit", "residual", "replaced", "output")
    columns = {"target_prob": here.target_probs, "draft_prob": here.draft_probs}
    columns |= {name: getattr(here, name) for name in same}
    return [
        {"token": name} | {key: float(values[v]) for key, values in columns.items()} for v, name in enumerate(names)
    ]
