"""Texts that start exactly at a context of the grid answer for it; all other contexts take every text."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from specgauge.configs.schema import Config
from specgauge.sweeps.analysis.predictions import predict
from specgauge.sweeps.analysis.settings import RunSetting, run_settings
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.store.rundir import Run
from tests.sweeps import made
from tests.sweeps.decoded import key
from tests.sweeps.made import acceptance_frame, exact, known, write_run

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
