"""Whether to speculate, and with which gamma: S(gamma) with its uncertainty, from costs and acceptance.

    S(gamma)            `specgauge.model.speedup.speedups`, for the estimate (row 0) and for every bootstrap replicate
    speculate           P(S > 1) >= .95 at the recommended gamma
    do not speculate    P(max S > 1.01) <= .05
    undecided           otherwise, or when blocks or prompts are too few to tell

Each replicate draws the prompts once for all gammas (and rules, and cells) and the cell's blocks once for all arms
(`specgauge.model.stats.bootstrap`).  Without a measured epsilon S is optimistic.

    found = estimate_speedup(costs_from_blocks(blocks, gammas, draws), acceptance, batch_size=1)
    found.decision.verdict, found.low, found.high, found.p_best, found.expected_loss

R replicates (rows 1 … R; row 0 is the estimate), G gammas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.arms import verify_arm
from specgauge.model.checks import FloatArray, IntArray, whole_numbers
from specgauge.model.costs import RoundCosts
from specgauge.model.settings import Provenance
from specgauge.model.speedup import best_gamma, recommended_gamma, round_times_s, speedups, within_limits
from specgauge.model.stats.bootstrap import Blocks, median_replicates, percentile_interval

Verdict = Literal["speculate", "do not speculate", "undecided"]

OPTIMISTIC = "optimistic: overhead not measured"
"""The label of a speed-up whose epsilon is unknown."""
PAYS_AT_LEAST = 0.95
PAYS_AT_MOST = 0.05
WORTHWHILE_SPEEDUP = 1.01


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, and why."""

    verdict: Verdict
    reason: str
    """One line: the probability the verdict rests on."""


@dataclass(frozen=True, kw_only=True)
class SpeedupEstimate:
    """S(gamma) of one point under one setting. Probabilities and intervals are None where nothing tells them."""

    gammas: IntArray
    """(G,) the candidates."""
    speedup: FloatArray
    """(G,) S from all samples."""
    replicates: FloatArray
    """(R, G) S of the replicates; R is 0 where there are none."""
    low: FloatArray | None
    """(G,) ends of the central interval."""
    high: FloatArray | None
    p_best: FloatArray | None
    """(G,) P(this gamma has the largest S of the candidates); the smallest among equals."""
    expected_loss: FloatArray | None
    """(G,) expected share of the best speed-up lost by choosing this gamma: E[1 - S(gamma) / max S]."""
    p_pays: FloatArray | None
    """(G,) P(S > 1)."""
    p_any_worthwhile: float | None
    """P(max S > 1.01)."""
    best_gamma: int
    """The argmax of S, then the smallest gamma within 1 % of it; 0 where no gamma keeps the limits."""
    recommended_gamma: int
    decision: Decision


def costs_from_blocks(arms: Mapping[str, Blocks], gammas: Sequence[int], draws: FloatArray) -> RoundCosts:
    """Medians of a cell's arms, (1 + R) leading rows, all from the same block draws (R, blocks).

    arms: samples in seconds by block under the journal's names: "decode", "verify:<gamma>", "draft" (each sample the
    cumulative marks C(1) … C(gamma_max) of a chain) and, if measured, "draft_catch_up" (a first step that feeds two
    tokens; Delta_2 is its median less that of C(1), and 0 where noise makes that negative: two tokens save nothing).
    Arms may have different numbers of blocks and of samples in them.

    Raises:
        ValueError: a missing arm, or a gamma beyond the measured chain.
    """
    drafts = whole_numbers("gammas", list(gammas), minimum=1)
    needed = ["decode", "draft", *(verify_arm(gamma) for gamma in drafts)]
    missing = [arm for arm in needed if arm not in arms]
    if missing:
        known = ", ".join(sorted(arms)) or "none"
        raise ValueError(f"arms: expected {missing[0]!r} among {known}; leave its gamma out")
    chain = median_replicates(arms["draft"], draws, "draft")
    if chain.ndim != 2 or int(drafts.max()) > chain.shape[1]:
        marks = chain.shape[1] if chain.ndim == 2 else 0
        raise ValueError(f"arms: expected at least {drafts.max()} marks in 'draft', as many as drafts, got {marks}")
    catch_up = None
    if "draft_catch_up" in arms:
        catch_up = np.maximum(median_replicates(arms["draft_catch_up"], draws, "draft_catch_up") - chain[:, 0], 0.0)
    verify = [median_replicates(arms[arm], draws, arm) for arm in map(verify_arm, drafts.tolist())]
    return RoundCosts(
        gammas=drafts,
        t_decode_s=median_replicates(arms["decode"], draws, "decode"),
        t_draft_total_s=chain[:, drafts - 1],
        t_verify_s=np.stack(verify, axis=1),
        t_draft_catch_up_s=catch_up,
        provenance=np.full(drafts.size, int(Provenance.MEASURED)),
    )


def estimate_speedup(
    costs: RoundCosts,
    acceptance: Acceptance,
    *,
    batch_size: int,
    confidence: float = 0.9,
    max_itl_s: float | None = None,
) -> SpeedupEstimate:
    """S(gamma), its uncertainty and the decision, from costs and acceptance of the same gammas, () or (1 + R) leading.

    max_itl_s bounds T_round of what may win: the tokens of a round arrive together.

    Raises:
        ValueError: a batch size below 1, a limit that is not above 0, a round that takes no time, or an unknown S.
    """
    t_round_s = np.atleast_2d(round_times_s(costs, acceptance, batch_size=batch_size))[0]
    return summarise(
        speedups(costs, acceptance, batch_size=batch_size),
        costs.gammas.tolist(),
        confidence=confidence,
        allowed=within_limits(t_round_s=t_round_s, max_itl_s=max_itl_s),
    )


def summarise(
    speedups: ArrayLike,
    gammas: Sequence[int],
    *,
    confidence: float = 0.9,
    allowed: ArrayLike | None = None,
) -> SpeedupEstimate:
    """Intervals, probabilities and the decision from S, (1 + R, G) or (G,).

    allowed: (G,) mask of gammas that latency and memory limits leave; the others compete for nothing (P(best) 0) but
    keep their intervals.

    Raises:
        ValueError: shapes that do not fit, or an unknown S in row 0.
    """
    values = np.atleast_2d(np.asarray(speedups, dtype=np.float64))
    candidates = whole_numbers("gammas", list(gammas), minimum=1)
    if values.ndim != 2 or values.shape[1:] != candidates.shape:
        raise ValueError(f"speedups: expected shape (1 + replicates, {candidates.size}), got {values.shape}")
    if not np.isfinite(values[0]).all():
        raise ValueError("speedups: got an unknown S in the estimate; leave gammas without tokens per round out")
    mask = np.ones(candidates.shape, dtype=np.bool_) if allowed is None else np.asarray(allowed, dtype=np.bool_)
    estimate, drawn = values[0], values[1:]
    best, recommended = (int(choose(estimate, candidates, mask)) for choose in (best_gamma, recommended_gamma))
    low = high = p_best = expected_loss = p_pays = p_any = None
    decision = Decision(verdict="undecided", reason="one block or one prompt says nothing about others")
    is_known = drawn.size > 0 and bool(np.isfinite(drawn).all())
    if is_known:
        low, high = percentile_interval(drawn, confidence)
    if not mask.any():
        decision = Decision(verdict="do not speculate", reason="no gamma keeps the limits")
    elif is_known:
        competing = np.where(mask, drawn, -np.inf)
        top = competing.max(axis=1)
        p_best = np.bincount(competing.argmax(axis=1), minlength=candidates.size) / drawn.shape[0]
        expected_loss = np.asarray(1.0 - (drawn / top[:, None]).mean(axis=0), dtype=np.float64)
        p_pays = np.asarray((drawn > 1.0).mean(axis=0), dtype=np.float64)
        p_any = float((top > WORTHWHILE_SPEEDUP).mean())
        decision = _decide(float(p_pays[candidates == recommended][0]), p_any, recommended)
    return SpeedupEstimate(
        gammas=candidates,
        speedup=estimate,
        replicates=drawn,
        low=low,
        high=high,
        p_best=p_best,
        expected_loss=expected_loss,
        p_pays=p_pays,
        p_any_worthwhile=p_any,
        best_gamma=best,
        recommended_gamma=recommended,
        decision=decision,
    )


def _decide(p_pays: float, p_any_worthwhile: float, gamma: int) -> Decision:
    if p_pays >= PAYS_AT_LEAST:
        return Decision(verdict="speculate", reason=f"P(S > 1) = {p_pays:.3f} at gamma {gamma}")
    worthwhile = f"P(max S > {WORTHWHILE_SPEEDUP}) = {p_any_worthwhile:.3f}"
    if p_any_worthwhile <= PAYS_AT_MOST:
        return Decision(verdict="do not speculate", reason=worthwhile)
    return Decision(
        verdict="undecided",
        reason=f"P(S > 1) = {p_pays:.3f} at gamma {gamma} is under {PAYS_AT_LEAST}, {worthwhile} over {PAYS_AT_MOST}",
    )
