"""What is refused before anything is begun. No Ray."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from specgauge.cli.errors import tell
from specgauge.configs.errors import ConfigError
from specgauge.configs.loader import config_of
from specgauge.sweeps.cluster import executor
from specgauge.sweeps.cluster.executor import check_ray
from specgauge.sweeps.run import runner
from tests.sweeps import made


def test_ray_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(executor, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="ray") as caught:
        runner.run(made.config(executor={"kind": "ray"}), out=tmp_path / "run", apart=True)
    assert tell(caught.value, debug=False) == 2
    assert "pip install 'specgauge[ray]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "find_spec", lambda name: object())
    monkeypatch.setattr(executor, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:  # one that takes the call and says nothing
        port = server.getsockname()[1]
        at = made.config(executor={"kind": "ray", "address": f"127.0.0.1:{port}"}).executor
        with pytest.raises(ValueError, match=rf"executor.address: .* 127.0.0.1:{port}, which does not answer \(timed"):
            check_ray(at)
    with pytest.raises(ValueError, match=rf"executor.address: .* 127.0.0.1:{port}, which does not answer"):
        check_ray(at)


@pytest.mark.parametrize("recorded_in", ["file", "environment"])
def test_a_cluster_that_was_and_is_no_more_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded_in: str
) -> None:
    monkeypatch.setattr(executor, "find_spec", lambda name: object())
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    auto = made.config(executor={"kind": "ray", "address": "auto"}).executor
    check_ray(auto)  # nothing is known of any: Ray itself says so, at once
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = f"127.0.0.1:{server.getsockname()[1]}"
    if recorded_in == "environment":
        monkeypatch.setenv("RAY_ADDRESS", gone)
    else:
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(gone)
    with pytest.raises(ValueError, match=rf"executor.address: expected a Ray cluster at {gone}, which does not answer"):
        check_ray(auto)


def test_servers_are_measured_from_where_their_client_is() -> None:
    engine = {"kind": "vllm", "base_url": "http://localhost:8000", "gamma": 0}
    served = {"name": "x", "pairs": [{"name": "a", "engine": [engine]}], "executor": {"kind": "ray"}}
    with pytest.raises(ConfigError, match=r"executor.kind: expected local, since servers are measured"):
        config_of(served, "served")
