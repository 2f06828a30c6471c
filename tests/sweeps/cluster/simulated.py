"""Simulated nodes on this machine whose tasks measure with the fake bench, and what Ray is told of it.

with cluster_of(2) as cluster: …            # a head without CPUs, and two nodes that measure
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from specgauge.cli import main as cli
from specgauge.sweeps.run import pair_process
from tests.sweeps import odd_workers

ACCIDENTS = "SPECGAUGE_TEST_ACCIDENTS"
IGNORED = [
    pytest.mark.filterwarnings(f"ignore::{name}")
    for name in ("ResourceWarning", "FutureWarning", "DeprecationWarning", "pytest.PytestUnraisableExceptionWarning")
]
"""What Ray and its processes warn of."""


def set_up() -> None:
    """What a process of Ray does first: measure with the accidents that its environment names."""
    setattr(pair_process, "work_apart", odd_workers.with_accidents(*os.environ[ACCIDENTS].split(",")))  # noqa: B010


def runtime(*accidents: str) -> dict[str, Any]:
    """The runtime environment of tasks with these accidents."""
    return {
        "worker_process_setup_hook": "tests.sweeps.cluster.simulated.set_up",
        "env_vars": {ACCIDENTS: ",".join(("fake", *accidents)), "PYTHONPATH": odd_workers.PATHS},
    }


@contextmanager
def cluster_of(nodes: int, *accidents: str, kinds: Sequence[str] = ()) -> Iterator[Any]:
    """A cluster that this process drives, with so many nodes to measure on, and one more with each accelerator."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1)
        for kind in kinds:
            cluster.add_node(num_cpus=1, resources={f"accelerator_type:{kind}": 1})
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR", runtime_env=runtime(*accidents))
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def name_of(node: Any) -> str:
    """What a run calls a node of a cluster that is on one host."""
    return f"{socket.gethostname()}-{node.node_id[:6]}"


def main(address: str, accidents: str, *arguments: str) -> int:
    """`specgauge` as a driver of a cluster that another process started."""
    import ray

    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background are born deaf to it
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=runtime(*accidents.split(",")))
    return cli.main(arguments)


@contextmanager
def driver(cluster: Any, accidents: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`specgauge` with these arguments in a process of its own, which is gone afterwards."""
    command = [sys.executable, "-P", "-m", "tests.sweeps.cluster.simulated", cluster.address, accidents, *arguments]
    environment = {**os.environ, "PYTHONPATH": odd_workers.PATHS}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
