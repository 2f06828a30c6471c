"""Whether to speculate, and with which gamma: one decision from what is predicted and what was measured.

    predicted           S(gamma) of `specgauge.model.speedup.speedups`, for the estimate (row 0) and each replicate
    measured            S decoded end to end, at the gammas it was decoded at
    combined            log S_p + w (log S_m - log S_p),    w = (v_p + tau^2) / (v_p + v_m + 2 tau^2)
    recommended gamma   the smallest within 1 % of the best, of those decoded end to end where one of them is
    speculate           P(S > 1) >= .95 at the recommended gamma
    do not speculate    P(max S > 1.01) <= .05
    undecided           otherwise, or when blocks or prompts are too few to tell

Prediction and measurement are two estimates of one number, with variances v_p and v_m on the log scale.  What they
differ by beyond those is a variance of either, tau^2 = max(0, (d^2 - v_p - v_m) / 2) (DerSimonian & Laird, Controlled
Clinical Trials 7 (1986), 177, for two studies), so that two figures that contradict each other leave little certain.
A gamma that was not decoded moves with the nearest one that was: what a model gets wrong, it gets wrong for both.
Both rest on the same prompts and machine.  What they share is in the variance of each, so that their covariance c is at
most the smaller one, which the combined interval takes it to be.  Where replicates were drawn together, they tell c:

    w = (v_p - c + tau^2) / (v_d + 2 tau^2),    v_d = v_p + v_m - 2 c,    tau^2 = max(0, (d^2 - v_d) / 2)

so that a measurement in the very blocks that the prediction is made of adds nothing, unless it contradicts it.

Each replicate draws the prompts once for all gammas (and rules, and cells) and the cell's blocks once for all arms
(`specgauge.model.stats.bootstrap`).  Without a measured epsilon the prediction is optimistic.

    found = estimate_speedup(costs_from_blocks(blocks, gammas, draws), acceptance, batch_size=1, measured={4: s})
    found.decision.verdict, found.low, found.high, found.p_best, found.expected_loss

R replicates (rows 1 … R; row 0 is the estimate), G gammas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.arms import verify_arm
from specgauge.model.checks import BoolArray, FloatArray, IntArray, whole_numbers
from specgauge.model.costs import RoundCosts, measured_costs
from specgauge.model.speedup import (
    RECOMMENDED_TOLERANCE,
    best_gamma,
    nearest_gamma,
    recommended_gamma,
    round_times_s,
    speedups,
    within_limits,
)
from specgauge.model.stats.bootstrap import BlockDraws, Blocks, median_replicates, percentile_interval

Verdict = Literal["speculate", "do not speculate", "undecided"]

OPTIMISTIC = "optimistic: overhead not measured"
"""The label of a speed-up whose epsilon is unknown."""
PAYS_AT_LEAST = 0.95
PAYS_AT_MOST = 0.05
WORTHWHILE_SPEEDUP = 1.01
DISAGREE = "prediction and measurement disagree"
"""How the reason of a decision begins where the two contradict each other."""
_CONTRADICTS = 0.95
"""How unlikely by chance their difference must be."""
_SAME = 0.01
"""A difference that no answer hangs on, however sure it is."""
_CHANCE_SEED = 3
_SMALLEST = 1e-300


def ratio_text(ratio: float) -> str:
    """A speed-up as it is shown: `1.27`, and `>99` for an end of an interval that two blocks leave open."""
    return f"{ratio:.2f}" if ratio < 99.5 else ">99"


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
    predicted: FloatArray
    """(G,) S from costs and acceptance, all samples."""
    predicted_low: FloatArray | None
    """(G,) ends of its central interval."""
    predicted_high: FloatArray | None
    speedup: FloatArray
    """(G,) S from all evidence: as predicted where nothing was decoded."""
    replicates: FloatArray
    """(R, G) S of the replicates; R is 0 where there are none."""
    low: FloatArray | None
    high: FloatArray | None
    contradicts: bool
    """Whether what was decoded differs from its prediction by more than both intervals allow."""
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


def costs_from_blocks(
    arms: Mapping[str, Blocks], gammas: Sequence[int], draws: BlockDraws, *, waiting_spread: float = 0.0
) -> RoundCosts:
    """Medians of a cell's arms, (1 + R) leading rows, all from the same draws of blocks.

    arms: samples in seconds by block under the journal's names: "decode", "verify:<gamma>", "draft" (each sample the
    cumulative marks C(1) … C(gamma_max) of a chain) and, if measured, "draft_catch_up" (a first step that feeds two
    tokens) and "transfer" (each sample the seconds for 1 … gamma_max drafts).
    Arms may have different numbers of blocks and of samples in them. Medians become costs by
    `specgauge.model.costs.measured_costs`.
    waiting_spread: standard deviation of log S that no block tells (`Disturbance.waiting_spread`); T_decode has it.

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
    two_tokens, transfer = arms.get("draft_catch_up"), arms.get("transfer")
    decode = median_replicates(arms["decode"], draws, "decode")
    decode[1:] *= np.exp(waiting_spread * draws.biases)
    verify = [median_replicates(arms[arm], draws, arm) for arm in map(verify_arm, drafts.tolist())]
    return measured_costs(
        drafts,
        t_decode_s=decode,
        t_draft_marks_s=chain,
        t_verify_s=np.stack(verify, axis=1),
        t_draft_two_tokens_s=None if two_tokens is None else median_replicates(two_tokens, draws, "draft_catch_up"),
        t_transfer_marks_s=None if transfer is None else median_replicates(transfer, draws, "transfer"),
    )


def estimate_speedup(
    costs: RoundCosts,
    acceptance: Acceptance,
    *,
    batch_size: int,
    confidence: float = 0.9,
    max_itl_s: float | None = None,
    measured: Mapping[int, FloatArray] | None = None,
    drawn_together: bool = False,
) -> SpeedupEstimate:
    """S(gamma), its uncertainty and the decision, from costs and acceptance of the same gammas, () or (1 + R) leading.

    max_itl_s bounds T_round of what may win: the tokens of a round arrive together. measured: S decoded end to end by
    gamma, (1 + R,); drawn_together: whether its replicates vary with those of costs and acceptance as they do in truth.

    Raises:
        ValueError: a batch size below 1, a limit that is not above 0, a round that takes no time, or an unknown S.
    """
    allowed = None
    if max_itl_s is not None:
        t_round_s = np.atleast_2d(round_times_s(costs, acceptance, batch_size=batch_size))[0]
        allowed = within_limits(t_round_s=t_round_s, max_itl_s=max_itl_s)
    return summarise(
        speedups(costs, acceptance, batch_size=batch_size),
        costs.gammas.tolist(),
        confidence=confidence,
        allowed=allowed,
        measured=measured,
        drawn_together=drawn_together,
    )


def summarise(
    speedups: ArrayLike,
    gammas: Sequence[int],
    *,
    confidence: float = 0.9,
    allowed: ArrayLike | None = None,
    measured: Mapping[int, FloatArray] | None = None,
    drawn_together: bool = False,
) -> SpeedupEstimate:
    """Intervals, probabilities and the decision from predicted S, (1 + R, G) or (G,), and what was measured.

    allowed: (G,) mask of gammas that latency and memory limits leave; the others compete for nothing (P(best) 0) but
    keep their intervals. measured: S decoded end to end by gamma, (1 + R,); other gammas than the candidates are left
    out. drawn_together: as in `estimate_speedup`.

    Raises:
        ValueError: shapes that do not fit, an unknown S in row 0, or a measured S that is not above 0.
    """
    for gamma, own in (measured or {}).items():
        if not (np.isfinite(own).all() and (own > 0).all()):
            raise ValueError(f"measured: expected S above 0 at gamma {gamma}, got {own.min():g}")
    values = np.atleast_2d(np.asarray(speedups, dtype=np.float64))
    candidates = whole_numbers("gammas", list(gammas), minimum=1)
    if values.ndim != 2 or values.shape[1:] != candidates.shape:
        raise ValueError(f"speedups: expected shape (1 + replicates, {candidates.size}), got {values.shape}")
    if not np.isfinite(values[0]).all():
        raise ValueError("speedups: got an unknown S in the estimate; leave gammas without tokens per round out")
    mask = np.ones(candidates.shape, dtype=np.bool_) if allowed is None else np.asarray(allowed, dtype=np.bool_)
    predicted_low = predicted_high = None
    found = _Combined(values=values, disagreements={})
    is_known = values.shape[0] > 1 and bool(np.isfinite(values).all())
    if is_known:
        predicted_low, predicted_high = _interval_of(values, confidence)
        found = _combine(values, candidates, measured or {}, confidence, drawn_together=drawn_together)
    estimate, drawn = found.values[0], found.values[1:]
    best = int(best_gamma(estimate, candidates, mask))
    recommended = _recommended(estimate, candidates, mask, measured or {})
    low = high = p_best = expected_loss = p_pays = p_any = None
    decision = Decision(verdict="undecided", reason=_alone_text(measured or {}, confidence))
    if is_known:
        is_moved = found.values is not values
        low, high = _interval_of(found.values, confidence) if is_moved else (predicted_low, predicted_high)
    if not mask.any():
        decision = Decision(verdict="do not speculate", reason="no gamma keeps the limits")
    elif is_known:
        competing = np.where(mask, drawn, -np.inf)
        top = competing.max(axis=1)
        p_best = np.bincount(competing.argmax(axis=1), minlength=candidates.size) / drawn.shape[0]
        expected_loss = np.asarray(1.0 - (drawn / top[:, None]).mean(axis=0), dtype=np.float64)
        p_pays = np.asarray((drawn > 1.0).mean(axis=0), dtype=np.float64)
        p_any = float((top > WORTHWHILE_SPEEDUP).mean())
        decision = _decide(float(p_pays[candidates == recommended][0]), p_any, recommended, found.disagreements)
    return SpeedupEstimate(
        gammas=candidates,
        predicted=values[0],
        predicted_low=predicted_low,
        predicted_high=predicted_high,
        speedup=estimate,
        replicates=drawn,
        low=low,
        high=high,
        contradicts=bool(found.disagreements),
        p_best=p_best,
        expected_loss=expected_loss,
        p_pays=p_pays,
        p_any_worthwhile=p_any,
        best_gamma=best,
        recommended_gamma=recommended,
        decision=decision,
    )


@dataclass(frozen=True, kw_only=True)
class _Combined:
    """S from all evidence."""

    values: FloatArray
    """(1 + R, G)."""
    disagreements: Mapping[int, str]
    """By gamma, prediction and measurement where they contradict each other."""


def _combine(
    predicted: FloatArray,
    gammas: IntArray,
    measured: Mapping[int, FloatArray],
    confidence: float,
    *,
    drawn_together: bool,
) -> _Combined:
    """Predicted S (1 + R, G) moved to what was measured as far as either is known."""
    decoded = [gamma for gamma in gammas.tolist() if gamma in measured]
    if not decoded:
        return _Combined(values=predicted, disagreements={})
    logs = np.log(predicted)
    chance = np.random.default_rng(_CHANCE_SEED).standard_normal(predicted.shape[0] - 1)
    limit = NormalDist().inv_cdf(0.5 + _CONTRADICTS / 2)
    moved, disagreements = {}, {}
    for gamma in decoded:
        own, other = logs[:, gammas.tolist().index(gamma)], np.log(measured[gamma])
        difference, variances = other[0] - own[0], (_variance(own[1:], confidence), _variance(other[1:], confidence))
        apart = _variance(other[1:] - own[1:], confidence) if drawn_together else sum(variances)
        covariance = (sum(variances) - apart) / 2
        beyond = max(0.0, (difference**2 - apart) / 2)
        weight = (variances[0] - covariance + beyond) / max(apart + 2 * beyond, _SMALLEST)
        weight = min(max(weight, 0.0), 1.0)
        combined = own + weight * (other - own)
        if not drawn_together:
            combined[1:] = combined[0] + _shared(weight, variances) * (combined[1:] - combined[0])
        combined[1:] += math.sqrt(((1 - weight) ** 2 + weight**2) * beyond) * chance
        moved[gamma] = combined - own
        if abs(difference) > max(limit * math.sqrt(apart), _SAME):
            disagreements[gamma] = (
                f"predicted {_interval_text(own, confidence)}, measured {_interval_text(other, confidence)}"
            )
    nearest = [nearest_gamma(gamma, decoded) for gamma in gammas.tolist()]
    values = np.exp(logs + np.stack([moved[gamma] for gamma in nearest], axis=1))
    return _Combined(values=values, disagreements=disagreements)


def _shared(weight: float, variances: tuple[float, float]) -> float:
    """What independent draws of both are widened by for their covariance, as large as the smaller variance."""
    apart = (1 - weight) ** 2 * variances[0] + weight**2 * variances[1]
    return math.sqrt(1 + 2 * weight * (1 - weight) * min(variances) / max(apart, _SMALLEST))


def _variance(logs: FloatArray, confidence: float) -> float:
    """Of the normal distribution with the same central interval: one replicate far out does not decide it."""
    low, high = percentile_interval(logs, confidence)
    return float((high - low) / 2 / NormalDist().inv_cdf(0.5 + confidence / 2)) ** 2


def _recommended(estimate: FloatArray, candidates: IntArray, mask: BoolArray, measured: Mapping[int, Any]) -> int:
    """The smallest gamma as good as the best, of those decoded where one is; as good: `RECOMMENDED_TOLERANCE`."""
    decoded = mask & np.isin(candidates, list(measured))
    if decoded.any():
        decoded &= estimate >= (1 - RECOMMENDED_TOLERANCE) * estimate[mask].max()
    return int(candidates[decoded][0] if decoded.any() else recommended_gamma(estimate, candidates, mask))


def _interval_of(values: FloatArray, confidence: float) -> tuple[FloatArray, FloatArray]:
    """Central intervals over replicates, wide enough to hold the estimates, which are row 0."""
    low, high = percentile_interval(values[1:], confidence)
    return np.minimum(low, values[0]), np.maximum(high, values[0])


def _interval_text(logs: FloatArray, confidence: float) -> str:
    low, high = np.exp(_interval_of(logs, confidence))
    return f"{ratio_text(math.exp(logs[0]))} ({ratio_text(low)} to {ratio_text(high)})"


def _alone_text(measured: Mapping[int, FloatArray], confidence: float) -> str:
    """Why a prediction without an interval decides nothing, and what was measured beside it."""
    shown = {gamma: _interval_text(np.log(own), confidence) for gamma, own in sorted(measured.items())}
    found = "; ".join(f"measured {text} at gamma {gamma}" for gamma, text in shown.items())
    return f"one block or one prompt says nothing about others{found and f'; {found}'}"


def _decide(p_pays: float, p_any_worthwhile: float, gamma: int, disagreements: Mapping[int, str]) -> Decision:
    pays, worthwhile = f"P(S > 1) = {p_pays:.3f} at gamma {gamma}", f"P(max S > {WORTHWHILE_SPEEDUP})"
    but = ""
    if disagreements:
        nearest = nearest_gamma(gamma, disagreements)
        but = f"{DISAGREE} at gamma {nearest}: {disagreements[nearest]}"
    if p_pays >= PAYS_AT_LEAST:
        return Decision(verdict="speculate", reason=pays + (f"; by how much is open, {but}" if but else ""))
    if p_any_worthwhile <= PAYS_AT_MOST:
        return Decision(verdict="do not speculate", reason=f"{worthwhile} = {p_any_worthwhile:.3f}")
    if but:
        return Decision(verdict="undecided", reason=f"{but}; decode more texts, or measure with nothing beside it")
    return Decision(
        verdict="undecided",
        reason=f"{pays} is under {PAYS_AT_LEAST}, {worthwhile} = {p_any_worthwhile:.3f} over {PAYS_AT_MOST}",
    )
