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
from specgauge.model.arms import arm_names
from specgauge.model.settings import Setting
from specgauge.reports.html import write_report
from specgauge.sweeps.analysis.acceptance import recorded_texts
from specgauge.sweeps.analysis.predictions import predict, predict_run
from specgauge.sweeps.analysis.timings import ArmTimings, CellTimings, collect_timings
from specgauge.sweeps.analysis.warnings import timing_warnings
from specgauge.sweeps.estimate import memory_bytes, time_estimate
from specgauge.sweeps.model_sizes import NO_MODEL, read_model_size, read_sizes
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.run.pair import PairRun
from specgauge.sweeps.run.progress import Progress
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.store.rundir import Run
from tests.sweeps import made
from tests.sweeps.fake_bench import FakeBench

POSITIONS = 17
SETTING = Setting(pair="p", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")


def config(draft: Any = "ngram", **changes: Any) -> Config:
    plain: dict[str, Any] = {
        "pairs": [{"name": "p", "target": "embedded", "draft": draft}],
        "workload": {"max_new_tokens": POSITIONS + 1},
        "grid": {"batch_size": [1, 2], "context": 64, "gamma": "1:3"},
    }
    return made.config(**(plain | changes))


def lookup_frame(prompts: int = 10) -> pd.DataFrame:
    """Every token certain under the target, so that overlaps are what happened."""
    rows = [(prompt, position) for prompt in range(prompts) for position in range(POSITIONS)]
    drafts = [position % 3 == 0 for _, position in rows]
    nothing = [math.nan] * len(rows)
    names = ("draft_prob", "overlap_ratio", "overlap_match", "draft_argmax_target_prob", "draft_top_prob")
    return pd.DataFrame(
        {
            "prompt": [prompt for prompt, _ in rows],
            "repetition": 0,
            "position": [position for _, position in rows],
            "context": [64 + position for _, position in rows],
            "token": [position for _, position in rows],
            "target_prob": 1.0,
            "draft_argmax": pd.array([None] * len(rows), dtype="Int32"),
            **dict.fromkeys((*names, "draft_entropy_nats"), nothing),
            "proposed_length": [3 * one for one in drafts],
            "match_length": [int(one) for one in drafts],
            "lookup_match": [2 * one for one in drafts],
            "rejected_target_prob": [
                0.0 if one and position < 16 else math.nan for one, (_, position) in zip(drafts, rows, strict=True)
            ],
            "end_reason": "length",
        }
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made.write_run(tmp_path / "run", config(), {"greedy": lookup_frame()})


def exact(value: float) -> Any:
    return pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("batch_size", [1, 2])
def test_rounds_cost_what_their_drafts_do(run: Run, batch_size: int) -> None:
    rows = [row for row in predict(run).rows if row["batch_size"] == batch_size]
    verify_s = {1: 9 / 8, 2: 19 / 16}[batch_size]
    assert [row["gamma"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert (row["status"], row["reason"]) == ("ok", "")
        assert row["tokens_per_round"] == exact(1.5)
        assert row["accepted_draft_tokens"] == exact(0.5)
        assert row["drafts_per_round"] == exact(row["gamma"] / 2)
        assert row["full_acceptance"] == exact(0.5 if row["gamma"] == 1 else 0.0)
        assert row["t_draft_total_s"] == row["gamma"] / 8
        assert row["t_draft_catch_up_s"] == 0.0
        assert row["t_verify_s"] == 1.25
        assert row["t_verify_mean_s"] == exact(verify_s)
        assert row["t_round_s"] == exact(row["gamma"] / 8 + verify_s)
        assert row["speedup"] == exact(1.5 / (row["gamma"] / 8 + verify_s))
        assert row["speedup_low"] == exact(row["speedup"])
        assert row["cost_known"] == "measured"


def test_it_is_recommended_and_nothing_is_missing(run: Run) -> None:
    found = predict_run(run)
    assert [(entry["decision"], entry["gamma"]) for entry in found.recommendations] == [("speculate", 1)] * 2
    assert found.recommendations[0]["speedup"]["value"] == exact(1.2)
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


def test_lookup_cells_have_no_catch_up_and_their_hash_is_that_of_their_axes() -> None:
    lookups, models = plan_cells(config()), plan_cells(config("embedded"))
    assert [cell.id for cell in lookups] == [cell.id for cell in models]
    assert [cell.catches_up for cell in (*lookups, *models, *plan_cells(config({"layers": 2})))] == [False] * 2 + [
        True
    ] * 4
    timed = collect_timings(lookups, (1, 2, 3), ())
    assert set(timed[0].arms) == set(arm_names((1, 2, 3), catches_up=False))
    assert timed[0].trouble(1)[0] == "unmeasured"


def test_lookups_are_held_against_their_round() -> None:
    """Microseconds that double and scatter matter little in rounds of a second; a draft model's do."""

    def arm(name: str, *samples_s: float) -> ArmTimings:
        blocks = dict(enumerate(np.array(samples_s, dtype=np.float64).reshape(2, -1, 1)))
        return ArmTimings(arm=name, status="ok", reason="", blocks=blocks, blocks_as_taken_s=blocks)

    def codes(*, catches_up: bool) -> set[str]:
        cell = Cell(pair="p", mode="eager", chain="argmax", batch_size=1, context=64, catches_up=catches_up)
        arms = [arm("decode", *[1.0] * 10), arm("verify:1", *[1.5] * 10), arm("draft", *[1e-6] * 5, *[2e-6] * 5)]
        timed = CellTimings(cell=cell, arms={one.arm: one for one in arms})
        return {warning.code for warning in timing_warnings(config(grid={"gamma": 1}), "p", [timed])}

    assert codes(catches_up=False) == set()
    assert codes(catches_up=True) == {"not_converged", "drift"}


def test_recorded_lookups_say_of_themselves_what_texts_say() -> None:
    texts = recorded_texts(lookup_frame(3))
    assert (texts.prompts, texts.positions, texts.null_share) == (3, 51, 0.0)
    assert texts.covers(80)
    assert sorted(set(texts.overlaps("match", "greedy").tolist())) == [1.0]
    rounds = texts.rounds(SETTING, gammas=[1, 3], max_new_tokens=POSITIONS + 1)
    assert texts.chain_check(rounds, SETTING).consistent


def test_texts_of_another_chain_are_noticed() -> None:
    """Proposals that the target held certain, and that no text has."""
    frame = lookup_frame().assign(match_length=0)
    frame["rejected_target_prob"] = frame["proposed_length"].map({0: math.nan, 3: 1.0})
    texts = recorded_texts(frame)
    rounds = texts.rounds(SETTING, gammas=[1], max_new_tokens=POSITIONS + 1)
    check = texts.chain_check(rounds, SETTING)
    assert (check.deviation_per_position, check.consistent) == (-1.0, False)


SHAPE = {
    "model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_size": 32, "vocab_size": 100, "max_position_embeddings": 128, "dtype": "bfloat16",
}  # fmt: skip
TENSORS = {"model.embed_tokens.weight": (100, 32), "model.norm.weight": (32,)} | {
    f"model.layers.{layer}.mlp.weight": (10, 32) for layer in range(4)
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "Hello"}\n' * 20)
    return made.model_folder(tmp_path / "model", SHAPE, TENSORS)


def described(folder: Path, draft: Any) -> Config:
    return config(
        draft,
        pairs=[{"name": "p", "target": str(folder), "draft": draft}],
        workload={"prompts": str(folder.parent / "prompts.jsonl"), "max_new_tokens": 16},
    )


def test_the_first_layers_share_the_targets_weights_but_for_their_cache(folder: Path) -> None:
    asked = described(folder, {"layers": 1})
    sizes = read_sizes(asked)["p"]
    assert sizes.target is not None
    assert sizes.draft is not None
    assert (sizes.target.parameters, sizes.draft.parameters) == (3232 + 4 * 320, 3232 + 320)
    cells = plan_cells(asked)
    found = memory_bytes(asked, sizes, cells)
    alone = memory_bytes(asked, read_sizes(described(folder, "ngram"))["p"], cells)
    assert found["weights"] == alone["weights"] == 2 * (3232 + 4 * 320)
    # keys and values of 4 and of 1 layers: 2 · layers · 2 heads · 8 wide · (64 + 3 + 1) tokens · 2 rows · 2 bytes
    assert alone["keys and values"] == 2 * 4 * 2 * 8 * 68 * 2 * 2
    assert found["keys and values"] == 2 * 5 * 2 * 8 * 68 * 2 * 2


def test_lookups_need_no_memory_and_little_time(folder: Path) -> None:
    asked = described(folder, "ngram")
    sizes = read_sizes(asked)["p"]
    assert sizes.draft == NO_MODEL
    alone, beside = (
        time_estimate(one, one.pairs[0], read_sizes(one)["p"], prompts=20)
        for one in (asked, described(folder, str(folder)))
    )
    assert alone is not None
    assert beside is not None
    assert alone.acceptance_s < beside.acceptance_s


def test_more_layers_than_the_target_can_spare_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"pair 'p': draft layers: .* 1 to 3 .* 4"):
        read_sizes(described(folder, {"layers": 4}))
    size = read_model_size(config(str(folder)).pairs[0].target, role="target", layers=2)
    assert size is not None
    assert size.layers == 2


@pytest.mark.parametrize(
    ("draft", "loaded"), [("ngram", ["p"]), ({"layers": 2}, ["p"]), ("embedded", ["draft", "target"])]
)
def test_one_model_is_loaded_once_even_where_models_are_loaded_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draft: Any, loaded: list[str]
) -> None:
    fake = FakeBench().take_over(monkeypatch)
    asked = config(draft, acceptance={"sequential": True}, workload={"max_new_tokens": 16, "limit": 10})
    with made.begin(tmp_path / "run", asked) as opened:
        prompts = fake.modules()["specgauge.bench.prompts"].read_prompts(asked.workload)
        PairRun(Session(opened, asked.pairs[0], prompts, Progress())).measure()
    assert fake.loaded[: len(loaded)] == loaded
    assert len(fake.judged) == 1
