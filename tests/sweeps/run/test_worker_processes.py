"""Workers that die or are interrupted, in real processes: what is lost, what is told, what the next run measures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from specgauge.cli.main import main
from specgauge.configs.loader import config_to_yaml, load_config
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run import pair_process
from specgauge.sweeps.run.worker import measure_apart, work
from specgauge.sweeps.store.checkpoint import MARK
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made, odd_workers
from tests.sweeps.apart import (
    ARMS,
    CONFIG,
    FIRST,
    KILLED,
    PATIENCE_S,
    SECOND,
    by_cell,
    is_alive,
    measured,
    wait_for,
    worker_of,
)
from tests.sweeps.fake_bench import FakeBench


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers have to find."""
    monkeypatch.setenv("PYTHONPATH", odd_workers.PATHS)


Paused = tuple[Path, subprocess.Popen[str], int]
"""The run directory, the process of `specgauge run` in a group of its own, and its worker, which waits in a cell."""


@pytest.fixture
def paused(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Paused]:
    """In the second cell; `request.param`: further accidents of the worker."""
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(config_to_yaml(CONFIG))
    accidents = ",".join(["fake", *getattr(request, "param", ()), f"pause in {SECOND.id}"])
    command = [sys.executable, "-P", "-m", "tests.sweeps.odd_workers", accidents, "run", str(config)]
    with subprocess.Popen(
        [*command, "--out", str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            worker_or_end = wait_for(lambda: worker_of(run, SECOND) or process.poll() is not None)
            assert process.poll() is None, process.communicate()
            yield run, process, worker_or_end
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("to_whom", ["everybody", "the parent, by a scheduler"])
def test_an_interrupted_run_keeps_whole_lines_and_is_resumed(to_whom: str, paused: Paused, bench: FakeBench) -> None:
    run, process, worker_pid = paused
    if to_whom == "everybody":
        for number in (signal.SIGSTOP, signal.SIGCONT, signal.SIGINT):  # Ctrl-Z, fg, Ctrl-C
            os.killpg(process.pid, number)
    else:
        process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, "")
    assert errors.splitlines()[-1].startswith(f"specgauge: interrupted; every finished block is kept in {run}, ")
    assert "Traceback" not in errors
    assert not is_alive(worker_pid)
    assert not (run / MARK).exists()
    assert (run / "cells.jsonl").read_bytes().endswith(b"\n")
    before = Run.open(run).journal()
    assert by_cell(before) == {FIRST.id: {"ok"}}

    assert work(run, "p") == PairOutcome()
    after = Run.open(run).journal()
    assert after[: len(before)] == before
    assert by_cell(after) == {FIRST.id: {"ok"}, SECOND.id: {"ok"}}
    assert len(measured(after)) == len(set(measured(after)))


@pytest.mark.parametrize("paused", [("deaf",)], indirect=True, ids=["in the background"])
def test_a_worker_does_not_outlive_who_started_it(paused: Paused) -> None:
    run, process, worker_pid = paused
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    wait_for(lambda: not (run / MARK).exists())  # it ended as after Ctrl-C, not by a signal
    wait_for(lambda: not is_alive(worker_pid))
    with OpenRun(run, CONFIG, fresh=False) as opened:
        assert {line.cell for line in opened.journal.lines} == {FIRST.id}


def test_a_full_disk_is_one_line_and_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: FakeBench
) -> None:
    path = tmp_path / "run"
    config = made.config(grid={"batch_size": [1, 2, 4], "context": [64, 65, 66], "gamma": "1:3"})
    made.begin(path, config).close()
    with monkeypatch.context() as patched:
        patched.setattr(pair_process, "work_apart", odd_workers.with_accidents("fake", "full disk"))
        with pytest.raises(StorageError, match=r"cells\.jsonl: cannot write, File too large: what was measured before"):
            measure_apart(path, config, "p", say=print)
    content = (path / "cells.jsonl").read_bytes()
    assert content.endswith(b"\n")
    assert odd_workers.JOURNAL_BYTES - 1000 < len(content) <= odd_workers.JOURNAL_BYTES
    assert not (path / MARK).exists()
    assert work(path, "p") == PairOutcome()
    assert (path / "cells.jsonl").read_bytes().startswith(content)


SCRIPT = """
import sys
import specgauge
from specgauge.sweeps.run import pair_process
from tests.sweeps import odd_workers
from tests.sweeps.apart import CONFIG
print("the script runs", file=sys.stderr)
pair_process.work_apart = odd_workers.with_accidents("refuse in left_behind", "fake")
print(specgauge.run(CONFIG, out="run"))
sys.exit("torch" in sys.modules)
"""


def test_a_script_without_a_guard_runs_once_and_its_folder_is_not_the_workers(tmp_path: Path) -> None:
    (tmp_path / "left_behind.py").write_text("")
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("the script runs") == 1
    assert "timing p …" in ended.stderr.splitlines()
    assert ended.stdout.startswith("p, greedy")


def write_tiny_pair(folder: Path) -> Path:
    """A random pair, prompts, and a configuration whose ninth cell has caches of 300 million bytes."""
    from tests.bench.tiny_checkpoints import llama, save, word_tokenizer

    shape = {"head_dim": 64, "num_key_value_heads": 4, "max_position_embeddings": 1024}
    save(folder / "target", llama(**shape), word_tokenizer())
    save(folder / "draft", llama(seed=1, num_hidden_layers=1, **shape), word_tokenizer())
    prompts = [{"prompt": f"w{number} w{number + 1} w{number + 2}"} for number in range(3)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    config = folder / "config.yaml"
    config.write_text(
        "name: nine\n"
        "pairs: [{name: tiny, target: ./target, draft: ./draft}]\n"
        "workload: {prompts: prompts.jsonl, max_new_tokens: 8}\n"
        'grid: {batch_size: [1, 2, 128], context: [8, 16, 512], gamma: "1:2"}\n'
        "precision: {min_blocks: 2, max_blocks: 2, block_samples: 1, bootstrap_replicates: 200, relative_ci: 0.9}\n"
        "threads: 1\n"
    )
    return config


def test_the_cells_after_the_one_that_was_killed_are_measured_and_the_next_run_measures_that_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A real pair, killed in cell 5 of 9 and out of memory in the largest, in workers with torch."""
    config, path = write_tiny_pair(tmp_path), tmp_path / "run"
    cells, command = plan_cells(load_config(config)), ["run", str(config), "--out", str(path)]
    (tmp_path / "transformers.py").write_text("raise SystemExit('imported from where the user stands')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with monkeypatch.context() as accidents:
        accidents.setattr(
            pair_process, "work_apart", odd_workers.with_accidents("little memory", f"death in {cells[4].id}")
        )
        code = main(command)
    out, errors = capfd.readouterr()
    assert code == 1, errors
    assert [entry for entry in path.iterdir() if entry.name.startswith(".")] == []
    before = Run.open(path).journal()
    assert [by_cell(before)[cell.id] for cell in cells] == [{"ok"}] * 4 + [{"killed"}] + [{"ok"}] * 3 + [{"oom"}]
    assert f"pair tiny: killed: {KILLED}\n" in errors
    killed = {(line.cell, line.arm, line.reason) for line in before if line.status == "killed"}
    assert killed == {(cells[4].id, arm, KILLED) for arm in ARMS}
    assert f"batch 2, context 16: killed: {KILLED}" in " ".join(out.split())
    for text in (out, (path / "report.html").read_text(encoding="utf-8")):
        assert "1 of 9 cells killed, first batch size 2, context 16, argmax, decode: its process got" in text

    assert main(command) == 0, capfd.readouterr().err
    assert [entry for entry in path.iterdir() if entry.name.startswith(".")] == []
    run = Run.open(path)
    after = run.journal()
    assert after[: len(before)] == before
    added = sorted(line.key for line in after[len(before) :])
    assert added == sorted((cells[4].id, arm, block) for arm in ARMS for block in (0, 1))
    assert len(measured(after)) == len(set(measured(after)))
    assert [by_cell(after)[cell.id] for cell in cells] == [{"ok"}] * 8 + [{"oom"}]
    *rows_before, last = run.rows(PredictionRow)
    assert (last.batch_size, last.context, last.status) == (128, 512, "oom")
    assert "memory" in last.reason
    assert {row.status for row in rows_before[:-1]} == {"ok"}
