"""Answers stand as long as every file is as it was when they were derived; else they are derived anew, and told."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from specgauge.cli.main import main
from specgauge.reports.records import findings, read_report_data
from specgauge.sweeps.analysis.predictions import predict, predict_run
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.store.derived import doubts, stands
from specgauge.sweeps.store.journal import Journal
from specgauge.sweeps.store.rows import json_line
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PromptRow
from tests.sweeps import made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run with its answers."""
    frames = {"greedy": made.acceptance_frame(10, 16)}
    run = made.write_run(tmp_path / "run", made.config(), frames)
    predict_run(run)
    return run.path


def edited(name: str, old: str, new: str) -> Callable[[Path], object]:
    def edit(path: Path) -> None:
        text = (path / name).read_text(encoding="utf-8")
        assert old in text
        (path / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return edit


def another_block(path: Path) -> None:
    run = Run.open(path)
    config = run.journal()[0].config
    journal = Journal(path / "cells.jsonl", config=config)
    journal.append(made.line("decode", [[2.0]] * 4, block=7))
    journal.close()


def other_acceptance(path: Path) -> None:
    made.acceptance_frame(10, 16, 0.75).to_parquet(path / "acceptance" / "p--greedy.parquet", index=False)


PROMPT = PromptRow(pair="p", prompt=0, category=None, text="another", tokens=(1,))
CHANGES: dict[str, Callable[[Path], object]] = {
    "its own text": edited("recommendation.yaml", "decision: speculate", "decision: undecided"),
    "predictions.csv": edited("predictions.csv", ",2,", ",3,"),
    "cells.jsonl": another_block,
    "acceptance/p--greedy.parquet": other_acceptance,
    "config.yaml": edited("config.yaml", "confidence: 0.9", "confidence: 0.8"),
    "validation.csv": lambda path: (path / "validation.csv").write_text("anything"),
    "prompts.jsonl": lambda path: (path / "prompts.jsonl").write_bytes(json_line(PROMPT)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_altered_is_named_and_the_answers_are_derived_anew(path: Path, name: str) -> None:
    assert stands(path)
    assert doubts(path) == ()
    CHANGES[name](path)
    assert not stands(path)
    (doubt,) = doubts(path)
    words = f"recommendation.yaml: {name} changed since it was written; what is shown is derived anew"
    assert (doubt.code, doubt.message.startswith(words)) == ("altered", True)
    run = Run.open(path)
    found, anew = recommend(run), predict(run)
    assert (found.entries, found.warnings) == (anew.recommendations, (asdict(doubt), *anew.warnings))
    data = read_report_data(path)
    assert [asdict(row) for row in data.recommendations] == list(anew.recommendations)
    assert "altered" in {one.code for one in findings(data, {})}


@pytest.mark.parametrize("name", ["cells.jsonl", "predictions.csv", "acceptance/p--greedy.parquet"])
def test_what_no_reader_takes_is_not_read_for_its_hash(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gigabytes of nothing, which take a minute to hash."""
    with (path / name).open("ab") as file:
        file.truncate(9 << 30)
    monkeypatch.setattr(hashlib, "file_digest", lambda file, _: hash_of_small(file))
    assert not stands(path)


def hash_of_small(file: Any) -> Any:
    assert os.fstat(file.fileno()).st_size < 1 << 20
    return hashlib.sha256(file.read())


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ("recommendations: [{\n", "truncated or not YAML"),
        ("schema: 1\nrecommendations: []\nwarnings: []\n", "expected derived_from, got None"),
        ("schema: 1\nrecommendations: .inf\nderived_from: {}\n", "holds what was not written"),
        ("schema: 2\n", "expected schema 1 of this release, got 2 of another"),
    ],
)
def test_answers_that_cannot_be_read_are_derived_anew_too(path: Path, answers: str, why: str) -> None:
    before = recommend(Run.open(path)).entries
    (path / "recommendation.yaml").write_text(answers, encoding="utf-8")
    (doubt,) = doubts(path)
    assert doubt.message.startswith(f"recommendation.yaml: {why}")
    assert recommend(Run.open(path)).entries == before


def test_altered_lines_of_the_journal_are_left_out_and_told_by_number(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (path / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    whole = Run.open(path).journal()
    for number in (2, 3, 5, 8):
        fields: dict[str, Any] = json.loads(lines[number - 1])
        lines[number - 1] = json.dumps({**fields, "samples_s": [[9.0]]})
    (path / "cells.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    altered = "cells.jsonl, lines 2, 3, 5 and 1 more: not as written (their checksums differ), left out"
    assert doubts(path)[0].message == altered
    assert len(Run.open(path).journal()) == len(whole) - 4
    predict_run(Run.open(path))  # as the next `specgauge run` does
    assert stands(path)
    assert recommend(Run.open(path)).warnings[0]["message"] == altered
    other = shutil.copytree(path, path.with_name("other"))
    for command in (["replay", "--replicates", "1"], ["compare", str(other)], ["report"]):
        assert main([command[0], str(path), *command[1:]]) == 0
        assert f"{path}: {altered}" in capsys.readouterr().err


def test_the_file_says_what_it_was_derived_from(path: Path) -> None:
    kept = yaml.safe_load((path / "recommendation.yaml").read_text(encoding="utf-8"))["derived_from"]
    assert set(kept) == {
        "config.yaml", "environment.json", "cells.jsonl", "predictions.csv", "acceptance/p--greedy.parquet",
        "recommendation.yaml",
    }  # fmt: skip
    assert all(len(digits) == 12 for digits in kept.values())
