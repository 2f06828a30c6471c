"""Runs on simulated nodes of a real Ray cluster on this machine; skipped where Ray is not installed."""

from __future__ import annotations

import re
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specgauge.model.arms import arm_names
from specgauge.reports.html import write_report
from specgauge.sweeps.cluster import executor
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run import runner
from specgauge.sweeps.store.journal import read_journal
from specgauge.sweeps.store.rundir import CELLS, Run
from tests.sweeps import made
from tests.sweeps.apart import ARMS, measured, wait_for
from tests.sweeps.cluster.simulated import IGNORED, cluster_of, name_of

pytest.importorskip("ray")
pytestmark = IGNORED
CONFIG = made.config(
    grid={"batch_size": [1, 2, 4], "context": [64, 65], "gamma": "1:2"},
    validate={"gamma": 2, "prompts": 4, "max_new_tokens": 6, "max_seconds": None},
    executor={"kind": "ray", "memory": "16MiB"},
)
BLOCKS = len(plan_cells(CONFIG)) * len(ARMS) * 3


def lines_of(run: Path) -> int:
    return len(read_journal(run / CELLS).lines) if (run / CELLS).exists() else 0


def test_a_node_killed_half_way_costs_nothing_that_was_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its tasks are tried elsewhere from the last journalled block; the report and environment say who measured."""
    out = tmp_path / "run"
    with cluster_of(2, "slow in 0.2") as cluster:
        nodes = cluster.list_all_nodes()

        def kill() -> None:
            lines = wait_for(lambda: lines_of(out) > BLOCKS // 4 and read_journal(out / CELLS).lines)
            name = lines[-1].notes["machine"]
            (lost,) = [one for one in nodes if name_of(one) == name]
            cluster.remove_node(lost, allow_graceful=False)
            killed.append(name)

        killed: list[str] = []
        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        assert runner.run(CONFIG, out=out, apart=True) == 0
        thread.join()
    printed, told = capsys.readouterr()
    assert "raylet" not in printed
    assert f"{killed[0]} was lost; resumed on " in told
    run = Run.open(out)
    assert Counter(measured(run.journal())).most_common(1)[0][1] == 1
    assert len(run.journal()) == BLOCKS
    machines = {line.notes["machine"] for line in run.journal()}
    assert set(run.environment["machines"]) == machines
    assert len(machines) == 2
    assert killed[0] in machines
    assert len(run.validation()) == len(plan_cells(CONFIG))


def test_kinds_of_device_are_pairs_of_their_own_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unlike nodes are refused until they are named; then each measures its pair alone, and the answers compare."""
    grid = {"batch_size": 1, "context": 64, "gamma": 1}
    mixed = made.config(grid=grid, executor={"kind": "ray", "memory": "16MiB"})
    named = made.config(grid=grid, executor={"kind": "ray", "memory": "16MiB", "accelerator_type": ["A", "B"]})
    out = tmp_path / "run"
    with cluster_of(0, kinds=("A", "B")) as cluster:
        with pytest.raises(
            ValueError, match=r"nodes differ, .* has accelerator [AB], .* has [AB]; .*executor.accelerator_type"
        ):
            runner.run(mixed, out=out, apart=True)
        assert runner.run(named, out=out, apart=True, report=write_report) == 0
        nodes = {kind: name_of(node) for node in cluster.list_all_nodes() for kind in kinds_of(node)}
    run = Run.open(out)
    assert len(run.journal()) == 2 * len(arm_names((1,))) * 3
    assert {(line.axes["pair"], line.notes["machine"]) for line in run.journal()} == {
        ("p-A", nodes["A"]), ("p-B", nodes["B"]),
    }  # fmt: skip
    assert set(run.environment["devices"]) == {"A", "B"}
    assert set(run.environment["machines"]) == set(nodes.values())
    assert {row["pair"] for row in run.recommendations()} == {"p-A", "p-B"}
    told = capsys.readouterr().out
    assert "side by side: target embedded, greedy" in told
    page = (out / "report.html").read_text(encoding="utf-8")
    assert re.search(r"A: Some.CPU; B: Some.CPU", page)


def kinds_of(node: Any) -> list[str]:
    """The accelerators of a simulated node."""
    return [name.partition(":")[2] for name in node.get_resource_and_label_spec().resources if "accelerator" in name]


def test_too_few_resources_and_no_node_left_are_one_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    greedy = CONFIG.model_copy(update={"executor": CONFIG.executor.model_copy(update={"cpus_per_task": 64})})
    monkeypatch.setattr(executor, "NODELESS_S", 1.0)
    with cluster_of(1, "slow in 0.2") as cluster:
        with pytest.raises(ValueError, match=r"a task asks for 64 CPUs, 16 MiB, which no node has \(.* has 1 CPU, "):
            runner.run(greedy, out=out, apart=True)
        assert not out.exists()
        (node,) = [one for one in cluster.list_all_nodes() if not one.head]

        def kill() -> None:
            wait_for(lambda: lines_of(out) > 5)
            cluster.remove_node(node, allow_graceful=False)

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        assert runner.run(CONFIG, out=out, apart=True) == 1
        thread.join()
    reasons = {line.reason for line in Run.open(out).journal() if line.status == "killed"}
    name = name_of(node)
    assert f"{name} was lost, and no other node has what it takes" in reasons
