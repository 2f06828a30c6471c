"""A run directory is opened by one process, for one configuration, on one machine, or refused with nothing lost."""

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.loader import load_config
from specgauge.sweeps.store.files import StorageError, write_text_atomically
from specgauge.sweeps.store.journal import read_journal
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.writer import OpenRun
from tests.sweeps import made


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def opened(path: Path, *, fresh: bool = False, **changes: Any) -> None:
    made.begin(path, made.config(**changes), fresh=fresh).close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run with one block measured."""
    path = tmp_path / "made"
    with made.begin(path) as run:
        run.journal.append(made.line("decode", [[0.5]]))
    return path


def test_a_new_run_is_made_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "made"
    with made.begin(path):
        assert names(path) == ["acceptance", "cells.jsonl", "config.yaml", "environment.json"]
    assert load_config(path / "config.yaml") == made.config()
    assert json.loads((path / "environment.json").read_text()) == {"schema": 1, **made.ENVIRONMENT}


def test_the_same_config_resumes_the_run_whatever_its_name(path: Path) -> None:
    (path / "notes.txt").write_text("mine")
    for name in ("made", "renamed"):
        with made.begin(path, made.config(name=name)) as run:
            assert [entry.arm for entry in run.journal.lines] == ["decode"]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"seed": 7}, "seed was 0, is now 7"),
        ({"grid": {"batch_size": 1, "context": 64, "gamma": "1:2"}}, r"grid.gamma was \[1, 2, 3\], is now \[1, 2\]"),
        (
            {"pairs": [{"name": "p", "target": "embedded", "draft": "org/other"}]},
            r"pairs\[0\].draft.model was 'embedded', is now 'org/other'",
        ),
        (
            {"sampling": [{"name": "greedy", "temperature": 0}, {"name": "t1"}]},
            r"sampling\[1\].name was None, is now 't1'",
        ),
    ],
)
def test_another_config_is_refused_and_the_field_named(path: Path, changes: dict[str, Any], found: str) -> None:
    before = {name: (path / name).read_bytes() for name in ("config.yaml", "cells.jsonl", "environment.json")}
    with pytest.raises(ValueError, match=rf"^{path}: holds a run of another config: {found}.*--fresh .*--out$"):
        OpenRun(path, made.config(**changes), fresh=False)
    assert {name: (path / name).read_bytes() for name in before} == before


def effort(**changes: Any) -> dict[str, Any]:
    return {"bootstrap_replicates": 50, **changes}


def test_other_effort_is_taken_over(path: Path) -> None:
    """The blocks stay, and whoever reads the run sees what it was measured with last."""
    with made.begin(path, made.config(precision=effort(max_seconds=999.0, max_blocks=77, relative_ci=0.001))) as run:
        assert len(run.journal.lines) == 1
    kept = load_config(path / "config.yaml").precision
    assert (kept.max_seconds, kept.max_blocks, kept.relative_ci) == (999.0, 77, 0.001)
    with pytest.raises(ValueError, match=r"precision.block_samples was 5, is now 9"):
        opened(path, precision=effort(max_seconds=1.0, block_samples=9))
    assert load_config(path / "config.yaml").precision.max_seconds == 999.0


def test_only_a_run_with_results_keeps_its_config_and_machine(tmp_path: Path) -> None:
    opened(tmp_path / "made")
    opened(tmp_path / "made", seed=7)
    assert load_config(tmp_path / "made" / "config.yaml").seed == 7
    with OpenRun(tmp_path / "made", made.config(seed=7), fresh=False) as run:
        run.check_environment({**made.ENVIRONMENT, "device": "H200"})
    assert json.loads((tmp_path / "made" / "environment.json").read_text())["device"] == "H200"
    (tmp_path / "made" / "acceptance" / "p--greedy.parquet").write_bytes(b"")
    with pytest.raises(ValueError, match="seed was 7, is now 0"):
        opened(tmp_path / "made")


def test_fresh_renames_the_old_run(path: Path, tmp_path: Path) -> None:
    opened(path, seed=7, fresh=True)
    assert read_journal(path / "cells.jsonl").lines == ()
    assert load_config(path / "config.yaml").seed == 7
    assert len(read_journal(tmp_path / "made.old-1" / "cells.jsonl").lines) == 1
    opened(path, fresh=True)
    assert names(tmp_path) == ["made", "made.old-1", "made.old-2"]
    opened(tmp_path / "new", fresh=True)
    assert "new.old-1" not in names(tmp_path)


@pytest.mark.parametrize("damage", ["config.yaml", "environment.json"])
def test_a_damaged_run_is_refused_and_can_be_put_aside(path: Path, damage: str) -> None:
    (path / damage).write_text("{: \n")
    with pytest.raises(ValueError, match=rf"^{path / damage}[^\n]*--fresh[^\n]*$"):
        opened(path)
    opened(path, fresh=True)


def test_a_second_writer_and_results_without_a_config_are_refused(path: Path, tmp_path: Path) -> None:
    with made.begin(path):
        assert len(Run.open(path).journal()) == 1
        for fresh in (False, True):
            with pytest.raises(ValueError, match="another specgauge process is writing this run"):
                made.begin(path, fresh=fresh)
        assert names(tmp_path) == ["made"]
    (path / "config.yaml").unlink()
    with pytest.raises(ValueError, match=r"there are results but config.yaml is missing; start anew with --fresh"):
        opened(path)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    ("file", "out", "found"),
    [
        ("made", "made", "is a file, a run needs a directory; give another --out"),
        ("made", "made/below", "cannot write there: .*; give another --out"),
        ("made/thesis.tex", "made", r"holds files that are no run of specgauge \(thesis.tex\); give another --out"),
        ("made/config.yaml", "made", r"holds files that are no run of specgauge \(config.yaml\); give another --out"),
        ("", "made", "this directory is not writable; change its permissions, or give another --out"),
        ("other", "x" * 300, r"[^\n]+"),
    ],
)
def test_what_cannot_be_a_run_is_refused_and_left_alone(
    tmp_path: Path, file: str, out: str, found: str, fresh: bool
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    if file:
        (tmp_path / file).write_text("mine")
    else:
        (tmp_path / out).mkdir(mode=0o500)
        if os.access(tmp_path / out, os.W_OK):
            pytest.skip("this user can write anywhere")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(tmp_path / out))}: {found}$"):
        OpenRun(tmp_path / out, made.config(), fresh=fresh)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"device": "H200"}, "device 'cpu', here it is 'H200'"),
        ({"cpu": None}, "cpu 'Some CPU', here it is None"),
        ({"cuda": "13.0"}, "cuda None, here it is '13.0'"),
        ({"packages": {"torch": "3"}}, "packages.torch '2.13.0', here it is '3'"),
    ],
)
def test_another_machine_is_refused(path: Path, changes: dict[str, Any], found: str) -> None:
    with OpenRun(path, made.config(), fresh=False) as run:
        run.check_environment({**made.ENVIRONMENT, "commit": "another", "temperature_c": 50})
        with pytest.raises(ValueError, match=f"measured with {found}; start anew with --fresh"):
            run.check_environment({**made.ENVIRONMENT, **changes})


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "predictions.csv"
    write_text_atomically(path, "old\n")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"predictions.csv: cannot write, No space left on device: .* run the same"):
        write_text_atomically(path, "new\n")
    assert (path.read_text(), names(tmp_path)) == ("old\n", ["predictions.csv"])
