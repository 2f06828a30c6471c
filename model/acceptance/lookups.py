"""Lookups: what was proposed at every start, how far the text agreed, and what their rounds spend on verification.

A lookup at the start t proposes `proposed_length` tokens, one-hot each, of which the text itself goes on with the first
`match_length`. Given the text nothing is left to chance, whatever the rule: a proposal x is accepted with the target's
probability of x, and the target then emits x if and only if it was.

    A[t, j] = 1 if j <= match_length_t else 0
    Ã[t, j] = target_probs of the j-th proposal, for j <= match_length_t + 1        mean of A[t, j] given y_{<t+j-1}

A round verifies the k drafts it really has, at T_verify(k), and T_verify(0) = T_decode. All rows of a batch share the
widest block, rows taken as independent:

    P(widest = k) = F_k^B - F_{k-1}^B,      F_k = P(a row's round has at most k drafts)

N texts, T positions, D gamma_max, R replicates (row 0 is the estimate), G gammas.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.checks import FloatArray, IntArray, whole_numbers
from specgauge.model.costs import RoundCosts
from specgauge.model.stats.bootstrap import ratio_replicates

LOOKUP_COLUMNS = ("proposed_length", "match_length", "target_prob", "rejected_target_prob")
"""Tokens proposed at each start, those of them that the text goes on with, target_probs of the token that the text has
there, and of the first proposal that it does not go on with; the last two may be null (NaN)."""
ROUNDING = 1e-5
"""Probabilities recorded in float32 may leave [0, 1] by this much; they are clipped to it, anything else is refused."""


def probability_column(columns: Mapping[str, ArrayLike], name: str) -> FloatArray:
    """A recorded column as float64, None as NaN; rounding outside [0, 1] stays, for the caller to clip.

    Raises:
        ValueError: the column is missing, or a value is outside [0, 1] by more than rounding.
    """
    if name not in columns:
        raise ValueError(f"acceptance table: expected the column {name!r}, it is missing")
    values = np.asarray(columns[name], dtype=np.float64)
    if bool(((values < -ROUNDING) | (values > 1 + ROUNDING)).any()):
        raise ValueError(f"acceptance column {name}: expected probabilities, got a value outside [0, 1]")
    return values


def lookup_lengths(columns: Mapping[str, ArrayLike]) -> tuple[IntArray, IntArray]:
    """(proposed_length, match_length), (N, T) each.

    Raises:
        ValueError: a column is missing, holds no whole numbers, or a match is longer than what was proposed.
    """
    for name in LOOKUP_COLUMNS:
        if name not in columns:
            raise ValueError(f"acceptance table: expected the columns {', '.join(LOOKUP_COLUMNS)}, {name!r} is missing")
    proposed, matching = (whole_numbers(name, columns[name], minimum=0) for name in LOOKUP_COLUMNS[:2])
    if bool((matching > proposed).any()):
        raise ValueError("acceptance column match_length: expected at most proposed_length, got more")
    return proposed, matching


def lookup_overlap(columns: Mapping[str, ArrayLike]) -> FloatArray:
    """o_t of a round's first draft: the target's probability of it; NaN where none is proposed or it is unknown."""
    proposed, matching = lookup_lengths(columns)
    target, rejected = (np.clip(probability_column(columns, name), 0.0, 1.0) for name in LOOKUP_COLUMNS[2:])
    return np.where(proposed > 0, np.where(matching > 0, target, rejected), np.nan)


def lookup_survival(
    columns: Mapping[str, ArrayLike], lengths: ArrayLike, gamma_max: int
) -> tuple[FloatArray, FloatArray]:
    """(A[t, j], Ã[t, j]), each (N, T, D), from the texts' lengths (N,); zero where they leave the text.

    A null probability is replaced by what happened there, 1 for a token that the text has and 0 for another.
    """
    proposed, matching = lookup_lengths(columns)
    target, unmatched = (np.clip(probability_column(columns, name), 0.0, 1.0) for name in LOOKUP_COLUMNS[2:])
    count, longest = proposed.shape
    step, place = np.arange(1, gamma_max + 1), np.arange(longest)[:, None]
    agreed = matching[:, :, None]
    inside = (place + step <= np.asarray(lengths)[:, None, None]) & (step <= proposed[:, :, None])
    survival = np.where(inside & (step <= agreed), 1.0, 0.0)
    emitted = np.pad(np.nan_to_num(target, nan=1.0), ((0, 0), (0, gamma_max)))
    along = np.stack([emitted[:, j : j + longest] for j in range(gamma_max)], axis=2)
    rejected = np.nan_to_num(unmatched)[:, :, None]
    ahead = np.where(step <= agreed, along, np.where(step == agreed + 1, rejected, 0.0))
    return survival, np.where(inside, ahead, 0.0).reshape(count, longest, gamma_max)


def confidence(agreeing: ArrayLike) -> FloatArray:
    """M / (m + 1) for m tokens of agreement before a draft, (…): what a lookup shows where a model has a probability.

    The agreement of a round's draft number d >= 1 is the match that was looked up and the d - 1 drafts before it.
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


def max_drafts_distribution(shares: ArrayLike, batch_size: int) -> FloatArray:
    """P(the widest of B rows verifies k drafts) from that of one row, both (…, D + 1)."""
    rows = int(whole_numbers("batch_size", batch_size, minimum=1))
    single = np.asarray(shares, dtype=np.float64)
    if rows == 1:
        return single
    at_most = np.clip(np.cumsum(single, axis=-1), 0.0, 1.0) ** rows
    return np.diff(at_most, axis=-1, prepend=0.0)


def mean_verify_s(costs: RoundCosts, draft_count_distribution: ArrayLike, *, batch_size: int) -> FloatArray:
    """E[T_verify] of a batch's rounds at each gamma of the costs, (1 + R, G).

    draft_count_distribution: (1 + R, G, D + 1) of one row. T_verify of a number of drafts that was not measured lies
    on the line between its measured neighbours, T_decode at 0 among them.
    """
    chances = max_drafts_distribution(draft_count_distribution, batch_size)
    measured = np.concatenate([[0], costs.gammas])
    times_s = np.column_stack([costs.t_decode_s, costs.t_verify_s])
    drafts = np.arange(chances.shape[-1])
    above = np.clip(np.searchsorted(measured, drafts), 1, measured.size - 1)
    share = np.clip((drafts - measured[above - 1]) / (measured[above] - measured[above - 1]), 0.0, 1.0)
    verify_s = times_s[:, above - 1] * (1 - share) + times_s[:, above] * share
    return np.asarray(np.einsum("rgk,rk->rg", chances, verify_s), dtype=np.float64)
