"""γ with each request: one server for all of them where its build takes it, else one for each."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.engines import EngineConfig
from specgauge.configs.schema import Config
from specgauge.model.arms import APART
from specgauge.sweeps.run.runner import run
from specgauge.sweeps.served.launching import Launch, RequestServer, launched_visits
from specgauge.sweeps.served.servers import Arms, Visit
from specgauge.sweeps.store.counts import read_counts
from specgauge.sweeps.store.rundir import Run
from tests.sweeps.served.test_launching import launched


def llama(**settings: Any) -> Config:
    """Simulated engines in the place of llama-server."""
    options = ["--settings", json.dumps({"step_s": 0.004, "draft_s": 0.002, "alpha": 0.7, **settings})]
    return launched(options, kind="llama_cpp", grid={"batch_size": 2, "context": 16, "gamma": [1, 3]})


def decoded(made: Run) -> set[str]:
    return {line.arm for line in made.journal() if line.status == "ok"}


def test_one_server_takes_every_gamma_where_its_build_takes_it_from_a_request(tmp_path: Path) -> None:
    assert run(llama(n_max_honoured=True), out=tmp_path) == 0
    made = Run.open(tmp_path)
    (log,) = (tmp_path / "servers" / "a").glob("*.log")
    assert (log.name, log.read_text().count("ready")) == ("gamma-3.log", 1)
    assert decoded(made) == {"decode", "round:1", "round:3"}
    assert not any(APART in line.notes for line in made.journal())
    rows = read_counts(tmp_path)
    assert {row.gamma for row in rows} == {1, 3}
    assert all(row.drafted == row.gamma * (row.rounds or 0) for row in rows)


def test_where_a_build_ignores_it_each_gamma_has_a_server_and_why_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(llama(), out=tmp_path) == 0
    made, logs = Run.open(tmp_path), tmp_path / "servers" / "a"
    assert {path.name for path in logs.glob("*.log")} == {"gamma-0.log", "gamma-1.log", "gamma-3.log"}
    assert decoded(made) == {"decode", "round:1", "round:3"}
    assert all(APART in line.notes for line in made.journal())
    told = capsys.readouterr().err
    assert "pair a: a server for each γ: http://127.0.0.1:" in told
    assert "with speculative.n_max: 0: this build does not take γ from a request" in told


def test_a_largest_gamma_that_does_not_start_costs_itself_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "exit('the draft does not fit')", "{port}", "{gamma}"]
    engine = EngineConfig.model_validate({"kind": "llama_cpp", "launch": {"command": command, "stop_seconds": 1}})
    visits = launched_visits(Launch(engine=engine, folder=tmp_path, streams=1), [0, 2, 4], blocks=2, most=4)
    first = next(visits)
    assert (type(first), first.gammas) == (RequestServer, (0, 2, 4))
    assert not asyncio.run(entered(first))
    assert list(first.lost) == [4]
    assert "the draft does not fit" in first.lost[4]
    assert [(one.gammas, list(one.blocks or ())) for one in visits] == [
        ((0,), [0, 1]), ((2,), [0, 1]), ((2,), [2, 3]), ((0,), [2, 3]), ((4,), [2, 3]),
    ]  # fmt: skip


async def entered(visit: Visit) -> Arms:
    async with visit as arms:
        return arms


def test_live_false_starts_a_server_for_each(tmp_path: Path) -> None:
    engine = EngineConfig.model_validate(
        {"kind": "llama_cpp", "target": "t.gguf", "draft": "d.gguf", "launch": {"live": False}}
    )
    visits = list(launched_visits(Launch(engine=engine, folder=tmp_path, streams=1), [0, 2], blocks=3, most=3))
    assert [one.gammas for one in visits] == [(0,), (2,)]
