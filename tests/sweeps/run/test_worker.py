"""What a worker does, in this process: its outcome, its exit code, and the mark of where it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.loader import config_to_yaml
from specgauge.configs.schema import Config
from specgauge.sweeps.run import isolation, runner, worker
from specgauge.sweeps.run.worker import WorkerOutcome
from specgauge.sweeps.store.checkpoint import MARK, Checkpoint, read_checkpoint
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made
from tests.sweeps.apart import ARMS, CONFIG, FIRST, KILLED, pairs, specgauge
from tests.sweeps.fake_bench import FakeBench


@pytest.mark.parametrize("content", ["", '{"stage": "loa', "[1]", '{"stage": 3}'])
def test_a_mark_that_is_damaged_is_none(tmp_path: Path, content: str) -> None:
    assert read_checkpoint(tmp_path) is None
    (tmp_path / MARK).write_text(content)
    assert read_checkpoint(tmp_path) is None


def test_a_mark_says_where_work_is_until_it_ends(tmp_path: Path) -> None:
    with Checkpoint(tmp_path) as mark:
        mark.stage("loading p")
        assert read_checkpoint(tmp_path) == {"stage": "loading p", "pid": os.getpid()}
        mark.block("c", "decode", 2)
        assert read_checkpoint(tmp_path) == {
            "stage": "timing decode", "cell": "c", "arm": "decode", "block": 2, "pid": os.getpid()
        }  # fmt: skip

    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    return FakeBench().take_over(monkeypatch)


class TestTheWork:
    """What a worker does, in this process and with the fake bench."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        made.begin(tmp_path / "run", CONFIG).close()
        return tmp_path / "run"

    def test_a_pair_is_measured_and_nothing_is_left_to_say(self, path: Path, bench: FakeBench) -> None:
        left = path.parent / "outcome.json"
        assert worker.main([str(path), "p", str(left)]) == 0
        assert worker.read_outcome(left) == WorkerOutcome()
        assert len(bench.measured) == 2 * len(ARMS) * 3
        assert worker.read_outcome(path.parent / "nothing") is None

    def test_cells_to_be_left_alone_are(self, path: Path, bench: FakeBench) -> None:
        with OpenRun.open(path, CONFIG, fresh=False) as run:
            isolation._append(run, FIRST, "decode", 0, KILLED)
        assert worker.work(path, "p", [FIRST.id]) == WorkerOutcome()
        assert {context for _, context, _, _ in bench.measured} == {65}
        bench.measured.clear()
        assert worker.work(path, "p", []) == WorkerOutcome()
        assert {context for _, context, _, _ in bench.measured} == {64}

    def test_other_threads_are_refused(self, path: Path, bench: FakeBench) -> None:
        worker.work(path, "p", [])
        bench.environment["threads"] = 3
        refused = worker.work(path, "p", []).refused
        assert refused is not None
        assert refused.startswith(f"{path}: measured with threads 2, here it is 3; start anew with --fresh")

    def test_what_nobody_foresaw_is_told_with_its_kind(
        self, path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def gone(threads: int | None) -> Mapping[str, Any]:
            raise KeyError("gone")

        monkeypatch.setattr("specgauge.sweeps.run.pair.prepare_machine", gone)
        monkeypatch.setenv("SPECGAUGE_DEBUG", "0")
        assert worker.work(path, "p", []) == WorkerOutcome(crash="KeyError: 'gone'")
        assert capsys.readouterr().err == ""
        monkeypatch.setenv("SPECGAUGE_DEBUG", "1")
        assert worker.work(path, "p", []) == WorkerOutcome(crash="KeyError: 'gone'")
        assert capsys.readouterr().err.startswith("Traceback")

    def test_an_interruption_is_its_exit_code(self, path: Path, bench: FakeBench) -> None:
        bench.interrupt_after = 5
        assert worker.main([str(path), "p", str(path.parent / "outcome.json")]) == 130
        assert not (path.parent / "outcome.json").exists()
        assert len(Run.open(path).journal()) == 5
        assert not (path / MARK).exists()


class TestBadInput:
    """Told as it is where everything is measured in one process."""

    @pytest.fixture(autouse=True)
    def here(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Workers that are no processes; their outcome takes the same way."""

        def start(run: Path, pair: str, left_alone: list[str]) -> tuple[int, WorkerOutcome | None]:
            left = run.parent / f"{pair}.json"
            return worker.main([str(run), pair, str(left), *left_alone]), worker.read_outcome(left)

        monkeypatch.setattr(isolation, "_start", start)

    def lines(self, config: Config, path: Path, apart: bool, capfd: pytest.CaptureFixture[str]) -> tuple[str, str]:
        """(how it ended, what of it stands on stderr)."""
        try:
            ended = str(runner.run(config, out=path, apart=apart))
        except ValueError as error:
            ended = str(error)
        return ended, "".join(line for line in capfd.readouterr().err.splitlines() if line.startswith("not measured"))

    def test_weights_that_are_not_there_are_the_same_line(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        from tests.bench.tiny_checkpoints import llama, save, word_tokenizer

        target = save(tmp_path / "target", llama(), word_tokenizer())
        (target / "model.safetensors").unlink()
        config = made.config(pairs=[{"name": "p", "target": str(target), "draft": str(target)}], threads=1)
        alone, apart = (self.lines(config, tmp_path / name, name == "apart", capfd) for name in ("alone", "apart"))
        assert alone == apart
        assert alone[0].startswith("pair 'p' target: ")
        assert specgauge_line(config, tmp_path) == (2, f"specgauge: {alone[0]}")

    def test_a_pair_that_cannot_be_loaded_loses_no_other(
        self, tmp_path: Path, bench: FakeBench, capfd: pytest.CaptureFixture[str]
    ) -> None:
        bench.load_error = {"bad": ValueError("pair 'bad': target and draft use different tokenizers")}
        config = made.config(pairs=pairs("bad", "p"))
        ended, told = self.lines(config, tmp_path / "run", True, capfd)
        assert (ended, told) == ("2", "not measured: pair 'bad': target and draft use different tokenizers")
        rows = Run.open(tmp_path / "run").predictions().to_dict("records")
        assert {(row["pair"], row["status"]) for row in rows} == {("bad", "unmeasured"), ("p", "ok")}

    def test_a_directory_that_is_no_model_needs_no_worker(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(isolation, "_start")
        (tmp_path / "empty").mkdir()
        config = made.config(pairs=[{"name": "p", "target": str(tmp_path / "empty"), "draft": "embedded"}])
        words = f"pair 'p': target '{tmp_path / 'empty'}' is not a model directory: it has no config.json"
        assert specgauge_line(config, tmp_path) == (2, f"specgauge: {words}")


def specgauge_line(config: Config, folder: Path) -> tuple[int, str]:
    """The exit code and the last line of `specgauge run`."""
    (folder / "config.yaml").write_text(config_to_yaml(config))
    code, _, errors = specgauge(folder / "stderr", "run", folder / "config.yaml", "--out", folder / "line")
    return code, errors.splitlines()[-1]
