"""Typed rows from the files of a run directory and back: CSV, JSON lines, JSON, YAML and parquet, one reader each.

    read_csv(path, PredictionRow)                    # a row a line
    write_csv(path, PredictionRow, rows)             # rows as mappings or as typed rows; floats come back exactly
    read_table(path, RoundRow)                       # a pyarrow table of the row type's columns

What is missing, truncated, foreign or of another release is a `ValueError` of one line: the file and point, what is
expected, what was got, and what to do.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from specgauge.configs import reading
from specgauge.configs.canonical import canonical_json, strict_loads
from specgauge.configs.errors import short
from specgauge.configs.reading import ANSWER_BYTES, PARQUET_BYTES, TABLE_BYTES, check_regular
from specgauge.sweeps.store.files import atomic_path, write_text_atomically
from specgauge.sweeps.store.schema import LARGEST_NUMBER, LIMITS, SCHEMA

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Row = TypeVar("Row")
RUN_AGAIN = "make it anew with `specgauge run`"
MEASURE_AGAIN = "delete it to measure it again"
START_ANEW = "start anew with --fresh"
_KINDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text"}
MOST_VALUES = 200_000
"""Of a YAML file."""
_EXPECTED = {
    "missing": "a value", "int_type": "a whole number", "float_type": "a number", "finite_number": "a finite number",
    "bool_type": "True or False", "string_type": "text", "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}", "less_than_equal": "a number of at most {le:g}",
    "literal_error": "{expected}", "tuple_type": "a list", "dict_type": "a mapping", "dataclass_type": "a mapping",
    "too_short": "at least {min_length} entry", "too_long": "at most {max_length} entries", "expected": "{what}",
}  # fmt: skip
"""What was expected, by the kind of pydantic's error."""


class Column(NamedTuple):
    """A field of a row type."""

    kind: Any
    """int, float, bool, str, or what is no scalar."""
    bounds: Mapping[str, float]
    """`ge`, `gt`, `le`, where it has them; not those of `LIMITS`."""
    may_lack: bool
    """Whether None is a value of it."""
    is_required: bool
    """Whether every file has it."""

    @property
    def expected(self) -> str:
        """Its values in words; "" where it is no scalar."""
        what = " or ".join(get_args(self.kind)) if get_origin(self.kind) is Literal else _KINDS.get(self.kind, "")
        ends = {"gt": "above", "ge": "of at least", "le": "up to"}
        bounds = " and ".join(f"{ends[name]} {end:g}" for name, end in self.bounds.items())
        return f"{what} {bounds}".rstrip() + (", or nothing" if what and self.may_lack else "")


_COLUMNS: dict[Any, dict[str, Column]] = {}


def columns(row_type: type[Any]) -> dict[str, Column]:
    """The fields of a row type, by name and in order."""
    if row_type not in _COLUMNS:
        hints = get_type_hints(row_type, include_extras=True)
        _COLUMNS[row_type] = {one.name: _column(one, hints[one.name]) for one in fields(row_type)}
    return _COLUMNS[row_type]


def _column(one: Field[Any], hint: Any) -> Column:
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    hint = options[0]
    notes = [note for info in getattr(hint, "__metadata__", ()) for note in getattr(info, "metadata", ())]
    return Column(
        kind=get_args(hint)[0] if hasattr(hint, "__metadata__") else hint,
        bounds={
            end: getattr(note, end)
            for end in ("gt", "ge", "le")
            for note in notes
            if hasattr(note, end) and getattr(note, end) not in LIMITS
        },
        may_lack=len(options) > 1,
        is_required=one.default is MISSING and one.default_factory is MISSING,
    )


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""What reads and writes a row type; to make it takes longer than a row."""


def row_of(row_type: type[Row], value: Any, where: str, remedy: str = RUN_AGAIN) -> Row:
    """A mapping as a row; `where`: the file and place that begin the line of an error, `remedy`: its end.

    Raises:
        ValueError: a field is missing, unknown or holds something else than it should, or another release wrote it.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected a mapping, got {type(value).__name__}; {remedy}")
    check_release(value, where)
    try:
        row: Row = _adapter(row_type).validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{where}{_problem(row_type, error)}; {remedy}") from error
    return row


def readable(row_type: type[Any], row: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The row with unknown (None) for every figure that its row type would refuse to read, and the names of those.

    Raises:
        ValueError: what is wrong may not be unknown.
    """
    values: dict[Any, Any] = dict(row)
    names: list[str] = []
    while True:
        try:
            _adapter(row_type).validate_python(values)
        except ValidationError as error:
            place = error.errors(include_url=False)[0]["loc"]
            holder = values
            for part in place[:-1]:
                holder[part] = holder = dict(holder[part])
            if not place or holder.get(place[-1]) is None:
                raise ValueError(f"{row_type.__name__}{_problem(row_type, error)}") from error
            names.append(".".join(map(str, place)))
            holder[place[-1]] = None
        else:
            return values, names


def _problem(row_type: type[Any], error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    kind, place, context = first["type"], first["loc"], first.get("ctx", {})
    known = columns(row_type)
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    if kind == "unexpected_keyword_argument":
        near = difflib.get_close_matches(str(place[-1]), known, n=1)
        return f", {name}: expected {f'the field {near[0]!r}' if near else 'no such field'}, got {place[-1]!r}"
    if kind == "value_error":
        return f", {name}: {context['error']}"
    is_told = kind in ("expected", "finite_number") or any(context.get(end) in LIMITS for end in ("ge", "le"))
    column = known.get(str(place[0])) if len(place) == 1 and not is_told else None
    wanted = column.expected if column is not None else ""
    if not wanted:
        wanted = (
            _EXPECTED[kind].format(**context) if kind in _EXPECTED else first["msg"].removeprefix("Input should be ")
        )
    if kind == "missing":
        return f", {name}: expected {wanted}, it is missing"
    if not name:
        return f": expected {wanted}"
    return f", {name}: expected {wanted}, got {short(first['input'])}"


def check_release(content: Mapping[Any, Any], where: object) -> None:
    """Raise ValueError for what another release wrote."""
    found = content.get("schema", SCHEMA)
    if found != SCHEMA:
        raise ValueError(
            f"{where}: expected schema {SCHEMA} of this release, got {short(found)} of another; read it with that "
            "release, or start anew with --fresh"
        )


def read_text(path: Path, remedy: str = RUN_AGAIN, most_bytes: int = TABLE_BYTES) -> str:
    """The UTF-8 text of a run's file.

    Raises:
        ValueError: missing, no regular file, too large, unreadable, empty or not UTF-8.
    """
    try:
        text = reading.read_text(path, most_bytes)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: missing; make it with `specgauge run`") from error
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot read it: {error.strerror or error}; {remedy}") from error
    if not text.strip():
        raise ValueError(f"{path}: empty; {remedy}")
    return text


def read_mapping(path: Path, remedy: str = RUN_AGAIN) -> dict[str, Any]:
    """The mapping in a JSON or YAML file of a run.

    Raises:
        ValueError: missing, truncated, not strict JSON or YAML, not a mapping, or of another release; YAML that holds
            anything but text, numbers, true, false and null, or more than `MOST_VALUES`, once its aliases are expanded.
    """
    kind, most_bytes = ("JSON", TABLE_BYTES) if path.suffix == ".json" else ("YAML", ANSWER_BYTES)
    text = read_text(path, remedy, most_bytes)
    try:
        content = strict_loads(text) if kind == "JSON" else _yaml_value(text, path.name)
    except (ValueError, RecursionError) as error:
        what = " ".join(str(error).split())[:200]
        raise ValueError(f"{path}: truncated or not {kind}: {what}; {remedy}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a mapping, got {type(content).__name__}; {remedy}")
    check_release(content, path)
    if kind == "YAML" and not text.endswith("\n"):
        raise ValueError(f"{path}: truncated: its last line is not whole; {remedy}")
    return content


def _yaml_value(text: str, name: str) -> Any:
    """Plain data; dates, sets, bytes and tags of programs are not."""
    from specgauge.configs.yaml_reader import Source, read_yaml

    source = Source(name)
    document = read_yaml(text, source, most_values=MOST_VALUES)
    if document.faults:
        first = document.faults[0]
        raise ValueError(f"{source.at(first.line)}: {first.words}")
    return document.value


def write_mapping(path: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping as JSON or YAML, stamped with the release; StorageError where the disk refuses."""
    stamped = {"schema": SCHEMA, **content}
    if path.suffix == ".json":
        text = json.dumps(stamped, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    else:
        from specgauge.configs.yaml_reader import dump_for_anyone

        text = dump_for_anyone(stamped)
    write_text_atomically(path, text)


def plain(row: Any) -> Any:
    """A typed row as a mapping, the rows in it too."""
    return _adapter(type(row)).dump_python(row)


def rows_under(path: Path, key: str, row_type: type[Row], remedy: str = RUN_AGAIN) -> tuple[Row, ...]:
    """The rows in the list under a key of a JSON or YAML file.

    Raises:
        ValueError: as `read_mapping`, or an entry is damaged; its number and the field are named.
    """
    entries = read_mapping(path, remedy).get(key)
    if not isinstance(entries, list):
        raise ValueError(f"{path}, {key}: expected a list, got {short(entries)}; {remedy}")
    return tuple(row_of(row_type, one, f"{path}, {key}[{number}]", remedy) for number, one in enumerate(entries))


def read_jsonl(path: Path, row_type: type[Row], remedy: str, most_bytes: int = TABLE_BYTES) -> tuple[Row, ...]:
    """The rows of the whole lines of a file, one strict-JSON mapping each; none where there is no file.

    Raises:
        ValueError: too large, or a line is damaged, foreign or of another release; its number and field are named.
    """
    if not path.exists():
        return ()
    try:
        content = reading.read_bytes(path, most_bytes)
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from error
    lines = content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]
    return tuple(_json_row(f"{path}, line {number}", row_type, raw, remedy) for number, raw in enumerate(lines, 1))


def _json_row(where: str, row_type: type[Row], raw: bytes, remedy: str) -> Row:
    try:
        value = strict_loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}; {remedy}") from error
    return row_of(row_type, value, where, remedy)


def json_line(row: Any) -> bytes:
    """The line of a typed row, its end included; ValueError for NaN."""
    return canonical_json(plain(row)).encode("ascii") + b"\n"


def write_jsonl(path: Path, rows: Iterable[Any]) -> None:
    """Write typed rows, a line each, in the place of what was there; StorageError where the disk refuses."""
    write_lines(path, map(json_line, rows))


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """The same of rows that are lines already."""
    write_text_atomically(path, b"".join(lines).decode("ascii"))


def read_csv(path: Path, row_type: type[Row]) -> tuple[Row, ...]:
    """The rows of a run's CSV file; columns that the row type does not have are passed over.

    Raises:
        ValueError: missing, truncated, foreign, or a field that holds something else than it should.
    """
    text = read_text(path)
    if not text.endswith("\n"):
        raise ValueError(f"{path}: truncated (its last line has no end); {RUN_AGAIN}")
    header, *lines = csv_lines(path, text, RUN_AGAIN)
    return csv_rows(header, lines, row_type, RUN_AGAIN)


class CsvLine(NamedTuple):
    """A line of a CSV file that is not blank."""

    where: str
    """File and line."""
    cells: list[str]


def csv_lines(path: Path, text: str, remedy: str) -> list[CsvLine]:
    """The header of a CSV text, each column once, and its other lines.

    Raises:
        ValueError: it is none.
    """
    try:
        reader = csv.reader(io.StringIO(text), strict=True)
        lines = [CsvLine(f"{path}, line {reader.line_num}", cells) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        raise ValueError(f"{path}: not a CSV file: {error}; {remedy}") from error
    if not lines:
        raise ValueError(f"{path}: expected a header, got nothing; {remedy}")
    header = [cell.strip() for cell in lines[0].cells]
    doubled = next((name for name in header if header.count(name) > 1), None)
    if doubled is not None:
        raise ValueError(f"{path}: expected every column once, got {doubled!r} {header.count(doubled)} times; {remedy}")
    return [CsvLine(str(path), header), *lines[1:]]


def csv_rows(header: CsvLine, lines: Iterable[CsvLine], row_type: type[Row], remedy: str) -> tuple[Row, ...]:
    """The lines as typed rows; ValueError as `read_csv`."""
    check_columns(header.where, header.cells, row_type, remedy)
    known = columns(row_type)
    found = []
    for where, cells in lines:
        if len(cells) != len(header.cells):
            raise ValueError(f"{where}: expected {len(header.cells)} fields, got {len(cells)}; {remedy}")
        fields = zip(header.cells, cells, strict=True)
        values = {name: _value(known[name], field) for name, field in fields if name in known}
        found.append(row_of(row_type, values, where, remedy))
    return tuple(found)


def check_columns(where: object, found: Sequence[str], row_type: type[Any], remedy: str) -> None:
    """Refuse a table that lacks a column of its row type; ValueError with its name."""
    for name, column in columns(row_type).items():
        if column.is_required and name not in found:
            near = difflib.get_close_matches(name, set(found) - set(columns(row_type)), n=1)
            got = f"got {near[0]!r}" if near else "it is missing"
            raise ValueError(f"{where}: expected the column {name!r}, {got}; {remedy}")


def _value(column: Column, field: str) -> Any:
    """A field as its column's kind, or as it is where it holds none: then it is refused with its row."""
    if not field.strip() and column.may_lack:
        return None
    if column.kind is bool:
        return {"True": True, "False": False}.get(field, field)
    if column.kind in (int, float) and field.isascii() and "_" not in field:
        with suppress(ValueError):
            return int(field) if column.kind is int else float(field)
    return field


def write_csv(path: Path, row_type: type[Any], rows: Iterable[Any]) -> None:
    """Write rows, as mappings or typed; unknown is empty. StorageError where the disk refuses."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns(row_type), restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        values = vars(row) if is_dataclass(row) else row
        writer.writerow({name: "" if value is None else value for name, value in values.items()})
    write_text_atomically(path, buffer.getvalue())


def frame_of(row_type: type[Any], rows: Sequence[Any]) -> pd.DataFrame:
    """Typed rows as a table: unknown numbers are NaN."""
    import numpy as np
    import pandas as pd

    def column(name: str, kind: Any) -> Any:
        values = [getattr(row, name) for row in rows]
        return np.array(values, dtype=np.float64) if kind is float else values

    return pd.DataFrame({name: column(name, one.kind) for name, one in columns(row_type).items()})


def arrow_schema(row_type: type[Any]) -> pa.Schema:
    """The row type as parquet holds it."""
    import pyarrow as pa

    scalars = {int: pa.int32(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}

    def kind(column: Column) -> pa.DataType:
        if get_origin(column.kind) is tuple:
            return pa.list_(scalars[get_args(get_args(column.kind)[0])[0]])
        return scalars[column.kind]

    return pa.schema(
        [pa.field(name, kind(column)) for name, column in columns(row_type).items()],
        metadata={_RELEASE: str(SCHEMA).encode()},
    )


_RELEASE = b"specgauge_schema"


def read_table(path: Path, row_type: type[Any], remedy: str = MEASURE_AGAIN) -> pa.Table:
    """The columns of a parquet file of a run, in the row type's order and kinds; those it may lack only if there.

    Raises:
        ValueError: missing, truncated, not parquet, of another release, without a column, or a column that holds
            something else than it should.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    refusals = (OSError, ValueError, KeyError, NotImplementedError, pa.ArrowException)
    try:
        check_regular(path, PARQUET_BYTES)
    except FileNotFoundError as error:
        raise ValueError(f"{path}: missing; measure it with `specgauge run`") from error
    except ValueError as error:
        raise ValueError(f"{error}; {remedy}") from error
    try:
        with pq.ParquetFile(path) as file:  # `read_table` imports datasets, a third of a second
            table = file.read()
    except refusals as error:
        cause = str(error).partition("\n")[0][:200]
        raise ValueError(f"{path}: truncated or not a parquet file: {cause}; {remedy}") from error
    release = (table.schema.metadata or {}).get(_RELEASE, str(SCHEMA).encode()).decode(errors="replace")
    check_release({"schema": SCHEMA if release == str(SCHEMA) else release}, path)
    check_columns(path, table.column_names, row_type, remedy)
    wanted = arrow_schema(row_type)
    wanted = pa.schema([one for one in wanted if one.name in table.column_names], metadata=wanted.metadata)
    for name in wanted.names:
        column, found = columns(row_type)[name], table.column(name)
        where = f"{path}, column {name}: expected {column.expected}"
        try:
            wrong = _out_of_bounds(column, found.cast(wanted.field(name).type))
        except refusals as error:
            raise ValueError(f"{where}, got {found.type}; {remedy}") from error
        if wrong is not None:
            raise ValueError(f"{where}, got {wrong}; {remedy}")
    return table.select(wanted.names).cast(wanted)


def _out_of_bounds(column: Column, values: pa.ChunkedArray) -> float | str | None:
    """A value that the column must not have; None where all are as they should be."""
    import pyarrow.compute as pc

    if values.null_count and not column.may_lack:
        return "nothing"
    if column.kind not in (int, float):
        return None
    ends = pc.min_max(values).as_py()
    least = column.bounds.get("gt", column.bounds.get("ge", -LARGEST_NUMBER))
    most = column.bounds.get("le", LARGEST_NUMBER)
    if ends["min"] is not None and (ends["min"] < least or ("gt" in column.bounds and ends["min"] == least)):
        return float(ends["min"])
    return float(ends["max"]) if ends["max"] is not None and ends["max"] > most else None


def write_table(path: Path, row_type: type[Any], table: pa.Table | pd.DataFrame, **notes: int) -> None:
    """Write a table of a run, stamped with the release and notes; StorageError where the disk refuses it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not isinstance(table, pa.Table):
        names = [name for name in columns(row_type) if name in table.columns]
        table = pa.Table.from_pandas(table[names], preserve_index=False)
    stamp = {name: str(value) for name, value in notes.items() if value}
    table = table.replace_schema_metadata({**(arrow_schema(row_type).metadata or {}), **stamp})
    with atomic_path(path) as temporary:
        pq.write_table(table, temporary)
