"""`specgauge run` on llama.cpp's own server: the shipped pair at γ = 0 and 2, by a draft model and by lookups."""

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

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
    return {**write_pair(folder), "launch": {"options": ["--ctx-size", "1024"], "env": env, "ready_seconds": 120}}


def config(path: Path, pairs: dict[str, dict[str, Any]], **sections: Any) -> str:
    """The path of a configuration of llama.cpp servers."""
    content = {
        "name": "llama",
        "pairs": [{"name": name, "engine": {"kind": "llama_cpp", **engine}} for name, engine in pairs.items()],
        "grid": {"batch_size": [1, 2], "context": 48, "gamma": [2]},
        "precision": {"min_blocks": 2, "max_blocks": 3, "block_samples": 2, "bootstrap_replicates": 200},
        "workload": {"max_new_tokens": 24},
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
    workload = {"prompts": str(prompts), "max_new_tokens": 24}
    pairs = {"drafts": launch, "lookups": {**launch, "draft": None, "method": "ngram"}}
    assert main(["run", config(folder / "llama.yaml", pairs, workload=workload), "--out", str(folder / "run")]) == 0
    return Run.open(folder / "run")


def test_every_gamma_is_measured_and_decided(measured: Run) -> None:
    rows = measured.rows(PredictionRow)
    assert [(row.pair, row.batch_size, row.gamma, row.status) for row in rows] == [
        ("drafts", 1, 2, "ok"), ("drafts", 2, 2, "ok"), ("lookups", 1, 2, "ok"), ("lookups", 2, 2, "ok"),
    ]  # fmt: skip
    assert len(measured.recommendations()) == 4


def test_chunks_and_counters_tell_the_same_tokens_a_round(measured: Run) -> None:
    rows = [row for row in read_served(measured.path) if row.gamma]
    assert len(rows) == 12
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
