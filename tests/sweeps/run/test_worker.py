"""Workers that die or meet bad input, as no processes: what is recorded, skipped, told and raised."""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest

from specgauge.cli.errors import tell
from specgauge.configs.schema import Config
from specgauge.exits import FAILED
from specgauge.sweeps.analysis.predictions import predict
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.run import pair, runner, worker
from specgauge.sweeps.run.worker import measure_apart, work
from specgauge.sweeps.store.checkpoint import MARK, Checkpoint, Label, read_checkpoint
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.tables import read_decoded
from tests.sweeps import made
from tests.sweeps.apart import ARMS, CONFIG, FIRST, KILLED, SECOND, by_cell, pairs
from tests.sweeps.fake_bench import Decoding, FakeBench
from tests.sweeps.store.test_tables import chains

SEGFAULT = "its process got SIGSEGV"
DECODED = made.config(
    grid={"batch_size": [1, 2], "context": [64, 65], "gamma": "1:2"},
    validate={"gamma": 2, "prompts": 2, "max_new_tokens": 6},
)
TWO = made.config(sampling=[{"name": "a", "temperature": 0}, {"name": "b"}], acceptance={"rollouts": 2})
FATAL = "greedy, batch size 1, context 65"
DECODING: Label = ("decoding", FATAL)

Sent = PairOutcome | Exception | None
Step = Callable[[Path], tuple[int, Sent]]
Fails = Callable[[Exception], None]
Calls = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made.begin(tmp_path / "run", CONFIG).close()
    return tmp_path / "run"


Use = Callable[..., list[list[Label]]]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Use:
    """What each worker does, in the place of its process; returns what each was told to skip, as it comes."""

    def use(*steps: Step) -> list[list[Label]]:
        to_come, skipped = iter(steps), []

        class Scripted:
            def __init__(self, *, is_served: bool) -> None:
                assert not is_served

            def measure(
                self, run: Path, pair: str, labels: Sequence[Label], *_: object, **__: object
            ) -> tuple[int, Sent]:
                skipped.append(list(labels))
                return next(to_come)(run)

        monkeypatch.setattr(worker, "PairProcess", Scripted)
        return skipped

    return use


def ends(sent: Sent = None, **outcome: Any) -> Step:
    return lambda run: (0, sent or PairOutcome(**outcome))


def dies(code: int, stage: str = "", **mark: Any) -> Step:
    """A death with its mark; without a stage, before anything was marked."""

    def step(run: Path) -> tuple[int, Sent]:
        if stage:
            (run / MARK).write_text(json.dumps({"stage": stage, **mark}))
        return code, None

    return step


def dies_timing(code: int, cell: Cell, arm: str = "decode", block: int = 0) -> Step:
    return dies(code, f"timing {arm}", kind="timing", name=cell.id, arm=arm, block=block)


def test_cells_it_died_in_are_skipped(path: Path, script: Use, capsys: pytest.CaptureFixture[str]) -> None:
    """A block that was on the disk before the next was begun stays."""
    with made.begin(path, CONFIG) as run:
        run.journal.append({"axes": FIRST.axes, "arm": "draft", "block": 0, "status": "ok", "samples_s": [[1.0]]})
    found: dict[str, Any] = {"acceptance_reasons": {"greedy": "oom: full"}, "validation_reasons": {"a": "b"}}
    skipped = script(dies_timing(-11, FIRST, "draft"), dies_timing(1, SECOND, "verify:2", 1), ends(**found))
    assert measure_apart(path, CONFIG, "p", say=print) == PairOutcome(failed=True, **found)
    assert skipped == [[], [("timing", FIRST.id)], [("timing", FIRST.id), ("timing", SECOND.id)]]
    lines = [(line.cell, line.arm, line.block, line.reason) for line in Run.open(path).journal()[1:]]
    code = "its process ended with code 1"
    assert sorted(lines) == sorted(
        [(FIRST.id, arm, 0, SEGFAULT) for arm in ARMS if arm != "draft"]
        + [(SECOND.id, arm, int(arm == "verify:2"), code) for arm in ARMS]
    )
    assert capsys.readouterr().out == f"pair p: killed: {SEGFAULT}\npair p: killed: {code}\n"
    assert not (path / MARK).exists()


def test_samples_before_a_death_count_and_the_death_is_told(path: Path, script: Use) -> None:
    with made.begin(path, CONFIG) as run:
        for cell in (FIRST, SECOND):
            for arm in ARMS:
                made.record_blocks(run.journal, cell, arm, 2, 1.0)
    script(dies_timing(-9, SECOND, "verify:1", 3), ends())
    measure_apart(path, CONFIG, "p", say=print)
    made.acceptance_frame(8, 16).to_parquet(path / "acceptance" / "p--greedy.parquet")
    found = predict(Run.open(path))
    assert {row["status"] for row in found.rows} == {"ok"}
    (warning,) = [one for one in found.warnings if one["code"] == "killed"]
    assert warning["message"].endswith(f"context 65, argmax, verify:1: {KILLED}")


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (ends(StorageError("cells.jsonl: cannot write")), StorageError, "cells.jsonl: cannot write"),
        (ends(RuntimeError("pair p: KeyError: 'gone'")), RuntimeError, "pair p: KeyError: 'gone'"),
        (dies_timing(130, FIRST), KeyboardInterrupt, ""),
        (dies_timing(-2, FIRST), KeyboardInterrupt, ""),
    ],
)
def test_what_ends_the_whole_run(path: Path, script: Use, step: Step, error: type[BaseException], message: str) -> None:
    script(step)
    with pytest.raises(error) as caught:
        measure_apart(path, CONFIG, "p", say=print)
    assert str(caught.value) == message
    assert not (path / MARK).exists()
    assert Run.open(path).journal() == ()


def test_workers_that_never_live_long_enough_are_one_line(tmp_path: Path, script: Use) -> None:
    """A torch that this processor cannot run, for instance."""
    script(dies(-4), dies(-4))
    with pytest.raises(ChildProcessError) as caught:
        runner.run(made.config(pairs=pairs("p", "q")), out=tmp_path / "new", apart=True)
    words = "killed: its process got SIGILL, while starting"
    assert str(caught.value) == f"pair p: {words}; pair q: {words}"


def test_a_sampling_setting_it_died_at_has_no_acceptance(tmp_path: Path, script: Use) -> None:
    made.begin(tmp_path / "new", TWO).close()
    skipped = script(
        dies(-9, "writing texts, p, a", kind="acceptance", name="a"),
        dies(-11, "rejected drafts, p, b", kind="rejected drafts", name="b"),
        ends(acceptance_reasons={"a": "left out: limits.run_seconds is spent"}),
    )
    assert measure_apart(tmp_path / "new", TWO, "p", say=print) == PairOutcome(
        failed=True, acceptance_reasons={"a": f"killed: {KILLED}, while writing texts, p, a"}
    )
    assert skipped == [[], [("acceptance", "a")], [("acceptance", "a"), ("rejected drafts", "b")]]
    assert Run.open(tmp_path / "new").journal() == ()


@pytest.mark.parametrize(
    ("step", "stage", "killed"),
    [
        (ends(validation_reasons={"another": "oom: full"}), "", 0),
        (dies(-9, "loading p"), "loading p", 4),
        (dies_timing(-9, FIRST), "timing decode", 4),
        (dies(-9, "decoding", kind="decoding", name=FATAL), "decoding", 4),
    ],
)
def test_a_death_while_a_cell_is_decoded_costs_that_cell_and_another_one_the_pair(
    tmp_path: Path, script: Use, capsys: pytest.CaptureFixture[str], step: Step, stage: str, killed: int
) -> None:
    path = tmp_path / "run"
    made.write_run(path, DECODED, {"greedy": made.acceptance_frame(8, 16)}, only=set())
    again = [dies_timing(-9, FIRST)] if stage == "timing decode" else []
    skipped = script(dies(-11, "decoding", kind="decoding", name=FATAL), step, *again)
    reasons, died = {FATAL: f"killed: {SEGFAULT}"}, f"killed: {KILLED}, while {stage}"
    rest = {"every cell": died} if stage else {"another": "oom: full"}
    assert measure_apart(path, DECODED, "p", say=print) == PairOutcome(
        failed=True, died=died if stage else None, validation_reasons=reasons | rest
    )
    assert skipped[:2] == [[], [DECODING]]
    assert [line.status for line in Run.open(path).journal()] == ["killed"] * killed * len(ARMS)
    assert capsys.readouterr().out.startswith(f"pair p: killed: {SEGFAULT}, while decoding\n")
    assert not (path / MARK).exists()


def test_a_cell_that_is_skipped_is_timed_and_decoded_by_the_next_run(tmp_path: Path, bench: FakeBench) -> None:
    made.begin(tmp_path, DECODED).close()
    (cell,) = [cell for cell in plan_cells(DECODED) if (cell.batch_size, cell.context) == (1, 65)]
    with made.begin(tmp_path, DECODED) as opened:
        worker._record(opened, [cell], KILLED)

    def look(decoding: Decoding) -> None:
        label = "greedy, batch size {}, context {}".format(*decoding.point)
        assert marked(tmp_path) == {"stage": f"decoding end to end, {label}", "kind": "decoding", "name": label}

    bench.before_decoding = look
    for skipped, points in (
        ([("timing", cell.id), DECODING], {(1, 64), (2, 64), (2, 65)}),
        ([], {(1, 65)}),
    ):
        bench.measured.clear()
        bench.decoded.clear()
        assert work(tmp_path, "p", skipped) == PairOutcome()
        timed = Counter((batch_size, context) for batch_size, context, _, _ in bench.measured)
        assert timed == dict.fromkeys(points, len(ARMS) * 3)
        assert {one.point for one in bench.decoded} == points
    requests, _ = read_decoded(tmp_path)
    assert not requests.duplicated(["batch_size", "start_context", "arm", "prompt", "repetition"]).any()
    bench.environment["threads"] = 3
    assert str(work(tmp_path, "p")).startswith(f"{tmp_path}: measured with threads 2, here it is 3;")


def marked(folder: Path) -> dict[str, Any]:
    mark = read_checkpoint(folder)
    assert mark is not None
    assert mark.pop("pid") == os.getpid()
    return mark


def test_a_mark_says_where_work_is_until_it_ends(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as mark:
        mark.block("c", "decode", 2)
        assert marked(tmp_path) == {
            "stage": "timing decode", "kind": "timing", "name": "c", "arm": "decode", "block": 2
        }  # fmt: skip
        with mark.skippable("decoding", FATAL, stage="decoding"):
            assert marked(tmp_path) == {"stage": "decoding", "kind": "decoding", "name": FATAL}
            mark.stage("a stage of it")
            assert marked(tmp_path) == {"stage": "a stage of it", "kind": "decoding", "name": FATAL}
        assert marked(tmp_path) == {"stage": "decoding"}
    assert list(tmp_path.iterdir()) == []
    for damaged in ("", '{"stage": "loa', "[1]", '{"stage": 3}'):
        assert read_checkpoint(tmp_path) is None
        (tmp_path / MARK).write_text(damaged)
    assert read_checkpoint(tmp_path) is None


def test_of_three_pairs_one_dies_loading_one_writing_its_only_texts(
    tmp_path: Path, script: Use, bench: FakeBench
) -> None:
    path = tmp_path / "run"
    three = made.config(pairs=pairs("loads", "writes", "fine"), grid=CONFIG.grid)
    script(
        dies(-9, "loading loads"),
        dies(-11, "writing texts, writes, greedy", kind="acceptance", name="greedy"),
        lambda run: (0, work(run, "writes", [("acceptance", "greedy")])),
        lambda run: (0, work(run, "fine")),
    )
    assert runner.run(three, out=path, apart=True) == FAILED
    assert {(row["pair"], row["status"], row["reason"]) for row in Run.open(path).predictions().to_dict("records")} == {
        ("loads", "killed", f"{KILLED}, while loading loads"),
        ("writes", "unmeasured", f"killed: {SEGFAULT}, while writing texts, writes, greedy"),
        ("fine", "ok", ""),
    }
    found = {(warning["code"], warning["message"].partition(":")[0]) for warning in Run.open(path).warnings}
    missing = {("acceptance_missing", f"pair {pair}, sampling greedy") for pair in ("loads", "writes")}
    assert found >= {("killed", "pair loads")} | missing
    bench.measured.clear()
    assert [work(path, pair) for pair in ("loads", "writes")] == [PairOutcome()] * 2
    assert len(bench.measured) == 2 * len(ARMS) * 3, "the cells of `loads` alone"
    assert set().union(*by_cell(Run.open(path).journal()).values()) == {"ok"}
    assert all(Run.open(path).has_acceptance(pair, "greedy") for pair in ("loads", "writes"))


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Fails:
    """Let a worker meet with an error before it loads anything."""
    return lambda error: monkeypatch.setattr(pair, "prepare_machine", Mock(side_effect=error))


def test_what_is_unforeseen_is_told_with_its_kind(
    path: Path, fails: Fails, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fails(KeyError("gone"))
    for debug in ("0", "1", "false"):
        monkeypatch.setenv("SPECGAUGE_DEBUG", debug)
        crash = work(path, "p")
        assert (type(crash), str(crash)) == (RuntimeError, "pair p: KeyError: 'gone'")
        assert capsys.readouterr().err.startswith("Traceback") == (debug == "1")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MemoryError("4 GiB"), 1, "out of memory"),
        (ModuleNotFoundError("No module named 'x'", name="x"), 1,
         "needs the package 'x', which is not installed; pip install x"),
        (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), 2, "a.txt: No such file"),
        (OSError("no such device"), 1, "no such device"),
        (StorageError("cells.jsonl: cannot write"), 1, "cells.jsonl: cannot write"),
        (ValueError("pair 'p' target: no weights"), 2, "pair 'p' target: no weights"),
    ],
)  # fmt: skip
def test_what_the_machine_lacks_is_told_as_in_one_process(
    path: Path, fails: Fails, capsys: pytest.CaptureFixture[str], error: Exception, code: int, line: str
) -> None:
    fails(error)
    sent = pickle.loads(pickle.dumps(work(path, "p")))
    assert type(sent) is type(error)
    assert tell(sent, debug=False) == tell(error, debug=False) == code
    assert capsys.readouterr().err.splitlines() == [f"specgauge: {line}"] * 2


@pytest.fixture
def seen(tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What was called while texts were recorded, and the mark at that time."""
    found: Calls = []

    def telling(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def told(*rest: Any, **options: Any) -> Any:
            found.append((name, marked(tmp_path)))
            return call(*rest, **options)

        return told

    rollouts = ModuleType("specgauge.bench.acceptance.rollouts")
    rollouts.__dict__["measure_rollouts"] = lambda *rest, **options: chains(3)
    monkeypatch.setitem(sys.modules, rollouts.__name__, rollouts)
    for called in (
        "models.pair.load_model",
        "models.pair.load_pair",
        "decoding.plain.generate_plain",
        "acceptance.teacher_forced.measure_acceptance",
        "acceptance.lookups.pair_acceptance",
        "acceptance.rollouts.measure_rollouts",
        "timing.cell_timer.measure_cells",
    ):
        module, _, name = called.rpartition(".")
        where = sys.modules[f"specgauge.bench.{module}"]
        monkeypatch.setattr(where, name, telling(name, getattr(where, name)))
    return found


def run(path: Path, config: Config, *skipped: Label) -> None:
    made.begin(path, config).close()
    assert work(path, "p", skipped) == PairOutcome()


def test_sampling_settings_are_marked(tmp_path: Path, seen: Calls) -> None:
    run(tmp_path, TWO)
    expected: Calls = [("load_pair", {"stage": "loading p"})]
    for name in "ab":
        mark = {"stage": f"acceptance, p, {name}", "kind": "acceptance", "name": name}
        expected += [("generate_plain", mark), ("pair_acceptance", mark)] * 2
    for name in "ab":
        stage = f"rejected drafts, p, {name}"
        expected += [("measure_rollouts", {"stage": stage, "kind": "rejected drafts", "name": name})]
    assert seen == [*expected, ("measure_cells", {"stage": "timing p"})]


def test_so_they_are_with_one_model_after_the_other(tmp_path: Path, seen: Calls) -> None:
    config = made.config(acceptance={"sequential": True})
    run(tmp_path, config, ("acceptance", "greedy"))
    assert [name for name, _ in seen] == ["load_pair", "measure_cells"], "nothing is loaded for what is skipped"
    seen.clear()
    run(tmp_path, config)
    writing, measuring = (
        {"stage": f"{stage}, p, greedy", "kind": "acceptance", "name": "greedy"}
        for stage in ("writing texts", "acceptance")
    )
    loading: Calls = [("load_model", {"stage": "loading p"})]
    recording: Calls = [*[("generate_plain", writing)] * 2, ("measure_acceptance", measuring)]
    assert seen[:-2] == loading * 2 + recording + [("load_model", measuring)] * 2


def test_what_is_skipped_is_recorded_by_the_next_run(tmp_path: Path, seen: Calls, bench: FakeBench) -> None:
    run(tmp_path, TWO, ("acceptance", "a"), ("rejected drafts", "b"))
    assert [Run.open(tmp_path).has_acceptance("p", name) for name in ("a", "b")] == [False, True]
    assert [name for name, _ in seen].count("measure_rollouts") == 0
    timed = len(bench.measured)
    assert work(tmp_path, "p") == PairOutcome()
    assert Run.open(tmp_path).has_acceptance("p", "a")
    assert [name for name, _ in seen].count("measure_rollouts") == 2
    assert len(bench.measured) == timed > 0
