import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specgauge.sweeps.store.readers import (
    ACCEPTANCE_COLUMNS,
    PREDICTION_COLUMNS,
    read_acceptance,
    read_environment,
    read_predictions,
    read_recommendation,
)
from specgauge.sweeps.store.rundir import Run, acceptance_file_name
from tests.sweeps import made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "made"
    with made.begin(path) as run:
        run.journal.append(made.line("decode", [[0.5]]))
    return path


def test_a_run_opens_with_its_config_environment_and_journal(path: Path) -> None:
    run = Run.open(path)
    assert run.config == made.config()
    assert run.environment["device"] == "cpu"
    assert [line.arm for line in run.journal()] == ["decode"]


def test_readers_do_not_wait_for_the_writer(path: Path) -> None:
    with made.begin(path):
        assert len(Run.open(path).journal()) == 1


def test_what_is_no_run_is_refused_with_what_is_there(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mode: no such run; did you mean .*/made\?"):
        Run.open(tmp_path / "mode")
    with pytest.raises(ValueError, match=r"quick: no such run; runs in .*: made; make one with `specgauge run`"):
        Run.open(tmp_path / "quick")
    with pytest.raises(ValueError, match=r"config.yaml: is a file, a run directory is expected \(for example .*made\)"):
        Run.open(path / "config.yaml")
    with pytest.raises(ValueError, match=r"not a run directory: it has no config.yaml"):
        Run.open(tmp_path)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (None, "environment.json: missing; make it with `specgauge run`"),
        ("", "environment.json: empty"),
        ('{"device": "c', "environment.json: truncated or not JSON"),
        ('{"device": NaN}', "NaN is not JSON"),
        ("[]", "a JSON object is expected, found list"),
        ('{"schema": 2}', r"schema 2 was written by another release \(this one reads schema 1\)"),
    ],
)
def test_environment_files(tmp_path: Path, content: str | None, found: str) -> None:
    path = tmp_path / "environment.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=found) as error:
        read_environment(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_files_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "environment.json"
    path.write_bytes(b"{}\xff")
    with pytest.raises(ValueError, match=r"not UTF-8 text \(byte 2\)"):
        read_environment(path)


def frame(**changes: object) -> pd.DataFrame:
    row = dict.fromkeys(ACCEPTANCE_COLUMNS, 0) | {"end_reason": "eos", "target_prob": np.float32(0.1)}
    return pd.DataFrame([row | changes])


def test_acceptance_comes_back_with_pair_and_sampling(path: Path) -> None:
    with pytest.raises(ValueError, match="acceptance: no acceptance recorded yet"):
        Run.open(path).acceptance()
    frame().to_parquet(path / "acceptance" / acceptance_file_name("p", "greedy"))
    found = Run.open(path).acceptance()
    assert list(found.columns[:2]) == ["pair", "sampling"]
    assert (found["pair"].tolist(), found["sampling"].tolist()) == (["p"], ["greedy"])
    assert found["target_prob"].dtype == "float64"
    assert found.loc[0, "target_prob"] == float(np.float32(0.1))


def test_acceptance_files(tmp_path: Path) -> None:
    path = tmp_path / "p--greedy.parquet"
    with pytest.raises(ValueError, match="missing; measure it with `specgauge run`"):
        read_acceptance(path)
    frame().to_parquet(path)
    whole = path.read_bytes()
    for content in (b"", b"PAR1", whole[:-10], b"prompt,token\n1,2\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"truncated or not a parquet file: .*; delete it to measure") as error:
            read_acceptance(path)
        assert "\n" not in str(error.value)
    frame().drop(columns=["overlap_match"]).to_parquet(path)
    with pytest.raises(ValueError, match="column 'overlap_match' is missing"):
        read_acceptance(path)
    frame().head(0).to_parquet(path)
    with pytest.raises(ValueError, match="holds no position"):
        read_acceptance(path)
    later = frame()
    later.attrs["schema"] = 2
    later.to_parquet(path)
    with pytest.raises(ValueError, match="schema 2 was written by another release"):
        read_acceptance(path)


def row(**changes: object) -> str:
    values = dict.fromkeys(PREDICTION_COLUMNS, "1.5") | {"pair": "p", "label": "", "is_best": "True"}
    values |= {"batch_size": "1", "context": "64", "gamma": "2"}
    values |= {"mode": "eager", "sampling": "greedy", "is_recommended": "False", "cost_known": "measured"}
    return ",".join(str(value) for value in (values | changes).values())


def test_predictions_come_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "predictions.csv"
    value = 0.1 + 0.2
    path.write_text(f"{','.join(PREDICTION_COLUMNS)}\n{row(pair='NA', speedup=repr(value), t_overhead_s='')}\n")
    found = read_predictions(path)
    assert found.loc[0, "pair"] == "NA"
    assert found.loc[0, "label"] == ""
    assert found.loc[0, "speedup"] == value
    assert found["t_overhead_s"].isna().tolist() == [True]
    assert found["gamma"].tolist() == [2]
    assert (found.loc[0, "is_best"], found.loc[0, "is_recommended"]) == (True, False)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "empty"),
        ("a,b\n1,2\n", "the column 'pair' is missing"),
        (f"{','.join(PREDICTION_COLUMNS)}\n{row()[:-5]}", "truncated"),
        (f"{','.join(PREDICTION_COLUMNS)}\n{row()}\n{row()},1\n", "line 3: found 31 fields, 30 are expected"),
        (f"{','.join(PREDICTION_COLUMNS)}\n{row(gamma='four')}\n", "column gamma: found 'four', allowed: a number$"),
        (f"{','.join(PREDICTION_COLUMNS)}\n{row(gamma='')}\n", "column gamma: found '', allowed: a number$"),
        (
            f"{','.join(PREDICTION_COLUMNS)}\n{row(speedup='nan')}\n",
            "column speedup: found 'nan', allowed: a number or",
        ),
        (f"{','.join(PREDICTION_COLUMNS)}\n{row(is_best='yes')}\n", "column is_best: found 'yes', allowed: True or"),
        (f"{','.join(PREDICTION_COLUMNS)}\n{row(pair=chr(34))}\n", "not a CSV file"),
    ],
)
def test_predictions_files(tmp_path: Path, content: str, found: str) -> None:
    path = tmp_path / "predictions.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=found) as error:
        read_predictions(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("recommendations: [{", "truncated or not YAML"),
        ("[]", "truncated or no recommendation"),
        ("recommendations: 3\n", "a list under `recommendations:` is expected"),
        ("recommendations: [3]\n", "entry 1 of `recommendations:` lacks 'pair'"),
        ("schema: 2\nrecommendations: []\n", "schema 2 was written by another release"),
        ("recommendations: []\n", "a list under `warnings:` is expected"),
        ("recommendations: []\nwarnings: [{message: m}]\n", "entry 1 of `warnings:` lacks 'remedy'"),
        ("recommendations: []\nwarnings: []", "its last line is not whole"),
    ],
)
def test_recommendation_files(tmp_path: Path, content: str, found: str) -> None:
    path = tmp_path / "recommendation.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=found) as error:
        read_recommendation(path)
    assert "\n" not in str(error.value)


ENTRY = dict.fromkeys(
    ("pair", "mode", "sampling", "draft_sampling", "acceptance_rule", "batch_size", "context", "decision", "best_gamma",
     "recommended_gamma", "speedup", "expected_loss", "reason")
) | {"speedup": {"value": None, "low": None, "high": None}}  # fmt: skip


@pytest.mark.parametrize("lacking", [*ENTRY, "speedup.low"])
def test_a_recommendation_that_lacks_something_is_one_line(path: Path, lacking: str) -> None:
    entry = {name: value for name, value in ENTRY.items() if name != lacking}
    if lacking == "speedup.low":
        entry["speedup"] = {"value": 1.5}
    content = {"recommendations": [ENTRY, entry], "warnings": []}
    (path / "recommendation.yaml").write_text(json.dumps(content) + "\n")
    with pytest.raises(ValueError, match=f"entry 2 of `recommendations:` lacks '{lacking}'; make it anew"):
        Run.open(path).recommendations()


def test_recommendations_and_warnings(path: Path) -> None:
    content = {"recommendations": [ENTRY], "warnings": [{"code": "x", "message": "m", "remedy": "r"}]}
    (path / "recommendation.yaml").write_text(json.dumps(content) + "\n")
    run = Run.open(path)
    assert run.recommendations() == (ENTRY,)
    assert run.warnings == ({"code": "x", "message": "m", "remedy": "r"},)
