"""Files of other programs, read with care: bounded, strict JSON, and fields that say what they should have been.

    for record in json_records(path): record.number("duration"), record.whole("completed")

Every mistake is a ValueError of one line: the file and place, what is expected, what was got.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from specgauge.configs import reading
from specgauge.configs.canonical import strict_loads
from specgauge.configs.errors import short

IMPORT_BYTES = 256 * reading.MIB
"""Of one file: a few hundred thousand requests; what is larger holds more than an import needs, such as all texts."""


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        ValueError: too large (it is not read then), no regular file, not UTF-8, or empty.
        OSError: it is missing or cannot be read.
    """
    text = reading.read_text(path, IMPORT_BYTES)
    if not text.strip():
        raise ValueError(f"{path}: expected what an engine wrote, got an empty file")
    return text


@dataclass(frozen=True, kw_only=True)
class Record:
    """A JSON mapping of a file, with where it stands."""

    where: str
    values: Mapping[str, Any]

    def has(self, name: str) -> bool:
        """Whether it has a value."""
        return self.values.get(name) is not None

    def required(self, name: str) -> Any:
        """Its value; ValueError where there is none: what is missing, and what has a name like it."""
        if not self.has(name):
            near = self._near(name)
            got = "it is missing" if near is None else f"got {near!r}"
            raise ValueError(f"{self.where}: expected the field {name!r}, {got}; other releases may write it otherwise")
        return self.values[name]

    def refuse_other_name(self, name: str) -> None:
        """Raise ValueError where it lacks a field that may be missing, but has one with a name like it."""
        if name not in self.values and self._near(name) is not None:
            self.required(name)

    def _near(self, name: str) -> str | None:
        return _nearest(name, tuple(key for key in self.values if key != name))

    def number(self, name: str, *, least: float = 0.0, is_text: bool = False) -> float:
        """A finite number of at least `least`; is_text: one written as text is one too."""
        value = self.required(name)
        if is_text and isinstance(value, str):
            value = _number(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
            raise ValueError(
                f"{self.where}, {name}: expected a number of at least {least:g}, got {short(self.required(name))}"
            )
        return float(value)

    def maybe_number(self, name: str, *, least: float = 0.0) -> float | None:
        """As `number`; None where it has none."""
        return self.number(name, least=least) if self.has(name) else None

    def whole(self, name: str, *, least: int = 0) -> int:
        """A whole number."""
        value = self.number(name, least=least)
        if value != int(value):
            raise ValueError(f"{self.where}, {name}: expected a whole number, got {short(self.required(name))}")
        return int(value)

    def acceptance_length(self, name: str, *, is_text: bool = False) -> float:
        """Tokens a round: a number of at least 1, the bonus or replacement included."""
        length = self.number(name, is_text=is_text)
        if length < 1:
            raise ValueError(f"{self.where}, {name}: expected at least 1, the bonus included, got {length:g}")
        return length

    def maybe_whole(self, name: str, *, least: int = 0) -> int | None:
        """As `whole`; None where it has none."""
        return self.whole(name, least=least) if self.has(name) else None

    def entries(self, name: str) -> list[Any]:
        """A list."""
        value = self.required(name)
        if not isinstance(value, list):
            raise ValueError(f"{self.where}, {name}: expected a list, got {short(value)}")
        return value

    def wholes(self, name: str) -> list[int]:
        """A list of whole numbers of at least 0."""
        entries = self.entries(name)
        holder = Record(where=self.where, values={f"{name}[{index}]": one for index, one in enumerate(entries)})
        return [holder.whole(key) for key in holder.values]

    def record(self, name: str) -> Record:
        """A mapping inside."""
        return record_of(self.required(name), f"{self.where}, {name}")

    def maybe_record(self, name: str) -> Record | None:
        """As `record`; None where it has none, or another kind of value."""
        value = self.values.get(name)
        return Record(where=f"{self.where}, {name}", values=value) if isinstance(value, Mapping) else None

    def maybe_text(self, name: str) -> str | None:
        """A text; None where there is none."""
        value = self.values.get(name)
        return value if isinstance(value, str) and value.strip() and value.isprintable() else None


@lru_cache(maxsize=1024)
def _nearest(name: str, keys: tuple[str, ...]) -> str | None:
    """The key most like a name; cached, since the records of a file have the same keys."""
    return next(iter(get_close_matches(name, keys, n=1)), None)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def record_of(value: Any, where: str) -> Record:
    """A mapping as a record; ValueError for any other value."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: expected a mapping, got {short(value)}")
    return Record(where=where, values=value)


def json_records(path: Path) -> list[Record]:
    """The mappings of a file: one JSON mapping, a list of them, a mapping a line, or the events of a stream.

    Raises:
        ValueError: truncated, foreign, empty, too large, with NaN, or with something else than mappings.
        OSError: it is missing or cannot be read.
    """
    text = read_text(path)
    try:
        value = strict_loads(text)
    except (ValueError, RecursionError) as error:
        return list(_lines(path, text, error))
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise ValueError(f"{path}: expected results, got an empty list")
    many = len(entries) > 1
    return [record_of(one, f"{path}, entry {number}" if many else str(path)) for number, one in enumerate(entries, 1)]


def _lines(path: Path, text: str, whole: Exception) -> Iterator[Record]:
    """JSON lines, or server-sent events (`data: {…}`, perhaps after a time), of a text that is no JSON document."""
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    events = [(number, line.partition("data: ")[2]) for number, line in lines if "data: " in line[:40]]
    chosen = [(number, line) for number, line in events if line.startswith("{")] if events else lines
    if len(chosen) < 2 and not events:
        raise ValueError(f"{path}: truncated or not JSON: {_told(whole)}") from whole
    for number, line in chosen:
        try:
            value = strict_loads(line)
        except (ValueError, RecursionError) as error:
            if number == chosen[0][0]:
                raise ValueError(f"{path}: not JSON: {_told(whole)}") from whole
            raise ValueError(f"{path}, line {number}: truncated or not JSON: {_told(error)}") from error
        yield record_of(value, f"{path}, line {number}")


def _told(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (line {error.lineno})"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)[:100]


def refuse_twice(digests: Sequence[tuple[Path, str]]) -> None:
    """Refuse the same file, or a copy of it, given twice; ValueError with both names."""
    first: dict[str, Path] = {}
    for path, found in digests:
        if (earlier := first.setdefault(found, path)) is not path:
            raise ValueError(f"{path}: expected every run once, got the same content as {earlier}")
