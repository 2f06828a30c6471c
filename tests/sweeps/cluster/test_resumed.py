"""Runs on a cluster that are stopped, limited, begun anew, and resumed here or there; skipped where Ray is missing."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.loader import config_to_yaml
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run import runner
from specgauge.sweeps.store.journal import read_journal
from specgauge.sweeps.store.rundir import CELLS, Run
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made
from tests.sweeps.apart import ARMS, is_alive, measured, wait_for
from tests.sweeps.cluster.simulated import IGNORED, cluster_of, driver
from tests.sweeps.fake_bench import FakeBench

pytest.importorskip("ray")
pytestmark = IGNORED
CONFIG = made.config(
    grid={"batch_size": [1, 2], "context": [64, 65], "gamma": "1:2"}, executor={"kind": "ray", "memory": "16MiB"}
)
LOCAL = CONFIG.model_copy(update={"executor": made.config().executor})
BLOCKS = len(plan_cells(CONFIG)) * len(ARMS) * 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with cluster_of(2) as found:
        yield found


def lines_of(run: Path) -> int:
    return len(read_journal(run / CELLS).lines) if (run / CELLS).exists() else 0


def begun(out: Path, blocks: int) -> None:
    """A run that this machine began, so many of its blocks measured."""
    assert runner.run(LOCAL, out=out) == 0
    lines = (out / CELLS).read_bytes().splitlines(keepends=True)
    (out / CELLS).write_bytes(b"".join(lines[:blocks]))


def is_free(out: Path) -> bool:
    """Whether nobody writes the run any more."""
    try:
        OpenRun(out, CONFIG, fresh=False).close()
    except ValueError:
        return False
    return True


def test_a_run_is_interrupted_then_its_driver_killed_and_nothing_is_measured_twice(
    tmp_path: Path, cluster: Any, bench: FakeBench
) -> None:
    """Ctrl-C ends as at home: its code and line, every finished block kept, no process of a task left behind."""
    out, config, processes = tmp_path / "run", tmp_path / "config.yaml", tmp_path / "processes"
    processes.mkdir()
    config.write_text(config_to_yaml(CONFIG))
    arguments = (f"slow in 0.2,pid in {processes}", "run", str(config), "--out", str(out))
    with driver(cluster, *arguments) as interrupted:
        wait_for(lambda: lines_of(out) > 3 or interrupted.poll() is not None)
        interrupted.send_signal(signal.SIGINT)
        printed, errors = interrupted.communicate()
    assert (interrupted.returncode, printed) == (130, "")
    assert errors.splitlines()[-1].startswith(f"specgauge: interrupted; every finished block is kept in {out}, go on")
    assert "Traceback" not in errors
    known = list(map(int, (one.name for one in processes.iterdir())))
    assert known
    wait_for(lambda: not any(map(is_alive, known)))
    kept = Run.open(out).journal()
    assert 3 < len(kept) < BLOCKS
    assert {line.status for line in kept} == {"ok"}

    with driver(cluster, *arguments) as killed:
        wait_for(lambda: lines_of(out) > len(kept) + 3 or killed.poll() is not None)
        killed.kill()
    wait_for(lambda: is_free(out))
    assert len(kept) < lines_of(out) < BLOCKS

    assert runner.run(LOCAL, out=out) == 0  # here
    after = Run.open(out).journal()
    assert after[: len(kept)] == kept
    assert len(measured(after)) == len(set(measured(after))) == BLOCKS


def test_a_run_begun_here_is_resumed_there(tmp_path: Path, cluster: Any, bench: FakeBench) -> None:
    out = tmp_path / "run"
    begun(out, BLOCKS // 2)
    assert runner.run(CONFIG, out=out, apart=True) == 0
    journal = Run.open(out).journal()
    assert len(measured(journal)) == len(set(measured(journal))) == BLOCKS
    machines = {line.notes.get("machine") for line in journal[BLOCKS // 2 :]}
    assert None not in machines
    assert set(Run.open(out).environment["machines"]) == machines


def test_no_seconds_leave_everything_out_and_fresh_begins_anew(
    tmp_path: Path, cluster: Any, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    begun(out, BLOCKS)
    hurried = CONFIG.model_copy(update={"limits": CONFIG.limits.model_copy(update={"run_seconds": 0.001})})
    assert runner.run(hurried, out=out, apart=True, fresh=True) == 1
    assert "Nothing was measured: limits.run_seconds is spent" in capsys.readouterr().out
    assert lines_of(out) == 0
    assert lines_of(tmp_path / "run.old-1") == BLOCKS
