"""Our own table of runs: a CSV file, a row for each γ, batch size and context, and again for each repetition.

    batch_size,context,gamma,t_round_s,rounds,tokens,accepted_by_position
    1,512,0,0.0192,,,
    1,512,3,0.0251,1000,2500,750;500;250

t_round_s of gamma 0 is a plain step. Only batch_size, context and gamma are required; what is unknown stays empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic.dataclasses import dataclass

from specgauge.sweeps.imports.engine_run import Counted, EngineRun, Given, Imported, located
from specgauge.sweeps.imports.files import read_text
from specgauge.sweeps.store.rows import columns, csv_lines, csv_rows
from specgauge.sweeps.store.schema import OPEN, BatchSize, Context, Count, Positive, Text, Whole

_REMEDY = "see docs/engines.md for the columns"


@dataclass(frozen=True, kw_only=True, config=OPEN)
class TableRow:
    """A run of one γ."""

    batch_size: BatchSize
    context: Context
    gamma: Whole
    t_round_s: Positive | None = None
    t_draft_total_s: Positive | None = None
    t_verify_s: Positive | None = None
    rounds: Count | None = None
    tokens: Positive | None = None
    drafted: Whole | None = None
    accepted: Whole | None = None
    accepted_by_position: Text | None = None
    tokens_per_round: Positive | None = None
    pair: Text | None = None
    sampling: Text | None = None


def is_table(head: str) -> bool:
    """Whether a file begins with our header."""
    header = {name.strip() for name in head.lstrip("\ufeff").partition("\n")[0].split(",")}
    return {"batch_size", "context", "gamma"} <= header <= set(columns(TableRow))


def read_table(paths: Sequence[Path], given: Given) -> Imported:
    """Runs from tables.

    Raises:
        ValueError: as `csv_rows`, for a column that is none, or a count that is none.
    """
    runs = [run for path in paths for run in _runs(path)]
    return Imported(runs=located(runs, given))


def _runs(path: Path) -> list[EngineRun]:
    header, *lines = csv_lines(path, read_text(path), _REMEDY)
    unknown = [name for name in header.cells if name not in columns(TableRow)]
    if unknown:
        raise ValueError(f"{path}: expected the columns {', '.join(columns(TableRow))}, got {unknown[0]!r}; {_REMEDY}")
    if not lines:
        raise ValueError(f"{path}: expected a row for each run, got a header alone; {_REMEDY}")
    rows = csv_rows(header, lines, TableRow, _REMEDY)
    return [_run(row, line.where) for row, line in zip(rows, lines, strict=True)]


def _run(row: TableRow, where: str) -> EngineRun:
    return EngineRun(
        source=where,
        gamma=row.gamma,
        batch_size=row.batch_size,
        context=row.context,
        t_round_s=row.t_round_s,
        t_draft_total_s=row.t_draft_total_s,
        t_verify_s=row.t_verify_s,
        pair=row.pair,
        sampling=row.sampling,
        counts=(_counted(row, where),) if row.gamma and (row.rounds or row.tokens_per_round) else (),
    )


def _counted(row: TableRow, where: str) -> Counted:
    by_position = None
    if row.accepted_by_position is not None:
        parts = [part.strip() for part in row.accepted_by_position.split(";")]
        if not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(
                f"{where}, accepted_by_position: expected counts as in 750;500;250, got {row.accepted_by_position!r}"
            )
        by_position = tuple(map(int, parts))
    return Counted(
        source=where,
        rounds=row.rounds,
        tokens=row.tokens,
        drafted=row.drafted,
        accepted=sum(by_position) if row.accepted is None and by_position is not None else row.accepted,
        accepted_by_position=by_position,
        tokens_per_round=row.tokens_per_round,
    )
