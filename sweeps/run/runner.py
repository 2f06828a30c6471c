"""`specgauge run`: measure what is missing, predict, recommend, report, and print the answer.

Stopped at any point, by Ctrl-C, kill -9 or a full disk, a run is resumed by the same call. What fails is told and kept
as a status; the rest is measured all the same. Once `limits.run_seconds` are spent nothing more is begun, and the
answer says what was left out; nothing measured at all is said first, with code 1. After that an error in a table or the
report costs that page alone.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from specgauge.exits import BAD_INPUT, DONE, FAILED, debug_by_environment
from specgauge.sweeps.analysis.left_out import RUN_SECONDS
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.answer_table import print_answer
from specgauge.sweeps.cluster.executor import measure_on_ray
from specgauge.sweeps.estimate import check_contexts
from specgauge.sweeps.memory import nothing_fits
from specgauge.sweeps.model_sizes import read_sizes
from specgauge.sweeps.plan import planned_pairs
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.run.pair import environment_of, measure_pair
from specgauge.sweeps.run.progress import progress_to
from specgauge.sweeps.run.rank_processes import check_ranks
from specgauge.sweeps.run.session import Session, warning_of
from specgauge.sweeps.run.worker import measure_apart
from specgauge.sweeps.store.derived import doubts
from specgauge.sweeps.store.outcomes import ALL_MISSING, PairOutcome, keep_outcomes
from specgauge.sweeps.store.rundir import CELLS, ENVIRONMENT, Run
from specgauge.sweeps.store.writer import Before, OpenRun, has_results

if TYPE_CHECKING:
    from specgauge.bench.notes import Note
    from specgauge.configs.schema import Config
    from specgauge.sweeps.run.pair_process import PairProcess

T = TypeVar("T")


def run(
    config: Config,
    *,
    out: Path,
    fresh: bool = False,
    report: Callable[[Path], Path] | None = None,
    apart: bool = False,
    first: PairProcess | None = None,
    meanwhile: Callable[[], object] | None = None,
) -> int:
    """Run `config` in the directory `out`; returns the exit code: 0 done, 1 something failed or nothing was measured, 2
    a pair cannot be run.

    `report` writes the report of a run directory and returns its path; `apart` measures every pair in a process of its
    own, so that none takes the others along when it dies: the first pair in `first`, where it was started before, while
    `meanwhile` is done here.

    Raises:
        ValueError: bad input that leaves nothing to predict from: the directory, the prompts, every pair. Where nothing
            was begun the directory is as it was.
        StorageError: the disk refused a write; what was measured before is kept.
        ChildProcessError: no process of a pair lived long enough to say which machine this is.
        ModuleNotFoundError: measuring needs a package that is not installed.
        KeyboardInterrupt: as it came; every finished block is kept.
    """
    from specgauge.bench.prompts import read_prompts

    if not fresh:
        tell_altered(out, partial(print, file=sys.stderr, flush=True))
    deadline = Deadline(config.limits.run_seconds)
    sizes = {} if config.is_served else read_sizes(config)
    if not config.is_served:
        check_contexts(config, sizes)
        if (reason := nothing_fits(config, sizes)) is not None:
            print(f"no cell fits: {reason}", file=sys.stderr, flush=True)
        check_ranks(config)
    notes: list[Note] = []
    prompts = read_prompts(config.workload, notes.append, seed=config.seed)
    before = Before.of(out)
    is_remote = config.executor.kind == "ray"
    is_apart = (apart or any(pair.has_ranks for pair in config.pairs)) and not is_remote
    outcomes = _measure_apart(config, out, fresh, deadline, notes, first, meanwhile) if is_apart else None
    with progress_to(sys.stderr) as shown:
        if is_remote:
            found = measure_on_ray(
                config, out, fresh=fresh, sizes=sizes, prompts=prompts, deadline=deadline, shown=shown
            )
            outcomes = {name: _with_notes(one, notes) for name, one in found.items()}
            keep_outcomes(out, outcomes)
        if outcomes is None:
            with OpenRun(out, config, fresh=fresh) as opened:
                opened.check_environment(environment_of(out, config))
                pairs = planned_pairs(config)
                outcomes = {
                    pair.name: _with_notes(measure_pair(Session(opened, pair, prompts, shown, deadline=own)), notes)
                    for pair, own in zip(pairs, deadline.shares(len(pairs)), strict=True)
                }
                keep_outcomes(out, outcomes)
        if not (out / ENVIRONMENT).exists():
            raise ChildProcessError("; ".join(f"pair {name}: {one.died}" for name, one in outcomes.items()))
        problems = [outcome.bad_input for outcome in outcomes.values() if outcome.bad_input is not None]
        made = Run.open(out)
        if problems and not has_results(out):
            if not any(one.refused_texts for one in outcomes.values()):  # else it is kept why they are of no use
                before.restore()
            raise ValueError("; ".join(problems))
        shown.start("predicting", total=1)
        pages = Pages(out, shown.say)
        parameters = {name: one.parameters for name, one in sizes.items()}
        pages.make("predictions.csv and recommendation.yaml", lambda: predict_run(made, parameters))
        page = None if report is None else pages.make("report", partial(report, out))
        shown.advance()
        for problem in problems:
            shown.say(f"not measured: {problem}")
    nothing = _why_nothing(made, outcomes)
    if nothing is not None:
        print(f"Nothing was measured: {nothing}")
    pages.make("answer", lambda: print_answer(recommend(made)))
    print(f"report: {page}" if page is not None else f"run: {out}")
    if problems:
        return BAD_INPUT
    return FAILED if nothing or pages.lost or any(one.failed for one in outcomes.values()) else DONE


def tell_altered(out: Path, say: Callable[[str], None]) -> None:
    """Say what of an earlier run in `out` is not as it was when its answers were written: they are about to be."""
    if (out / CELLS).exists():
        for doubt in doubts(out):
            say(f"{out}: {doubt.message}")


class Pages:
    """What is made of the measurements: each page for itself, so that an error costs that page alone."""

    def __init__(self, out: Path, say: Callable[[str], None]) -> None:
        """Of the run directory `out`; `say` tells what is lost."""
        self._out, self._say = out, say
        self.lost: list[str] = []
        """Names of the pages that could not be made."""

    def make(self, name: str, make: Callable[[], T]) -> T | None:
        """The page; None where it could not be made, which is told in one line with what is kept."""
        try:
            return make()
        except Exception as error:
            if debug_by_environment():
                traceback.print_exception(error)
            words = str(error) if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: {error}"
        self.lost.append(name)
        remedy = f"everything measured is kept in {self._out}, and `specgauge run` makes what is missing of it"
        self._say(f"no {name}: {' '.join(words.split())}; {remedy}")
        return None


def _why_nothing(run: Run, outcomes: Mapping[str, PairOutcome]) -> str | None:
    """Why no cell has a single block, in the words of the first reason; None where one has."""
    lines = run.journal()
    if any(line.status == "ok" for line in lines):
        return None
    if any(one.left_out for one in outcomes.values()):
        return f"{RUN_SECONDS} is spent; raise it and run the same command again"
    reasons = [f"{line.status}: {line.reason}" for line in lines if line.reason]
    return reasons[0] if reasons else "no cell was begun; run the same command again"


def _with_notes(outcome: PairOutcome, notes: Sequence[Note]) -> PairOutcome:
    """The outcome of a pair with what was met in the prompts of all."""
    return replace(outcome, warnings=list(dict.fromkeys([*map(warning_of, notes), *outcome.warnings])))


def _measure_apart(
    config: Config,
    out: Path,
    fresh: bool,
    deadline: Deadline,
    notes: Sequence[Note],
    first: PairProcess | None,
    meanwhile: Callable[[], object] | None,
) -> dict[str, PairOutcome]:
    """Measure every pair in a process of its own, one after the other; what is known of them is kept at once."""
    for package in ("httpx",) if config.is_served else ("torch", "transformers"):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    OpenRun(out, config, fresh=fresh).close()
    say = partial(print, file=sys.stderr, flush=True)
    outcomes: dict[str, PairOutcome] = {}
    pairs = planned_pairs(config)
    names = [pair.name for pair in pairs]
    for pair, own in zip(pairs, deadline.shares(len(pairs)), strict=True):
        if outcomes and deadline.is_spent:
            found = PairOutcome(left_out=[ALL_MISSING])
        else:
            todo = None if outcomes else meanwhile
            found = measure_apart(out, config, pair.name, say=say, deadline=own, first=first, meanwhile=todo)
        outcomes[pair.name] = _with_notes(found, notes)
        keep_outcomes(out, {name: outcomes.get(name, PairOutcome(left_out=[ALL_MISSING])) for name in names})
    return outcomes
