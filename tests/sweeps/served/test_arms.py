"""Policies of the engine's own and what is exported, as arms beside every γ: on running and on launched servers."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.canonical import strict_loads
from specgauge.configs.schema import Config
from specgauge.reports.html import write_report
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.analysis.validation import outcome
from specgauge.sweeps.answer_table import answer_text
from specgauge.sweeps.recommend import recommend, recommendations_json
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.served import launching
from specgauge.sweeps.served.servers import Arms
from specgauge.sweeps.store.exported import read_exports
from specgauge.sweeps.store.outcomes import read_outcomes
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow, ValidationRow
from specgauge.sweeps.store.served import read_served
from tests.engine_server.engine import Engine, EngineSettings
from tests.sweeps.served.simulated import Servers, measure, served_config
from tests.sweeps.served.starts import Starts

FAST = EngineSettings(per_request=True, draft_s=0.002, alpha=0.7, token_s=0.002)
SIZES = (1, 16)
QUICK = {"max_blocks": 2, "min_blocks": 2, "bootstrap_replicates": 200}


def launched(**sections: Any) -> Config:
    engine = {
        "kind": "vllm",
        "target": "t",
        "draft": "d",
        "launch": {"live": False},
        "arms": [{"name": "own", "speculative": {"num_speculative_tokens": 3, "adapts": True}}],
    }
    content = {
        "pairs": [{"name": "a", "engine": engine}],
        "grid": {"batch_size": list(SIZES), "context": 32, "gamma": [1, 3]},
        "precision": QUICK,
    }
    return served_config(**content | sections)


def run(path: Path, config: Config, starts: Starts) -> Run:
    with starts.instead():
        assert measure(path, config, starts).bad_input is None
    predict_run(Run.open(path))
    return Run.open(path)


def policies(run: Run) -> dict[tuple[int, str], ValidationRow]:
    return {(row.batch_size, row.policy): row for row in run.rows(ValidationRow) if row.policy is not None}


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Starts]:
    starts = Starts(FAST)
    return run(tmp_path_factory.mktemp("arms") / "run", launched(validate={"max_new_tokens": 48}), starts), starts


def best_speedup(size: int) -> float:
    engine = Engine(FAST)
    speeds = [engine.omega(gamma) / engine.t_round_s(size, gamma) for gamma in (0, 1, 2, 3)]
    return max(speeds) / speeds[0]


def test_every_arm_is_started_there_and_back(validated: tuple[Run, Starts]) -> None:
    _, starts = validated
    timing, validation = starts.names[:4], starts.names[4:]
    assert timing == ["gamma-0", "gamma-1", "gamma-3", "own"]
    arms = ["gamma-0", "gamma-1", "gamma-3", "own", "exported"]
    assert validation == [*arms, *reversed(arms)]


def test_a_policy_is_measured_in_every_cell_and_no_cost_is_made_of_it(validated: tuple[Run, Starts]) -> None:
    made, _ = validated
    lines = [line for line in made.journal() if line.arm == "engine:own"]
    assert {line.axes["batch_size"] for line in lines} == set(SIZES)
    assert {line.status for line in lines} == {"ok"}
    rows = [row for row in read_served(made.path) if row.policy == "own"]
    assert {row.purpose for row in rows} == {"timing", "validation"}
    assert {row.gamma for row in rows} == {None}
    assert {row.gamma for row in made.counts("a", "greedy")} == {1, 3}


def test_its_speed_up_is_that_of_the_engine_with_an_interval(validated: tuple[Run, Starts]) -> None:
    found = policies(validated[0])
    for size in SIZES:
        row = found[size, "own"]
        assert row.speedup_measured is not None
        assert row.speedup_measured == pytest.approx(best_speedup(size), rel=0.12)
        assert row.speedup_measured_low is not None
        assert row.speedup_measured_high is not None
        assert row.speedup_measured_low <= row.speedup_measured <= row.speedup_measured_high
        assert row.measured_in == "validation"
    assert found[1, "own"].mean_gamma == pytest.approx(3, abs=0.2)
    assert found[16, "own"].mean_gamma == pytest.approx(0, abs=0.3)


def test_the_exported_schedule_is_what_the_server_was_started_with(validated: tuple[Run, Starts]) -> None:
    made, starts = validated
    (row,) = read_exports(made.path)
    assert (row.gamma(1), row.gamma(16)) == (3, 0)
    assert row.settings is not None
    told = starts.told["exported"]
    assert {name: told[name] for name in row.settings} == row.settings
    assert (told["method"], told["model"]) == ("draft_model", "d")
    (first, *_) = row.settings["num_speculative_tokens_per_batch_size"]
    assert first[::2] == [1, 3]


def test_it_is_held_against_plain_decoding_and_the_best_fixed_gamma(validated: tuple[Run, Starts]) -> None:
    found = policies(validated[0])
    one, many = found[1, "exported"], found[16, "exported"]
    assert one.best_fixed_gamma == 3
    assert one.over_best_fixed == pytest.approx(1.0, abs=0.1)
    assert one.speedup_measured_low is not None
    assert one.speedup_measured_low > 1
    assert many.speedup_measured == pytest.approx(1.0, abs=0.02)
    assert many.over_best_fixed_low is not None
    assert many.over_best_fixed_low > 1


def test_a_second_call_starts_nothing(validated: tuple[Run, Starts]) -> None:
    made, _ = validated
    starts = Starts(FAST)
    run(made.path, made.config, starts)
    assert starts.names == []


def test_where_one_server_does_not_take_every_gamma_none_is_started_for_blocks_that_are_there(tmp_path: Path) -> None:
    engine = {"kind": "vllm", "target": "t", "draft": "d", "launch": {}}
    grid = {"batch_size": 1, "context": 32, "gamma": [1, 3]}
    config = launched(pairs=[{"name": "a", "engine": engine}], grid=grid, validate={"max_new_tokens": 32})
    starts = Starts(FAST)
    made = run(tmp_path, config, starts)
    assert starts.names[:4] == ["gamma-0", "live", "gamma-1", "gamma-3"]
    assert starts.names[4:] == [
        "gamma-0", "exported", "live", "gamma-1", "gamma-3", "exported", "gamma-3", "gamma-1", "gamma-0",
    ]  # fmt: skip
    (skipped,) = [line for line in made.journal() if line.arm == "engine:schedule_0"]
    assert (skipped.status, "its scheduler told nothing" in str(skipped.reason)) == ("skipped", True)
    again = Starts(FAST)
    run(tmp_path, config, again)
    assert again.names == []


def test_the_start_of_a_server_is_none_of_the_seconds_of_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, now = launching.StartedServer.__aenter__, time.monotonic
    late = [0.0]

    async def slow(visit: launching.StartedServer) -> Arms:
        late[0] += 200.0
        return await start(visit)

    monkeypatch.setattr(launching.StartedServer, "__aenter__", slow)
    monkeypatch.setattr(Deadline, "now_s", property(lambda own: now() + late[0]))
    monkeypatch.setattr(Deadline, "left_s", property(lambda own: max(0.0, own._ends_s - own.now_s)))
    grid = {"batch_size": 1, "context": 32, "gamma": [3]}
    config = launched(grid=grid, validate={"max_new_tokens": 32, "max_seconds": 100})
    made = run(tmp_path, config, Starts(FAST))
    assert {row.block for row in read_served(made.path) if row.purpose == "validation"} == {0, 1, 2, 3}
    assert policies(made)[1, "exported"].measured_in == "validation"


def test_a_policy_whose_server_does_not_start_costs_itself_alone_and_is_resumed(tmp_path: Path) -> None:
    config = launched(grid={"batch_size": 1, "context": 32, "gamma": [3]}, precision=QUICK)
    made = run(tmp_path, config, Starts(FAST, failing=("own",)))
    status = {line.arm: (line.status, line.reason) for line in made.journal()}
    assert {arm for arm, (state, _) in status.items() if state == "ok"} == {"decode", "round:3"}
    assert "does not fit" in str(status["engine:own"][1])
    starts = Starts(FAST)
    assert (1, "own") in policies(run(tmp_path, config, starts))
    assert starts.names == ["own"]


def test_an_exported_server_that_does_not_start_is_told(tmp_path: Path) -> None:
    grid = {"batch_size": 1, "context": 32, "gamma": [3]}
    config = launched(grid=grid, precision=QUICK, validate={"max_new_tokens": 32})
    made = run(tmp_path, config, Starts(FAST, failing=("exported",)))
    assert (1, "exported") not in policies(made)
    reasons = read_outcomes(made.path)["a"].validation_reasons
    assert "does not fit" in reasons["greedy, batch size 1, context 32, arm exported"]


def test_where_servers_run_the_gamma_exported_there_is_held_against_the_best(tmp_path: Path) -> None:
    settings = replace(FAST, per_request=True)
    servers = Servers({gamma: Engine(replace(settings, gamma=gamma)) for gamma in (0, 1, 3)})
    servers.add("own", Engine(replace(settings, gamma=3, adapts=True)))
    engines = [{"base_url": f"http://gamma{gamma}:1", "gamma": gamma} for gamma in (0, 1, 3)]
    config = served_config(
        pairs=[{"name": "a", "engine": [*engines, {"base_url": "http://own:1", "arm": "own"}]}],
        grid={"batch_size": list(SIZES), "context": 32},
        precision=QUICK,
        validate={"max_new_tokens": 32},
    )
    assert not measure(tmp_path, config, servers).failed
    predict_run(Run.open(tmp_path))
    found = policies(Run.open(tmp_path))
    one, many = found[1, "exported"], found[16, "exported"]
    gammas = {(row.batch_size, row.gamma): row for row in Run.open(tmp_path).rows(ValidationRow) if row.gamma}
    assert (one.mean_gamma, one.best_fixed_gamma) == (3, 3)
    assert (one.over_best_fixed_low, one.over_best_fixed, one.over_best_fixed_high) == (1, 1, 1)
    assert one.speedup_measured == gammas[1, 3].speedup_measured
    assert (many.speedup_measured_low, many.speedup_measured, many.speedup_measured_high) == (1, 1, 1)
    assert many.over_best_fixed is not None
    assert many.over_best_fixed > 1
    assert found[1, "own"].speedup_measured == pytest.approx(best_speedup(1), rel=0.12)


@pytest.mark.parametrize("acceptance", [0.5, [0.5, 0.5, 0.5]])
def test_forced_acceptance_checks_the_costs_at_its_omega(tmp_path: Path, acceptance: Any) -> None:
    grid = {"batch_size": 1, "context": 32, "gamma": [1, 3]}
    config = launched(grid=grid, precision=QUICK, validate={"max_new_tokens": 200, "acceptance": acceptance})
    starts = Starts(FAST)
    made = run(tmp_path, config, starts)
    assert "exported" not in starts.names
    assert starts.told["gamma-3"]["synthetic_acceptance_rates"] == [0.5, 0.25, 0.125]
    engine = Engine(replace(FAST, alpha=0.5))
    rows = [row for row in made.rows(ValidationRow) if row.gamma]
    assert [row.gamma for row in rows] == [1, 3]
    for row in rows:
        assert row.gamma is not None
        assert (row.measured_in, row.lossless) == ("forced", False)
        assert row.tokens_per_round_predicted == pytest.approx(engine.omega(row.gamma))
        assert row.tokens_per_round_counted == pytest.approx(engine.omega(row.gamma), rel=0.05)
        expected = engine.omega(row.gamma) * engine.t_round_s(1, 0) / engine.t_round_s(1, row.gamma)
        assert row.speedup_predicted == pytest.approx(expected, rel=1e-3)
        assert row.error == pytest.approx(0, abs=0.08)
        assert row.cost_error == pytest.approx(0, abs=0.05)
    (entry,) = made.recommendations()
    assert entry["speedup"]["value"] == pytest.approx(best_speedup(1), rel=0.1)


def test_acceptance_counted_at_one_batch_size_serves_every_other(tmp_path: Path) -> None:
    made = run(tmp_path, launched(), Starts(FAST))
    omegas: dict[int, set[float | None]] = {}
    for row in made.rows(PredictionRow):
        omegas.setdefault(row.gamma, set()).add(row.tokens_per_round)
    assert all(len(own) == 1 for own in omegas.values())
    pooled = [row for row in made.counts("a", "greedy") if row.gamma == 3]
    tokens, rounds = sum(row.tokens or 0 for row in pooled), sum(row.rounds or 0 for row in pooled)
    assert {row.batch_size for row in pooled} == set(SIZES)
    assert omegas[3].pop() == pytest.approx(tokens / rounds)


def test_a_schedule_that_costs_more_than_its_gamma_loses_and_is_told(tmp_path: Path) -> None:
    grid = {"batch_size": list(SIZES), "context": 32, "gamma": [3]}
    config = launched(grid=grid, validate={"max_new_tokens": 48})
    made = run(tmp_path, config, Starts(FAST, slower={"exported": 1.3}))
    found = policies(made)
    for size in SIZES:
        row = found[size, "exported"]
        assert row.over_best_fixed is not None
        assert row.speedup_measured is not None
    assert found[1, "exported"].over_best_fixed == pytest.approx(1 / 1.3, rel=0.1)
    assert found[16, "exported"].speedup_measured == pytest.approx(1 / 1.3, rel=0.02)
    (warning,) = [one for one in made.warnings if one["code"] == "exported_lost"]
    assert "faster than the schedule that is exported" in warning["message"]
    answers = recommend(made)
    line = next(line for line in answer_text(answers).splitlines() if " exported " in line)
    assert line.endswith(": lost against γ 3")
    told = {(one["batch_size"], one["policy"]): one for one in strict_loads(recommendations_json(answers))["policies"]}
    assert told[16, "exported"]["against_plain"] == "lost"
    assert told[1, "exported"]["against_plain"] == "won"
    page = " ".join(write_report(made.path).read_text(encoding="utf-8").replace("\u00a0", " ").split())
    assert "against plain decoding won at batch size 1, lost at batch size 16" in page


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (1.02, 1.3, "won"), (0.7, 0.98, "lost"), (0.9, 1.1, "undecided"), (0.995, 1.004, "the same"),
        (1.0, 1.0, "the same"), (1.001, 1.02, "won"), (None, None, "undecided"),
    ],
)  # fmt: skip
def test_what_an_interval_says(low: float | None, high: float | None, found: str) -> None:
    assert outcome(low, high) == found
