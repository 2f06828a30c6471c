"""A plan's document as docs/planning.md describes it, read for an export."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.exports.answers import DraftSource
from specgauge.sweeps.exports.plan_answers import plan_answers
from specgauge.sweeps.exports.registry import export_settings


def by_gamma(gamma: int, speedup: float, low: float | None = None) -> dict[str, Any]:
    return {
        "gamma": gamma, "tokens_per_round": 1.5 + gamma / 4, "t_draft_total_s": 0.001, "t_verify_s": 0.01,
        "t_round_s": 0.011, "speedup": speedup, "low": low, "high": low and 2 * speedup - low, "within_limits": True,
    }  # fmt: skip


def point(batch_size: int, context: int, gamma: int, verdict: str = "speculate", low: float = 1.05) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "context": context,
        "fits": True,
        "decision": {"verdict": verdict, "reason": f"why at {batch_size}"},
        "gamma": gamma,
        "best_gamma": gamma or 1,
        "by_gamma": [by_gamma(1, 1.1, low), by_gamma(2, 1.2, low)],
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
        "points": [
            point(16, 1024, 0, "do not speculate"),
            point(2, 1024, 1),
            point(2, 8192, 1),
            point(64, 1024, 1),
        ],
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
        os.utime(path, (1_767_312_000, 1_767_312_000))  # 2026-01-02
        return path

    return written


def test_the_schedule_is_that_of_the_plan(plan: Callable[..., Path]) -> None:
    found = plan_answers(plan(), context=1024)
    assert [(one.first, one.last, one.gamma) for one in found.ranges] == [(1, 7, 2), (8, 16, 0)]
    assert [(one.batch_size, one.gamma) for one in found.points] == [(2, 2), (16, 0)]
    assert found.points[0].by_gamma[2].tokens_per_round == 2.0
    assert found.points[0].label == "batch 2: γ 2, S 1.20 (1.05 to 1.35), 2.00 tokens a round"
    assert found.points[1].label == "batch 16: γ 0, do not speculate: why at 16"
    assert found.origin == "written 2026-01-02, predicted for 4 x h100-sxm (uncalibrated, data-sheet peaks)"
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


def open_plan(*points: dict[str, Any]) -> dict[str, Any]:
    """A plan of γ 2 up to batch size 16, asked at some batch sizes."""
    schedule = [{"first": 1, "last": 16, "gamma": 2}]
    return {"points": list(points), "contexts": [{"context": 1024, "schedule": schedule}]}


MIXED = (point(1, 1024, 2, low=1.2), point(4, 1024, 2, low=1.1), point(16, 1024, 2, "undecided", low=0.9))
"""γ 2 pays up to batch size 4; at 16 the interval of S reaches below 1."""


def test_what_is_undecided_is_0_with_the_reason(plan: Callable[..., Path]) -> None:
    """ln 1.1 falls to ln 0.9 in 12 steps, and is above 0 for the first 5 of them."""
    found = plan_answers(plan(**open_plan(*MIXED)))
    assert [(one.first, one.last, one.gamma, one.verdict) for one in found.ranges] == [
        (1, 9, 2, "speculate"),
        (10, 16, 0, "undecided"),
    ]
    assert found.points[-1].label == "batch 16: γ 0, undecided: why at 16"
    assert found.largest_gamma == 2


@pytest.mark.parametrize(("undecided", "gamma"), [("off", 0), ("gamma", 2), (1, 1)])
def test_what_is_undecided_is_chosen(plan: Callable[..., Path], undecided: Any, gamma: int) -> None:
    path = plan(**open_plan(*MIXED))
    found = plan_answers(path, undecided=undecided)
    assert [(one.first, one.last, one.gamma) for one in found.ranges] == [(1, 9, 2), (10, 16, gamma)]
    settings = export_settings(path, "vllm", undecided=undecided)
    assert json.loads(settings.content)["num_speculative_tokens_per_batch_size"] == (
        [[1, 9, 2], [10, 1024, 0]]
        if gamma == 0
        else [[1, 16, 2], [17, 1024, 0]]
        if gamma == 2
        else [[1, 9, 2], [10, 16, 1], [17, 1024, 0]]
    )
    assert f"batch 16: γ {gamma}, " in settings.header
    assert "undecided: why at 16\n" in settings.header


def test_what_lies_between_a_decided_and_an_open_batch_size_says_so(plan: Callable[..., Path]) -> None:
    points = (MIXED[0], point(8, 1024, 2, "undecided", low=0.9), point(12, 1024, 2, low=1.1), point(16, 1024, 2))
    found = plan_answers(plan(**open_plan(*points)))
    assert [(one.first, one.last, one.gamma) for one in found.ranges] == [(1, 5, 2), (6, 10, 0), (11, 16, 2)]
    assert found.ranges[1].reason == "why at 8"
    gap = plan_answers(plan(**open_plan(MIXED[0], point(16, 1024, 2, "do not speculate", low=0.9))))
    assert [(one.first, one.last, one.gamma) for one in gap.ranges] == [(1, 10, 2), (11, 15, 0), (16, 16, 0)]
    assert gap.open_ranges[0].reason == "speculate at batch size 1 and do not speculate at batch size 16"


def test_a_plan_without_intervals_decides_nothing(plan: Callable[..., Path]) -> None:
    points = [{**point(size, 1024, 2, "undecided"), "by_gamma": [by_gamma(2, 1.2)]} for size in (1, 16)]
    path = plan(**open_plan(*points))
    with pytest.raises(
        ValueError,
        match=r"known to pay at no batch size; batch 1: γ 0, undecided: why at 1; --undecided gamma exports what is",
    ):
        export_settings(path, "vllm")
    assert json.loads(export_settings(path, "vllm", undecided="gamma").content)["num_speculative_tokens"] == 2


def test_where_the_last_that_fits_was_not_asked_the_next_one_tells(plan: Callable[..., Path]) -> None:
    """Batch sizes 5 to 12 fit and lie between 4, which pays, and 16, which is open and does not fit."""
    found = plan_answers(plan(**open_plan(*MIXED) | steps((1, 12, 2))))
    assert [(one.first, one.last, one.gamma) for one in found.ranges] == [(1, 9, 2), (10, 12, 0)]
    assert [one.batch_size for one in found.points] == [1, 4]


def test_a_gain_of_under_a_hundredth_is_not_worth_its_drafts(plan: Callable[..., Path]) -> None:
    points = [point(2, 1024, 2), point(16, 1024, 0, low=1.001)]
    found = plan_answers(plan(points=points), context=1024)
    assert found.points[-1].label == "batch 16: γ 0, do not speculate: why at 16, but S is not over 1 by 1 %"


@pytest.mark.parametrize("verdict", ["speculate", "undecided"])
def test_a_gamma_that_was_not_planned_is_refused(plan: Callable[..., Path], verdict: str) -> None:
    path = plan(**open_plan(point(1, 1024, 2, verdict), point(16, 1024, 2, verdict)))
    told = "undecided: expected off, gamma or a gamma that was planned, 1, 2, got 7"
    with pytest.raises(ValueError, match=told):
        export_settings(path, "vllm", undecided=7)


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


@pytest.mark.parametrize("option", ["pair", "sampling", "draft_sampling"])
def test_what_a_plan_does_not_take_is_refused(plan: Callable[..., Path], option: str) -> None:
    named = option.replace("_", " ")
    given: dict[str, Any] = {option: "x"}
    with pytest.raises(ValueError, match=f"{named}: expected a run directory, since a plan has but one answer"):
        export_settings(plan(), "vllm", **given)
