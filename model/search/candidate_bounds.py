"""Where every γ of a search stands: S by γ at the cell's levels, how far apart two of them are, and upper bounds.

    log S(γ) = log Ω(γ) + log T_decode − log R(γ),    R(γ) = C(γ) + π Δ₂ + V(γ),    V(γ) = Σ_k w[γ, k] T_verify(k)

w is 1 at k = γ where a model drafts; lookups may verify fewer (`specgauge.model.acceptance.lookups`). γ = 0 is plain
decoding, T_verify(0) = T_decode. Where T_verify(k) was not measured, the largest measured g < k bounds it from below,
since a forward of more tokens takes no less time: S(γ) is then an upper bound. The difference of two log S is a
contrast of arm levels (`specgauge.model.search.levels`): what both rounds share, and the machine's pace, cancel.

G gammas, J = 1 + G candidates with plain decoding first, A arms, D gamma_max.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specgauge.model.acceptance.lookups import widest_share
from specgauge.model.arms import verify_arm
from specgauge.model.checks import BoolArray, FloatArray, IntArray
from specgauge.model.search.levels import ArmLevels
from specgauge.model.speedup import catch_up_probability, round_time_s, speedup


@dataclass(frozen=True, kw_only=True)
class SearchQuestion:
    """What one way of sampling and judging drafts asks of a cell: its acceptance, which no timing changes."""

    tokens_per_round: FloatArray
    """(1 + R, G) Ω, the estimate first; NaN where it is not known, and then γ takes no part."""
    full_acceptance: FloatArray
    """(G,) A_γ."""
    draft_shares: FloatArray | None = None
    """(G, D + 1) P(a round of one row verifies k drafts); None where every round verifies γ."""
    words: str = ""
    """Names the way, where there are several."""

    def log_tokens(self, gammas: Sequence[int]) -> FloatArray:
        """(1 + R, J) logarithms of Ω; −∞ where it is not known."""
        omega = np.clip(self.tokens_per_round, 1.0, np.asarray(gammas) + 1.0)
        logs = np.where(np.isfinite(omega), np.log(np.where(np.isfinite(omega), omega, 1.0)), -np.inf)
        return np.concatenate([np.zeros((logs.shape[0], 1)), logs], axis=1)


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Every candidate under one question."""

    candidates: IntArray
    """(J,) 0 and the gammas."""
    log_speedup: FloatArray
    """(J,) estimates where measured, upper bounds elsewhere."""
    predicted: FloatArray
    """(J,) log S with T_verify on lines through what was measured: a guess to choose the next γ by."""
    measured: BoolArray
    """(J,) whether every part of the round was."""
    log_tokens: FloatArray
    """(1 + R, J)."""
    gradient: FloatArray
    """(J, A) of log R by the levels of the arms; rows add up to 1."""
    mark_gradient: FloatArray
    """(J, D) of log R by the logarithms of the shares of the draft chain."""
    levels: ArmLevels

    def gaps(self, other: int) -> FloatArray:
        """(J,) log S of every candidate over that at place `other`."""
        return np.asarray(self.log_speedup - self.log_speedup[other], dtype=np.float64)

    def standard_errors(self, other: int) -> FloatArray:
        """(J,) of `gaps`, by the timings alone; infinite where the blocks do not tell."""
        timing = self.levels.variance(self.gradient - self.gradient[other])
        marks = self.mark_gradient - self.mark_gradient[other]
        shape = np.einsum("jd,de,je->j", marks, self.levels.share_covariance["draft"], marks)
        return np.asarray(np.sqrt(timing + np.maximum(shape, 0.0)), dtype=np.float64)

    def acceptance_excess(self, other: int, confidence: float) -> FloatArray:
        """(J,) how much larger than estimated log Ω over that at `other` may be; 0 without replicates."""
        with np.errstate(invalid="ignore"):  # a draw of prompts without a start, under both
            ratios = self.log_tokens - self.log_tokens[:, [other]]
        if ratios.shape[0] < 3 or not np.isfinite(ratios[:, self.candidates > 0]).any():
            return np.zeros(self.candidates.size)
        known = np.isfinite(ratios).all(axis=0)
        high = np.quantile(ratios[1:][:, known], confidence, axis=0)
        excess = np.zeros(self.candidates.size)
        excess[known] = np.maximum(high - ratios[0, known], 0.0)
        return excess


def stand(
    levels: ArmLevels, question: SearchQuestion, gammas: Sequence[int], *, batch_size: int, catches_up: bool
) -> Standing:
    """Where the candidates stand; `levels` has decode, draft and, where it catches up, draft_catch_up."""
    candidates = np.array([0, *gammas])
    arms = ["decode", *(verify_arm(gamma) for gamma in gammas)]
    timed = np.array([arm in levels.index for arm in arms])
    columns = [levels.index[arm] for arm, is_timed in zip(arms, timed, strict=True) if is_timed]
    times_s = np.exp(levels.log_s[columns])
    widths = _drafts_verified(question, gammas, batch_size)
    below, line = _floors(candidates[timed], widths.shape[1]), _lines(candidates[timed], widths.shape[1])
    verified = np.where(timed[:, None], widths @ line, widths @ below)
    chain_s = np.concatenate([[0.0], levels.marks_s("draft")[np.asarray(gammas) - 1]])
    follows = np.concatenate([[0.0], catch_up_probability(_filled(question.full_acceptance), batch_size)])
    catch_up_s = levels.seconds("draft_catch_up") - levels.marks_s("draft")[0] if catches_up else 0.0
    follows = follows if catch_up_s > 0 else np.zeros_like(follows)

    log_tokens = question.log_tokens(gammas)

    def round_s(verify_s: FloatArray) -> FloatArray:
        return round_time_s(t_draft_total_s=chain_s + follows * catch_up_s, t_verify_s=verify_s)

    def log_speedup(t_round_s: FloatArray) -> FloatArray:
        return np.asarray(log_tokens[0] + np.log(speedup(1.0, t_decode_s=times_s[0], t_round_s=t_round_s)))

    bounded_s = round_s(verified @ times_s)
    gradient = np.zeros((candidates.size, len(levels.arms)))
    gradient[:, columns] = verified * times_s
    mark_gradient = np.zeros((candidates.size, levels.shares["draft"].size))
    mark_gradient[np.arange(1, candidates.size), np.asarray(gammas) - 1] = chain_s[1:]
    if catches_up:
        gradient[:, levels.index["draft_catch_up"]] = follows * levels.seconds("draft_catch_up")
        mark_gradient[:, 0] -= follows * levels.marks_s("draft")[0]
    gradient[:, levels.index["draft"]] = mark_gradient.sum(axis=1)
    return Standing(
        candidates=candidates,
        log_speedup=log_speedup(bounded_s),
        predicted=log_speedup(round_s(widths @ _beyond(candidates[timed], times_s, widths.shape[1]))),
        measured=timed & np.isfinite(log_tokens[0]),
        log_tokens=log_tokens,
        gradient=gradient / bounded_s[:, None],
        mark_gradient=mark_gradient / bounded_s[:, None],
        levels=levels,
    )


def _filled(full_acceptance: FloatArray) -> FloatArray:
    return np.clip(np.nan_to_num(full_acceptance), 0.0, 1.0)


def _drafts_verified(question: SearchQuestion, gammas: Sequence[int], batch_size: int) -> FloatArray:
    """(J, D + 1) P(a round verifies k drafts), plain decoding first."""
    deepest = max(gammas)
    found = np.zeros((len(gammas) + 1, deepest + 1))
    found[0, 0] = 1.0
    if question.draft_shares is None:
        found[np.arange(1, len(gammas) + 1), list(gammas)] = 1.0
    else:
        found[1:] = widest_share(np.nan_to_num(question.draft_shares), batch_size)
    return found


def _floors(measured: IntArray, width: int) -> FloatArray:
    """(width, M) which measured time bounds that of k drafts from below: its own, or the next smaller one's."""
    below = np.searchsorted(measured, np.arange(width), side="right") - 1
    return np.eye(measured.size)[below]


def _lines(measured: IntArray, width: int) -> FloatArray:
    """(width, M) shares of the measured times on whose line that of k drafts lies; the last one's beyond it."""
    drafts = np.arange(width)
    above = np.clip(np.searchsorted(measured, drafts), 1, max(measured.size - 1, 1))
    if measured.size == 1:
        return np.ones((width, 1))
    share = np.clip((drafts - measured[above - 1]) / (measured[above] - measured[above - 1]), 0.0, 1.0)
    return np.asarray(
        np.eye(measured.size)[above - 1] * (1 - share)[:, None] + np.eye(measured.size)[above] * share[:, None],
        dtype=np.float64,
    )


def _beyond(measured: IntArray, times_s: FloatArray, width: int) -> FloatArray:
    """(width,) seconds on the lines through the measured times, the last line going on beyond them, never downwards."""
    seconds = _lines(measured, width) @ times_s
    if measured.size > 1:
        slope = max(0.0, (times_s[-1] - times_s[-2]) / (measured[-1] - measured[-2]))
        seconds = seconds + slope * np.maximum(np.arange(width) - measured[-1], 0)
    return np.asarray(seconds, dtype=np.float64)
