"""Runs in which lookups draft, or the target's first layers: planned, sized and predicted like any other.

The texts of the lookup run have 17 positions. A round at 0, 3, 6, … is offered three drafts of which one passes, so
that it goes on at 2, 5, 8, …, where nothing is found and a plain step follows. Of the starts with three positions left
half draft: Ω = 3/2 at every γ. T_decode = 1 s, C(k) = k/8 s, T_verify = 5/4 s, so

    B = 1    T_round = γ/8 + 1/2 · 1 + 1/2 · 5/4 = γ/8 + 9/8
    B = 2    T_round = γ/8 + 1/4 · 1 + 3/4 · 5/4 = γ/8 + 19/16       one row that drafts makes the block wide
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specgauge.configs.schema import Config
from specgauge.reports.html import write_report
from specgauge.sweeps.analysis.acceptance import recorded_texts
from specgauge.sweeps.analysis.predictions import predict, predict_run
from specgauge.sweeps.analysis.timings import ArmTimings, CellTimings
from specgauge.sweeps.analysis.warnings import timing_warnings
from specgauge.sweeps.estimate import time_estimate
from specgauge.sweeps.memory import memory_bytes
from specgauge.sweeps.model_sizes import NO_MODEL, read_sizes
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.store.rundir import Run
from tests.sweeps import made
from tests.sweeps.fake_bench import FakeBench
from tests.sweeps.store.test_tables import GREEDY
from tests.sweeps.test_estimate import SHAPE, TENSORS, with_models

POSITIONS = 17


def config(draft: Any = "ngram", **changes: Any) -> Config:
    plain: dict[str, Any] = {
        "pairs": [{"name": "p", "target": "embedded", "draft": draft}],
        "workload": {"max_new_tokens": POSITIONS + 1},
        "grid": {"batch_size": [1, 2], "context": 64, "gamma": "1:3"},
    }
    return made.config(**(plain | changes))


def lookup_frame(prompts: int = 10) -> pd.DataFrame:
    """Every token certain under the target, so that overlaps are what happened."""
    frame = made.acceptance_frame(prompts, POSITIONS)
    drafts = (frame["position"] % 3 == 0).astype(int)
    unknown = (
        *("draft_prob", "overlap_ratio", "overlap_match", "draft_argmax_target_prob", "draft_top_prob"),
        "draft_entropy_nats",
    )
    return frame.assign(
        **dict.fromkeys(unknown, math.nan),
        draft_argmax=pd.array([None] * len(frame), dtype="Int32"),
        proposed_length=3 * drafts,
        match_length=drafts,
        lookup_match=2 * drafts,
        rejected_target_prob=np.where((drafts == 1) & (frame["position"] < 16), 0.0, math.nan),
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made.write_run(tmp_path / "run", config(), {"greedy": lookup_frame()})


@pytest.mark.parametrize("batch_size", [1, 2])
def test_rounds_cost_what_their_drafts_do(run: Run, batch_size: int) -> None:
    rows = [row for row in predict(run).rows if row["batch_size"] == batch_size]
    verify_s = {1: 9 / 8, 2: 19 / 16}[batch_size]
    assert [row["gamma"] for row in rows] == [1, 2, 3]
    for row in rows:
        draft_s = row["gamma"] / 8
        assert (row["status"], row["reason"], row["cost_provenance"]) == ("ok", "", "measured")
        assert [row[f"t_{name}_s"] for name in ("draft_total", "draft_catch_up", "verify")] == [draft_s, 0.0, 1.25]
        expected = {
            "tokens_per_round": 1.5, "accepted_draft_tokens": 0.5, "drafts_per_round": row["gamma"] / 2,
            "full_acceptance": 0.5 if row["gamma"] == 1 else 0.0, "t_verify_mean_s": verify_s,
            "t_round_s": draft_s + verify_s, "speedup": 1.5 / (draft_s + verify_s), "speedup_low": row["speedup"],
        }  # fmt: skip
        assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-12)


def test_it_is_recommended_and_nothing_is_missing(run: Run) -> None:
    found = predict_run(run)
    assert [(entry["decision"], entry["gamma"]) for entry in found.recommendations] == [("speculate", 1)] * 2
    assert found.recommendations[0]["speedup"]["value"] == made.exact(1.2)
    assert {warning["code"] for warning in found.warnings} == set()
    page = write_report(run.path).read_text(encoding="utf-8")
    assert "draft lookups of 3 down to 1 tokens" in page
    assert "not measured yet" not in page


def test_every_rule_and_draft_sampling_is_the_same_to_a_lookup(tmp_path: Path) -> None:
    asked = config(draft_sampling=["same", "greedy"], acceptance_rule=["ratio", "match"], sampling=[{"name": "t1"}])
    found = predict(made.write_run(tmp_path / "run", asked, {"t1": lookup_frame()}))
    assert len(found.recommendations) == 8
    speedups = {(row["batch_size"], row["gamma"], row["speedup"]) for row in found.rows}
    assert len(speedups) == 6
    assert "draft_timed_drawing" not in {warning["code"] for warning in found.warnings}


def test_lookups_are_held_against_their_round() -> None:
    """Microseconds that double and scatter matter little in rounds of a second; a draft model's do."""
    samples = {"decode": [1.0] * 10, "verify:1": [1.5] * 10, "draft": [1e-6] * 5 + [2e-6] * 5}
    blocks = {arm: dict(enumerate(np.reshape(taken, (2, 5, 1)))) for arm, taken in samples.items()}
    arms = {
        arm: ArmTimings(arm=arm, status="ok", reason="", blocks=own, blocks_as_taken_s=own)
        for arm, own in blocks.items()
    }
    for catches_up, expected in ((False, set()), (True, {"not_converged", "drift"})):
        cell = Cell(pair="p", mode="eager", chain="argmax", batch_size=1, context=64, catches_up=catches_up)
        found = timing_warnings(config(grid={"gamma": 1}), "p", [CellTimings(cell=cell, arms=arms)])
        assert {warning.code for warning in found} == expected


def test_lookups_of_another_chain_are_noticed() -> None:
    """Proposals that the target held certain, and that no text has, against lookups as they were recorded."""

    def check(frame: pd.DataFrame) -> tuple[float | None, bool]:
        texts = recorded_texts(frame)
        rounds = texts.rounds(GREEDY, gammas=[1, 3], max_new_tokens=POSITIONS + 1)
        found = texts.chain_check(rounds, GREEDY)
        return found.deviation_per_position, found.consistent

    frame = lookup_frame()
    assert check(frame)[1]
    frame["match_length"] = 0
    frame["rejected_target_prob"] = frame["proposed_length"].map({0: math.nan, 3: 1.0})
    assert check(frame) == (-1.0, False)


def test_what_drafts_without_a_model_of_its_own_needs_little(tmp_path: Path) -> None:
    """The first layers share the target's weights but for their cache; lookups need no memory and little time."""
    folder, grid = made.model_folder(tmp_path / "model", SHAPE, TENSORS), config().grid
    drafts = {"layers": {"layers": 1}, "lookups": "ngram", "model": str(folder)}
    asked = {
        name: with_models(folder, draft, grid=grid, acceptance={"batch_size": 1, "chunk": 1})
        for name, draft in drafts.items()
    }
    sizes = {name: read_sizes(one)["p"] for name, one in asked.items()}
    weights, layer = 4224 * 4, 2 * 2 * 8 * 128 * 2 * 4
    # keys and values of a layer: 2 · 2 heads · 8 wide · 128 slots · 2 rows · 4 bytes
    found = {name: memory_bytes(one, sizes[name], plan_cells(one)) for name, one in asked.items()}
    assert {name: (one["weights"], one["keys and values"]) for name, one in found.items()} == {
        "layers": (weights, 3 * layer), "lookups": (weights, 2 * layer), "model": (2 * weights, 4 * layer),
    }  # fmt: skip
    assert sizes["lookups"].draft == NO_MODEL
    times = {name: time_estimate(one, one.pairs[0], sizes[name], prompts=20) for name, one in asked.items()}
    seconds = {name: one and one.acceptance_s for name, one in times.items()}
    assert 0 < (seconds["lookups"] or 0) < (seconds["model"] or 0)
    with pytest.raises(ValueError, match=r"pair 'p': draft layers: expected 1 to 1 of the target's 2, got 2"):
        read_sizes(with_models(folder, {"layers": 2}))


@pytest.mark.parametrize(
    ("draft", "loaded"), [("ngram", ["p"]), ({"layers": 2}, ["p"]), ("embedded", ["draft", "target"])]
)
def test_one_model_is_loaded_once_even_where_models_are_loaded_one_after_the_other(
    tmp_path: Path, bench: FakeBench, draft: Any, loaded: list[str]
) -> None:
    asked = config(draft, acceptance={"sequential": True}, workload={"max_new_tokens": 16, "limit": 10})
    bench.measure_pair(tmp_path / "run", asked)
    assert bench.loaded[: len(loaded)] == loaded
    assert bench.recorded == ([10] if draft == "embedded" else [8, 2])
