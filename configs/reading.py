"""The one place that opens the files people hand over: regular files of a bounded size, as bytes or as text.

    read_text(path, CONFIG_BYTES)       # ValueError for a FIFO, a device, a socket, a larger file, or no UTF-8
    expanded("~/prompts.jsonl")         # ValueError where `~` names nobody

Nothing that could block or never end is opened: what a path leads to is looked at first.
"""

from __future__ import annotations

import stat
from pathlib import Path

MIB = 1 << 20
CONFIG_BYTES = MIB
"""A configuration, a hardware entry, a model's config.json: text a person reads."""
TABLE_BYTES = 64 * MIB
"""A CSV or JSON file of a run: 100,000 rows of 600 characters; larger ones take minutes to check."""
ANSWER_BYTES = 4 * MIB
"""A YAML file of a run: 6,000 decisions, ten seconds of parsing."""
PROMPT_BYTES = 1024 * MIB
"""A file of prompts: dumps of conversations reach some hundred MiB, and are read whole."""
JOURNAL_BYTES = 2048 * MIB
"""A journal: 2,000 cells of 20 arms and 20 blocks are about 600 MiB."""
PARQUET_BYTES = 8192 * MIB
"""A recorded table: some hundred million positions."""
_KINDS = {
    stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a directory",
}  # fmt: skip


def check_regular(path: Path, most_bytes: int) -> None:
    """Look at what a path leads to, without opening it.

    Raises:
        ValueError: a directory, FIFO, socket or device, or a file of more than `most_bytes`.
        OSError: there is nothing, or it may not be looked at.
    """
    found = path.stat()
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    if kind is not None:
        raise ValueError(f"{path}: expected a regular file, got {kind}")
    if found.st_size > most_bytes:
        raise _too_large(path, most_bytes)


def _too_large(path: Path, most_bytes: int) -> ValueError:
    return ValueError(f"{path}: expected at most {most_bytes // MIB} MiB, got a larger file")


def read_bytes(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file; errors as `check_regular`."""
    check_regular(path, most_bytes)
    chunks, left = [], most_bytes
    with path.open("rb") as file:
        while chunk := file.read(MIB):  # what /proc shows as empty may be endless
            chunks.append(chunk)
            left -= len(chunk)
            if left < 0:
                raise _too_large(path, most_bytes)
    return b"".join(chunks)


def read_text(path: Path, most_bytes: int) -> str:
    """The UTF-8 text of a file, without a byte order mark; every line ends in a line feed.

    Raises:
        ValueError: as `read_bytes`, or it is not UTF-8; the line is named.
        OSError: it is missing or cannot be read.
    """
    content = read_bytes(path, most_bytes)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: expected UTF-8 text, got other bytes (byte {error.start})") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def expanded(path: str | Path) -> Path:
    """The path with `~` and `~user` replaced.

    Raises:
        ValueError: there is no such user, or none has a home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{path}: expected a path, got the home of a user who is not known here") from error
