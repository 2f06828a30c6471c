"""Cells that a search timed: arms brought to one pace, γ that were left out with the reason, and what is warned of."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specgauge.bench.timing.blocks import TimingCell
from specgauge.model.search.search import SEARCH_NOTE
from specgauge.sweeps.analysis.predictions import predict
from specgauge.sweeps.analysis.timings import CellTimings, collect_timings
from specgauge.sweeps.analysis.warnings import timing_warnings
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run.progress import Lines
from specgauge.sweeps.run.timing import search_objectives
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import Run, acceptance_path
from tests.sweeps import made
from tests.sweeps.fake_bench import FakeBench

BASE = ("decode", "draft", "draft_catch_up")
GRID = {"batch_size": 1, "context": 64, "gamma": {"max": 3, "search": "adaptive"}}
SEARCHED = {**GRID, "batch_size": [1, 2]}
RULED_OUT = "cannot be best: S at most 1.1, best is 1.2"
SKIPPED = {"verify:3": (1, RULED_OUT), "verify:1": (4, RULED_OUT)}
"""Number of the block of the line, and the reason, by arm."""


def searched_run(
    path: Path,
    blocks: Mapping[str, Sequence[int]] | None = None,
    skipped: Mapping[str, tuple[int, str]] = SKIPPED,
    pace: Mapping[int, float] | None = None,
    ended: str = "decided",
    **changes: Any,
) -> Run:
    """γ = 1 in one block, γ = 2 in four, γ = 3 in none."""
    blocks = blocks or {arm: range(3) for arm in BASE} | {"verify:1": [0], "verify:2": range(1, 5)}
    config = made.config(**{"grid": GRID, **changes})
    run = made.write_run(path, config, {"greedy": made.acceptance_frame(10, 16)}, only=set())
    with made.begin(path, config) as opened:
        for arm, numbers in blocks.items():
            for number in numbers:
                sample = [mark * (pace or {}).get(number, 1.0) for mark in made.marks(arm, 3)]
                opened.journal.append(made.line(arm, [sample] * 4, number, notes={SEARCH_NOTE: "racing"}))
        for arm, (number, reason) in skipped.items():
            line = made.line(arm, [], number, status="skipped", reason=reason, notes={SEARCH_NOTE: ended})
            opened.journal.append(line)
    return run


def timings(run: Run) -> CellTimings:
    (cell,) = collect_timings(plan_cells(run.config), run.config.grid.gamma, run.journal())
    return cell


def test_blocks_after_the_line_make_it_out_of_date(tmp_path: Path) -> None:
    """The search was resumed for another question, and then timed γ = 1."""
    cell = timings(searched_run(tmp_path / "run"))
    assert [cell.trouble(gamma) for gamma in (1, 2, 3)] == [("skipped", RULED_OUT), ("ok", ""), ("skipped", RULED_OUT)]
    assert (cell.arms["verify:1"].search, cell.arms["verify:2"].search) == ("decided", "")
    assert cell.arms["verify:1"].median_s == pytest.approx([made.T_VERIFY_S])
    blocks = {arm: range(6) for arm in (*BASE, "verify:1", "verify:2", "verify:3")}
    cell = timings(searched_run(tmp_path / "again", blocks))
    assert cell.trouble(1) == ("ok", "")
    assert (cell.arms["verify:1"].reason, cell.arms["verify:1"].search) == ("", "")


def test_arms_of_slow_blocks_are_taken_at_the_pace_of_all(tmp_path: Path) -> None:
    """Blocks 3 and 4 are half as slow again; T_verify(2) has two of its four blocks there, T_decode none."""
    run = searched_run(tmp_path, {**dict.fromkeys(BASE, range(3)), "verify:2": range(1, 5)}, pace={3: 1.5, 4: 1.5})
    cell = timings(run)
    decode, verify = cell.arms["decode"], cell.arms["verify:2"]
    assert verify.median_s[0] / decode.median_s[0] == pytest.approx(made.T_VERIFY_S / made.T_DECODE_S)
    assert verify.samples_as_taken_s[-1, 0] == 1.5 * made.T_VERIFY_S
    assert verify.samples_s.shape == verify.samples_as_taken_s.shape


def test_predictions_say_why_a_gamma_has_no_speedup(tmp_path: Path) -> None:
    predictions = predict(searched_run(tmp_path))
    rows = {row["gamma"]: row for row in predictions.rows}
    found = [(row["status"], row["reason"]) for row in rows.values()]
    assert found == [("skipped", RULED_OUT), ("ok", ""), ("skipped", RULED_OUT)]
    assert rows[1]["speedup"] is rows[3]["speedup"] is None
    assert rows[2]["p_best"] == 1.0
    (entry,) = predictions.recommendations
    assert (entry["decision"], entry["gamma"]) == ("speculate", 2)
    assert {warning["code"] for warning in predictions.warnings}.isdisjoint({"skipped", "not_converged"})


def test_a_search_that_ended_too_early_is_warned_of_and_so_is_drift_in_what_was_taken(tmp_path: Path) -> None:
    reason = "left out: time or blocks are spent; S at most 1.6, best is 1.2 so far"
    skipped = {**SKIPPED, "verify:3": (4, reason)}
    blocks = {arm: range(4) for arm in (*BASE, "verify:2")}
    run = searched_run(tmp_path, blocks, skipped, {2: 1.5, 3: 1.5}, ended="spent")
    found = {warning.code: warning for warning in timing_warnings(run.config, "p", [timings(run)])}
    assert found["search_left_open"].message.endswith(f"context 64, argmax, verify:3: {reason}")
    assert "drift" in found
    assert "skipped" not in found


def test_every_setting_of_a_chain_asks_its_question(tmp_path: Path) -> None:
    run = searched_run(tmp_path, acceptance_rule=["ratio", "match"])
    (cell,) = plan_cells(run.config)
    questions = search_objectives(run, "p", [cell])[cell.id]
    labels = [f"sampling greedy, same draft, {rule} rule" for rule in ("ratio", "match")]
    assert [one.label for one in questions] == labels
    assert questions[0].acceptance.tokens_per_round[0] == pytest.approx([1.5, 1.75, 1.875])
    assert questions[0].acceptance.tokens_per_round.shape == (201, 3)
    assert questions[0].acceptance.full_acceptance[0] == pytest.approx([0.5, 0.25, 0.125])
    acceptance_path(tmp_path, "p", "greedy").unlink()
    assert search_objectives(run, "p", [cell]) == {}


def measure(
    path: Path, monkeypatch: pytest.MonkeyPatch, bench: FakeBench, **changes: Any
) -> tuple[PairOutcome, list[dict[str, Any]], str]:
    """Measure the pair; its outcome, the questions of each search by cell, and what was said."""
    calls: list[dict[str, Any]] = []

    def measure_adaptively(pair: Any, cells: Sequence[TimingCell], *, questions: Any, **options: Any) -> None:
        assert [cell.cell_id for cell in cells] == list(questions)
        assert sum(bench.recorded) == 10, "it is searched with the acceptance just recorded"
        calls.append(questions)
        bench.measure_cells(pair, cells, **options)

    adaptive = ModuleType("specgauge.bench.timing.adaptive")
    adaptive.__dict__["measure_adaptively"] = measure_adaptively
    monkeypatch.setitem(sys.modules, adaptive.__name__, adaptive)
    said = StringIO()
    outcome = bench.measure_pair(path, made.config(**changes), Lines(said))
    return outcome, calls, said.getvalue()


def test_every_cell_is_searched_with_its_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: FakeBench
) -> None:
    outcome, (questions,), _ = measure(tmp_path, monkeypatch, bench, grid=SEARCHED)
    assert (outcome, len(questions)) == (PairOutcome(), 2)
    assert [one.label for (one,) in questions.values()] == ["", ""]


@pytest.mark.parametrize(("gamma", "error"), [(SEARCHED["gamma"], RuntimeError("bad")), ("1:3", None)])
def test_without_acceptance_or_a_search_every_gamma_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: FakeBench, gamma: Any, error: Exception | None
) -> None:
    bench.acceptance_error = error
    outcome, calls, said = measure(tmp_path, monkeypatch, bench, grid={**SEARCHED, "gamma": gamma})
    assert outcome.acceptance_reasons == ({} if error is None else {"greedy": "failed: RuntimeError: bad"})
    assert calls == []
    assert {arm for _, _, arm, _ in bench.measured} >= {"verify:1", "verify:2", "verify:3"}
    assert ("pair p: no acceptance to search by in 2 cells, all γ timed" in said) == (error is not None)
