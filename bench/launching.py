"""Start, watch and end the ranks of a split model by torchrun's launcher, which ends them all where one dies.

found, death = on_ranks(work, (run, "p"), count=2, name="pair 'p' target", device="auto")
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

_LAUNCHERS_OWN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that the launcher handles and does not give back."""
MONITOR_S = 0.5
"""Between two looks of the launcher at its ranks."""


def on_ranks(
    work: Callable[..., Any], task: tuple[Any, ...], *, count: int, name: str, device: str
) -> tuple[Any, str | None]:
    """(what ``work`` returns of a task on rank 0, None), or (None, how a rank died); the other ranks follow.

    Raises:
        ValueError: fewer CUDA devices than ranks.
        KeyboardInterrupt: it was interrupted.
    """
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    refuse_few_devices(name, count, 0 if device == "cpu" else torch.cuda.device_count())
    for logger in ("torch.distributed.elastic", "torch.multiprocessing"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)  # it is told below, in one line
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
    handlers = {one: signal.getsignal(one) for one in _LAUNCHERS_OWN}
    try:
        return elastic_launch(launch, rank)(work, task)[0], None
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        return None, death(number, count, failure)
    except SignalException as error:
        raise KeyboardInterrupt from error
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)


def rank(work: Callable[..., Any], task: tuple[Any, ...]) -> Any:
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


def refuse_few_devices(name: str, count: int, seen: int) -> None:
    """Refuse more ranks than CUDA devices, where there are any; ranks on a CPU share it.

    Raises:
        ValueError: there are fewer devices.
    """
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
    said = failure.message.get("message", "") if isinstance(failure.message, Mapping) else failure.message
    lines = str(said).strip().splitlines() or [f"ended with code {failure.exitcode}"]
    told = lines[0].removeprefix("RuntimeError: ")
    return told if told.startswith("rank ") else f"rank {number} of {count}: {told}"
