"""The append-only journal of a run, `cells.jsonl`: one strict-JSON line per (cell, arm, block).

A line is on the disk (flushed and synced) before `append` returns, so `kill -9` loses at most the block being measured.
A line torn by a kill is passed over when reading and cut off before the next append, never glued to a new line. Each
line carries a checksum, the hash of its other fields: one that differs was altered since it was written; it is left out
and told by its number, and what it was of is measured again. One process writes at a time, held by a lock that dies
with it.

    journal = Journal(path, config=config_hash(config))
    if not journal.done(cell, arm, block): journal.append({...})
    journal.close()
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from specgauge.configs.canonical import canonical_json, short_hash, strict_loads
from specgauge.configs.reading import JOURNAL_BYTES, check_regular, read_bytes
from specgauge.sweeps.store.files import storage_error
from specgauge.sweeps.store.rows import START_ANEW, plain, row_of
from specgauge.sweeps.store.schema import SETTLED, JournalLine

_AGAIN = "delete that line to measure it again, or start anew with --fresh"


CHECKSUM = "checksum"


class JournalContent(NamedTuple):
    """The whole lines of a journal file in order, and the bytes of them and of a last line that was torn."""

    lines: tuple[JournalLine, ...]
    altered: tuple[int, ...]
    """Numbers, from 1, of the whole lines that are left out: they are not as they were written."""
    whole_bytes: int
    torn_bytes: int


def read_journal(path: Path) -> JournalContent:
    """Read a journal; a torn last line (no line end) is passed over and counted in `torn_bytes`.

    Raises:
        ValueError: the file cannot be read, or a line of it is foreign or of another release, although it is as it was
            written.
    """
    try:
        content = read_bytes(path, JOURNAL_BYTES)
    except ValueError as error:
        raise ValueError(f"{error}; {START_ANEW}") from error
    except OSError as error:
        raise ValueError(f"{path}: cannot read the journal: {error.strerror or error}; {START_ANEW}") from error
    whole_bytes = content.rfind(b"\n") + 1
    lines: list[JournalLine] = []
    altered = []
    for number, raw in enumerate(content[:whole_bytes].split(b"\n")[:-1], start=1):
        written = _as_written(raw)
        if written is None:
            altered.append(number)
        else:
            lines.append(row_of(JournalLine, written, f"{path}, line {number}", _AGAIN))
    return JournalContent(
        lines=tuple(lines), altered=tuple(altered), whole_bytes=whole_bytes, torn_bytes=len(content) - whole_bytes
    )


def _as_written(raw: bytes) -> dict[str, Any] | None:
    """The fields of a line; None where they do not give its checksum."""
    try:
        value = strict_loads(raw.decode("utf-8"))
        if isinstance(value, dict) and value.pop(CHECKSUM, None) == short_hash(value):
            return value
    except (ValueError, RecursionError):
        pass
    return None


def journal_line(line: JournalLine) -> bytes:
    """The line of the file, its checksum and end included; ValueError for NaN."""
    fields = plain(line)
    return canonical_json(fields | {CHECKSUM: short_hash(fields)}).encode("ascii") + b"\n"


class Journal:
    """The open journal of a run; the one writer of its file."""

    def __init__(self, path: Path, *, config: str, locked: int | None = None) -> None:
        """Lock and read the journal at `path` (made when absent) for the run of the config hash `config`.

        `locked`: what `lock_for_writing(path)` gave a caller that holds the lock already; the journal owns it from now.

        Raises:
            ValueError: another process writes it, it cannot be opened, a line is damaged, or a line belongs to
                another config.
            StorageError: a torn last line cannot be cut off.
        """
        descriptor = lock_for_writing(path) if locked is None else locked
        try:
            content = read_journal(path)
            for line in content.lines:
                if line.config != config:
                    raise ValueError(
                        f"{path}: a line was measured for config {line.config}, this run's is {config}; "
                        f"start anew with --fresh, or give another --out"
                    )
            if content.torn_bytes:
                os.ftruncate(descriptor, content.whole_bytes)
                os.fsync(descriptor)
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise storage_error(path, error) from error
            raise
        self._path, self._descriptor, self._config, self._size = path, descriptor, config, content.whole_bytes
        self.lines = list(content.lines)
        """Every line so far, in the order written."""
        self.latest = {line.key: line for line in content.lines}
        """The last line of every (cell, arm, block)."""

    def done(self, cell: str, arm: str, block: int) -> bool:
        """Whether the block has a result: measured, out of memory or skipped. What failed or was killed has none."""
        line = self.latest.get((cell, arm, block))
        return line is not None and line.status in SETTLED

    def append(self, record: Mapping[str, Any]) -> JournalLine:
        """Write one line and wait until it is on the disk. `config`, `cell` and `at` are filled in.

        Raises:
            ValueError: the record is no journal line (NaN, unknown arm or field, …).
            StorageError: the disk refused the write; the journal keeps whole lines only.
        """
        stamped = {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **record,
            "config": self._config,
            "cell": short_hash(record.get("axes")),
        }
        line = row_of(JournalLine, stamped, f"{self._path}: refused a line", "nothing is written")
        try:
            encoded = journal_line(line)
        except ValueError as error:
            raise ValueError(f"{self._path}: refused a line: {error}") from error
        self._write(encoded)
        self.lines.append(line)
        self.latest[line.key] = line
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


def lock_for_writing(path: Path) -> int:
    """Open `path` for appending (made when absent) and hold its lock: a file descriptor, closed to let go.

    Raises:
        ValueError: another process holds the lock, or the file cannot be opened or locked.
    """
    import fcntl  # absent where files cannot be locked this way; reading a journal must work there too

    try:
        if path.exists() and not path.is_dir():
            check_regular(path, JOURNAL_BYTES)
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
