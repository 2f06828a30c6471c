"""The process that measures a pair: started before it is known where the run goes, so that it imports meanwhile.

    with started(is_served=False) as process:
        code, sent = process.measure(run_path, "embedded", [], None, work=work)

It is spawned: it imports everything anew, but neither runs the caller's script again nor takes modules from the folder
of that script or the one the user stands in. What it prints goes to its parent's stderr. One whose parent dies, however
it dies, ends as on Ctrl-C: its end of the pipe is closed. Importing this imports neither numpy nor the configuration.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.exits import INTERRUPTED

if TYPE_CHECKING:
    from specgauge.sweeps.run.session import Part
    from specgauge.sweeps.store.checkpoint import Label
    from specgauge.sweeps.store.outcomes import PairOutcome

    Work = Callable[..., PairOutcome | Exception]
    """Measures, given the run directory, pair, checkpoints to skip, seconds (None where nothing limits them) and, where
    it is not all of the pair, what of it."""

GRACE_S = 5.0
"""Time for a worker to end by itself after a Ctrl-C that it may have had too, before it is told to."""
WATCH_S = 0.2
"""Between two calls of what watches a worker."""
INSIST_S = 5.0
"""An interruption may be lost in a library that swallows every exception; then it comes again."""
STOP = getattr(signal, "SIGUSR1", signal.SIGINT)
"""What interrupts a worker that is to end; a run that a script starts in the background is born deaf to SIGINT."""


class PairProcess:
    """A worker, which measures one pair once it is told which."""

    def __init__(self, *, is_served: bool) -> None:
        """Start it; `is_served`: whether it measures servers, which needs no torch."""
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        with theirs, _stderr() as shown, _apart_from_the_caller():
            self._process = context.Process(target=work_apart, args=(theirs, shown, is_served))
            self._process.start()
        self.is_free = True
        """Whether it waits to be told."""

    def measure(
        self,
        run: Path,
        pair: str,
        skipped: Sequence[Label],
        seconds: float | None,
        *,
        work: Work,
        meanwhile: Callable[[], object] | None = None,
        part: Part | None = None,
        watch: Callable[[], object] | None = None,
    ) -> tuple[int, PairOutcome | Exception | None]:
        """(exit code, what it sent before it ended), of the pair measured in `run`.

        work: what measures, a function of a module.
        meanwhile: what is done here while it imports and loads; may fail.
        part: what of the pair is measured; None is all of it.
        watch: called every `WATCH_S` as long as it measures; what it raises ends it.
        """
        assert self.is_free
        self.is_free = False
        sent = None
        try:
            with suppress(BrokenPipeError):  # it died while it imported
                self._ours.send((work, run, pair, skipped, seconds, *([] if part is None else [part])))
            if meanwhile is not None:
                with suppress(Exception):  # whoever needs it fails again, and says so
                    meanwhile()
            while not wait([self._ours, self._process.sentinel], None if watch is None else WATCH_S):
                assert watch is not None
                watch()
            with suppress(EOFError, ConnectionError):
                sent = self._ours.recv() if self._ours.poll() else None
            self._process.join()
        except KeyboardInterrupt:
            if watch is None:  # else it has had no Ctrl-C of its own
                self._process.join(GRACE_S)
            raise
        finally:
            self._ours.close()  # a worker that still runs takes this for the end
            self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode, sent

    def close(self) -> None:
        """End it where it was told nothing."""
        if self.is_free:
            self._process.terminate()
            self._process.join()
            self._ours.close()
            self.is_free = False


@contextmanager
def started(*, is_served: bool) -> Iterator[PairProcess]:
    """A worker that imports from now on, and is ended afterwards where it was told nothing."""
    process = PairProcess(is_served=is_served)
    try:
        yield process
    finally:
        process.close()


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


def work_apart(pipe: Connection, shown: Connection, is_served: bool) -> None:
    """What a worker does: import, be told the pair, measure it, and send its outcome or the error that ends the run."""
    for descriptor in (1, 2):
        os.dup2(shown.fileno(), descriptor)
    tasks = told_or_interrupted(pipe)
    try:
        if not is_served:
            import_bench()
        work, *task = pickle.loads(tasks.get())
        pipe.send(work(*task))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)  # all is written; to take down torch takes a second
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


def told_or_interrupted(pipe: Connection) -> queue.SimpleQueue[bytes]:
    """What the other end of the pipe tells, as it comes; once it is closed, this process is interrupted.

    Its parent is gone then, or wants it to end.
    """
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.signal(STOP, signal.default_int_handler)
    told: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while True:
                told.put(pipe.recv_bytes())  # read by who wants it: reading imports
        while True:
            signal.pthread_kill(main_thread, STOP)
            time.sleep(INSIST_S)

    threading.Thread(target=listen, daemon=True).start()
    return told
