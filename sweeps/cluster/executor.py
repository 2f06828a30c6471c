"""Measure the pairs of a run on the nodes of a Ray cluster, into the run directory of the process that drives them.

    outcomes = measure_on_ray(config, out, sizes, prompts, deadline, shown)

Ray chooses the node of every task, waits for its resources and tries it elsewhere when its node is lost; files and
arguments travel through its object store. Acceptance is recorded by one task a pair, on which those that time its cells
depend. A task on GPUs has its own; one on CPUs has a node to itself, by a placement group with a bundle on each.
"""

from __future__ import annotations

import math
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.configs.executor import host_and_port
from specgauge.sweeps.cluster.keeper import Job, Keeper, Told, least_blocks, planned_jobs, unknown_devices
from specgauge.sweeps.cluster.nodes import NodeGroup, node_groups, node_names
from specgauge.sweeps.cluster.task import measure
from specgauge.sweeps.cluster.weights import package_of, packed_config
from specgauge.sweeps.plan import planned_pairs
from specgauge.sweeps.run.progress import Limits
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    from specgauge.configs.executor import ExecutorConfig
    from specgauge.configs.schema import Config
    from specgauge.sweeps.model_sizes import PairSizes
    from specgauge.sweeps.run.budget import Deadline
    from specgauge.sweeps.run.progress import Progress
    from specgauge.sweeps.store.outcomes import PairOutcome

ANSWER_S = 10.0
"""For a cluster to answer."""
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a gRPC server answers at once, as a cluster's is; Ray itself would wait for minutes for one that does not."""
POLL_S = 0.5
NODELESS_S = 30.0
"""Without any node that could measure, before the rest is given up."""
STOP_S = 20.0
"""For tasks that are to stop to hand in what they have finished."""


def check_ray(executor: ExecutorConfig) -> None:
    """Raise ValueError where Ray is not installed, or nothing answers at the address."""
    if find_spec("ray") is None:
        raise ValueError(
            "executor.kind: ray needs the package ray, which is not installed; pip install 'specgauge[ray]', or let it "
            "be local"
        )
    address = _known_address(executor)
    at = host_and_port(address)
    if at is not None:
        try:
            with socket.create_connection(at, timeout=ANSWER_S) as connection:
                connection.sendall(HTTP2_GREETING)
                if not connection.recv(1):
                    raise ConnectionResetError("it is no Ray cluster")
        except OSError as error:
            raise ValueError(
                f"executor.address: expected a Ray cluster at {address}, which does not answer "
                f"({error.strerror or error}); start one with `ray start --head`, or give its HOST:PORT"
            ) from error


def _known_address(executor: ExecutorConfig) -> str:
    """Where the cluster is; for auto what the environment says, else the last one that was started on this machine."""
    if executor.address != "auto":
        return executor.address
    file = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray" / "ray_current_cluster"
    return os.environ.get("RAY_ADDRESS") or (file.read_text().strip() if file.is_file() else "auto")


@contextmanager
def connected(executor: ExecutorConfig, package: Path | None = None) -> Iterator[None]:
    """This process as a driver of the cluster, unless it is one already; a cluster of its own ends with it.

    package: a folder that becomes the working directory of every task.

    Raises:
        ValueError: there is no cluster, one of another release of Ray or Python, or it cannot be given the package.
    """
    import ray

    if ray.is_initialized():
        if package is not None:
            raise ValueError(
                "executor.pack_weights: expected a process that has not called ray.init, since weights are packed when "
                "it connects; call ray.shutdown first, or put the weights where every node finds them"
            )
        yield
        return
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"include_dashboard": False} if executor.address == "local" else {}
    options |= {} if package is None else {"runtime_env": {"working_dir": str(package)}}
    try:
        ray.init(address=executor.address, log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"executor.address: expected a Ray cluster at {executor.address!r}, got: {first.rstrip('.')}; start one "
            "with `ray start --head`, or say address: local"
        ) from error
    finally:
        if is_main and before is not None:
            signal.signal(signal.SIGTERM, before)  # Ray puts its own in its place
    try:
        yield
    finally:
        ray.shutdown()


class Sweep:
    """The jobs of a run on a cluster, from the first to the last."""

    def __init__(
        self,
        config: Config,
        out: Path,
        jobs: Sequence[Job],
        groups: Mapping[str | None, NodeGroup],
        names: Mapping[str, str],
        shown: Progress,
    ) -> None:
        self._config, self._out, self._jobs, self._shown = config, out, jobs, shown
        self._groups, self._names = groups, names
        self._running: dict[int, str] = {}
        self._blocks = 0
        self._outcomes: Mapping[str, PairOutcome] = {}

    def measure(self, prompts: Sequence[Any], seconds: float | None, sent: Config) -> Mapping[str, PairOutcome]:
        """Measure every job; what was not measured has its reason in the outcomes.

        sent: the configuration that tasks are told.

        Raises:
            ValueError: bad input, or nodes that differ.
            StorageError: the disk refused a write.
            KeyboardInterrupt: as it came; every finished block is kept.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        at_once = {device: group.at_once for device, group in self._groups.items()}
        keeper = (
            ray.remote(Keeper)
            .options(num_cpus=0, scheduling_strategy=here)
            .remote(self._out.resolve(), self._config, self._jobs, seconds=seconds, at_once=at_once, sent=sent)
        )
        with ExitStack() as placed:
            options = {device: placed.enter_context(_placed(group)) for device, group in self._groups.items()}
            refs = self._submitted(keeper, ray.put(tuple(prompts)), options)
            self._blocks = _answer(keeper.told.remote()).blocks
            total = max(least_blocks(self._config), self._blocks)
            count, nodes = len(self._jobs), sum(len(group.nodes) for group in self._groups.values())
            stage = f"{count} tasks on {nodes} node{'s' if nodes > 1 else ''}"
            self._shown.start(
                stage, total, done=self._blocks, limits=Limits(wall_s=math.inf if seconds is None else seconds)
            )
            try:
                self._wait(keeper, refs)
            except BaseException:  # not by ray.cancel, after which Ray may end this process
                running = [refs[number] for number in _answer(keeper.stop.remote())]
                if running:
                    ray.wait(running, num_returns=len(running), timeout=STOP_S)
                raise
            finally:
                with suppress(ray.exceptions.RayError):
                    ray.get(keeper.close.remote(), timeout=STOP_S)
        return self._outcomes

    def _submitted(self, keeper: Any, prompts: Any, options: Mapping[str | None, Mapping[str, Any]]) -> dict[int, Any]:
        """What every job will return, by its number; cells wait for their pair's acceptance, that for the machine."""
        import ray

        task = ray.remote(measure)
        tasks = {device: task.options(max_retries=-1, retry_exceptions=False, **own) for device, own in options.items()}
        refs: dict[int, Any] = {}
        machines: dict[str | None, Any] = {}
        recorded: dict[str, Any] = {}
        for number, job in enumerate(self._jobs):
            after = machines.get(job.device) if job.part.acceptance else recorded.get(job.pair)
            refs[number] = tasks[job.device].remote(keeper, number, job, prompts, self._names, after)
            if job.part.is_machine_alone:
                machines[job.device] = refs[number]
            elif job.part.acceptance:
                recorded[job.pair] = refs[number]
        return refs

    def _wait(self, keeper: Any, refs: Mapping[int, Any]) -> None:
        """Wait for every job, and show how far they are."""
        import ray

        waiting = {ref: number for number, ref in refs.items()}
        seen_s = dict.fromkeys(self._groups, time.monotonic())
        while waiting:
            ready, _ = ray.wait(list(waiting), timeout=POLL_S)
            for ref in ready:
                number = waiting.pop(ref)
                try:
                    ended = ray.get(ref)
                except ray.exceptions.RayError as error:
                    ended = None
                    _answer(keeper.give_up.remote(number, " ".join(str(error).split())[:200]))
                if isinstance(ended, Exception):
                    raise ended
            told: Told = _answer(keeper.told.remote())
            self._show(told)
            nodes = ray.nodes()
            for device, group in self._groups.items():
                if any(map(group.resources.fit, nodes)):
                    seen_s[device] = time.monotonic()
            gone = [device for device, seen in seen_s.items() if time.monotonic() - seen > NODELESS_S]
            for ref, number in list(waiting.items()):
                if self._jobs[number].device in gone:
                    last = _answer(keeper.last_machine.remote(number)) or "every node"
                    _answer(keeper.give_up.remote(number, f"{last} was lost, and no other node has what it takes"))
                    del waiting[ref]
        self._show(_answer(keeper.told.remote()))
        self._outcomes = _answer(keeper.outcomes.remote())

    def _show(self, told: Told) -> None:
        """Lines that came up, jobs that began, and blocks."""
        for line in told.lines:
            self._shown.say(line)
        for number, machine in told.running.items():
            if self._running.get(number) != machine:
                self._shown.say(f"{self._jobs[number].label}: on {machine}")
        self._running = told.running
        self._shown.advance(max(0, told.blocks - self._blocks))
        self._blocks = max(self._blocks, told.blocks)


@contextmanager
def _placed(group: NodeGroup) -> Iterator[dict[str, Any]]:
    """The options of every task of a group."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    own = group.resources
    options: dict[str, Any] = {"num_cpus": own.cpus, "num_gpus": own.gpus, "memory": own.memory_bytes}
    if own.gpus:
        yield options | {"accelerator_type": own.accelerator_type}
        return
    bundles = ray.util.placement_group([own.asked] * len(group.nodes), strategy="STRICT_SPREAD")
    try:
        yield options | {"scheduling_strategy": PlacementGroupSchedulingStrategy(bundles)}
    finally:
        ray.util.remove_placement_group(bundles)


def _answer(ref: Any) -> Any:
    """What an actor's method returns, its own error as it was raised."""
    import ray

    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error


def measure_on_ray(
    config: Config,
    out: Path,
    *,
    fresh: bool,
    sizes: Mapping[str, PairSizes],
    prompts: Sequence[Any],
    deadline: Deadline,
    shown: Progress,
) -> dict[str, PairOutcome]:
    """Measure every pair of a run on the nodes of a cluster; what went wrong with each, by its name.

    Raises:
        ValueError: Ray is missing, no cluster answers, its nodes differ or have too little, or the directory cannot be
            used.
        StorageError: the disk refused a write.
        KeyboardInterrupt: as it came; every finished block is kept.
    """
    check_ray(config.executor)
    is_packed = config.executor.pack_weights
    with ExitStack() as open_until_the_end:
        package = open_until_the_end.enter_context(package_of(config)) if is_packed else None
        nowhere = open_until_the_end.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        open_until_the_end.enter_context(redirect_stdout(nowhere))  # where Ray tells of lost nodes, at length
        open_until_the_end.enter_context(connected(config.executor, package))
        import ray

        names = node_names([node for node in ray.nodes() if node["Alive"]])
        groups = node_groups(config, sizes, names)
        with OpenRun(out, config, fresh=fresh) as opened:
            unknown = unknown_devices(opened)
        pairs = [pair.name for pair in planned_pairs(config)]
        jobs = planned_jobs(config, pairs, unknown)
        seconds = None if deadline.left_s == math.inf else deadline.left_s
        sent = packed_config(config) if is_packed else config
        return dict(Sweep(config, out, jobs, groups, names, shown).measure(prompts, seconds, sent))
