"""What a task asks of the nodes of its kind, how nodes are named, and which are alike. No Ray."""

from __future__ import annotations

from typing import Any

from specgauge.sweeps.cluster.nodes import Resources, node_names, resource_text, resources_of
from specgauge.sweeps.model_sizes import ModelSize, PairSizes
from tests.sweeps import made
from tests.sweeps.fake_bench import SIZES


def node(name: str, host: str = "h", **resources: Any) -> dict[str, Any]:
    return {"NodeID": name * 8, "NodeManagerHostname": host, "Alive": True, "Resources": resources}


def asked(nodes: list[dict[str, Any]], sizes: PairSizes = SIZES, **own: Any) -> Resources:
    return resources_of(made.config(executor={"kind": "ray", **own}), {"p": sizes}, nodes)


CPUS = [node("a", CPU=0.0), node("b", CPU=8.0, memory=2e9), node("c", CPU=16.0, memory=4e9)]
GPUS = [node("a", CPU=8.0, GPU=4.0), node("b", CPU=16.0, GPU=2.0)]
GPUS[0]["Resources"]["accelerator_type:H100"] = 1.0


def test_a_task_on_cpus_has_a_node_and_the_memory_of_the_estimate() -> None:
    """Weights of 2 · 40 bytes, keys and values of 8 texts in 192 slots, and what libraries keep; no vocabulary."""
    found = asked(CPUS)
    assert found == Resources(cpus=8, gpus=0, memory_bytes=80 + 2 * 8 * 192 * 8 + (32 << 20), accelerator_type=None)
    assert [found.fit(one) for one in CPUS] == [False, True, True]
    assert found.at_once(CPUS[1:]) == 2


def test_a_task_on_gpus_has_them_alone() -> None:
    assert asked(GPUS) == Resources(cpus=1, gpus=1, memory_bytes=None, accelerator_type=None)
    named = asked(GPUS, accelerator_type="H100", gpus_per_task=2, cpus_per_task=3)
    assert [named.fit(one) for one in GPUS] == [True, False]
    assert named.at_once(GPUS[:1]) == 2
    assert named.at_once(GPUS) == 3
    assert not named.fit({**GPUS[0], "Alive": False})


def test_pairs_of_several_kinds_ask_for_nodes_of_their_own() -> None:
    """What is left open follows from the nodes of that kind alone: here CPUs, since a task has a whole node."""
    config = made.config(executor={"kind": "ray", "gpus_per_task": 0, "accelerator_type": ["H100", "L4"]})
    nodes = [node("a", CPU=8.0, memory=1e9), node("b", CPU=16.0, memory=1e9)]
    for one, kind in zip(nodes, ("H100", "L4"), strict=True):
        one["Resources"][f"accelerator_type:{kind}"] = 1.0
    sizes = {"p-H100": SIZES, "p-L4": SIZES}
    found = [resources_of(config, sizes, nodes, kind) for kind in ("H100", "L4")]
    assert [one.cpus for one in found] == [8, 16]
    assert [[one.fit(each) for each in nodes] for one in found] == [[True, False], [False, True]]


def test_what_is_written_is_asked_and_an_unknown_size_asks_for_no_memory() -> None:
    unknown = PairSizes(target=ModelSize(parameters=None, dtype="float32"), draft=None)
    assert asked(CPUS, unknown).memory_bytes is None
    assert asked(CPUS, cpus_per_task=2, memory="3GiB").asked == {"CPU": 2.0, "memory": float(3 << 30)}


def test_resources_and_names_in_words() -> None:
    assert resource_text({"CPU": 8.0, "GPU": 1.0, "memory": float(40 << 30), "accelerator_type:H100": 1.0}) == (
        "8 CPUs, 1 GPU, 40 GiB, H100"
    )
    assert resource_text({"CPU": 0.0, "node:1.2.3.4": 1.0}) == "nothing"
    names = node_names([node("a"), node("b"), node("c", "other")])
    assert names == {"aaaaaaaa": "h-aaaaaa", "bbbbbbbb": "h-bbbbbb", "cccccccc": "other"}
