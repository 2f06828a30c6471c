"""exported.jsonl: what was exported to be run, kept by pair, sampling and context."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specgauge.sweeps.store.exported import EXPORTS, ExportedRow, keep_exports, read_exports


def row(context: int = 64, **fields: Any) -> ExportedRow:
    given: dict[str, Any] = {"pair": "a", "sampling": "greedy", "ranges": ((1, 8, 3), (9, 64, 0))}
    return ExportedRow(**given | {"context": context} | fields)


def test_rows_come_back_beside_those_of_other_contexts(tmp_path: Path) -> None:
    assert read_exports(tmp_path) == ()
    keep_exports(tmp_path, [row(settings={"max_draft_len": 3, "draft_len_schedule": {"8": 3}})])
    keep_exports(tmp_path, [row(128, reason="no schedule says that")])
    assert [(one.context, one.settings is None) for one in read_exports(tmp_path)] == [(64, False), (128, True)]
    keep_exports(tmp_path, [row(ranges=((1, 4, 2),))])
    assert [one.ranges for one in read_exports(tmp_path)] == [((1, 4, 2),), ((1, 8, 3), (9, 64, 0))]


def test_the_gamma_of_a_batch_size_is_that_of_its_range_and_0_beyond() -> None:
    assert [row().gamma(size) for size in (1, 8, 9, 64, 65)] == [3, 3, 0, 0, 0]


@pytest.mark.parametrize("ranges", [(), ((2, 8, 3),), ((1, 4, 3), (6, 8, 1))])
def test_ranges_leave_no_gap(ranges: tuple[tuple[int, int, int], ...]) -> None:
    with pytest.raises(ValidationError, match="ranges from batch size 1 without gaps"):
        row(ranges=ranges)


def test_a_damaged_line_is_told(tmp_path: Path) -> None:
    (tmp_path / EXPORTS).write_text('{"pair": "a"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=EXPORTS):
        read_exports(tmp_path)
