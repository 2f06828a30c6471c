"""The one writer of a run that is measured elsewhere: orders, what is kept of a lost node, seconds, machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.cluster import keeper as module
from specgauge.sweeps.cluster.exchange import unpack
from specgauge.sweeps.cluster.keeper import Keeper, least_blocks, planned_jobs, unknown_devices
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.store.outcomes import ALL_MISSING, PairOutcome
from specgauge.sweeps.store.rows import write_mapping
from specgauge.sweeps.store.rundir import CELLS, ENVIRONMENT, Run
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made
from tests.sweeps.apart import ARMS, by_cell, pairs

CONFIG = made.config(grid={"batch_size": [1, 4], "context": [64, 65], "gamma": "1:2"})
JOBS = planned_jobs(CONFIG, ["p"], {None: "p"})
MACHINE, ACCEPTANCE, LARGE, SMALL = range(4)
BYTES = json.dumps(made.ENVIRONMENT).encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made.begin(tmp_path / "run", CONFIG).close()
    return tmp_path / "run"


def keeper_of(path: Path, seconds: float | None = None, at_once: int = 2) -> Keeper:
    return Keeper(path, CONFIG, JOBS, seconds=seconds, at_once={None: at_once})


def block(tmp_path: Path, number: int = LARGE, arm: str = "decode") -> dict[str, bytes]:
    """The journal of a node that has measured one block of the first cell of a job."""
    cell = next(one for one in plan_cells(CONFIG) if one.id in (JOBS[number].part.cells or ()))
    with made.begin(tmp_path / f"{number}{arm}", CONFIG) as node:
        node.journal.append({"axes": cell.axes, "arm": arm, "block": 0, "status": "ok", "samples_s": [[1.0]]})
    return {CELLS: (tmp_path / f"{number}{arm}" / CELLS).read_bytes()}


def test_jobs_are_the_machine_then_acceptance_then_batch_sizes_the_largest_first() -> None:
    assert [job.label for job in JOBS] == ["the machine", "p, acceptance", "p, batch size 4", "p, batch size 1"]
    assert JOBS[MACHINE].part.is_machine_alone
    assert [len(job.part.cells or ()) for job in JOBS] == [0, 0, 2, 2]
    two = made.config(pairs=pairs("a", "b"), grid=CONFIG.grid)
    assert [job.label for job in planned_jobs(two, ["a", "b"], {})] == [
        *("a, acceptance", "b, acceptance"),
        *("a, batch size 4", "b, batch size 4", "a, batch size 1", "b, batch size 1"),
    ]
    assert least_blocks(CONFIG) == 4 * len(ARMS) * 3


def test_a_job_is_resumed_from_what_is_journalled_by_then(path: Path, tmp_path: Path) -> None:
    keeper = keeper_of(path)
    order = keeper.begin(LARGE, "a")
    assert order is not None
    assert order.files[CELLS] == b""
    keeper.take(LARGE, "a", block(tmp_path))
    again = keeper.begin(LARGE, "b")
    assert again is not None
    unpack(again.files, tmp_path / "b")
    (line,) = Run.open(tmp_path / "b").journal()
    assert (line.arm, line.notes["machine"]) == ("decode", "a")
    told = keeper.told()
    assert (told.blocks, told.running, told.lines) == (1, {LARGE: "b"}, ["p, batch size 4: a was lost; resumed on b"])
    assert keeper.told().lines == []


def test_a_job_whose_nodes_are_lost_without_a_block_is_killed(path: Path, tmp_path: Path) -> None:
    """A block in between begins the count anew; the others are measured all the same."""
    keeper = keeper_of(path)
    for machine in ("a", "b"):
        keeper.begin(LARGE, machine)
    keeper.take(LARGE, "b", block(tmp_path))
    for machine in ("c", "d"):
        assert keeper.begin(LARGE, machine) is not None
    assert keeper.begin(LARGE, "e") is None
    assert keeper.begin(SMALL, "e") is not None
    keeper.end(SMALL, PairOutcome(), "e")
    killed = "b, c, d did not answer any more, 3 times"
    outcome = keeper.outcomes()["p"]
    assert (outcome.died, outcome.failed) == (f"killed: {killed}", True)
    keeper.close()
    lines = Run.open(path).journal()
    assert {line.reason for line in lines if line.status == "killed"} == {killed}
    assert by_cell(lines) == dict(zip(JOBS[LARGE].part.cells or (), ({"ok", "killed"}, {"killed"}), strict=True))


KINDS = made.config(executor={"kind": "ray", "accelerator_type": ["H100", "L4"]})
"""The pairs p-H100 and p-L4."""
SLOW = made.ENVIRONMENT | {"cpu": "Slow CPU", "threads": 1}


def test_kinds_of_device_have_an_environment_and_jobs_each(tmp_path: Path) -> None:
    """A node of one kind never measures a pair of another; what it is told is of its own kind."""
    with OpenRun(tmp_path / "run", KINDS, fresh=False) as opened:
        unknown = unknown_devices(opened)
    assert unknown == {"H100": "p-H100", "L4": "p-L4"}
    jobs = planned_jobs(KINDS, list(unknown.values()), unknown)
    assert [f"{job.label}: {job.device}" for job in jobs] == [
        "the machine with H100: H100", "the machine with L4: L4",
        "p-H100, acceptance: H100", "p-L4, acceptance: L4", "p-H100, batch size 1: H100", "p-L4, batch size 1: L4",
    ]  # fmt: skip
    keeper = Keeper(tmp_path / "run", KINDS, jobs, seconds=90.0, at_once={"H100": 1, "L4": 3})
    for number, environment in enumerate((made.ENVIRONMENT, SLOW)):
        keeper.begin(number, "a")
        keeper.take(number, "a", {ENVIRONMENT: json.dumps(environment).encode()})
    with pytest.raises(ValueError, match=r"measured with cpu 'Slow CPU', on b it is 'Some CPU'"):
        keeper.take(3, "b", {ENVIRONMENT: BYTES})
    order = keeper.begin(3, "b")
    assert order is not None
    unpack(order.files, tmp_path / "node")
    assert Run.open(tmp_path / "node").environment == {"schema": 1, **SLOW}
    keeper.close()
    devices = Run.open(tmp_path / "run").environment["devices"]
    assert devices == {"H100": made.ENVIRONMENT, "L4": SLOW}


def test_what_is_known_of_a_device_without_results_is_forgotten(tmp_path: Path) -> None:
    first, _ = plan_cells(KINDS)
    with OpenRun(tmp_path / "run", KINDS, fresh=False) as opened:
        write_mapping(opened.path / ENVIRONMENT, {"devices": {"H100": made.ENVIRONMENT, "L4": SLOW}})
        opened.journal.append({"axes": first.axes, "arm": "decode", "block": 0, "status": "ok", "samples_s": [[1.0]]})
        assert unknown_devices(opened) == {"L4": "p-L4"}
    assert list(Run.open(tmp_path / "run").environment["devices"]) == ["H100"]


def test_a_machine_without_results_is_forgotten(path: Path) -> None:
    with OpenRun(path, CONFIG, fresh=False) as opened:
        assert unknown_devices(opened) == {None: "p"}
    assert not (path / ENVIRONMENT).exists()


def test_seconds_are_shared_by_the_jobs_that_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One acceptance may take all that is left (it takes three tenths); of two jobs at a time each has its half."""
    now_s = [0.0]

    monkeypatch.setattr(module, "Deadline", lambda seconds: Deadline(seconds, now=lambda: now_s[0]))
    keeper = keeper_of(path, seconds=100.0, at_once=1)
    seconds = [order.seconds for order in (keeper.begin(ACCEPTANCE, "a"), keeper.begin(LARGE, "a")) if order]
    assert seconds == [100.0, pytest.approx(100.0 / 3)]  # the machine's job is another that waits
    now_s[0] = 101.0
    assert keeper.begin(SMALL, "a") is None
    assert keeper.outcomes()["p"].left_out == [
        *("whatever was missing of the machine", "whatever was missing of p, acceptance"),
        *("whatever was missing of p, batch size 4", "whatever was missing of p, batch size 1"),
    ]
    keeper.close()
    late = keeper_of(path, seconds=0.0)
    assert late.begin(MACHINE, "a") is not None
    assert late.begin(ACCEPTANCE, "a") is None
    assert ALL_MISSING in late.outcomes()["p"].left_out
    assert keeper_seconds(path, late) is None


def keeper_seconds(path: Path, before: Keeper) -> Any:
    """What a job may take where there is no limit."""
    before.close()
    order = keeper_of(path).begin(LARGE, "a")
    assert order is not None
    return order.seconds


def test_a_stopped_run_begins_nothing_and_keeps_what_is_handed_in(path: Path, tmp_path: Path) -> None:
    keeper = keeper_of(path)
    keeper.begin(LARGE, "a")
    assert keeper.goes_on()
    assert keeper.stop() == [LARGE]
    assert not keeper.goes_on()
    assert keeper.begin(SMALL, "b") is None
    keeper.take(LARGE, "a", block(tmp_path))
    assert len(Run.open(path).journal()) == 1


def test_bad_input_of_a_pair_names_the_node_and_begins_nothing_more_of_it(path: Path) -> None:
    keeper = keeper_of(path)
    keeper.end(ACCEPTANCE, PairOutcome(bad_input="pair 'p' target: no weights"), "a")
    assert keeper.begin(LARGE, "b") is None
    assert keeper.outcomes()["p"].bad_input == "a: pair 'p' target: no weights"


def test_the_environment_is_the_first_ones_and_says_who_measured_what(path: Path, tmp_path: Path) -> None:
    (path / ENVIRONMENT).unlink()
    keeper = keeper_of(path)
    for number, machine in ((MACHINE, "a"), (LARGE, "a"), (SMALL, "b")):
        keeper.begin(number, machine)
    keeper.take(MACHINE, "a", {ENVIRONMENT: BYTES})
    assert Run.open(path).environment == {"schema": 1, **made.ENVIRONMENT}
    keeper.take(LARGE, "a", block(tmp_path))
    keeper.take(LARGE, "a", block(tmp_path, arm="draft"))
    keeper.take(SMALL, "b", {ENVIRONMENT: BYTES, **block(tmp_path, SMALL)})
    placed = made.ENVIRONMENT | {"models": {"p": "float32 on cpu"}}
    keeper.take(SMALL, "b", {ENVIRONMENT: json.dumps(placed).encode()})
    assert Run.open(path).environment["models"] == {"p": "float32 on cpu"}
    machines = {"a": ["p, batch size 4"], "b": ["p, batch size 1"]}
    assert Run.open(path).environment["machines"] == machines
    other = json.dumps(made.ENVIRONMENT | {"threads": 64}).encode()
    with pytest.raises(ValueError, match=r"measured with threads 2, on c it is 64; let nodes of one kind measure"):
        keeper.take(SMALL, "c", {ENVIRONMENT: other})
