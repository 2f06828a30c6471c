"""Measure a pair in a process of its own, so that its death costs the checkpoint it was at and never the run.

    outcome = measure_apart(run_path, config, "embedded", say=print)

The worker is spawned: it imports everything anew, but neither runs the caller's script again nor takes modules from the
folder of that script or the one the user stands in. It is the one writer of the run directory, and sends its outcome
back through a pipe. The mark it leaves (`store.checkpoint`) survives SIGKILL and says where it died: a cell's timing is
recorded as `killed`, other checkpoints are given that reason, and the next worker skips it and measures the rest.
Anywhere else, as while it loads, its death ends the pair. The next run tries once more what was killed.

A worker whose parent dies, however it dies, ends as on Ctrl-C: its end of the pipe is closed.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.configs.loader import load_config
from specgauge.exits import INTERRUPTED, debug_by_environment
from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.run.pair import environment_of, measure_pair
from specgauge.sweeps.run.progress import progress_to
from specgauge.sweeps.run.session import WHOLE, Part, Session
from specgauge.sweeps.store.checkpoint import Kind, Label, clear_checkpoint, read_checkpoint
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import CONFIG, acceptance_path
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

GRACE_S = 5.0
"""Time for a worker to end by itself after a Ctrl-C that it may have had too, before it is told to."""
MEANWHILE_S = 0.2
INSIST_S = 5.0
"""An interruption may be lost in a library that swallows every exception; then it comes again."""
STOP = getattr(signal, "SIGUSR1", signal.SIGINT)
"""What interrupts a worker that is to end; a run that a script starts in the background is born deaf to SIGINT."""


def measure_apart(
    run: Path,
    config: Config,
    pair: str,
    *,
    say: Callable[[str], None],
    deadline: Deadline | None = None,
    part: Part = WHOLE,
    meanwhile: Callable[[], None] | None = None,
) -> PairOutcome:
    """Measure one pair of the run directory `run`, which nobody else may have open; begin nothing after `deadline`.

    part: what of the pair is measured.
    meanwhile: called every `MEANWHILE_S` as long as the worker measures; what it raises ends the worker.

    Raises:
        ValueError: the directory cannot be used: another machine's run, or another process writes it.
        OSError: the system refused something: a StorageError where it was a write.
        MemoryError: it did not fit.
        ModuleNotFoundError: a package is not installed.
        KeyboardInterrupt: it was interrupted; every finished block is kept.
        RuntimeError: the worker met something unforeseen.
    """
    skipped: dict[Label, str] = {}  # why, by checkpoint
    try:
        while True:
            clear_checkpoint(run)
            code, sent = _start(
                run, pair, list(skipped), None if deadline is None else deadline.left_s, part, meanwhile
            )
            if code in (INTERRUPTED, -signal.SIGINT):
                raise KeyboardInterrupt
            if isinstance(sent, Exception):
                raise sent
            if sent is not None:
                return _with_reasons(replace(sent, failed=sent.failed or bool(skipped)), skipped)
            mark, death = read_checkpoint(run) or {"stage": "starting"}, _death(code)
            kind, where = mark.get("kind"), f"{death}, while {mark['stage']}"
            label: Label | None = None if kind is None else (kind, mark["name"])
            say(f"pair {pair}: killed: {death if kind == 'timing' else where}")
            if label is None or label in skipped:
                with OpenRun(run, config, fresh=False) as opened:
                    return _with_reasons(end_pair(opened, pair, where, part), skipped)
            skipped[label] = f"killed: {death if kind in ('timing', 'decoding') else where}"
            if kind == "timing":
                cells = [cell for cell in plan_cells(config) if cell.id == mark["name"]]
                with OpenRun(run, config, fresh=False) as opened:
                    _record(opened, cells, death, running=(mark["arm"], mark["block"]))
    finally:
        clear_checkpoint(run)


def _with_reasons(outcome: PairOutcome, reasons: Mapping[Label, str]) -> PairOutcome:
    """The outcome of the last worker, with why checkpoints were skipped."""

    def of(kind: Kind) -> dict[str, str]:
        return {name: why for (own, name), why in reasons.items() if own == kind}

    return replace(
        outcome,
        acceptance_reasons=outcome.acceptance_reasons | of("acceptance"),
        validation_reasons=of("decoding") | outcome.validation_reasons,
    )


def _start(
    run: Path,
    pair: str,
    skipped: Sequence[Label],
    seconds: float | None,
    part: Part = WHOLE,
    meanwhile: Callable[[], None] | None = None,
) -> tuple[int, PairOutcome | Exception | None]:
    """(exit code, what it sent before it ended) of a new worker; what it prints goes to this process's stderr."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with ours, _stderr() as shown:
        worker = context.Process(target=work_apart, args=(theirs, shown, run, pair, skipped, seconds, part))
        with theirs, _apart_from_the_caller():
            worker.start()
        sent = None
        try:
            while not wait([ours, worker.sentinel], None if meanwhile is None else MEANWHILE_S):
                assert meanwhile is not None
                meanwhile()
            with suppress(EOFError, ConnectionError):
                sent = ours.recv() if ours.poll() else None
            worker.join()
        except KeyboardInterrupt:
            if meanwhile is None:  # else it has had no Ctrl-C of its own
                worker.join(GRACE_S)
            raise
        finally:
            ours.close()  # a worker that still runs takes this for the end
            worker.join()
        assert worker.exitcode is not None
        return worker.exitcode, sent


@contextmanager
def _apart_from_the_caller() -> Iterator[None]:
    """A process spawned inside neither imports the caller's `__main__` nor has its folder, or the user's, on its path.

    `multiprocessing` prepares the child by `__main__.__spec__` and `sys.path` of this moment; a `__main__` that names
    itself is not imported again.
    """
    main, path, safe = sys.modules["__main__"], list(sys.path), os.environ.get("PYTHONSAFEPATH")
    spec, file = main.__spec__, getattr(main, "__file__", None)
    left_out = {Path.cwd(), Path(file).resolve().parent if file else Path.cwd()}
    asked = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    package = str(Path(__file__).parents[3])  # the folder of specgauge: this file's name goes through its links
    main.__spec__ = ModuleSpec("__main__", None)
    sys.path[:] = [*asked, *(entry for entry in path if Path(entry).resolve() not in left_out), package]
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        main.__spec__, sys.path[:] = spec, path
        if safe is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = safe


def _stderr() -> Connection:
    """This process's stderr, in a form that a spawned process inherits; nowhere where it has none."""
    try:
        descriptor = os.dup(sys.stderr.fileno())
    except (AttributeError, OSError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
    return Connection(descriptor, readable=False)


def work_apart(
    pipe: Connection,
    shown: Connection,
    run: Path,
    pair: str,
    skipped: Sequence[Label],
    seconds: float | None,
    part: Part = WHOLE,
) -> None:
    """What a worker does: measure the pair and send its outcome, or the error that ends the run."""
    for descriptor in (1, 2):
        os.dup2(shown.fileno(), descriptor)
    end_with_parent(pipe)
    try:
        if not load_config(run / CONFIG).is_served:
            import_bench()
        pipe.send(work(run, pair, skipped, Deadline(seconds), part))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def import_bench() -> None:
    """Import what measures, the collector at rest: it would search the modules again and again, then and later."""
    gc.disable()
    try:
        with suppress(ImportError):  # told by whatever needs it
            import specgauge.bench.end_to_end.end_to_end
            import specgauge.bench.models.pair
            import specgauge.bench.timing.cell_timer  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def work(
    run: Path,
    pair_name: str,
    skipped: Sequence[Label] = (),
    deadline: Deadline | None = None,
    part: Part = WHOLE,
) -> PairOutcome | Exception:
    """Measure one pair of a run; what ends the run is returned as `measure_apart` raises it, but for interruptions."""
    from specgauge.bench.prompts import read_prompts

    try:
        config = load_config(run / CONFIG)
        pair = next(pair for pair in config.pairs if pair.name == pair_name)
        with OpenRun(run, config, fresh=False) as opened:
            opened.check_environment(environment_of(run, config))
            if part.is_machine_alone:
                return PairOutcome()
            prompts = part.prompts if part.prompts is not None else read_prompts(config.workload, seed=config.seed)
            with progress_to(sys.stderr) as progress:
                return measure_pair(
                    Session(opened, pair, prompts, progress, skipped=skipped, deadline=deadline, part=part)
                )
    except ValueError as error:
        return ValueError(str(error))
    except (OSError, MemoryError, ModuleNotFoundError) as error:
        return of_the_machine(error)
    except Exception as error:
        if debug_by_environment():
            traceback.print_exception(error)
        return RuntimeError(f"pair {pair_name}: {type(error).__name__}: {error}")


def of_the_machine(error: OSError | MemoryError | ModuleNotFoundError) -> Exception:
    """The error as one of Python's own kinds, or of the store's, which another process can read."""
    match error:
        case StorageError():
            return StorageError(str(error))
        case OSError(errno=int()):
            return OSError(error.errno, error.strerror, error.filename, None, error.filename2)
        case OSError():
            return OSError(str(error))
        case MemoryError():
            return MemoryError(str(error))
        case ModuleNotFoundError():
            return ModuleNotFoundError(str(error), name=error.name)


def end_with_parent(pipe: Connection) -> None:
    """Interrupt this process once the other end of the pipe is closed: its parent is gone, or wants it to end."""
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.signal(STOP, signal.default_int_handler)

    def listen() -> None:
        with suppress(EOFError, OSError):
            pipe.recv()
        while True:
            signal.pthread_kill(main_thread, STOP)
            time.sleep(INSIST_S)

    threading.Thread(target=listen, daemon=True).start()


def _death(code: int) -> str:
    """How a worker ended."""
    if code >= 0:
        return f"its process ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    often = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"its process got {name}{often}"


def end_pair(opened: OpenRun, pair: str, reason: str, part: Part = WHOLE) -> PairOutcome:
    """The outcome of a part of a pair that is not tried again, every arm without a block recorded as killed."""
    killed, config, run = f"killed: {reason}", opened.config, opened.path
    own = [cell for cell in plan_cells(config) if cell.pair == pair and (part.cells is None or cell.id in part.cells)]
    _record(opened, own, reason)
    missing = [one.name for one in config.sampling if not acceptance_path(run, pair, one.name).exists()]
    sizes = "" if part.cells is None else f" of batch size {', '.join(map(str, sorted({c.batch_size for c in own})))}"
    return PairOutcome(
        died=killed,
        failed=True,
        acceptance_reasons=dict.fromkeys(missing if part.acceptance else [], killed),
        validation_reasons={} if config.validation is None or part.cells == () else {f"every cell{sizes}": killed},
    )


def _record(opened: OpenRun, cells: Iterable[Cell], reason: str, running: tuple[str, int] | None = None) -> None:
    """Journal lines that say `killed`: of the running arm and block, and of every arm that has no block."""
    journal = opened.journal
    known = {(line.cell, line.arm) for line in journal.latest.values()}
    for cell in cells:
        arms = arm_names(opened.config.grid.gamma, catches_up=cell.catches_up)
        killed = {arm: 0 for arm in arms if (cell.id, arm) not in known}
        if running is not None and not journal.done(cell.id, *running):
            killed |= [running]
        for arm, block in killed.items():
            line = {"axes": cell.axes, "arm": arm, "block": block, "samples_s": []}
            journal.append({**line, "status": "killed", "reason": reason})
