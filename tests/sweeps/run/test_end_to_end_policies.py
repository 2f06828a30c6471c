"""Adaptive policies in a run: which batches they decode, that they are tuned once, and what is told of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.schema import Config
from specgauge.model.policies.feedback import GoodputPolicy, HeuristicPolicy
from specgauge.sweeps.run import runner
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.tables import read_decoded, read_tuned
from tests.sweeps import made
from tests.sweeps.decoded import key
from tests.sweeps.fake_bench import Decoding, FakeBench
from tests.sweeps.run.test_verifying import use

ARMS = ["plain", "loop", "generate", "speculate:2", "adaptive:heuristic", "adaptive:goodput"]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    fake = use(FakeBench(), monkeypatch)
    fake.overhead_s, fake.look_s = 0.125, 0.5
    return fake


def config(batch_size: int = 1, **verify: Any) -> Config:
    grid = {"batch_size": batch_size, "context": 64, "gamma": "1:3"}
    plain = {"gamma": 2, "prompts": 4, "max_new_tokens": 6, "max_seconds": None, "policies": ["heuristic", "goodput"]}
    return made.config(grid=grid, validate={**plain, **verify})


def test_a_run_decodes_each_half_under_what_the_other_taught(tmp_path: Path, bench: FakeBench) -> None:
    """Four of the ten prompts are decoded; all ten were recorded and teach."""
    path = tmp_path / "run"
    assert runner.run(config(), out=path) == 0
    tuned = read_tuned(path)[key()]
    assert (tuned.t_overhead_s, tuned.t_look_s, tuned.gamma_max, tuned.prompts) == (0.125, 0.5, 3, 10)
    assert [half.tuned_on for half in tuned.halves] == [(1, 3, 5, 7, 9), (0, 2, 4, 6, 8)]
    assert bench.host_costs_at == [3]
    assert sorted(bench.warmed_up) == sorted(ARMS[:-1])  # shapes are the same under every policy
    blocks = [bench.decoded[i : i + len(ARMS)] for i in range(0, len(bench.decoded), len(ARMS))]
    assert [block[0].prompts for block in blocks] == [(0,), (1,), (2,), (3,)]
    for block in blocks:
        half = tuned.halves[block[0].prompts[0] % 2]
        assert sorted(one.arm for one in block) == sorted(ARMS)
        policies = {one.arm: one.policy for one in block if one.policy is not None}
        assert policies == {f"adaptive:{name}": policy for name, policy in half.policies.items()}
    rows = Run.open(path).validated_policies()
    assert [(row["policy"], row["blocks"], row["best_fixed_gamma"], row["t_look_s"]) for row in rows] == [
        ("goodput", 4, 2, 0.5), ("heuristic", 4, 2, 0.5),
    ]  # fmt: skip
    assert [row["gamma"] for row in Run.open(path).validation()] == [2]
    assert all(row["speedup_predicted"] is not None for row in rows)


def test_a_batch_has_prompts_of_one_half_only(tmp_path: Path, bench: FakeBench) -> None:
    assert runner.run(config(batch_size=3, prompts=5), out=tmp_path / "run") == 0
    found = {one.prompts for one in bench.decoded}
    requests, _ = read_decoded(tmp_path / "run")
    assert len(found) == 2
    for _, batch in requests.groupby("block"):
        assert len(set(batch["prompt"] % 2)) == 1
    assert {tuple(batch["prompt"].unique()) for _, batch in requests.groupby("block")} == {(0, 2, 4), (1, 3)}


def test_an_interrupted_run_goes_on_under_the_very_same_policies(tmp_path: Path, bench: FakeBench) -> None:
    path = tmp_path / "run"

    def interrupt(_: Decoding) -> None:
        if len(bench.decoded) == len(ARMS) + 2:
            raise KeyboardInterrupt

    bench.before_decoding = interrupt
    with pytest.raises(KeyboardInterrupt):
        runner.run(config(), out=path)
    kept = (path / "policies.json").read_bytes()
    bench.before_decoding = lambda _: None
    bench.overhead_s = 9.0
    assert runner.run(config(), out=path) == 0
    assert (path / "policies.json").read_bytes() == kept
    assert bench.host_costs_at == [3]
    arms = Counter(one.arm for one in bench.decoded)
    assert arms["adaptive:goodput"] >= 4
    goodput = {one.policy for one in bench.decoded if one.arm == "adaptive:goodput"}
    assert {policy.t_round_s[0] for policy in goodput if isinstance(policy, GoodputPolicy)} == {1.125}


def test_what_cannot_be_tuned_is_left_out_and_told(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.acceptance_error = RuntimeError("odd")
    assert runner.run(config(), out=tmp_path / "run") == 1
    assert {one.arm for one in bench.decoded} == set(ARMS[:-1])
    assert {one.policy for one in bench.decoded if one.arm == "adaptive:heuristic"} == {HeuristicPolicy(start=3, cap=3)}
    run = Run.open(tmp_path / "run")
    (warning,) = (one["message"] for one in run.warnings if one["code"] == "policy_left_out")
    assert warning.startswith("pair p: goodput left out of 1 cell, first sampling greedy, batch size 1, context 64: ")
    (row,) = run.validated_policies()
    assert (row["policy"], row["speedup_predicted"]) == ("heuristic", None)
    assert row["speedup_measured"] is not None
    assert "Traceback" not in capsys.readouterr().err


def test_nothing_is_tuned_where_nothing_is_asked_for(tmp_path: Path, bench: FakeBench) -> None:
    assert runner.run(config(policies=None), out=tmp_path / "run") == 0
    assert not (tmp_path / "run" / "policies.json").exists()
    assert bench.host_costs_at == []
