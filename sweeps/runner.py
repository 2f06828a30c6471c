"""`specgauge run`: measure what is missing, predict, recommend, report, and print the answer.

    open the run directory → for every pair: texts and acceptance, then timing → predictions.csv, recommendation.yaml
    → report.html → the answer on stdout

Stopped at any point, by Ctrl-C, kill -9 or a full disk, the same call goes on where it stopped. A part that fails is
told and kept as a status; the rest is measured all the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.sweeps.describe import read_sizes
from specgauge.sweeps.estimate import check_contexts
from specgauge.sweeps.opening import OpenRun
from specgauge.sweeps.predictions import Reasons, predict_run
from specgauge.sweeps.progress import Progress, progress_to
from specgauge.sweeps.recommend import answer_text
from specgauge.sweeps.rundir import Run

if TYPE_CHECKING:
    from specgauge.configs.schema import Config
    from specgauge.sweeps.measuring import PairOutcome

DONE, FAILED, BAD_INPUT = 0, 1, 2


def run(
    config: Config,
    *,
    out: Path,
    fresh: bool = False,
    progress: Progress | None = None,
    report: Callable[[Path], Path] | None = None,
) -> int:
    """Run `config` in the directory `out`; returns the exit code: 0 done, 1 something failed, 2 a pair cannot be run.

    `progress` defaults to bars or lines on stderr; `report` writes the report of a run directory and returns its path.

    Raises:
        ValueError: bad input that leaves nothing to predict from: the directory, the prompts, every pair.
        StorageError: the disk refused a write; what was measured before is kept.
        KeyboardInterrupt: as it came; every finished block is kept.
    """
    from specgauge.bench.prompts import read_prompts
    from specgauge.sweeps.measuring import PairRun, prepare_machine

    check_contexts(config, read_sizes(config))
    remarks: list[str] = []
    prompts = read_prompts(config.workload, remarks.append)
    with ExitStack() as stack:
        shown = stack.enter_context(progress_to(sys.stderr)) if progress is None else progress
        opened = stack.enter_context(OpenRun.open(out, config, fresh=fresh))
        opened.check_environment(prepare_machine(config.threads))
        for remark in remarks:
            shown.say(remark)
        outcomes = {pair.name: PairRun(opened, pair, prompts, shown).measure() for pair in config.pairs}
        problems = [outcome.bad_input for outcome in outcomes.values() if outcome.bad_input is not None]
        if problems and not opened.has_results:
            raise problems[0]
        shown.start("predicting", total=1)
        made = Run.open(out)
        predict_run(made, _reasons(outcomes))
        page = None if report is None else report(out)
        shown.advance()
        for problem in problems:
            shown.say(f"not measured: {problem}")
        failed = any(outcome.failed for outcome in outcomes.values())
    print(answer_text(made))
    print(f"report: {page}" if page is not None else f"run: {out}")
    return BAD_INPUT if problems else FAILED if failed else DONE


def _reasons(outcomes: Mapping[str, PairOutcome]) -> Reasons:
    """Why acceptance or texts decoded end to end are missing, of all pairs."""
    return Reasons(
        acceptance={
            (pair, sampling): reason
            for pair, outcome in outcomes.items()
            for sampling, reason in outcome.acceptance_reasons.items()
        },
        decoding={
            (pair, words): reason
            for pair, outcome in outcomes.items()
            for words, reason in outcome.verify_reasons.items()
        },
    )
