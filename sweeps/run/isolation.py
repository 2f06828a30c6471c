"""Measure a pair in a process of its own, so that its death costs the part it was at and never the run.

    outcome = measure_apart(run_path, config, "embedded", say=print)

A worker (`specgauge.sweeps.run.worker`) that dies in the timing of a cell has that cell recorded as `killed`, with the
signal; one that dies while it writes or judges the texts of a sampling setting, or decodes a cell end to end, leaves
that as the reason why these are missing; one that follows rejected drafts is told of on stderr and in the exit code, as
a failure there is. It is started again for the rest, each time with one part less to do. One that dies anywhere else,
as while it loads, ends the pair, every arm that has no block recorded as `killed`. The next run tries what was killed
once more. A worker whose parent dies, however it dies, ends as on Ctrl-C: the pipe that is its stdin closes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.run.limits import Deadline
from specgauge.sweeps.run.worker import INTERRUPTED, WorkerOutcome, read_outcome, seconds_told
from specgauge.sweeps.store.checkpoint import clear_checkpoint, names_of, read_checkpoint, reasons_of
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.rundir import ACCEPTANCE, acceptance_file_name
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

WORKER: tuple[str, ...] = ("-P", "-m", "specgauge.sweeps.run.worker")
"""What Python is told to run; -P: whatever lies in the user's folder is no module of the worker's."""
GRACE_S = 5.0
"""Time for a worker to end by itself after a Ctrl-C that it may have had too, before it is told to."""


def measure_apart(
    run: Path, config: Config, pair: str, *, say: Callable[[str], None], deadline: Deadline | None = None
) -> WorkerOutcome:
    """Measure one pair of the run directory `run`, which nobody else may have open; begin nothing after `deadline`.

    Raises:
        ValueError: the directory is not taken up: another machine's run, or another process writes it.
        StorageError: the disk refused a write.
        KeyboardInterrupt: it was interrupted; every finished block is kept.
        RuntimeError: the worker met something nobody foresaw.
    """
    left_alone: list[str] = []
    reasons: dict[str, str] = {}
    try:
        while True:
            code, outcome = _start(run, pair, [*seconds_told(deadline), *left_alone])
            if code in (INTERRUPTED, -signal.SIGINT):
                raise KeyboardInterrupt
            if outcome is not None:
                _raise_what_ends_the_run(outcome, pair)
                return _with_reasons(replace(outcome, failed=outcome.failed or bool(left_alone)), reasons)
            mark, words = read_checkpoint(run) or {"stage": "starting"}, _death(code)
            is_timing, where = "cell" in mark, f"{words}, while {mark['stage']}"
            say(f"pair {pair}: killed: {words if is_timing else where}")
            part = mark["cell"] if is_timing else mark.get("part")
            if part is None or part in left_alone:
                return _with_reasons(_end_pair(run, config, pair, where), reasons)
            if is_timing:
                _record(run, config, mark, words)
            else:
                reasons[part] = f"killed: {words if names_of('decoding', [part]) else where}"
            left_alone.append(part)
    finally:
        clear_checkpoint(run)


def _with_reasons(outcome: WorkerOutcome, reasons: Mapping[str, str]) -> WorkerOutcome:
    """The outcome of the last worker, with why parts were left alone."""
    return replace(
        outcome,
        acceptance_reasons={**outcome.acceptance_reasons, **reasons_of("acceptance", reasons)},
        verify_reasons={**reasons_of("decoding", reasons), **outcome.verify_reasons},
    )


def _raise_what_ends_the_run(outcome: WorkerOutcome, pair: str) -> None:
    """As `measure_apart`; a pair that was measured as far as it went raises nothing."""
    if outcome.refused is not None:
        raise ValueError(outcome.refused)
    if outcome.storage_error is not None:
        raise StorageError(outcome.storage_error)
    if outcome.crash is not None:
        raise RuntimeError(f"pair {pair}: {outcome.crash}")


def _start(run: Path, pair: str, told: list[str]) -> tuple[int, WorkerOutcome | None]:
    """(exit code, outcome if it left one) of a new worker; its lines go where this process's stderr goes.

    told: the seconds it has, where they are limited, and the names of the parts it is to leave alone.
    """
    clear_checkpoint(run)
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder) / "outcome.json"
        command = [sys.executable, *WORKER, str(run), pair, str(left), *told]
        shown = _stderr()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=shown, stderr=shown, env=_environment()) as worker:
            try:
                code = worker.wait()
            except KeyboardInterrupt:
                _wait_for_the_end(worker)
                raise
        return code, read_outcome(left)


def _wait_for_the_end(worker: subprocess.Popen[bytes]) -> None:
    """Wait for a worker that had the same Ctrl-C and ends its line of the journal, or is told so."""
    assert worker.stdin is not None
    try:
        worker.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        worker.stdin.close()
        worker.wait()


def _stderr() -> int:
    """The descriptor of this process's stderr, for a worker to write to; nowhere where it has none."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):
        return subprocess.DEVNULL


def _environment() -> Mapping[str, str]:
    """This process's, with the folder that the package was imported from on the worker's path."""
    root = str(Path(__file__).resolve().parents[2])
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
    """Journal lines of the cell that was under way: of its block, and of every arm that has none."""
    cell = next(cell for cell in plan_cells(config) if cell.id == mark["cell"])
    with OpenRun.open(run, config, fresh=False) as opened:
        if not opened.journal.done(cell.id, mark["arm"], mark["block"]):
            _append(opened, cell, mark["arm"], mark["block"], reason)
        _append_missing(opened, [cell], reason)


def _end_pair(run: Path, config: Config, pair: str, reason: str) -> WorkerOutcome:
    """The outcome of a pair that is not tried again, every arm without a block recorded as killed."""
    killed = f"killed: {reason}"
    with OpenRun.open(run, config, fresh=False) as opened:
        _append_missing(opened, [cell for cell in plan_cells(config) if cell.pair == pair], reason)
    names = (sampling.name for sampling in config.sampling)
    return WorkerOutcome(
        died=killed,
        failed=True,
        acceptance_reasons={
            name: killed for name in names if not (run / ACCEPTANCE / acceptance_file_name(pair, name)).is_file()
        },
        verify_reasons={} if config.validation is None else {"every cell": killed},
    )


def _append_missing(opened: OpenRun, cells: Iterable[Cell], reason: str) -> None:
    """A line for every arm of the cells that has no block."""
    known = {(line.cell, line.arm) for line in opened.journal.latest.values()}
    for cell in cells:
        for arm in arm_names(opened.config.grid.gamma, catches_up=cell.catches_up):
            if (cell.id, arm) not in known:
                _append(opened, cell, arm, 0, reason)


def _append(opened: OpenRun, cell: Cell, arm: str, block: int, reason: str) -> None:
    opened.journal.append(
        {"axes": cell.axes, "arm": arm, "block": block, "status": "killed", "reason": reason, "samples_s": []}
    )
