from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.schema import Config
from specgauge.model.arms import arm_names
from specgauge.sweeps.estimate import PairSizes
from specgauge.sweeps.model_sizes import ModelSize
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run import limits as budget
from specgauge.sweeps.run.acceptance import Recording
from specgauge.sweeps.run.limits import SPENT, TOO_LARGE, Deadline, PairBudget
from specgauge.sweeps.run.pair import PairOutcome, PairRun
from specgauge.sweeps.run.progress import progress_to
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made
from tests.sweeps.fake_bench import FakeBench

GRID = {"batch_size": [1, 2], "context": [64, 65], "gamma": "1:3"}
ARMS = arm_names((1, 2, 3))
TWO = [{"name": "a", "temperature": 0}, {"name": "b"}]
SIZE = ModelSize(parameters=10, dtype="float32", layers=1, kv_heads=1, head_dim=1)
# weights 2 · 40 bytes; keys and values 2 models · 2 · (s + 4) tokens · B · 4 bytes: 1088 and 1104, then 2176 and 2208


class Clock:
    """A clock that every block moves on by a second."""

    def __init__(self, bench: FakeBench) -> None:
        self.bench, self.other_s = bench, 0.0

    def __call__(self) -> float:
        return len(self.bench.measured) + len(self.bench.decoded) + 100.0 * len(self.bench.judged) + self.other_s


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    fake = FakeBench().take_over(monkeypatch)
    monkeypatch.setattr(budget, "read_pair_sizes", lambda pair: PairSizes(target=SIZE, draft=SIZE))
    return fake


def measure(path: Path, config: Config, deadline: Deadline | None = None) -> PairOutcome:
    prompts: Any = [type("Prompt", (), {"text": f"text {number}", "category": None})() for number in range(10)]
    with made.begin(path, config) as run, progress_to(sys.stderr) as progress:
        return PairRun(run, config.pairs[0], prompts, progress, deadline=deadline).measure()


def statuses(path: Path) -> dict[tuple[int, int], set[tuple[str, str | None]]]:
    found: dict[tuple[int, int], set[tuple[str, str | None]]] = {}
    for line in Run.open(path).journal():
        found.setdefault((line.axes["batch_size"], line.axes["context"]), set()).add((line.status, line.reason))
    return found


def test_cells_over_the_memory_are_skipped_before_anything_is_loaded(tmp_path: Path, bench: FakeBench) -> None:
    bench.load_error = {"p": RuntimeError("stop here")}
    measure(tmp_path / "run", made.config(grid=GRID, limits={"memory": 80 + 1104}))
    reason = (
        "needs {} MiB by estimate (weights 7.63e-05 MiB, keys and values {} MiB), limits.memory is 0.00113 MiB; raise"
        " it, or lower grid.batch_size or grid.context"
    )
    found = statuses(tmp_path / "run")
    assert found[2, 64] == {("skipped", reason.format("0.00215", "0.00208"))}
    assert found[2, 65] == {("skipped", reason.format("0.00218", "0.00211"))}
    assert found[1, 64] == found[1, 65] == {("failed", "loading: RuntimeError: stop here")}
    first = [line.axes["batch_size"] for line in Run.open(tmp_path / "run").journal()]
    assert first == [2] * (2 * len(ARMS)) + [1] * (2 * len(ARMS))


def test_the_rest_is_measured_and_decoded_all_the_same(tmp_path: Path, bench: FakeBench) -> None:
    verify = {"gamma": 2, "prompts": 2, "max_new_tokens": 6}
    outcome = measure(tmp_path / "run", made.config(grid=GRID, limits={"memory": 80 + 1104}, validate=verify))
    assert {(b, s) for b, s, *_ in bench.measured} == {one.place for one in bench.decoded} == {(1, 64), (1, 65)}
    assert outcome.verify_reasons == {
        f"greedy, batch size 2, context {context}": "skipped: over limits.memory" for context in (64, 65)
    }
    assert (outcome.failed, outcome.left_out, outcome.acceptance_reasons) == (False, [], {})


def test_where_nothing_fits_nothing_is_loaded(tmp_path: Path, bench: FakeBench) -> None:
    outcome = measure(tmp_path / "run", made.config(grid=GRID, sampling=TWO, limits={"memory": 79}))
    assert (bench.loaded, bench.judged, outcome.failed) == ([], [], False)
    assert outcome.acceptance_reasons == {"a": TOO_LARGE, "b": TOO_LARGE}
    assert {status for cell in statuses(tmp_path / "run").values() for status, _ in cell} == {"skipped"}


def test_a_size_that_is_known_once_the_model_is_here_counts(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sizes(_: object) -> PairSizes:
        size = SIZE if bench.loaded else None
        return PairSizes(target=size, draft=size)

    monkeypatch.setattr(budget, "read_pair_sizes", sizes)
    measure(tmp_path / "run", made.config(grid=GRID, limits={"memory": 80 + 1104}))
    assert {(b, s) for b, s, *_ in bench.measured} == {(1, 64), (1, 65)}


def test_no_block_begins_once_the_seconds_are_spent(tmp_path: Path, bench: FakeBench) -> None:
    """Acceptance takes 100 s, a block 1 s: with 105 s there are 5 blocks."""
    config, clock = made.config(grid=GRID), Clock(bench)
    outcome = measure(tmp_path / "run", config, Deadline(105.0, now=clock))
    assert len(bench.measured) == 5
    assert outcome.left_out == ["blocks of timing"]
    assert not outcome.failed
    assert len(Run.open(tmp_path / "run").journal()) == 5
    again = measure(tmp_path / "run", config, Deadline(7.0, now=Clock(bench)))
    assert (len(bench.measured), again.left_out) == (12, ["blocks of timing"])
    rest = measure(tmp_path / "run", config, Deadline(1e6, now=Clock(bench)))
    assert (len(bench.measured), rest.left_out) == (4 * len(ARMS) * 3, [])
    assert len(set(bench.measured)) == len(bench.measured)


def test_acceptance_that_is_begun_is_brought_to_its_end(tmp_path: Path, bench: FakeBench) -> None:
    outcome = measure(tmp_path / "run", made.config(grid=GRID, sampling=TWO), Deadline(1.0, now=Clock(bench)))
    assert len(bench.judged) == 1
    assert outcome.acceptance_reasons == {"b": SPENT}
    assert outcome.left_out == ["acceptance under b", "blocks of timing"]


def test_texts_in_turn_are_judged_where_they_were_written(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(bench)
    written: list[str] = []

    def write(self: Recording, target: object, encoded: object, sampling: Any) -> list[int]:
        clock.other_s += 2.0
        written.append(sampling.name)
        return [0]

    monkeypatch.setattr(Recording, "_write_texts", write)
    config = made.config(grid=GRID, sampling=TWO, acceptance={"sequential": True})
    outcome = measure(tmp_path / "run", config, Deadline(1.0, now=clock))
    assert (written, len(bench.judged), bench.measured) == (["a"], 1, [])
    assert outcome.acceptance_reasons == {"b": SPENT}


def test_a_pair_is_not_loaded_after_the_end(tmp_path: Path, bench: FakeBench) -> None:
    outcome = measure(tmp_path / "run", made.config(grid=GRID), Deadline(0.0))
    assert bench.loaded == []
    assert outcome.acceptance_reasons == {"greedy": SPENT}
    assert outcome.left_out == ["whatever was missing"]


def test_decoding_stops_between_blocks(tmp_path: Path, bench: FakeBench) -> None:
    """Two prompts are two blocks at batch size 1 and one at 2; a block takes 4 s, there are 6 for two of them."""
    config = made.config(grid=GRID, validate={"gamma": 2, "prompts": 2, "max_new_tokens": 6, "max_seconds": None})
    timing_s = 4 * len(ARMS) * 3
    outcome = measure(tmp_path / "run", config, Deadline(100.0 + timing_s + 6.0, now=Clock(bench)))
    assert len(bench.decoded) == 2 * 4
    assert outcome.left_out == ["blocks of decoding end to end"]
    assert all(
        reason.endswith(" blocks left out: limits.run_seconds is spent") for reason in outcome.verify_reasons.values()
    )
    assert sum(int(reason.split()[0]) for reason in outcome.verify_reasons.values()) == 2 + 2 + 1 + 1 - 2


def test_a_pairs_own_threads_are_in_use_and_noted(tmp_path: Path, bench: FakeBench) -> None:
    pair = {"name": "p", "target": "embedded", "draft": "embedded", "mode": "compile", "threads": 3}
    modes: list[str] = []
    environment: Any = sys.modules["specgauge.bench.environment"]
    in_use: list[str] = []

    class InUse:
        def __init__(self, threads: int) -> None:
            in_use.append(f"{threads} threads")

        def __enter__(self) -> None:
            assert not bench.loaded

        def __exit__(self, *_: object) -> None:
            in_use.append("as before")

    environment.threads_in_use = InUse
    modules: Any = sys.modules["specgauge.bench.models.modes"]

    def in_mode(loaded: object, mode: str) -> object:
        modes.append(mode)
        return loaded

    modules.pair_in_mode = in_mode
    measure(tmp_path / "run", made.config(pairs=[pair]))
    lines = Run.open(tmp_path / "run").journal()
    assert in_use == ["3 threads", "as before"]
    assert modes[0] == "compile"
    assert {line.axes["mode"] for line in lines} == {"compile"}
    assert {line.notes["threads"] for line in lines} == {3}


def test_the_runs_own_threads_are_noted_with_the_machine(tmp_path: Path, bench: FakeBench) -> None:
    measure(tmp_path / "run", made.config(threads=3))
    assert all("threads" not in line.notes for line in Run.open(tmp_path / "run").journal())


def test_the_seconds_may_differ_from_call_to_call(tmp_path: Path) -> None:
    with made.begin(tmp_path / "run", made.config(limits={"run_seconds": 5})) as run:
        run.journal.append(made.line("decode", [[0.5]]))
    with made.begin(tmp_path / "run", made.config(limits={"run_seconds": 9})) as run:
        assert len(run.journal.lines) == 1
    with pytest.raises(ValueError, match=r"limits\.memory was null, is now 100"):
        OpenRun.open(tmp_path / "run", made.config(limits={"memory": 100}), fresh=False)


@pytest.mark.parametrize(
    ("precision", "run_seconds", "left_s"),
    [
        ({"max_seconds": 50}, None, 2 * 50 - 12.0),
        ({"max_seconds": 50, "max_cell_seconds": 20}, None, 2 * 40 - 12.0),
        ({"max_seconds": 5}, None, 1.0),  # batch size 1 has spent 4 of its 5 seconds, batch size 2 more than them
        ({"max_seconds": None, "max_cell_seconds": 20}, None, 2 * 40 - 12.0),
        ({"max_seconds": 50}, 30.0, 2 * 50 - 12.0),  # what is left of the run is told apart
        ({"max_seconds": None}, 30.0, None),
        ({"max_seconds": None}, None, None),
    ],
)
def test_the_time_left_for_timing(precision: dict[str, Any], run_seconds: float | None, left_s: float | None) -> None:
    config = made.config(grid=GRID, precision=precision)
    own = PairBudget(
        config=config, pair=config.pairs[0], cells=plan_cells(config), deadline=Deadline(run_seconds, now=lambda: 0.0)
    )
    assert own.timing_left_s(lambda cell: 2.0 * cell.batch_size) == left_s
