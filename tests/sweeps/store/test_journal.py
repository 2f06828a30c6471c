import json
import math
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.configs.canonical import short_hash
from specgauge.sweeps.store.journal import Journal, read_journal

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
        "warmup_s", "device_s", "at", "notes", "checksum",
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


@settings(deadline=None, max_examples=40)
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
    other(samples_s=[[10**400]]), other(axes={**AXES, "context": 10**400}),
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
