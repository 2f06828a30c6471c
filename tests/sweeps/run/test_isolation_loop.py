"""The loop that starts workers, over workers that are no processes: what is recorded, left alone, told and raised."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.analysis.predictions import predict
from specgauge.sweeps.plan import Cell
from specgauge.sweeps.run import isolation, runner
from specgauge.sweeps.run.isolation import measure_apart
from specgauge.sweeps.run.worker import WorkerOutcome
from specgauge.sweeps.store.checkpoint import MARK, Checkpoint
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.rundir import Run
from tests.sweeps import made
from tests.sweeps.apart import ARMS, CONFIG, FIRST, KILLED, SECOND, by_cell, pairs


@dataclass
class Script:
    """In the place of `isolation._start`: what each worker does, and which cells each was told to leave alone."""

    steps: list[Callable[[Path], tuple[int, WorkerOutcome | None]]]
    left_alone: list[list[str]] = field(default_factory=list)

    def __call__(self, run: Path, pair: str, left_alone: list[str]) -> tuple[int, WorkerOutcome | None]:
        self.left_alone.append(list(left_alone))
        return self.steps.pop(0)(run)


def ends(**outcome: Any) -> Callable[[Path], tuple[int, WorkerOutcome | None]]:
    return lambda run: (0, WorkerOutcome(**outcome))


def dies(
    code: int, cell: Cell | None = None, arm: str = "decode", block: int = 0, stage: str | None = None
) -> Callable[[Path], tuple[int, WorkerOutcome | None]]:
    """A death in a block, in a stage, or before anything was marked."""

    def step(run: Path) -> tuple[int, WorkerOutcome | None]:
        if cell is not None:
            Checkpoint(run).block(cell.id, arm, block)
        elif stage is not None:
            Checkpoint(run).stage(stage)
        return code, None

    return step


class TestTheLoop:
    """`measure_apart` over workers that are no processes."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        made.begin(tmp_path / "run", CONFIG).close()
        return tmp_path / "run"

    @pytest.fixture
    def script(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
        def use(*steps: Callable[[Path], tuple[int, WorkerOutcome | None]]) -> Script:
            found = Script(list(steps))
            monkeypatch.setattr(isolation, "_start", found)
            return found

        return use

    def test_what_a_worker_found_is_handed_on(self, path: Path, script: Callable[..., Script]) -> None:
        outcome: dict[str, Any] = {"bad_input": "no such model", "acceptance_reasons": {"greedy": "oom: full"}}
        script(ends(**outcome))
        assert measure_apart(path, CONFIG, "p", say=print) == WorkerOutcome(**outcome)

    def test_cells_it_died_in_are_left_alone(
        self, path: Path, script: Callable[..., Script], capsys: pytest.CaptureFixture[str]
    ) -> None:
        steps = script(dies(-11, FIRST, "draft"), dies(1, SECOND, "verify:2", 1), ends(verify_reasons={"a": "b"}))
        outcome = measure_apart(path, CONFIG, "p", say=print)
        assert outcome == WorkerOutcome(failed=True, verify_reasons={"a": "b"})
        assert steps.left_alone == [[], [FIRST.id], [FIRST.id, SECOND.id]]
        lines = [(line.cell, line.arm, line.block, line.reason) for line in Run.open(path).journal()]
        rest = [arm for arm in ARMS if arm != "verify:2"]
        assert sorted(lines) == sorted(
            [(FIRST.id, arm, 0, "its process got SIGSEGV") for arm in ARMS]
            + [(SECOND.id, arm, 0, "its process ended with code 1") for arm in rest]
            + [(SECOND.id, "verify:2", 1, "its process ended with code 1")]
        )
        assert capsys.readouterr().out == (
            "pair p: killed: its process got SIGSEGV\npair p: killed: its process ended with code 1\n"
        )
        assert not (path / MARK).exists()

    def test_a_block_that_was_finished_stays(self, path: Path, script: Callable[..., Script]) -> None:
        """It died after a block was on the disk and before the next was begun."""
        with made.begin(path, CONFIG) as run:
            run.journal.append({"axes": FIRST.axes, "arm": "decode", "block": 0, "status": "ok", "samples_s": [[1.0]]})
        script(dies(-9, FIRST, "decode", 0), ends())
        assert measure_apart(path, CONFIG, "p", say=print).failed
        lines = {(line.arm, line.block): line.status for line in Run.open(path).journal()}
        assert lines == {("decode", 0): "ok"} | {(arm, 0): "killed" for arm in ARMS if arm != "decode"}

    def test_samples_before_a_death_count_and_the_death_is_told(
        self, path: Path, script: Callable[..., Script]
    ) -> None:
        with made.begin(path, CONFIG) as run:
            for cell in (FIRST, SECOND):
                for arm in ARMS:
                    made.record_blocks(run.journal, cell, arm, 2, 1.0)
        script(dies(-9, SECOND, "verify:1", 3), ends())
        measure_apart(path, CONFIG, "p", say=print)
        made_up = made.acceptance_frame(8, 16)
        made_up.to_parquet(path / "acceptance" / "p--greedy.parquet")
        found = predict(Run.open(path))
        assert {row["status"] for row in found.rows} == {"ok"}
        (warning,) = [one for one in found.warnings if one["code"] == "killed"]
        assert warning["message"] == (
            f"pair p: 1 of 2 cells killed, first batch size 1, context 65, argmax, verify:1: {KILLED}"
        )

    def test_a_death_in_a_cell_that_is_left_alone_ends_the_pair(
        self, path: Path, script: Callable[..., Script]
    ) -> None:
        script(dies(-9, FIRST), dies(-9, FIRST))
        outcome = measure_apart(path, CONFIG, "p", say=print)
        words = f"killed: {KILLED}, while timing decode"
        assert outcome == WorkerOutcome(failed=True, died=words, acceptance_reasons={"greedy": words})
        assert by_cell(Run.open(path).journal()) == {FIRST.id: {"killed"}, SECOND.id: {"killed"}}
        assert not (path / MARK).exists()

    def test_a_death_while_decoding_says_which_texts_are_missing(
        self, tmp_path: Path, script: Callable[..., Script]
    ) -> None:
        config = made.config(validate={})
        made.write_run(tmp_path / "run", config, {"greedy": made.acceptance_frame(8, 16)})
        before = (tmp_path / "run" / "cells.jsonl").read_bytes()
        script(dies(-15, stage="decoding end to end"))
        words = "killed: its process got SIGTERM, while decoding end to end"
        assert measure_apart(tmp_path / "run", config, "p", say=print) == WorkerOutcome(
            failed=True, died=words, verify_reasons={"every cell": words}
        )
        assert (tmp_path / "run" / "cells.jsonl").read_bytes() == before

    @pytest.mark.parametrize(
        ("step", "error", "message"),
        [
            (ends(refused="run: measured with threads 2, here it is 3"), ValueError, "run: measured with threads 2, "),
            (ends(storage_error="cells.jsonl: cannot write"), StorageError, "cells.jsonl: cannot write"),
            (ends(crash="KeyError: 'gone'"), RuntimeError, "pair p: KeyError: 'gone'"),
            (dies(130, FIRST), KeyboardInterrupt, ""),
            (dies(-2, FIRST), KeyboardInterrupt, ""),
        ],
    )
    def test_what_ends_the_whole_run(
        self,
        path: Path,
        script: Callable[..., Script],
        step: Callable[[Path], tuple[int, WorkerOutcome | None]],
        error: type[BaseException],
        message: str,
    ) -> None:
        script(step)
        with pytest.raises(error) as caught:
            measure_apart(path, CONFIG, "p", say=print)
        assert str(caught.value).startswith(message)
        assert not (path / MARK).exists()
        assert Run.open(path).journal() == ()

    def test_workers_that_never_live_long_enough_are_one_line(
        self, tmp_path: Path, script: Callable[..., Script]
    ) -> None:
        """A torch that this processor cannot run, for instance."""
        script(dies(-4), dies(-4))
        with pytest.raises(ChildProcessError) as caught:
            runner.run(made.config(pairs=pairs("p", "q")), out=tmp_path / "new", apart=True)
        words = "killed: its process got SIGILL, while starting"
        assert str(caught.value) == f"pair p: {words}; pair q: {words}"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, KILLED),
        (-15, "its process got SIGTERM"),
        (-200, "its process got signal 200"),
        (0, "its process ended with code 0"),
    ],
)
def test_how_a_worker_ended_in_words(code: int, words: str) -> None:
    assert isolation._death(code) == words


@pytest.mark.parametrize("stream", [None, io.StringIO()])
def test_a_stderr_that_is_no_file_swallows_what_a_worker_prints(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    assert isolation._stderr() == subprocess.DEVNULL
