"""The process that measures one pair of a run: `python -m specgauge.sweeps.run.worker RUN PAIR OUTCOME`.

It opens the run directory as its one writer, measures what is missing, and leaves its outcome as strict JSON in the
file OUTCOME. A pair that dies in it (killed by the system when memory runs out, or by anybody) takes nothing else
along; who started it (`specgauge.sweeps.run.isolation`) reads from the mark it leaves what it was doing.

Parts whose names (`specgauge.sweeps.store.checkpoint`) follow as further arguments were under way when an earlier
worker died; they are left alone. After `--seconds=12.5` from its start it begins nothing more.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.sweeps.run.limits import Deadline
from specgauge.sweeps.run.progress import progress_to
from specgauge.sweeps.store.files import StorageError, write_text_atomically
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    from specgauge.sweeps.run.pair import PairOutcome

INTERRUPTED = 130
_SECONDS = "--seconds="
INSIST_S = 5.0
"""An interruption may be lost in a library that swallows every exception; then it comes again."""
ORPHANED = getattr(signal, "SIGUSR1", signal.SIGINT)
"""What interrupts a worker whose parent is gone."""


@dataclass(frozen=True, kw_only=True)
class WorkerOutcome:
    """What a worker says before it ends."""

    bad_input: str | None = None
    """What the user has to put right in this pair."""
    refused: str | None = None
    """Why the run directory was not taken up."""
    storage_error: str | None = None
    died: str | None = None
    """How it died, where that ended the pair; told by who started it."""
    crash: str | None = None
    """Something nobody foresaw, its kind and message; the traceback has gone to stderr where asked for."""
    failed: bool = False
    acceptance_reasons: dict[str, str] = field(default_factory=dict)
    verify_reasons: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """What was left out when the seconds of the run were spent, in words."""

    @classmethod
    def of(cls, outcome: PairOutcome) -> WorkerOutcome:
        """That of a pair that was measured as far as it went."""
        return cls(
            bad_input=None if outcome.bad_input is None else str(outcome.bad_input),
            failed=outcome.failed,
            acceptance_reasons=dict(outcome.acceptance_reasons),
            verify_reasons=dict(outcome.verify_reasons),
            left_out=list(outcome.left_out),
        )


def read_outcome(path: Path) -> WorkerOutcome | None:
    """The outcome a worker left; None where it left none."""
    if not path.is_file() or not path.stat().st_size:
        return None
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return WorkerOutcome(**content)


def seconds_told(deadline: Deadline | None) -> list[str]:
    """What tells a worker the seconds it has; nothing where they are not limited."""
    left_s = None if deadline is None else deadline.left_s
    return [] if left_s is None else [f"{_SECONDS}{left_s!r}"]


def work(run: Path, pair_name: str, left_alone: Sequence[str], deadline: Deadline | None = None) -> WorkerOutcome:
    """Measure one pair of a run; everything that goes wrong is in the outcome, but for an interruption."""
    try:
        from specgauge.bench.prompts import read_prompts
        from specgauge.configs.loader import load_config
        from specgauge.sweeps.run.pair import PairRun, prepare_machine
        from specgauge.sweeps.store.rundir import CONFIG

        config = load_config(run / CONFIG)
        pair = next(pair for pair in config.pairs if pair.name == pair_name)
        with OpenRun.open(run, config, fresh=False) as opened:
            opened.check_environment(prepare_machine(config.threads))
            prompts = read_prompts(config.workload)
            with progress_to(sys.stderr) as progress:
                measured = PairRun(opened, pair, prompts, progress, left_alone=left_alone, deadline=deadline)
                return WorkerOutcome.of(measured.measure())
    except ValueError as error:
        return WorkerOutcome(refused=str(error))
    except StorageError as error:
        return WorkerOutcome(storage_error=str(error))
    except Exception as error:
        if os.environ.get("SPECGAUGE_DEBUG", "0") not in ("", "0"):
            import traceback

            traceback.print_exception(error)
        return WorkerOutcome(crash=f"{type(error).__name__}: {error}")


def main(arguments: Sequence[str]) -> int:
    """Measure the pair named and write its outcome."""
    run, pair, outcome, *told = arguments
    left_alone = [word for word in told if not word.startswith(_SECONDS)]
    seconds = [float(word.removeprefix(_SECONDS)) for word in told if word.startswith(_SECONDS)]
    try:
        found = work(Path(run), pair, left_alone, Deadline(seconds[0] if seconds else None))
    except KeyboardInterrupt:
        return INTERRUPTED
    write_text_atomically(Path(outcome), json.dumps(asdict(found), allow_nan=False))
    return 0


def end_with_parent() -> None:
    """Interrupt this process once its stdin closes: whoever started it, and holds the other end, is gone.

    By a signal of its own: a run that a script starts in the background is born deaf to SIGINT, and so are its workers.
    """
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.signal(ORPHANED, signal.default_int_handler)

    def wait() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        while True:
            signal.pthread_kill(main_thread, ORPHANED)
            time.sleep(INSIST_S)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main(sys.argv[1:]))
