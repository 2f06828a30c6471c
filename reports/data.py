"""Everything a report is made of, read once from a run directory. No torch.

A run that stopped early still gives a report: it is predicted from what there is, and what is missing is named in
`gaps`, each with the remedy. A file that is there but damaged is an error in one line; so is a folder without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specgauge.reports.records import (
    Answer,
    Prediction,
    Verified,
    VerifiedPolicy,
    answer,
    prediction,
    verified,
    verified_policy,
)
from specgauge.sweeps.analysis.predictions import Predictions, predict
from specgauge.sweeps.analysis.timings import CellTimings, collect_timings
from specgauge.sweeps.analysis.validation import ValidationSummary, summarise
from specgauge.sweeps.plan import plan_cells, planned_pairs
from specgauge.sweeps.store.rundir import CELLS, CONFIG, PREDICTIONS, RECOMMENDATION, REQUESTS, VALIDATION, Run
from specgauge.sweeps.store.schema import JournalLine

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.configs.schema import Config

Record = TypeVar("Record", Prediction, Answer, Verified, VerifiedPolicy)


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A part of a run that is not there."""

    code: str
    """As the run's own warnings have it, where they warn of the same."""
    message: str
    remedy: str = "run the same `specgauge run` again: it goes on where it stopped"


@dataclass(frozen=True, kw_only=True)
class ReportData:
    """The contents of one run directory."""

    path: Path
    config: Config
    config_text: str
    """config.yaml as it stands in the run directory."""
    environment: Mapping[str, Any]
    lines: Sequence[JournalLine]
    """Every whole line of the journal, in the order written."""
    timings: Sequence[CellTimings]
    """Every planned cell with what the journal says of its parts."""
    acceptance: Mapping[tuple[str, str], pd.DataFrame]
    """Recorded positions by (pair, sampling)."""
    predictions: Sequence[Prediction]
    answers: Sequence[Answer]
    policies: Sequence[VerifiedPolicy]
    """Adaptive policies that were decoded end to end."""
    verified: Sequence[Verified]
    """What was decoded end to end; empty where nothing was."""
    verification: ValidationSummary | None
    """All of it in a few numbers."""
    warnings: Sequence[Mapping[str, Any]]
    """What the run warns of: mappings of code, message and remedy."""
    gaps: Sequence[Gap]


def read_report_data(run_dir: Path) -> ReportData:
    """Read the run at `run_dir`.

    Raises:
        ValueError: not a run directory, or one of its files is damaged, foreign or of another release.
    """
    run = Run.open(run_dir)
    lines = run.journal() if (run_dir / CELLS).is_file() else ()
    predicted = _predicted(run, lines)
    return ReportData(
        path=run_dir,
        config=run.config,
        config_text=(run_dir / CONFIG).read_text(encoding="utf-8"),
        environment=run.environment,
        lines=lines,
        timings=collect_timings(plan_cells(run.config), tuple(run.config.grid.gamma), lines),
        acceptance={
            (pair.name, sampling.name): run.acceptance_of(pair.name, sampling.name)
            for pair in run.config.pairs
            for sampling in run.config.sampling
            if run.has_acceptance(pair.name, sampling.name)
        },
        predictions=[_made(prediction, row, run_dir / PREDICTIONS) for row in predicted.rows],
        answers=[_made(answer, entry, run_dir / RECOMMENDATION) for entry in predicted.recommendations],
        policies=[_made(verified_policy, row, run_dir / VALIDATION) for row in predicted.policies],
        verified=[_made(verified, row, run_dir / VALIDATION) for row in predicted.validation],
        verification=summarise(predicted.validation),
        warnings=predicted.warnings,
        gaps=_gaps(run, lines),
    )


def _predicted(run: Run, lines: Sequence[JournalLine]) -> Predictions:
    """What is predicted: as written, or, where the run stopped before, made from what it has."""
    if _is_predicted(run):
        rows = run.predictions().to_dict("records")
        return Predictions(
            rows=tuple({str(name): value for name, value in row.items()} for row in rows),
            recommendations=run.recommendations(),
            warnings=run.warnings,
            validation=run.validation(),
            policies=run.validated_policies(),
        )
    return predict(run) if lines else Predictions(rows=(), recommendations=(), warnings=())


def _is_predicted(run: Run) -> bool:
    return (run.path / PREDICTIONS).is_file() and (run.path / RECOMMENDATION).is_file()


def _made(make: Callable[[Mapping[str, Any]], Record], values: Mapping[str, Any], path: Path) -> Record:
    try:
        return make(values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}; make it anew with `specgauge run`") from error


def _gaps(run: Run, lines: Sequence[JournalLine]) -> list[Gap]:
    """Parts of the run that are not there."""
    gaps = []
    if not lines:
        gaps.append(Gap(code="unmeasured", message="Nothing has been timed yet."))
    tried = {line.axes["pair"] for line in lines if line.status != "skipped"}
    skipped = {line.axes["pair"] for line in lines} - tried
    for pair in planned_pairs(run.config):
        for sampling in run.config.sampling:
            if pair.name not in skipped and not run.has_acceptance(pair.name, sampling.name):
                where = f"pair {pair.name} and sampling {sampling.name}"
                gaps.append(Gap(code="acceptance_missing", message=f"No acceptance has been recorded for {where}."))
    if lines and not _is_predicted(run):
        message = "This run stopped before it had predicted; what stands here is made from what it measured so far."
        gaps.append(Gap(code="stopped", message=message))
    if _is_predicted(run) and (run.path / REQUESTS).is_file() and not (run.path / VALIDATION).is_file():
        message = "Texts were decoded end to end, but the predictions have not been held against them yet."
        gaps.append(Gap(code="not_compared", message=message))
    return gaps
