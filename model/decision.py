"""S(γ) with its doubt: from timing blocks and per-prompt acceptance to intervals, P(γ best) and a decision.

    S(γ) = Ω(γ) · T_decode / T_round(γ)
    T_round(γ) = C(γ) + π Δ₂ + T_verify(γ) + ε,     π = A_γ at B = 1, else 1 - (1 - A_γ)^B

Parts are medians, Ω and A_γ pooled ratios; each replicate draws the prompts once for all γ (and rules, and cells) and
the cell's blocks once for all arms (`specgauge.model.stats.bootstrap`). With ε None it counts as 0: S is then
optimistic.

    speculate           P(S > 1) >= .95 at the recommended γ
    do not speculate    P(max S > 1.01) <= .05
    undecided           otherwise, or when blocks or prompts are too few to tell

    s = speedup_replicates(parts_replicates(arms, gammas, draws), omega, full, gammas=gammas, batch_size=1)
    doubt = summarise(s, gammas)                     # .decision, .low, .high, .p_best, .expected_loss

R replicates (rows 1 … R; row 0 is the estimate), G gammas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.arms import verify_arm
from specgauge.model.checks import FloatArray, IntArray, numbers, whole_numbers
from specgauge.model.speedup import best_gamma, recommended_gamma
from specgauge.model.stats.bootstrap import Blocks, median_replicates, percentile_interval

Decision = Literal["speculate", "do not speculate", "undecided"]

PAYS_AT_LEAST = 0.95
PAYS_AT_MOST = 0.05
WORTHWHILE_SPEEDUP = 1.01


@dataclass(frozen=True, kw_only=True)
class PartReplicates:
    """The parts of a round in seconds, estimate and replicates."""

    t_decode_s: FloatArray
    """(1 + R,) one target forward of one token."""
    t_draft_total_s: FloatArray
    """(1 + R, G) C(γ)."""
    t_verify_s: FloatArray
    """(1 + R, G) T_verify(γ)."""
    t_draft_catch_up_s: FloatArray | None
    """(1 + R,) Δ₂; None when not measured, then left out."""


@dataclass(frozen=True, kw_only=True)
class SpeedupDoubt:
    """The answer for one cell, setting and rule. Probabilities and intervals are None when the doubt is unknown."""

    gammas: IntArray
    """(G,) the candidates."""
    speedup: FloatArray
    """(G,) S from all samples."""
    low: FloatArray | None
    """(G,) lower end of the central interval."""
    high: FloatArray | None
    """(G,) upper end."""
    p_best: FloatArray | None
    """(G,) P(this γ has the largest S of the candidates); the smallest among equals."""
    expected_loss: FloatArray | None
    """(G,) expected share of the best speed-up lost by choosing this γ: E[1 - S(γ) / max S]."""
    p_pays: FloatArray | None
    """(G,) P(S > 1)."""
    p_any_worthwhile: float | None
    """P(max S > 1.01)."""
    best_gamma: int
    """The argmax of S."""
    recommended_gamma: int
    """The smallest γ within 1 % of it."""
    decision: Decision
    reason: str
    """One line: the probability the decision rests on."""


def parts_replicates(arms: Mapping[str, Blocks], gammas: Sequence[int], draws: FloatArray) -> PartReplicates:
    """Medians of a cell's arms, all from the same block draws (R, blocks).

    arms: samples in seconds by block under the journal's names: "decode", "verify:<γ>", "draft" (each sample the
    cumulative marks C(1) … C(γ_max) of a chain) and, if measured, "draft_catch_up" (a first step that feeds two tokens;
    Δ₂ is its median less that of C(1)). Arms may have different numbers of blocks and of samples in them.
    Raises ValueError for a missing arm and for a γ beyond the measured chain.
    """
    drafts = whole_numbers("gammas", list(gammas), minimum=1)
    needed = ["decode", "draft", *(verify_arm(gamma) for gamma in drafts)]
    missing = [arm for arm in needed if arm not in arms]
    if missing:
        raise ValueError(
            f"arms: found no {missing[0]!r} among {', '.join(sorted(arms)) or 'none'}; leave its gamma out"
        )
    chain = median_replicates(arms["draft"], draws, "draft")
    if chain.ndim != 2 or int(drafts.max()) > chain.shape[1]:
        marks = chain.shape[1] if chain.ndim == 2 else 0
        raise ValueError(f"arms: found {marks} marks in 'draft' for gamma {drafts.max()}; allowed is at least gamma")
    catch_up = arms.get("draft_catch_up")
    return PartReplicates(
        t_decode_s=median_replicates(arms["decode"], draws, "decode"),
        t_draft_total_s=chain[:, drafts - 1],
        t_verify_s=np.stack(
            [median_replicates(arms[arm], draws, arm) for arm in map(verify_arm, drafts.tolist())], axis=1
        ),
        t_draft_catch_up_s=None
        if catch_up is None
        else median_replicates(catch_up, draws, "draft_catch_up") - chain[:, 0],
    )


def round_time_replicates_s(
    parts: PartReplicates, full_acceptance: ArrayLike, *, batch_size: int, t_overhead_s: ArrayLike | None = None
) -> FloatArray:
    """T_round by γ, (1 + R, G).

    full_acceptance: (1 + R, G) A_γ as measured at that γ; clipped to [0, 1]. t_overhead_s: ε, one number, (G,) or
    (1 + R, G); None counts as 0. Raises ValueError when a round takes no time.
    """
    rows = int(whole_numbers("batch_size", batch_size, minimum=1))
    round_s = parts.t_draft_total_s + parts.t_verify_s
    if parts.t_draft_catch_up_s is not None:
        full = np.clip(np.asarray(full_acceptance, dtype=np.float64), 0.0, 1.0)
        follows = full if rows == 1 else 1.0 - (1.0 - full) ** rows
        round_s = round_s + follows * parts.t_draft_catch_up_s[:, None]
    if t_overhead_s is not None:
        round_s = round_s + numbers("t_overhead_s", t_overhead_s)
    if bool((round_s <= 0).any()):
        raise ValueError("t_round_s: found a round of no time; allowed are parts and an overhead that add up to over 0")
    return round_s


def speedup_replicates(
    parts: PartReplicates,
    tokens_per_round: ArrayLike,
    full_acceptance: ArrayLike,
    *,
    gammas: Sequence[int],
    batch_size: int,
    t_overhead_s: ArrayLike | None = None,
) -> FloatArray:
    """S by γ, (1 + R, G), from Ω and A_γ (1 + R, G) of `ratio_replicates`; Ω is kept within [1, γ + 1].

    Raises ValueError as `round_time_replicates_s` does.
    """
    omega = np.clip(np.asarray(tokens_per_round, dtype=np.float64), 1.0, np.asarray(gammas) + 1.0)
    round_s = round_time_replicates_s(parts, full_acceptance, batch_size=batch_size, t_overhead_s=t_overhead_s)
    return np.asarray(omega * parts.t_decode_s[:, None] / round_s, dtype=np.float64)


def summarise(
    speedups: ArrayLike,
    gammas: Sequence[int],
    *,
    confidence: float = 0.9,
    allowed: ArrayLike | None = None,
) -> SpeedupDoubt:
    """Intervals, probabilities and the decision from S (1 + R, G).

    allowed: (G,) mask of γ that latency and memory limits leave; the others compete for nothing (P(best) 0) but keep
    their intervals. Raises ValueError for shapes that do not fit and for an unknown S in row 0.
    """
    values = np.asarray(speedups, dtype=np.float64)
    candidates = whole_numbers("gammas", list(gammas), minimum=1)
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1:] != candidates.shape:
        raise ValueError(f"speedups: found shape {values.shape}; allowed is (1 + replicates, {candidates.size})")
    if not np.isfinite(values[0]).all():
        raise ValueError("speedups: found an unknown S in the estimate; leave gammas without tokens per round out")
    mask = np.ones(candidates.shape, dtype=np.bool_) if allowed is None else np.asarray(allowed, dtype=np.bool_)
    estimate, drawn = values[0], values[1:]
    best, recommended = (int(choose(estimate, candidates, mask)) for choose in (best_gamma, recommended_gamma))
    known = bool(np.isfinite(drawn).all())
    if not (known and mask.any()):
        reason = "no gamma keeps the limits" if not mask.any() else "one block or one prompt says nothing about others"
        low, high = percentile_interval(drawn, confidence) if known else (None, None)
        return SpeedupDoubt(
            gammas=candidates, speedup=estimate, low=low, high=high, p_best=None, expected_loss=None, p_pays=None,
            p_any_worthwhile=None, best_gamma=best, recommended_gamma=recommended, reason=reason,
            decision="undecided" if mask.any() else "do not speculate",
        )  # fmt: skip
    low, high = percentile_interval(drawn, confidence)
    competing = np.where(mask, drawn, -np.inf)
    top = competing.max(axis=1)
    p_pays = (drawn > 1.0).mean(axis=0)
    p_any = float((top > WORTHWHILE_SPEEDUP).mean())
    decision, reason = _decide(float(p_pays[candidates == recommended][0]), p_any, recommended)
    return SpeedupDoubt(
        gammas=candidates,
        speedup=estimate,
        low=low,
        high=high,
        p_best=np.bincount(competing.argmax(axis=1), minlength=candidates.size) / drawn.shape[0],
        expected_loss=1.0 - (drawn / top[:, None]).mean(axis=0),
        p_pays=p_pays,
        p_any_worthwhile=p_any,
        best_gamma=best,
        recommended_gamma=recommended,
        decision=decision,
        reason=reason,
    )


def _decide(p_pays: float, p_any_worthwhile: float, gamma: int) -> tuple[Decision, str]:
    if p_pays >= PAYS_AT_LEAST:
        return "speculate", f"P(S > 1) = {p_pays:.3f} at gamma {gamma}"
    if p_any_worthwhile <= PAYS_AT_MOST:
        return "do not speculate", f"P(max S > {WORTHWHILE_SPEEDUP}) = {p_any_worthwhile:.3f}"
    return (
        "undecided",
        f"P(S > 1) = {p_pays:.3f} at gamma {gamma} is under {PAYS_AT_LEAST}, "
        f"P(max S > {WORTHWHILE_SPEEDUP}) = {p_any_worthwhile:.3f} over {PAYS_AT_MOST}",
    )
