"""How far any adaptive choice of γ can go on recorded texts: bounds by backward dynamic programming.

Who knows a_t and picks the best γ at every round's start; no policy that fixes γ before it drafts can beat it:

    J(t) = min_g [ T_round(g) + Σ_{j<g} P(run = j) J(t + j + 1) + P(run >= g) J(t + g + 1) ]

Who knows, besides, how many drafts would be accepted in a row (the run) before drafting; it bounds policies that stop
while drafting as well:

    J(t) = Σ_j P(run = j) · min_g [ T_round(g) + J(t + min(g, j) + 1) ]

J = 0 where the text has ended; g as in `specgauge.model.acceptance.renewal`, 0 always allowed. Both are exact:

    run oracle <= best by start <= best fixed γ <= plain decoding        in expected seconds, text by text

Of a lookup everything is known with its start, and the two are one (`best_lookups_time_s`):

    J(t) = min_k [ T_round(k) + J(t + min(k, matching_t) + 1) ],     k at most what is offered at t

N texts, T positions, D gamma_max. Costs (D + 1,) are seconds of a round by drafts in force.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import TextEnds, within_texts
from specgauge.model.checks import FloatArray, numbers, whole_numbers


def best_by_start_time_s(acceptance: ArrayLike, ends: TextEnds, costs_s: ArrayLike) -> FloatArray:
    """Least expected seconds (N,) of policies that fix γ at each round's start, from a_t (N, T), nulls filled.

    Raises:
        ValueError: as `renewal`.
    """
    ahead_a, costs, left_s = _checked(acceptance, ends, costs_s)
    depth, count = costs.size - 1, ends.lengths.size
    for t in reversed(range(np.shape(acceptance)[1])):
        running, ended_s, best = np.ones(count), np.zeros(count), np.full(count, np.inf)
        for g in range(depth + 1):
            value = costs[g] + ended_s + running * left_s[t + g + 1]
            np.copyto(best, value, where=(value < best) & (g < ends.limits - t))
            ended_s += running * (1.0 - ahead_a[t + g]) * left_s[t + g + 1]
            running *= ahead_a[t + g]
        left_s[t] = np.where(t < ends.lengths, best, 0.0)
    return np.asarray(left_s[0], dtype=np.float64)


def accepted_length_oracle_time_s(acceptance: ArrayLike, ends: TextEnds, costs_s: ArrayLike) -> FloatArray:
    """Expected seconds (N,) of who knows each run before drafting: below policies that stop while drafting as well.

    Drafting beyond the run is only worth it where a longer round is cheaper. Arguments and errors as
    `best_by_start_time_s`.
    """
    ahead_a, costs, left_s = _checked(acceptance, ends, costs_s)
    depth, count = costs.size - 1, ends.lengths.size
    for t in reversed(range(np.shape(acceptance)[1])):
        most = np.minimum(depth, ends.limits - t - 1)
        allowed = np.where(np.arange(depth + 1)[:, None] <= most, costs[:, None], np.inf)
        at_least = np.minimum.accumulate(allowed[::-1], axis=0)[::-1]
        running, shorter, expected = np.ones(count), np.full(count, np.inf), np.zeros(count)
        for j in range(depth + 1):
            after = left_s[t + j + 1]
            value = np.minimum(shorter, at_least[j] + after)
            chance = running * np.where(j < most, 1.0 - ahead_a[t + j], 1.0)
            expected += np.where(j <= most, chance, 0.0) * np.where(j <= most, value, 0.0)
            shorter = np.minimum(shorter, allowed[j] + after)
            running *= ahead_a[t + j]
        left_s[t] = np.where(t < ends.lengths, expected, 0.0)
    return np.asarray(left_s[0], dtype=np.float64)


def best_lookups_time_s(offered: ArrayLike, matching: ArrayLike, ends: TextEnds, costs_s: ArrayLike) -> FloatArray:
    """Least seconds (N,) of each text for who knows what lookups offer and how much of that the text goes on with.

    offered, matching: (N, T) drafts of a round started at t, and those of them that are accepted. Errors as
    `best_by_start_time_s`.
    """
    most, run = whole_numbers("offered", offered, minimum=0), whole_numbers("matching", matching, minimum=0)
    if run.shape != most.shape:
        raise ValueError(f"matching: expected {most.shape}, as offered has, got shape {run.shape}")
    _, costs, left_s = _checked(np.zeros(most.shape), ends, costs_s)
    depth, text = costs.size - 1, np.arange(ends.lengths.size)
    for t in reversed(range(most.shape[1])):
        in_force = np.minimum(most[:, t], ends.limits - t - 1)
        best = costs[0] + left_s[t + 1]
        for k in range(1, depth + 1):
            value = costs[k] + left_s[t + np.minimum(k, run[:, t]) + 1, text]
            best = np.where(k <= in_force, np.minimum(best, value), best)
        left_s[t] = np.where(t < ends.lengths, best, 0.0)
    return np.asarray(left_s[0], dtype=np.float64)


def _checked(acceptance: ArrayLike, ends: TextEnds, costs_s: ArrayLike) -> tuple[FloatArray, FloatArray, FloatArray]:
    """a_t by position, zero beyond the texts so that no run leaves them, (T + D, N); costs (D + 1,); J = 0 of all."""
    costs = numbers("costs_s", costs_s)
    if costs.ndim != 1 or not costs.size:
        raise ValueError(f"costs_s: expected a list of seconds, of 0 … gamma_max drafts, got shape {costs.shape}")
    a = within_texts("acceptance", acceptance, ends.lengths)
    ahead_a = np.concatenate([a.T, np.zeros((costs.size - 1, ends.lengths.size))])
    return ahead_a, costs, np.zeros((len(ahead_a) + 1, ends.lengths.size))
