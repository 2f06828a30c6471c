"""Blocks of load on simulated engines: what is kept, recommended and resumed, and what each fault costs."""

from dataclasses import replace
from pathlib import Path

import pytest

from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow, ValidationRow
from specgauge.sweeps.store.served import read_served
from tests.engine_server.engine import Engine, EngineSettings
from tests.sweeps.served.simulated import Servers, measure, served_config

FAST = EngineSettings(per_request=True, draft_s=0.002)


def engines(*gammas: int, **changes: object) -> Servers:
    return Servers({gamma: Engine(replace(FAST, gamma=gamma, **changes)) for gamma in gammas})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("served") / "run"
    outcome = measure(path, served_config(), engines(0, 1, 3))
    assert (outcome.bad_input, outcome.failed, outcome.left_out) == (None, False, [])
    predict_run(Run.open(path))
    return path


def test_costs_are_those_of_the_engine(measured: Path) -> None:
    engine = Engine(FAST)
    for row in Run.open(measured).rows(PredictionRow):
        assert row.t_round_s == pytest.approx(engine.t_round_s(row.batch_size, row.gamma), rel=1e-6)
        assert row.t_decode_s == pytest.approx(engine.t_round_s(row.batch_size, 0), rel=1e-6)
        assert row.tokens_per_round == pytest.approx(engine.omega(row.gamma), rel=0.1)
        assert (row.cost_provenance, row.acceptance_provenance) == ("measured", "measured")


def test_tokens_a_round_are_counted_alike_by_streams_counters_and_requests(measured: Path) -> None:
    rows = [row for row in read_served(measured) if row.gamma]
    assert len(rows) == 12
    for row in rows:
        assert row.tokens_per_round_counters == pytest.approx(row.tokens_per_round_chunks, rel=0.01)
        assert row.tokens_per_round_requests == pytest.approx(row.tokens_per_round_chunks, rel=0.01)


def test_the_speed_up_of_clients_stands_beside_its_prediction(measured: Path) -> None:
    rows = Run.open(measured).rows(ValidationRow)
    assert [(row.batch_size, row.gamma, row.measured_in) for row in rows] == [
        (1, 1, "timing"), (1, 3, "timing"), (4, 1, "timing"), (4, 3, "timing"),
    ]  # fmt: skip
    for row in rows:
        assert row.speedup_predicted == pytest.approx(row.speedup_measured, rel=0.15)
        assert row.rounds_counted > 50
        assert row.speedup_measured_low is not None


def test_the_largest_gamma_pays_best_and_is_recommended(measured: Path) -> None:
    assert [entry["gamma"] for entry in Run.open(measured).recommendations()] == [3, 3]


def test_prompts_have_the_tokens_of_the_context_and_no_common_beginning(tmp_path: Path) -> None:
    servers = engines(0, 1, prefix_cache=True)
    measure(tmp_path, served_config((0, 1)), servers)
    assert {row.prompt_tokens for row in read_served(tmp_path)} == {64.0}
    assert all(engine.counters["prefix_cache_hits"] == 0 for engine in servers.engines.values())


@pytest.mark.parametrize(("tokenizes", "form", "tokens"), [("prompt", "ids", {64.0}), ("", "text", None)])
def test_what_prompts_were_sent_as_is_kept(
    tmp_path: Path, tokenizes: str, form: str, tokens: set[float] | None
) -> None:
    servers = engines(0, 1, prefix_cache=True, tokenizes=tokenizes, letters=3, begins=True)
    measure(tmp_path, served_config((0, 1)), servers)
    rows = read_served(tmp_path)
    assert {row.prompts for row in rows} == {form}
    assert ({row.prompt_tokens for row in rows} == {64.0}) == (tokens is not None)
    assert all(engine.counters["prefix_cache_hits"] == 0 for engine in servers.engines.values())


def test_a_second_call_measures_what_is_missing(measured: Path, tmp_path: Path) -> None:
    servers = engines(0, 1, 3)
    before = (measured / "cells.jsonl").read_bytes()
    assert not measure(measured, served_config(), servers).failed
    assert (measured / "cells.jsonl").read_bytes() == before
    assert all(engine.requests == 0 for engine in servers.engines.values())


def test_a_gamma_without_a_server_is_told_and_the_others_are_measured(tmp_path: Path) -> None:
    config = served_config((0, 1), grid={"batch_size": 1, "context": 64, "gamma": [1, 2]})
    measure(tmp_path, config, engines(0, 1))
    predict_run(Run.open(tmp_path))
    found = Run.open(tmp_path).predictions().set_index("gamma")
    assert found.loc[1, "status"] == "ok"
    assert (found.loc[2, "status"], found.loc[2, "reason"]) == ("skipped", "no server of γ = 2 is given")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"model": "other"}, None),
        ({"gamma": 0}, "expected a server that speculates"),
        ({"gamma": 5}, "it has another γ"),
        ({"fails_every": 5}, "requests failed"),
        ({"crash_after": 12}, None),
        ({"api_key": "word"}, "401"),
    ],
)
def test_a_server_with_a_fault_costs_its_own_gamma_alone(
    tmp_path: Path, fault: dict[str, object], words: str | None
) -> None:
    servers = engines(0, 1, 3)
    faulty = Engine(replace(FAST, **{"gamma": 3, **fault}))  # type: ignore[arg-type]
    servers = Servers({**servers.engines, 3: faulty})
    config = served_config(pairs=[{"name": "a", "engine": [
        {"base_url": f"http://gamma{gamma}:1", "gamma": gamma, "model": "target"} for gamma in (0, 1, 3)
    ]}])  # fmt: skip
    outcome = measure(tmp_path, config, servers)
    assert outcome.failed
    assert outcome.bad_input is None
    predict_run(Run.open(tmp_path))
    found = Run.open(tmp_path).predictions()
    assert set(found.loc[found["gamma"] == 1, "status"]) == {"ok"}
    assert found.loc[found["gamma"] == 3, "status"].iloc[-1] == "failed"
    if words is not None:
        assert words in found.loc[found["gamma"] == 3, "reason"].iloc[-1]


def test_lookups_that_find_nothing_are_measured_and_told(tmp_path: Path) -> None:
    addresses = [{"base_url": f"http://gamma{gamma}:1", "gamma": gamma, "method": "ngram"} for gamma in (0, 3)]
    config = served_config(pairs=[{"name": "a", "engine": addresses}], grid={"batch_size": 1, "context": 64})
    assert not measure(tmp_path, config, engines(0, 3, finds=0.0, per_request=False)).failed
    predict_run(Run.open(tmp_path))
    (row,) = Run.open(tmp_path).rows(PredictionRow)
    assert (row.status, row.tokens_per_round) == ("ok", 1.0)
    assert "nothing_drafted" in {one["code"] for one in Run.open(tmp_path).warnings}


def test_plain_decoding_that_speculates_is_refused(tmp_path: Path) -> None:
    servers = Servers({0: Engine(replace(FAST, gamma=2)), 1: Engine(replace(FAST, gamma=1))})
    measure(tmp_path, served_config((0, 1)), servers)
    (line, *_) = [line for line in Run.open(tmp_path).journal() if line.arm == "decode"]
    assert (line.status, "it speculates" in str(line.reason)) == ("failed", True)


def test_a_batch_size_that_is_not_reached_is_marked_and_not_averaged_in(tmp_path: Path) -> None:
    config = served_config((0, 1), grid={"batch_size": [1, 8], "context": 64})
    measure(tmp_path, config, engines(0, 1, most_running=4))
    predict_run(Run.open(tmp_path))
    found = Run.open(tmp_path).predictions().set_index("batch_size")
    assert found.loc[1, "status"] == "ok"
    assert found.loc[8, "status"] == "skipped"
    assert {one["code"] for one in Run.open(tmp_path).warnings} >= {"concurrency_not_reached"}


def test_no_server_at_all_is_bad_input(tmp_path: Path) -> None:
    servers = engines(0, 1)
    for engine in servers.engines.values():
        engine.crash()
    outcome = measure(tmp_path, served_config((0, 1)), servers)
    assert outcome.bad_input is not None
    assert "http://gamma0:1" in outcome.bad_input


@pytest.mark.parametrize(
    ("changes", "provenance"),
    [({"has_metrics": False}, "chunks"), ({"tells": "singly"}, "chunks"), ({"merges": 3}, "tokens")],
)
def test_a_round_is_timed_by_chunks_or_else_by_tokens(
    tmp_path: Path, changes: dict[str, object], provenance: str
) -> None:
    servers = engines(0, 3, **{"per_request": False, **changes})
    config = served_config((0, 3), grid={"batch_size": 1, "context": 64})
    measure(tmp_path, config, servers)
    predict_run(Run.open(tmp_path))
    assert {row.t_round_from for row in read_served(tmp_path) if row.gamma} == {provenance}
    (row,) = Run.open(tmp_path).predictions().itertuples()
    assert row.t_round_s == pytest.approx(Engine(FAST).t_round_s(1, 3), rel=0.1)
