"""Lookups as recorded: what was proposed at every start, how far the text agreed, and how many drafts a round verifies.

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

T_verify of rounds that do not all verify γ drafts: lookups that find nothing, or less than was asked for.

A round's verification costs T_verify(k) with the k drafts it really has, and T_verify(0) = T_decode: a lookup that
finds nothing leaves a plain step. All rows of a batch share the widest block, so with B rows

    P(widest = k) = F_k^B - F_{k-1}^B,      F_k = P(a row's round has at most k drafts)

where rows are taken as independent, each at a start of its own, as Ω has them. The mean over k is what a round of that
γ spends on verification on average, and takes the place of T_verify(γ) in T_round.

    shares = draft_share_replicates(result, weights)                            # (1 + R, G, D + 1)
    mean_verify_s(costs, shares, batch_size=4)               # (1 + R, G)

R replicates (row 0 is the estimate), P prompts, G gammas, D gamma_max.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.estimate import ROUNDING
from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.checks import FloatArray, IntArray, whole_numbers
from specgauge.model.costs import RoundCosts
from specgauge.model.stats.bootstrap import ratio_replicates


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


def draft_share_replicates(by_prompt: RenewalResult, weights: IntArray, *, confidence: float = 0.9) -> FloatArray:
    """P(a round of γ verifies k drafts), k = 0 … D, over all prompts and over drawn ones: (1 + R, G, D + 1).

    `by_prompt` are sums by prompt of a pass that counted rounds by drafts; weights (R, P) as Ω has them.
    """
    assert by_prompt.rounds_by_drafts is not None, "every round of this pass verifies γ drafts"
    prompts, gammas, width = by_prompt.rounds_by_drafts.shape
    starts = np.repeat(by_prompt.starts, width, axis=1)
    flat = ratio_replicates(by_prompt.rounds_by_drafts.reshape(prompts, -1), starts, weights, confidence=confidence)
    shares = np.clip(flat.reshape(-1, gammas, width), 0.0, 1.0)
    return np.asarray(shares / shares.sum(axis=2, keepdims=True), dtype=np.float64)


def widest_share(shares: ArrayLike, batch_size: int) -> FloatArray:
    """P(the widest of B rows verifies k drafts) from that of one row, both (…, D + 1)."""
    rows = int(whole_numbers("batch_size", batch_size, minimum=1))
    single = np.asarray(shares, dtype=np.float64)
    if rows == 1:
        return single
    at_most = np.clip(np.cumsum(single, axis=-1), 0.0, 1.0) ** rows
    return np.diff(at_most, axis=-1, prepend=0.0)


def mean_verify_s(costs: RoundCosts, draft_shares: ArrayLike, *, batch_size: int) -> FloatArray:
    """E[T_verify] of a batch's rounds at each gamma of the costs, (1 + R, G).

    draft_shares: (1 + R, G, D + 1) of one row. T_verify of a number of drafts that was not measured lies on the line
    between its measured neighbours, T_decode at 0 among them.
    """
    chances = widest_share(draft_shares, batch_size)
    measured = np.concatenate([[0], costs.gammas])
    times_s = np.column_stack([costs.t_decode_s, costs.t_verify_s])
    drafts = np.arange(chances.shape[-1])
    above = np.clip(np.searchsorted(measured, drafts), 1, measured.size - 1)
    share = np.clip((drafts - measured[above - 1]) / (measured[above] - measured[above - 1]), 0.0, 1.0)
    verify_s = times_s[:, above - 1] * (1 - share) + times_s[:, above] * share
    return np.asarray(np.einsum("rgk,rk->rg", chances, verify_s), dtype=np.float64)
