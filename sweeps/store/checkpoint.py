"""What a process is measuring right now, left in the run directory so that its death can be told from where it died.

    with Checkpoint(run.path) as checkpoint:
        checkpoint.block(cell.id, arm, block)
        with checkpoint.skippable("decoding", label, stage="decoding end to end"): ...
    read_checkpoint(run.path)          # None once the process has ended by itself

A hint, not a record: it is not synced to the disk, but whole whenever the process dies, since each is one write over
the one before. It is written before every sample that is timed, so it must cost next to nothing. What the rest of a
pair can be measured without has a kind and a name, by which the next worker skips it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from specgauge.configs.reading import CONFIG_BYTES, read_text

Kind = Literal["timing", "acceptance", "rejected drafts", "decoding"]
"""The timing of a cell, named by its id; texts and acceptance under a sampling setting; draft chains off its texts; the
decoding end to end of a cell, named by its label."""
Label = tuple[Kind, str]
"""Kind and name of what can be skipped."""
MARK = ".checkpoint.json"


class Checkpoint(AbstractContextManager["Checkpoint"]):
    """The checkpoint of one process in a run directory; none is left when its context ends."""

    def __init__(self, folder: Path) -> None:
        """Nothing is measured yet."""
        self._path = folder / MARK
        self._skippable: dict[str, str] = {}
        self._descriptor: int | None = None
        self._size = 0

    def stage(self, stage: str) -> None:
        """Something that is no block of a cell, such as loading."""
        self._write({"stage": stage})

    def block(self, cell: str, arm: str, block: int) -> None:
        """A block of a cell's arm."""
        self._write({"stage": f"timing {arm}", "kind": "timing", "name": cell, "arm": arm, "block": block})

    @contextmanager
    def skippable(self, kind: Kind, name: str, *, stage: str) -> Iterator[None]:
        """What the next process can skip, should this one die in it; every stage inside is a stage of it."""
        self._skippable = {"kind": kind, "name": name}
        self.stage(stage)
        try:
            yield
        finally:
            self._skippable = {}
            self.stage(stage)

    def _write(self, content: dict[str, Any]) -> None:
        with suppress(OSError):  # a full disk: the journal tells it, where it matters
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            text = json.dumps({**content, **self._skippable, "pid": os.getpid()}).encode("ascii")
            self._size = max(self._size, len(text))
            os.pwrite(self._descriptor, text.ljust(self._size), 0)

    def __exit__(self, *_: object) -> None:
        """The process goes on or ends by itself: no checkpoint."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self._size = None, 0
        clear_checkpoint(self._path.parent)


def clear_checkpoint(folder: Path) -> None:
    """Forget what was being measured."""
    with suppress(OSError):
        (folder / MARK).unlink(missing_ok=True)


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """What a process that died was doing; None where it left no checkpoint."""
    try:
        content = json.loads(read_text(folder / MARK, CONFIG_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("stage"), str) else None
