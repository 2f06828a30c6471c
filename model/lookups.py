"""Acceptance of lookups from recorded columns: certain given the text, by where a round starts.

A lookup at the start t proposes `proposed_length` tokens, one-hot each, of which the text itself goes on with the first
`match_length`. Given the text nothing is left to chance, whatever the rule and however a draft would draw: a proposal x
is accepted with the target's probability of x (ratio rule and match rule alike), and the target then emits x if and
only if it was.

    A[t, j] = 1 if j <= match_length_t else 0
    Ã[t, j] = target_probs of the j-th proposal, for j <= match_length_t + 1        mean of A[t, j] given y_{<t+j-1}

    lookups = recorded_lookups(columns)                     # (N, T) each
    survival, ahead = lookups.by_start(lengths, gamma_max=4)          # (N, T, 4) each, for `renewal_by_start`

How much agreed before a draft is what a lookup can say of it beforehand (`confidence`).

N texts, T positions, D gamma_max.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance import ROUNDING
from specgauge.model.checks import FloatArray, IntArray, whole_numbers


@dataclass(frozen=True, kw_only=True)
class RecordedLookups:
    """What was recorded of every start, arrays of one shape (N, T); NaN where a probability is null."""

    proposed_length: IntArray
    """Tokens a lookup at this start proposes."""
    match_length: IntArray
    """Of them, those from the first on that the text goes on with."""
    target_prob: FloatArray
    """target_probs of the token that the text has at this position; null outside the recomputed support."""
    rejected_target_prob: FloatArray
    """target_probs of the first proposal that the text does not go on with, there; null where there is none."""

    def __post_init__(self) -> None:
        """Raise ValueError for shapes that differ, longer matches than proposals and values that are no probability."""
        shape = self.proposed_length.shape
        for field in fields(self):
            values = getattr(self, field.name)
            if values.shape != shape:
                raise ValueError(f"acceptance column {field.name}: found shape {values.shape}; allowed is {shape}")
            if values.dtype.kind == "f" and bool(((values < -ROUNDING) | (values > 1 + ROUNDING)).any()):
                raise ValueError(
                    f"acceptance column {field.name}: found a value outside [0, 1]; allowed are probabilities"
                )
        if bool((self.match_length > self.proposed_length).any()):
            raise ValueError("acceptance column match_length: found more than proposed_length; allowed is at most that")

    @property
    def overlap(self) -> FloatArray:
        """o_t of a round's first draft: the target's probability of it; NaN where none is proposed or it is unknown."""
        first = np.where(self.match_length > 0, self.target_prob, self.rejected_target_prob)
        return np.where(self.proposed_length > 0, np.clip(first, 0.0, 1.0), np.nan)

    def by_start(self, lengths: ArrayLike, gamma_max: int) -> tuple[FloatArray, FloatArray]:
        """(A[t, j], Ã[t, j]), each (N, T, D), from the texts' lengths (N,); zero where they leave the text.

        A null probability is replaced by what happened there, 1 for a token that the text has and 0 for another.
        """
        count, longest = self.proposed_length.shape
        ends = np.asarray(lengths)[:, None, None]
        step, place = np.arange(1, gamma_max + 1), np.arange(longest)[:, None]
        agreed = self.match_length[:, :, None]
        inside = (place + step <= ends) & (step <= self.proposed_length[:, :, None])
        survival = np.where(inside & (step <= agreed), 1.0, 0.0)
        emitted = np.pad(np.nan_to_num(np.clip(self.target_prob, 0.0, 1.0), nan=1.0), ((0, 0), (0, gamma_max)))
        along = np.stack([emitted[:, j : j + longest] for j in range(gamma_max)], axis=2)
        rejected = np.nan_to_num(np.clip(self.rejected_target_prob, 0.0, 1.0))[:, :, None]
        ahead = np.where(step <= agreed, along, np.where(step == agreed + 1, rejected, 0.0))
        return survival, np.where(inside, ahead, 0.0).reshape(count, longest, gamma_max)


def recorded_lookups(table: Mapping[str, ArrayLike]) -> RecordedLookups:
    """Take the recorded columns from a mapping of arrays; None and NaN are null.

    Raises ValueError for a missing column, for lengths that are not whole and what `RecordedLookups` refuses.
    """
    missing = [field.name for field in fields(RecordedLookups) if field.name not in table]
    if missing:
        raise ValueError(
            f"acceptance table: found no column {missing[0]!r}; needed are "
            f"{', '.join(field.name for field in fields(RecordedLookups))}"
        )
    return RecordedLookups(
        proposed_length=whole_numbers("proposed_length", table["proposed_length"], minimum=0),
        match_length=whole_numbers("match_length", table["match_length"], minimum=0),
        target_prob=np.asarray(table["target_prob"], dtype=np.float64),
        rejected_target_prob=np.asarray(table["rejected_target_prob"], dtype=np.float64),
    )


def confidence(agreeing: ArrayLike) -> FloatArray:
    """M / (m + 1) for m tokens of agreement before a draft, (…): what a lookup shows where a model has a probability.

    The agreement of a round's draft number d >= 1 is the match that was looked up and the d - 1 drafts before it. Any
    rising function would do, as it is calibrated; this one is 0 without a match and below 1 for any length.
    """
    tokens = np.asarray(agreeing, dtype=np.float64)
    return np.asarray(tokens / (tokens + 1.0), dtype=np.float64)
