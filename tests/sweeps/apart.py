"""What the tests of workers share: a configuration of two cells, and journals read briefly."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.store.checkpoint import read_checkpoint
from specgauge.sweeps.store.schema import JournalLine
from tests.sweeps import made

CONFIG = made.config(grid={"batch_size": 1, "context": [64, 65], "gamma": "1:2"})
ARMS = arm_names((1, 2))
FIRST, SECOND = plan_cells(CONFIG)
PATIENCE_S = 300.0
"""No test waits for so long; one that would fails."""
KILLED = "its process got SIGKILL, as the system does when memory runs out"


def pairs(*names: str) -> list[dict[str, str]]:
    return [{"name": name, "target": "embedded", "draft": "embedded"} for name in names]


def by_cell(lines: Iterable[JournalLine]) -> dict[str, set[str]]:
    """The statuses in a journal by cell, of lines about the same block the last."""
    found: dict[str, set[str]] = {}
    for line in {line.key: line for line in lines}.values():
        found.setdefault(line.cell, set()).add(line.status)
    return found


def measured(lines: Iterable[JournalLine]) -> list[tuple[str, str, int]]:
    return [line.key for line in lines if line.status == "ok"]


def wait_for(found: Callable[[], Any]) -> Any:
    """What `found` finds, as soon as it finds something."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        value = found()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def worker_of(run: Path, cell: Cell) -> int | None:
    """The process that measures that cell now."""
    mark = read_checkpoint(run)
    return None if mark is None or mark.get("name") != cell.id else int(mark["pid"])


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and waits for its parent to look does not."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2][0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
