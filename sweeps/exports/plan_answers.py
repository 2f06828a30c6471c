"""The answers of a plan for an export: the document of `specgauge plan --json`, as docs/planning.md describes it.

plan_answers(Path("plan.json"), context=8192)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from specgauge.configs.canonical import strict_loads
from specgauge.configs.reading import TABLE_BYTES, read_text
from specgauge.model.decision import Verdict
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.sweeps.exports.answers import DraftSource, GammaFigures, PointAnswer, ServingAnswers
from specgauge.sweeps.exports.schedule import DecidedRange
from specgauge.sweeps.foretell.document import SCHEMA, SCHEMA_VERSION
from specgauge.sweeps.foretell.machine import DraftKind
from specgauge.sweeps.store.schema import OPEN, BatchSize, Gamma, Positive, Text, Whole

_AGAIN = "write it again with `specgauge plan … --json`"


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PlannedModel:
    """A model of the plan."""

    name: Text | None = None
    kind: DraftKind = "model"


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PlannedMachine:
    """The machine of the plan."""

    name: Text
    tensor_parallel: Annotated[int, Field(strict=True, ge=1)] = 1


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PlannedAcceptance:
    """Where the acceptance came from; a run names its rules."""

    source: Text
    sampling: Text | None = None
    draft_sampling: DraftSampling | None = None
    acceptance_rule: AcceptanceRule | None = None


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PlannedGamma:
    """One γ at a point."""

    gamma: Gamma
    tokens_per_round: Positive
    t_round_s: Positive
    speedup: Positive
    low: Positive | None = None
    high: Positive | None = None


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PlannedDecision:
    """What is decided at a point, and why."""

    verdict: Verdict
    reason: Text


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PlannedPoint:
    """A batch size and context."""

    batch_size: BatchSize
    context: Whole
    decision: PlannedDecision
    by_gamma: tuple[PlannedGamma, ...]


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PlannedStep:
    """A range of batch sizes with one γ."""

    first: BatchSize
    last: BatchSize
    gamma: Whole


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PlannedContext:
    """The answers for a context."""

    context: Whole
    schedule: tuple[PlannedStep, ...]


@dataclass(frozen=True, kw_only=True, config=OPEN)
class PlanDocument:
    """What an export needs of a plan."""

    label: Text
    hardware: PlannedMachine
    target: PlannedModel
    draft: PlannedModel | None
    acceptance: PlannedAcceptance
    confidence: Annotated[float, Field(gt=0, lt=1)]
    points: tuple[PlannedPoint, ...]
    contexts: tuple[PlannedContext, ...]


def plan_answers(path: Path, *, context: int | None = None) -> ServingAnswers:
    """γ by batch size at a context of a plan, the longest by default.

    Raises:
        ValueError: no document of a plan, damaged, contradicting itself or of another release, or a context that it
            does not have.
        OSError: it cannot be read.
    """
    plan = _read(path)
    contexts = {one.context: one for one in plan.contexts if one.schedule}
    if not contexts:
        raise ValueError(f"{path}: expected a context in which a batch size fits, got none")
    chosen = max(contexts) if context is None else context
    listed = ", ".join(map(str, sorted(contexts)))
    if chosen not in contexts:
        raise ValueError(f"{path}: context: expected one of {listed}, got {chosen}")
    last = contexts[chosen].schedule[-1].last
    here = [point for point in plan.points if point.context == chosen and point.batch_size <= last]
    points = sorted(here, key=lambda point: point.batch_size)
    _check_answers(path, chosen, contexts[chosen].schedule, points)
    reasons = {point.batch_size: point.decision for point in points}
    ranges = [_range(step, reasons) for step in contexts[chosen].schedule]
    first = ranges[0].first
    is_chosen = context is None and len(contexts) > 1
    below = f"below batch size {first} nothing was planned: γ is as there; " if first > 1 else ""
    ranges[0] = replace(ranges[0], first=1)
    return ServingAnswers(
        source=str(path),
        origin=f"predicted for {_machine(plan.hardware)} ({plan.label})",
        target=None,
        draft=DraftSource(kind="model" if plan.draft is None else plan.draft.kind),
        pair=f"{plan.target.name} with {_drafted(plan.draft)}",
        sampling=plan.acceptance.sampling,
        draft_sampling=plan.acceptance.draft_sampling,
        acceptance_rule=plan.acceptance.acceptance_rule,
        rules_differ=True,
        context=chosen,
        confidence=plan.confidence,
        ranges=tuple(ranges),
        points=tuple(_point(point, ranges) for point in points),
        reach=f"{below}beyond batch size {last} nothing was planned or fits: γ is 0",
        warnings=(f"context {chosen} was taken of {listed}: --context chooses",) if is_chosen else (),
    )


def _read(path: Path) -> PlanDocument:
    text = read_text(path, TABLE_BYTES)
    try:
        content: Any = strict_loads(text)
    except (ValueError, RecursionError) as error:
        what = " ".join(str(error).split())[:200]
        raise ValueError(
            f"{path}: expected a run directory or a plan's JSON document, got other text: {what}"
        ) from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: expected a run directory or a document of `specgauge plan --json`, got another one")
    if content.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"{path}: expected release {SCHEMA_VERSION} of a plan, got {content.get('schema_version')}; {_AGAIN}"
        )
    try:
        return TypeAdapter(PlanDocument).validate_python(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{path}: {place}: {first['msg'].lower()}, got {str(first['input'])[:80]!r}; {_AGAIN}"
        ) from error


def _check_answers(path: Path, context: int, schedule: Sequence[PlannedStep], points: Sequence[PlannedPoint]) -> None:
    """Refuse a schedule and points that cannot be of one plan, as of a document that somebody changed."""
    where, first = f"{path}: context {context}", schedule[0].first
    for step in schedule:
        if step.first != first or step.last < first:
            raise ValueError(
                f"{where}: expected a schedule whose ranges go on from batch size {first}, got {step.first} to "
                f"{step.last}; {_AGAIN}"
            )
        first = step.last + 1
    sizes = [point.batch_size for point in points]
    if not points or sizes[0] != schedule[0].first or len({*sizes}) < len(sizes):
        raise ValueError(
            f"{where}: expected points at batch sizes from {schedule[0].first} on, each once, got "
            f"{', '.join(map(str, sizes[:8])) or 'none'}; {_AGAIN}"
        )
    asked = {step.gamma for step in schedule if step.gamma}
    for point in points:
        known = [one.gamma for one in point.by_gamma]
        if not asked <= {*known} or len({*known}) < len(known):
            raise ValueError(
                f"{where}, batch size {point.batch_size}: expected each gamma of the schedule once "
                f"({', '.join(map(str, sorted(asked)))}), got {', '.join(map(str, known)) or 'none'}; {_AGAIN}"
            )


def _range(step: PlannedStep, decisions: dict[int, PlannedDecision]) -> DecidedRange:
    decision = next((decisions[size] for size in sorted(decisions) if step.first <= size <= step.last), None)
    return DecidedRange(
        first=step.first,
        last=step.last,
        gamma=step.gamma,
        verdict="speculate" if step.gamma else "do not speculate",
        reason="" if decision is None else decision.reason,
    )


def _point(point: PlannedPoint, ranges: Sequence[DecidedRange]) -> PointAnswer:
    """A point with the γ of the schedule."""
    figures = {
        one.gamma: GammaFigures(
            tokens_per_round=one.tokens_per_round,
            t_round_s=one.t_round_s,
            speedup=one.speedup,
            low=one.low,
            high=one.high,
        )
        for one in point.by_gamma
    }
    decision = point.decision
    return PointAnswer(
        batch_size=point.batch_size,
        gamma=next(one.gamma for one in ranges if one.first <= point.batch_size <= one.last),
        verdict=decision.verdict,
        reason=decision.reason,
        by_gamma=figures,
    )


def _machine(machine: PlannedMachine) -> str:
    count = machine.tensor_parallel
    return machine.name if count == 1 else f"{count} x {machine.name}"


def _drafted(draft: PlannedModel | None) -> str:
    return "no draft model" if draft is None else draft.name or draft.kind
