"""Finite texts: how many rounds a text of n tokens takes, and the speed-up of one request and of a static batch.

A round that accepts j drafts commits j + 1 tokens, so the rounds of a text form a renewal process.  Its tokens are
those after the one sampled from the prefill; gamma in force is min(gamma, tokens left - 1).

    E[rounds](n) = 1 + sum_j P(run = j) E[rounds](n - j - 1)
    E[time](n)   = T_round(min(gamma, n - 1)) + sum_j P(run = j) E[time](n - j - 1)       T_round(0) = T_decode
    rounds until the last of B rows ends = sum_k (1 - prod_b P(rounds_b <= k))

Exact for acceptance that does not depend on the place in the text; recorded trajectories go through
`specgauge.model.acceptance.renewal`.

    >>> [round(float(r), 4) for r in expected_rounds([0.5], 4)]
    [0.0, 1.0, 1.5, 2.25, 2.875]
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, positive_times_s, survival_rates, times_s, whole_numbers


def run_law(survival: ArrayLike) -> FloatArray:
    """P(exactly j drafts accepted), j = 0 … gamma: A_j - A_{j+1}, and A_gamma last; (…, gamma) -> (…, gamma + 1)."""
    rates = survival_rates("survival", survival)
    ends = np.zeros((*rates.shape[:-1], 1))
    padded = np.concatenate([ends + 1.0, rates, ends], axis=-1)
    return np.asarray(padded[..., :-1] - padded[..., 1:], dtype=np.float64)


def expected_rounds(survival: ArrayLike, tokens: int) -> FloatArray:
    """E[rounds] of texts of 0 … `tokens` tokens at fixed gamma (the length of survival's last axis).

    (…, gamma) -> (…, tokens + 1).  A run past the end of the text is cut there, so shrinking gamma before a length
    limit changes what a round costs, not how many there are.
    """
    rates = survival_rates("survival", survival)
    return _renew(run_law(rates), np.ones((*rates.shape[:-1], _length(tokens))))


def expected_time_s(survival: ArrayLike, *, t_decode_s: float, t_round_s: ArrayLike, tokens: int) -> FloatArray:
    """E[seconds] to commit 0 … `tokens` tokens of one row: (…, gamma) -> (…, tokens + 1).

    `t_round_s` has shape (…, gamma): the time of a round of 1 … gamma drafts, because gamma shrinks before the
    length limit down to a plain decoding step for the last token.
    """
    rates = survival_rates("survival", survival)
    gamma = rates.shape[-1]
    rounds_s = positive_times_s("t_round_s", t_round_s)
    if rounds_s.ndim == 0 or rounds_s.shape[-1] != gamma:
        raise ValueError(f"t_round_s: found shape {rounds_s.shape}, allowed: one time for each of 1 … {gamma} drafts")
    decode_s = np.broadcast_to(positive_times_s("t_decode_s", t_decode_s), (*rounds_s.shape[:-1], 1))
    by_gamma_in_force = np.concatenate([decode_s, rounds_s], axis=-1)
    costs = by_gamma_in_force[..., np.minimum(gamma, np.arange(_length(tokens)))]
    shape = np.broadcast_shapes(costs.shape[:-1], rates.shape[:-1])
    return _renew(run_law(rates), np.broadcast_to(costs, (*shape, costs.shape[-1])))


def rounds_cdf(survival: ArrayLike, tokens: int) -> FloatArray:
    """P(a text of `tokens` tokens is done after k rounds), k = 0 … tokens: (gamma,) -> (tokens + 1,)."""
    law = run_law(survival)
    if law.ndim != 1:
        raise ValueError(f"survival: found shape {law.shape[:-1]} of profiles, allowed: one list A_1 … A_gamma")
    length = _length(tokens)
    left = np.zeros(length + 1)
    left[length] = 1.0
    done = np.empty(length + 1)
    done[0] = left[0]
    for k in range(1, length + 1):
        moved = np.zeros(length + 1)
        for run, mass in enumerate(law):
            step = run + 1
            moved[: max(length + 1 - step, 0)] += mass * left[step:]
            moved[0] += mass * left[1:step].sum()
        moved[0] += left[0]
        left = moved
        done[k] = left[0]
    return done


def expected_last_row_rounds(survival: ArrayLike, tokens_per_row: ArrayLike) -> float:
    """E[rounds until the last row of a static batch ends], rows independent: sum_k (1 - prod_b P(rounds_b <= k)).

    `tokens_per_row` has shape (B,).
    """
    lengths = np.atleast_1d(whole_numbers("tokens_per_row", tokens_per_row, minimum=1))
    longest = int(lengths.max())
    all_done = np.ones(longest + 1)
    for length, rows in zip(*np.unique(lengths, return_counts=True), strict=True):
        cdf = np.ones(longest + 1)
        cdf[: length + 1] = rounds_cdf(survival, int(length))
        all_done *= cdf**rows
    return float(np.sum(1.0 - all_done))


def speedup_request(
    survival: ArrayLike,
    *,
    tokens: int,
    t_decode_s: float,
    t_round_s: ArrayLike,
    t_prefill_target_s: float = 0.0,
    t_prefill_draft_s: float = 0.0,
) -> FloatArray:
    """One request of a prefill and `tokens` further tokens: plain seconds over expected speculative seconds.

    (T_prefill + n T_decode) / (T_prefill + T_prefill of the draft + E[time](n)); shapes as `expected_time_s`.
    """
    n = int(whole_numbers("tokens", tokens, minimum=1))
    target_s = times_s("t_prefill_target_s", t_prefill_target_s)
    both_s = target_s + times_s("t_prefill_draft_s", t_prefill_draft_s)
    speculative_s = expected_time_s(survival, t_decode_s=t_decode_s, t_round_s=t_round_s, tokens=n)[..., n]
    plain_s = n * positive_times_s("t_decode_s", t_decode_s)
    return np.asarray((target_s + plain_s) / (both_s + speculative_s), dtype=np.float64)


def speedup_batch(survival: ArrayLike, *, tokens_per_row: ArrayLike, t_decode_s: float, t_round_s: float) -> float:
    """A static batch until its last row ends, finished rows still costing: max(n) T_decode / (E[last rounds] T_round).

    T_round is that of the full batch at gamma drafts in every round; the saving from a smaller gamma in the last
    rounds is left out (`tests.model.simulation` has it).
    """
    longest = int(np.max(whole_numbers("tokens_per_row", tokens_per_row, minimum=1)))
    plain_s = longest * float(positive_times_s("t_decode_s", t_decode_s))
    return plain_s / (
        expected_last_row_rounds(survival, tokens_per_row) * float(positive_times_s("t_round_s", t_round_s))
    )


def _renew(law: FloatArray, costs: FloatArray) -> FloatArray:
    """x(0) = 0, x(n) = cost(n) + sum_j P(run = j) x(n - j - 1); law (…, gamma + 1), costs (…, tokens)."""
    total = np.zeros((*costs.shape[:-1], costs.shape[-1] + 1))
    for n in range(1, total.shape[-1]):
        reach = min(law.shape[-1], n)
        total[..., n] = costs[..., n - 1] + np.sum(law[..., :reach] * total[..., n - reach : n][..., ::-1], axis=-1)
    return total


def _length(tokens: int) -> int:
    return int(whole_numbers("tokens", tokens, minimum=0))
