"""The renewal pass of rounds whose drafts depend on where the round started: lookups.

A lookup matches the text before the start t and goes on from there, so survival is given by start: A[t, j] = P(the
first j drafts of a round that started at t are all accepted | text). It may offer fewer drafts than asked for, L_t:

    k_t = min(γ, L_t, positions left before the limit - 1)     drafts in force; k_t = 0 is a plain step
    v_{t+j+1} += v_t (A[t, j] - A[t, j+1])   for j < k_t,      v_{t+k_t+1} += v_t A[t, k_t],      v_0 = 1

Sums, window and rules are those of `specgauge.model.acceptance.renewal`, to which this is equal where A[t, j] = Π a and
L_t = γ_max; rounds from the window come back by the drafts they verify, since T_round depends on those. Ã[t, j], whose
mean is that of A[t, j], may have less variance.

    result = renewal_by_start(survival, ahead, offered, lengths, ended_by_eos, gammas=[1, 2, 4], gamma_max=4)
    result.tokens_per_round(), result.rounds_by_drafts.sum(axis=0)          # Ω by γ; rounds by γ and drafts

N texts, T positions, G gammas, D gamma_max.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import RenewalResult, TextEnds, gamma_axis, lost_bonus, sums_by_text, text_ends
from specgauge.model.checks import FloatArray, IntArray, probabilities, whole_numbers


@dataclass(frozen=True, kw_only=True)
class _Starts:
    """n texts, cut to their longest, seen from where rounds may start."""

    ends: TextEnds
    survival: FloatArray
    """(n, T, D + 1) A[t, j] for j = 0 … D; 1 at j = 0, and 0 where it leaves the text."""
    ahead: FloatArray
    """(n, T, D) Ã[t, j] for j = 1 … D, alike."""
    offered: IntArray
    """(n, T) L_t."""

    @property
    def in_force(self) -> IntArray:
        """(n, T) drafts in force at the largest gamma: L_t, less before a length limit."""
        left = self.ends.limits[:, None] - np.arange(self.offered.shape[1])
        return np.asarray(np.clip(np.minimum(self.offered, left - 1), 0, None), dtype=np.int64)


def renewal_by_start(
    survival: ArrayLike,
    ahead: ArrayLike,
    offered: ArrayLike,
    lengths: ArrayLike,
    ended_by_eos: ArrayLike,
    gammas: ArrayLike,
    gamma_max: int,
    *,
    length_limits: ArrayLike | None = None,
) -> RenewalResult:
    """Carry the renewal process along N texts for every γ, survival given by start; sums come back per text.

    Args:
        survival: (N, T, D) A[t, j] for j = 1 … D = gamma_max, given the text; never rising in j. What lies beyond a
            text's end is not read.
        ahead: (N, T, D) Ã[t, j], of the same mean; `survival` itself where there is nothing better.
        offered: (N, T) drafts that a round started at t would get if γ and limits allowed, 0 … D.
        lengths, ended_by_eos, gammas, gamma_max, length_limits: as `renewal` takes them.

    Raises:
        ValueError: shapes that do not fit, values outside [0, 1] or rising in j, drafts outside 0 … D, a γ over
            gamma_max, or a limit under a length.
    """
    drafts, depth = gamma_axis(gammas, gamma_max)
    given, better = np.asarray(survival, dtype=np.float64), np.asarray(ahead, dtype=np.float64)
    if given.ndim != 3 or given.shape[2] != depth or better.shape != given.shape:
        raise ValueError(
            f"survival: expected two of (N, T, {depth}), one entry for each of 1 … gamma_max drafts, got shapes "
            f"survival {given.shape} and ahead {better.shape}"
        )
    ends = text_ends(given.shape[:2], lengths, ended_by_eos, length_limits)
    place = np.arange(given.shape[1])[:, None] + np.arange(1, depth + 1)
    within = place <= ends.lengths[:, None, None]
    runs = probabilities("survival", np.where(within, given, 0.0))
    if bool((np.diff(runs, axis=2) > 0).any()):
        raise ValueError("survival: expected rates that never do, got rates that rise with the number of drafts")
    found = whole_numbers("offered", offered, minimum=0)
    if found.shape != given.shape[:2] or bool((found > depth).any()):
        raise ValueError(
            f"offered: expected {given.shape[:2]} numbers from 0 to gamma_max = {depth}, got shape {found.shape}, up "
            f"to {found.max(initial=0)} drafts"
        )
    whole = _Starts(
        ends=ends,
        survival=np.concatenate([np.ones((*runs.shape[:2], 1)), runs], axis=2),
        ahead=probabilities("ahead", np.where(within, better, 0.0)),
        offered=found,
    )

    def sums(rows: IntArray, longest: int) -> dict[str, FloatArray]:
        return _sums(
            _Starts(
                ends=ends.of_rows(rows),
                survival=whole.survival[rows, :longest],
                ahead=whole.ahead[rows, :longest],
                offered=whole.offered[rows, :longest],
            ),
            drafts,
        )

    by_text = sums_by_text(ends.lengths, given.shape[1] * (drafts.size + 2) * (depth + 1), sums)
    return RenewalResult(gammas=drafts, gamma_max=depth, tokens=ends.lengths, time_s=None, **by_text)


def _start_chances(starts: _Starts, gammas: IntArray) -> FloatArray:
    """v_t, (n, G, T), zero beyond each text."""
    count, longest, width = starts.survival.shape
    chances = np.zeros((count, gammas.size, longest + width))
    chances[:, :, :1] = 1.0
    in_force = starts.in_force
    drafts = np.arange(width)
    for t in range(longest):
        in_reach = drafts <= np.minimum(in_force[:, t, None], gammas)[:, :, None]
        runs = np.where(in_reach, starts.survival[:, t, None, :], 0.0)
        ends = runs.copy()
        ends[:, :, :-1] -= runs[:, :, 1:]
        chances[:, :, t + 1 : t + 1 + width] += chances[:, :, t, None] * ends
    return np.where(starts.ends.inside(longest)[:, None, :], chances[:, :, :longest], 0.0)


def _sums(starts: _Starts, gammas: IntArray) -> dict[str, FloatArray]:
    """Every per-text sum of `RenewalResult`, (n, G) or (n, G, …)."""
    ends, depth = starts.ends, starts.ahead.shape[2]
    chances = _start_chances(starts, gammas)
    place = np.arange(chances.shape[2])
    windowed = chances * (place + depth <= ends.limits[:, None])[:, None, :]
    step = np.arange(1, depth + 1)
    asked = step <= gammas[:, None]
    drafted = np.arange(depth + 1) <= starts.offered[:, :, None]
    tested = (step <= starts.in_force[:, :, None]) & (place[:, None] + step <= ends.lengths[:, None, None])

    def over(weights: FloatArray, values: FloatArray) -> FloatArray:
        """Σ_t of (n, G, T) weights and (n, T, D) values, at the drafts that γ asks for: (n, G, D)."""
        return np.asarray(np.where(asked, weights @ values, 0.0), dtype=np.float64)

    sums = {
        "rounds": chances.sum(axis=2),
        "starts": windowed.sum(axis=2),
        "survival": over(windowed, np.where(drafted[:, :, 1:], starts.ahead, 0.0)),
        "tested": over(chances, np.where(tested, starts.survival[:, :, :-1], 0.0)).sum(axis=2),
        "accepted": over(chances, np.where(tested, starts.survival[:, :, 1:], 0.0)).sum(axis=2),
        "tested_overlap": over(chances, np.where(tested, starts.ahead, 0.0)).sum(axis=2),
        "lost_bonus": lost_bonus(windowed, np.where(drafted, starts.survival, 0.0), ends, gammas),
    }
    by_gamma = [_sums_of_gamma(starts, chances[:, g], windowed[:, g], int(gamma)) for g, gamma in enumerate(gammas)]
    return sums | {name: np.stack([one[name] for one in by_gamma], axis=1) for name in by_gamma[0]}


def _sums_of_gamma(starts: _Starts, chances: FloatArray, windowed: FloatArray, gamma: int) -> dict[str, FloatArray]:
    """What depends on the drafts in force, at one γ: chances and windowed are (n, T)."""
    drafts = np.minimum(starts.in_force, gamma)
    in_window = np.minimum(starts.offered, gamma)
    rows, place = np.arange(drafts.shape[0])[:, None], np.arange(drafts.shape[1])
    after = place + drafts + 1
    goes_on = (drafts > 0) & (after < starts.ends.lengths[:, None])
    goes_on &= drafts[rows, np.minimum(after, drafts.shape[1] - 1)] > 0
    full = chances * starts.survival[rows, place, drafts]
    by_drafts = [np.where(in_window == k, windowed, 0.0).sum(axis=1) for k in range(starts.survival.shape[2])]
    return {
        "catch_ups": np.where(goes_on, full, 0.0).sum(axis=1),
        "rounds_by_drafts": np.stack(by_drafts, axis=1),
    }
