"""The answers of a plan for an export: the document of `specgauge plan --json`, as docs/planning.md describes it.

    plan_answers(Path("plan.json"), context=8192, undecided="off")

At a batch size that was asked the verdict is the plan's, and γ that of its schedule. Between two with one verdict it is
the same. Between two with different ones the schedule's γ is taken where one of them speculates and the lower end of S
at that γ, which goes geometrically from one to the other, is above 1, and its 0 where one of them does not speculate;
everything else there is undecided.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from specgauge.configs.canonical import strict_loads
from specgauge.configs.reading import TABLE_BYTES, read_text
from specgauge.model.checks import FloatArray
from specgauge.model.decision import Verdict
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.sweeps.exports.answers import DraftSource, GammaFigures, PointAnswer, ServingAnswers
from specgauge.sweeps.exports.schedule import OFF, RECOMMENDED, Answer, Undecided, answer_ranges, check_undecided
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


def plan_answers(path: Path, *, context: int | None = None, undecided: Undecided = OFF) -> ServingAnswers:
    """γ by batch size at a context of a plan, the longest by default.

    undecided: what is written where the plan decides nothing; `gamma` is the γ of its schedule.

    Raises:
        ValueError: no document of a plan, damaged, contradicting itself or of another release, a context that it does
            not have, or a γ for undecided batch sizes that it does not have.
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
    schedule = contexts[chosen].schedule
    first, last = schedule[0].first, schedule[-1].last
    asked = sorted((point for point in plan.points if point.context == chosen), key=lambda point: point.batch_size)
    points = [point for point in asked if point.batch_size <= last]
    _check_answers(path, chosen, schedule, points)
    planned = [{one.gamma for one in point.by_gamma} for point in points]
    check_undecided(undecided, set.intersection(*planned), "planned")
    answers = _answers(schedule, asked, undecided)
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    is_chosen = context is None and len(contexts) > 1
    below = f"below batch size {first} nothing was planned: γ is as there; " if first > 1 else ""
    return ServingAnswers(
        source=str(path),
        origin=f"written {written}, predicted for {_machine(plan.hardware)} ({plan.label})",
        target=None,
        draft=DraftSource(kind="model" if plan.draft is None else plan.draft.kind),
        pair=f"{plan.target.name} with {_drafted(plan.draft)}",
        sampling=plan.acceptance.sampling,
        draft_sampling=plan.acceptance.draft_sampling,
        acceptance_rule=plan.acceptance.acceptance_rule,
        rules_differ=True,
        context=chosen,
        confidence=plan.confidence,
        ranges=answer_ranges(answers),
        points=tuple(_point(point, answers[point.batch_size]) for point in points),
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


def _answers(schedule: Sequence[PlannedStep], asked: Sequence[PlannedPoint], undecided: Undecided) -> dict[int, Answer]:
    """By batch size: both ends, every one asked, and between them at least one wherever the answer changes.

    asked: the points of the context, rising; the first that does not fit tells how it goes on from the last that does.
    """
    found: dict[int, Answer] = {}
    for step in schedule:
        sizes = np.arange(step.first, step.last + 1)
        verdicts = _verdicts(sizes, step.gamma, asked)
        changes = [size for size, (one, other) in enumerate(pairwise(verdicts), step.first + 1) if one != other]
        points = [point.batch_size for point in asked if step.first <= point.batch_size <= step.last]
        for size in sorted({step.first, step.last, *changes, *points}):
            found[size] = _answer(size, step.gamma, verdicts[size - step.first], asked, undecided)
    first = schedule[0].first
    return found | {1: found[first] if first == 1 else replace(found[first], is_known=False)}


def _verdicts(sizes: NDArray[np.int64], gamma: int, asked: Sequence[PlannedPoint]) -> list[Verdict]:
    """Of batch sizes that share a γ of the schedule."""
    known = np.array([point.batch_size for point in asked])
    told = np.array([point.decision.verdict for point in asked])
    before = told[np.searchsorted(known, sizes, side="right") - 1]
    after = told[np.minimum(np.searchsorted(known, sizes), known.size - 1)]
    decided = "speculate" if gamma else "do not speculate"
    holds = (gamma == 0) | (_lower_ends(sizes, gamma, asked) > 1)
    holds &= (before == decided) | (after == decided)
    found: list[Verdict] = np.where(before == after, before, np.where(holds, decided, "undecided")).tolist()
    return found


def _lower_ends(sizes: NDArray[np.int64], gamma: int, asked: Sequence[PlannedPoint]) -> FloatArray:
    """Of the interval of S at a γ; nan where it has none."""
    ends = [next((one.low for one in point.by_gamma if one.gamma == gamma), None) for point in asked]
    logs = np.log([math.nan if end is None else end for end in ends])
    return np.asarray(np.exp(np.interp(sizes, [point.batch_size for point in asked], logs)))


def _answer(size: int, gamma: int, verdict: Verdict, asked: Sequence[PlannedPoint], undecided: Undecided) -> Answer:
    """What is written at a batch size whose γ the schedule says."""
    own = next((point for point in asked if point.batch_size == size), None)
    before = max((point for point in asked if point.batch_size <= size), key=lambda point: point.batch_size)
    reason = before.decision.reason
    if own is None and verdict == "undecided":
        after = next((point for point in asked if point.batch_size > size), before)
        reason = " and ".join(f"{one.decision.verdict} at batch size {one.batch_size}" for one in (before, after))
    if verdict == "speculate" and gamma == 0:
        verdict, reason = "do not speculate", f"{reason}, but S is not over 1 by 1 %"
    if verdict == "undecided":
        gamma = undecided if isinstance(undecided, int) else gamma if undecided == RECOMMENDED else 0
    elif verdict == "do not speculate":
        gamma = 0
    return Answer(gamma=gamma, verdict=verdict, reason=reason, is_known=own is not None)


def _point(point: PlannedPoint, answer: Answer) -> PointAnswer:
    """A point with what is written there."""
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
    return PointAnswer(
        batch_size=point.batch_size,
        gamma=answer.gamma,
        verdict=answer.verdict,
        reason=answer.reason,
        by_gamma=figures,
    )


def _machine(machine: PlannedMachine) -> str:
    count = machine.tensor_parallel
    return machine.name if count == 1 else f"{count} x {machine.name}"


def _drafted(draft: PlannedModel | None) -> str:
    return "no draft model" if draft is None else draft.name or draft.kind
