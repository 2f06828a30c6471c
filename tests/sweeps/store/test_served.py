"""served.jsonl: blocks of load and their counts, each in the place of the one it repeats."""

from pathlib import Path

import pytest

from specgauge.sweeps.store.counts import CountsRow, read_counts, write_counts
from specgauge.sweeps.store.schema import WarningRow
from specgauge.sweeps.store.served import SERVED, ServedLog, ServedRow, read_served


def row(block: int, **more: object) -> ServedRow:
    return ServedRow(
        **{"pair": "a", "sampling": "greedy", "gamma": 2, "batch_size": 4, "context": 64, "block": block, **more}  # type: ignore[arg-type]
    )


def counts(source: str, rounds: int, pair: str = "a") -> CountsRow:
    return CountsRow(pair=pair, sampling="greedy", source=source, gamma=2, rounds=rounds, tokens=2.0 * rounds)


def test_rows_come_back_as_written(tmp_path: Path) -> None:
    note = WarningRow(code="preempted", message="m", remedy="r")
    rows = [row(0, tokens_per_s=3.5, notes=(note,)), row(1, reason="why"), row(0, purpose="validation")]
    log = ServedLog(tmp_path)
    for one in rows:
        log.add(one)
    assert list(read_served(tmp_path)) == rows
    assert [one.block for one in ServedLog(tmp_path).rows("timing", "a")] == [0, 1]


def test_a_block_that_is_measured_again_takes_the_place_of_the_first_and_of_its_counts_alone(tmp_path: Path) -> None:
    write_counts(tmp_path, [counts("elsewhere", 9), counts(row(0).source, 7, pair="b")])
    log = ServedLog(tmp_path)
    for block in (1, 10):
        log.add(row(block), [counts("request 0", 10 + block), counts("request 1", 20 + block)])
    ServedLog(tmp_path).add(row(1, tokens_per_s=1.0), [counts("counters", 5)])
    assert [one.tokens_per_s for one in read_served(tmp_path)] == [1.0, None]
    assert [one.rounds for one in read_counts(tmp_path)] == [9, 7, 20, 30, 5]


def test_a_damaged_line_is_told_by_its_number(tmp_path: Path) -> None:
    ServedLog(tmp_path).add(row(0))
    with (tmp_path / SERVED).open("a") as file:
        file.write('{"pair": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_served(tmp_path)


def test_a_run_without_servers_has_none(tmp_path: Path) -> None:
    assert read_served(tmp_path) == ()
