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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.configs.executor import host_and_port
from specgauge.sweeps.cluster.keeper import Job, Keeper, Told, least_blocks, planned_jobs
from specgauge.sweeps.cluster.task import measure, versions
from specgauge.sweeps.memory import memory_bytes
from specgauge.sweeps.plan import plan_cells, planned_pairs
from specgauge.sweeps.run.progress import Limits, size_text
from specgauge.sweeps.store.rundir import ENVIRONMENT
from specgauge.sweeps.store.writer import OpenRun, has_results

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
CANCEL_S = 20.0
"""For tasks that are interrupted to hand in what they have finished."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What every task asks of a node, in Ray's words for it."""

    cpus: int
    gpus: int
    memory_bytes: int | None
    accelerator_type: str | None

    @property
    def asked(self) -> dict[str, float]:
        """By Ray's names; no task takes all of an accelerator's name."""
        wanted = {"CPU": float(self.cpus), "GPU": float(self.gpus), "memory": float(self.memory_bytes or 0)}
        if self.accelerator_type is not None:
            wanted[f"accelerator_type:{self.accelerator_type}"] = 0.001
        return {name: amount for name, amount in wanted.items() if amount}

    def fit(self, node: Mapping[str, Any]) -> bool:
        """Whether a node that lives has as much, in all."""
        has = node["Resources"]
        return bool(node["Alive"]) and all(has.get(name, 0.0) >= amount for name, amount in self.asked.items())

    def at_once(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """Tasks that can be measured at a time."""
        if not self.gpus:
            return len(nodes)
        return sum(
            int(min(node["Resources"]["GPU"] / self.gpus, node["Resources"]["CPU"] / self.cpus)) for node in nodes
        )


def resources_of(config: Config, sizes: Mapping[str, PairSizes], nodes: Sequence[Mapping[str, Any]]) -> Resources:
    """What a task asks for: as the executor says, the rest by the nodes and by the estimate of the largest cell."""
    asked = config.executor
    living = [node["Resources"] for node in nodes if node["Alive"]]
    gpus = asked.gpus_per_task
    if gpus is None:
        gpus = int(any(has.get("GPU", 0.0) >= 1.0 for has in living))
    cpus = asked.cpus_per_task
    if cpus is None:
        cpus = 1 if gpus else int(min((has["CPU"] for has in living if has.get("CPU", 0.0) >= 1.0), default=1))
    memory = asked.memory
    if memory is None and not gpus:
        needed = [
            sum(part or 0 for part in memory_bytes(config, sizes[pair.name], plan_cells(config, pair.name)).values())
            for pair in planned_pairs(config)
        ]
        memory = max(needed) or None
    return Resources(cpus=cpus, gpus=gpus, memory_bytes=memory, accelerator_type=asked.accelerator_type)


def resource_text(resources: Mapping[str, float]) -> str:
    """Resources in words: `8 CPUs, 1 GPU, 40 GiB, H100`."""
    words = [
        f"{resources[name]:g} {name}{'' if resources[name] == 1 else 's'}"
        for name in ("CPU", "GPU")
        if resources.get(name)
    ]
    if resources.get("memory"):
        words.append(size_text(int(resources["memory"])))
    words += [name.partition(":")[2] for name in resources if name.startswith("accelerator_type:")]
    return ", ".join(words) or "nothing"


def node_names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The name of every node by its id: its host's, told apart by the id where several share a host."""
    hosts = Counter(node["NodeManagerHostname"] for node in nodes)
    return {
        node["NodeID"]: (host := node["NodeManagerHostname"]) + (f"-{node['NodeID'][:6]}" if hosts[host] > 1 else "")
        for node in nodes
    }


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
def connected(executor: ExecutorConfig) -> Iterator[None]:
    """This process as a driver of the cluster, unless it is one already; a cluster of its own ends with it.

    Raises:
        ValueError: there is no cluster, or one of another release of Ray or Python.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = {"include_dashboard": False} if executor.address == "local" else {}
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


def fitting_nodes(resources: Resources, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """The nodes that a task fits on.

    Raises:
        ValueError: there is none; what is asked and what every node has.
    """
    import ray

    nodes: list[dict[str, Any]] = [node for node in ray.nodes() if node["Alive"]]
    found = [node for node in nodes if resources.fit(node)]
    if not found:
        has = "; ".join(f"{names[node['NodeID']]} has {resource_text(node['Resources'])}" for node in nodes)
        raise ValueError(
            f"executor: a task asks for {resource_text(resources.asked)}, which no node has ({has}); ask for less "
            "(executor.cpus_per_task, gpus_per_task, memory, accelerator_type), or add nodes"
        )
    return found


def check_alike(nodes: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> None:
    """Raise ValueError where two nodes differ in what a measurement depends on; both are named."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = ray.remote(num_cpus=0)(versions)
    refs = [
        probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in nodes
    ]
    found = []
    for node, ref in zip(nodes, refs, strict=True):
        name = names[node["NodeID"]]
        try:
            own = ray.get(ref)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(
                f"executor: {name} cannot import specgauge ({reason}); install the same release there"
            ) from error
        kinds = sorted(kind.partition(":")[2] for kind in node["Resources"] if kind.startswith("accelerator_type:"))
        found.append((name, own | {"accelerator": ", ".join(kinds) or None}))
    first, known = found[0]
    for name, own in found[1:]:
        for what, value in known.items():
            if own[what] != value:
                raise ValueError(
                    f"executor: nodes differ, {first} has {what} {value}, {name} has {own[what]}; install the same "
                    "versions, and let nodes of one kind measure a run (executor.accelerator_type)"
                )


class Sweep:
    """The jobs of a run on a cluster, from the first to the last."""

    def __init__(
        self,
        config: Config,
        out: Path,
        jobs: Sequence[Job],
        resources: Resources,
        names: Mapping[str, str],
        nodes: Sequence[Mapping[str, Any]],
        shown: Progress,
    ) -> None:
        self._config, self._out, self._jobs, self._shown = config, out, jobs, shown
        self._resources, self._names, self._nodes = resources, names, nodes
        self._running: dict[int, str] = {}
        self._blocks = 0
        self._outcomes: Mapping[str, PairOutcome] = {}

    def measure(self, prompts: Sequence[Any], seconds: float | None) -> Mapping[str, PairOutcome]:
        """Measure every job; what was not measured has its reason in the outcomes.

        Raises:
            ValueError: bad input, or nodes that differ.
            StorageError: the disk refused a write.
            KeyboardInterrupt: as it came; every finished block is kept.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        at_once = self._resources.at_once(self._nodes)
        keeper = (
            ray.remote(Keeper)
            .options(num_cpus=0, scheduling_strategy=here)
            .remote(self._out.resolve(), self._config, self._jobs, seconds=seconds, at_once=at_once)
        )
        with self._placed() as options:
            refs = self._submitted(keeper, ray.put(tuple(prompts)), options)
            self._blocks = _answer(keeper.told.remote()).blocks
            total = max(least_blocks(self._config), self._blocks)
            count, nodes = len(self._jobs), len(self._nodes)
            stage = f"{count} tasks on {nodes} node{'s' if nodes > 1 else ''}"
            self._shown.start(
                stage, total, done=self._blocks, limits=Limits(wall_s=math.inf if seconds is None else seconds)
            )
            try:
                self._wait(keeper, refs)
            except BaseException:
                for ref in refs.values():
                    ray.cancel(ref)
                ray.wait(list(refs.values()), num_returns=len(refs), timeout=CANCEL_S)
                raise
            finally:
                with suppress(ray.exceptions.RayError):
                    ray.get(keeper.close.remote(), timeout=CANCEL_S)
        return self._outcomes

    @contextmanager
    def _placed(self) -> Iterator[dict[str, Any]]:
        """The options of every task."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        own = self._resources
        options: dict[str, Any] = {"num_cpus": own.cpus, "num_gpus": own.gpus, "memory": own.memory_bytes}
        if own.gpus:
            yield options | {"accelerator_type": own.accelerator_type}
            return
        group = ray.util.placement_group([own.asked] * len(self._nodes), strategy="STRICT_SPREAD")
        try:
            yield options | {"scheduling_strategy": PlacementGroupSchedulingStrategy(group)}
        finally:
            ray.util.remove_placement_group(group)

    def _submitted(self, keeper: Any, prompts: Any, options: Mapping[str, Any]) -> dict[int, Any]:
        """What every job will return, by its number; cells wait for their pair's acceptance, that for the machine."""
        import ray

        task = ray.remote(measure).options(max_retries=-1, retry_exceptions=False, **options)
        submit = partial(task.remote, keeper)
        refs: dict[int, Any] = {}
        machine: Any = None
        recorded: dict[str, Any] = {}
        for number, job in enumerate(self._jobs):
            after = machine if job.part.acceptance else recorded.get(job.pair)
            refs[number] = submit(number, job, prompts, self._names, after)
            if job.part.is_machine_alone:
                machine = refs[number]
            elif job.part.acceptance:
                recorded[job.pair] = refs[number]
        return refs

    def _wait(self, keeper: Any, refs: Mapping[int, Any]) -> None:
        """Wait for every job, and show how far they are."""
        import ray

        waiting = {ref: number for number, ref in refs.items()}
        seen_s = time.monotonic()
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
            if any(self._resources.fit(node) for node in ray.nodes()):
                seen_s = time.monotonic()
            elif time.monotonic() - seen_s > NODELESS_S:
                for number in waiting.values():
                    last = _answer(keeper.last_machine.remote(number)) or "every node"
                    _answer(keeper.give_up.remote(number, f"{last} was lost, and no other node has what it takes"))
                break
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
    with connected(config.executor):
        import ray

        every = ray.nodes()
        names = node_names([node for node in every if node["Alive"]])
        resources = resources_of(config, sizes, every)
        nodes = fitting_nodes(resources, names)
        check_alike(nodes, names)
        OpenRun(out, config, fresh=fresh).close()
        is_known = (out / ENVIRONMENT).exists() and has_results(out)
        pairs = [pair.name for pair in planned_pairs(config)]
        jobs = planned_jobs(config, pairs, with_environment=not is_known)
        seconds = None if deadline.left_s == math.inf else deadline.left_s
        return dict(Sweep(config, out, jobs, resources, names, nodes, shown).measure(prompts, seconds))
