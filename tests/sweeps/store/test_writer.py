"""A journal and a run directory: opened by one process, for one config, on one machine, or refused, nothing lost."""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.configs.canonical import short_hash
from specgauge.configs.loader import load_config
from specgauge.sweeps.store.files import StorageError, write_text_atomically
from specgauge.sweeps.store.journal import Journal, read_journal
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
    return {"bootstrap_replicates": 200, **changes}


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
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(StorageError, match=r"predictions.csv: cannot write, No space left on device: .* run the same"):
        write_text_atomically(path, "new\n")
    assert (path.read_text(), names(tmp_path)) == ("old\n", ["predictions.csv"])


CONFIG = "0123456789ab"
AXES = {"pair": "embedded", "mode": "eager", "chain": "argmax", "batch_size": 1, "context": 64}
CELL = short_hash(AXES)


def record(block: int = 0, *, arm: str = "decode", status: str = "ok", **more: Any) -> dict[str, Any]:
    return {"axes": AXES, "arm": arm, "block": block, "status": status, "samples_s": [[0.5], [0.25]], **more}


def write(path: Path, blocks: int) -> None:
    with closing(Journal(path, config=CONFIG)) as journal:
        for block in range(blocks):
            journal.append(record(block))


def test_lines_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    with closing(Journal(path, config=CONFIG)) as journal:
        written = journal.append(record(3, arm="verify:4", first_call_s=0.75, warmup_s=[[1.0]], notes={"hot": True}))
    (line,) = read_journal(path).lines
    assert line == written
    assert (line.key, line.samples_s, line.warmup_s) == ((CELL, "verify:4", 3), ((0.5,), (0.25,)), ((1.0,),))
    assert (line.first_call_s, line.notes, line.config) == (0.75, {"hot": True}, CONFIG)
    assert set(json.loads(path.read_text())) == {
        "schema", "config", "cell", "axes", "arm", "block", "status", "reason", "samples_s", "first_call_s",
        "warmup_s", "device_s", "at", "notes", "disturbance", "checksum",
    }  # fmt: skip


def test_done_means_a_result(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "j", config=CONFIG)) as journal:
        for block, status in enumerate(["ok", "oom", "skipped", "failed", "killed"]):
            journal.append(record(block, status=status))
        assert [journal.done(CELL, "decode", block) for block in range(6)] == [True, True, True, False, False, False]
        assert not journal.done(CELL, "draft", 0)
        journal.append(record(3))
        assert journal.done(CELL, "decode", 3)
        assert len(journal.lines) == 6
        assert journal.latest[CELL, "decode", 3].status == "ok"


@settings(max_examples=40)
@given(cut=st.integers(min_value=0))
def test_a_journal_cut_anywhere_opens_with_its_whole_lines(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "cells.jsonl"
    write(path, 3)
    content = path.read_bytes()
    cut %= len(content) + 1
    path.write_bytes(content[:cut])
    whole = content[: content[:cut].rfind(b"\n") + 1]
    found = read_journal(path)
    assert ([line.block for line in found.lines], found.torn_bytes) == ([*range(whole.count(b"\n"))], cut - len(whole))
    with closing(Journal(path, config=CONFIG)) as journal:
        assert path.read_bytes() == whole
        journal.append(record(9))
    assert read_journal(path).lines[-1].block == 9


def other(**changes: Any) -> bytes:
    line = {**record(), "schema": 1, "config": CONFIG, "cell": CELL, "first_call_s": None, "notes": {}}
    fields = {**line, **changes}
    return json.dumps({**fields, "checksum": short_hash(fields)}).encode()


ALTERED = [
    b'{"schema": 1, "conf', b"\xff\xfe", b"", b"\x00\x00", b"[1]", b"{}", b"[" * 100_000, b'{"checksum": 1}',
    other().replace(b"0.25", b"0.125"), other().replace(b"0.25", b"NaN"), other().replace(b"0.25", b"1e999"),
    other().replace(b'"checksum"', b'"check"'), other().replace(b"}", b', "block": 1}'), other()[:-2] + b"1}",
]  # fmt: skip


@pytest.mark.parametrize("altered", ALTERED)
def test_a_line_that_is_not_as_written_is_left_out_and_measured_again(tmp_path: Path, altered: bytes) -> None:
    path = tmp_path / "cells.jsonl"
    write(path, 3)
    first, _, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + altered + b"\n" + last)
    found = read_journal(path)
    assert ([line.block for line in found.lines], found.altered, found.torn_bytes) == ([0, 2], (2,), 0)
    with closing(Journal(path, config=CONFIG)) as journal:
        assert [journal.done(CELL, "decode", block) for block in range(3)] == [True, False, True]
        journal.append(record(1))
    assert [line.block for line in read_journal(path).lines] == [0, 2, 1]


DAMAGES = [
    other(samples_s=[[0.0]]), other(samples_s=[[1e308]]), other(samples_s=[[1.0, 2.0]]),
    other(samples_s=[["1"]]), other(samples_s=[[]]), other(samples_s=[1.0]), other(samples_s="1"),
    other(samples_s=[[None]]), other(first_call_s=-1.0), other(first_call_s=True), other(status="fine"),
    other(arm="verify:0"), other(arm=3), other(block=True), other(block=-1), other(reason=3), other(notes=[]),
    other(axes={**AXES, "context": 65}), other(axes={"pair": "x"}), other(axes={**AXES, "pair": 1}),
    other(axes={**AXES, "batch_size": "1"}), other(gama=4), other(sample_s=[]), other(schema=2),
    other(samples_s=[[10**400]]),
    other(block=10**300), other(axes={**AXES, "context": 10**400}),
]  # fmt: skip


def test_what_was_never_a_line_of_this_release_is_named(tmp_path: Path, snapshot: Callable[[str, str], None]) -> None:
    path = tmp_path / "cells.jsonl"
    write(path, 2)
    first, last = path.read_bytes().splitlines(keepends=True)
    told = []
    for middle in DAMAGES:
        path.write_bytes(first + middle + b"\n" + last)
        with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
            Journal(path, config=CONFIG)
        line = str(error.value).replace(f"{path}", path.name)
        assert line.startswith(f"{path.name}, line 2")
        told.append(re.sub(r"not JSON: .*?;|maximum recursion.*?;", "not JSON: …;", line))
        assert path.read_bytes() == first + middle + b"\n" + last
    snapshot("journal_errors", "".join(f"{line}\n" for line in told))


def test_what_is_refused_leaves_the_journal_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    write(path, 1)
    kept = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"a line was measured for config 0123456789ab, this run's is ba9876543210; .*--fresh"
    ):
        Journal(path, config="ba9876543210")
    with closing(Journal(path, config=CONFIG)) as journal:
        with pytest.raises(ValueError, match="another specgauge process is writing this run"):
            Journal(path, config=CONFIG)
        for value in (math.nan, math.inf):
            with pytest.raises(ValueError, match=r"refused a line, samples_s\[0\]\[0\]: expected a finite number"):
                journal.append(record(1, samples_s=[[value]]))
            with pytest.raises(ValueError, match="not JSON compliant"):
                journal.append(record(1, notes={"x": value}))
        assert len(read_journal(path).lines) == len(journal.lines) == 1
    assert path.read_bytes() == kept
    with pytest.raises(ValueError, match="cannot open it for writing: Is a directory"):
        Journal(tmp_path, config=CONFIG)
    with pytest.raises(ValueError, match="cannot read the journal: No such file"):
        read_journal(tmp_path / "absent")
