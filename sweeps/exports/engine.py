"""What every engine's export has in common: its rules, its forms, and the lines that say under what its settings hold.

An engine is a file with an `Engine`: how it draws and accepts drafts unless told otherwise, and its forms by name, the
first by default, each a function from `ServingAnswers` and `Request` to an `Export`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.schedule import ScheduleStep
from specgauge.sweeps.exports.answers import ServingAnswers

DRAFT, TARGET = "DRAFT", "TARGET"
"""Written where a run or plan names no model that an engine can load."""


@dataclass(frozen=True, kw_only=True)
class DraftRules:
    """How an engine draws drafts and accepts them unless told otherwise."""

    draft_sampling: DraftSampling
    acceptance_rule: AcceptanceRule


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked of an export beside the answers."""

    release: str | None = None
    """Of the engine; None is the newest that is known here."""
    batch_size: int | None = None
    """For forms that hold one γ; None is the smallest known."""


@dataclass(frozen=True, kw_only=True)
class Export:
    """What an engine reads."""

    content: str
    release: str
    """The releases of the engine that it is written for."""
    check: str
    """One command, and what to expect of it."""
    comment: str | None = None
    """What begins a comment in it; None where it has none, and the header stands beside it."""
    is_schedule: bool = False
    """Whether it has γ by batch size."""
    notes: tuple[str, ...] = ()


Form = Callable[[ServingAnswers, Request], Export]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A serving engine."""

    title: str
    rules: DraftRules
    other_rules: str
    """What it takes to have drafts drawn in the other way there."""
    forms: Mapping[str, Form]
    """By name, the first by default."""


def header_lines(answers: ServingAnswers, engine: Engine, export: Export) -> Iterator[str]:
    """What an export holds for and how to check it, a line each."""
    yield f"for {engine.title}, {export.release}; by specgauge export"
    named = f"pair {answers.pair}" + (f", sampling {answers.sampling}" if answers.sampling else "")
    yield f"from {answers.source}, {answers.origin}: {named}, context {answers.context}"
    yield f"holds for {_rules_text(answers)}; intervals are {100 * answers.confidence:g} %"
    yield from (point.label for point in answers.points)
    if export.is_schedule:
        for one in answers.open_ranges:
            sizes = str(one.first) if one.first == one.last else f"{one.first} to {one.last}"
            yield f"batch {sizes}: γ {one.gamma}, undecided: {one.reason}"
        yield from (gap.words for gap in answers.gaps)
        yield answers.reach
    yield from export.notes
    yield from answers.notes
    yield from warnings_of(answers, engine)
    yield f"costs are those of {answers.source}; {engine.title} has its own, so check: {export.check}"


def _rules_text(answers: ServingAnswers) -> str:
    if not answers.rules_differ:
        return "every draft sampling and acceptance rule: a greedy target and lookups accept the same under all"
    if answers.draft_sampling is None:
        return "the draft sampling and acceptance rule that the acceptance was taken under"
    drawn = {"same": "drafts drawn as the target draws (same)", "greedy": "greedy drafts"}[answers.draft_sampling]
    return f"{drawn}, accepted by the {answers.acceptance_rule} rule"


def warnings_of(answers: ServingAnswers, engine: Engine) -> tuple[str, ...]:
    """What calls for attention: rules that differ, and what was chosen or left out."""
    return (*_rule_warnings(answers, engine), *answers.warnings)


def _rule_warnings(answers: ServingAnswers, engine: Engine) -> Iterator[str]:
    """Where the engine draws or accepts otherwise than the answers hold for."""
    rules = engine.rules
    if not answers.rules_differ:
        return
    default = {"same": "drafts drawn as the target draws", "greedy": "greedy drafts"}[rules.draft_sampling]
    if answers.draft_sampling is None:
        yield f"the default of {engine.title} is {default}: γ holds where the acceptance was taken so"
    elif answers.draft_sampling != rules.draft_sampling:
        again = f"--draft-sampling {rules.draft_sampling} answers for the default"
        yield f"the default of {engine.title} is {default}; {engine.other_rules}; {again}"
    elif answers.draft_sampling == "same" and answers.acceptance_rule != rules.acceptance_rule:
        yield f"{engine.title} accepts by the {rules.acceptance_rule} rule: have it recorded (acceptance_rule)"


def release_number(release: str, engine: str, example: str) -> tuple[int, ...]:
    """A release as numbers that compare: 1.3.0rc8 before 1.3.0, missing places 0.

    Raises:
        ValueError: no such text.
    """
    match = re.fullmatch(
        r"v?(\d{1,9})(?:\.(\d{1,9}))?(?:\.(\d{1,9}))?(?:\.?(?:rc|dev|post)(\d{1,9}))?", release.strip()
    )
    if match is None:
        raise ValueError(f"release: expected one of {engine}, such as {example}, got {release!r}")
    major, minor, patch, candidate = match.groups()
    last = int(candidate) if candidate is not None and "post" not in release else 1_000_000_000
    return int(major), int(minor or 0), int(patch or 0), last


def json_text(content: Mapping[str, Any]) -> str:
    """Strict JSON, a line for each key."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in content.items()]
    return "\n".join(["{", ",\n".join(lines), "}"]) + "\n"


def release_words(request: Request, engine: str, read_in: str) -> str:
    """The release asked for, or the one in which an engine's settings were read; ValueError as `release_number`."""
    if request.release is None:
        return f"as read in {read_in}"
    release_number(request.release, engine, read_in)
    return f"release {request.release}"


def refuse_batch_size(request: Request) -> None:
    """Raise ValueError where a single batch size is asked for, in forms that have them all."""
    if request.batch_size is not None:
        raise ValueError(
            f"batch size: expected none, since what is written has every batch size, got {request.batch_size}"
        )


def from_on(steps: Sequence[ScheduleStep], largest_batch: int) -> dict[int, int]:
    """γ by the first batch size that takes it, 0 beyond the largest known."""
    found = {step.first: step.gamma for step in steps}
    return found if steps[-1].gamma == 0 else {**found, largest_batch + 1: 0}


def placeholder_notes(answers: ServingAnswers, title: str) -> Iterator[str]:
    """What has to be filled in, where the draft is none that an engine can load."""
    if answers.draft.kind == "layers":
        yield f"{title} has no drafts of the target's first layers: {DRAFT} stands for a model that drafts alike"
    elif answers.draft.kind != "ngram" and answers.draft.model is None:
        yield f"put the draft's path or hub id in the place of {DRAFT}"


def expectation(answers: ServingAnswers, request: Request) -> tuple[int, str]:
    """The batch size that a check is made at, and what to expect there."""
    paying = (point for point in answers.points if point.gamma)
    point = next(paying, answers.points[0]) if request.batch_size is None else answers.fixed(request.batch_size)
    if point.gamma == 0:
        return point.batch_size, "expect no drafts"
    found = point.by_gamma[point.gamma]
    return point.batch_size, (
        f"expect an acceptance length of {found.tokens_per_round:.2f} (bonus included), and {found.speedup:.2f} × the "
        "tokens a second of the same server without drafts"
    )
