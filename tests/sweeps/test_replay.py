"""Replays of a run directory: costs of its cells, signals of its files, tables, JSON, and what cannot be replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specgauge.cli.main import main
from specgauge.configs.canonical import strict_loads
from specgauge.model.policies.policy import FixedPolicy
from specgauge.model.policies.tuning import MAKERS
from specgauge.sweeps.analysis.replay_inputs import replay_costs, replayed_texts, rollouts_of
from specgauge.sweeps.analysis.settings import RunSetting, run_settings
from specgauge.sweeps.analysis.timings import CellTimings, collect_timings
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.replay import ReplayedCell, replay_run, replays_json, replays_text
from specgauge.sweeps.store.rundir import ROLLOUTS, Run
from tests.sweeps.made import acceptance_frame, config, known, write_run

TWO = {"two": lambda _: FixedPolicy(gamma=2)}


def made(path: Path, prompts: int = 4, positions: int = 8, **changes: Any) -> Run:
    grid = {"batch_size": [1, 2], "context": 64, "gamma": [1, 2, 3]}
    workload = {"prompts": "embedded", "max_new_tokens": positions + 1}
    whole = config(**{"grid": grid, "workload": workload, **changes})
    return write_run(path, whole, {"greedy": acceptance_frame(prompts, positions, 1.0)})


def cells(run: Run) -> tuple[CellTimings, ...]:
    return collect_timings(plan_cells(run.config), run.config.grid.gamma, run.journal())


def only_setting(run: Run) -> RunSetting:
    return next(iter(run_settings(run, {})))


def test_costs_are_the_medians_of_the_parts(tmp_path: Path) -> None:
    one, two = cells(made(tmp_path / "run"))
    costs = known(replay_costs(one, None))
    assert (costs.batch_size, costs.t_decode_s, costs.t_draft_catch_up_s) == (1, 1.0, 0.0625)
    assert costs.t_round_s == (1.0, 1.375, 1.5, 1.625)  # C(γ) = .125 γ, T_verify 1.25
    slower, at_least_verification = known(replay_costs(two, 0.5)), known(replay_costs(one, -9.0))
    assert (slower.batch_size, slower.t_round_s) == (2, (1.5, 1.875, 2.0, 2.125))
    assert at_least_verification.t_round_s == (1.0, 1.25, 1.25, 1.25)


def test_between_measured_gammas_verification_is_linear_up_to_the_largest_with_times(tmp_path: Path) -> None:
    whole = config(grid={"batch_size": 1, "context": 64, "gamma": [1, 3]})
    costs = known(replay_costs(cells(write_run(tmp_path / "run", whole, {}, scale={"verify:3": 2.0}))[0], None))
    assert costs.t_round_s == (1.0, 0.125 + 1.25, 0.25 + 1.875, 0.375 + 2.5)
    broken = {(1, 64, "verify:3"): ("oom", "out of memory")}
    capped = known(replay_costs(cells(write_run(tmp_path / "oom", config(), {}, broken=broken))[0], None))
    assert capped.gamma_max == 2
    assert replay_costs(cells(write_run(tmp_path / "none", whole, {}, only=set()))[0], None) is None


def write_rollouts(path: Path) -> None:
    signals = {"top_prob": [0.25, 0.5, 0.75, 1.0], "entropy_nats": [2.0, 1.0, 0.5, 0.0], "token": 7}
    chains = {"prompt": [0, 0, 1, 1], "repetition": 0, "start": [2, 2, 5, 5], "depth": [1, 2, 1, 1]}
    setting = {"sampling": "greedy", "draft_sampling": "same", "acceptance_rule": "ratio"}
    frame = pd.DataFrame({"pair": ["p", "p", "p", "other"], **setting, **chains, **signals})
    frame.to_parquet(path, index=False)


def test_rollouts_of_the_setting_are_taken_where_there_are_any(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    setting = only_setting(run)
    assert rollouts_of(run, setting) is None
    assert replayed_texts(run, setting, context=64, gamma_max=3).chains.off_path == "assumed"
    write_rollouts(run.path / ROLLOUTS)
    rollouts = known(rollouts_of(run, setting))
    assert rollouts.top_prob.tolist() == [0.25, 0.5, 0.75]
    texts = replayed_texts(run, setting, context=64, gamma_max=3)
    assert texts.chains.off_path == "measured"
    assert texts.chains.top_probs[texts.chains.chain_of[0, 2]].tolist() == [0.25, 0.5]
    assert texts.chains.entropies_nats[texts.chains.chain_of[1, 5]].tolist() == [0.5, 0.5]
    assert rollouts_of(run, replace(setting, key=replace(setting.key, sampling="t1"))) is None


def test_texts_are_those_recorded(tmp_path: Path) -> None:
    run = made(tmp_path / "run", prompts=3, positions=5)
    texts = replayed_texts(run, only_setting(run), context=64, gamma_max=3)
    np.testing.assert_array_equal(texts.acceptance, np.ones((3, 5)))
    assert texts.ends.limits.tolist() == [5, 5, 5]
    assert texts.prompts.tolist() == [0, 1, 2]
    assert (texts.top_probs == 0.5).all()
    assert (texts.entropies_nats == 1.0).all()


def replays(run: Run, **wanted: Any) -> list[ReplayedCell]:
    return replay_run(run, makers=TWO, replicates=2, **wanted)


def test_each_cell_is_replayed_at_its_own_costs(tmp_path: Path) -> None:
    run, told = made(tmp_path / "run"), list[str]()
    found = replay_run(run, makers=TWO, replicates=2, progress=told.append)
    assert [(cell.key["batch_size"], cell.key["context"]) for cell in found] == [(1, 64), (2, 64)]
    assert len(told) == 2
    assert told[0] == "pair p, eager, sampling greedy (drafts same, rule ratio), batch 1, context 64"
    for cell in found:
        # 8 positions, all accepted: 2 and a bonus, 2 and a bonus after a catch-up, 1 and a bonus after another
        result, seconds = known(cell.result), 1.5 + (1.5 + 0.0625) + (1.375 + 0.0625)
        assert result.policies["two"].speedup.value == pytest.approx(8 / seconds)
        assert (result.best_fixed_gamma, result.off_path, cell.t_overhead_s) == (3, "assumed", None)
    assert len(replays(run, batch_size=2)) == 1


def test_the_text_and_the_json_say_the_same(tmp_path: Path) -> None:
    found = replays(made(tmp_path / "run"), batch_size=1)
    text = replays_text(found)
    assert "pair p, eager, sampling greedy (drafts same, rule ratio), batch 1, context 64" in text
    assert "S of the best fixed gamma, 3: " in text
    assert "Every S is optimistic" in text
    assert "is assumed; to record it" in text
    (entry,) = strict_loads(replays_json(found))["replays"]
    assert entry["pair"] == "p"
    assert entry["prompts"] == 4
    policy = entry["policies"]["two"]
    assert f"{policy['speedup']['value']:.4g}" in text
    assert policy["speedup"]["low"] == pytest.approx(policy["speedup"]["value"])  # all prompts alike
    assert entry["label"].startswith("optimistic")
    assert entry["reason"] is None


def test_a_gamma_other_than_the_answers_is_explained(tmp_path: Path) -> None:
    single, batch = replays(made(tmp_path / "run"))
    assert (single.answer_gamma, known(single.result).best_fixed_gamma) == (3, 3)
    assert "the run recommends" not in replays_text([single, batch])
    for cell, waits in ((single, "short last rounds\n"), (batch, "last rounds, with the wait for the longest row\n")):
        text = replays_text([replace(cell, answer_gamma=2)])
        assert "\n  the run recommends gamma 2 here, the smallest within 1 % of the best by rounds " in text
        assert waits in text
    assert [one["answer_gamma"] for one in strict_loads(replays_json([single, batch]))["replays"]] == [3, 3]


@pytest.mark.parametrize(
    ("frames", "only", "words"),
    [
        ({}, None, "acceptance is not recorded yet"),
        ({"greedy": acceptance_frame(1, 4)}, None, "one prompt cannot both tune and test"),
        ({"greedy": acceptance_frame(3, 4)}, set(), "no round was timed here"),
    ],
)
def test_what_cannot_be_replayed_says_why(
    tmp_path: Path, frames: dict[str, pd.DataFrame], only: set[tuple[int, int]] | None, words: str
) -> None:
    (cell,) = replays(write_run(tmp_path / "run", config(), frames, only=only))
    assert cell.result is None
    assert words in replays_text([cell])
    (entry,) = strict_loads(replays_json([cell]))["replays"]
    assert (entry["policies"], words in entry["reason"]) == (None, True)


def test_the_command_replays_every_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made(tmp_path / "run", prompts=3, positions=4)
    assert main(["replay", str(tmp_path / "run"), "--batch-size", "1", "--replicates", "2", "--json"]) == 0
    out, err = capsys.readouterr()
    assert err.startswith("replaying pair p")
    assert set(strict_loads(out)["replays"][0]["policies"]) == set(MAKERS)


def test_lookups_are_replayed_from_where_rounds_start(tmp_path: Path) -> None:
    """Of three drafts at every start two pass: 8 positions are 3 + 3 + 2, the last two by one draft and its bonus."""
    frame = acceptance_frame(4, 8).assign(proposed_length=3, match_length=2, lookup_match=2, rejected_target_prob=0.0)
    whole = config(
        pairs=[{"name": "p", "target": "embedded", "draft": "ngram"}],
        grid={"batch_size": 1, "context": 64, "gamma": [1, 2, 3]},
        workload={"prompts": "embedded", "max_new_tokens": 9},
    )
    run = write_run(tmp_path / "run", whole, {"greedy": frame})
    texts = replayed_texts(run, only_setting(run), context=64, gamma_max=3)
    assert (known(texts.lookups).offered == 3).all()
    assert texts.top_probs == pytest.approx(np.full((4, 8), 2 / 3))
    (cell,) = replays(run)
    result, seconds = known(cell.result), 1.5 + 1.5 + 1.375
    assert (result.best_fixed_gamma, result.off_path) == (2, "measured")
    assert result.policies["two"].speedup.value == pytest.approx(8 / seconds)
    assert result.bound_oracle_speedup == pytest.approx(8 / seconds)
    assert "is assumed" not in replays_text([cell])
