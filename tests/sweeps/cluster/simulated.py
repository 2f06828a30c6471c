"""Simulated nodes on this machine whose tasks measure with the fake bench, and what Ray is told of it.

with cluster_of(2) as cluster: …            # a head without CPUs, and two nodes that measure
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specgauge.configs.loader import load_config
from specgauge.sweeps.run import pair_process, runner
from tests.sweeps import odd_workers

ACCIDENTS = "SPECGAUGE_TEST_ACCIDENTS"


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


def main(address: str, out: str, config: str) -> int:
    """Drive a run on a cluster that another process started."""
    import ray

    ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=runtime("slow in 0.1"))
    return runner.run(load_config(config), out=Path(out), apart=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
