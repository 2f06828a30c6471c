"""Rows of validation.csv for the report's made-up runs: as its records, and as a file of the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specgauge.sweeps.store.rows import row_of, write_csv
from specgauge.sweeps.store.schema import ValidationRow
from tests.sweeps.made import restamp
from tests.sweeps.validation_rows import validation_row


def a_record(**changes: Any) -> ValidationRow:
    """`validation_row` as the report's record."""
    return row_of(ValidationRow, validation_row(**changes), "row")


def decode(run: Path, *rows: dict[str, Any], policies: Sequence[dict[str, Any]] = ()) -> Path:
    """Write `rows`, and those of `policies`, into the run directory."""
    write_csv(run / "validation.csv", ValidationRow, [*rows, *policies])
    restamp(run)
    return run
