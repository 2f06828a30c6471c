from pathlib import Path

import pytest

from specgauge.sweeps.store.rundir import Run
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
