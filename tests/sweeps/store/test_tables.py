"""Every file of a run directory comes back as written, whole after a kill, or is refused in one line."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specgauge.model.settings import Setting
from specgauge.sweeps.store import tables
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.rows import columns, frame_of, plain, read_csv, readable, write_csv, write_table
from specgauge.sweeps.store.rundir import REQUESTS, ROUNDS, Run, read_environment
from specgauge.sweeps.store.schema import (
    AcceptanceRow,
    DecodedKey,
    Interval,
    PredictionRow,
    RecommendationRow,
    RequestRow,
    RoundRow,
    TunedCell,
    TunedHalf,
    ValidationRow,
)
from specgauge.sweeps.store.tables import (
    DecodedLog,
    add_rollouts,
    has_rollouts,
    keep_tuned,
    read_decoded,
    read_rollouts,
    read_tuned,
)
from tests.model.policy_cases import POLICIES as EVERY_KIND
from tests.sweeps import made
from tests.sweeps.decoded import PREFILL_S, Batch, key, write_blocks
from tests.sweeps.validation_rows import forced_row, policy_row, validation_row

SHORT = Batch(prompts=(7, 8), max_new_tokens=5, overhead_s=0.0625)
GREEDY = Setting(pair="p", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")
DRAWN = replace(GREEDY, sampling="t1")


def keep(log: DecodedLog, block: int, where: DecodedKey | None = None, arms: Sequence[str] = ("plain",)) -> None:
    requests = [row for arm in arms for row in SHORT.requests(arm)]
    log.append(where or key(), block, requests, [row for arm in arms for row in SHORT.rounds(arm)])


def content(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    requests, rounds = (pq.read_table(path / name).to_pylist() for name in (REQUESTS, ROUNDS))
    return requests, rounds


def test_what_is_kept_comes_back_with_its_types(tmp_path: Path) -> None:
    arms = ("generate", "speculate:3")
    log = DecodedLog(tmp_path)
    keep(log, 0, arms=arms)
    keep(log, 1, arms=arms)
    where = {**vars(key()), "block": 1}
    requests, rounds = content(tmp_path)
    assert requests[4:] == [where | row for arm in arms for row in SHORT.requests(arm)]
    assert rounds[len(rounds) // 2 :] == [where | row for row in SHORT.rounds("speculate:3")]
    types = {
        (REQUESTS, "pair"): "string", (REQUESTS, "block"): "int32", (REQUESTS, "tokens"): "list<element: int32>",
        (REQUESTS, "lossless"): "bool", (ROUNDS, "t_round_s"): "double", (ROUNDS, "top_probs"): "list<element: double>",
    }  # fmt: skip
    assert {(file, name): str(pq.read_schema(tmp_path / file).field(name).type) for file, name in types} == types
    frames = read_decoded(tmp_path)
    assert [len(frame) for frame in frames] == [8, len(rounds)]
    assert frames[0]["rounds"].isna().tolist() == [True, True, False, False] * 2


def test_a_kept_block_is_found_again_with_its_gammas_and_seconds(tmp_path: Path) -> None:
    """Two rows of 5 tokens under plain (4 steps of 1 s) and generate (the same), with a prefill of 1/2 s each."""
    third = key(pair="q", batch_size=4, start_context=128, sampling="t1")
    log = DecodedLog(tmp_path)
    assert log.spent_s("p") == 0.0
    keep(log, 0, arms=("plain", "generate"))
    keep(log, 2, arms=("speculate:3", "speculate:1"))
    speculating_s = sum(SHORT.requests(f"speculate:{gamma}")[0]["seconds"] for gamma in (1, 3))
    keep(log, 0, third)
    for found in (log, DecodedLog(tmp_path)):
        assert [found.has(key(), block) for block in range(4)] == [True, False, True, False]
        assert [found.blocks(place) for place in (key(), third, key(pair="r"))] == [2, 1, 0]
        assert (found.gammas(key()), found.gammas(third), found.gammas(key(pair="r"))) == ((1, 3), (), ())
        assert (found.spent_s("q"), found.spent_s("r")) == (4 + PREFILL_S, 0.0)
        assert found.spent_s("p") == 2 * (4 + PREFILL_S) + speculating_s
    with pytest.raises(AssertionError):
        keep(log, 2)


def test_without_rounds_the_tables_have_their_columns(tmp_path: Path) -> None:
    """Nothing is decoded; then texts of one token, which have no round."""
    requests, rounds = read_decoded(tmp_path)
    assert (list(requests.columns), list(rounds.columns)) == (list(columns(RequestRow)), list(columns(RoundRow)))
    assert (requests.empty, rounds.empty, list(tmp_path.iterdir())) == (True, True, [])
    one = Batch(max_new_tokens=1)
    DecodedLog(tmp_path).append(key(), 0, one.requests("plain"), one.rounds("plain"))
    requests, rounds = read_decoded(tmp_path)
    assert (requests["tokens"].map(len).tolist(), rounds.empty) == ([1], True)
    assert list(rounds.columns) == list(columns(RoundRow))


@pytest.mark.parametrize("error", [KeyboardInterrupt, StorageError])
def test_stopped_between_the_two_writes_the_block_is_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    log = DecodedLog(tmp_path)
    keep(log, 0)

    def killed(path: Path, row_type: type[Any], table: pa.Table) -> None:
        if path.name == REQUESTS:
            raise error
        write_table(path, row_type, table)

    monkeypatch.setattr(tables, "write_table", killed)
    with pytest.raises(error):
        keep(log, 1, arms=("speculate:2",))
    monkeypatch.undo()
    requests, rounds = content(tmp_path)
    assert ({row["block"] for row in requests}, {row["block"] for row in rounds}) == ({0}, {0, 1})
    assert set(read_decoded(tmp_path)[1]["block"]) == {0}
    for found in (log, DecodedLog(tmp_path)):
        assert [found.has(key(), block) for block in (0, 1)] == [True, False]
    keep(log, 1)
    requests, rounds = content(tmp_path)
    assert [(row["block"], row["arm"]) for row in requests] == [(0, "plain")] * 2 + [(1, "plain")] * 2
    assert {(row["block"], row["arm"]) for row in rounds} == {(0, "plain"), (1, "plain")}
    (tmp_path / REQUESTS).unlink()  # as if killed before the first
    assert not DecodedLog(tmp_path).has(key(), 0)
    assert all(frame.empty for frame in read_decoded(tmp_path))


def chains(start: int) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "prompt": [0, 0], "repetition": [0, 0], "start": [start, start], "depth": [1, 2], "token": [5, 6],
            "top_prob": [0.5, 0.25], "entropy_nats": [0.75, 1.5],
        }
    )  # fmt: skip


def test_chains_of_several_settings_stand_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.parquet"
    assert not has_rollouts(path, GREEDY)
    add_rollouts(path, GREEDY, chains(3).iloc[:0])
    assert read_rollouts(path).empty
    add_rollouts(path, GREEDY, chains(3))
    add_rollouts(path, DRAWN, chains(7))
    assert (has_rollouts(path, GREEDY), has_rollouts(path, DRAWN)) == (True, True)
    assert not has_rollouts(path, replace(GREEDY, acceptance_rule="match"))
    frame = read_rollouts(path)
    assert frame["sampling"].tolist() == ["greedy", "greedy", "t1", "t1"]
    assert frame["start"].tolist() == [3, 3, 7, 7]
    assert frame["top_prob"].tolist() == [0.5, 0.25, 0.5, 0.25]


def tuned_cell(**changes: Any) -> TunedCell:
    halves = (
        TunedHalf(tuned_on=(1, 3), policies=dict(EVERY_KIND)),
        TunedHalf(tuned_on=(0, 2), policies=dict(reversed(EVERY_KIND.items()))),
    )
    plain: dict[str, Any] = {"prompts": 4, "gamma_max": 6, "t_overhead_s": 0.1 + 0.2, "t_early_stop_check_s": 0.1}
    return TunedCell(**(plain | {"key": key(), "halves": halves, "left_out": {"x": "why"}} | changes))


def test_tuned_policies_come_back_as_they_were(tmp_path: Path) -> None:
    assert read_tuned(tmp_path) == {}
    other = tuned_cell(key=key(batch_size=4), left_out={})
    keep_tuned(tmp_path, tuned_cell())
    keep_tuned(tmp_path, other)
    assert read_tuned(tmp_path) == {key(): tuned_cell(), key(batch_size=4): other}
    assert list(read_tuned(tmp_path)[key()].names) == list(EVERY_KIND)
    keep_tuned(tmp_path, tuned_cell(t_early_stop_check_s=0.5))
    assert read_tuned(tmp_path)[key()].t_early_stop_check_s == 0.5


CELL: dict[str, Any] = {
    "pair": "p", "mode": "eager", "sampling": "greedy", "draft_sampling": "same", "acceptance_rule": "ratio",
    "batch_size": 1, "context": 64,
}  # fmt: skip
ACCEPTANCE = Path("acceptance") / "p--greedy.parquet"


def prediction(**changes: Any) -> dict[str, Any]:
    known: dict[str, Any] = {name: 1.5 for name, column in columns(PredictionRow).items() if column.kind is float}
    known |= CELL | {"gamma": 2, "is_best": True, "is_recommended": False, "label": "", "status": "ok", "reason": ""}
    return known | {"cost_provenance": "measured", "acceptance_provenance": "measured"} | changes


def recommendation(**changes: Any) -> dict[str, Any]:
    known: dict[str, Any] = dict.fromkeys(columns(RecommendationRow))
    return known | CELL | {
        "decision": "undecided", "speedup": {"value": 1.5, "low": None, "high": None}, "reason": "why",
        "speedup_predicted": {"value": 1.5, "low": None, "high": None}, **changes
    }  # fmt: skip


WARNING = {"code": "x", "message": "m", "remedy": "r"}


def answers(entries: Any, warnings: Any = (WARNING,), **more: Any) -> str:
    return json.dumps({"recommendations": entries, "warnings": list(warnings), **more}) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run directory with a small file of every kind."""
    path = tmp_path / "made"
    with made.begin(path) as run:
        run.journal.append(made.line("decode", [[0.5]]))
    write_csv(path / "predictions.csv", PredictionRow, [prediction()])
    write_csv(path / "validation.csv", ValidationRow, [validation_row(), policy_row()])
    (path / "recommendation.yaml").write_text(answers([recommendation()]))
    write_table(path / ACCEPTANCE, AcceptanceRow, made.acceptance_frame(2, 3))
    add_rollouts(path / "rollouts.parquet", GREEDY, chains(3))
    write_blocks(path, {key(): [Batch(prompts=(7, 8), max_new_tokens=5)]})
    keep_tuned(path, tuned_cell())
    return path


def test_csv_rows_come_back_exactly(path: Path) -> None:
    unknown: dict[str, Any] = {
        name: None for name in columns(ValidationRow) if name.startswith(("speedup", "rounds", "overhead"))
    }
    rows = (
        validation_row(error=0.1 + 0.2), forced_row(), validation_row(**unknown | {"rounds_counted": 7}),
        policy_row(policy="renewal", error=None, off_path=None),
    )  # fmt: skip
    write_csv(path / "validation.csv", ValidationRow, rows)
    run = Run.open(path)
    assert tuple(plain(row) for row in run.rows(ValidationRow)) == rows
    assert run.validation() == rows[:3]
    typed = read_csv(path / "validation.csv", ValidationRow)
    write_csv(path / "again.csv", ValidationRow, typed)
    assert (path / "again.csv").read_bytes() == (path / "validation.csv").read_bytes()
    (path / "validation.csv").unlink()
    assert run.rows(ValidationRow) == ()


def test_predictions_are_a_table_too(path: Path) -> None:
    row = prediction(pair="NA", speedup=0.1 + 0.2, t_overhead_s=None, p_best=None)
    write_csv(path / "predictions.csv", PredictionRow, [row])
    found = Run.open(path).predictions()
    assert list(found.columns) == list(columns(PredictionRow))
    assert found[["pair", "label", "gamma", "is_best", "is_recommended"]].to_numpy().tolist() == [
        ["NA", "", 2, True, False]
    ]
    assert found["speedup"].tolist() == [0.1 + 0.2]
    assert (str(found["p_best"].dtype), found["p_best"].isna().tolist()) == ("float64", [True])
    assert frame_of(PredictionRow, ()).empty


def test_columns_of_nobody_are_passed_over_and_status_may_be_missing(path: Path) -> None:
    table = path / "predictions.csv"
    header, line = table.read_text().splitlines()
    table.write_text(f"{header.removesuffix(',status,reason')},mine\n{line.removesuffix(',ok,')},1\n")
    (row,) = Run.open(path).rows(PredictionRow)
    assert (row.gamma, row.status, row.reason) == (2, "", "")


def test_recommendations_and_warnings(path: Path) -> None:
    run = Run.open(path)
    assert (run.recommendations(), run.warnings) == ((recommendation(),), (WARNING,))
    (row,) = run.rows(RecommendationRow)
    assert (row.decision, row.speedup, row.best_gamma) == ("undecided", Interval(value=1.5, low=None, high=None), None)


def test_acceptance_comes_back_with_the_columns_it_has(path: Path) -> None:
    frame = made.acceptance_frame(1, 2).assign(target_prob=np.float32(0.1), draft_argmax=[np.nan, 3.0], mine=1)
    frame.to_parquet(path / ACCEPTANCE)
    found = Run.open(path).acceptance_of("p", "greedy")
    lookups = {"proposed_length", "match_length", "lookup_match", "rejected_target_prob"}
    assert list(found.columns) == [name for name in columns(AcceptanceRow) if name not in lookups]
    assert found["target_prob"].tolist() == [float(np.float32(0.1))] * 2
    assert found["draft_argmax"].isna().tolist() == [True, False]


BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("!!bool x", "'x'"),
        ('!!int ""', "''"),
        ("!!set {a, b}", "'!!set'"),
        ("!!binary aGk=", "'!!binary'"),
        ("!!pairs [a: 1]", "'!!pairs'"),
        ("*a9", "more once its aliases are expanded"),  # a billion
        ("[" * 5000, "nested some hundred levels deep at most"),
        ("0x" + "f" * 5000, "'0xfff"),
        ("0x" + "f" * 60, "recommendations[0], reason: expected text, got 17668"),
        ("2026-01-01 00:00:00 }", "YAML"),
    ],
)
def test_yaml_that_breaks_its_parser_or_expands_without_end(path: Path, reason: str, line: str) -> None:
    entries = json.dumps([recommendation(reason="REASON")]).replace('"REASON"', reason)
    bomb = BOMB if "*" in reason else ""
    (path / "recommendation.yaml").write_text(f"{bomb}recommendations: {entries}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^[^\n]{1,500}$") as error:
        Run.open(path).recommendations()
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("gamma", "9" * 400, "a whole number of at least 1 and up to 64, got 9999"),
        ("batch_size", 10**30, "a whole number of at least 1 and up to 65536, got 1000000000000000000000000000000;"),
        ("t_decode_s", 1e308, "a number of at most 1e+30, got 1e+308;"),
        ("speedup", -1e308, "a number of at least -1e+30, got -1e+308;"),
        ("gamma", "٣", "a whole number of at least 1 and up to 64, got '٣'"),
    ],
)
def test_what_is_no_number_and_what_overflows_all_that_is_reckoned_from_it(
    path: Path, field: str, value: Any, expected: str
) -> None:
    write_csv(path / "predictions.csv", PredictionRow, [prediction(**{field: value})])
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        Run.open(path).predictions()
    assert f"predictions.csv, line 2, {field}: expected {expected}" in str(error.value)


def test_what_is_no_run_is_refused_with_what_is_there(path: Path, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "cells.jsonl").touch()
    for name, found in (
        ("mode", r"mode: no such run; did you mean .*/made\?"),
        ("quick", r"quick: no such run; runs in .*: begun, made; make one with `specgauge run`"),
        ("made/config.yaml", r"config.yaml: is a file, a run directory is expected \(for example .*made\)"),
        ("", r"not a run directory: it has no config.yaml"),
        ("begun", r"begun: stopped before anything was measured; run the same command again$"),
    ):
        with pytest.raises(ValueError, match=found):
            Run.open(tmp_path / name)


def replaced(old: str, new: str) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return damage


def holding(content: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content if isinstance(content, bytes) else content.encode())


def rows_of(row_type: Any, *rows: Mapping[str, Any]) -> Callable[[Path], object]:
    return lambda path: write_csv(path, row_type, rows)


def parquet(change: Callable[[pa.Table], pa.Table]) -> Callable[[Path], object]:
    return lambda path: pq.write_table(change(pq.read_table(path)), path)


def values(**columns_: Any) -> Callable[[Path], object]:
    def change(table: pa.Table) -> pa.Table:
        for name, value in columns_.items():
            table = table.set_column(table.column_names.index(name), name, pa.array([value] * len(table)))
        return table

    return parquet(change)


def lacking(name: str) -> Callable[[Path], object]:
    return parquet(lambda table: table.drop_columns([name]))


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def shortened(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def scrambled(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[8:600] = bytes(592)
    path.write_bytes(whole)


newer = parquet(lambda table: table.replace_schema_metadata({"specgauge_schema": "2"}))
foreign = parquet(lambda table: pa.table({"a": [1]}))
PARQUET = [shortened, scrambled, holding(b""), holding("pair,mode\np,eager\n"), foreign, newer, Path.unlink]
Damages = list[Callable[[Path], object]]
CASES: dict[str, tuple[Callable[[Path], object], Damages]] = {
    "environment.json": (
        lambda run: read_environment(run / "environment.json"),
        [Path.unlink, holding(""), holding('{"device": "c'), holding('{"device": NaN}'), holding("[]"),
         holding('{"schema": 2}'), holding(b"{}\xff"), holding('{"threads": "two"}'), holding('{"cpu": {"a": 1}}'),
         holding('{"packages": {"torch": 2}}')],
    ),
    "predictions.csv": (
        lambda run: Run.open(run).predictions(),
        [holding(""), holding("a,b\n1,2\n"), shortened, replaced(",ok,\n", ",ok,"), replaced(",ok,\n", ",ok,,1\n"),
         rows_of(PredictionRow, prediction(), prediction(gamma="four")), rows_of(PredictionRow, prediction(gamma="")),
         rows_of(PredictionRow, prediction(gamma=0)), rows_of(PredictionRow, prediction(batch_size="4.0")),
         rows_of(PredictionRow, prediction(speedup="nan")), rows_of(PredictionRow, prediction(speedup="fast")),
         rows_of(PredictionRow, prediction(is_best="yes")), replaced("\np,", '\n",'), Path.unlink],
    ),
    "validation.csv": (
        lambda run: Run.open(run).validation(),
        [holding(""), holding("a,b\n1,2\n"), shortened, replaced(",early_stop_checks,", ",glances,"),
         *(rows_of(ValidationRow, validation_row(**change)) for change in (
             {"gamma": "four"}, {"gamma": None}, {"gamma": -3}, {"blocks": 1.5}, {"cost_error": "nan"},
             {"speedup_measured": -1.0}, {"lossless": "yes"}, {"lossless": None}, {"rounds_agree": 1},
             {"policy": "svip"}, {"gamma": 999_999}, {"batch_size": 999_999})),
         rows_of(ValidationRow, policy_row(early_stop_checks="many")), rows_of(ValidationRow, policy_row(policy=None)),
         lambda path: path.rename(path.with_name("verification.csv"))],
    ),
    "recommendation.yaml": (
        lambda run: (Run.open(run).recommendations(), Run.open(run).warnings),
        [holding("recommendations: [{"), holding("[]"), holding(answers(3)), holding(answers([3])),
         holding(answers([], schema=2)), holding("recommendations: []\n"), holding(answers([], [{"message": "m"}])),
         holding(answers([]).rstrip()), holding(answers([recommendation(decision="maybe")])),
         holding(answers([recommendation(speedup={"value": 1.5, "low": 1.0})])),
         holding(answers([recommendation(speedup=1.5)])), holding(answers([recommendation(), CELL])),
         holding(answers([recommendation(best_gamma="two")])), Path.unlink],
    ),
    "policies.json": (
        read_tuned,
        [shortened, holding("[]"), replaced('"schema": 1', '"schema": 99'), holding("{}"),
         replaced('"t_early_stop_check_s"', '"look"'), replaced('"kind": "svip"', '"kind": "magic"'),
         replaced('"halves": [', '"halves": [1, '), replaced('"batch_size": 1', '"batch_size": true')],
    ),
    str(ACCEPTANCE): (
        lambda run: Run.open(run).acceptance_of("p", "greedy"),
        [*PARQUET, lacking("overlap_match"), values(context="far"), values(draft_prob=math.inf),
         values(draft_top_prob=1.5), values(draft_entropy_nats=-1.0), values(prompt=None), values(token=-1),
         values(position=None),
         parquet(lambda table: table.slice(0, 0))],
    ),
    "rollouts.parquet": (
        lambda run: read_rollouts(run / "rollouts.parquet"),
        [*PARQUET, lacking("depth"), values(top_prob=1.5), values(top_prob=0.0), values(top_prob=None),
         values(entropy_nats=-0.1), values(depth=0)],
    ),
    "requests.parquet": (
        read_decoded,
        [*PARQUET[:-1], lacking("block"), values(arm=[1]), values(block="first"), values(arm="beam"),
         values(arm="speculate:0"), values(arm=None), values(gamma=1.5)],
    ),
    "rounds.parquet": (
        read_decoded,
        [*PARQUET, lacking("block"), values(arm=[1]), values(block="first"), values(arm="Plain")],
    ),
}  # fmt: skip


def test_damage_is_one_line_that_names_file_and_place(
    path: Path, tmp_path: Path, snapshot: Callable[[str, str], None]
) -> None:
    kept = {name: (path / name).read_bytes() for name in CASES}
    told = []
    for name, (read, damages) in CASES.items():
        read(path)
        for damage in (*damages, fifo):
            damage(path / name)
            with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
                read(path)
            line = str(error.value).replace(f"{path}/", "")
            assert line.startswith((name, "verification.csv"))
            told.append(re.sub(r"((?:not a parquet file|not YAML|not JSON|not a CSV file): ).*?;", r"\1…;", line))
            (path / name).unlink(missing_ok=True)
            (path / name).write_bytes(kept[name])
            (path / "verification.csv").unlink(missing_ok=True)
    snapshot("store_errors", "".join(f"{line}\n" for line in told))


def test_a_figure_that_cannot_be_is_unknown_rather_than_a_file_nobody_reads() -> None:
    row, names = readable(ValidationRow, validation_row(speedup_measured_low=-0.084, error=math.nan))
    assert (row, names) == (
        validation_row(speedup_measured_low=None, error=None), ["speedup_measured_low", "error"]
    )  # fmt: skip
    given = recommendation(speedup={"value": 1.5, "low": math.inf, "high": None})
    row, names = readable(RecommendationRow, given)
    assert (row["speedup"], names) == ({"value": 1.5, "low": None, "high": None}, ["speedup.low"])
    assert given["speedup"]["low"] == math.inf
    assert readable(PredictionRow, prediction()) == (prediction(), [])
    with pytest.raises(ValueError, match="PredictionRow, gamma: expected a whole number of at least 1 and up to 64"):
        readable(PredictionRow, prediction(gamma=0))
