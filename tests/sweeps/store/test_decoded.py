from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specgauge.sweeps.store import decoded as decoded_tables
from specgauge.sweeps.store.decoded import (
    KEY_COLUMNS,
    REQUEST_COLUMNS,
    REQUESTS,
    ROUND_COLUMNS,
    ROUNDS,
    DecodedKey,
    DecodedLog,
    read_decoded,
)
from specgauge.sweeps.store.files import StorageError
from tests.sweeps.decoded import PREFILL_S, Batch, key, write_blocks

SHORT = Batch(prompts=(7, 8), max_new_tokens=5, overhead_s=0.0625)
AGAIN = f"; delete {REQUESTS} and {ROUNDS} to decode again"


def keep(log: DecodedLog, block: int, place: DecodedKey | None = None, arms: Sequence[str] = ("plain",)) -> None:
    log.append(
        place or key(), block, [r for a in arms for r in SHORT.requests(a)], [r for a in arms for r in SHORT.rounds(a)]
    )


def content(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    requests, rounds = (pq.read_table(path / name).to_pylist() for name in (REQUESTS, ROUNDS))
    return requests, rounds


def test_what_is_kept_comes_back_with_its_types(tmp_path: Path) -> None:
    arms = ("generate", "speculate:3")
    log = DecodedLog.open(tmp_path)
    keep(log, 0, arms=arms)
    keep(log, 1, arms=arms)
    place = {**vars(key()), "block": 1}
    requests, rounds = content(tmp_path)
    assert requests[4:] == [place | row for arm in arms for row in SHORT.requests(arm)]
    assert rounds[len(rounds) // 2 :] == [place | row for row in SHORT.rounds("speculate:3")]
    assert list(requests[0]) == list(REQUEST_COLUMNS)
    assert list(rounds[0]) == list(ROUND_COLUMNS)
    schema = pq.read_schema(tmp_path / REQUESTS)
    assert [str(schema.field(name).type) for name in ("pair", "block", "tokens", "seconds", "lossless")] == [
        "string", "int32", "list<element: int32>", "double", "bool",
    ]  # fmt: skip
    assert str(pq.read_schema(tmp_path / ROUNDS).field("top_probs").type) == "list<element: double>"
    frames = read_decoded(tmp_path)
    assert [len(frame) for frame in frames] == [8, len(rounds)]
    assert frames[0]["tokens"].map(len).tolist() == [5] * 8
    assert frames[0]["rounds"].isna().tolist() == [True, True, False, False] * 2


def test_texts_of_one_token_have_no_round(tmp_path: Path) -> None:
    one = Batch(max_new_tokens=1)
    DecodedLog.open(tmp_path).append(key(), 0, one.requests("plain"), one.rounds("plain"))
    requests, rounds = read_decoded(tmp_path)
    assert requests["tokens"].map(len).tolist() == [1]
    assert rounds.empty
    assert list(rounds.columns) == list(ROUND_COLUMNS)
    assert DecodedLog.open(tmp_path).has(key(), 0)


def test_a_kept_block_is_known_when_opened_again(tmp_path: Path) -> None:
    other = key(batch_size=4, start_context=128, sampling="t1")
    log = DecodedLog.open(tmp_path)
    keep(log, 0)
    keep(log, 2)
    keep(log, 0, other)
    for found in (log, DecodedLog.open(tmp_path)):
        assert [found.has(key(), block) for block in range(4)] == [True, False, True, False]
        assert found.has(other, 0)
        assert [found.blocks(key()), found.blocks(other), found.blocks(key(pair="q"))] == [2, 1, 0]
    with pytest.raises(AssertionError):
        keep(log, 2)


def test_nothing_decoded_is_two_empty_tables(tmp_path: Path) -> None:
    requests, rounds = read_decoded(tmp_path)
    assert (list(requests.columns), list(rounds.columns)) == (list(REQUEST_COLUMNS), list(ROUND_COLUMNS))
    assert requests.empty
    assert rounds.empty
    assert list(tmp_path.iterdir()) == []


def test_killed_between_the_two_writes_the_block_is_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = DecodedLog.open(tmp_path)
    keep(log, 0)
    write = decoded_tables._write

    def killed(path: Path, table: pa.Table) -> None:
        if path.name == REQUESTS:
            raise KeyboardInterrupt
        write(path, table)

    monkeypatch.setattr(decoded_tables, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        keep(log, 1, arms=("speculate:2",))
    monkeypatch.undo()
    requests, rounds = content(tmp_path)
    assert ({row["block"] for row in requests}, {row["block"] for row in rounds}) == ({0}, {0, 1})
    assert set(read_decoded(tmp_path)[1]["block"]) == {0}
    found = DecodedLog.open(tmp_path)
    assert [found.has(key(), block) for block in (0, 1)] == [True, False]
    keep(found, 1)
    requests, rounds = content(tmp_path)
    assert [(row["block"], row["arm"]) for row in requests] == [(0, "plain")] * 2 + [(1, "plain")] * 2
    assert {(row["block"], row["arm"]) for row in rounds} == {(0, "plain"), (1, "plain")}


def test_killed_before_the_first_requests_nothing_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = DecodedLog.open(tmp_path)
    keep(log, 0)
    (tmp_path / REQUESTS).unlink()
    assert not DecodedLog.open(tmp_path).has(key(), 0)
    assert all(frame.empty for frame in read_decoded(tmp_path))


def test_seconds_count_once_a_batch(tmp_path: Path) -> None:
    """Two rows of 5 tokens under plain (4 steps of 1 s) and generate (the same), with a prefill of 1/2 s each."""
    log = DecodedLog.open(tmp_path)
    assert log.spent_s("p") == 0.0
    keep(log, 0, arms=("plain", "generate"))
    keep(log, 0, key(pair="q"))
    assert (log.spent_s("p"), log.spent_s("q"), log.spent_s("r")) == (2 * (4 + PREFILL_S), 4 + PREFILL_S, 0.0)
    assert DecodedLog.open(tmp_path).spent_s("p") == 2 * (4 + PREFILL_S)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scrambled(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[8:600] = bytes(592)
    path.write_bytes(whole)


def foreign(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), path)


def newer(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"specgauge_schema": "2"}), path)


def narrow(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["block"]), path)


def retyped(path: Path) -> None:
    table = pq.read_table(path)
    place = table.column_names.index("arm")
    pq.write_table(table.set_column(place, "arm", pa.array([[1]] * len(table))), path)


def worded(path: Path) -> None:
    table = pq.read_table(path)
    place = table.column_names.index("block")
    pq.write_table(table.set_column(place, "block", pa.array(["first"] * len(table))), path)


@pytest.mark.parametrize("name", [REQUESTS, ROUNDS])
@pytest.mark.parametrize(
    ("harm", "found"),
    [
        (half, f"truncated or not a parquet file: .*{AGAIN}"),
        (scrambled, f"truncated or not a parquet file: .*{AGAIN}"),
        (lambda path: path.write_bytes(b""), f"truncated or not a parquet file: .*0 bytes{AGAIN}"),
        (lambda path: path.write_text("pair,mode\np,eager\n"), f"truncated or not a parquet file: .*{AGAIN}"),
        (foreign, f"no table of specgauge{AGAIN}"),
        (newer, "found schema 2, this release reads schema 1; read it with the release that wrote it"),
        (narrow, f"the column 'block' is missing{AGAIN}"),
        (retyped, f"a column has another type: .*{AGAIN}"),
        (worded, f"a column has another type: .*'first'.*{AGAIN}"),
    ],
)
def test_damage_is_one_line(tmp_path: Path, name: str, harm: Callable[[Path], object], found: str) -> None:
    write_blocks(tmp_path, {key(): [SHORT]})
    harm(tmp_path / name)
    for read in (read_decoded, DecodedLog.open):
        with pytest.raises(ValueError, match=rf"^{tmp_path / name}: {found}$"):
            read(tmp_path)


def test_columns_that_came_later_are_unknown_where_they_are_missing(tmp_path: Path) -> None:
    write_blocks(tmp_path, {key(): [SHORT]})
    path = tmp_path / REQUESTS
    pq.write_table(pq.read_table(path).drop_columns(["expected_starts", "expected_committed"]), path)
    requests, _ = read_decoded(tmp_path)
    assert requests["expected_starts"].isna().all()
    assert DecodedLog.open(tmp_path).gammas(key()) == (1, 2, 3)
    assert DecodedLog.open(tmp_path).gammas(key(batch_size=2)) == ()


def test_rounds_missing_beside_requests_are_said_to_be(tmp_path: Path) -> None:
    write_blocks(tmp_path, {key(): [SHORT]})
    (tmp_path / ROUNDS).unlink()
    for read in (read_decoded, DecodedLog.open):
        with pytest.raises(
            ValueError, match=rf"^{tmp_path / ROUNDS}: missing beside {REQUESTS}; delete {REQUESTS} to decode again$"
        ):
            read(tmp_path)


@pytest.mark.parametrize("arm", ["Plain", "speculate:0", "beam", None])
@pytest.mark.parametrize("name", [REQUESTS, ROUNDS])
def test_arms_that_do_not_exist_are_refused(tmp_path: Path, name: str, arm: str | None) -> None:
    write_blocks(tmp_path, {key(): [SHORT]})
    table = pq.read_table(tmp_path / name)
    arms = pa.array([arm] * len(table), type=pa.string())
    pq.write_table(table.set_column(table.column_names.index("arm"), "arm", arms), tmp_path / name)
    allowed = "decode, .*, plain, loop, generate, speculate:<gamma>, adaptive:<policy>"
    with pytest.raises(ValueError, match=rf"^{tmp_path / name}: arm '{arm}': allowed: {allowed}{AGAIN}$"):
        read_decoded(tmp_path)


@pytest.mark.parametrize("full", [ROUNDS, REQUESTS])
def test_a_full_disk_keeps_the_older_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str) -> None:
    log = DecodedLog.open(tmp_path)
    keep(log, 0)
    before = content(tmp_path)
    write_table = pq.write_table

    def refuse(table: pa.Table, where: Path) -> None:
        write_table(table, where)
        if full in str(where):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq, "write_table", refuse)
    with pytest.raises(StorageError, match=rf"{full}: cannot write, No space left on device: what was measured before"):
        keep(log, 1)
    monkeypatch.undo()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [REQUESTS, ROUNDS]
    found = DecodedLog.open(tmp_path)
    for opened in (log, found):
        assert (opened.has(key(), 0), opened.has(key(), 1)) == (True, False)
    assert content(tmp_path)[0] == before[0]
    assert set(read_decoded(tmp_path)[1]["block"]) == {0}
    keep(log, 1)
    assert DecodedLog.open(tmp_path).blocks(key()) == 2


LIMITED = """
import resource, sys
from pathlib import Path
from specgauge.sweeps.store.decoded import DecodedLog
from specgauge.sweeps.store.files import StorageError
from tests.sweeps.decoded import Batch, key
log = DecodedLog.open(Path(sys.argv[1]))
small, large = Batch(max_new_tokens=3), Batch(max_new_tokens=20_000)
log.append(key(), 0, small.requests("plain"), small.rounds("plain"))
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    log.append(key(), 1, large.requests("plain"), large.rounds("plain"))
except StorageError as error:
    print(error)
"""


def test_a_file_size_limit_is_the_same_line(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.startswith(
        f"{tmp_path / ROUNDS}: cannot write, File too large: what was measured before is kept; free some space"
    )
    assert DecodedLog.open(tmp_path).blocks(key()) == 1
    assert len(read_decoded(tmp_path)[1]) == 2


def test_key_columns_come_first() -> None:
    assert list(REQUEST_COLUMNS)[: len(KEY_COLUMNS)] == list(ROUND_COLUMNS)[: len(KEY_COLUMNS)] == list(KEY_COLUMNS)
