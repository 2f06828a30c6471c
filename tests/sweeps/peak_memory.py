"""The most memory that measuring a pair takes in this process, over what it held before."""

from __future__ import annotations

import ctypes
import gc
import json
from pathlib import Path

import torch

from specgauge.bench.prompts import read_prompts
from specgauge.configs.schema import Config
from specgauge.sweeps.run.pair import PairRun, environment_of
from specgauge.sweeps.run.pair_process import import_bench
from specgauge.sweeps.run.progress import Progress
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.store.writer import OpenRun


def peaks(config: str, out: str) -> tuple[int, int]:
    """(bytes once the models are loaded, bytes at most) of the run of a configuration's first pair.

    A run of the shipped pair goes before it, so that libraries and their buffers are there.
    """
    import_bench()
    asked = Config.model_validate(json.loads(Path(config).read_text()))
    device = asked.pairs[0].target.device
    small = {"model": "embedded", "device": device}
    warm = asked.model_dump(mode="json", by_alias=True) | {"pairs": [{"name": "w", "target": small, "draft": small}]}
    _measure(Config.model_validate({**warm, "grid": {"context": [8], "gamma": [1]}}), f"{out}-warm")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else what the first run gave back counts as held
    before = _now(device)
    _reset(device)
    loaded = _measure(asked, out) - before
    return loaded, _peak(device) - before


def _measure(config: Config, out: str) -> int:
    """Measure it; what is held once its models are loaded."""
    held: list[int] = []

    class Told(Progress):
        def start(self, stage: str, *rest: object, **options: object) -> None:
            held.append(_now(config.pairs[0].target.device))

    with OpenRun(Path(out), config, fresh=True) as opened:
        opened.check_environment(environment_of(opened.path, config))
        prompts = read_prompts(config.workload, seed=config.seed)
        outcome = PairRun(Session(opened, config.pairs[0], prompts, Told())).measure()
    assert outcome.bad_input is None, outcome.bad_input
    assert not outcome.failed
    return held[1] if len(held) > 1 else held[0]


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _now(device: str) -> int:
    return torch.cuda.memory_allocated() if device == "cuda" else _status("VmRSS")


def _peak(device: str) -> int:
    return torch.cuda.max_memory_allocated() if device == "cuda" else _status("VmHWM")


def _reset(device: str) -> None:
    """Let the peak begin anew."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
