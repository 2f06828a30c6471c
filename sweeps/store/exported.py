"""exported.jsonl: what was exported from a run for its engine, to be run there: a line for each sampling and context.

    keep_exports(run.path, [ExportedRow(pair="a", sampling="greedy", context=512, ranges=((1, 8, 3), (9, 64, 0)))])
    read_exports(run.path)              # () where a run has none

A run that goes on keeps to what it exported first: blocks of two schedules are never one arm.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from specgauge.sweeps.store.rows import MEASURE_AGAIN, read_jsonl, write_jsonl
from specgauge.sweeps.store.schema import EXACT, SCHEMA, BatchSize, Context, Integer, Text, Whole, expected

EXPORTS = "exported.jsonl"


@dataclass(frozen=True, kw_only=True, config=EXACT)
class ExportedRow:
    """γ by batch size of one sampling setting at one context, and what the engine is told of it."""

    schema: Integer = SCHEMA
    pair: Text
    sampling: Text
    context: Context
    ranges: tuple[tuple[BatchSize, BatchSize, Whole], ...]
    """First and last batch size with their γ, 0 of plain decoding, from 1 without gaps; beyond them γ is 0."""
    settings: dict[str, Any] | None = None
    """The schedule as the engine reads it; None where it takes one γ, and where none is above 0."""
    reason: Text | None = None
    """Why there is no schedule for it, where it follows one."""

    def __post_init__(self) -> None:
        """Refuse ranges that leave gaps."""
        first = [(one[0], one[1]) for one in self.ranges]
        if not first or first[0][0] != 1 or any(after[0] != before[1] + 1 for before, after in pairwise(first)):
            raise expected("ranges from batch size 1 without gaps")

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is of."""
        return self.pair, self.sampling, self.context

    def gamma(self, batch_size: int) -> int:
        """γ at a batch size."""
        return next((gamma for first, last, gamma in self.ranges if first <= batch_size <= last), 0)


def keep_exports(run: Path, rows: Iterable[ExportedRow]) -> None:
    """Keep rows beside those of other keys; StorageError where the disk refuses, ValueError where a line is damaged."""
    kept = {row.key: row for row in (*read_exports(run), *rows)}
    write_jsonl(run / EXPORTS, kept.values())


def read_exports(run: Path) -> tuple[ExportedRow, ...]:
    """The exports of a run directory; ValueError where a line is damaged."""
    return read_jsonl(run / EXPORTS, ExportedRow, MEASURE_AGAIN)
