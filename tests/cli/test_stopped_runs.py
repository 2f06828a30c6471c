"""A run that was killed at any stage is read by every command: an answer that says what is missing, or one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from specgauge.sweeps.store.rundir import Run
from tests.benchmarks.mutations import made_run
from tests.cli.conftest import Run as Command

STAGES = {
    "begun": (),
    "environment": ("config.yaml", "environment.json"),
    "prompts": ("prompts.jsonl",),
    "acceptance": ("acceptance/p--greedy.parquet", "rollouts.parquet"),
    "timing": ("cells.jsonl",),
    "tuned": ("policies.json",),
    "rounds": ("rounds.parquet",),
    "decoded": ("requests.parquet",),
    "measured": ("outcomes.json",),
    "validated": ("validation.csv",),
    "predicted": ("predictions.csv",),
}
"""What each adds, in the order in which a run writes them; the journal is there, empty or in part, from the first."""
TIMES = ("--t-decode", "10ms", "--t-draft", "1ms", "--t-verify", "11ms")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(params=STAGES)
def stopped(request: pytest.FixtureRequest, whole: Path, tmp_path: Path) -> Path:
    """The run as it was when its process was killed, a line of the journal torn."""
    run = tmp_path / "stopped"
    (run / "acceptance").mkdir(parents=True)
    (run / "cells.jsonl").touch()
    for stage, names in STAGES.items():
        for name in names:
            shutil.copy(whole / name, run / name)
        if stage == request.param:
            break
    content = (run / "cells.jsonl").read_bytes()
    kept = content if (run / "rounds.parquet").exists() else content[: len(content) // 2]
    (run / "cells.jsonl").write_bytes(kept)
    return run


def test_every_command_reads_it(stopped: Path, whole: Path, command: Command) -> None:
    is_begun, has_acceptance = (stopped / "config.yaml").exists(), (stopped / "acceptance/p--greedy.parquet").exists()
    has_times = bool((stopped / "cells.jsonl").read_bytes())
    lines = {
        "recommend": (["recommend", str(stopped)], is_begun),
        "report": (["report", str(stopped), "--out", str(stopped / "page.html")], is_begun),
        "replay": (["replay", str(stopped), "--replicates", "1"], is_begun),
        "compare": (["compare", str(whole), str(stopped)], has_times),
        "predict": (["predict", "--from-run", str(stopped), *TIMES], has_acceptance),
    }
    for name, (line, is_answered) in lines.items():
        code, out, err = command(*line)
        told = [one for one in err.splitlines() if not one.startswith(("replaying", str(stopped), str(whole)))]
        assert code == (0 if is_answered else 2), (name, err)
        assert bool(out) == is_answered, name
        assert len(told) == (0 if is_answered else 1), (name, told)
        assert "bug" not in err, err


def test_what_is_missing_is_named(stopped: Path, command: Command) -> None:
    if not (stopped / "config.yaml").exists():
        told = f"specgauge: {stopped}: stopped before anything was measured; run the same command again\n"
        assert command("recommend", str(stopped)) == (2, "", told)
        return
    shown = command("recommend", str(stopped), "--warnings")[1]
    if not (stopped / "rounds.parquet").exists():
        assert "not measured yet; run the same command again" in " ".join(shown.split())
    if not (stopped / "acceptance/p--greedy.parquet").exists():
        assert "acceptance is not recorded yet" in shown
    assert (len(Run.open(stopped).journal()) > 0) == bool((stopped / "cells.jsonl").read_bytes())
