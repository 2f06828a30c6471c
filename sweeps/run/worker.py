"""Measure a pair in a process of its own, so that its death costs the checkpoint it was at and never the run.

    outcome = measure_apart(run_path, config, "embedded", say=print)

The worker (`pair_process`) is the one writer of the run directory, and sends its outcome back through a pipe. The mark
it leaves (`store.checkpoint`) survives SIGKILL and says where it died: a cell's timing is recorded as `killed`, other
checkpoints are given that reason, and the next worker skips it and measures the rest. Anywhere else, as while it loads,
its death ends the pair. The next run tries once more what was killed.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.configs.loader import load_config
from specgauge.exits import INTERRUPTED, debug_by_environment
from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import Cell, begun_config, begun_points, plan_cells
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.run.pair import environment_of, measure_pair
from specgauge.sweeps.run.pair_process import PairProcess
from specgauge.sweeps.run.progress import progress_to
from specgauge.sweeps.run.rank_processes import RankDiedError, is_a_rank, work_on_ranks
from specgauge.sweeps.run.session import WHOLE, Part, Session
from specgauge.sweeps.store.checkpoint import Kind, Label, clear_checkpoint, read_checkpoint
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import CONFIG, acceptance_path
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    from specgauge.configs.schema import Config


def measure_apart(
    run: Path,
    config: Config,
    pair: str,
    *,
    say: Callable[[str], None],
    deadline: Deadline | None = None,
    first: PairProcess | None = None,
    meanwhile: Callable[[], object] | None = None,
    part: Part = WHOLE,
    watch: Callable[[], object] | None = None,
) -> PairOutcome:
    """Measure one pair of the run directory `run`, which nobody else may have open; begin nothing after `deadline`.

    first: a worker that was started already and is used where it is still free. meanwhile: what is done here while the
    first one loads. part: what of the pair is measured. watch: called several times a second as long as a worker
    measures; what it raises ends the worker.

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
            seconds = None if deadline is None else deadline.left_s
            process = first if first is not None and first.is_free else PairProcess(is_served=config.is_served)
            todo = None if skipped else meanwhile
            code, sent = process.measure(
                run, pair, list(skipped), seconds, work=work, meanwhile=todo, part=part, watch=watch
            )
            if code in (INTERRUPTED, -signal.SIGINT):
                raise KeyboardInterrupt
            is_rank = isinstance(sent, RankDiedError)
            if isinstance(sent, Exception) and not is_rank:
                raise sent
            if isinstance(sent, PairOutcome):
                return _with_reasons(replace(sent, failed=sent.failed or bool(skipped)), skipped)
            mark, death = read_checkpoint(run) or {"stage": "starting"}, str(sent) if is_rank else _death(code)
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


def work(
    run: Path,
    pair_name: str,
    skipped: Sequence[Label] = (),
    seconds: float | None = None,
    part: Part = WHOLE,
) -> PairOutcome | Exception:
    """Measure one pair of a run; what ends the run is returned as `measure_apart` raises it, but for interruptions."""
    from specgauge.bench.prompts import read_prompts

    try:
        config = load_config(run / CONFIG)
        pair = next(pair for pair in config.pairs if pair.name == pair_name)
        if pair.has_ranks and not is_a_rank() and not part.is_machine_alone:
            return work_on_ranks(work, pair, (run, pair_name, skipped, seconds, part))
        with OpenRun(run, config, fresh=False) as opened:
            opened.check_environment(environment_of(run, config))
            if part.is_machine_alone:
                return PairOutcome()
            prompts = part.prompts if part.prompts is not None else read_prompts(config.workload, seed=config.seed)
            with progress_to(sys.stderr) as progress:
                return measure_pair(
                    Session(opened, pair, prompts, progress, skipped=skipped, deadline=Deadline(seconds), part=part)
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
    begun = begun_config(config, begun_points(opened.journal.latest.values()))
    own = [cell for cell in plan_cells(begun) if cell.pair == pair and (part.cells is None or cell.id in part.cells)]
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
