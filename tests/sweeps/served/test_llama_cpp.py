"""`specgauge run` on llama.cpp's own server: the shipped pair at γ = 0 and 2, by a draft model and by lookups."""

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from specgauge.bench.serving.server import LaunchedServer, free_port
from specgauge.cli.main import main
from specgauge.sweeps.store.counts import read_counts
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow, ValidationRow
from specgauge.sweeps.store.served import read_served
from tests.llama_server.files import write_command, write_pair

pytestmark = pytest.mark.skipif(find_spec("xllamacpp") is None, reason="needs xllamacpp, llama.cpp's server in a wheel")

ACCEPTED = re.compile(r"draft acceptance = .*\( *(\d+) accepted / *(\d+) generated\)")


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The fields of an engine that is started."""
    folder = tmp_path_factory.mktemp("llama")
    env = write_command(folder)
    return {
        "kind": "llama_cpp",
        **write_pair(folder),
        "launch": {"options": ["--ctx-size", "1024"], "env": env, "ready_seconds": 120},
    }


def config_file(path: Path, pairs: dict[str, Any], **sections: Any) -> str:
    """The path of a configuration of llama.cpp servers: a pair for each engine, or list of them."""
    content = {
        "name": "llama",
        "pairs": [{"name": name, "engine": engine} for name, engine in pairs.items()],
        "grid": {"batch_size": [1, 2], "context": 48, "gamma": [2]},
        "precision": {"min_blocks": 2, "max_blocks": 2, "block_samples": 2, "bootstrap_replicates": 200},
        "workload": {"max_new_tokens": 16},
        **sections,
    }
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def measured(launch: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    prompts = folder / "prompts.jsonl"
    texts = ["\n".join(f"def add{one}(x): return x + {line % 3}" for line in range(9)) for one in range(4)]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
    workload = {"prompts": str(prompts), "max_new_tokens": 16}
    pairs = {"drafts": launch, "lookups": {**launch, "draft": None, "method": "ngram"}}
    assert (
        main(["run", config_file(folder / "llama.yaml", pairs, workload=workload), "--out", str(folder / "run")]) == 0
    )
    return Run.open(folder / "run")


def test_every_gamma_is_measured_and_decided(measured: Run) -> None:
    rows = measured.rows(PredictionRow)
    assert [(row.pair, row.batch_size, row.gamma, row.status) for row in rows] == [
        ("drafts", 1, 2, "ok"), ("drafts", 2, 2, "ok"), ("lookups", 1, 2, "ok"), ("lookups", 2, 2, "ok"),
    ]  # fmt: skip
    assert len(measured.recommendations()) == 4


def test_chunks_and_counters_tell_the_same_tokens_a_round(measured: Run) -> None:
    rows = [row for row in read_served(measured.path) if row.gamma]
    assert len(rows) == 8
    for row in rows:
        assert row.reason is None
        assert row.t_round_from == "chunks"
        assert row.tokens_per_round_counters == row.tokens_per_round_chunks


def test_prompts_are_exactly_as_long_as_they_were_to_be(measured: Run) -> None:
    assert {(row.prompts, row.prompt_tokens) for row in read_served(measured.path)} == {("ids", 48.0)}


def test_accepted_drafts_are_those_that_the_server_logged(measured: Run) -> None:
    """Its log has a line a request, warm-ups and probes included: those of a block follow each other in it."""
    for pair in ("drafts", "lookups"):
        text = (measured.path / "servers" / pair / "gamma-2.log").read_text(encoding="utf-8")
        logged = [(int(accepted), int(drafted)) for accepted, drafted in ACCEPTED.findall(text)]
        for row in read_counts(measured.path):
            if row.pair == pair:
                sums = {
                    tuple(map(sum, zip(*logged[first : first + many], strict=True)))
                    for many in range(1, 5)
                    for first in range(len(logged) - many + 1)
                }
                assert (row.accepted, row.drafted) in sums | {(0, 0)}


def test_the_speed_up_is_measured_with_an_interval(measured: Run) -> None:
    rows = measured.rows(ValidationRow)
    assert [(row.pair, row.batch_size, row.gamma) for row in rows] == [
        ("drafts", 1, 2), ("drafts", 2, 2), ("lookups", 1, 2), ("lookups", 2, 2),
    ]  # fmt: skip
    for row in rows:
        assert row.speedup_measured is not None
        assert row.speedup_measured_low is not None
        assert row.speedup_measured_low < row.speedup_measured
        assert row.rounds_counted > 10


@pytest.fixture(scope="module")
def plain(launch: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LaunchedServer]:
    """A server without speculation."""
    port = free_port()
    words = ["llama-server", "--model", launch["target"], "--host", "127.0.0.1", "--port", str(port), "--metrics"]
    log = tmp_path_factory.mktemp("plain") / "log"
    with LaunchedServer([*words, "--parallel", "1"], port=port, log=log, env=launch["launch"]["env"]) as server:
        yield server


@pytest.fixture(scope="module")
def faulty(launch: dict[str, Any], plain: LaunchedServer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A pair for each fault, one after the other."""
    folder = tmp_path_factory.mktemp("faults")
    own = {**launch["launch"], "live": False}
    silent = f"llama-server --model {launch['target']} --host 127.0.0.1 --port {{port}} --parallel 1 {{speculative}}"
    pairs = {
        "silent": {**launch, "launch": {"command": silent, "env": own["env"], "live": False}},
        "broken": {**launch, "draft": "missing.gguf", "launch": own},
        "unnamed": {**launch, "model": "other", "launch": own},
        "unspeculative": [{"base_url": plain.base_url, "gamma": gamma} for gamma in (0, 2)],
        "dying": {**launch, "launch": own},
    }
    grid = {"batch_size": 1, "context": 32, "gamma": [2]}
    path = config_file(folder / "faults.yaml", pairs, grid=grid, workload={"max_new_tokens": 12})
    killing = threading.Thread(
        target=kill, args=(folder / "run" / "servers" / "dying" / "gamma-2.log", launch["draft"])
    )
    killing.start()
    assert main(["run", path, "--out", str(folder / "run")]) == 1
    killing.join(60)
    return Run.open(folder / "run")


def processes(word: str) -> list[int]:
    """Servers in whose command a word is."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            command = (path / "cmdline").read_bytes() if path.name.isdecimal() else b""
        except OSError:
            continue
        if b"tests.llama_server" in command and word.encode() in command:
            found.append(int(path.name))
    return found


def kill(log: Path, draft: str) -> None:
    """Kill the server that drafts, once it has answered a few requests."""
    until = time.monotonic() + 900
    while time.monotonic() < until:
        if log.exists() and len(ACCEPTED.findall(log.read_text(encoding="utf-8", errors="replace"))) >= 3:
            for one in processes(draft):
                os.kill(one, signal.SIGKILL)
            return
        time.sleep(0.02)


def statuses(made: Run, pair: str) -> dict[str, str]:
    return {line.arm: line.status for line in made.journal() if line.axes["pair"] == pair}


def reason(made: Run, pair: str, arm: str) -> str:
    (found,) = {line.reason for line in made.journal() if (line.axes["pair"], line.arm) == (pair, arm) and line.reason}
    return found


def test_without_metrics_acceptance_is_that_of_the_chunks(faulty: Run) -> None:
    assert statuses(faulty, "silent") == {"decode": "ok", "round:2": "ok"}
    rows = [row for row in read_served(faulty.path) if (row.pair, row.gamma) == ("silent", 2)]
    assert all(row.tokens_per_round_counters is None and (row.tokens_per_round_chunks or 0) > 1 for row in rows)
    assert {"no_counters"} <= {note.code for row in rows for note in row.notes}


def test_a_crash_at_start_shows_the_last_of_its_log_and_costs_its_gamma_alone(faulty: Run) -> None:
    assert statuses(faulty, "broken") == {"decode": "ok", "round:2": "failed"}
    told = reason(faulty, "broken", "round:2")
    assert "the server ended while it started" in told
    assert "missing.gguf" in told
    assert "\n" not in told
    assert "missing.gguf" in (faulty.path / "servers" / "broken" / "gamma-2.log").read_text(encoding="utf-8")


def test_a_wrong_model_name_is_told_with_those_that_are_served(faulty: Run, launch: dict[str, Any]) -> None:
    assert statuses(faulty, "unnamed") == {"decode": "failed", "round:2": "failed"}
    assert reason(faulty, "unnamed", "decode").endswith(f"expected one of its models ({launch['target']}), got 'other'")


def test_a_server_without_speculation_is_told(faulty: Run) -> None:
    assert statuses(faulty, "unspeculative") == {"decode": "ok", "round:2": "failed"}
    assert "it does not speculate; start it with speculation" in reason(faulty, "unspeculative", "round:2")


def test_a_crash_in_the_middle_kills_its_arm_alone(faulty: Run) -> None:
    assert statuses(faulty, "dying") == {"decode": "ok", "round:2": "killed"}
    assert "the server ended with signal 9" in reason(faulty, "dying", "round:2")


def test_a_taken_port_is_told(plain: LaunchedServer, launch: dict[str, Any], tmp_path: Path) -> None:
    second = LaunchedServer(plain.command, port=plain.port, log=tmp_path / "log", env=launch["launch"]["env"])
    with pytest.raises(ValueError, match=f"{plain.port} is taken; is a server of an earlier run still up"), second:
        pass


def test_no_process_is_left(measured: Run, faulty: Run, launch: dict[str, Any]) -> None:
    assert not processes(launch["draft"])
    assert len(processes(launch["target"])) <= 1  # that of these tests
