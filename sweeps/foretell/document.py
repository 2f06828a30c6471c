"""The document of a plan: for every batch size and context what a pair is foretold to gain, as docs/planning.md says.

    plan = Plan(pair=planned_pair(…), acceptance=profile.at(gammas), given={"source": "alpha", "alpha": .8},
                batch_sizes=[1, 2, 4], contexts=[1024])
    plan_document(plan)["points"][0]["gamma"]

Costs come from the roofline, S and T_round from `specgauge.model.speedup`, intervals from costs drawn as far off as
times were that the calibration had not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specgauge.configs.hardware import CalibrationEntry
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.acceptance.lookups import mean_verify_s
from specgauge.model.checks import FloatArray, IntArray, finite_or_none
from specgauge.model.costs import RoundCosts
from specgauge.model.decision import OPTIMISTIC, Decision, SpeedupEstimate, estimate_speedup
from specgauge.model.roofline.deployment import Deployment, largest_batch
from specgauge.model.roofline.step_time import Efficiency, step_parts_s, step_work
from specgauge.model.schedule import break_even_batch_size, chosen_gammas, gamma_schedule, paying_ranges, sizes_between
from specgauge.model.settings import Provenance
from specgauge.model.speedup import round_times_s, speedups, within_limits
from specgauge.sweeps.foretell.machine import PlannedPair

SCHEMA, SCHEMA_VERSION = "specgauge.plan", 1
CONFIDENCE = 0.9
_TOGETHER = 1024
"""Points whose costs are computed at once."""
MOST_POINTS = 10_000
"""Batch sizes times contexts; as many take minutes and a document of 30 MB."""
UNCALIBRATED = "uncalibrated"
_VOCABULARIES_DIFFER = 0.02
"""Share by which padded vocabularies of one tokenizer differ at most."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A pair on a machine, its acceptance, and where it is to be foretold."""

    pair: PlannedPair
    acceptance: Acceptance
    """(G,), or (1 + R, G) where it was recorded; its gammas are those asked."""
    given: Mapping[str, Any]
    """What acceptance was taken from: `source`, and what was given."""
    batch_sizes: Sequence[int]
    contexts: Sequence[int]
    max_itl_s: float | None = None


def plan_document(plan: Plan) -> dict[str, Any]:
    """The document; fields as docs/planning.md lists them.

    Raises:
        ValueError: a peak that the machine's entry lacks, a batch size, context or gamma that is none, or too many
            points.
    """
    pair, gammas, batch_sizes = plan.pair, plan.acceptance.gammas, sorted(set(plan.batch_sizes))
    if len(batch_sizes) * len(plan.contexts) > MOST_POINTS:
        sizes = f"{len(batch_sizes)} batch sizes × {len(plan.contexts)} contexts"
        raise ValueError(f"plan: expected at most {MOST_POINTS} points, got {sizes}; give fewer of either")
    card, entry = pair.target.hardware, pair.entry
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "provenance": Provenance.PREDICTED.label,
        "label": _label(pair),
        "hardware": {
            "name": card.name,
            "tensor_parallel": pair.target.tensor_parallel,
            "memory_bytes": card.memory_bytes,
            "memory_bandwidth_bytes_per_s": card.bandwidth(),
            "peak_flops_per_s": card.peak(pair.target.precision.compute),
            "compute_dtype": pair.target.precision.compute,
        },
        "target": _model(pair.target),
        "draft": {"kind": pair.draft_kind, **_model(pair.draft)},
        "acceptance": {**plan.given, "by_gamma": _acceptance(plan.acceptance)},
        "max_itl_s": plan.max_itl_s,
        "calibration": None if entry.calibration is None else _calibration(pair, entry.calibration),
        "confidence": CONFIDENCE,
        "gammas": gammas.tolist(),
        "batch_sizes": batch_sizes,
        "points": _points(plan, batch_sizes),
        "contexts": [_context(plan, context) for context in plan.contexts],
        "warnings": _warnings(plan),
    }


def _label(pair: PlannedPair) -> str:
    fitted = pair.entry.calibration
    if fitted is None:
        words = f"{UNCALIBRATED}, {'probed' if pair.entry.is_probed else 'data-sheet'} peaks"
        return f"{words}: times are roofline bounds, how far off is not known"
    error = pair.error
    known = pair.target.architecture.name.lower() in fitted.targets
    words = f"calibrated on {fitted.steps} steps of {', '.join(fitted.targets)}"
    if error is None:
        return f"{words}; nothing could be left out to tell the error"
    other = "" if known else f", {pair.target.architecture.name} not among them"
    by = error.held_out.replace("_", " ")
    return f"{words}{other}; times held out by {by} were off by {error.mean:.1%} (mean), {error.worst:.1%} (worst)"


def _model(model: Deployment | None) -> dict[str, Any]:
    names = ("name", "parameters", "tensor_parallel", "weights", "kv_cache", "weight_bytes_per_device")
    if model is None:
        return dict.fromkeys((*names, "kv_bytes_per_token"))
    shape, precision = model.architecture, model.precision
    held = 0.0 if model.shares_weights else model.weight_bytes_held
    values = (shape.name, shape.parameters, model.tensor_parallel, precision.label, precision.kv_cache, held)
    return {**dict(zip(names, values, strict=True)), "kv_bytes_per_token": float(model.kv_bytes_held(1))}


def _acceptance(acceptance: Acceptance) -> list[dict[str, Any]]:
    found = acceptance.estimate
    return [
        {
            "gamma": int(gamma),
            "tokens_per_round": float(found.tokens_per_round[g]),
            "full_acceptance": float(found.full_acceptance[g]),
            "provenance": Provenance(int(found.provenance[g])).label,
        }
        for g, gamma in enumerate(found.gammas)
    ]


def _calibration(pair: PlannedPair, fitted: CalibrationEntry) -> dict[str, Any]:
    known = fitted.model_dump(mode="json", exclude={"same_target", "other_target", "draft"})
    draft: dict[str, Any] | None = None
    if fitted.draft is not None and pair.draft_error is not None:
        own = fitted.draft.model_dump(mode="json", exclude={"same_draft", "other_draft"})
        draft = {**own, "error": pair.draft_error.model_dump(mode="json")}
    return {**known, "draft": draft, "error": None if pair.error is None else pair.error.model_dump(mode="json")}


def _points(plan: Plan, batch_sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Every batch size at every context, so many contexts together as there is room for."""
    together = max(1, _TOGETHER // len(batch_sizes))
    groups = [plan.contexts[first : first + together] for first in range(0, len(plan.contexts), together)]
    return [point for group in groups for point in _points_of(plan, group, batch_sizes)]


def _points_of(plan: Plan, contexts: Sequence[int], batch_sizes: Sequence[int]) -> list[dict[str, Any]]:
    pair, acceptance = plan.pair, plan.acceptance.estimate
    gammas, own = acceptance.gammas, pair.draft_efficiency or pair.efficiency
    sizes, held = np.tile(batch_sizes, len(contexts)), np.repeat(contexts, len(batch_sizes))
    costs = pair.source().costs(sizes, held, gammas)
    verifying = _mean_verifying(costs, acceptance, sizes)
    round_s = round_times_s(verifying, acceptance, batch_size=sizes)
    allowed = within_limits(round_s, plan.max_itl_s)
    to_set = chosen_gammas(gammas, speedups(verifying, acceptance, batch_size=sizes), allowed).tolist()
    parts = {
        "decode": _parts(pair.target, pair.efficiency, sizes, held, [1]),
        "draft": None if pair.draft is None else _parts(pair.draft, own, sizes, held, [1]),
        "verify": _parts(pair.target, pair.efficiency, sizes, held, gammas + 1),
    }
    largest = {context: _largest(plan, context, with_draft=True) for context in contexts}
    found = []
    for b, (size, context) in enumerate(zip(sizes.tolist(), held.tolist(), strict=True)):
        row, most = costs.row(b), largest[context]
        mean = row if verifying is costs else verifying.row(b)
        estimate = _estimate(plan, row, size)
        at = int(np.argmax(gammas == estimate.recommended_gamma)) if estimate.recommended_gamma else 0
        columns = {"decode": 0, "draft": 0, "verify": at}
        point = {
            "batch_size": size,
            "context": context,
            "fits": None if most is None else size <= most,
            "gamma": to_set[b],
            "by_gamma": _by_gamma(mean, acceptance, estimate, allowed[b].tolist(), round_s[b]),
            "parts": {
                name: None
                if seconds is None
                else _bound({part: float(values[b, columns[name]]) for part, values in seconds.items()})
                for name, seconds in parts.items()
            },
        }
        found.append(point | _answer(plan, context, size, mean, estimate, at))
    return found


def _estimate(plan: Plan, costs: RoundCosts, batch_size: int) -> SpeedupEstimate:
    """S with its interval where the error of times is known."""
    drawn, acceptance = _with_replicates(costs, plan.acceptance, plan.pair)
    drawn = _verifying(drawn, acceptance, batch_size)
    return estimate_speedup(drawn, acceptance, batch_size=batch_size, confidence=CONFIDENCE, max_itl_s=plan.max_itl_s)


def _answer(
    plan: Plan, context: int, batch_size: int, costs: RoundCosts, estimate: SpeedupEstimate, at: int
) -> dict[str, Any]:
    """What is recommended at a point, gamma being the one at index `at`, and what does not depend on it."""
    pair, chosen = plan.pair, estimate.recommended_gamma
    errors, covered = pair.time_errors, _is_calibrated(pair, batch_size, context, int(costs.gammas[at]))
    low_s, high_s = (None, None) if errors is None else errors.interval_s(float(costs.t_decode_s), CONFIDENCE)
    return {
        "calibrated": covered,
        "decision": vars(_decision(estimate, pair, at, is_calibrated=covered)),
        "best_gamma": estimate.best_gamma,
        "recommended_gamma": chosen,
        "speedup": float(estimate.speedup[at]) if chosen else None,
        **{end: _end(getattr(estimate, end), at) if chosen else None for end in ("low", "high")},
        "t_decode_s": float(costs.t_decode_s),
        "t_decode_low_s": low_s,
        "t_decode_high_s": high_s,
        "t_draft_catch_up_s": None if costs.t_draft_catch_up_s is None else float(costs.t_draft_catch_up_s),
        "t_overhead_s": None if costs.t_overhead_s is None else float(costs.t_overhead_s[0]),
    }


def _verifying(costs: RoundCosts, acceptance: Acceptance, batch_size: int) -> RoundCosts:
    """The costs with the verification that rounds take on average, where a lookup may find fewer than gamma drafts."""
    shares = acceptance.draft_count_distribution
    if shares is None:
        return costs
    rows = np.atleast_2d(costs.t_verify_s)
    drawn = replace(costs, t_decode_s=np.atleast_1d(costs.t_decode_s), t_verify_s=rows)
    every = np.broadcast_to(shares, (rows.shape[0], *shares.shape[-2:]))
    verify_s = mean_verify_s(drawn, every, batch_size=batch_size)
    return replace(costs, t_verify_s=verify_s.reshape(costs.t_verify_s.shape))


def _mean_verifying(costs: RoundCosts, acceptance: Acceptance, sizes: IntArray) -> RoundCosts:
    """The same for costs at several batch sizes."""
    if acceptance.draft_count_distribution is None:
        return costs
    each = [_verifying(costs.row(b), acceptance, size).t_verify_s for b, size in enumerate(sizes.tolist())]
    return replace(costs, t_verify_s=np.stack(each))


def _with_replicates(costs: RoundCosts, acceptance: Acceptance, pair: PlannedPair) -> tuple[RoundCosts, Acceptance]:
    """Both with (1 + R) rows where the error of times is known; without, both as they are estimated."""
    errors = pair.time_errors
    if errors is None:
        return costs, acceptance.estimate
    drawn = acceptance.tokens_per_round.shape[0] - 1 if acceptance.tokens_per_round.ndim > 1 else 0
    if not drawn:
        return errors.replicates(costs), acceptance.estimate
    return errors.replicates(costs, drawn), acceptance


def _by_gamma(
    costs: RoundCosts, acceptance: Acceptance, estimate: SpeedupEstimate, allowed: list[bool], round_s: FloatArray
) -> list[dict[str, Any]]:
    return [
        {
            "gamma": int(gamma),
            "tokens_per_round": float(acceptance.tokens_per_round[g]),
            "t_draft_total_s": float(costs.t_draft_total_s[g]),
            "t_verify_s": float(costs.t_verify_s[g]),
            "t_round_s": float(round_s[g]),
            "speedup": float(estimate.speedup[g]),
            "low": _end(estimate.low, g),
            "high": _end(estimate.high, g),
            "within_limits": allowed[g],
        }
        for g, gamma in enumerate(costs.gammas)
    ]


def _end(values: FloatArray | None, at: int) -> float | None:
    return None if values is None else finite_or_none(values[at])


def _decision(estimate: SpeedupEstimate, pair: PlannedPair, at: int, *, is_calibrated: bool | None) -> Decision:
    """That of the estimate; what has no interval is undecided for want of a calibration."""
    decision = estimate.decision
    if estimate.recommended_gamma == 0:
        return decision
    if estimate.low is not None:
        beyond = "" if is_calibrated else "; outside what the calibration covers"
        return replace(decision, reason=f"{decision.reason}{beyond}")
    why = "the calibration could not be held against anything" if pair.entry.calibration else UNCALIBRATED
    return replace(
        estimate.decision,
        reason=f"{why}: S = {estimate.speedup[at]:.2f} has no interval",
    )


def _is_calibrated(pair: PlannedPair, batch_size: int, context: int, gamma: int) -> bool | None:
    """Whether the calibration has seen as many devices, and batch sizes, contexts and tokens on both sides."""
    fitted = pair.entry.calibration
    if fitted is None:
        return None
    spans = ((fitted.batch_sizes, batch_size), (fitted.contexts, context), (fitted.tokens, gamma + 1))
    within = all(min(span) <= value <= max(span) for span, value in spans)
    return within and pair.target.tensor_parallel in fitted.tensor_parallel


def _parts(
    model: Deployment, efficiency: Efficiency | None, sizes: IntArray, held: IntArray, tokens: ArrayLike
) -> dict[str, FloatArray]:
    """Seconds of a step by what takes them, (P, T) at P points and T numbers of tokens."""
    work = step_work(model, batch_size=sizes[:, np.newaxis], context=held[:, np.newaxis], tokens=tokens)
    return step_parts_s(work, model, efficiency)


def _bound(seconds: dict[str, float]) -> dict[str, Any]:
    return {"bound": max(seconds, key=lambda name: seconds[name]), **seconds}


def _largest(plan: Plan, context: int, *, with_draft: bool) -> int | None:
    """None where the entry does not know its memory."""
    if plan.pair.target.hardware.memory_bytes is None:
        return None
    gamma = int(plan.acceptance.gammas.max()) if with_draft else 0
    draft = plan.pair.draft if with_draft else None
    return int(largest_batch(plan.pair.target, draft=draft, context=context, gamma=gamma))


def _context(plan: Plan, context: int) -> dict[str, Any]:
    """Where speculation pays and with which gamma, between the batch sizes asked that fit."""
    first, last = min(plan.batch_sizes), max(plan.batch_sizes)
    largest = _largest(plan, context, with_draft=True)
    last = last if largest is None else min(last, largest)
    answers: dict[str, Any] = {"pays": [], "break_even_batch_size": None, "schedule": []}
    if last >= first:
        asked = [size for size in plan.batch_sizes if size <= last]
        answers = _answers(plan, context, np.union1d(sizes_between(first, last), asked))
    return {
        "context": context,
        "largest_batch": largest,
        "largest_batch_without_draft": _largest(plan, context, with_draft=False),
        **answers,
    }


def _answers(plan: Plan, context: int, sizes: IntArray) -> dict[str, Any]:
    acceptance = plan.acceptance.estimate
    costs = _mean_verifying(plan.pair.source().costs(sizes, context, acceptance.gammas), acceptance, sizes)
    values = speedups(costs, acceptance, batch_size=sizes)
    allowed = within_limits(round_times_s(costs, acceptance, batch_size=sizes), plan.max_itl_s)
    best = np.where(allowed, values, 0.0).max(axis=-1)
    return {
        "pays": [list(span) for span in paying_ranges(sizes, best)],
        "break_even_batch_size": break_even_batch_size(sizes, best),
        "schedule": [vars(step) for step in gamma_schedule(sizes, acceptance.gammas, values, allowed)],
    }


def _warnings(plan: Plan) -> list[str]:
    pair, found = plan.pair, []
    fitted, longest = pair.entry.calibration, max(plan.contexts)
    for model in (pair.target, None if pair.draft_kind == "layers" else pair.draft):
        if model is None or None not in model.architecture.windows:  # all windows slide: positions may go on
            continue
        limit = model.architecture.context_limit
        if limit is not None and longest > limit:
            found.append(f"context {longest} is beyond the {limit} tokens that {model.architecture.name} was made for")
    if fitted is None or fitted.t_overhead_s is None:
        found.append(f"S is {OPTIMISTIC}")
    if pair.draft is not None:
        sizes = sorted((pair.target.architecture.vocab_size, pair.draft.architecture.vocab_size))
        if sizes[1] > sizes[0] * (1 + _VOCABULARIES_DIFFER):
            found.append(f"vocabularies of {sizes[0]} and {sizes[1]} tokens: a draft must have its target's tokenizer")
    if fitted is not None:
        found.append(
            f"launch cost ({fitted.launch_s * 1e6:.0f} µs a layer) and epsilon are those of the software that was "
            "measured; another has its own: calibrate with its times, or leave them out (--uncalibrated)"
        )
    if fitted is not None and fitted.not_identified:
        found.append(f"the calibration's steps do not identify {' and '.join(fitted.not_identified)}")
    return found
