"""The processes of a pair whose target is split over ranks: started, watched and ended by torchrun's launcher.

    outcome = work_on_ranks(work, pair, (run, "p", [], None, WHOLE))      # in the worker of the pair

Rank 0 does the worker's work and returns its outcome; the others follow its forwards (`specgauge.bench.ranks`). When
one dies the launcher ends the others, and the pair's worker has died, as far as the run goes.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specgauge.configs.reading import CONFIG_BYTES, read_text
from specgauge.sweeps.model_sizes import model_folder
from specgauge.sweeps.store.outcomes import PairOutcome

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config
    from specgauge.sweeps.run.pair_process import Work

MONITOR_S = 0.5
"""Between two looks of the launcher at its ranks."""


class RankDiedError(RuntimeError):
    """A rank ended before its work was done; the message says which and how, in one line."""


def check_ranks(config: Config) -> None:
    """Refuse ranks that a target's heads cannot be shared out to, where its files are here.

    Raises:
        ValueError: a model directory is missing or damaged, or its heads are not divided; the pair is named.
    """
    for pair in config.pairs:
        folder = model_folder(pair.target, "target") if pair.has_ranks else None
        if folder is None or pair.target.parallel is None or not (folder / "config.json").is_file():
            continue
        shape = json.loads(read_text(folder / "config.json", CONFIG_BYTES))
        text = shape.get("text_config") or shape
        heads = (text.get(name) for name in ("num_attention_heads", "num_key_value_heads"))
        fault = pair.target.parallel.heads_fault(*heads)
        if fault is not None:
            raise ValueError(f"pair '{pair.name}' target: parallel.tensor: {fault}")


def is_a_rank() -> bool:
    """Whether this process was started as a rank already."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def work_on_ranks(work: Work, pair: PairConfig, task: tuple[Any, ...]) -> PairOutcome | Exception:
    """What `work` returns of a task on rank 0, or how a rank died.

    Raises:
        ValueError: fewer CUDA devices than ranks.
        KeyboardInterrupt: it was interrupted.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    assert pair.target.parallel is not None
    count = pair.target.parallel.tensor
    if pair.target.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    refuse_few_devices(f"pair '{pair.name}' target", count)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # it is told below, in one line
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=MONITOR_S,
        start_method="spawn",
    )
    try:
        found: dict[int, PairOutcome | Exception] = elastic_launch(launch, rank)(work, task)
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        return RankDiedError(death(number, count, failure))
    except SignalException as error:
        raise KeyboardInterrupt from error
    return found[0]


def rank(work: Work, task: tuple[Any, ...]) -> PairOutcome | Exception | None:
    """What one rank does: the work, or to follow it."""
    from specgauge.bench.following import follow
    from specgauge.bench.ranks import joined

    with joined() as ranks:
        if not ranks.is_leader:
            follow(ranks)
            return None
        try:
            return work(*task)
        finally:
            ranks.stop()


def refuse_few_devices(name: str, count: int, devices: Callable[[], int] | None = None) -> None:
    """Refuse more ranks than CUDA devices, where there are any; ranks on a CPU share it.

    Raises:
        ValueError: there are fewer devices.
    """
    import torch

    seen = (devices or torch.cuda.device_count)()
    if 0 < seen < count:
        raise ValueError(
            f"{name}: parallel.tensor: expected at most {seen}, the CUDA devices that torch sees, got {count}; lower "
            "it, or use device: cpu"
        )


def death(number: int, count: int, failure: Any) -> str:
    """How a rank ended, in one line; `failure` has an exit code and what the rank said."""
    if failure.exitcode < 0:
        often = ", as the system does when memory runs out" if failure.exitcode == -signal.SIGKILL else ""
        return f"rank {number} of {count} got {signal.Signals(-failure.exitcode).name}{often}"
    lines = str(failure.message).strip().splitlines() or [f"ended with code {failure.exitcode}"]
    told = lines[0].removeprefix("RuntimeError: ")
    return told if told.startswith("rank ") else f"rank {number} of {count}: {told}"
