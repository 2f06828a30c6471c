import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.configs.canonical import short_hash
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.journal import Journal, read_journal

CONFIG = "0123456789ab"
AXES = {"pair": "embedded", "mode": "eager", "chain": "argmax", "batch_size": 1, "context": 64}
CELL = short_hash(AXES)


def record(block: int = 0, *, arm: str = "decode", status: str = "ok", **more: Any) -> dict[str, Any]:
    return {"axes": AXES, "arm": arm, "block": block, "status": status, "samples_s": [[0.5], [0.25]], **more}


def write(path: Path, blocks: int) -> None:
    with Journal.open(path, config=CONFIG) as journal:
        for block in range(blocks):
            journal.append(record(block))


def test_lines_come_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    with Journal.open(path, config=CONFIG) as journal:
        written = journal.append(record(3, arm="verify:4", first_call_s=0.75, warmup_s=[[1.0]], notes={"hot": True}))
    (line,) = read_journal(path).lines
    assert line == written
    assert (line.key, line.samples_s, line.warmup_s) == ((CELL, "verify:4", 3), ((0.5,), (0.25,)), ((1.0,),))
    assert (line.first_call_s, line.notes, line.config) == (0.75, {"hot": True}, CONFIG)
    assert set(json.loads(path.read_text())) == {
        "schema", "config", "cell", "axes", "arm", "block", "status", "reason", "samples_s", "first_call_s",
        "warmup_s", "device_s", "at", "notes",
    }  # fmt: skip


def test_done_means_a_result(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "j", config=CONFIG) as journal:
        for block, status in enumerate(["ok", "oom", "skipped", "failed", "killed"]):
            journal.append(record(block, status=status))
        assert [journal.done(CELL, "decode", block) for block in range(6)] == [True, True, True, False, False, False]
        assert not journal.done(CELL, "draft", 0)
        journal.append(record(3))
        assert journal.done(CELL, "decode", 3)
        assert len(journal.lines) == 6
        assert journal.latest[CELL, "decode", 3].status == "ok"


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_torn_last_line_is_passed_over_and_cut_off_before_the_next_append(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cells.jsonl"
    write(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + lines[2][:kept])

    content = read_journal(path)
    assert [line.block for line in content.lines] == [0, 1]
    assert content.torn_bytes == len(lines[2][:kept])
    with Journal.open(path, config=CONFIG) as journal:
        assert path.read_bytes() == lines[0] + lines[1]
        assert not journal.done(CELL, "decode", 2)
        journal.append(record(2))
    assert [line.block for line in read_journal(path).lines] == [0, 1, 2]


@settings(deadline=None, max_examples=40)
@given(cut=st.integers(min_value=0))
def test_a_journal_cut_anywhere_opens_with_its_whole_lines(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "cells.jsonl"
    write(path, 3)
    content = path.read_bytes()
    cut %= len(content) + 1
    path.write_bytes(content[:cut])
    with Journal.open(path, config=CONFIG) as journal:
        assert len(journal.lines) == content[:cut].count(b"\n")
        journal.append(record(9))
    assert read_journal(path).lines[-1].block == 9


def other(**changes: Any) -> bytes:
    line = {**record(), "schema": 1, "config": CONFIG, "cell": CELL, "first_call_s": None, "notes": {}}
    return json.dumps({**line, **changes}).encode()


DAMAGES = [
    b'{"schema": 1, "conf', b"\xff\xfe", b"", b"\x00\x00", b"[1]", b"{}", other(samples_s=[[math.nan]]),
    other(samples_s=[["1"]]), other(samples_s=[[]]), other(samples_s=[1.0]), other(samples_s="1"),
    other(samples_s=[[None]]), other(first_call_s=-1.0), other(first_call_s=True), other(status="fine"),
    other(arm="verify:0"), other(arm=3), other(block=True), other(block=-1), other(reason=3), other(notes=[]),
    other(axes={**AXES, "context": 65}), other(axes={"pair": "x"}), other(axes={**AXES, "pair": 1}),
    other(axes={**AXES, "batch_size": "1"}), other(gama=4), other(sample_s=[]), other(schema=2), b"[" * 100_000,
]  # fmt: skip


def test_damage_in_the_middle_names_the_line(tmp_path: Path, snapshot: Callable[[str, str], None]) -> None:
    path = tmp_path / "cells.jsonl"
    write(path, 2)
    first, last = path.read_bytes().splitlines(keepends=True)
    told = []
    for middle in DAMAGES:
        path.write_bytes(first + middle + b"\n" + last)
        with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
            Journal.open(path, config=CONFIG)
        line = str(error.value).replace(f"{path}", path.name)
        assert line.startswith(f"{path.name}, line 2")
        told.append(re.sub(r"not JSON: .*?;|maximum recursion.*?;", "not JSON: …;", line))
        assert path.read_bytes() == first + middle + b"\n" + last
    snapshot("journal_errors", "".join(f"{line}\n" for line in told))


def test_lines_of_another_config_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "j", 1)
    with pytest.raises(
        ValueError, match=r"line 1: measured for config 0123456789ab, this run's is ba9876543210; .*--fresh"
    ):
        Journal.open(tmp_path / "j", config="ba9876543210")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_is_refused_and_nothing_written(tmp_path: Path, value: float) -> None:
    path = tmp_path / "cells.jsonl"
    with Journal.open(path, config=CONFIG) as journal:
        with pytest.raises(ValueError, match=r"refused a line, samples_s\[0\]\[0\]: expected a finite number"):
            journal.append(record(samples_s=[[value]]))
        with pytest.raises(ValueError, match="not JSON compliant"):
            journal.append(record(notes={"x": value}))
        assert path.read_bytes() == b""
        assert journal.lines == ()


def test_two_writers_are_refused_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    with Journal.open(path, config=CONFIG) as journal:
        journal.append(record())
        with pytest.raises(ValueError, match="another specgauge process is writing this run"):
            Journal.open(path, config=CONFIG)
        assert len(read_journal(path).lines) == 1
    write(path, 2)


KILLED = """
import sys
from pathlib import Path
from specgauge.sweeps.store.journal import Journal
from tests.sweeps.store.test_journal import CELL, CONFIG, record
with Journal.open(Path(sys.argv[1]), config=CONFIG) as journal:
    for block in range(10**6):
        if not journal.done(CELL, "decode", block):
            journal.append(record(block))
        print(block, flush=True)
"""


def start(program: str, path: Path) -> "subprocess.Popen[str]":
    root = Path(__file__).parents[3]
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_kill_9_keeps_every_block_that_was_reported_done(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    with start(KILLED, path) as process:
        assert process.stdout is not None
        for _ in range(5):
            reported = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.communicate()
    with Journal.open(path, config=CONFIG) as journal:
        blocks = [line.block for line in journal.lines]
        assert blocks == list(range(len(blocks)))
        assert len(blocks) > reported
        resumed = [block for block in range(len(blocks) + 2) if not journal.done(CELL, "decode", block)]
    assert resumed == [len(blocks), len(blocks) + 1]


LIMITED = """
import resource, sys
from pathlib import Path
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.journal import Journal
from tests.sweeps.store.test_journal import CONFIG, record
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with Journal.open(Path(sys.argv[1]), config=CONFIG) as journal:
    try:
        for block in range(100):
            journal.append(record(block))
    except StorageError as error:
        print(error)
"""


def test_full_disk_leaves_whole_lines_and_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    with start(LIMITED, path) as process:
        out, err = process.communicate()
    assert err == ""
    (message,) = out.splitlines()
    assert message.startswith(
        f"{path}: cannot write, File too large: what was measured before is kept; free some space"
    )
    content = read_journal(path)
    assert content.torn_bytes == 0
    assert [line.block for line in content.lines] == list(range(len(content.lines)))
    assert 1 <= len(content.lines) <= 3
    write(path, 10)


def test_device_full_is_the_same_line() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    journal = Journal(full, os.open(full, os.O_RDWR | os.O_APPEND), CONFIG)
    with journal, pytest.raises(StorageError, match="No space left on device: what was measured before is kept"):
        journal.append(record())


def test_what_cannot_be_opened_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot open it for writing: Is a directory"):
        Journal.open(tmp_path, config=CONFIG)
    with pytest.raises(ValueError, match="cannot read the journal: No such file"):
        read_journal(tmp_path / "absent")
