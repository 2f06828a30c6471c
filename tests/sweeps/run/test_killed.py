"""A real pair, killed in cell 5 of 9 and out of memory in the largest; then the same command again.

Three workers with torch: the one that is killed, the one that goes on, and the next run's.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.loader import load_config
from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.run import isolation
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import JournalLine
from tests.sweeps import odd_workers
from tests.sweeps.apart import KILLED, by_cell, measured, specgauge, wait_for, worker_of


@contextmanager
def killing(run: Path, cell: Cell) -> Iterator[None]:
    """Kill the process that measures that cell, from outside."""
    ended = threading.Event()

    def kill() -> None:
        pid = wait_for(lambda: worker_of(run, cell) or ended.is_set())
        if not ended.is_set():
            os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield
    finally:
        ended.set()
        killer.join()


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
        "precision: {min_blocks: 2, max_blocks: 2, block_samples: 1, bootstrap_replicates: 10, relative_ci: 0.9}\n"
        "threads: 1\n"
    )
    return config


@dataclass(frozen=True, kw_only=True)
class Ended:
    """One `specgauge run`, once it has ended."""

    code: int
    out: str
    errors: str
    lines: tuple[JournalLine, ...]
    rows: list[dict[str, Any]]
    """Of predictions.csv."""
    page: str
    hidden: list[str]
    """Hidden files in the run directory."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """The run with the accidents, and the same command again without."""

    cells: tuple[Cell, ...]
    first: Ended
    second: Ended


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("nine")
    config, run = write_tiny_pair(folder), folder / "run"
    cells = plan_cells(load_config(config))
    (folder / "transformers.py").write_text("raise SystemExit('imported from where the user stands')")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("PYTHONPATH", odd_workers.PATHS)
        with pytest.MonkeyPatch.context() as accidents, killing(run, cells[4]):
            accidents.setattr(isolation, "WORKER", odd_workers.worker("little memory", f"pause in {cells[4].id}"))
            first = run_to_its_end(config, run)
        return Story(cells=cells, first=first, second=run_to_its_end(config, run))


def run_to_its_end(config: Path, path: Path) -> Ended:
    code, out, errors = specgauge(config.parent / "stderr", "run", config, "--out", path)
    run = Run.open(path)
    return Ended(
        code=code,
        out=out,
        errors=errors,
        lines=run.journal(),
        rows=[{str(name): value for name, value in row.items()} for row in run.predictions().to_dict("records")],
        page=(path / "report.html").read_text(encoding="utf-8"),
        hidden=[entry.name for entry in path.iterdir() if entry.name.startswith(".")],
    )


def test_the_run_goes_on_with_the_cells_after_the_one_that_was_killed(story: Story) -> None:
    assert story.first.code == 1, story.first.errors
    statuses = [by_cell(story.first.lines)[cell.id] for cell in story.cells]
    assert statuses == [{"ok"}] * 4 + [{"killed"}] + [{"ok"}] * 3 + [{"oom"}]
    assert f"pair tiny: killed: {KILLED}\n" in story.first.errors


def test_every_arm_of_the_cell_says_why_it_has_no_time(story: Story) -> None:
    killed = [line for line in story.first.lines if line.status == "killed"]
    assert {line.cell for line in killed} == {story.cells[4].id}
    assert {line.arm for line in killed} == set(arm_names((1, 2)))
    assert {line.reason for line in killed} == {KILLED}


def test_it_stands_in_the_table_the_answer_and_the_report(story: Story) -> None:
    found = {
        (row["batch_size"], row["context"], row["gamma"]): (row["status"], row["reason"]) for row in story.first.rows
    }
    assert found[2, 16, 1] == found[2, 16, 2] == ("killed", KILLED)
    assert [place for place, (status, _) in found.items() if status == "ok"] == [
        (batch_size, context, gamma)
        for batch_size, context in [(1, 8), (1, 16), (1, 512), (2, 8), (2, 512), (128, 8), (128, 16)]
        for gamma in (1, 2)
    ]
    warning = "1 of 9 cells killed, first batch size 2, context 16, argmax, decode: its process got"
    assert f"batch size 2, context 16: unknown, killed: {KILLED}\n" in story.first.out
    for text in (story.first.out, story.first.page):
        assert warning in text
        assert "if it is killed again, lower grid.batch_size or grid.context" in text


def test_the_next_run_measures_that_cell_only(story: Story) -> None:
    assert story.second.code == 0, story.second.errors
    before, after = story.first.lines, story.second.lines
    assert after[: len(before)] == before
    added = after[len(before) :]
    assert {line.cell for line in added} == {story.cells[4].id}
    assert sorted((line.arm, line.block) for line in added) == sorted(
        (arm, block) for arm in arm_names((1, 2)) for block in (0, 1)
    )
    assert len(measured(after)) == len(set(measured(after)))


def test_out_of_memory_is_a_result_beside_eight_good_cells(story: Story) -> None:
    statuses = [by_cell(story.second.lines)[cell.id] for cell in story.cells]
    assert statuses == [{"ok"}] * 8 + [{"oom"}]
    last = story.second.rows[-1]
    assert (last["batch_size"], last["context"], last["status"]) == (128, 512, "oom")
    assert "memory" in last["reason"]
    assert {row["status"] for row in story.second.rows[:-2]} == {"ok"}


def test_no_mark_is_left(story: Story) -> None:
    assert story.first.hidden == story.second.hidden == []
