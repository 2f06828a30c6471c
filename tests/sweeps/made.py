"""Small configurations and run directories whose every number can be worked out by hand."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pytest

from specgauge.configs.schema import Config
from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.store.derived import write_answers
from specgauge.sweeps.store.files import atomic_path
from specgauge.sweeps.store.journal import Journal
from specgauge.sweeps.store.rows import read_mapping
from specgauge.sweeps.store.rundir import Run, acceptance_path
from specgauge.sweeps.store.writer import OpenRun

T = TypeVar("T")
T_DECODE_S, T_DRAFT_S, CATCH_UP_S, T_VERIFY_S, T_TRANSFER_S = 1.0, 0.125, 0.0625, 1.25, 0.03125
ENVIRONMENT: dict[str, Any] = {
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
        "precision": {"bootstrap_replicates": 200},
    }
    return Config.model_validate({**plain, **changes})


def begin(path: Path, made: Config | None = None, *, fresh: bool = False) -> OpenRun:
    """Open a run directory for writing, its environment recorded."""
    run = OpenRun(path, made or config(), fresh=fresh)
    try:
        run.check_environment(ENVIRONMENT)
    except BaseException:
        run.close()
        raise
    return run


def restamp(path: Path, **changes: Any) -> None:
    """Let the answers of a run stand as they are now, with `changes` of their mapping."""
    answers = read_mapping(path / "recommendation.yaml") | changes
    write_answers(path, answers["recommendations"], answers["warnings"])


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
        start, end = end, end + 2 * math.prod(sizes)
        header[name] = {"dtype": "BF16", "shape": list(sizes), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return path


def known(value: T | None) -> T:
    """What is not unknown."""
    assert value is not None
    return value


def exact(value: float | Sequence[float]) -> Any:
    """Equal but for rounding."""
    return pytest.approx(value, rel=1e-12, abs=1e-13)


def marks(arm: str, gamma_max: int) -> list[float]:
    """The constant times of an arm, exact in binary."""
    if arm == "draft":
        return [T_DRAFT_S * step for step in range(1, gamma_max + 1)]
    if arm == "transfer":
        return [T_TRANSFER_S * step for step in range(1, gamma_max + 1)]
    if arm == "draft_catch_up":
        return [T_DRAFT_S + CATCH_UP_S]
    return [T_VERIFY_S if arm.startswith("verify") else T_DECODE_S]


def acceptance_frame(
    prompts: int, positions: int, accepted: float = 0.5, *, context: int = 64, end_reason: str = "length"
) -> pd.DataFrame:
    """Every draft passes with probability `accepted` under the ratio rule; tokens never repeat."""
    position = np.tile(np.arange(positions), prompts)
    varying = {"prompt": np.repeat(np.arange(prompts), positions), "position": position, "context": context + position}
    draft = {"draft_prob": accepted, "draft_argmax": -1, "draft_argmax_target_prob": 0.0}
    signals = {"draft_top_prob": 0.5, "draft_entropy_nats": 1.0}
    overlaps = {"overlap_ratio": accepted, "overlap_match": accepted}
    constant = {"repetition": 0, "target_prob": 1.0, "end_reason": end_reason}
    return pd.DataFrame({**varying, "token": position, **draft, **signals, **overlaps, **constant})


def write_run(
    path: Path,
    config: Config,
    acceptance: Mapping[str, pd.DataFrame],
    *,
    scale: Mapping[str, float] | None = None,
    broken: Mapping[tuple[int, int, str], tuple[str, str]] | None = None,
    only: set[tuple[int, int]] | None = None,
    blocks: int = 3,
    transfers: bool = False,
) -> Run:
    """A run whose arms take their constant times, times `scale`, with a record of each kind of trouble in `broken`."""
    gammas = config.grid.gamma
    with begin(path, config) as run:
        for cell in plan_cells(config):
            for arm in arm_names(gammas, catches_up=cell.catches_up, transfers=transfers):
                trouble = (broken or {}).get((cell.batch_size, cell.context, arm))
                if trouble is not None:
                    run.journal.append(
                        {"axes": cell.axes, "arm": arm, "block": 0, "status": trouble[0], "reason": trouble[1]}
                    )
                elif only is None or (cell.batch_size, cell.context) in only:
                    record_blocks(run.journal, cell, arm, max(gammas), (scale or {}).get(arm, 1.0), blocks)
    for sampling, frame in acceptance.items():
        with atomic_path(acceptance_path(path, "p", sampling)) as temporary:
            frame.to_parquet(temporary, index=False)
    return Run.open(path)


def record_blocks(journal: Journal, cell: Cell, arm: str, gamma_max: int, scale: float, blocks: int = 3) -> None:
    sample = [mark * scale for mark in marks(arm, gamma_max)]
    for block in range(blocks):
        journal.append({"axes": cell.axes, "arm": arm, "block": block, "status": "ok", "samples_s": [sample] * 4})
