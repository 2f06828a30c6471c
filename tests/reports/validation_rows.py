"""Rows of validation.csv for the report's made-up runs, as records and as a file of the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specgauge.sweeps.store.rows import row_of, write_csv
from specgauge.sweeps.store.schema import ValidationRow
from tests.sweeps.validation_rows import forced_row, policy_row, validation_row

PAIR = "embedded"


def a_row(**changes: Any) -> dict[str, Any]:
    """A row of pair `embedded`: S 1.65 predicted, 1.53 from counts, 1.5 (1.4 to 1.6) measured at γ = 2."""
    return validation_row(**({"pair": PAIR} | changes))


def a_forced_row(**changes: Any) -> dict[str, Any]:
    """The same where acceptance was forced by coin."""
    return forced_row(**({"pair": PAIR} | changes))


def a_policy_row(**changes: Any) -> dict[str, Any]:
    """`svip` at that point."""
    return policy_row(**({"pair": PAIR} | changes))


def a_record(**changes: Any) -> ValidationRow:
    """`a_row` as the report's record."""
    return row_of(ValidationRow, a_row(**changes), "row")


def a_forced_record(**changes: Any) -> ValidationRow:
    """`a_forced_row` as the report's record."""
    return row_of(ValidationRow, a_forced_row(**changes), "row")


def a_policy(**changes: Any) -> ValidationRow:
    """`a_policy_row` as the report's record."""
    return row_of(ValidationRow, a_policy_row(**changes), "row")


def decode(run: Path, *rows: dict[str, Any], policies: Sequence[dict[str, Any]] = ()) -> Path:
    """Write `rows`, and those of `policies`, into the run directory."""
    write_csv(run / "validation.csv", ValidationRow, [*rows, *policies])
    return run
