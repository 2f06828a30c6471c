"""What a round's drafts cost by the kind of drafter; tokens per round and S treat all kinds alike.

    autoregressive   C(gamma) = sum of gamma draft steps
    parallel         C(gamma) = one pass for every gamma (multi-token prediction, Medusa), as many drafts as heads
    lookup           C(gamma) = one fixed cost (prompt lookup, n-gram tables)

Draft trees are refused: a tree verifies more tokens than the gamma + 1 of a chain, so nothing here describes it.

    >>> AutoregressiveDraft(t_draft_s=0.002).total_s([1, 3]).tolist()
    [0.002, 0.006]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, IntArray, times_s, whole_numbers

KINDS = ("autoregressive", "parallel", "lookup")


@dataclass(frozen=True, kw_only=True)
class AutoregressiveDraft:
    """One forward of the draft model for every draft token."""

    t_draft_s: float | Sequence[float]
    """Seconds a step; a list gives T_draft(1), T_draft(2), … where later steps cost more."""

    def total_s(self, gammas: ArrayLike) -> FloatArray:
        """C(gamma) = sum_{k <= gamma} T_draft(k), any shape; ValueError for a gamma beyond the listed steps."""
        drafts = whole_numbers("gamma", gammas, minimum=0)
        steps = times_s("t_draft_s", self.t_draft_s)
        if steps.ndim == 0:
            return np.asarray(drafts * steps, dtype=np.float64)
        if np.any(drafts > steps.size):
            raise ValueError(
                f"t_draft_s: found {steps.size} steps for gamma {drafts.max()}, allowed: a step for each draft, or one "
                "value for all"
            )
        return np.asarray(np.concatenate([[0.0], np.cumsum(steps)])[drafts], dtype=np.float64)

    def passes(self, gammas: ArrayLike) -> IntArray:
        """Draft forwards in a round."""
        return whole_numbers("gamma", gammas, minimum=0)


@dataclass(frozen=True, kw_only=True)
class ParallelDraft:
    """Heads that draft every position in one pass; acceptance falls with position, so give it rates per position."""

    t_pass_s: float
    heads: int | None = None
    """Largest gamma the heads can draft; None where it is not known."""

    def total_s(self, gammas: ArrayLike) -> FloatArray:
        """C(gamma) = t_pass_s for gamma >= 1; ValueError for a gamma beyond the heads."""
        drafts = whole_numbers("gamma", gammas, minimum=0)
        if self.heads is not None and np.any(drafts > self.heads):
            raise ValueError(f"gamma: found {drafts.max()} with {self.heads} heads, allowed: at most {self.heads}")
        return np.asarray(np.where(drafts > 0, times_s("t_pass_s", self.t_pass_s), 0.0), dtype=np.float64)

    def passes(self, gammas: ArrayLike) -> IntArray:
        """One pass in every round that drafts."""
        return np.minimum(whole_numbers("gamma", gammas, minimum=0), 1)


@dataclass(frozen=True, kw_only=True)
class LookupDraft:
    """Drafts copied from the prompt or a table: a fixed cost whatever the gamma."""

    t_lookup_s: float = 0.0

    def total_s(self, gammas: ArrayLike) -> FloatArray:
        """C(gamma) = t_lookup_s for gamma >= 1."""
        drafts = whole_numbers("gamma", gammas, minimum=0)
        return np.asarray(np.where(drafts > 0, times_s("t_lookup_s", self.t_lookup_s), 0.0), dtype=np.float64)

    def passes(self, gammas: ArrayLike) -> IntArray:
        """One lookup in every round that drafts."""
        return np.minimum(whole_numbers("gamma", gammas, minimum=0), 1)


DraftKind = AutoregressiveDraft | ParallelDraft | LookupDraft


def draft_kind(name: str, t_draft_s: float | Sequence[float], *, heads: int | None = None) -> DraftKind:
    """The kind called `name` in `KINDS`, with its seconds per step, pass or lookup.

    Raises ValueError for an unknown name, for a draft tree, and for several times where the kind has one.
    """
    if "tree" in name.lower():
        raise ValueError(
            f"draft kind: found {name!r}, allowed: {', '.join(KINDS)}; draft trees are not covered, since a tree "
            "verifies more tokens than the gamma + 1 of a chain"
        )
    if name not in KINDS:
        near = get_close_matches(name, KINDS, n=1)
        hint = f" (nearest: {near[0]})" if near else ""
        raise ValueError(f"draft kind: found {name!r}, allowed: {', '.join(KINDS)}{hint}")
    if name == "autoregressive":
        return AutoregressiveDraft(t_draft_s=t_draft_s)
    one = times_s("t_draft_s", t_draft_s)
    if one.size != 1:
        raise ValueError(
            f"t_draft_s: found {one.size} values for a {name} draft, allowed: one, its cost does not depend on gamma"
        )
    return (
        ParallelDraft(t_pass_s=float(one.item()), heads=heads)
        if name == "parallel"
        else LookupDraft(t_lookup_s=float(one.item()))
    )
