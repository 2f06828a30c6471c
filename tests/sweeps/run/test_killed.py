"""A real pair, killed in cell 5 of 9 and out of memory in the largest; then the same command again.

Three workers with torch: the one that is killed, the one that is resumed, and the next run's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.loader import load_config
from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.run import worker
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import JournalLine
from tests.sweeps import odd_workers
from tests.sweeps.apart import KILLED, by_cell, measured, specgauge


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
    rows: list[dict[Any, Any]]
    page: str


def run_to_its_end(config: Path, path: Path) -> Ended:
    code, out, errors = specgauge(config.parent / "stderr", "run", config, "--out", path)
    run = Run.open(path)
    assert [entry for entry in path.iterdir() if entry.name.startswith(".")] == []
    page, rows = (path / "report.html").read_text(encoding="utf-8"), run.predictions().to_dict("records")
    return Ended(code=code, out=out, errors=errors, lines=run.journal(), rows=rows, page=page)


Story = tuple[tuple[Cell, ...], Ended, Ended]


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """The cells, the run with the accidents, and the same command again without."""
    folder = tmp_path_factory.mktemp("nine")
    config, run = write_tiny_pair(folder), folder / "run"
    cells = plan_cells(load_config(config))
    (folder / "transformers.py").write_text("raise SystemExit('imported from where the user stands')")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.syspath_prepend(folder)
        patched.setenv("OMP_NUM_THREADS", "1")
        patched.setenv("PYTHONPATH", odd_workers.PATHS)
        with pytest.MonkeyPatch.context() as accidents:
            accidents.setattr(worker, "WORK", odd_workers.with_accidents("little memory", f"death in {cells[4].id}"))
            first = run_to_its_end(config, run)
        return cells, first, run_to_its_end(config, run)


def test_the_cells_after_the_one_that_was_killed_are_measured(story: Story) -> None:
    cells, first, _ = story
    assert first.code == 1, first.errors
    statuses = [by_cell(first.lines)[cell.id] for cell in cells]
    assert statuses == [{"ok"}] * 4 + [{"killed"}] + [{"ok"}] * 3 + [{"oom"}]
    assert f"pair tiny: killed: {KILLED}\n" in first.errors
    killed = {(line.cell, line.arm, line.reason) for line in first.lines if line.status == "killed"}
    assert killed == {(cells[4].id, arm, KILLED) for arm in arm_names((1, 2))}
    found = {(row["batch_size"], row["context"]): (row["status"], row["reason"]) for row in first.rows}
    assert found[2, 16] == ("killed", KILLED)
    others = [(cell.batch_size, cell.context) for cell in cells[:8] if cell != cells[4]]
    assert [point for point, (status, _) in found.items() if status == "ok"] == others
    assert f"batch size 2, context 16: unknown, killed: {KILLED}\n" in first.out
    for text in (first.out, first.page):
        assert "1 of 9 cells killed, first batch size 2, context 16, argmax, decode: its process got" in text


def test_the_next_run_measures_that_cell_only(story: Story) -> None:
    cells, first, second = story
    assert second.code == 0, second.errors
    before, after = first.lines, second.lines
    assert after[: len(before)] == before
    added = sorted((line.cell, line.arm, line.block) for line in after[len(before) :])
    assert added == sorted((cells[4].id, arm, block) for arm in arm_names((1, 2)) for block in (0, 1))
    assert len(measured(after)) == len(set(measured(after)))
    assert [by_cell(after)[cell.id] for cell in cells] == [{"ok"}] * 8 + [{"oom"}]
    last = second.rows[-1]
    assert (last["batch_size"], last["context"], last["status"]) == (128, 512, "oom")
    assert "memory" in last["reason"]
    assert {row["status"] for row in second.rows[:-2]} == {"ok"}
