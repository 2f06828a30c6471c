"""A real pair, killed in cell 5 of 9 and out of memory in the largest; then the same command again.

Three workers with torch: the one that is killed, the one that is resumed, and the next run's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specgauge.configs.loader import load_config
from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run import worker
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow
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


def run_to_its_end(config: Path, path: Path) -> tuple[int, str, str, Run]:
    code, out, errors = specgauge(config.parent / "stderr", "run", config, "--out", path)
    assert [entry for entry in path.iterdir() if entry.name.startswith(".")] == []
    return code, out, errors, Run.open(path)


def test_the_cells_after_the_one_that_was_killed_are_measured_and_the_next_run_measures_that_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, path = write_tiny_pair(tmp_path), tmp_path / "run"
    cells, arms = plan_cells(load_config(config)), arm_names((1, 2))
    (tmp_path / "transformers.py").write_text("raise SystemExit('imported from where the user stands')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", odd_workers.PATHS)
    with monkeypatch.context() as accidents:
        accidents.setattr(worker, "work_apart", odd_workers.with_accidents("little memory", f"death in {cells[4].id}"))
        code, out, errors, run = run_to_its_end(config, path)
    assert code == 1, errors
    before = run.journal()
    assert [by_cell(before)[cell.id] for cell in cells] == [{"ok"}] * 4 + [{"killed"}] + [{"ok"}] * 3 + [{"oom"}]
    assert f"pair tiny: killed: {KILLED}\n" in errors
    killed = {(line.cell, line.arm, line.reason) for line in before if line.status == "killed"}
    assert killed == {(cells[4].id, arm, KILLED) for arm in arms}
    assert f"batch size 2, context 16: unknown, killed: {KILLED}\n" in out
    for text in (out, (path / "report.html").read_text(encoding="utf-8")):
        assert "1 of 9 cells killed, first batch size 2, context 16, argmax, decode: its process got" in text

    code, _, errors, run = run_to_its_end(config, path)
    assert code == 0, errors
    after = run.journal()
    assert after[: len(before)] == before
    added = sorted(line.key for line in after[len(before) :])
    assert added == sorted((cells[4].id, arm, block) for arm in arms for block in (0, 1))
    assert len(measured(after)) == len(set(measured(after)))
    assert [by_cell(after)[cell.id] for cell in cells] == [{"ok"}] * 8 + [{"oom"}]
    *rows_before, last = run.rows(PredictionRow)
    assert (last.batch_size, last.context, last.status) == (128, 512, "oom")
    assert "memory" in last.reason
    assert {row.status for row in rows_before[:-1]} == {"ok"}
