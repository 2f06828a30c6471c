"""What a process is measuring right now, left in the run directory so that its death can be told from where it died.

    with Checkpoint(run.path) as checkpoint:
        checkpoint.block(cell.id, arm, block)
        with checkpoint.part("decoding", label, stage="decoding end to end"): ...
    read_checkpoint(run.path)          # None once the process has ended by itself

A hint, not a record: it is not synced to the disk, but whole whenever the process dies.

A part is what the rest of a pair can be measured without, by the name that a checkpoint and the next worker know it by.

    part_name("decoding", "greedy, batch size 1, context 64")  →  "decoding: greedy, batch size 1, context 64"
    names_of("decoding", parts)                                →  ["greedy, batch size 1, context 64"]

The timing of a cell is such a part too; its name is the cell's id.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

Kind = Literal["acceptance", "rejected drafts", "decoding"]
"""Texts and acceptance under a sampling setting; draft chains off its texts; the decoding end to end of a cell."""


def part_name(kind: Kind, name: str) -> str:
    """What a part is called among all kinds."""
    return f"{kind}: {name}"


def names_of(kind: Kind, parts: Iterable[str]) -> list[str]:
    """The names of the parts of one kind, in their order."""
    prefix = part_name(kind, "")
    return [part.removeprefix(prefix) for part in parts if part.startswith(prefix)]


def reasons_of(kind: Kind, reasons: Mapping[str, str]) -> dict[str, str]:
    """Those of one kind among the reasons of parts, by name."""
    return {name: reasons[part_name(kind, name)] for name in names_of(kind, reasons)}


MARK = ".checkpoint.json"
_UNFINISHED = f"{MARK}.tmp"


class Checkpoint:
    """The checkpoint of one process."""

    def __init__(self, folder: Path) -> None:
        """Work in a run directory."""
        self._path = folder / MARK
        self._part: dict[str, str] = {}

    def stage(self, stage: str) -> None:
        """Something that is no block of a cell, such as loading."""
        self._write({"stage": stage})

    def block(self, cell: str, arm: str, block: int) -> None:
        """A block of a cell's arm."""
        self._write({"stage": f"timing {arm}", "cell": cell, "arm": arm, "block": block})

    @contextmanager
    def part(self, kind: Kind, name: str, *, stage: str) -> Iterator[None]:
        """A part that the rest of the pair can be measured without; every stage inside is a stage of it."""
        self._part = {"part": part_name(kind, name)}
        self.stage(stage)
        try:
            yield
        finally:
            self._part = {}
            self.stage(stage)

    def _write(self, content: dict[str, Any]) -> None:
        with suppress(OSError):  # a full disk: the journal tells it, where it matters
            unfinished = self._path.with_name(_UNFINISHED)
            unfinished.write_text(json.dumps({**content, **self._part, "pid": os.getpid()}), encoding="utf-8")
            unfinished.replace(self._path)

    def __enter__(self) -> Self:
        """Nothing is measured yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The process goes on or ends by itself: no checkpoint."""
        clear_checkpoint(self._path.parent)


def clear_checkpoint(folder: Path) -> None:
    """Forget what was being measured."""
    for name in (_UNFINISHED, MARK):
        with suppress(OSError):
            (folder / name).unlink(missing_ok=True)


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """What a process that died was doing; None where it left no checkpoint."""
    try:
        content = json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("stage"), str) else None
