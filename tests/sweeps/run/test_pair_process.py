"""Workers before they know what they measure: ended where they are told nothing, and what is done while they load."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specgauge.sweeps.run import pair_process
from specgauge.sweeps.run.pair_process import PairProcess, started
from specgauge.sweeps.run.worker import work
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import Run
from tests.sweeps import made, odd_workers
from tests.sweeps.apart import CONFIG, FIRST, SECOND, by_cell, is_alive, wait_for


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers have to find."""
    monkeypatch.setenv("PYTHONPATH", odd_workers.PATHS)


def end_at_once(*_: object) -> None:
    os._exit(3)


def test_a_worker_that_is_told_nothing_is_ended() -> None:
    with started(is_served=True) as worker:
        pid = worker._process.pid
        assert pid is not None
        assert is_alive(pid)
    assert not is_alive(pid)
    assert not worker.is_free


def test_a_worker_measures_what_it_is_told_while_something_else_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.begin(tmp_path / "run", CONFIG).close()
    done: list[str] = []

    def fail() -> None:
        done.append("begun")
        raise ImportError("it cannot be drawn here")

    monkeypatch.setattr(pair_process, "work_apart", odd_workers.with_accidents("fake"))
    with started(is_served=False) as worker:
        assert worker.measure(tmp_path / "run", "p", [], None, work=work, meanwhile=fail) == (0, PairOutcome())
    assert done == ["begun"]
    assert by_cell(Run.open(tmp_path / "run").journal()) == {FIRST.id: {"ok"}, SECOND.id: {"ok"}}


def test_a_worker_that_died_before_it_was_told_has_a_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_process, "work_apart", end_at_once)
    worker = PairProcess(is_served=False)
    wait_for(lambda: worker._process.exitcode is not None)
    assert worker.measure(tmp_path, "p", [], None, work=work) == (3, None)
