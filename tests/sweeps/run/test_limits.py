"""`specgauge run` under `limits`, with rules of cells and variants: who is measured, and what the answer says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.schema import Config
from specgauge.sweeps.describe import read_sizes
from specgauge.sweeps.estimate import PairSizes
from specgauge.sweeps.model_sizes import ModelSize
from specgauge.sweeps.run import isolation, runner, worker
from specgauge.sweeps.run import limits as budget
from specgauge.sweeps.run.limits import Deadline
from specgauge.sweeps.run.worker import WorkerOutcome
from specgauge.sweeps.store.rundir import Run
from tests.sweeps import made
from tests.sweeps.fake_bench import FakeBench

GRID = {"batch_size": [1, 2], "context": [64, 65], "gamma": "1:3"}
PAIRS = [{"name": name, "target": "embedded", "draft": "embedded"} for name in ("p", "q")]
SIZE = ModelSize(parameters=10, dtype="float32", layers=1, kv_heads=1, head_dim=1)
SIZES = PairSizes(target=SIZE, draft=SIZE)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    fake = FakeBench().take_over(monkeypatch)
    monkeypatch.setattr(runner, "read_sizes", lambda config: {pair.name: SIZES for pair in config.pairs})
    monkeypatch.setattr(budget, "read_pair_sizes", lambda pair: SIZES)
    return fake


@pytest.fixture
def clock(bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block takes a second."""
    monkeypatch.setattr(runner, "Deadline", lambda seconds: Deadline(seconds, now=lambda: float(len(bench.measured))))


def warnings(path: Path, code: str) -> list[str]:
    return [warning["message"] for warning in Run.open(path).warnings if warning["code"] == code]


def test_the_seconds_are_those_of_all_pairs_and_the_answer_says_what_was_left_out(
    tmp_path: Path, bench: FakeBench, clock: None, capsys: pytest.CaptureFixture[str]
) -> None:
    config = made.config(grid=GRID, pairs=PAIRS, limits={"run_seconds": 100})  # a pair has 96 blocks
    assert runner.run(config, out=tmp_path / "run") == runner.DONE
    assert len(bench.measured) == 100
    left_out = ["pair q: limits.run_seconds is spent, left out: blocks of timing"]
    assert warnings(tmp_path / "run", "out_of_time") == left_out
    out = capsys.readouterr().out
    assert left_out[0] in out
    assert "run the same command again, it goes on where it stopped; or raise limits.run_seconds" in out
    longer = made.config(grid=GRID, pairs=PAIRS, limits={"run_seconds": 1e6})
    assert runner.run(longer, out=tmp_path / "run") == runner.DONE
    assert len(bench.measured) == 2 * len(set(bench.measured)) == 2 * 4 * 8 * 3  # pairs, places, arms, blocks
    assert warnings(tmp_path / "run", "out_of_time") == []


def test_cells_over_the_memory_are_in_predictions_and_in_the_answer(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights 80 bytes, keys and values 1088 and 1104 at batch size 1, twice that at 2."""
    config = made.config(grid=GRID, limits={"memory": 80 + 1104})
    assert runner.run(config, out=tmp_path / "run") == runner.DONE
    table = Run.open(tmp_path / "run").predictions()
    assert table.groupby("batch_size")["status"].unique().map(list).to_dict() == {1: ["ok"], 2: ["skipped"]}
    reasons = set(table[table["batch_size"] == 2]["reason"])
    assert all("limits.memory is 0.00113 MiB" in reason for reason in reasons)
    assert len(reasons) == 2
    assert warnings(tmp_path / "run", "skipped")[0].startswith("pair p: 2 of 4 cells skipped, first batch size 2,")
    assert "batch size 2, context 64: unknown, skipped: needs" in capsys.readouterr().out


def test_where_all_is_over_the_memory_only_that_is_said(tmp_path: Path, bench: FakeBench) -> None:
    assert runner.run(made.config(grid=GRID, limits={"memory": 79}), out=tmp_path / "run") == runner.DONE
    assert (len(warnings(tmp_path / "run", "skipped")), warnings(tmp_path / "run", "acceptance_missing")) == (1, [])
    assert bench.loaded == []


def test_variants_are_measured_each_as_a_pair_and_rules_leave_some_out(tmp_path: Path, bench: FakeBench) -> None:
    model = {"model": "embedded", "dtype": ["float32", "bfloat16"]}
    config = made.config(
        pairs=[{"name": "p", "target": model, "draft": "embedded"}],
        mode=["eager", "compile"],
        grid={**GRID, "exclude": [{"pair": "p-bfloat16-compile"}, {"mode": "compile", "batch_size": 2}]},
    )
    assert runner.run(config, out=tmp_path / "run") == runner.DONE
    assert bench.loaded == ["p-float32-eager", "p-float32-compile", "p-bfloat16-eager"]
    table = Run.open(tmp_path / "run").predictions()
    places = table.groupby(["pair", "mode"], sort=False)[["batch_size", "context"]].apply(
        lambda rows: sorted(set(rows.itertuples(index=False, name=None)))
    )
    every = [(1, 64), (1, 65), (2, 64), (2, 65)]
    assert places.to_dict() == {
        ("p-float32-eager", "eager"): every,
        ("p-float32-compile", "compile"): every[:2],
        ("p-bfloat16-eager", "eager"): every,
    }
    assert set(table["status"]) == {"ok"}
    assert {warning["code"] for warning in Run.open(tmp_path / "run").warnings} & {
        "acceptance_missing",
        "unmeasured",
    } == set()


class TestWorkers:
    """The seconds of a run that measures every pair in a process of its own."""

    def test_a_worker_is_told_the_seconds_that_are_left(
        self, tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        config, now, told = made.config(grid=GRID, pairs=PAIRS), [0.0], []

        def start(run: Path, pair: str, words: list[str]) -> tuple[int, WorkerOutcome | None]:
            told.append(words)
            now[0] += 4.0
            outcome = tmp_path / pair
            return worker.main([str(run), pair, str(outcome), *words]), worker.read_outcome(outcome)

        monkeypatch.setattr(isolation, "_start", start)
        monkeypatch.setattr(runner, "Deadline", lambda seconds: Deadline(9.0, now=lambda: now[0]))
        assert runner.run(config, out=tmp_path / "run", apart=True) == runner.DONE
        assert told == [["--seconds=9.0"], ["--seconds=5.0"]]

    def test_no_worker_is_started_for_nothing(
        self, tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started: list[str] = []

        def start(run: Path, pair: str, words: list[str]) -> tuple[int, WorkerOutcome | None]:
            started.append(pair)
            outcome = tmp_path / pair
            return worker.main([str(run), pair, str(outcome), *words]), worker.read_outcome(outcome)

        monkeypatch.setattr(isolation, "_start", start)
        monkeypatch.setattr(runner, "Deadline", lambda seconds: Deadline(0.0))
        assert runner.run(made.config(grid=GRID, pairs=PAIRS), out=tmp_path / "run", apart=True) == runner.DONE
        assert (started, bench.loaded) == (["p"], [])
        assert warnings(tmp_path / "run", "out_of_time") == [
            f"pair {name}: limits.run_seconds is spent, left out: whatever was missing" for name in "pq"
        ]

    def test_without_a_limit_nothing_is_told(self) -> None:
        assert worker.seconds_told(None) == worker.seconds_told(Deadline()) == []


def test_sizes_are_read_of_every_variant() -> None:
    target: Any = {"model": "embedded", "dtype": ["float32", "bfloat16"]}
    config: Config = made.config(pairs=[{"name": "p", "target": target, "draft": "embedded"}])
    sizes = [pair.target.weight_bytes for pair in read_sizes(config).values() if pair.target is not None]
    assert sizes[0] == 2 * (sizes[1] or 0)
