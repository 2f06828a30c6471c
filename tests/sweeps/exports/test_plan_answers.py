"""A plan's document as docs/planning.md describes it, read for an export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.exports.answers import DraftSource
from specgauge.sweeps.exports.plan_answers import plan_answers
from specgauge.sweeps.exports.registry import export_settings


def by_gamma(gamma: int, speedup: float) -> dict[str, Any]:
    return {
        "gamma": gamma, "tokens_per_round": 1.5 + gamma / 4, "t_draft_total_s": 0.001, "t_verify_s": 0.01,
        "t_round_s": 0.011, "speedup": speedup, "low": None, "high": None, "within_limits": True,
    }  # fmt: skip


def point(batch_size: int, context: int, gamma: int) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "context": context,
        "fits": True,
        "decision": {"verdict": "undecided", "reason": "nothing was measured"},
        "gamma": gamma,
        "best_gamma": gamma or 1,
        "by_gamma": [by_gamma(1, 1.1), by_gamma(2, 1.2)],
    }


def document() -> dict[str, Any]:
    schedule = [{"first": 2, "last": 7, "gamma": 2}, {"first": 8, "last": 16, "gamma": 0}]
    return {
        "schema": "specgauge.plan",
        "schema_version": 1,
        "provenance": "predicted",
        "label": "uncalibrated, data-sheet peaks",
        "hardware": {"name": "h100-sxm", "tensor_parallel": 4},
        "target": {"name": "llama-3.1-70b", "parameters": 70e9},
        "draft": {"name": "llama-3.2-1b", "kind": "model"},
        "acceptance": {"source": "alpha", "alpha": 0.78},
        "confidence": 0.9,
        "points": [point(16, 1024, 1), point(2, 1024, 1), point(2, 8192, 1), point(64, 1024, 1)],
        "contexts": [
            {"context": 1024, "schedule": schedule},
            {"context": 8192, "schedule": [{"first": 2, "last": 2, "gamma": 1}]},
            {"context": 32768, "schedule": []},
        ],
    }


@pytest.fixture
def plan(tmp_path: Path) -> Callable[..., Path]:
    """A file with the document, some of it changed."""

    def written(**changes: Any) -> Path:
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(document() | changes), encoding="utf-8")
        return path

    return written


def test_the_schedule_is_that_of_the_plan(plan: Callable[..., Path]) -> None:
    found = plan_answers(plan(), context=1024)
    assert [(one.first, one.last, one.gamma) for one in found.ranges] == [(1, 7, 2), (8, 16, 0)]
    assert [(one.batch_size, one.gamma) for one in found.points] == [(2, 2), (16, 0)]
    assert found.points[0].by_gamma[2].tokens_per_round == 2.0
    assert found.points[0].label == "batch 2: γ 2, S 1.20, 2.00 tokens a round, undecided: nothing was measured"
    assert found.origin == "predicted for 4 x h100-sxm (uncalibrated, data-sheet peaks)"
    assert (found.pair, found.draft) == ("llama-3.1-70b with llama-3.2-1b", DraftSource(kind="model"))
    assert found.warnings == ()
    assert found.reach == (
        "below batch size 2 nothing was planned: γ is as there; beyond batch size 16 nothing was planned or fits: γ is "
        "0"
    )


def test_the_longest_context_in_which_something_fits_is_taken(plan: Callable[..., Path]) -> None:
    found = plan_answers(plan())
    assert (found.context, found.ranges[0].gamma) == (8192, 1)
    assert found.warnings == ("context 8192 was taken of 1024, 8192: --context chooses",)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_every_engine_takes_a_plan(plan: Callable[..., Path], engine: str) -> None:
    found = export_settings(plan(), engine, context=1024)
    assert "DRAFT" in found.content
    assert "γ holds where the acceptance was taken so" in found.warnings[0]


def test_the_rules_of_a_run_are_kept(plan: Callable[..., Path]) -> None:
    acceptance = {
        "source": "run",
        "pair": "p",
        "sampling": "t1",
        "draft_sampling": "greedy",
        "acceptance_rule": "ratio",
    }
    found = plan_answers(plan(acceptance=acceptance), context=1024)
    assert (found.sampling, found.draft_sampling, found.acceptance_rule) == ("t1", "greedy", "ratio")
    assert export_settings(plan(acceptance=acceptance), "vllm", context=1024).warnings == ()


@pytest.mark.parametrize("draft", [None, {"name": None, "kind": "ngram"}])
def test_drafts_without_a_model(plan: Callable[..., Path], draft: Any) -> None:
    found = plan_answers(plan(draft=draft), context=1024)
    assert found.pair == f"llama-3.1-70b with {'no draft model' if draft is None else 'ngram'}"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": "other"}, "expected a run directory or a document of `specgauge plan --json`, got another one"),
        ({"schema_version": 2}, "expected release 1 of a plan, got 2; write it again with `specgauge plan … --json`"),
        ({"confidence": 2}, "confidence: input should be less than 1, got '2'; write it again"),
        (
            {"points": [{**point(2, 1024, 2), "batch_size": 0}]},
            r"points\.0\.batch_size: input should be greater than or equal",
        ),
        ({"contexts": [{"context": 8, "schedule": []}]}, "expected a context in which a batch size fits, got none"),
    ],
)
def test_other_documents_are_refused(plan: Callable[..., Path], changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=rf"plan\.json: {told}"):
        plan_answers(plan(**changes))


def steps(*bounds: tuple[int, int, int]) -> dict[str, Any]:
    """A context's schedule from (first, last, γ)."""
    found = [{"first": first, "last": last, "gamma": gamma} for first, last, gamma in bounds]
    return {"contexts": [{"context": 1024, "schedule": found}]}


RANGES = r"context 1024: expected a schedule whose ranges go on from batch size "
POINTS = r"context 1024: expected points at batch sizes from 2 on, each once, got "
GAMMAS = r"context 1024, batch size 2: expected each gamma of the schedule once \(2\), got "


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (steps((2, 7, 2), (9, 16, 0)), f"{RANGES}8, got 9 to 16"),
        (steps((2, 7, 2), (7, 16, 0)), f"{RANGES}8, got 7 to 16"),
        (steps((8, 16, 0), (2, 7, 2)), f"{RANGES}17, got 2 to 7"),
        (steps((2, 1, 2)), f"{RANGES}2, got 2 to 1"),
        (steps((2, 7, 99)), r"context 1024, batch size 2: expected each gamma of the schedule once \(99\), got 1, 2"),
        ({"points": []}, f"{POINTS}none"),
        ({"points": [point(16, 1024, 1)]}, f"{POINTS}16"),
        ({"points": [point(2, 1024, 1)] * 2}, f"{POINTS}2, 2"),
        ({"points": [{**point(2, 1024, 1), "by_gamma": []}]}, f"{GAMMAS}none"),
        ({"points": [{**point(2, 1024, 1), "by_gamma": [by_gamma(2, 1.2)] * 2}]}, f"{GAMMAS}2, 2"),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(
    plan: Callable[..., Path], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(ValueError, match=rf"plan\.json: {told}; write it again"):
        plan_answers(plan(**changes), context=1024)


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '{"schema": NaN}', "no JSON"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r"plan\.json: expected a run directory or a"):
        plan_answers(path)


def test_a_context_that_was_not_planned_is_refused(plan: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=r"plan\.json: context: expected one of 1024, 8192, got 7"):
        plan_answers(plan(), context=7)


@pytest.mark.parametrize("option", ["pair", "sampling", "undecided", "draft_sampling"])
def test_what_a_plan_does_not_take_is_refused(plan: Callable[..., Path], option: str) -> None:
    named = option.replace("_", " ")
    given: dict[str, Any] = {option: "x"}
    with pytest.raises(ValueError, match=f"{named}: expected a run directory, since a plan has but one answer"):
        export_settings(plan(), "vllm", **given)
