"""How far any adaptive choice of γ can go on recorded texts: two bounds by backward dynamic programming (design 3.2).

Who knows a_t and picks the best γ at every round's start; no policy that fixes γ before it drafts can beat it:

    J(t) = min_g [ T_round(g, t) + Σ_{j<g} P(run = j) J(t + j + 1) + P(run >= g) J(t + g + 1) ]

Who knows, besides, how many drafts would be accepted in a row (the run) before drafting; it bounds policies that stop
while drafting as well:

    J(t) = Σ_j P(run = j) · min_g [ T_round(g, t) + J(t + min(g, j) + 1) ]

(drafting beyond the run is only worth it where a longer round is cheaper, so for costs that rise with g the minimum is
over g <= j). J = 0 where the text has ended. g is at most the positions left before the length limit minus 1, an EOS is
not foreseen, and an accepted EOS ends the text. Both are exact expectations given the texts:

    run oracle <= best by start <= best fixed γ <= plain decoding        in expected seconds, text by text

Of a lookup everything is known with its start, and the two are one (`best_lookups_time_s`):

    J(t) = min_k [ T_round(k, t) + J(t + min(k, matching_t) + 1) ],     k at most what is offered at t

N texts, T positions, D gamma_max.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import JudgedTexts, judged_texts, round_costs_s
from specgauge.model.checks import FloatArray, IntArray, whole_numbers


@dataclass(frozen=True, kw_only=True)
class BestByStart:
    """The best γ at every place a round may start, for someone who knows a_t."""

    time_s: FloatArray
    """(N,) expected seconds of each text under that choice."""
    gammas: IntArray
    """(N, T) the choice for a round that starts there, the smallest among equals; 0 beyond the text."""


def best_gamma_by_start(
    acceptance: ArrayLike,
    lengths: ArrayLike,
    ended_by_eos: ArrayLike,
    gamma_max: int,
    costs_s: ArrayLike,
    *,
    length_limits: ArrayLike | None = None,
) -> BestByStart:
    """The lower bound of expected time for policies that fix γ at each round's start, and the choice that reaches it.

    Args:
        acceptance: (N, T) a_t, padded, nulls filled.
        lengths: (N,) positions of each text.
        ended_by_eos: (N,) True where the last position is an end-of-text token.
        gamma_max: D, the largest γ to choose from; 0 (plain decoding) is always allowed.
        costs_s: seconds of a round by drafts in force and place, (D + 1,), (D + 1, T) or (D + 1, N, T).
        length_limits: as in `specgauge.model.acceptance.renewal.renewal`.

    Raises ValueError as `renewal` does.
    """
    texts, costs, depth = _checked(acceptance, lengths, ended_by_eos, gamma_max, costs_s, length_limits)
    count, longest = texts.acceptance.shape
    ahead_a = _time_major(texts.acceptance, depth)
    left_s = np.zeros((longest + depth + 1, count))
    gammas = np.zeros((longest, count), dtype=np.int64)
    for t in range(longest - 1, -1, -1):
        running, ended_s, best = np.ones(count), np.zeros(count), np.full(count, np.inf)
        for g in range(depth + 1):
            value = costs[g, :, t] + ended_s + running * left_s[t + g + 1]
            better = (value < best) & (g < texts.limits - t)
            np.copyto(best, value, where=better)
            gammas[t, better] = g
            ended_s += running * (1.0 - ahead_a[t + g]) * left_s[t + g + 1]
            running *= ahead_a[t + g]
        left_s[t] = np.where(t < texts.lengths, best, 0.0)
    gammas[np.arange(longest)[:, None] >= texts.lengths] = 0
    return BestByStart(time_s=left_s[0], gammas=gammas.T)


def run_oracle_time_s(
    acceptance: ArrayLike,
    lengths: ArrayLike,
    ended_by_eos: ArrayLike,
    gamma_max: int,
    costs_s: ArrayLike,
    *,
    length_limits: ArrayLike | None = None,
) -> FloatArray:
    """Expected seconds (N,) of who knows each run before drafting: below policies that stop while drafting as well.

    Arguments and errors as `best_gamma_by_start`.
    """
    texts, costs, depth = _checked(acceptance, lengths, ended_by_eos, gamma_max, costs_s, length_limits)
    count, longest = texts.acceptance.shape
    ahead_a = _time_major(texts.acceptance, depth)
    left_s = np.zeros((longest + depth + 1, count))
    for t in range(longest - 1, -1, -1):
        most = np.minimum(depth, texts.limits - t - 1)
        allowed = np.where(np.arange(depth + 1)[:, None] <= most, costs[:, :, t], np.inf)
        at_least = np.minimum.accumulate(allowed[::-1], axis=0)[::-1]
        running, shorter, expected = np.ones(count), np.full(count, np.inf), np.zeros(count)
        for j in range(depth + 1):
            after = left_s[t + j + 1]
            value = np.minimum(shorter, at_least[j] + after)
            chance = running * np.where(j < most, 1.0 - ahead_a[t + j], 1.0)
            expected += np.where(j <= most, chance, 0.0) * np.where(j <= most, value, 0.0)
            shorter = np.minimum(shorter, allowed[j] + after)
            running *= ahead_a[t + j]
        left_s[t] = np.where(t < texts.lengths, expected, 0.0)
    return np.asarray(left_s[0], dtype=np.float64)


def best_lookups_time_s(
    offered: ArrayLike,
    matching: ArrayLike,
    lengths: ArrayLike,
    ended_by_eos: ArrayLike,
    gamma_max: int,
    costs_s: ArrayLike,
    *,
    length_limits: ArrayLike | None = None,
) -> FloatArray:
    """Least seconds (N,) of each text for who knows what lookups offer and how much of that the text goes on with.

    offered, matching: (N, T) drafts of a round started at t, and those of them that are accepted. Other arguments and
    errors as `best_gamma_by_start`.
    """
    most, run = whole_numbers("offered", offered, minimum=0), whole_numbers("matching", matching, minimum=0)
    nothing = np.zeros(most.shape)
    texts, costs, depth = _checked(nothing, lengths, ended_by_eos, gamma_max, costs_s, length_limits)
    if run.shape != most.shape:
        raise ValueError(f"matching: found shape {run.shape}; allowed is {most.shape}, as offered has")
    count, longest = texts.acceptance.shape
    left_s = np.zeros((longest + depth + 1, count))
    text = np.arange(count)
    for t in range(longest - 1, -1, -1):
        in_force = np.minimum(most[:, t], texts.limits - t - 1)
        best = costs[0, :, t] + left_s[t + 1]
        for k in range(1, depth + 1):
            value = costs[k, :, t] + left_s[t + np.minimum(k, run[:, t]) + 1, text]
            best = np.where(k <= in_force, np.minimum(best, value), best)
        left_s[t] = np.where(t < texts.lengths, best, 0.0)
    return np.asarray(left_s[0], dtype=np.float64)


def _checked(
    acceptance: ArrayLike,
    lengths: ArrayLike,
    ended_by_eos: ArrayLike,
    gamma_max: int,
    costs_s: ArrayLike,
    length_limits: ArrayLike | None,
) -> tuple[JudgedTexts, FloatArray, int]:
    depth = int(whole_numbers("gamma_max", gamma_max, minimum=0))
    texts = judged_texts(acceptance, lengths, ended_by_eos, length_limits)
    return texts, round_costs_s(costs_s, depth, texts.acceptance.shape), depth


def _time_major(acceptance: FloatArray, depth: int) -> FloatArray:
    """(T + D, N): a_t by position, zero beyond the texts, so that no run leaves them."""
    return np.concatenate([acceptance.T, np.zeros((depth, acceptance.shape[0]))])
