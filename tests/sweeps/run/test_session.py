"""Runs and the stages of a pair: files, failures, memory, seconds and prompts, and what is told of what is left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY, MagicMock, Mock, call

import pyarrow.parquet as pq
import pytest

from specgauge.bench.decoding.records import NonFiniteLogitsError
from specgauge.configs.schema import Config
from specgauge.exits import DONE, FAILED
from specgauge.model.arms import arm_names
from specgauge.reports.records import findings, read_report_data
from specgauge.sweeps.model_sizes import PairSizes
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.run import runner, session, worker
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.run.session import ALL_TOO_LARGE, PairPrompts
from specgauge.sweeps.run.worker import work
from specgauge.sweeps.store.checkpoint import Label
from specgauge.sweeps.store.outcomes import ALL_MISSING, OUT_OF_TIME, PairOutcome, keep_outcomes, read_outcomes
from specgauge.sweeps.store.rundir import Run, acceptance_path, prompt_rows
from specgauge.sweeps.store.schema import WarningRow
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made
from tests.sweeps.apart import pairs
from tests.sweeps.fake_bench import PROMPTS, SIZES, FakeBench, OutOfMemoryError

GRID = {"batch_size": [1, 2], "context": [64, 65], "gamma": "1:3"}
CELLS, ARMS, BLOCKS = 4, len(arm_names((1, 2, 3))), 3


def run(path: Path, config: Config | None = None, **options: Any) -> int:
    return runner.run(config or made.config(grid=GRID), out=path, **options)


def test_a_run_writes_every_file_and_prints_the_answer(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run"

    def report(run_dir: Path) -> Path:
        assert len(Run.open(run_dir).predictions()) == CELLS * 3
        return run_dir / "report.html"

    assert run(path, made.config(grid=GRID, threads=3), report=report) == 0
    assert sorted(entry.name for entry in path.iterdir()) == [
        "acceptance", "cells.jsonl", "config.yaml", "environment.json", "predictions.csv", "prompts.jsonl",
        "recommendation.yaml",
    ]  # fmt: skip
    assert len(bench.measured) == CELLS * ARMS * BLOCKS
    assert bench.threads == [3]
    (recorded,) = (path / "acceptance").iterdir()
    assert pq.read_schema(recorded).metadata == {b"specgauge_schema": b"1"}
    out, err = capsys.readouterr()
    assert [line.split()[:5] for line in out.splitlines()[2:3]] == [["1", "64", "speculate", "2", "1.15"]]
    assert out.splitlines()[-1] == f"report: {path / 'report.html'}"
    assert [line for line in err.splitlines() if line.endswith("…")] == [
        "loading p …", "acceptance, p, greedy …", "timing p …", "predicting …",
    ]  # fmt: skip
    before = (path / "cells.jsonl").read_bytes()
    bench.measured.clear()
    bench.recorded.clear()
    assert run(path, made.config(grid=GRID, threads=3)) == 0
    assert (bench.measured, bench.recorded) == ([], [])
    assert (path / "cells.jsonl").read_bytes() == before
    prompts = [json.loads(line) for line in (path / "prompts.jsonl").read_text().splitlines()]
    assert prompts[1] == {
        "schema": 1, "pair": "p", "prompt": 1, "category": None, "text": "text 1", "tokens": [1],
    }  # fmt: skip


@pytest.mark.parametrize("status", ["failed", "oom"])
def test_a_failed_cell_loses_no_other_and_is_tried_again_unless_out_of_memory(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str], status: str
) -> None:
    path, failed = tmp_path / "run", status == "failed"
    reason = "RuntimeError: bad" if failed else "OutOfMemoryError: full"
    bench.fails_at = {(2, 65): RuntimeError("bad") if failed else OutOfMemoryError("full")}
    assert run(path) == int(failed)
    assert len(bench.measured) == (CELLS - 1) * ARMS * BLOCKS
    assert f"batch 2, context 65: {status}: {reason}" in capsys.readouterr().out
    bench.fails_at = {}
    bench.measured.clear()
    assert run(path) == 0
    assert {(b, s) for b, s, _, _ in bench.measured} == ({(2, 65)} if failed else set())
    assert len(bench.measured) == (ARMS * BLOCKS if failed else 0)
    last = Run.open(path).predictions().to_dict("records")[-1]
    assert (last["context"], last["status"], last["reason"]) == ((65, "ok", "") if failed else (65, status, reason))


def test_a_pair_that_cannot_be_loaded_loses_no_other(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.load_error = {"bad": ValueError("pair 'bad' target: cannot load 'x': no config.json")}
    config = made.config(pairs=pairs("bad", "p"))
    assert run(tmp_path / "run", config) == 2
    out, err = capsys.readouterr()
    assert "not measured: pair 'bad' target: cannot load 'x': no config.json" in err
    assert "\n    1     64  speculate" in out
    why = "pair 'bad' target: cannot load 'x': no config.json"
    assert out.startswith("bad, greedy: no number in 1 cell\n")
    assert out.count(why) == 1
    kept = [(row["code"], row["message"]) for row in Run.open(tmp_path / "run").warnings]
    assert kept[0] == ("pair_refused", f"not measured: {why}")
    (tmp_path / "run" / "recommendation.yaml").unlink()
    derived = recommend(Run.open(tmp_path / "run"))
    assert [row["code"] for row in derived.warnings].count("pair_refused") == 1
    assert {row["reason"] for row in derived.entries if row["pair"] == "bad"} == {f"refused: {why}"}
    assert not [row for row in derived.warnings if "run the same command again" in row["remedy"]]
    bench.load_error = {}
    assert run(tmp_path / "run", config) == 0
    assert sorted((row.pair, row.prompt) for row in prompt_rows(tmp_path / "run")) == [
        (pair, n) for pair in ("bad", "p") for n in range(10)
    ]


def test_a_pair_that_nothing_can_be_measured_of_says_so_afterwards(tmp_path: Path, bench: FakeBench) -> None:
    path, bench.load_error = tmp_path / "run", {"p": ValueError("pair 'p': no weights")}
    OpenRun(path, made.config(), fresh=False).close()  # begun before
    with pytest.raises(ValueError, match="no weights"):
        run(path)
    found = recommend(Run.open(path))
    assert {row["reason"] for row in found.entries} == {"refused: pair 'p': no weights"}
    assert found.next_step == "put right what the warnings name; what is refused would be so again"
    assert [(row.code, row.message) for row in findings(read_report_data(path), {})] == [
        ("pair_refused", "Not measured: pair 'p': no weights.")
    ]


@pytest.mark.parametrize("kept", [False, True])
def test_where_nothing_was_begun_nothing_is_left_behind(tmp_path: Path, bench: FakeBench, kept: bool) -> None:
    folder = tmp_path / "runs"
    if kept:
        (folder / "run").mkdir(parents=True)
        (folder / "run" / ".notes").write_text("mine", encoding="utf-8")
    bench.load_error = {"p": ValueError("pair 'p': no weights")}
    with pytest.raises(ValueError, match="no weights"):
        run(folder / "run")
    left = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))]
    assert left == (["runs", "runs/run", "runs/run/.notes"] if kept else [])


def test_a_run_that_is_refused_anew_leaves_the_old_one(tmp_path: Path, bench: FakeBench) -> None:
    path = tmp_path / "run"
    assert run(path) == DONE
    before = {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    bench.load_error = {"p": ValueError("pair 'p': no weights")}
    with pytest.raises(ValueError, match="no weights"):
        runner.run(made.config(), out=path, fresh=True)
    assert [one.name for one in tmp_path.iterdir()] == ["run"]
    assert {file.name: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before


def test_texts_of_no_use_are_not_written_again_for_the_same_prompts_and_models(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sys.modules["specgauge.bench.decoding.plain"]
    written = Mock(side_effect=plain.generate_plain)
    monkeypatch.setattr(plain, "generate_plain", written)
    bench.acceptance_error = ValueError("every text ended at its first token")
    path, config = tmp_path / "run", made.config(grid=GRID, pairs=PAIRS)
    for _ in range(2):
        with pytest.raises(ValueError, match="every text ended at its first token"):
            run(path, config)
    assert written.call_count == len(PAIRS)
    bench.acceptance_error = None
    monkeypatch.setattr(sys.modules["specgauge.bench.prompts"], "encode_prompts", lambda *_: [[7]] * 10)
    assert run(path, config) == 0
    assert not (path / "outcomes.json").exists()


def test_what_is_known_of_a_pair_stays_while_it_is_not_begun(tmp_path: Path) -> None:
    known = PairOutcome(bad_input="no weights", warnings=[WarningRow(code="a", message="b", remedy="c")])
    keep_outcomes(tmp_path, {"p": known, "q": PairOutcome()})
    keep_outcomes(tmp_path, {"p": PairOutcome(left_out=[ALL_MISSING]), "q": PairOutcome(left_out=[ALL_MISSING])})
    assert read_outcomes(tmp_path) == {
        "p": replace(known, left_out=[ALL_MISSING]), "q": PairOutcome(left_out=[ALL_MISSING]),
    }  # fmt: skip
    keep_outcomes(tmp_path, {"p": PairOutcome(), "q": PairOutcome()})
    assert read_outcomes(tmp_path) == {}
    for text, why in (('{"schema": 1}', "pairs: expected a mapping"), ('{"pairs": {"p": {"odd": 1}}}', "pairs.p")):
        (tmp_path / "outcomes.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=f"/outcomes.json, {why}"):
            read_outcomes(tmp_path)


def test_when_no_pair_can_be_loaded_that_is_the_error(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.load_error = {"p": ValueError("pair 'p': target and draft use different tokenizers")}
    with pytest.raises(ValueError, match=r"^pair 'p': target and draft use different tokenizers$"):
        run(tmp_path / "run")
    bench.load_error |= {"q": ValueError("pair 'q': no weights")}
    with pytest.raises(
        ValueError, match=r"^pair 'p': target and draft use different tokenizers; pair 'q': no weights$"
    ):
        run(tmp_path / "both", made.config(grid=GRID, pairs=pairs("p", "q")))
    bench.load_error = {"p": OutOfMemoryError("139 GiB")}
    assert run(tmp_path / "run", made.config(seed=3)) == 1
    assert capsys.readouterr().out.startswith("Nothing was measured: oom: loading: OutOfMemoryError: 139 GiB\n")
    table = Run.open(tmp_path / "run").predictions()
    assert (set(table["status"]), set(table["reason"])) == ({"oom"}, {"loading: OutOfMemoryError: 139 GiB"})


@pytest.mark.parametrize(
    ("sequential", "broken", "error"),
    [
        (False, "a", NonFiniteLogitsError("pair 'p' target", 3, 7)),
        (True, "b", NonFiniteLogitsError("pair 'p' target", 3, 7)),
        (False, "b", OutOfMemoryError("full")),
    ],
)
def test_a_sampling_setting_without_acceptance_loses_no_other_and_no_timing(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch, sequential: bool, broken: str, error: Exception
) -> None:
    """Its texts cannot be written, so no acceptance is; the next run tries it again."""
    path, generate = tmp_path / "run", sys.modules["specgauge.bench.decoding.plain"]
    status = "oom" if isinstance(error, OutOfMemoryError) else "failed"
    write = generate.generate_plain

    def refuse(model: Any, prompts: Any, settings: Any, **options: Any) -> Any:
        if (settings.temperature == 0.0) == (broken == "a"):
            raise error
        return write(model, prompts, settings, **options)

    monkeypatch.setattr(generate, "generate_plain", refuse)
    sampling = [{"name": "a", "temperature": 0}, {"name": "b"}]
    config = made.config(grid=GRID, acceptance={"sequential": sequential}, sampling=sampling)
    assert run(path, config) == int(status == "failed")
    (kept,) = {"a", "b"} - {broken}
    assert list((path / "acceptance").iterdir()) == [acceptance_path(path, "p", kept)]
    table = Run.open(path).predictions()
    reasons = {name: set(rows["reason"]) for name, rows in table.groupby("sampling")}
    assert set(table["t_decode_s"]) == {1.0}
    assert reasons == {broken: {f"{status}: {type(error).__name__}: {error}"}, kept: {""}}
    timed = len(bench.measured)
    monkeypatch.setattr(generate, "generate_plain", write)
    assert run(path, config) == 0
    assert len(list((path / "acceptance").iterdir())) == 2
    assert len(bench.measured) == timed


TWO = [{"name": "a", "temperature": 0}, {"name": "b"}]
PAIRS = pairs("p", "q")


def test_prompts_of_several_lengths_are_numbered_one_length_after_the_other(tmp_path: Path, bench: FakeBench) -> None:
    """The n-th prompt is [n] here, and is brought to a length by repeating it."""
    config = made.config(workload={"prompt_tokens": [2, 3], "max_new_tokens": 16})
    with made.begin(tmp_path, config) as run:
        prompts = PairPrompts(run, "p", PROMPTS[:2])
        encoded = prompts.encoded(None)
        assert encoded == [[0, 0], [1, 1], [0, 0, 0], [1, 1, 1]]
        assert prompts.at(3) == ([2, 3], [[0, 0, 0], [1, 1, 1]])
        assert prompts.at(4) == ([0, 1], [[0] * 4, [1] * 4])
        assert prompts.encoded(None) is encoded
        assert len(prompts) == 2
        assert [(row.prompt, row.text, list(row.tokens)) for row in prompt_rows(tmp_path)] == [
            (number, f"text {number % 2}", tokens) for number, tokens in enumerate(encoded)
        ]
        (tmp_path / "prompts.jsonl").write_bytes(b"\xff\xfe\n")
        with pytest.raises(ValueError, match=r"/prompts\.jsonl, line 1: not JSON: .*; delete it to have it"):
            PairPrompts(run, "p", PROMPTS).encoded(None)


def test_cells_over_the_memory_are_skipped_before_anything_is_loaded(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.load_error = {"p": RuntimeError("stop here")}
    config = made.config(grid=GRID, limits={"memory": 80 + 2048})
    assert run(tmp_path / "run", config) == FAILED
    lines = Run.open(tmp_path / "run").journal()
    assert [line.axes["batch_size"] for line in lines] == [2] * (2 * ARMS) + [1] * (2 * ARMS)
    assert {(line.status, line.reason) for line in lines[2 * ARMS :]} == {
        ("failed", "loading: RuntimeError: stop here")
    }
    table = Run.open(tmp_path / "run").predictions()
    skipped = table[table["batch_size"] == 2]
    assert set(skipped["status"]) == {"skipped"}
    assert {reason.split(" by ")[0] for reason in skipped["reason"]} == {"needs 0.00398 MiB"}
    assert warnings(tmp_path / "run", "skipped")[0].startswith("pair p: 2 of 4 cells skipped, first batch size 2,")
    assert "batch 2, context 64: skipped: needs" in capsys.readouterr().out


def test_the_rest_is_measured_and_decoded_by_the_sizes_that_the_models_files_tell(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is known once the model is here."""

    def sizes(_: object) -> PairSizes:
        size = SIZES.target if bench.loaded else None
        return PairSizes(target=size, draft=size)

    monkeypatch.setattr(session, "read_pair_sizes", sizes)
    verify = {"gamma": 2, "prompts": 2, "max_new_tokens": 6}
    outcome = bench.measure_pair(
        tmp_path / "run", made.config(grid=GRID, limits={"memory": 80 + 2048}, validate=verify)
    )
    assert {(b, s) for b, s, *_ in bench.measured} == {one.point for one in bench.decoded} == {(1, 64), (1, 65)}
    assert outcome.validation_reasons == {
        f"greedy, batch size 2, context {context}": "skipped: it does not fit by estimate" for context in (64, 65)
    }
    assert (outcome.failed, outcome.left_out, outcome.acceptance_reasons) == (False, [], {})


@pytest.mark.parametrize("sequential", [False, True])
def test_where_time_is_short_acceptance_is_recorded_of_fewer_prompts_and_the_next_run_goes_on(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch, sequential: bool
) -> None:
    """Eight prompts are written at once; they take all seconds, so that nothing is begun under `b`."""
    plain = sys.modules["specgauge.bench.decoding.plain"]
    slowly = Mock(side_effect=plain.generate_plain)
    monkeypatch.setattr(plain, "generate_plain", slowly)
    config = made.config(grid=GRID, sampling=TWO, acceptance={"sequential": sequential})
    outcome = bench.measure_pair(tmp_path / "run", config, deadline=Deadline(1.0, now=lambda: 2.0 * slowly.call_count))
    assert (bench.recorded, bench.measured) == ([8], [])
    assert outcome.acceptance_reasons == {"b": OUT_OF_TIME}
    assert set(outcome.left_out[:2]) == {"2 of 10 texts under a", "acceptance under b"}
    assert Run.open(tmp_path / "run").acceptance_of("p", "a")["prompt"].nunique() == 8
    bench.recorded.clear()
    assert bench.measure_pair(tmp_path / "run", config).left_out == []
    assert bench.recorded == ([2, 10] if sequential else [2, 8, 2])
    whole = Run.open(tmp_path / "run").acceptance_of("p", "a")
    assert whole[["prompt", "position"]].to_numpy().tolist() == [[n, t] for n in range(10) for t in range(16)]
    nothing = bench.measure_pair(tmp_path / "none", config, deadline=Deadline(0.0))
    assert nothing == PairOutcome(
        acceptance_reasons=dict.fromkeys("ab", OUT_OF_TIME), left_out=["whatever was missing"]
    )


def test_timing_leaves_most_of_the_seconds_to_decoding(tmp_path: Path, bench: FakeBench) -> None:
    """Timing would take 1320 s of 1000, decoding 240."""
    config = made.config(grid=GRID, validate={"gamma": 2, "prompts": 2, "max_new_tokens": 6})
    deadline = Deadline(1000.0, now=lambda: 10.0 * (len(bench.measured) + len(bench.decoded)))
    outcome = bench.measure_pair(tmp_path / "run", config, deadline=deadline)
    assert (len(bench.measured), outcome.left_out) == (40, ["blocks of timing"])
    assert len(bench.decoded) == 4 * (2 + 2 + 1 + 1)


def test_decoding_stops_between_blocks(tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prompts are two blocks at batch size 1 and one at 2; a block takes 40 s, there are 90 for two of them."""
    monkeypatch.setattr("specgauge.sweeps.run.pair.TIMING_SHARE", 1.0)
    config = made.config(grid=GRID, validate={"gamma": 2, "prompts": 2, "max_new_tokens": 6, "max_seconds": None})
    timing_s = 4 * ARMS * 3
    deadline = Deadline(10 * timing_s + 90.0, now=lambda: 10.0 * (len(bench.measured) + len(bench.decoded)))
    outcome = bench.measure_pair(tmp_path / "run", config, deadline=deadline)
    assert len(bench.decoded) == 2 * 4
    assert outcome.left_out == ["4 of 6 blocks of decoding end to end (most of greedy, batch size 1, context 65)"]
    assert outcome.validation_reasons == {}


def test_a_pairs_own_threads_are_in_use_and_noted(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = {"name": "p", "target": "embedded", "draft": "embedded", "mode": "compile", "threads": 3}
    called = MagicMock()
    called.in_mode.side_effect = lambda loaded, mode: loaded
    environment, models = (sys.modules[f"specgauge.bench.{name}"] for name in ("environment", "models.pair"))
    monkeypatch.setattr(environment, "threads_in_use", called.in_use)
    monkeypatch.setattr(models, "pair_in_mode", called.in_mode)
    bench.measure_pair(tmp_path / "run", made.config(pairs=[pair]))
    lines = Run.open(tmp_path / "run").journal()
    assert called.mock_calls == [
        call.in_use(3), call.in_use().__enter__(), call.in_mode(ANY, "compile"), call.in_mode(ANY, "eager"),
        call.in_use().__exit__(None, None, None),
    ]  # fmt: skip
    assert {(line.axes["mode"], line.notes["threads"]) for line in lines} == {("compile", 3)}


def warnings(path: Path, code: str) -> list[str]:
    return [warning["message"] for warning in Run.open(path).warnings if warning["code"] == code]


def test_the_seconds_are_those_of_all_pairs_and_the_answer_says_what_was_left_out(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block takes a second; a pair has 96, and half of the seconds."""
    monkeypatch.setattr(runner, "Deadline", lambda seconds: Deadline(seconds, now=lambda: float(len(bench.measured))))
    config = made.config(grid=GRID, pairs=PAIRS, limits={"run_seconds": 100})
    assert run(tmp_path / "run", config) == DONE
    assert len(bench.measured) == 100
    left_out = ["no time was left for pair p: blocks of timing; pair q: blocks of timing"]
    assert warnings(tmp_path / "run", "out_of_time") == left_out
    out = capsys.readouterr().out
    assert left_out[0] in out
    seconds = int(out.partition("→ run the same command with --set limits.run_seconds=")[2].partition(":")[0])
    assert seconds == 120  # 46 blocks a pair and a fifth more, for both
    longer = made.config(grid=GRID, pairs=PAIRS, limits={"run_seconds": seconds})
    assert run(tmp_path / "run", longer) == DONE
    assert len(bench.measured) == 2 * len(set(bench.measured)) == 2 * 96
    assert warnings(tmp_path / "run", "out_of_time") == []


def test_where_all_is_over_the_memory_only_that_is_said(tmp_path: Path, bench: FakeBench) -> None:
    config = made.config(grid=GRID, limits={"memory": 79})
    assert bench.measure_pair(tmp_path / "run", config).acceptance_reasons == {"greedy": ALL_TOO_LARGE}
    assert run(tmp_path / "run", config) == FAILED
    assert (len(warnings(tmp_path / "run", "skipped")), warnings(tmp_path / "run", "acceptance_missing")) == (1, [])
    assert (bench.loaded, bench.recorded) == ([], [])


@pytest.mark.parametrize(("seconds", "told"), [(9.0, [("p", 4.5), ("q", 5.0)]), (0.0, [("p", 0.0)])])
def test_workers_are_told_the_seconds_that_are_left_and_none_is_started_for_nothing(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch, seconds: float, told: list[tuple[str, float]]
) -> None:
    now, started = [0.0], []

    class Here:
        def __init__(self, *, is_served: bool) -> None:
            assert not is_served

        def measure(
            self, run: Path, pair: str, skipped: Sequence[Label], left_s: float, **_: object
        ) -> tuple[int, Any]:
            started.append((pair, left_s))
            now[0] += 4.0
            return 0, work(run, pair, skipped, left_s)

    monkeypatch.setattr(worker, "PairProcess", Here)
    monkeypatch.setattr(runner, "Deadline", lambda _: Deadline(seconds, now=lambda: now[0]))
    assert runner.run(made.config(grid=GRID, pairs=PAIRS), out=tmp_path / "run", apart=True) == (
        DONE if seconds else FAILED
    )
    assert started == told
    assert len(warnings(tmp_path / "run", "out_of_time")) == (0 if seconds else 1)
    assert bool(bench.loaded) == (seconds > 0)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"run_seconds": 1e-9}, "limits.run_seconds is spent; raise it and run the same command again"),
        ({"memory": 1}, "skipped: "),
    ],
)
def test_limits_that_leave_nothing_are_told_first_and_end_with_code_1(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str], limits: dict[str, Any], why: str
) -> None:
    assert run(tmp_path / "run", made.config(limits=limits)) == 1
    assert bench.measured == []
    assert capsys.readouterr().out.startswith(f"Nothing was measured: {why}")


def test_an_error_after_measuring_costs_that_page_alone(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("division\nby zero")

    path = tmp_path / "run"
    assert run(path, report=broken) == 1
    out, err = capsys.readouterr()
    kept = f"everything measured is kept in {path}, and `specgauge run` makes what is missing of it"
    assert f"no report: ZeroDivisionError: division by zero; {kept}\n" in err
    assert " speculate  2  1.15 " in out
    measured = len(bench.measured)
    with monkeypatch.context() as patched:
        patched.setattr(runner, "predict_run", broken)
        assert run(path, report=lambda folder: folder / "report.html") == 1
    out, err = capsys.readouterr()
    assert f"no predictions.csv and recommendation.yaml: ZeroDivisionError: division by zero; {kept}\n" in err
    assert (" speculate  2  1.15 " in out, out.splitlines()[-1]) == (True, f"report: {path / 'report.html'}")
    with monkeypatch.context() as patched:
        patched.setattr(runner, "recommend", broken)
        assert run(path) == 1
    out, err = capsys.readouterr()
    assert ("no answer: ZeroDivisionError" in err, out) == (True, f"run: {path}\n")
    assert run(path) == 0
    assert len(bench.measured) == measured
