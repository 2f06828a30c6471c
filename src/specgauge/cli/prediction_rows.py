"""`specgauge predict` from flags: one row for each gamma, the best of them, and what would change the answer.

The document that comes out is what `--json` prints: `rows` (inputs, Omega, T_round, S, break-even points) beside
`best_gamma`, `recommended_gamma`, `one_alpha` (the fit of one alpha, where rates were given) and `at_recommended`
(limits and sensitivities there).  Unknown is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from specgauge.cli.parsing import GivenAcceptance
from specgauge.model.acceptance.profiles import OneAlpha
from specgauge.model.checks import BoolArray, FloatArray, positive_times_s, times_s
from specgauge.model.costs import CostsAt, DraftKind
from specgauge.model.prediction import OPTIMISTIC, Prediction, predict
from specgauge.model.provenance import Known, finite_or_none
from specgauge.model.sensitivity import (
    RoundParts,
    alpha_from_tokens_per_round,
    break_even_alpha,
    break_even_draft_total_s,
    required_alpha,
    sensitivities,
    speedup_limits,
)
from specgauge.model.speedup import throughput_tokens_per_s, time_per_token_s, within_limits

ASSUMED_FLAT = "assumed flat"
GIVEN = "given"


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """The times typed, in seconds; lists hold one value or one for each gamma."""

    t_decode_s: float
    t_verify_s: list[float]
    draft: DraftKind | None = None
    t_draft_total_s: list[float] | None = None
    """C(gamma) itself, in place of a draft kind."""
    t_draft_catch_up_s: float = 0.0
    t_overhead_s: float | None = None


def predict_rows(
    acceptance: GivenAcceptance,
    times: RoundTimes,
    *,
    batch_size: int = 1,
    max_itl_s: float | None = None,
    wanted_speedup: float | None = None,
) -> dict[str, Any]:
    """The document of one prediction by gamma.

    Raises ValueError for negative times, lists that do not fit the gammas, and a missing or doubled draft cost.
    """
    costs = _costs(times, acceptance.gammas)
    prediction = predict(acceptance.profile, costs, batch_size=batch_size, max_itl_s=max_itl_s)
    chosen = len(acceptance.gammas) > 1
    document: dict[str, Any] = {
        "rows": _rows(acceptance, times, costs, prediction, batch_size=batch_size, max_itl_s=max_itl_s, chosen=chosen),
        "best_gamma": int(prediction.best_gamma) if chosen else None,
        "recommended_gamma": int(prediction.recommended_gamma) if chosen else None,
        "speculation_pays": bool(np.any(prediction.speedup[_allowed(prediction, max_itl_s)] > 1)),
        "acceptance": {"source": acceptance.profile.source, "gamma_drafted": acceptance.profile.gamma_drafted},
        "one_alpha": _one_alpha(acceptance.profile.fit),
        "label": OPTIMISTIC if prediction.optimistic else None,
        "max_itl_s": max_itl_s,
        "wanted_speedup": wanted_speedup,
    }
    if acceptance.profile.source == "alpha":
        document["acceptance"]["gamma_drafted"] = None
    at = acceptance.gammas.index(int(prediction.recommended_gamma)) if int(prediction.recommended_gamma) else None
    document["at_recommended"] = (
        None if at is None else _at(at, times, costs, prediction, batch_size=batch_size, wanted=wanted_speedup)
    )
    return document


def _allowed(prediction: Prediction, max_itl_s: float | None) -> BoolArray:
    return within_limits(t_round_s=prediction.t_round_s, max_itl_s=max_itl_s)


def _costs(times: RoundTimes, gammas: list[int]) -> CostsAt:
    verify = _by_gamma("--t-verify", positive_times_s("--t-verify", times.t_verify_s), gammas)
    if (times.draft is None) == (times.t_draft_total_s is None):
        raise ValueError("draft cost: found both or neither of --t-draft and --t-draft-total, allowed: one of them")
    if times.draft is not None:
        draft = times.draft.total_s(gammas)
    else:
        total = times_s("--t-draft-total", times.t_draft_total_s or [])
        if total.size != len(gammas):
            raise ValueError(
                f"--t-draft-total: found {total.size} values for {len(gammas)} gammas, allowed: one for each, since a "
                "chain of more drafts takes longer"
            )
        draft = total
    overhead = None if times.t_overhead_s is None else times_s("--t-overhead", times.t_overhead_s)
    return CostsAt(
        gammas=np.array(gammas),
        t_decode_s=positive_times_s("--t-decode", times.t_decode_s),
        t_draft_total_s=draft,
        t_draft_catch_up_s=times_s("--t-draft-catch-up", times.t_draft_catch_up_s),
        t_verify_s=verify,
        t_overhead_s=None if overhead is None else np.broadcast_to(overhead, verify.shape),
        known=np.full(len(gammas), int(Known.ASSUMED)),
        overhead_known=None,
        across_gamma=np.zeros(len(gammas), dtype=np.bool_),
    )


def _by_gamma(name: str, values: FloatArray, gammas: list[int]) -> FloatArray:
    if values.size not in (1, len(gammas)):
        raise ValueError(
            f"{name}: found {values.size} values for {len(gammas)} gammas, allowed: one for each, or one for all"
        )
    return np.broadcast_to(values, (len(gammas),))


def _rows(
    acceptance: GivenAcceptance,
    times: RoundTimes,
    costs: CostsAt,
    prediction: Prediction,
    *,
    batch_size: int,
    max_itl_s: float | None,
    chosen: bool,
) -> list[dict[str, Any]]:
    parts = _parts(times, costs, slice(None), batch_size)
    alphas = break_even_alpha(parts)
    draft_limit = break_even_draft_total_s(
        prediction.tokens_per_round,
        t_decode_s=times.t_decode_s,
        t_verify_s=costs.t_verify_s,
        t_draft_catch_up_s=times.t_draft_catch_up_s,
        full_acceptance=prediction.full_acceptance,
        batch_size=batch_size,
        t_overhead_s=times.t_overhead_s,
    )
    per_token = time_per_token_s(prediction.tokens_per_round, t_round_s=prediction.t_round_s)
    throughput = throughput_tokens_per_s(
        prediction.tokens_per_round, t_round_s=prediction.t_round_s, batch_size=batch_size
    )
    allowed = _allowed(prediction, max_itl_s)
    flat = len(times.t_verify_s) == 1 and len(acceptance.gammas) > 1
    best = int(prediction.best_gamma) if chosen else None
    recommended = int(prediction.recommended_gamma) if chosen else None
    rows = []
    for i, gamma in enumerate(acceptance.gammas):
        omega = float(prediction.tokens_per_round[i])
        rows.append(
            {
                "gamma": gamma,
                "batch_size": batch_size,
                **acceptance.inputs,
                "t_decode_s": times.t_decode_s,
                "t_draft_total_s": float(costs.t_draft_total_s[i]),
                "t_draft_catch_up_s": times.t_draft_catch_up_s,
                "t_verify_s": float(costs.t_verify_s[i]),
                "t_verify_known": ASSUMED_FLAT if flat else GIVEN,
                "t_overhead_s": times.t_overhead_s,
                "acceptance_known": Known(int(prediction.acceptance_known[i])).label,
                "tokens_per_round": omega,
                "accepted_draft_tokens": omega - 1,
                "full_acceptance": float(prediction.full_acceptance[i]),
                "t_round_s": float(prediction.t_round_s[i]),
                "speedup": float(prediction.speedup[i]),
                "time_per_token_s": float(per_token[i]),
                "throughput_tokens_per_s": float(throughput[i]),
                "break_even_alpha": finite_or_none(alphas[i]),
                "break_even_draft_total_s": float(draft_limit[i]),
                "within_limits": bool(allowed[i]),
                "best_gamma": best,
                "recommended_gamma": recommended,
            }
        )
    return rows


def _at(
    i: int, times: RoundTimes, costs: CostsAt, prediction: Prediction, *, batch_size: int, wanted: float | None
) -> dict[str, Any]:
    gamma = int(costs.gammas[i])
    parts = _parts(times, costs, i, batch_size)
    alpha = float(alpha_from_tokens_per_round(prediction.tokens_per_round[i], gamma))
    passes = gamma if times.draft is None else int(times.draft.passes(gamma))
    slopes, limits = sensitivities(alpha, parts, draft_steps=passes), speedup_limits(alpha, parts)
    return {
        "gamma": gamma,
        "alpha_omega": alpha,
        "required_alpha": None if wanted is None else finite_or_none(required_alpha(wanted, parts)),
        "limits": {name: float(value) for name, value in vars(limits).items()},
        "sensitivities": {name: float(value) for name, value in vars(slopes).items()},
    }


def _parts(times: RoundTimes, costs: CostsAt, which: slice | int, batch_size: int) -> RoundParts:
    return RoundParts(
        gamma=costs.gammas[which],
        t_decode_s=times.t_decode_s,
        t_draft_total_s=costs.t_draft_total_s[which],
        t_verify_s=costs.t_verify_s[which],
        t_draft_catch_up_s=times.t_draft_catch_up_s,
        batch_size=batch_size,
        t_overhead_s=times.t_overhead_s,
    )


def _one_alpha(fit: OneAlpha | None) -> dict[str, Any] | None:
    return None if fit is None else {**vars(fit), "misleads": fit.misleads, "verdict": fit.verdict}
