"""The recommended γ, run on the servers against plain decoding and its neighbours."""

from pathlib import Path

import pytest

from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.served.warnings import lost_warnings
from specgauge.sweeps.store.counts import read_counts
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import ValidationRow
from specgauge.sweeps.store.served import read_served
from tests.sweeps.served.simulated import measure, served_config
from tests.sweeps.served.test_measure import engines


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    path = tmp_path_factory.mktemp("validated") / "run"
    config = served_config((0, 1, 2, 3, 5), grid={"batch_size": 4, "context": 64}, validate={"max_new_tokens": 48})
    outcome = measure(path, config, engines(0, 1, 2, 3, 5, free_tokens=64, draft_s=0.0005))
    assert (outcome.failed, outcome.validation_reasons) == (False, {})
    predict_run(Run.open(path))
    return Run.open(path)


def test_what_is_recommended_and_its_neighbours_run_beside_plain_decoding(validated: Run) -> None:
    (entry,) = validated.recommendations()
    rows = [row for row in read_served(validated.path) if row.purpose == "validation"]
    assert entry["gamma"] == 5
    assert {(row.gamma, row.block) for row in rows} == {(gamma, block) for gamma in (0, 2, 3, 5) for block in range(4)}
    assert {row.tokens for row in rows} == {8 * 48}


def test_its_rows_take_the_place_of_those_of_the_timing(validated: Run) -> None:
    found = {row.gamma: row for row in validated.rows(ValidationRow) if row.policy is None}
    assert {gamma: row.measured_in for gamma, row in found.items()} == {
        1: "timing", 2: "validation", 3: "validation", 5: "validation",
    }  # fmt: skip
    assert found[5].speedup_measured == pytest.approx(found[5].speedup_predicted, rel=0.1)


def test_what_is_exported_for_servers_that_run_is_the_gamma_of_the_batch_size(validated: Run) -> None:
    (row,) = [row for row in validated.rows(ValidationRow) if row.policy is not None]
    gammas = {own.gamma: own for own in validated.rows(ValidationRow) if own.measured_in == "validation"}
    assert (row.policy, row.mean_gamma) == ("exported", 5)
    assert (row.speedup_measured, row.speedup_whole) == (gammas[5].speedup_measured, gammas[5].speedup_whole)


def test_no_count_of_acceptance_comes_from_it(validated: Run) -> None:
    assert {one.source.partition(",")[0] for one in read_counts(validated.path)} == {"timing"}


def test_a_second_call_runs_nothing(validated: Run) -> None:
    servers = engines(0, 1, 2, 3, 5, free_tokens=64, draft_s=0.0005)
    measure(validated.path, validated.config, servers)
    assert all(engine.requests == 0 for engine in servers.engines.values())


def test_a_recommended_gamma_that_loses_is_told(validated: Run) -> None:
    (entry,), rows = validated.recommendations(), validated.validation()
    assert not list(lost_warnings([entry], rows))
    (warning,) = lost_warnings([entry | {"gamma": 2}], rows)
    assert (warning.code, "γ = 5" in warning.message) == ("recommended_lost", True)
    (warning,) = lost_warnings([entry | {"gamma": None}], rows)
    assert "faster than γ = 0" in warning.message


def test_no_time_for_it_is_told(tmp_path: Path) -> None:
    config = served_config((0, 2), grid={"batch_size": 1, "context": 64}, validate={"max_seconds": 1e-9})
    outcome = measure(tmp_path, config, engines(0, 2))
    assert outcome.left_out == ["blocks of validation"]
