"""The nodes of a cluster: what a task asks of one, which have it, what they are called, and whether they are alike.

    groups = node_groups(config, sizes, names)      # by kind of device; None where pairs name none
    groups["H100"].resources.asked                  # {"CPU": 8.0, "GPU": 1.0, "accelerator_type:H100": 0.001}

The nodes of a group are alike in whatever a measurement depends on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specgauge.sweeps.cluster.task import versions
from specgauge.sweeps.memory import memory_bytes
from specgauge.sweeps.plan import plan_cells, planned_pairs
from specgauge.sweeps.run.progress import size_text

if TYPE_CHECKING:
    from specgauge.configs.schema import Config
    from specgauge.sweeps.model_sizes import PairSizes

_KIND = "accelerator_type:"
"""Before the accelerator's name in Ray's name of a resource."""
_OF_A_KIND = frozenset({"cpu", "accelerator"})
"""What nodes of two groups may differ in."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What every task of a group asks of a node, in Ray's words for it."""

    cpus: int
    gpus: int
    memory_bytes: int | None
    accelerator_type: str | None

    @property
    def asked(self) -> dict[str, float]:
        """By Ray's names; no task takes all of an accelerator's name."""
        wanted = {"CPU": float(self.cpus), "GPU": float(self.gpus), "memory": float(self.memory_bytes or 0)}
        if self.accelerator_type is not None:
            wanted[f"{_KIND}{self.accelerator_type}"] = 0.001
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


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """The nodes that measure the pairs of one kind of device."""

    resources: Resources
    nodes: tuple[Mapping[str, Any], ...]

    @property
    def at_once(self) -> int:
        """Tasks that can be measured at a time."""
        return self.resources.at_once(self.nodes)


def node_groups(
    config: Config, sizes: Mapping[str, PairSizes], names: Mapping[str, str]
) -> dict[str | None, NodeGroup]:
    """The nodes that measure, by the `accelerator_type` of the pairs.

    Raises:
        ValueError: no node has what a task asks for, or two of a group differ.
    """
    import ray

    every: list[dict[str, Any]] = ray.nodes()
    groups = {}
    for device in dict.fromkeys(pair.accelerator_type for pair in planned_pairs(config)):
        resources = resources_of(config, sizes, every, device)
        groups[device] = NodeGroup(resources=resources, nodes=_fitting(resources, every, names))
    _check_alike(groups.values(), names)
    return groups


def resources_of(
    config: Config, sizes: Mapping[str, PairSizes], nodes: Sequence[Mapping[str, Any]], device: str | None = None
) -> Resources:
    """What a task asks for: as the executor says, the rest by the nodes and by the estimate of the largest cell.

    device: the `accelerator_type` of the pairs that are meant.
    """
    asked = config.executor
    kind = device or asked.accelerator_type
    living = [
        node["Resources"] for node in nodes if node["Alive"] and (not kind or f"{_KIND}{kind}" in node["Resources"])
    ]
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
            if sizes[pair.name].weight_bytes is not None
            if pair.accelerator_type == device
        ]
        memory = max(needed, default=None)
    return Resources(cpus=cpus, gpus=gpus, memory_bytes=memory, accelerator_type=kind)


def resource_text(resources: Mapping[str, float]) -> str:
    """Resources in words: `8 CPUs, 1 GPU, 40 GiB, H100`."""
    words = [
        f"{resources[name]:g} {name}{'' if resources[name] == 1 else 's'}"
        for name in ("CPU", "GPU")
        if resources.get(name)
    ]
    if resources.get("memory"):
        words.append(size_text(int(resources["memory"])))
    words += [name.partition(":")[2] for name in resources if name.startswith(_KIND)]
    return ", ".join(words) or "nothing"


def node_names(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The name of every node by its id: its host's, told apart by the id where several share a host."""
    hosts = Counter(node["NodeManagerHostname"] for node in nodes)
    return {
        node["NodeID"]: (host := node["NodeManagerHostname"]) + (f"-{node['NodeID'][:6]}" if hosts[host] > 1 else "")
        for node in nodes
    }


def _fitting(
    resources: Resources, every: Sequence[Mapping[str, Any]], names: Mapping[str, str]
) -> tuple[Mapping[str, Any], ...]:
    """The nodes that a task fits on; ValueError where there is none, with what is asked and what every node has."""
    nodes = [node for node in every if node["Alive"]]
    found = tuple(node for node in nodes if resources.fit(node))
    if not found:
        has = "; ".join(f"{names[node['NodeID']]} has {resource_text(node['Resources'])}" for node in nodes)
        raise ValueError(
            f"executor: a task asks for {resource_text(resources.asked)}, which no node has ({has}); ask for less "
            "(executor.cpus_per_task, gpus_per_task, memory, accelerator_type), or add nodes"
        )
    return found


def _check_alike(groups: Iterable[NodeGroup], names: Mapping[str, str]) -> None:
    """Raise ValueError where two nodes differ in what a measurement depends on; both are named.

    Nodes of two groups may have other processors and accelerators.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    probe = ray.remote(num_cpus=0)(versions)
    grouped = [(number, node) for number, group in enumerate(groups) for node in group.nodes]
    refs = [
        probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for _, node in grouped
    ]
    found = []
    for (number, node), ref in zip(grouped, refs, strict=True):
        name = names[node["NodeID"]]
        try:
            own = ray.get(ref)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(
                f"executor: {name} cannot import specgauge ({reason}); install the same release there"
            ) from error
        kinds = sorted(kind.removeprefix(_KIND) for kind in node["Resources"] if kind.startswith(_KIND))
        found.append((number, name, own | {"accelerator": ", ".join(kinds) or None}))
    for number, name, own in found:
        beside = next(one for one in found if one[0] == number)
        for (_, first, known), left_out in ((found[0], _OF_A_KIND), (beside, frozenset[str]())):
            for what, value in known.items():
                if own[what] != value and what not in left_out:
                    raise ValueError(
                        f"executor: nodes differ, {first} has {what} {value}, {name} has {own[what]}; install the "
                        "same versions, and name the kind of node that measures, or several (executor.accelerator_type)"
                    )
