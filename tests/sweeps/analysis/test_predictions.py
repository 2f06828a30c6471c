"""Predictions of runs whose times and acceptance are constants, against figures worked out by hand.

T_decode = 1 s, C(k) = k/8 s, Δ₂ = 1/16 s, T_verify = 5/4 s at every γ, acceptance 1/2 at every position, B = 1:
A_i = 2^-i, Ω = 3/2, 7/4, 15/8, and T_round = γ/8 + A_γ/16 + 5/4 = 45/32, 97/64, 209/128. Then texts of several
lengths: those that start exactly at a context of the grid answer for it; all other contexts take every text.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import yaml

from specgauge.configs.schema import Config
from specgauge.model.arms import arm_names
from specgauge.model.decision import OPTIMISTIC, costs_from_blocks
from specgauge.reports import records as records_module
from specgauge.sweeps.analysis import predictions as predictions_module
from specgauge.sweeps.analysis import timings as timings_module
from specgauge.sweeps.analysis.predictions import AnalysedRun, predict, predict_run
from specgauge.sweeps.analysis.settings import RunSetting, run_settings
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.store.derived import stands
from specgauge.sweeps.store.rows import plain
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow
from tests.sweeps import made
from tests.sweeps.decoded import key
from tests.sweeps.made import acceptance_frame, exact, known, write_run
from tests.sweeps.store.test_tables import CELL

OMEGA = {1: 3 / 2, 2: 7 / 4, 3: 15 / 8}
T_ROUND_S = {1: 45 / 32, 2: 97 / 64, 3: 209 / 128}
S = {gamma: OMEGA[gamma] / T_ROUND_S[gamma] for gamma in OMEGA}


def rows_at(run: Run, **key: Any) -> list[dict[str, Any]]:
    return [row for row in predict(run).rows if all(row[name] == value for name, value in key.items())]


def rows_of(run: Run, **key: Any) -> dict[int, dict[str, Any]]:
    return {row["gamma"]: row for row in rows_at(run, **key)}


def codes(run: Run) -> list[str]:
    return [warning["code"] for warning in predict(run).warnings]


def test_outcomes_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, read = write_run(tmp_path / "run", made.config(), {"greedy": acceptance_frame(10, 16)}), Mock(return_value={})
    for module in (predictions_module, timings_module, records_module):
        monkeypatch.setattr(module, "read_outcomes", read)
    AnalysedRun.read(run)
    assert read.call_count == 1
    predict_run(run)
    read.reset_mock()
    records_module.read_report_data(run.path)
    assert read.call_count == 1


def test_what_crosses_devices_is_a_part_of_its_own(tmp_path: Path) -> None:
    """1/32 s a draft; T_round has it, ε and C(γ) do not."""
    texts = {"greedy": acceptance_frame(10, 16)}
    run = write_run(tmp_path / "run", made.config(), texts, transfers=True)
    rows = rows_of(run)
    assert {gamma: row["t_transfer_s"] for gamma, row in rows.items()} == {1: 1 / 32, 2: 2 / 32, 3: 3 / 32}
    assert {gamma: row["t_round_s"] for gamma, row in rows.items()} == {
        gamma: exact(seconds + gamma / 32) for gamma, seconds in T_ROUND_S.items()
    }
    assert {row["t_draft_total_s"] for row in rows.values()} == {1 / 8, 2 / 8, 3 / 8}
    broken = {(1, 64, "transfer"): ("failed", "RuntimeError: peer access")}
    without = rows_of(write_run(tmp_path / "broken", made.config(), texts, transfers=True, broken=broken))
    assert {(row["status"], row["reason"], row["speedup"]) for row in without.values()} == {
        ("failed", "RuntimeError: peer access", None)
    }


def test_constant_times_and_acceptance_give_s_by_hand(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", made.config(), {"greedy": acceptance_frame(10, 16)})
    found = predict(run)
    assert found.rows == tuple(
        CELL
        | {
            "gamma": gamma, "t_decode_s": 1.0, "t_draft_total_s": gamma / 8, "t_draft_catch_up_s": 1 / 16,
            "t_verify_s": 1.25, "t_verify_mean_s": 1.25, "t_overhead_s": None, "t_round_s": exact(T_ROUND_S[gamma]),
            "tokens_per_round": exact(OMEGA[gamma]), "tokens_per_round_low": exact(OMEGA[gamma]),
            "tokens_per_round_high": exact(OMEGA[gamma]), "accepted_draft_tokens": exact(OMEGA[gamma] - 1),
            "drafts_per_round": gamma, "full_acceptance": exact(2.0**-gamma), "speedup": exact(S[gamma]),
            "speedup_low": exact(S[gamma]), "speedup_high": exact(S[gamma]), "p_best": float(gamma == 2),
            "is_best": gamma == 2, "is_recommended": gamma == 2, "cost_provenance": "measured",
            "acceptance_provenance": "measured", "label": OPTIMISTIC, "status": "ok", "reason": "",
            "t_transfer_s": None,
        }
        for gamma in (1, 2, 3)
    )  # fmt: skip
    (entry,) = found.recommendations
    assert entry == CELL | {
        "decision": "speculate", "gamma": 2, "best_gamma": 2, "recommended_gamma": 2,
        "speedup": {"value": exact(S[2]), "low": exact(S[2]), "high": exact(S[2])}, "p_gamma_best": 1.0,
        "speedup_predicted": {"value": exact(S[2]), "low": exact(S[2]), "high": exact(S[2])},
        "expected_loss": 0.0, "p_speculation_pays": 1.0, "t_overhead_s": None, "t_decode_s": 1.0,
        "t_round_s": exact(T_ROUND_S[2]), "tokens_per_round": exact(OMEGA[2]), "whole_rounds": False,
        "reason": "P(S > 1) = 1.000 at gamma 2",
    }  # fmt: skip


def test_a_chain_that_falls_costs_the_same_in_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C(2) = 1/16 after C(1) = 1/8 is noise: C(2) counts as 1/8, and T_round is the sum of the row's own parts."""
    monkeypatch.setattr(made, "marks", lambda arm, _: {"draft": [0.125, 0.0625, 0.375]}.get(arm, [1.25]))
    run = write_run(tmp_path / "run", made.config(), {"greedy": acceptance_frame(10, 16)})
    for row in predict(run).rows:
        assert row["t_draft_total_s"] == {1: 0.125, 2: 0.125, 3: 0.375}[row["gamma"]]
        parts_s = row["t_draft_total_s"] + row["full_acceptance"] * row["t_draft_catch_up_s"] + row["t_verify_s"]
        assert row["t_round_s"] == exact(parts_s)


def test_the_smallest_gamma_within_a_hundredth_is_recommended(tmp_path: Path) -> None:
    """T_verify(2) × 1.01 costs γ = 2 about 0.8 %: γ = 3 is best by a hair, γ = 2 within 1 % of it."""
    run = write_run(tmp_path / "run", made.config(), {"greedy": acceptance_frame(10, 16)}, scale={"verify:2": 1.01})
    s_2 = OMEGA[2] / (T_ROUND_S[2] + 0.0125)
    assert S[3] * 0.99 < s_2 < S[3]
    (entry,) = predict(run).recommendations
    assert (entry["best_gamma"], entry["recommended_gamma"], entry["gamma"]) == (3, 2, 2)
    assert entry["speedup"]["value"] == exact(s_2)
    assert (entry["expected_loss"], entry["p_gamma_best"]) == (exact(1 - s_2 / S[3]), 0.0)
    slow = {f"verify:{gamma}": 4.0 for gamma in (1, 2, 3)}
    run = write_run(tmp_path / "slow", made.config(), {"greedy": acceptance_frame(10, 16)}, scale=slow)
    (entry,) = predict(run).recommendations
    assert (entry["decision"], entry["gamma"], entry["recommended_gamma"]) == ("do not speculate", None, 3)
    assert (entry["p_speculation_pays"], entry["reason"]) == (0.0, "P(max S > 1.01) = 0.000")


def test_rounds_catch_up_when_any_row_was_fully_accepted_and_end_without_a_bonus_on_an_eos(tmp_path: Path) -> None:
    """Δ₂ timed below 0 is 0; an EOS that is always accepted: rounds emit the accepted draft and no bonus."""
    frames = {"greedy": acceptance_frame(10, 16)}
    config = made.config(grid={"batch_size": 4, "context": 64, "gamma": "1:3"})
    for gamma, row in rows_of(write_run(tmp_path / "batch", config, frames)).items():
        any_full = 1 - (1 - 2.0**-gamma) ** 4
        assert row["t_round_s"] == exact(gamma / 8 + any_full / 16 + 1.25)
    row = rows_of(write_run(tmp_path / "negative", made.config(), frames, scale={"draft_catch_up": 0.5}))[1]
    assert (row["t_draft_catch_up_s"], row["t_round_s"]) == (0.0, 1.375)
    frame = acceptance_frame(10, 1, accepted=1.0, end_reason="eos")
    row = rows_of(write_run(tmp_path / "eos", made.config(), {"greedy": frame}))[3]
    assert (row["tokens_per_round"], row["accepted_draft_tokens"]) == (1.0, 1.0)


def test_undecided_when_prompts_disagree(tmp_path: Path) -> None:
    """Half of the prompts accept everything, half nothing: S is near 1 and prompts alone move it either way."""
    frame = acceptance_frame(10, 16)
    accepted = (frame["prompt"] % 2).astype(float)
    frame = frame.assign(draft_prob=accepted, overlap_ratio=accepted)
    config = made.config(grid={"batch_size": 1, "context": 64, "gamma": 1})
    run = write_run(tmp_path / "run", config, {"greedy": frame}, scale={"verify:1": 0.96})
    (entry,) = predict(run).recommendations
    assert (entry["decision"], entry["gamma"], entry["best_gamma"]) == ("undecided", None, 1)
    assert 0.05 < entry["p_speculation_pays"] < 0.95
    assert entry["speedup"]["low"] < 1 < entry["speedup"]["high"]
    assert "undecided" in codes(run)


def test_one_prompt_tells_nothing_about_others(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", made.config(), {"greedy": acceptance_frame(1, 16)})
    rows = rows_of(run)
    assert rows[2]["speedup"] == exact(S[2])
    assert [rows[2][name] for name in ("speedup_low", "tokens_per_round_low", "p_best")] == [None, None, None]
    (entry,) = predict(run).recommendations
    assert (entry["decision"], entry["p_speculation_pays"]) == ("undecided", None)
    assert "few_prompts" in codes(run)


def test_rules_and_draft_sampling_are_keys(tmp_path: Path) -> None:
    config = made.config(draft_sampling=["same", "greedy"], acceptance_rule=["ratio", "match"])
    frame = acceptance_frame(10, 16).assign(
        draft_prob=0.5, target_prob=0.5, overlap_ratio=1.0, overlap_match=0.5, draft_argmax_target_prob=0.25
    )
    frame["draft_argmax"] = frame["token"].where(frame["position"] % 4 == 0, -1)
    run = write_run(tmp_path / "run", config, {"greedy": frame})
    found = rows_at(run, gamma=1)
    assert {(row["draft_sampling"], row["acceptance_rule"]): row["full_acceptance"] for row in found} == {
        ("same", "ratio"): exact(1.0),
        ("same", "match"): exact(0.5),
        ("greedy", "ratio"): exact(0.25),
        ("greedy", "match"): exact(0.25),
    }


def test_acceptance_is_extrapolated_outside_its_contexts(tmp_path: Path) -> None:
    config = made.config(grid={"batch_size": 1, "context": [63, 64, 79, 80], "gamma": "1:3"})
    run = write_run(tmp_path / "run", config, {"greedy": acceptance_frame(10, 16, context=64)})
    known = {row["context"]: row["acceptance_provenance"] for row in predict(run).rows}
    assert known == {63: "extrapolated", 64: "measured", 79: "measured", 80: "extrapolated"}
    (warning,) = [w for w in predict(run).warnings if w["code"] == "acceptance_extrapolated"]
    assert "at contexts 64 to 79; at 63, 80 it is" in warning["message"]


def test_troubled_arms_stay_visible(tmp_path: Path) -> None:
    config = made.config(grid={"batch_size": [1, 2, 4], "context": 64, "gamma": "1:3"})
    broken = {(4, 64, arm): ("oom", "OutOfMemoryError: full") for arm in arm_names((1, 2, 3))}
    broken |= {(1, 64, "verify:2"): ("failed", "RuntimeError: bad")}
    frames = {"greedy": acceptance_frame(10, 16)}
    run = write_run(tmp_path / "run", config, frames, broken=broken, only={(1, 64), (4, 64)})
    one = rows_of(run, batch_size=1)
    assert (one[2]["status"], one[2]["reason"]) == ("failed", "RuntimeError: bad")
    assert [one[2][name] for name in ("t_verify_s", "t_round_s", "speedup")] == [None, None, None]
    assert (one[2]["t_decode_s"], one[2]["tokens_per_round"]) == (1.0, exact(OMEGA[2]))
    assert one[2]["label"] == one[2]["cost_provenance"] == ""
    assert one[3]["speedup"] == exact(S[3])
    assert (one[3]["is_best"], one[3]["p_best"]) == (True, 1.0)
    assert {row["status"] for row in rows_of(run, batch_size=2).values()} == {"unmeasured"}
    four = rows_of(run, batch_size=4)
    assert {(row["status"], row["reason"]) for row in four.values()} == {("oom", "OutOfMemoryError: full")}
    entries = {entry["batch_size"]: entry for entry in predict(run).recommendations}
    assert (entries[1]["decision"], entries[1]["gamma"]) == ("speculate", 3)
    assert (entries[4]["decision"], entries[4]["reason"]) == ("undecided", "oom: OutOfMemoryError: full")
    assert entries[4]["speedup"] == {"value": None, "low": None, "high": None}
    assert {"oom", "failed", "unmeasured"} <= set(codes(run))
    assert "undecided" not in codes(run)


def test_missing_acceptance_is_a_reason(tmp_path: Path) -> None:
    sampling = [{"name": "greedy", "temperature": 0}, {"name": "t1"}]
    run = write_run(tmp_path / "run", made.config(sampling=sampling), {"greedy": acceptance_frame(10, 16)})
    rows = rows_of(run, sampling="t1")
    assert (rows[1]["status"], rows[1]["t_decode_s"], rows[1]["tokens_per_round"]) == ("unmeasured", 1.0, None)
    assert rows[1]["reason"].startswith("acceptance is not recorded yet; run the same command again")
    assert rows_of(run, sampling="greedy")[2]["speedup"] == exact(S[2])


def test_settings_share_the_timings_of_their_chain(tmp_path: Path) -> None:
    warm = [{"name": "a", "temperature": 0.7}, {"name": "b", "temperature": 0.8}]
    config = made.config(sampling=[*warm, {"name": "greedy", "temperature": 0}], draft_sampling=["same", "greedy"])
    run = write_run(tmp_path / "run", config, {name: acceptance_frame(10, 16) for name in ("a", "b", "greedy")})
    with made.begin(run.path, config) as opened:
        (cell,) = (cell for cell in plan_cells(config) if cell.chain == "argmax")
        for block in range(3):
            opened.journal.append(made.line("draft", [[0.0625, 0.125, 0.1875]], block, **cell.axes))
    for row in rows_at(run, gamma=3):
        is_slow = row["sampling"] != "greedy" and row["draft_sampling"] == "same"
        assert row["t_draft_total_s"] == (0.375 if is_slow else 0.1875)
    assert "draft_timed_drawing" not in codes(run)


def test_settings_that_share_a_cells_arms_share_its_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rules times two draft samplings whose draft has one chain only, greedy: one cell, made once."""
    config = made.config(
        grid={"batch_size": [1, 2], "context": 64, "gamma": "1:3"},
        draft_sampling=["same", "greedy"],
        acceptance_rule=["ratio", "match"],
    )
    run = write_run(tmp_path / "run", config, {"greedy": acceptance_frame(10, 16)})
    from_blocks = Mock(side_effect=costs_from_blocks)
    monkeypatch.setattr("specgauge.sweeps.analysis.cell_estimate.costs_from_blocks", from_blocks)
    assert len(predict(run).rows) == 2 * 4 * 3
    assert from_blocks.call_count == 2


def test_files_come_back_as_written(tmp_path: Path) -> None:
    path, frame = tmp_path / "run", acceptance_frame(10, 16)
    accepted = 0.25 + 0.05 * frame["prompt"]
    frame = frame.assign(draft_prob=accepted, overlap_ratio=accepted)
    predictions = predict_run(write_run(path, made.config(), {"greedy": frame}))
    run = Run.open(path)
    assert tuple(plain(row) for row in run.rows(PredictionRow)) == predictions.rows
    assert (run.recommendations(), run.warnings) == (predictions.recommendations, predictions.warnings)
    assert yaml.safe_load((path / "recommendation.yaml").read_text())["schema"] == 1


def test_an_impossible_figure_is_left_unknown_and_told_and_what_is_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", made.config(), {"greedy": made.acceptance_frame(10, 16)})
    rule = predictions_module.recommendation

    def wrong(*arguments: Any) -> dict[str, Any]:
        return rule(*arguments) | {"expected_loss": math.nan}

    monkeypatch.setattr(predictions_module, "recommendation", wrong)
    found = predict_run(run)
    assert [entry["expected_loss"] for entry in found.recommendations] == [None]
    (told,) = [warning["message"] for warning in found.warnings if warning["code"] == "impossible_figure"]
    assert told == "1 figure came out as none can be and left unknown: expected_loss"
    assert stands(run.path)
    assert Run.open(run.path).recommendations() == found.recommendations


GRID = {"batch_size": 1, "context": [64, 96, 128], "gamma": "1:2"}


def config(**changes: object) -> Config:
    return made.config(**{"grid": GRID, "workload": {"prompt_tokens": [64, 128]}, **changes})


def from_two_lengths(prompts: int = 4) -> pd.DataFrame:
    """Every draft passes with probability 1/2 in texts that start at 64, with 1/4 in those that start at 128."""
    long = acceptance_frame(prompts, 16, 0.25, context=128)
    return pd.concat([acceptance_frame(4, 16, 0.5, context=64), long.assign(prompt=long["prompt"] + 4)])


def only_setting(path: Path, frame: pd.DataFrame, made_of: Config | None = None) -> tuple[Run, RunSetting]:
    run = write_run(path, made_of or config(), {"greedy": frame})
    (setting,) = run_settings(run, {})
    return run, setting


def omega(setting: RunSetting, context: int) -> list[float]:
    rounds = known(setting.acceptance_at(context))
    return [float(value) for value in rounds.tokens_per_round[0]]


def test_texts_that_start_at_a_context_answer_for_it(tmp_path: Path) -> None:
    """Ω(1) = 1 + a, Ω(2) = 1 + a + a²."""
    run, setting = only_setting(tmp_path / "run", from_two_lengths())
    assert sorted(setting.starting_at) == [64, 128]
    rounds = known(setting.acceptance_at(128))
    assert rounds.prompts == (4, 5, 6, 7)
    assert rounds.full_acceptance[0].tolist() == exact([0.25, 0.0625])
    found = {(row["context"], row["gamma"]): row for row in predict(run).rows}
    for context, tokens in ((64, [1.5, 1.75]), (96, omega(setting, 96)), (128, [1.25, 1.3125])):
        assert [found[context, gamma]["tokens_per_round"] for gamma in (1, 2)] == exact(tokens)
    assert found[64, 2]["speedup"] == exact(1.75 / (0.25 + 0.25 / 16 + 1.25))
    assert found[128, 2]["speedup"] == exact(1.3125 / (0.25 + 0.0625 / 16 + 1.25))
    assert {row["acceptance_provenance"] for row in found.values()} == {"measured"}


def test_other_contexts_take_all_texts(tmp_path: Path) -> None:
    """16 positions, starts up to 14 (γ_max = 2). All accepted: 8 rounds of 2 tokens at γ = 1, 5 of 3 at γ = 2.

    None accepted: 15 rounds of 1. As many texts of each: Ω(1) = 31/23, Ω(2) = 30/20.
    """
    frame = from_two_lengths()
    passed = (frame["prompt"] < 4).astype(float)
    frame = frame.assign(draft_prob=passed, overlap_ratio=passed)
    _, setting = only_setting(tmp_path / "run", frame)
    assert (omega(setting, 64), omega(setting, 128)) == (exact([2.0, 3.0]), exact([1.0, 1.0]))
    assert setting.rounds_at(96) is setting.rounds
    assert known(setting.rounds).acceptance.prompts == tuple(range(8))
    assert omega(setting, 96) == exact([31 / 23, 1.5])


def test_pairs_that_are_not_wanted_are_passed_over(tmp_path: Path) -> None:
    made_of = made.config(pairs=[{"name": name, "target": "embedded", "draft": "embedded"} for name in "pq"])
    run = write_run(tmp_path / "run", made_of, {"greedy": acceptance_frame(4, 16)})
    assert [setting.key.pair for setting in run_settings(run, {})] == ["p", "q"]
    assert [setting.key.pair for setting in run_settings(run, {}, pairs=["q"])] == ["q"]


def test_what_does_not_answer_for_a_context(tmp_path: Path) -> None:
    """A later position (texts from 64 pass through 70), texts that all start there, one prompt, no acceptance."""
    grid = {"batch_size": 1, "context": [64, 70, 128], "gamma": "1:2"}
    frames = {"later": from_two_lengths(), "all": acceptance_frame(4, 16), "one": from_two_lengths(prompts=1)}
    found = {name: only_setting(tmp_path / name, frame, config(grid=grid))[1] for name, frame in frames.items()}
    starts = {name: sorted(setting.starting_at) for name, setting in found.items()}
    assert starts == {"later": [64, 128], "all": [], "one": [64]}
    assert found["later"].rounds_at(70) is found["later"].rounds
    (without,) = run_settings(write_run(tmp_path / "without", config(), {}), {("p", "greedy"): "oom: full"})
    assert (without.rounds_at(64), without.texts, without.reason) == (None, None, "oom: full")
    cell = Cell(pair="p", mode="eager", chain="argmax", batch_size=4, context=96)
    assert without.decoded_key(cell) == key(batch_size=4, start_context=96)
