"""T_verify of rounds that do not all verify γ drafts: lookups that find nothing, or less than was asked for.

A round's verification costs T_verify(k) with the k drafts it really has, and T_verify(0) = T_decode: a lookup that
finds nothing leaves a plain step. All rows of a batch share the widest block, so with B rows

    P(widest = k) = F_k^B - F_{k-1}^B,      F_k = P(a row's round has at most k drafts)

where rows are taken as independent, each at a start of its own, as Ω has them. The mean over k is what a round of that
γ spends on verification on average, and takes the place of T_verify(γ) in T_round.

    shares = draft_share_replicates(result, weights)                            # (1 + R, G, D + 1)
    mean_verify_replicates_s(parts, gammas, shares, batch_size=4)               # (1 + R, G)

R replicates (row 0 is the estimate), P prompts, G gammas, D gamma_max.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.bootstrap import ratio_replicates
from specgauge.model.checks import FloatArray, IntArray, whole_numbers
from specgauge.model.renewal_result import RenewalResult
from specgauge.model.uncertainty import PartReplicates


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


def mean_drafts(shares: ArrayLike) -> FloatArray:
    """Drafts that a round verifies on average: (…, D + 1) -> (…)."""
    values = np.asarray(shares, dtype=np.float64)
    return np.asarray(values @ np.arange(values.shape[-1]), dtype=np.float64)


def mean_verify_replicates_s(
    parts: PartReplicates, gammas: Sequence[int], shares: ArrayLike, *, batch_size: int
) -> FloatArray:
    """E[T_verify] of a batch's rounds at each measured γ, (1 + R, G).

    parts: T_decode and T_verify at `gammas` (G,), in rising order. shares: (1 + R, G, D + 1) of one row. T_verify of a
    number of drafts that was not measured lies on the line between its measured neighbours, T_decode at 0 among them.
    """
    chances = widest_share(shares, batch_size)
    measured = np.array([0, *gammas])
    times_s = np.column_stack([parts.t_decode_s, parts.t_verify_s])
    drafts = np.arange(chances.shape[-1])
    above = np.clip(np.searchsorted(measured, drafts), 1, measured.size - 1)
    share = np.clip((drafts - measured[above - 1]) / (measured[above] - measured[above - 1]), 0.0, 1.0)
    verify_s = times_s[:, above - 1] * (1 - share) + times_s[:, above] * share
    return np.asarray(np.einsum("rgk,rk->rg", chances, verify_s), dtype=np.float64)
