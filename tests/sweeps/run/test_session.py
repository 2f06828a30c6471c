"""What the stages of a pair share: memory, seconds and prompts, and what the answer says of what was left out."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specgauge.exits import DONE, FAILED
from specgauge.model.arms import arm_names
from specgauge.sweeps.model_sizes import ModelSize, PairSizes
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run import runner, session, worker
from specgauge.sweeps.run.session import ALL_TOO_LARGE, OUT_OF_TIME, Deadline, PairOutcome, PairPrompts, timing_left_s
from specgauge.sweeps.run.worker import work
from specgauge.sweeps.store.checkpoint import Label
from specgauge.sweeps.store.rundir import Run, prompt_rows
from tests.sweeps import made
from tests.sweeps.apart import pairs
from tests.sweeps.fake_bench import PROMPTS, FakeBench

GRID = {"batch_size": [1, 2], "context": [64, 65], "gamma": "1:3"}
ARMS = arm_names((1, 2, 3))
TWO = [{"name": "a", "temperature": 0}, {"name": "b"}]
PAIRS = pairs("p", "q")
SIZE = ModelSize(parameters=10, dtype="float32", layers=1, kv_heads=1, head_dim=1)
SIZES = PairSizes(target=SIZE, draft=SIZE)
# weights 2 · 40 bytes; keys and values 2 models · 2 · (s + 4) tokens · B · 4 bytes: 1088 and 1104, then 2176 and 2208


class Clock:
    """A clock that every block moves on by a second."""

    def __init__(self, bench: FakeBench) -> None:
        self.bench, self.other_s = bench, 0.0

    def __call__(self) -> float:
        return len(self.bench.measured) + len(self.bench.decoded) + 100.0 * len(self.bench.recorded) + self.other_s


@pytest.fixture
def bench(bench: FakeBench, monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    monkeypatch.setattr(runner, "read_sizes", lambda config: {pair.name: SIZES for pair in config.pairs})
    monkeypatch.setattr(session, "read_pair_sizes", lambda pair: SIZES)
    return bench


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
    config = made.config(grid=GRID, limits={"memory": 80 + 1104})
    assert runner.run(config, out=tmp_path / "run") == FAILED
    lines = Run.open(tmp_path / "run").journal()
    assert [line.axes["batch_size"] for line in lines] == [2] * (2 * len(ARMS)) + [1] * (2 * len(ARMS))
    assert {(line.status, line.reason) for line in lines[2 * len(ARMS) :]} == {
        ("failed", "loading: RuntimeError: stop here")
    }
    table = Run.open(tmp_path / "run").predictions()
    skipped = table[table["batch_size"] == 2]
    assert set(skipped["status"]) == {"skipped"}
    assert {reason.split(" by ")[0] for reason in skipped["reason"]} == {"needs 0.00215 MiB", "needs 0.00218 MiB"}
    assert warnings(tmp_path / "run", "skipped")[0].startswith("pair p: 2 of 4 cells skipped, first batch size 2,")
    assert "batch size 2, context 64: unknown, skipped: needs" in capsys.readouterr().out


def test_the_rest_is_measured_and_decoded_by_the_sizes_that_the_models_files_tell(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is known once the model is here."""

    def sizes(_: object) -> PairSizes:
        size = SIZE if bench.loaded else None
        return PairSizes(target=size, draft=size)

    monkeypatch.setattr(session, "read_pair_sizes", sizes)
    verify = {"gamma": 2, "prompts": 2, "max_new_tokens": 6}
    outcome = bench.measure_pair(
        tmp_path / "run", made.config(grid=GRID, limits={"memory": 80 + 1104}, validate=verify)
    )
    assert {(b, s) for b, s, *_ in bench.measured} == {one.point for one in bench.decoded} == {(1, 64), (1, 65)}
    assert outcome.validation_reasons == {
        f"greedy, batch size 2, context {context}": "skipped: over limits.memory" for context in (64, 65)
    }
    assert (outcome.failed, outcome.left_out, outcome.acceptance_reasons) == (False, [], {})


@pytest.mark.parametrize("sequential", [False, True])
def test_acceptance_that_is_begun_is_brought_to_its_end(tmp_path: Path, bench: FakeBench, sequential: bool) -> None:
    """One model after the other, the texts of `b` are not written since those of `a` took all seconds."""
    clock, plain = Clock(bench), sys.modules["specgauge.bench.decoding.plain"]
    write = plain.generate_plain

    def slowly(*rest: Any, **options: Any) -> Any:
        clock.other_s += 2.0
        return write(*rest, **options)

    setattr(plain, "generate_plain", slowly)  # noqa: B010
    config = made.config(grid=GRID, sampling=TWO, acceptance={"sequential": sequential})
    outcome = bench.measure_pair(tmp_path / "run", config, deadline=Deadline(1.0, now=clock))
    assert (len(bench.recorded), bench.measured) == (1, [])
    assert outcome.acceptance_reasons == {"b": OUT_OF_TIME}
    assert outcome.left_out[0] == "acceptance under b"
    nothing = bench.measure_pair(tmp_path / "none", config, deadline=Deadline(0.0))
    assert nothing == PairOutcome(
        acceptance_reasons=dict.fromkeys("ab", OUT_OF_TIME), left_out=["whatever was missing"]
    )


def test_decoding_stops_between_blocks(tmp_path: Path, bench: FakeBench) -> None:
    """Two prompts are two blocks at batch size 1 and one at 2; a block takes 4 s, there are 6 for two of them."""
    config = made.config(grid=GRID, validate={"gamma": 2, "prompts": 2, "max_new_tokens": 6, "max_seconds": None})
    timing_s = 4 * len(ARMS) * 3
    deadline = Deadline(100.0 + timing_s + 6.0, now=Clock(bench))
    outcome = bench.measure_pair(tmp_path / "run", config, deadline=deadline)
    assert len(bench.decoded) == 2 * 4
    assert outcome.left_out == ["blocks of decoding end to end"]
    reasons = [reason.split(maxsplit=1) for reason in outcome.validation_reasons.values()]
    assert sum(int(left) for left, _ in reasons) == 2 + 2 + 1 + 1 - 2
    assert all(reason.endswith(" blocks left out: limits.run_seconds is spent") for _, reason in reasons)


def test_a_pairs_own_threads_are_in_use_and_noted(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = {"name": "p", "target": "embedded", "draft": "embedded", "mode": "compile", "threads": 3}
    events: list[str] = []

    @contextmanager
    def in_use(threads: int) -> Iterator[None]:
        events.append(f"{threads} threads")
        yield
        events.append("as before")

    def in_mode(loaded: object, mode: str) -> object:
        events.append(mode)
        return loaded

    environment, models = (sys.modules[f"specgauge.bench.{name}"] for name in ("environment", "models.pair"))
    monkeypatch.setattr(environment, "threads_in_use", in_use)
    monkeypatch.setattr(models, "pair_in_mode", in_mode)
    bench.measure_pair(tmp_path / "run", made.config(pairs=[pair]))
    lines = Run.open(tmp_path / "run").journal()
    assert (events[:2], events[-1]) == (["3 threads", "compile"], "as before")
    assert {(line.axes["mode"], line.notes["threads"]) for line in lines} == {("compile", 3)}


@pytest.mark.parametrize(
    ("precision", "left_s"),
    [
        ({"max_seconds": 50}, 2 * 50 - 12.0),
        ({"max_seconds": 50, "max_cell_seconds": 20}, 2 * 40 - 12.0),
        ({"max_seconds": 5}, 1.0),  # batch size 1 has spent 4 of its 5 seconds, batch size 2 more than them
        ({"max_seconds": None, "max_cell_seconds": 20}, 2 * 40 - 12.0),
        ({"max_seconds": None}, math.inf),
    ],
)
def test_the_time_left_for_timing(precision: dict[str, Any], left_s: float) -> None:
    config = made.config(grid=GRID, precision=precision)
    assert timing_left_s(config.precision, plan_cells(config), lambda cell: 2.0 * cell.batch_size) == left_s


def warnings(path: Path, code: str) -> list[str]:
    return [warning["message"] for warning in Run.open(path).warnings if warning["code"] == code]


def test_the_seconds_are_those_of_all_pairs_and_the_answer_says_what_was_left_out(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every block takes a second; a pair has 96."""
    monkeypatch.setattr(runner, "Deadline", lambda seconds: Deadline(seconds, now=lambda: float(len(bench.measured))))
    config = made.config(grid=GRID, pairs=PAIRS, limits={"run_seconds": 100})
    assert runner.run(config, out=tmp_path / "run") == DONE
    assert len(bench.measured) == 100
    left_out = ["pair q: limits.run_seconds is spent, left out: blocks of timing"]
    assert warnings(tmp_path / "run", "out_of_time") == left_out
    out = capsys.readouterr().out
    assert left_out[0] in out
    assert "raise limits.run_seconds" in out
    longer = made.config(grid=GRID, pairs=PAIRS, limits={"run_seconds": 1e6})
    assert runner.run(longer, out=tmp_path / "run") == DONE
    assert len(bench.measured) == 2 * len(set(bench.measured)) == 2 * 96
    assert warnings(tmp_path / "run", "out_of_time") == []


def test_where_all_is_over_the_memory_only_that_is_said(tmp_path: Path, bench: FakeBench) -> None:
    config = made.config(grid=GRID, limits={"memory": 79})
    assert bench.measure_pair(tmp_path / "run", config).acceptance_reasons == {"greedy": ALL_TOO_LARGE}
    assert runner.run(config, out=tmp_path / "run") == FAILED
    assert (len(warnings(tmp_path / "run", "skipped")), warnings(tmp_path / "run", "acceptance_missing")) == (1, [])
    assert (bench.loaded, bench.recorded) == ([], [])


@pytest.mark.parametrize(("seconds", "told"), [(9.0, [("p", 9.0), ("q", 5.0)]), (0.0, [("p", 0.0)])])
def test_workers_are_told_the_seconds_that_are_left_and_none_is_started_for_nothing(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch, seconds: float, told: list[tuple[str, float]]
) -> None:
    now, started = [0.0], []

    def start(run: Path, pair: str, skipped: Sequence[Label], left_s: float) -> tuple[int, Any]:
        started.append((pair, left_s))
        now[0] += 4.0
        return 0, work(run, pair, skipped, Deadline(left_s))

    monkeypatch.setattr(worker, "_start", start)
    monkeypatch.setattr(runner, "Deadline", lambda _: Deadline(seconds, now=lambda: now[0]))
    assert runner.run(made.config(grid=GRID, pairs=PAIRS), out=tmp_path / "run", apart=True) == (
        DONE if seconds else FAILED
    )
    assert started == told
    assert len(warnings(tmp_path / "run", "out_of_time")) == (0 if seconds else 2)
    assert bool(bench.loaded) == (seconds > 0)
