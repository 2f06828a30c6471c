"""What a pair takes in memory by estimate, beside what it took, and which cells are left out for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from specgauge.bench.timing import arm_runner
from specgauge.cli.main import main
from specgauge.configs.loader import load_config
from specgauge.sweeps import memory
from specgauge.sweeps.describe import describe
from specgauge.sweeps.memory import (
    ALONE,
    PREFILL_TOKENS,
    fit_alone,
    memory_of,
    over_memory,
    over_what,
)
from specgauge.sweeps.model_sizes import ModelSize, PairSizes, read_sizes
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run.runner import run
from specgauge.sweeps.store.outcomes import read_outcomes
from specgauge.sweeps.store.rundir import Run
from tests.bench.tiny_checkpoints import llama, save, word_tokenizer
from tests.benchmarks.memory import TENTH, estimate_and_peak
from tests.sweeps import made

SIZE = ModelSize(
    parameters=1000, dtype="float32", layers=1, kv_heads=1, head_dim=1, width=4, inner_width=8, heads=2, vocabulary=5
)
BOTH = PairSizes(target=SIZE, draft=SIZE)
GRID: dict[str, Any] = {"batch_size": [1, 8], "context": 56, "gamma": "1:3"}
SMALL, LARGE = 8000 + 2 * 2 * 64 * 4 + 60 * 36 * 4, 8000 + 2 * 2 * 64 * 8 * 4 + 8 * 60 * 36 * 4
"""Weights, keys and values of 64 slots in both models, and 3 · 4 + 3 · 8 activations of 60 tokens a row, by hand."""


def has(monkeypatch: pytest.MonkeyPatch, **bytes_of: int | None) -> None:
    """Devices with so many bytes; `cuda` is every GPU."""
    monkeypatch.setattr(memory, "memory_of", lambda device: bytes_of.get(device.partition(":")[0]))


def test_a_cell_is_left_out_where_the_device_cannot_hold_it_for_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    config = made.config(grid=GRID)
    small, large = plan_cells(config)
    has(monkeypatch, cpu=SMALL)
    assert over_memory(config, BOTH, small) is None
    found = str(over_memory(config, BOTH, large))
    assert found.startswith("needs ")
    assert "activations" in found
    assert "cpu has" in found
    assert over_what(config, BOTH, large) == "what the device has"
    has(monkeypatch, cpu=int(LARGE / memory.SURE) + 1)  # over what it has, and not surely: it is tried
    assert over_memory(config, BOTH, large) is None
    has(monkeypatch, cpu=int(LARGE / memory.SURE) - 1)
    assert over_memory(config, BOTH, large) is not None
    has(monkeypatch, cpu=None)
    assert over_memory(config, BOTH, large) is None
    has(monkeypatch, cpu=1)
    assert over_memory(config, PairSizes(target=SIZE, draft=None), large) is None
    elsewhere = made.config(grid=GRID, executor={"kind": "ray"})
    assert over_memory(elsewhere, BOTH, large) is None
    limited = made.config(grid=GRID, limits={"memory": 1})
    assert over_what(limited, BOTH, small) == "limits.memory"


def test_models_on_two_devices_are_held_by_each(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = {"name": "p", "target": {"model": "a/b", "device": "cuda:0"}, "draft": {"model": "a/c", "device": "cpu"}}
    config = made.config(grid=GRID, pairs=[pair])
    (small, _), half = plan_cells(config), SMALL - 4000 - 2 * 64 * 4
    has(monkeypatch, cuda=half, cpu=half)
    assert over_memory(config, BOTH, small) is None
    has(monkeypatch, cuda=half, cpu=int(half / memory.SURE) - 1)
    assert "cpu has" in str(over_memory(config, BOTH, small))
    spread = made.config(grid=GRID, pairs=[{**pair, "target": {"model": "a/b", "device_map": "auto"}}])
    has(monkeypatch, cuda=1, cpu=half)
    assert over_memory(spread, BOTH, small) is None


@pytest.mark.parametrize(
    ("cpu", "limit", "draft", "alone"),
    [
        (8000, None, "a/c", False),
        (7000, None, "a/c", True),
        (3000, None, "a/c", False),
        (None, 7999, "a/c", True),
        (None, 3999, "a/c", False),
        (7000, None, "ngram", False),
        (None, None, "a/c", False),
    ],
)
def test_models_that_fit_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, cpu: int | None, limit: int | None, draft: str, alone: bool
) -> None:
    has(monkeypatch, cpu=cpu)
    pair = {"name": "p", "target": {"model": "a/b", "device": "cpu"}, "draft": draft}
    if draft != "ngram":
        pair["draft"] = {"model": draft, "device": "cpu"}
    config = made.config(pairs=[pair], limits={"memory": limit})
    assert fit_alone(config, config.pairs[0], BOTH) is alone


def test_what_the_host_has_is_the_least_of_its_own_and_of_its_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "CGROUP_LIMITS", (str(limit), str(tmp_path / "none")))
    found = []
    for text in ("max\n", "4096\n"):
        limit.write_text(text)
        found.append(memory_of("cpu"))
    assert found == [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 4096]


def test_prefills_are_taken_to_be_as_long_as_they_are() -> None:
    assert arm_runner.PREFILL_TOKENS == PREFILL_TOKENS


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("models")
    small = {"num_hidden_layers": 1}
    return {
        "target": str(save(place / "target", llama(), word_tokenizer())),
        "draft": str(save(place / "draft", llama(seed=1, **small), word_tokenizer())),
    }


def run_config(folders: dict[str, str], place: Path, **changes: Any) -> Path:
    (place / "prompts.jsonl").write_text('{"prompt": "w1 w2 w3"}\n{"prompt": "w4 w5 w6 w7"}\n{"prompt": "w8 w9"}\n')
    content = {
        "name": "m",
        "pairs": [{"name": "p", **folders}],
        "workload": {"prompts": str(place / "prompts.jsonl"), "max_new_tokens": 12},
        "sampling": [{"name": "drawn", "temperature": 1.0, "top_p": 0.9}],
        "grid": {"batch_size": [1, 2], "context": [8], "gamma": [1]},
        "precision": {"min_blocks": 2, "max_blocks": 2, "block_samples": 1},
        **changes,
    }
    path = place / f"{len(list(place.iterdir()))}.yaml"
    path.write_text(json.dumps(content))
    return path


def weights_of(config: Path) -> PairSizes:
    return read_sizes(load_config(config))["p"]


def test_acceptance_is_recorded_one_model_after_the_other_where_both_do_not_fit(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same numbers, and the rest left out; `check` says the same."""
    whole = run_config(folders, tmp_path)
    assert run(load_config(whole), out=tmp_path / "whole") == 0
    weights = weights_of(whole).weight_bytes
    assert weights is not None
    tight = run_config(folders, tmp_path, limits={"memory": weights - 1})
    capsys.readouterr()
    assert main(["check", str(tight)]) == 0
    assert ALONE in capsys.readouterr().out
    assert run(load_config(tight), out=tmp_path / "tight") == 1
    told = capsys.readouterr()
    assert told.err.startswith("no cell fits: pair p, batch size 1, context 8: needs ")
    assert ALONE in told.err
    pairs = [Run.open(tmp_path / name).acceptance_of("p", "drawn") for name in ("whole", "tight")]
    columns = [name for name in pairs[0].columns if name not in ("end_reason",)]
    assert len(pairs[0]) > 20
    assert (pairs[0][columns].to_numpy() == pairs[1][columns].to_numpy()).all()
    (row,) = read_outcomes(tmp_path / "tight")["p"].warnings
    assert (row.code, row.message) == ("one_at_a_time", f"pair p: {ALONE}")
    assert {line.status for line in Run.open(tmp_path / "tight").journal()} == {"skipped"}


def test_a_run_in_which_nothing_fits_says_so_first(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, cpu=100)
    config = run_config(folders, tmp_path)
    assert "no cell fits by estimate" in describe(load_config(config))
    tight = run_config(folders, tmp_path, limits={"memory": 100})
    assert run(load_config(tight), out=tmp_path / "run") == 1
    told = capsys.readouterr()
    assert told.err.splitlines()[0].startswith("no cell fits: pair p, batch size 1, context 8: needs ")
    assert told.out.startswith("Nothing was measured: skipped: needs ")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_estimate_is_within_a_tenth_of_the_peak_on_a_gpu() -> None:
    estimate, peak = estimate_and_peak("two models", "cuda")
    assert estimate == pytest.approx(peak, rel=TENTH)
