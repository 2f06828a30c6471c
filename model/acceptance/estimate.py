"""Acceptance per position from recorded columns, by how drafts are drawn and judged, and what one number makes of it.

Given that the target emitted y after some history, the draft's proposal was accepted there with probability a_t; its
mean given the history alone is the overlap o_t = E[a_t | history] (design 3.1; Leviathan et al., arXiv 2211.17192):

    acceptance_rule  draft_sampling  a_t                              o_t
    ratio            same            min(1, draft_probs[y] / target_probs[y])   sum_x min(draft_probs, target_probs)
    match            same            draft_probs[y]                   sum_x draft_probs * target_probs
    either           greedy          1 if y is the draft's argmax     target_probs[draft's argmax]

Arrays of any one shape go in and come out; null is NaN inside them and is counted (`null_count`), never divided by.

    a = acceptance_probability(recorded, acceptance_rule="ratio", draft_sampling="same")
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import BoolArray, FloatArray, IntArray
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.sensitivity import alpha_from_tokens_per_round

ROUNDING = 1e-5
"""Probabilities recorded in float32 may leave [0, 1] by this much; they are clipped to it, anything else is refused."""


@dataclass(frozen=True, kw_only=True)
class RecordedColumns:
    """What one teacher-forced pass recorded, every array of the same shape; NaN where a probability is null."""

    token: IntArray
    """The token y that the target emitted."""
    target_prob: FloatArray
    """target_probs[y]; null where y lies outside the recomputed support."""
    draft_prob: FloatArray
    """draft_probs[y]; null where target_prob is."""
    overlap_ratio: FloatArray
    """Sum over the vocabulary of min(draft_probs, target_probs)."""
    overlap_match: FloatArray
    """Sum over the vocabulary of draft_probs * target_probs."""
    draft_argmax: IntArray
    """The draft's most probable token, the lowest id among equals."""
    draft_argmax_target_prob: FloatArray
    """target_probs[draft_argmax]."""

    def __post_init__(self) -> None:
        """Raise ValueError for shapes that differ and for probabilities outside [0, 1]."""
        for field in fields(self):
            values = getattr(self, field.name)
            if values.shape != (shape := self.token.shape):
                raise ValueError(
                    f"acceptance column {field.name}: found shape {values.shape}; allowed is token's {shape}"
                )
            if values.dtype.kind == "f" and bool(((values < -ROUNDING) | (values > 1 + ROUNDING)).any()):
                raise ValueError(
                    f"acceptance column {field.name}: found a value outside [0, 1]; allowed are probabilities"
                )


def recorded_columns(table: Mapping[str, ArrayLike]) -> RecordedColumns:
    """Take the recorded columns from a mapping of arrays (a data frame, padded texts); None and NaN are null.

    Raises ValueError for a missing column and for values `RecordedColumns` refuses.
    """
    missing = [field.name for field in fields(RecordedColumns) if field.name not in table]
    if missing:
        raise ValueError(
            f"acceptance table: found no column {missing[0]!r}; needed are "
            f"{', '.join(field.name for field in fields(RecordedColumns))}"
        )

    def floats(name: str) -> FloatArray:
        return np.asarray(table[name], dtype=np.float64)

    return RecordedColumns(
        token=np.asarray(table["token"], dtype=np.int64),
        target_prob=floats("target_prob"),
        draft_prob=floats("draft_prob"),
        overlap_ratio=floats("overlap_ratio"),
        overlap_match=floats("overlap_match"),
        draft_argmax=np.asarray(table["draft_argmax"], dtype=np.int64),
        draft_argmax_target_prob=floats("draft_argmax_target_prob"),
    )


def acceptance_probability(recorded: RecordedColumns, *, acceptance_rule: str, draft_sampling: str) -> FloatArray:
    """a_t, float64 in the shape of the columns; NaN where the token's probabilities are null (or the target's is 0).

    Raises ValueError for an unknown rule or draft sampling.
    """
    if _way(acceptance_rule, draft_sampling) == "greedy":
        return np.asarray(recorded.token == recorded.draft_argmax, dtype=np.float64)
    if acceptance_rule == "match":
        return np.asarray(np.clip(recorded.draft_prob, 0.0, 1.0), dtype=np.float64)
    possible = recorded.target_prob > 0
    ratio = np.full(recorded.target_prob.shape, np.nan)
    np.divide(recorded.draft_prob, recorded.target_prob, out=ratio, where=possible)
    return np.asarray(np.clip(ratio, 0.0, 1.0), dtype=np.float64)


def overlap(recorded: RecordedColumns, *, acceptance_rule: str, draft_sampling: str) -> FloatArray:
    """o_t = E[a_t | history], float64 in the shape of the columns.

    Raises ValueError for an unknown rule or draft sampling.
    """
    way = _way(acceptance_rule, draft_sampling)
    columns = {
        "greedy": recorded.draft_argmax_target_prob,
        "ratio": recorded.overlap_ratio,
        "match": recorded.overlap_match,
    }
    return np.asarray(np.clip(columns[way], 0.0, 1.0), dtype=np.float64)


def null_count(acceptance: ArrayLike, valid: ArrayLike | None = None) -> int:
    """How many positions have no known acceptance; `valid` (same shape) leaves padding out."""
    return int((np.isnan(np.asarray(acceptance, dtype=np.float64)) & _mask(acceptance, valid)).sum())


def fill_nulls(acceptance: ArrayLike, overlaps: ArrayLike) -> FloatArray:
    """Acceptance with each null replaced by o_t, its mean given the history: what a chain of rounds needs to go on.

    The filled positions carry no information of their own; report `null_count` beside any result.
    """
    known = np.asarray(acceptance, dtype=np.float64)
    return np.where(np.isnan(known), np.asarray(overlaps, dtype=np.float64), known)


def alpha_overlap(overlaps: ArrayLike, valid: ArrayLike | None = None) -> float | None:
    """`alpha_overlap`: the mean overlap over recorded positions, each counted once; None without positions.

    It is what a uniformly chosen position accepts, not what a decoder's rounds see.
    """
    values = np.asarray(overlaps, dtype=np.float64)[_mask(overlaps, valid)]
    return float(values.mean()) if values.size else None


def alpha_judged(judged_accepted: ArrayLike, judged: ArrayLike) -> float | None:
    """`alpha_judged`: accepted over accepted plus rejected, sums of any shape pooled; None when nothing was judged.

    With expected counts of the renewal pass (`judged_accepted`, `judged` at one gamma) it is what counting would give.
    """
    total = float(np.sum(np.asarray(judged, dtype=np.float64)))
    return float(np.sum(np.asarray(judged_accepted, dtype=np.float64))) / total if total > 0 else None


def alpha_omega(tokens_per_round: ArrayLike, gamma: ArrayLike) -> FloatArray:
    """`alpha_omega`: the alpha whose sum_{i<=gamma} alpha^i is the measured Omega(gamma); arguments broadcast.

    The only one of the three estimates that reproduces Omega at the gamma it was measured at.
    Raises ValueError for an Omega under 1 or over gamma + 1.
    """
    return alpha_from_tokens_per_round(tokens_per_round, gamma)


def _way(acceptance_rule: str, draft_sampling: str) -> str:
    _known("acceptance_rule", acceptance_rule, get_args(AcceptanceRule))
    _known("draft_sampling", draft_sampling, get_args(DraftSampling))
    return "greedy" if draft_sampling == "greedy" else acceptance_rule


def _known(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        nearest = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{name}: found {value!r}; allowed are {', '.join(allowed)}{hint}")


def _mask(values: ArrayLike, valid: ArrayLike | None) -> BoolArray:
    shape = np.shape(values)
    return (
        np.ones(shape, dtype=np.bool_) if valid is None else np.broadcast_to(np.asarray(valid, dtype=np.bool_), shape)
    )
