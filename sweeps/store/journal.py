"""The append-only journal of a run, `cells.jsonl`: one strict-JSON line per (cell, arm, block).

A line is on the disk (flushed and synced) before `append` returns, so `kill -9` loses at most the block under way.
A line torn by a kill is passed over when reading and cut off before the next append, never glued to a new line; damage
anywhere else is an error that names the line. One process writes at a time, held by a lock that dies with it.

    with Journal.open(path, config=config_hash(config)) as journal:
        if not journal.done(cell, arm, block): journal.append({...})

One line of the journal: what one arm of one cell gave in one block.

A cell is a point of the sweep (its axes); an arm is one thing timed there: `decode`, `draft`, `draft_catch_up`,
`verify:<gamma>`, `prefill_target`, `prefill_draft`. A sample is a list of cumulative marks in seconds: one mark for
most arms, the marks C(1), …, C(γ_max) for `draft`. Raw samples and warm-ups are kept; statistics derive from them.
"""

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

from specgauge.configs.canonical import canonical_json, short_hash, strict_loads
from specgauge.sweeps.store.files import storage_error

SCHEMA = 1
Status = Literal["ok", "oom", "skipped", "failed", "killed"]
STATUSES: tuple[str, ...] = get_args(Status)
AXES = ("pair", "mode", "chain", "batch_size", "context")
SETTLED: frozenset[str] = frozenset({"ok", "oom", "skipped"})
"""Statuses that are results; a block that failed or was killed is measured again by the next run."""
_ARM = re.compile(r"decode|draft|draft_catch_up|verify:[1-9][0-9]*|prefill_target|prefill_draft")
_TEXT_AXES = ("pair", "mode", "chain")
_REQUIRED = ("schema", "config", "cell", "axes", "arm", "block", "status")

Key = tuple[str, str, int]


class ReleaseError(ValueError):
    """Written by a release of specgauge with another file format."""


@dataclass(frozen=True, kw_only=True)
class JournalLine:
    """One (cell, arm, block). Times in seconds; `device_s` is the wall time the line cost, None when unknown."""

    config: str
    cell: str
    axes: Mapping[str, Any]
    arm: str
    block: int
    status: Status
    reason: str | None = None
    samples_s: tuple[tuple[float, ...], ...] = ()
    first_call_s: float | None = None
    warmup_s: tuple[tuple[float, ...], ...] = ()
    device_s: float | None = None
    at: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def key(self) -> Key:
        """What the line is about: (cell, arm, block)."""
        return self.cell, self.arm, self.block

    def to_json(self) -> str:
        """The line's canonical JSON, without the line's end."""
        return canonical_json(
            {
                "schema": self.schema,
                "config": self.config,
                "cell": self.cell,
                "axes": dict(self.axes),
                "arm": self.arm,
                "block": self.block,
                "status": self.status,
                "reason": self.reason,
                "samples_s": [list(sample) for sample in self.samples_s],
                "first_call_s": self.first_call_s,
                "warmup_s": [list(sample) for sample in self.warmup_s],
                "device_s": self.device_s,
                "at": self.at,
                "notes": dict(self.notes),
            }
        )


def parse_line(value: Any) -> JournalLine:
    """The journal line that a decoded JSON value stands for.

    Raises:
        ValueError: not a line of this journal format; the message names the field, without the place.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"a JSON object is expected, found {type(value).__name__}")
    missing = [name for name in _REQUIRED if name not in value]
    if missing:
        raise ValueError(f"the field {missing[0]!r} is missing")
    if value["schema"] != SCHEMA:
        raise ReleaseError(
            f"schema {value['schema']!r} was written by another release (this one reads schema {SCHEMA})"
        )
    unknown = sorted(set(value) - set(JournalLine.__dataclass_fields__))
    if unknown:
        raise ValueError(f"the field {unknown[0]!r} is unknown")
    axes = _axes(value["axes"])
    if value["cell"] != short_hash(axes):
        raise ValueError(f"cell {value['cell']!r} is not the hash of its axes ({short_hash(axes)!r})")
    return JournalLine(
        config=_text(value, "config"),
        cell=value["cell"],
        axes=axes,
        arm=_arm(value["arm"]),
        block=_count(value, "block"),
        status=_status(value["status"]),
        reason=_text(value, "reason") if value.get("reason") is not None else None,
        samples_s=_samples(value.get("samples_s", ()), "samples_s"),
        first_call_s=_seconds(value.get("first_call_s"), "first_call_s"),
        warmup_s=_samples(value.get("warmup_s", ()), "warmup_s"),
        device_s=_seconds(value.get("device_s"), "device_s"),
        at=_text(value, "at") if value.get("at") is not None else None,
        notes=_notes(value.get("notes")),
    )


def _axes(axes: Any) -> dict[str, Any]:
    if not isinstance(axes, Mapping) or sorted(axes) != sorted(AXES):
        raise ValueError(f"axes must have exactly the keys {', '.join(AXES)}, found {axes!r}")
    for name in AXES:
        if name in _TEXT_AXES:
            _text(axes, name)
        else:
            _count(axes, name)
    return dict(axes)


def _text(value: Mapping[str, Any], name: str) -> str:
    found = value[name]
    if not isinstance(found, str):
        raise ValueError(f"{name} must be text, found {found!r}")
    return found


def _count(value: Mapping[str, Any], name: str) -> int:
    found = value[name]
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ValueError(f"{name} must be a whole number of at least 0, found {found!r}")
    return found


def _arm(arm: Any) -> str:
    if not isinstance(arm, str) or not _ARM.fullmatch(arm):
        allowed = "decode, draft, draft_catch_up, verify:<gamma>, prefill_target, prefill_draft"
        raise ValueError(f"arm {arm!r} is unknown, allowed: {allowed}")
    return arm


def _status(status: Any) -> Status:
    if status not in STATUSES:
        raise ValueError(f"status {status!r} is unknown, allowed: {', '.join(STATUSES)}")
    known: Status = status
    return known


def _seconds(value: Any, name: str) -> float | None:
    if value is None:
        return None
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise ValueError(f"{name} must be finite seconds of at least 0, found {value!r} (unknown is null)")
    return float(value)


def _samples(samples: Any, name: str) -> tuple[tuple[float, ...], ...]:
    if not isinstance(samples, Sequence) or isinstance(samples, str):
        raise ValueError(f"{name} must be a list of samples, each a list of marks in seconds, found {samples!r}")
    checked = []
    for sample in samples:
        if not isinstance(sample, Sequence) or isinstance(sample, str) or not sample:
            raise ValueError(f"{name} must hold non-empty lists of marks in seconds, found {sample!r}")
        marks = [_seconds(mark, name) for mark in sample]
        if None in marks:
            raise ValueError(f"{name} holds null, a mark must be a number of seconds")
        checked.append(tuple(mark for mark in marks if mark is not None))
    return tuple(checked)


def _notes(notes: Any) -> dict[str, Any]:
    if notes is None:
        return {}
    if not isinstance(notes, Mapping):
        raise ValueError(f"notes must be a mapping, found {notes!r}")
    return dict(notes)


@dataclass(frozen=True, kw_only=True)
class JournalContent:
    """What a journal file holds: its lines in order, and how many bytes of it are whole lines."""

    lines: tuple[JournalLine, ...]
    whole_bytes: int
    torn_bytes: int

    def latest(self) -> dict[Key, JournalLine]:
        """The last line of every (cell, arm, block), in order of first appearance."""
        return {line.key: line for line in self.lines}


def read_journal(path: Path) -> JournalContent:
    """Read a journal; a torn last line (no line end) is passed over and counted in `torn_bytes`.

    Raises:
        ValueError: the file cannot be read, or a whole line of it is damaged, foreign or of another release.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: cannot read the journal: {error.strerror or error}") from error
    whole_bytes = content.rfind(b"\n") + 1
    lines = [_decode(path, number, raw) for number, raw in enumerate(content[:whole_bytes].split(b"\n")[:-1], start=1)]
    return JournalContent(lines=tuple(lines), whole_bytes=whole_bytes, torn_bytes=len(content) - whole_bytes)


def _decode(path: Path, number: int, raw: bytes) -> JournalLine:
    try:
        return parse_line(strict_loads(raw.decode("utf-8")))
    except (ValueError, RecursionError) as error:
        found = f"not JSON: {error.msg}" if isinstance(error, json.JSONDecodeError) else str(error)
        if isinstance(error, UnicodeDecodeError):
            found = "not UTF-8 text"
        remedy = (
            "read it with that release" if isinstance(error, ReleaseError) else "delete that line to measure it again"
        )
        raise ValueError(f"{path}, line {number}: {found}; {remedy}, or start anew with --fresh") from error


class Journal:
    """The open journal of a run; the one writer of its file."""

    def __init__(self, path: Path, descriptor: int, config: str) -> None:
        """Use `Journal.open`."""
        self._path = path
        self._descriptor = descriptor
        self._config = config
        self._lines: list[JournalLine] = []
        self._latest: dict[Key, JournalLine] = {}
        self._size = 0

    @classmethod
    def open(cls, path: Path, *, config: str, locked: int | None = None) -> Self:
        """Lock and read the journal at `path` (made when absent) for the run of the config hash `config`.

        `locked`: what `lock_for_writing(path)` gave a caller that holds the lock already; the journal owns it from now.

        Raises:
            ValueError: another process writes it, it cannot be opened, a line is damaged, or a line belongs to
                another config.
        """
        journal = cls(path, lock_for_writing(path) if locked is None else locked, config)
        try:
            journal._load()
        except BaseException:
            journal.close()
            raise
        return journal

    def _load(self) -> None:
        content = read_journal(self._path)
        for number, line in enumerate(content.lines, start=1):
            if line.config != self._config:
                raise ValueError(
                    f"{self._path}, line {number}: measured for config {line.config}, this run's is {self._config}; "
                    f"start anew with --fresh, or give another --out"
                )
        if content.torn_bytes:
            self._truncate(content.whole_bytes)
        self._size = content.whole_bytes
        self._lines = list(content.lines)
        self._latest = content.latest()

    def _truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
            os.fsync(self._descriptor)
        except OSError as error:
            raise storage_error(self._path, error) from error

    @property
    def lines(self) -> tuple[JournalLine, ...]:
        """Every line so far, in the order written."""
        return tuple(self._lines)

    @property
    def latest(self) -> Mapping[Key, JournalLine]:
        """The last line of every (cell, arm, block)."""
        return self._latest

    def done(self, cell: str, arm: str, block: int) -> bool:
        """Whether the block has a result: measured, out of memory or skipped. What failed or was killed has none."""
        line = self._latest.get((cell, arm, block))
        return line is not None and line.status in SETTLED

    def append(self, record: Mapping[str, Any]) -> JournalLine:
        """Write one line and wait until it is on the disk. `schema`, `config`, `cell` and `at` are filled in.

        Raises:
            ValueError: the record is no journal line (NaN, unknown arm or field, …).
            StorageError: the disk refused the write; the journal keeps whole lines only.
        """
        stamped = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **record,
            "schema": SCHEMA,
            "config": self._config,
            "cell": short_hash(record.get("axes")),
        }
        try:
            line = parse_line(stamped)
            encoded = line.to_json().encode("ascii") + b"\n"
        except ValueError as error:
            raise ValueError(f"{self._path}: refused a line: {error}") from error
        self._write(encoded)
        self._lines.append(line)
        self._latest[line.key] = line
        return line

    def _write(self, encoded: bytes) -> None:
        rest = memoryview(encoded)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except BaseException as error:
            with suppress(OSError):  # a tail that cannot be cut off now is a torn line: the next opening cuts it off
                os.ftruncate(self._descriptor, self._size)
            if isinstance(error, OSError):
                raise storage_error(self._path, error) from error
            raise
        self._size += len(encoded)

    def close(self) -> None:
        """Close the file and let go of its lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        """The journal itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()


def lock_for_writing(path: Path) -> int:
    """Open `path` for appending (made when absent) and hold its lock: a file descriptor, closed to let go.

    Raises:
        ValueError: another process holds the lock, or the file cannot be opened or locked.
    """
    import fcntl  # absent where files cannot be locked this way; reading a journal must work there too

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ValueError(f"{path}: cannot open it for writing: {error.strerror}; give another --out") from error
    busy = f"{path}: another specgauge process is writing this run; wait until it ends, or give another --out"
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(descriptor), path.stat()):  # renamed by --fresh since it was opened
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError) as error:
        os.close(descriptor)
        raise ValueError(busy) from error
    except OSError as error:
        os.close(descriptor)
        raise ValueError(
            f"{path}: this file system cannot lock files ({error.strerror}); give an --out on a local disk"
        ) from error
    return descriptor
