"""Measure a pair in a process of its own, so that its death costs one cell and never the run.

    outcome = measure_apart(run_path, config, "embedded", say=print)

A worker (`specgauge.sweeps.worker`) that dies in a cell has that cell recorded as `killed`, with the signal, and is
started again for the rest; one that dies while it loads, writes texts or decodes end to end ends the pair, every arm
that has no block recorded as `killed`. The next run tries what was killed once more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.sweeps.files import StorageError
from specgauge.sweeps.opening import OpenRun
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.worker import INTERRUPTED, WorkerOutcome, read_outcome
from specgauge.sweeps.working import clear_mark, read_mark

if TYPE_CHECKING:
    from specgauge.configs.schema import Config


def measure_apart(run: Path, config: Config, pair: str, *, say: Callable[[str], None]) -> WorkerOutcome:
    """Measure one pair of the run directory `run`, which nobody else may have open.

    Raises:
        ValueError: the directory is not taken up: another machine's run, or another process writes it.
        StorageError: the disk refused a write.
        KeyboardInterrupt: it was interrupted; every finished block is kept.
        RuntimeError: the worker met something nobody foresaw.
    """
    left_alone: list[str] = []
    while True:
        code, outcome = _start(run, pair, left_alone)
        if code == INTERRUPTED or code == -signal.SIGINT:
            raise KeyboardInterrupt
        if outcome is not None and outcome.refused is not None:
            raise ValueError(outcome.refused)
        if outcome is not None and outcome.storage_error is not None:
            raise StorageError(outcome.storage_error)
        if outcome is not None and outcome.crash is not None:
            raise RuntimeError(f"pair {pair}: {outcome.crash}")
        if outcome is not None:
            return _with_deaths(outcome, left_alone)
        mark, words = read_mark(run), _death(code)
        say(f"pair {pair}: killed: {words}")
        cell = mark.get("cell") if mark is not None else None
        if cell is None or cell in left_alone:
            reason = f"{words}, while {mark['stage'] if mark is not None else 'starting'}"
            _record_whole(run, config, pair, reason)
            return WorkerOutcome(failed=True, verify_reasons={"every cell": f"killed: {reason}"})
        assert mark is not None
        _record(run, config, mark, words)
        left_alone.append(cell)


def _start(run: Path, pair: str, left_alone: list[str]) -> tuple[int, WorkerOutcome | None]:
    """(exit code, outcome if it left one) of a new worker; its lines go where this process's stderr goes."""
    clear_mark(run)
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder) / "outcome.json"
        command = [sys.executable, "-m", "specgauge.sweeps.worker", str(run), pair, str(left), *left_alone]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=_environment()) as worker:
            try:
                code = worker.wait()
            except KeyboardInterrupt:
                worker.wait()  # it had the same Ctrl-C, and ends its line of the journal
                raise
        return code, read_outcome(left)


def _environment() -> Mapping[str, str]:
    """This process's, with the folder that the package was imported from on the worker's path."""
    root = str(Path(__file__).resolve().parents[1])
    package = Path(sys.modules["specgauge"].__file__ or root).parent.parent
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), *([known] if known else [])])}


def _death(code: int) -> str:
    """How a worker ended, in words."""
    if code >= 0:
        return f"its process ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    often = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"its process got {name}{often}"


def _record(run: Path, config: Config, mark: Mapping[str, Any], reason: str) -> None:
    """A journal line for the block that was under way."""
    cell = next(cell for cell in plan_cells(config) if cell.id == mark["cell"])
    with OpenRun.open(run, config, fresh=False) as opened:
        _append(opened, cell, mark["arm"], mark["block"], reason)


def _append(opened: OpenRun, cell: Cell, arm: str, block: int, reason: str) -> None:
    opened.journal.append(
        {"axes": cell.axes, "arm": arm, "block": block, "status": "killed", "reason": reason, "samples_s": []}
    )


def _record_whole(run: Path, config: Config, pair: str, reason: str) -> None:
    """A line for every arm of the pair that has no block."""
    from specgauge.model.arms import arm_names

    with OpenRun.open(run, config, fresh=False) as opened:
        known = {(line.cell, line.arm) for line in opened.journal.latest.values()}
        for cell in plan_cells(config):
            arms = arm_names(config.grid.gamma, catches_up=cell.catches_up) if cell.pair == pair else ()
            for arm in arms:
                if (cell.id, arm) not in known:
                    _append(opened, cell, arm, 0, reason)


def _with_deaths(outcome: WorkerOutcome, left_alone: list[str]) -> WorkerOutcome:
    """The outcome, failed where a cell was killed."""
    if not left_alone:
        return outcome
    return WorkerOutcome(
        bad_input=outcome.bad_input,
        failed=True,
        acceptance_reasons=outcome.acceptance_reasons,
        verify_reasons=outcome.verify_reasons,
    )
