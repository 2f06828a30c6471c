"""Whole files or none: atomic writes, and one clear line when the disk is full.

A file appears under its name only after every byte of it is on the disk: temporary file beside it, sync, rename. What a
full disk interrupts is a `StorageError`: what was measured before is kept, and the same command is resumed from there.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

RUNS = Path("runs")
"""Where run directories are, unless told otherwise."""
FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})


class StorageError(OSError):
    """The disk refused a write: full, over a quota or a file size limit, or failing."""


def check_output(path: Path, example: str) -> None:
    """Look at where a file is to be written, before anything is made for it.

    Raises:
        ValueError: a directory, FIFO, socket or device is there, or there is no folder to put it into.
    """
    if path.is_dir():
        raise ValueError(f"{path}: is a directory, a file name is expected (for example {path / example})")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: is no file, a file name is expected (for example {example})")
    if not path.parent.is_dir():
        raise ValueError(f"{path}: the folder {path.parent} does not exist; make it first, or name another")


def storage_error(path: Path, error: OSError) -> StorageError:
    """The one line for a write that the operating system refused."""
    what, remedy = error.strerror or error, "put that right"
    if error.errno in FULL:
        what, remedy = os.strerror(error.errno or 0), "free some space (or raise the limit)"
    return StorageError(
        f"{path}: cannot write, {what}: what was measured before is kept; {remedy} and run the same command again, "
        "it is resumed from here"
    )


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the name `path` when the block ends without an error.

    Raises:
        StorageError: the operating system refused the write; no part of the file is left, an older `path` stays.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the name survives a power cut too
        finally:
            os.close(folder)
    except BaseException as error:
        with suppress(OSError):  # the error that brought us here is the one to report
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, StorageError):
            raise storage_error(path, error) from error
        raise


def write_text_atomically(path: Path, text: str) -> None:
    """Write UTF-8 `text` to `path`, whole or not at all.

    Raises:
        StorageError: the operating system refused the write; an older `path` stays.
    """
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(text)
