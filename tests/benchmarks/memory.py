"""What memory measuring a pair is estimated to take, and the most it takes, over what its process held before.

    python -m tests.benchmarks.memory [cpu | cuda] [CASE …]    # needs Linux; on a CPU the resident set

Every case is measured in a process of its own. One whose estimate is over a tenth off ends with code 1.
"""

from __future__ import annotations

import ctypes
import gc
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from specgauge.bench.prompts import read_prompts
from specgauge.configs.loader import load_config
from specgauge.configs.schema import Config
from specgauge.sweeps.memory import memory_bytes
from specgauge.sweeps.model_sizes import read_sizes
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run.pair import PairRun, environment_of
from specgauge.sweeps.run.pair_process import import_bench
from specgauge.sweeps.run.progress import Progress
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.store.writer import OpenRun
from tests.bench.tiny_checkpoints import llama, save, word_tokenizer

ROOT = Path(__file__).parents[2]
TENTH = 0.1
_WIDE = {"hidden_size": 512, "intermediate_size": 1536, "max_position_embeddings": 512, "initializer_range": 0.02}
_DRAFT = {**_WIDE, "num_hidden_layers": 1}
CASES: Mapping[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "two models": ({**_WIDE, "num_hidden_layers": 6}, _DRAFT, 4, "float32"),
    "batch 8": ({**_WIDE, "num_hidden_layers": 6}, _DRAFT, 8, "float32"),
    "deep": ({**_WIDE, "num_hidden_layers": 16}, _DRAFT, 4, "float32"),
    "large vocabulary": ({**_WIDE, "num_hidden_layers": 2, "vocab": 40_000}, {**_DRAFT, "vocab": 40_000}, 1, "float32"),
    "bfloat16": ({**_WIDE, "num_hidden_layers": 16}, _DRAFT, 4, "bfloat16"),
    "alike": ({**_WIDE, "num_hidden_layers": 6}, {**_WIDE, "num_hidden_layers": 6}, 4, "float32"),
}
"""The shapes of target and draft, the batch size at context 256, and the type of weights."""


def case_config(case: str, device: str, folder: Path) -> Path:
    """The models and the configuration of a case, written into a folder."""
    *shapes, batch_size, dtype = CASES[case]
    models: dict[str, Any] = {}
    for role, shape in zip(("target", "draft"), shapes, strict=True):
        sizes = {"vocab": 8000, **shape}
        path = save(folder / role, llama(sizes.pop("vocab"), **sizes), word_tokenizer())
        models[role] = {"model": str(path), "device": device, "dtype": dtype}
    prompts = [{"prompt": f"the cat sat on mat {number}"} for number in range(8)]
    (folder / "prompts.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in prompts))
    content = {
        "name": "memory",
        "pairs": [{"name": "p", **models}],
        "workload": {"prompts": str(folder / "prompts.jsonl"), "max_new_tokens": 16},
        "grid": {"batch_size": [batch_size], "context": [256], "gamma": [3]},
        "precision": {"min_blocks": 2, "max_blocks": 2, "block_samples": 1},
        "threads": 1,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(content))
    return path


def estimate_and_peak(case: str, device: str) -> tuple[int, int]:
    """Bytes that a case is estimated to take, and the most that a process of its own took."""
    with tempfile.TemporaryDirectory() as name:
        config = case_config(case, device, Path(name))
        read = load_config(config)
        parts = memory_bytes(read, read_sizes(read)["p"], plan_cells(read))
        command = "import sys; from tests.benchmarks.memory import peaks; print(*peaks(*sys.argv[1:]))"
        done = subprocess.run(
            [sys.executable, "-c", command, str(config), f"{name}/run"], cwd=ROOT, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return sum(part for part in parts.values() if part is not None), int(done.stdout.split()[-1])


def main(arguments: Sequence[str]) -> int:
    """Print both of every case."""
    device, *names = arguments or ["cpu"]
    far = 0
    print(f"{'MiB':<20}{'estimate':>10}{'peak':>8}")
    for case in names or CASES:
        estimate, peak = estimate_and_peak(case, device)
        far += abs(estimate / peak - 1) > TENTH
        print(f"{case:<20}{estimate / 2**20:>10.0f}{peak / 2**20:>8.0f}{estimate / peak - 1:>+8.1%}", flush=True)
    return int(far > 0)


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
