"""Reading a CSV file of numbers that people made: every fault named by file, row and column.

    table = read_csv("cells.csv", required={"gamma"}, known={"gamma", "t_decode_s"})
    table.numbers("t_decode_s", minimum=0)         # (N,) or a ValueError of one line

Rows are counted from 1 after the header.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from specgauge.cli.parsing import parse_number
from specgauge.model.checks import LARGEST_WHOLE, FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class CsvTable:
    """The cells of a file as text, column by column, each of one length."""

    path: str
    columns: Mapping[str, Sequence[str]]
    lines: Sequence[int]
    """Line of the file each row ends on."""

    @property
    def size(self) -> int:
        """Number of rows."""
        return len(self.lines)

    def place(self, row: int, column: str) -> str:
        """Where a cell is, for a message: file, row, line, column."""
        return f"{self.path}, row {row + 1} (line {self.lines[row]}), column {column}"

    def numbers(
        self, column: str, *, minimum: float = -math.inf, above: float = -math.inf, maximum: float = math.inf
    ) -> FloatArray:
        """A column as float64 (N,), every cell a finite number within the bounds."""
        return np.array([self._number(i, column, minimum, above, maximum) for i in range(self.size)])

    def optional_numbers(
        self, column: str, *, minimum: float = -math.inf, above: float = -math.inf, maximum: float = math.inf
    ) -> FloatArray:
        """The same with NaN where the cell is empty, and all NaN where there is no such column."""
        if column not in self.columns:
            return np.full(self.size, np.nan)
        cells = self.columns[column]
        return np.array(
            [self._number(i, column, minimum, above, maximum) if cells[i].strip() else np.nan for i in range(self.size)]
        )

    def whole_numbers(self, column: str, *, minimum: int, maximum: int = LARGEST_WHOLE) -> IntArray:
        """A column as int64 (N,), every cell whole and within the bounds."""
        values = self.numbers(column, minimum=minimum, maximum=maximum)
        for row in np.flatnonzero(values != np.floor(values)):
            raise ValueError(f"{self.place(int(row), column)}: found {values[row]:g}, allowed: a whole number")
        return values.astype(np.int64)

    def plain(self, column: str) -> list[float | int | str | None]:
        """A column as it should stand in JSON: numbers where every filled cell is one, else text; None if empty."""
        cells = [cell.strip() for cell in self.columns[column]]
        values = [parse_number(cell) if cell else None for cell in cells]
        if all(value is None for value in values) or any(v is None and c for v, c in zip(values, cells, strict=True)):
            return [cell or None for cell in cells]
        if all(cell.lstrip("+-").isdigit() for cell in cells if cell):
            return [int(cell) if cell else None for cell in cells]
        return list(values)

    def _number(self, row: int, column: str, minimum: float, above: float, maximum: float) -> float:
        text = self.columns[column][row]
        value = parse_number(text)
        if value is None:
            found = repr(text.strip()) if text.strip() else "an empty cell"
            raise ValueError(f"{self.place(row, column)}: found {found}, allowed: a finite number")
        if not (minimum <= value <= maximum and value > above):
            bounds = [f"at least {minimum:g}"] if minimum > -math.inf else []
            bounds += [f"above {above:g}"] if above > -math.inf else []
            bounds += [f"at most {maximum:g}"] if maximum < math.inf else []
            raise ValueError(f"{self.place(row, column)}: found {text.strip()}, allowed: {' and '.join(bounds)}")
        return value


def read_csv(path: str | Path, *, required: Collection[str], known: Collection[str]) -> CsvTable:
    """Read a comma-separated file with a header.

    Columns outside `known` are kept as they are, unless they look like a known one that is missing (`t_decode_ms`).

    Raises ValueError for a file that is empty, has no rows, lacks a required column or has one twice, has rows of
    another length or is no text; OSError where it cannot be read.
    """
    name = str(path)
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            records = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except UnicodeDecodeError:
        raise ValueError(f"{name}: found bytes that are no UTF-8 text, allowed: a comma-separated text file") from None
    except csv.Error as error:
        raise ValueError(f"{name}: found no readable CSV ({error}), allowed: a comma-separated text file") from None
    if not records:
        raise ValueError(f"{name}: found an empty file, allowed: a header with {', '.join(sorted(required))} and rows")
    header = [cell.strip() for cell in records[0][1]]
    _check_header(name, header, required, known)
    if len(records) == 1:
        raise ValueError(f"{name}: found a header without rows, allowed: at least one row")
    for row, (line, cells) in enumerate(records[1:], start=1):
        if len(cells) != len(header):
            raise ValueError(
                f"{name}, row {row} (line {line}): found {len(cells)} cells, allowed: {len(header)}, one a column"
            )
    return CsvTable(
        path=name,
        columns={column: [cells[i] for _, cells in records[1:]] for i, column in enumerate(header)},
        lines=[line for line, _ in records[1:]],
    )


def _check_header(name: str, header: list[str], required: Collection[str], known: Collection[str]) -> None:
    for column in header:
        if header.count(column) > 1:
            raise ValueError(f"{name}, header: found column {column!r} {header.count(column)} times, allowed: once")
    missing = sorted(set(required) - set(header))
    if missing:
        near = get_close_matches(missing[0], header, n=1)
        hint = f" (nearest found: {near[0]})" if near else ""
        tail = "; the file needs commas between columns" if len(header) == 1 else ""
        raise ValueError(
            f"{name}, header: found no column {', '.join(missing)}{hint} among {', '.join(header)}; "
            f"required are {', '.join(sorted(required))}{tail}"
        )
    for column in header:
        near = get_close_matches(column, sorted(set(known) - set(header)), n=1, cutoff=0.85)
        if column not in known and near:
            raise ValueError(
                f"{name}, header: found column {column!r}, allowed: {near[0]} is the name and unit of what it seems to "
                "be; rename it"
            )
