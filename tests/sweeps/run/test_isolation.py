"""Workers that die or are interrupted, in real processes: what is lost, what is told, what the next run measures."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from specgauge.configs.loader import config_to_yaml
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run import isolation, runner, worker
from specgauge.sweeps.run.isolation import measure_apart
from specgauge.sweeps.run.worker import WorkerOutcome
from specgauge.sweeps.store.checkpoint import MARK
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made, odd_workers
from tests.sweeps.apart import (
    CONFIG,
    FIRST,
    KILLED,
    PATIENCE_S,
    SECOND,
    by_cell,
    is_alive,
    measured,
    pairs,
    wait_for,
    worker_of,
)
from tests.sweeps.fake_bench import FakeBench


@pytest.fixture(scope="module", autouse=True)
def paths() -> Iterator[None]:
    """What workers have to find, and threads that leave the machine to others."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", odd_workers.PATHS)
        patched.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """In this process, for the run that goes on."""
    return FakeBench().take_over(monkeypatch)


THREE = made.config(pairs=pairs("loads", "writes", "fine"), grid={"batch_size": 1, "context": [64, 65], "gamma": "1:2"})
SEGFAULT = "its process got SIGSEGV, while writing texts, writes, greedy"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """The exit code and the run."""
    path = tmp_path_factory.mktemp("pairs") / "run"
    with pytest.MonkeyPatch.context() as patched, redirect_stdout(io.StringIO()):
        patched.setattr(isolation, "WORKER", odd_workers.worker("fake deaths"))
        return runner.run(THREE, out=path, apart=True), path


class TestOnePairOfSeveral:
    """With the fake bench, in real processes: one pair dies loading, one writing its only texts, one is fine."""

    def test_the_others_are_measured(self, ended: tuple[int, Path]) -> None:
        code, path = ended
        assert code == 1
        rows = Run.open(path).predictions().to_dict("records")
        assert {(row["pair"], row["status"], row["reason"]) for row in rows} == {
            ("loads", "killed", f"{KILLED}, while loading loads"),
            ("writes", "unmeasured", f"killed: {SEGFAULT}"),
            ("fine", "ok", ""),
        }
        assert not (path / MARK).exists()

    def test_the_warnings_say_so(self, ended: tuple[int, Path]) -> None:
        _, path = ended
        found = {(warning["code"], warning["message"]) for warning in Run.open(path).warnings}
        assert (
            "killed",
            f"pair loads: 2 of 2 cells killed, first batch size 1, context 64, argmax, decode: {KILLED}, while loading "
            "loads",
        ) in found
        assert (
            "acceptance_missing",
            f"pair writes, sampling greedy: no acceptance: killed: {SEGFAULT}",
        ) in found
        assert (
            "acceptance_missing",
            f"pair loads, sampling greedy: no acceptance: killed: {KILLED}, while loading loads",
        ) in found
        assert not any(code == "not_decoded" for code, _ in found)

    def test_the_next_run_measures_them(self, ended: tuple[int, Path], bench: FakeBench) -> None:
        _, path = ended
        lines = Run.open(path).journal()
        cells = {pair: [cell.id for cell in plan_cells(THREE) if cell.pair == pair] for pair in ("loads", "writes")}
        statuses = by_cell(lines)
        assert [statuses[cell] for cell in cells["loads"] + cells["writes"]] == [{"killed"}] * 2 + [{"ok"}] * 2
        assert not Run.open(path).has_acceptance("writes", "greedy")

        assert [worker.work(path, pair, []) for pair in cells] == [WorkerOutcome()] * 2
        statuses = by_cell(Run.open(path).journal())
        assert [statuses[cell] for cell in cells["loads"] + cells["writes"]] == [{"ok"}] * 4
        assert {line.cell for line in Run.open(path).journal()[len(lines) :]} == set(cells["loads"])
        assert Run.open(path).has_acceptance("loads", "greedy")
        assert Run.open(path).has_acceptance("writes", "greedy")


@dataclass(frozen=True, kw_only=True)
class Paused:
    """A `specgauge run` in a process group of its own, whose worker waits in the second cell."""

    run: Path
    process: subprocess.Popen[str]
    worker: int

    def wait(self) -> str:
        """What it printed on stderr by its end; nothing on stdout."""
        out, errors = self.process.communicate(timeout=PATIENCE_S)
        assert out == ""
        return errors


@pytest.fixture
def paused(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Paused]:
    """`request.param`: further accidents of the worker."""
    config, run = tmp_path / "config.yaml", tmp_path / "run"
    config.write_text(config_to_yaml(CONFIG))
    command = odd_workers.command_line("fake", *getattr(request, "param", ()), f"pause in {SECOND.id}")
    with subprocess.Popen(
        [sys.executable, *command, "run", str(config), "--out", str(run)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            worker_or_end = wait_for(lambda: worker_of(run, SECOND) or process.poll() is not None)
            assert process.poll() is None, process.communicate()
            yield Paused(run=run, process=process, worker=worker_or_end)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("to_whom", ["everybody", "the parent alone", "the parent, by a scheduler"])
def test_an_interruption_keeps_whole_lines_and_the_run_goes_on(to_whom: str, paused: Paused, bench: FakeBench) -> None:
    if to_whom == "everybody":
        os.killpg(paused.process.pid, signal.SIGINT)
    else:
        paused.process.send_signal(signal.SIGINT if to_whom == "the parent alone" else signal.SIGTERM)
    errors, run = paused.wait(), paused.run
    assert paused.process.returncode == 130
    assert errors.splitlines()[-1].startswith(
        f"specgauge: interrupted; every finished block is kept in {run}, go on with: specgauge run"
    )
    assert "Traceback" not in errors
    assert not is_alive(paused.worker)
    assert not (run / MARK).exists()
    assert (run / "cells.jsonl").read_bytes().endswith(b"\n")
    before = Run.open(run).journal()
    assert by_cell(before) == {FIRST.id: {"ok"}}

    assert worker.work(run, "p", []) == WorkerOutcome()
    after = Run.open(run).journal()
    assert after[: len(before)] == before
    assert by_cell(after) == {FIRST.id: {"ok"}, SECOND.id: {"ok"}}
    assert len(measured(after)) == len(set(measured(after)))


@pytest.mark.parametrize("paused", [(), ("deaf",)], indirect=True, ids=["at a terminal", "in the background"])
def test_a_worker_does_not_outlive_who_started_it(paused: Paused) -> None:
    paused.process.kill()
    paused.wait()
    wait_for(lambda: not (paused.run / MARK).exists())  # it ended as after Ctrl-C, not by a signal
    wait_for(lambda: not is_alive(paused.worker))
    with OpenRun.open(paused.run, CONFIG, fresh=False) as opened:
        assert {line.cell for line in opened.journal.lines} == {FIRST.id}


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run"
    config = made.config(grid={"batch_size": [1, 2, 4], "context": [64, 65, 66], "gamma": "1:3"})
    made.begin(path, config).close()
    monkeypatch.setattr(isolation, "WORKER", odd_workers.worker("fake", "full disk"))
    with pytest.raises(StorageError, match=r"cells\.jsonl: cannot write, File too large: what was measured before"):
        measure_apart(path, config, "p", say=print)
    content = (path / "cells.jsonl").read_bytes()
    assert content.endswith(b"\n")
    assert odd_workers.JOURNAL_BYTES - 1000 < len(content) <= odd_workers.JOURNAL_BYTES
    assert not (path / MARK).exists()
