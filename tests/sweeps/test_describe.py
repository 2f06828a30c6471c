"""What `check` says of a configuration; the wording is in tests/snapshots/describe.txt."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps import estimate
from specgauge.sweeps.describe import describe
from specgauge.sweeps.estimate import AssumedMachine
from tests.sweeps import made
from tests.sweeps.test_estimate import with_models
from tests.sweeps.test_model_sizes import SHAPE, TENSORS

GRID: dict[str, Any] = {"batch_size": [1, 2], "context": [16, 64], "gamma": "1:3"}
SEARCHED: dict[str, Any] = {"batch_size": 1, "context": [16, 32, 64], "gamma": {"max": 12, "search": "adaptive"}}
PAIR = {"name": "p", "target": "MODEL", "draft": "MODEL", "mode": ["eager", "compile"], "threads": 1}
PAIRS = [
    PAIR,
    {"name": "q", "target": "MODEL", "draft": "ngram"},
    {"name": "r", "target": "MODEL", "draft": {"layers": 1}},
]
MACHINE = AssumedMachine(name="2 CPU cores", bytes_per_s=10e9, flops_per_s=40e9, launch_s=1e-3)
AWAY = "some-organisation/not-in-the-cache"
# arms but generate · models · numbers a token · tokens · rows · bytes
CACHES, WEIGHTS = 5 * 2 * (2 * 2 * 2 * 8) * (64 + 10) * 2 * 4, 2 * 4 * 4224
DECODED = {"gamma": [1, 3], "policies": ["svip"], "context": 64, "max_new_tokens": 10}

CASES: dict[str, dict[str, Any]] = {
    "plain": {"grid": GRID},
    "many cells": {"grid": {"batch_size": "1:100", "context": 16, "gamma": 1}},
    "validation": {"grid": GRID, "validate": {"max_new_tokens": 9, "acceptance": 0.5}},
    "baselines in the first block": {"grid": GRID, "validate": {"gamma": 2, "baseline_blocks": 1}},
    "baselines in some blocks": {"grid": GRID, "validate": {"gamma": 2, "baseline_blocks": 4}},
    "caches that fit": {"grid": GRID, "validate": DECODED, "limits": {"memory": WEIGHTS + CACHES}},
    "caches over the limit": {"grid": GRID, "validate": DECODED, "limits": {"memory": WEIGHTS + CACHES - 1}},
    "variants and rules": {
        "pairs": PAIRS, "validate": {}, "grid": {**GRID, "exclude": [{"batch_size": 2, "context": 64}]},
    },
    "a pair that rules leave out": {
        "pairs": PAIRS, "validate": {},
        "grid": {**GRID, "exclude": [{"pair": "q"}, {"mode": "compile", "batch_size": 2}]},
    },
    "models that are not here": {"draft": AWAY},
    "at a revision": {"draft": {"model": AWAY, "revision": "v2"}},
    "packed": {"draft": {"model": AWAY, "gguf_file": "q4.gguf"}},
    "limits": {
        "grid": {"batch_size": [1, 64], "context": 64, "gamma": "1:3"},
        "limits": {"memory": "1MiB", "run_seconds": 90},
        "precision": {"max_seconds": 100, "max_cell_seconds": 1e-9},
    },
    "nothing fits": {"limits": {"memory": 1}},
    "search": {"grid": SEARCHED},
    "search of two contexts": {"grid": {**SEARCHED, "context": [16, 64]}},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(estimate, "assumed_machine", lambda spec, threads: MACHINE)
    return made.model_folder(tmp_path / "model", SHAPE, TENSORS)


def test_descriptions(folder: Path, snapshot: Callable[[str, str], None]) -> None:
    texts = []
    for name, changes in CASES.items():
        own = json.loads(json.dumps(changes).replace("MODEL", str(folder)))
        texts.append(f"--- {name}\n{describe(with_models(folder, **own)).replace(str(folder), 'MODEL')}\n")
    snapshot("describe", "\n".join(texts))


def test_conversations_that_are_passed_over_are_told_and_an_empty_file_is_refused(folder: Path) -> None:
    config = with_models(folder)
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    (folder.parent / "prompts.jsonl").write_text(json.dumps([{"conversations": turns}, {"conversations": turns[1:]}]))
    text = describe(config)
    assert "acceptance: 1 prompt ×" in text
    assert "skipped 1 of 2 conversations, which do not start with the user" in text
    (folder.parent / "prompts.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="the prompt file is empty"):
        describe(config)
