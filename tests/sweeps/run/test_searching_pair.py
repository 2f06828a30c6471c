"""A pair whose γ are searched for: acceptance first, its questions handed to the timing, all γ where there are none."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specgauge.bench.timing.blocks import TimingCell
from specgauge.sweeps.run.pair import PairOutcome, PairRun
from specgauge.sweeps.run.progress import progress_to
from tests.sweeps import made
from tests.sweeps.fake_bench import FakeBench

GRID = {"batch_size": [1, 2], "context": 64, "gamma": {"max": 3, "search": "adaptive"}}


def measure(
    path: Path, monkeypatch: pytest.MonkeyPatch, bench: FakeBench, **changes: Any
) -> tuple[PairOutcome, list[dict[str, Any]], str]:
    """Measure the pair; its outcome, what the search was called with, and what was said."""
    calls: list[dict[str, Any]] = []

    def measure_adaptively(pair: Any, cells: Sequence[TimingCell], *, questions: Any, **options: Any) -> None:
        calls.append({"cells": [cell.cell_id for cell in cells], "questions": questions, "judged": list(bench.judged)})
        bench.measure_cells(pair, cells, **options)

    adaptive = ModuleType("specgauge.bench.timing.adaptive")
    adaptive.__dict__["measure_adaptively"] = measure_adaptively
    for name, module in {**bench.modules(), adaptive.__name__: adaptive}.items():
        monkeypatch.setitem(sys.modules, name, module)
    prompts = bench.modules()["specgauge.bench.prompts"].__dict__["read_prompts"](None)
    said = StringIO()
    with made.begin(path, made.config(**changes)) as run, progress_to(said) as progress:
        outcome = PairRun(run, run.config.pairs[0], prompts, progress).measure()
    return outcome, calls, said.getvalue()


def test_every_cell_is_searched_with_the_acceptance_just_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome, calls, _ = measure(tmp_path, monkeypatch, FakeBench(), grid=GRID)
    assert outcome == PairOutcome()
    (call,) = calls
    assert len(call["judged"]) == 1
    assert list(call["questions"]) == call["cells"]
    assert len(call["cells"]) == 2
    for questions in call["questions"].values():
        (question,) = questions
        assert question.tokens_per_round[0] == pytest.approx([1.5, 1.75, 1.875])


def test_without_acceptance_every_gamma_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeBench(acceptance_error=RuntimeError("bad"))
    outcome, calls, said = measure(tmp_path, monkeypatch, bench, grid=GRID)
    assert outcome.acceptance_reasons == {"greedy": "failed: RuntimeError: bad"}
    assert calls == []
    assert {arm for _, _, arm, _ in bench.measured} >= {"verify:1", "verify:2", "verify:3"}
    assert "pair p: no acceptance to search by in 2 cells, all γ timed" in said


def test_where_all_gammas_are_asked_for_nothing_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = FakeBench()
    _, calls, _ = measure(tmp_path, monkeypatch, bench, grid={**GRID, "gamma": "1:3"})
    assert calls == []
    assert {arm for _, _, arm, _ in bench.measured} >= {"verify:1", "verify:2", "verify:3"}
