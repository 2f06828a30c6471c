"""Small configurations and run directories whose every number can be worked out by hand."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specgauge.configs.schema import Config
from specgauge.sweeps.opening import OpenRun

ENVIRONMENT = {
    "device": "cpu",
    "cpu": "Some CPU",
    "cuda": None,
    "threads": 2,
    "packages": {"torch": "2.13.0", "transformers": "5.24.0", "specgauge": "0.1.0"},
}


def config(**changes: Any) -> Config:
    """One embedded pair, greedy, one cell, gamma 1 to 3; `changes` replace whole sections."""
    plain: dict[str, Any] = {
        "name": "made",
        "pairs": [{"name": "p", "target": "embedded", "draft": "embedded"}],
        "sampling": [{"name": "greedy", "temperature": 0}],
        "grid": {"batch_size": 1, "context": 64, "gamma": "1:3"},
        "precision": {"bootstrap_replicates": 50},
    }
    return Config.model_validate({**plain, **changes})


def begin(path: Path, made: Config | None = None, *, fresh: bool = False) -> OpenRun:
    """Open a run directory for writing, its environment recorded."""
    run = OpenRun.open(path, made or config(), fresh=fresh)
    try:
        run.check_environment(ENVIRONMENT)
    except BaseException:
        run.close()
        raise
    return run


def axes(**changes: Any) -> dict[str, Any]:
    """The axes of the one cell of `config()`."""
    return {"pair": "p", "mode": "eager", "chain": "argmax", "batch_size": 1, "context": 64, **changes}


def line(arm: str, samples_s: Sequence[Sequence[float]], block: int = 0, **changes: Any) -> dict[str, Any]:
    """A journal record; `changes` go to the record, those named like an axis to its axes."""
    point = axes(**{name: changes.pop(name) for name in tuple(changes) if name in axes()})
    return {"axes": point, "arm": arm, "block": block, "status": "ok", "samples_s": samples_s, **changes}


def model_folder(path: Path, shape: Mapping[str, Any], tensors: Mapping[str, Sequence[int]]) -> Path:
    """A directory with a config.json and a safetensors file of bfloat16 zeros."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(shape))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, sizes in tensors.items():
        count = 1
        for size in sizes:
            count *= size
        header[name] = {"dtype": "BF16", "shape": list(sizes), "data_offsets": [end, end + 2 * count]}
        end += 2 * count
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return path
