from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from specgauge.bench.decoding.records import NonFiniteLogitsError
from specgauge.configs.schema import Config
from specgauge.model.arms import arm_names
from specgauge.sweeps.run import runner
from specgauge.sweeps.store.rundir import Run, acceptance_path, prompt_rows
from tests.sweeps import made
from tests.sweeps.apart import pairs
from tests.sweeps.fake_bench import FakeBench, OutOfMemoryError

GRID = {"batch_size": [1, 2], "context": [64, 65], "gamma": "1:3"}
CELLS, ARMS, BLOCKS = 4, len(arm_names((1, 2, 3))), 3


def run(path: Path, config: Config | None = None, **options: Any) -> int:
    return runner.run(config or made.config(grid=GRID), out=path, **options)


def test_a_run_writes_every_file_and_prints_the_answer(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"

    def report(run_dir: Path) -> Path:
        assert len(Run.open(run_dir).predictions()) == CELLS * 3
        return run_dir / "report.html"

    assert run(path, made.config(grid=GRID, threads=3), report=report) == 0
    assert sorted(entry.name for entry in path.iterdir()) == [
        "acceptance", "cells.jsonl", "config.yaml", "environment.json", "predictions.csv", "prompts.jsonl",
        "recommendation.yaml",
    ]  # fmt: skip
    assert len(bench.measured) == CELLS * ARMS * BLOCKS
    assert bench.threads == [3]
    (recorded,) = (path / "acceptance").iterdir()
    assert pq.read_schema(recorded).metadata == {b"specgauge_schema": b"1"}
    out, err = capsys.readouterr()
    assert out.startswith("pair p, sampling greedy\n  batch size 1, context 64: speculate with γ = 2, 1.15 ×")
    assert out.splitlines()[-1] == f"report: {path / 'report.html'}"
    assert [line for line in err.splitlines() if line.endswith("…")] == [
        "loading p …", "writing texts, p, greedy …", "acceptance, p, greedy …", "timing p …", "predicting …",
    ]  # fmt: skip
    before = (path / "cells.jsonl").read_bytes()
    bench.measured.clear()
    bench.recorded.clear()
    assert run(path, made.config(grid=GRID, threads=3)) == 0
    assert (bench.measured, bench.recorded) == ([], [])
    assert (path / "cells.jsonl").read_bytes() == before
    prompts = [json.loads(line) for line in (path / "prompts.jsonl").read_text().splitlines()]
    assert prompts[1] == {
        "schema": 1, "pair": "p", "prompt": 1, "category": None, "text": "text 1", "tokens": [1],
    }  # fmt: skip


@pytest.mark.parametrize("status", ["failed", "oom"])
def test_a_failed_cell_loses_no_other_and_is_tried_again_unless_out_of_memory(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    path, failed = tmp_path / "run", status == "failed"
    reason = "RuntimeError: bad" if failed else "OutOfMemoryError: full"
    bench.fails_at = {(2, 65): RuntimeError("bad") if failed else OutOfMemoryError("full")}
    assert run(path) == int(failed)
    assert len(bench.measured) == (CELLS - 1) * ARMS * BLOCKS
    assert f"batch size 2, context 65: unknown, {status}: {reason}" in capsys.readouterr().out
    bench.fails_at = {}
    bench.measured.clear()
    assert run(path) == 0
    assert {(b, s) for b, s, _, _ in bench.measured} == ({(2, 65)} if failed else set())
    assert len(bench.measured) == (ARMS * BLOCKS if failed else 0)
    last = Run.open(path).predictions().to_dict("records")[-1]
    assert (last["context"], last["status"], last["reason"]) == ((65, "ok", "") if failed else (65, status, reason))


def test_a_pair_that_cannot_be_loaded_loses_no_other(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.load_error = {"bad": ValueError("pair 'bad' target: cannot load 'x': no config.json")}
    config = made.config(pairs=pairs("bad", "p"))
    assert run(tmp_path / "run", config) == 2
    out, err = capsys.readouterr()
    assert "not measured: pair 'bad' target: cannot load 'x': no config.json" in err
    assert "pair p, sampling greedy\n  batch size 1, context 64: speculate" in out
    assert "batch size 1, context 64: unknown, unmeasured: not measured yet" in out
    bench.load_error = {}
    assert run(tmp_path / "run", config) == 0
    assert sorted((row.pair, row.prompt) for row in prompt_rows(tmp_path / "run")) == [
        (pair, n) for pair in ("bad", "p") for n in range(10)
    ]


def test_when_no_pair_can_be_loaded_that_is_the_error(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.load_error = {"p": ValueError("pair 'p': target and draft use different tokenizers")}
    with pytest.raises(ValueError, match=r"^pair 'p': target and draft use different tokenizers$"):
        run(tmp_path / "run")
    bench.load_error |= {"q": ValueError("pair 'q': no weights")}
    with pytest.raises(
        ValueError, match=r"^pair 'p': target and draft use different tokenizers; pair 'q': no weights$"
    ):
        run(tmp_path / "both", made.config(grid=GRID, pairs=pairs("p", "q")))
    bench.load_error = {"p": OutOfMemoryError("139 GiB")}
    assert run(tmp_path / "run", made.config(seed=3)) == 1
    assert capsys.readouterr().out.startswith("Nothing was measured: oom: loading: OutOfMemoryError: 139 GiB\n")
    table = Run.open(tmp_path / "run").predictions()
    assert (set(table["status"]), set(table["reason"])) == ({"oom"}, {"loading: OutOfMemoryError: 139 GiB"})


@pytest.mark.parametrize(
    ("sequential", "broken", "error", "status"),
    [
        (False, "a", NonFiniteLogitsError("pair 'p' target", 3, 7), "failed"),
        (True, "b", NonFiniteLogitsError("pair 'p' target", 3, 7), "failed"),
        (False, "b", OutOfMemoryError("full"), "oom"),
    ],
)
def test_a_sampling_setting_without_acceptance_loses_no_other_and_no_timing(
    tmp_path: Path,
    bench: FakeBench,
    monkeypatch: pytest.MonkeyPatch,
    sequential: bool,
    broken: str,
    error: Exception,
    status: str,
) -> None:
    """Its texts cannot be written, so no acceptance is; the next run tries it again."""
    path, generate = tmp_path / "run", sys.modules["specgauge.bench.decoding.plain"]
    write = generate.generate_plain

    def refuse(model: Any, prompts: Any, settings: Any, **options: Any) -> Any:
        if (settings.temperature == 0.0) == (broken == "a"):
            raise error
        return write(model, prompts, settings, **options)

    monkeypatch.setattr(generate, "generate_plain", refuse)
    sampling = [{"name": "a", "temperature": 0}, {"name": "b"}]
    config = made.config(grid=GRID, acceptance={"sequential": sequential}, sampling=sampling)
    assert run(path, config) == int(status == "failed")
    (kept,) = {"a", "b"} - {broken}
    assert list((path / "acceptance").iterdir()) == [acceptance_path(path, "p", kept)]
    table = Run.open(path).predictions()
    reasons = {name: set(rows["reason"]) for name, rows in table.groupby("sampling")}
    assert set(table["t_decode_s"]) == {1.0}
    assert reasons == {broken: {f"{status}: {type(error).__name__}: {error}"}, kept: {""}}
    timed = len(bench.measured)
    monkeypatch.setattr(generate, "generate_plain", write)
    assert run(path, config) == 0
    assert len(list((path / "acceptance").iterdir())) == 2
    assert len(bench.measured) == timed


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"run_seconds": 1e-9}, "limits.run_seconds is spent; raise it and run the same command again"),
        ({"memory": 1}, "skipped: "),
    ],
)
def test_limits_that_leave_nothing_are_told_first_and_end_with_code_1(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str], limits: dict[str, Any], why: str
) -> None:
    assert run(tmp_path / "run", made.config(limits=limits)) == 1
    assert bench.measured == []
    assert capsys.readouterr().out.startswith(f"Nothing was measured: {why}")


def test_an_error_after_measuring_costs_that_page_alone(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("division\nby zero")

    path = tmp_path / "run"
    assert run(path, report=broken) == 1
    out, err = capsys.readouterr()
    kept = f"everything measured is kept in {path}, and `specgauge run` makes what is missing of it"
    assert f"no report: ZeroDivisionError: division by zero; {kept}\n" in err
    assert "speculate with γ = 2" in out
    measured = len(bench.measured)
    with monkeypatch.context() as patched:
        patched.setattr(runner, "predict_run", broken)
        assert run(path, report=lambda folder: folder / "report.html") == 1
    out, err = capsys.readouterr()
    assert f"no predictions.csv and recommendation.yaml: ZeroDivisionError: division by zero; {kept}\n" in err
    assert ("speculate with γ = 2" in out, out.splitlines()[-1]) == (True, f"report: {path / 'report.html'}")
    with monkeypatch.context() as patched:
        patched.setattr(runner, "recommend", broken)
        assert run(path) == 1
    out, err = capsys.readouterr()
    assert ("no answer: ZeroDivisionError" in err, out) == (True, f"run: {path}\n")
    assert run(path) == 0
    assert len(bench.measured) == measured
