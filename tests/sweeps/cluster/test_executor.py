"""What a task asks of the nodes, how nodes are named, and what is refused before anything is begun. No Ray."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from specgauge.cli.errors import tell
from specgauge.configs.errors import ConfigError
from specgauge.configs.loader import config_of
from specgauge.sweeps.cluster import executor
from specgauge.sweeps.cluster.executor import Resources, check_ray, node_names, resource_text, resources_of
from specgauge.sweeps.model_sizes import ModelSize, PairSizes
from specgauge.sweeps.run import runner
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
    """Weights of 2 · 40 bytes, 1088 bytes of keys and values; no vocabulary tells the logits."""
    found = asked(CPUS)
    assert found == Resources(cpus=8, gpus=0, memory_bytes=80 + 2 * 2 * 68 * 4, accelerator_type=None)
    assert [found.fit(one) for one in CPUS] == [False, True, True]
    assert found.at_once(CPUS[1:]) == 2


def test_a_task_on_gpus_has_them_alone() -> None:
    assert asked(GPUS) == Resources(cpus=1, gpus=1, memory_bytes=None, accelerator_type=None)
    named = asked(GPUS, accelerator_type="H100", gpus_per_task=2, cpus_per_task=3)
    assert [named.fit(one) for one in GPUS] == [True, False]
    assert named.at_once(GPUS[:1]) == 2
    assert named.at_once(GPUS) == 3
    assert not named.fit({**GPUS[0], "Alive": False})


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


def test_ray_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(executor, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="ray") as caught:
        runner.run(made.config(executor={"kind": "ray"}), out=tmp_path / "run", apart=True)
    assert tell(caught.value, debug=False) == 2
    assert "pip install 'specgauge[ray]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "find_spec", lambda name: object())
    monkeypatch.setattr(executor, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:  # one that takes the call and says nothing
        port = server.getsockname()[1]
        at = made.config(executor={"kind": "ray", "address": f"127.0.0.1:{port}"}).executor
        with pytest.raises(ValueError, match=rf"executor.address: .* 127.0.0.1:{port}, which does not answer \(timed"):
            check_ray(at)
    with pytest.raises(ValueError, match=rf"executor.address: .* 127.0.0.1:{port}, which does not answer"):
        check_ray(at)


@pytest.mark.parametrize("recorded_in", ["file", "environment"])
def test_a_cluster_that_was_and_is_no_more_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded_in: str
) -> None:
    monkeypatch.setattr(executor, "find_spec", lambda name: object())
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    auto = made.config(executor={"kind": "ray", "address": "auto"}).executor
    check_ray(auto)  # nothing is known of any: Ray itself says so, at once
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"127.0.0.1:{server.getsockname()[1]}"
    if recorded_in == "environment":
        monkeypatch.setenv("RAY_ADDRESS", gone)
    else:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(gone)
    with pytest.raises(ValueError, match=rf"executor.address: expected a Ray cluster at {gone}, which does not answer"):
        check_ray(auto)


def test_servers_are_measured_from_where_their_client_is() -> None:
    engine = {"kind": "vllm", "base_url": "http://localhost:8000", "gamma": 0}
    served = {"name": "x", "pairs": [{"name": "a", "engine": [engine]}], "executor": {"kind": "ray"}}
    with pytest.raises(ConfigError, match=r"executor.kind: expected local, since servers are measured"):
        config_of(served, "served")
