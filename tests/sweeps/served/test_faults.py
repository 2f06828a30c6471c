"""What goes wrong between a client and its servers, as a run tells it; a key is not printed, logged or kept."""

import json
from pathlib import Path

import pytest
import yaml

from specgauge.cli.main import main
from specgauge.configs.yaml_reader import dump_yaml
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.served import read_served
from tests.sweeps.served.simulated import measure, served_config
from tests.sweeps.served.test_launching import launched
from tests.sweeps.served.test_measure import engines

KEY = "sk-6f1d0c7e5b"
ONE_CELL = {"batch_size": 1, "context": 64}


def codes(path: Path) -> set[str]:
    return {one["code"] for one in Run.open(path).warnings}


@pytest.mark.parametrize(("settings", "code"), [({}, 0), ({"fails_every": 3, "echoes_key": True}, 1)])
def test_a_key_is_nowhere_in_the_run_nor_in_what_is_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    settings: dict[str, object],
    code: int,
) -> None:
    """The server wants it, prints it, and repeats it in its refusals."""
    monkeypatch.setenv("ENGINE_KEY", KEY)
    config = launched(["--key-env", "ENGINE_KEY", "--settings", json.dumps({"step_s": 0.004, **settings})])
    content = yaml.safe_load(dump_yaml(config.model_dump(mode="json", exclude_unset=True)))
    content["pairs"][0]["engine"]["api_key_env"] = "ENGINE_KEY"
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    assert main(["run", str(path), "--out", str(tmp_path / "run")]) == code
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    logs = [path for path in files if path.suffix == ".log"]
    assert len(logs) == 2
    assert all("options: api_key=…" in path.read_text(encoding="utf-8") for path in logs)
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert KEY not in "".join(capfd.readouterr())


@pytest.mark.parametrize("status", [429, 500])
def test_few_failures_are_counted_and_told(tmp_path: Path, status: int) -> None:
    config = served_config((0, 1), grid=ONE_CELL, precision={"max_blocks": 3, "block_samples": 120})
    outcome = measure(tmp_path, config, engines(0, 1, fails_every=150, fail_status=status))
    assert not outcome.failed
    predict_run(Run.open(tmp_path))
    assert {row.failed for row in read_served(tmp_path)} == {0, 1}
    assert "requests_failed" in codes(tmp_path)
    assert set(Run.open(tmp_path).predictions()["status"]) == {"ok"}


def test_requests_without_an_answer_void_their_block(tmp_path: Path) -> None:
    config = served_config((0, 1), grid=ONE_CELL)
    assert measure(tmp_path, config, engines(0, 1, hangs_every=9)).failed
    rows = read_served(tmp_path)
    assert {row.reason is None for row in rows if row.failed} == {False}
    assert all("within 30 s, got none" in str(row.reason) for row in rows if row.failed)


def test_tokens_that_server_and_client_count_otherwise_are_told(tmp_path: Path) -> None:
    measure(tmp_path, served_config((0, 1), grid=ONE_CELL), engines(0, 1, usage_off_by=3))
    predict_run(Run.open(tmp_path))
    assert {"tokens_disagree", "counters_of_others"} <= codes(tmp_path)


def test_nothing_is_sent_but_to_the_servers_that_were_given(tmp_path: Path) -> None:
    servers = engines(0, 1, tokenizes="content")
    measure(tmp_path, served_config((0, 1), grid=ONE_CELL, validate={"max_new_tokens": 16}), servers)
    for gamma, transport in servers.transports.items():
        sent = {(request.url.host, request.url.path) for request in transport.sent}
        paths = {"/v1/models", "/v1/completions", "/metrics"}
        assert sent - {(f"gamma{gamma}", "/tokenize")} == {(f"gamma{gamma}", path) for path in paths}
    tokenized = [engine.tokenized > 0 for engine in servers.engines.values()]
    assert sorted(tokenized) == [False, True]  # the first one that is asked tells them for all
