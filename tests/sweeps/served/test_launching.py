"""Servers that are started for each γ: their order, their logs, and what one that does not start or dies costs."""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from specgauge.configs.engines import EngineConfig
from specgauge.configs.schema import Config
from specgauge.reports.validation import policy_facts
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.analysis.restarts import restart_ratios
from specgauge.sweeps.answer_table import answer_text
from specgauge.sweeps.exports.registry import ENGINES
from specgauge.sweeps.exports.run_answers import run_answers
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.run.runner import run
from specgauge.sweeps.served.launching import Launch, LiveServer, StartedServer, checked_gammas, launched_visits
from specgauge.sweeps.served.servers import ArmKey
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import ValidationRow
from specgauge.sweeps.store.served import read_served
from tests.sweeps.served.simulated import served_config

ROOT = Path(__file__).parents[3]
SETTINGS = json.dumps({"step_s": 0.004, "draft_s": 0.0005, "per_request": True})

ENGINE = [sys.executable, "-m", "tests.engine_server", "--port", "{port}"]
ENV = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def launched(options: Sequence[str] = (), *, kind: str = "openai", **sections: Any) -> Config:
    words = [*ENGINE, "--gamma", "{gamma}"]
    engine = {
        "kind": kind,
        "launch": {
            "command": shlex.join([*words, "--settings", SETTINGS, *options]),
            "ready_seconds": 60,
            "stop_seconds": 5,
            "env": ENV,
        },
    }
    return served_config(
        **{
            "pairs": [{"name": "a", "engine": engine}],
            "grid": {"batch_size": 1, "context": 16, "gamma": [2]},
            "precision": {"min_blocks": 2, "max_blocks": 4, "block_samples": 2, "bootstrap_replicates": 200},
            "workload": {"max_new_tokens": 16},
            **sections,
        }
    )


def visited(
    engine: dict[str, Any], gammas: Sequence[int], policies: Sequence[str] = ()
) -> list[tuple[str, tuple[ArmKey, ...], list[int]]]:
    launch = Launch(engine=EngineConfig.model_validate(engine), folder=Path("servers"), streams=4)
    own = {name: (launch.under(name, {}), 4) for name in policies}
    visits = launched_visits(launch, gammas, blocks=3, most=8, policies=own)
    return [(type(one).__name__, one.arms, list(one.blocks or ())) for one in visits]


def test_servers_are_started_by_gamma_and_back() -> None:
    found = visited({"kind": "sglang", "target": "t", "draft": "d", "launch": {}}, [0, 2, 4])
    assert {name for name, *_ in found} == {StartedServer.__name__}
    assert [gammas for _, gammas, _ in found] == [(0,), (2,), (4,), (4,), (2,), (0,), (0,), (2,), (4,)]
    assert [blocks for *_, blocks in found[::3]] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_a_vllm_takes_every_gamma_between_two_visits_of_a_plain_server() -> None:
    engine = {"kind": "vllm", "target": "t", "draft": "d", "launch": {}}
    assert visited(engine, [0, 2, 4]) == [
        ("StartedServer", (0,), [0, 1, 2]),
        ("LiveServer", (2, 4, "schedule_0"), list(range(8))),
        ("StartedServer", (0,), [3, 4, 5]),
    ]
    assert visited({**engine, "launch": {"live": False}}, [0, 2])[0] == ("StartedServer", (0,), [0, 1, 2])
    lookups = {"kind": "vllm", "target": "t", "method": "ngram", "launch": {}}
    assert visited(lookups, [0, 2, 4]) == visited(engine, [0, 2, 4])


def test_policies_have_servers_of_their_own_before_and_after_a_live_vllm() -> None:
    engine = {"kind": "vllm", "target": "t", "draft": "d", "launch": {}}
    assert [arms for _, arms, _ in visited(engine, [0, 2], ["adaptive", "mine"])] == [
        (0,), ("adaptive",), ("mine",), (2, "schedule_0"), ("mine",), ("adaptive",), (0,),
    ]  # fmt: skip


def test_the_middle_and_the_largest_gamma_of_a_live_server_are_checked_by_restart() -> None:
    engine = {"kind": "vllm", "target": "t", "draft": "d", "launch": {}}
    launch = Launch(engine=EngineConfig.model_validate(engine), folder=Path("servers"), streams=4)
    assert checked_gammas(launch, [0, 1, 2, 4]) == [2, 4]
    assert checked_gammas(launch, [0, 3]) == [3]
    visits = list(launched_visits(launch, [0, 1, 2, 4], blocks=3, most=8, checked=(2, 4)))
    assert [(one.arms, one.purpose, len(one.blocks or ())) for one in visits] == [
        ((0,), "timing", 3),
        ((1, 2, 4, "schedule_0"), "timing", 8),
        ((2,), "restart", 3),
        ((4,), "restart", 3),
        ((0,), "timing", 3),
    ]
    for own in ({"check_live": False}, {"live": False}):
        without = EngineConfig.model_validate({**engine, "launch": own})
        assert checked_gammas(replace(launch, engine=without), [0, 1, 2, 4]) == []


def test_where_one_server_cannot_take_every_gamma_each_has_its_own() -> None:
    engine = EngineConfig.model_validate({"kind": "vllm", "target": "t", "method": "ngram", "launch": {}})
    found = []
    for visit in launched_visits(Launch(engine=engine, folder=Path("x"), streams=1), [0, 2], blocks=3, most=3):
        found.append(visit.arms)
        if isinstance(visit, LiveServer):
            visit.refused = "another interface"
    assert found == [(0,), (2, "schedule_0"), (0,), (2,)]


def test_where_no_plain_server_starts_the_live_one_has_its_gamma_0() -> None:
    engine = EngineConfig.model_validate({"kind": "vllm", "target": "t", "draft": "d", "launch": {}})
    found = []
    for visit in launched_visits(Launch(engine=engine, folder=Path("x"), streams=1), [0, 2], blocks=3, most=3):
        found.append((visit.arms, visit.stands_in))
        if isinstance(visit, StartedServer):
            visit.lost = {0: "it does not start"}
    assert found == [((0,), ()), ((2, 0), (0,))]


REFUSES = """
import os, pathlib, sys
pathlib.Path(os.environ["SPECGAUGE_GAMMA_DIR"], "steps.jsonl").write_text('{"error": "vLLM 0.1 has no schedule"}\\n')
sys.exit("RuntimeError: see the root cause above")
"""


def test_why_an_engine_refuses_is_told_by_its_scheduler(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(REFUSES, encoding="utf-8")
    launch = {"command": [sys.executable, str(tmp_path / "engine.py"), "{port}", "{speculative}"], "stop_seconds": 5}
    engine = EngineConfig.model_validate({"kind": "vllm", "target": "t", "draft": "d", "launch": launch})
    visit = LiveServer(Launch(engine=engine, folder=tmp_path, streams=1), [2], range(1))

    async def enter() -> None:
        async with visit as arms:
            assert not arms

    asyncio.run(enter())
    assert visit.refused == "vLLM 0.1 has no schedule"


def test_a_run_starts_a_server_for_each_gamma_and_keeps_their_logs(tmp_path: Path) -> None:
    config = launched()
    assert run(config, out=tmp_path / "run", apart=True) == 0
    made = Run.open(tmp_path / "run")
    lines = made.journal()
    assert {line.arm for line in lines if line.status == "ok"} == {"decode", "round:2"}
    assert all(line.first_call_s is not None for line in lines if line.block == 0)
    assert {path.name for path in (tmp_path / "run" / "servers" / "a").glob("*.log")} == {"gamma-0.log", "gamma-2.log"}
    (row,) = made.predictions().itertuples()
    assert row.status == "ok"


LIVE: dict[str, Any] = {
    "kind": "vllm",
    "target": "t",
    "draft": "d",
    "launch": {
        "command": shlex.join([*ENGINE, "--settings", SETTINGS, "--speculative-config", "{speculative}"]),
        "ready_seconds": 60,
        "stop_seconds": 5,
        "env": ENV,
    },
}


def test_one_server_takes_every_gamma_and_two_are_checked_by_restart(tmp_path: Path) -> None:
    grid = {"batch_size": [1, 2], "context": 16, "gamma": [1, 2, 3]}
    config = launched(pairs=[{"name": "a", "engine": LIVE}], grid=grid)
    assert run(config, out=tmp_path / "run", apart=True) == 0
    made = Run.open(tmp_path / "run")
    rows = read_served(made.path)
    live = [row for row in rows if row.server == "live"]
    arms = [(gamma, None) for gamma in (1, 2, 3)] + [(None, "schedule_0")]
    assert {(row.gamma, row.policy, row.batch_size) for row in live} == {
        (*arm, size) for arm in arms for size in (1, 2)
    }
    assert {(row.t_round_from, row.reason) for row in live} == {("steps", None)}
    ratios = [row.t_round_s / row.t_round_client_s for row in live if row.t_round_s and row.t_round_client_s]
    assert 0.5 < median(ratios) < 2  # a block of few rounds says little where a client is put off
    checked = [(row.gamma, row.batch_size) for row in rows if row.purpose == "restart"]
    assert sorted(set(checked)) == [(2, 1), (2, 2), (3, 1), (3, 2)]
    found = restart_ratios(rows, confidence=0.9)
    assert [(one.gamma, one.batch_size) for one in found] == sorted(set(checked))
    assert all(0 < one.low <= one.ratio <= one.high and one.plain is not None for one in found)
    journal = made.journal()
    rounds = {"round:1", "round:2", "round:3"}
    assert {line.arm for line in journal if line.status == "ok"} == {"decode", "engine:schedule_0", *rounds}
    (first, *_) = [row for row in made.rows(ValidationRow) if row.policy == "schedule_0"]
    assert (first.mean_gamma, first.measured_in) == (0, "timing")
    assert first.speedup_measured_low is not None
    told = "γ = 0 by schedule takes "
    answers = run_answers(made, ENGINES["vllm"].rules, undecided="off")
    assert [note for note in answers.notes if note.startswith(told)]
    assert told in " ".join(answer_text(recommend(made)).split())
    ((name, words),) = policy_facts(made.rows(ValidationRow))
    assert (name, words.startswith(told)) == ("schedule_0", True)
    size = (made.path / "served.jsonl").stat().st_size
    assert run(config, out=tmp_path / "run", apart=True) == 0
    assert (made.path / "served.jsonl").stat().st_size == size  # everything is there


WITHOUT_PLAIN = """
import runpy, sys
if "--speculative-config" not in sys.argv:
    sys.exit("this one only speculates")
runpy.run_module("tests.engine_server", run_name="__main__")
"""


def test_gamma_0_of_the_live_server_stands_in_for_a_plain_one_that_does_not_start(tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text(WITHOUT_PLAIN, encoding="utf-8")
    words = [sys.executable, str(script), "--port", "{port}", "--settings", SETTINGS, "--speculative-config"]
    launch = {**LIVE["launch"], "command": shlex.join([*words, "{speculative}"]), "check_live": False}
    config = launched(pairs=[{"name": "a", "engine": {**LIVE, "launch": launch}}])
    assert run(config, out=tmp_path / "run") == 1
    made = Run.open(tmp_path / "run")
    assert {(row.arm, row.server) for row in read_served(made.path)} == {(0, "live"), (2, "live")}
    (row,) = made.predictions().itertuples()
    assert row.status == "ok"
    assert "S is against" in next(one["message"] for one in made.warnings if one["code"] == "plain_is_live")
    (skipped,) = [line for line in made.journal() if line.arm == "engine:schedule_0"]
    assert (skipped.status, "is taken for plain decoding" in str(skipped.reason)) == ("skipped", True)


def test_a_server_that_does_not_start_is_quoted_and_its_log_kept(tmp_path: Path) -> None:
    assert run(launched(["--crash-at-start"]), out=tmp_path / "run") == 1
    made = Run.open(tmp_path / "run")
    assert {line.status for line in made.journal()} == {"failed"}
    assert all("the simulated model does not fit" in str(line.reason) for line in made.journal())
    assert "does not fit" in (tmp_path / "run" / "servers" / "a" / "gamma-0.log").read_text()


def test_a_server_that_dies_costs_what_it_was_at(tmp_path: Path) -> None:
    settings = json.dumps({"step_s": 0.004, "per_request": True, "crash_after": 9})
    config = launched(["--settings", settings])
    assert run(config, out=tmp_path / "run") == 1
    made = Run.open(tmp_path / "run")
    killed = [line for line in made.journal() if line.status == "killed"]
    assert {line.arm for line in killed} == {"decode", "round:2"}
    assert all("the simulated engine crashed" in str(line.reason) for line in killed)
    predict_run(made)
