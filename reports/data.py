"""Everything a report is made of, read once from a run directory. No torch.

A run that stopped early still gives a report: what is missing is named in `gaps`, each with the remedy. A file that is
there but damaged is an error in one line, and so is a folder that holds no run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.reports.records import Answer, Prediction, answer, prediction
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.records import JournalLine
from specgauge.sweeps.rundir import CELLS, CONFIG, PREDICTIONS, RECOMMENDATION, Run
from specgauge.sweeps.timings import CellTimings, collect_timings

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.configs.schema import Config

_RESUME = "run the same `specgauge run` again: it goes on where it stopped"


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A part of a run that is not there."""

    code: str
    """As the run's own warnings have it, where they warn of the same."""
    message: str
    remedy: str


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
    warnings: Sequence[Mapping[str, Any]] | None
    """What the run itself warned of: mappings of code, message and remedy; None where it stopped before."""
    gaps: Sequence[Gap]


def read_report_data(run_dir: Path) -> ReportData:
    """Read the run at `run_dir`.

    Raises:
        ValueError: not a run directory, or one of its files is damaged, foreign or of another release.
    """
    run = Run.open(run_dir)
    gaps: list[Gap] = []
    lines = run.journal() if (run_dir / CELLS).is_file() else ()
    if not lines:
        gaps.append(Gap(code="unmeasured", message="Nothing has been timed yet.", remedy=_RESUME))
    acceptance = {}
    for pair in run.config.pairs:
        for sampling in run.config.sampling:
            if run.has_acceptance(pair.name, sampling.name):
                acceptance[pair.name, sampling.name] = run.acceptance_of(pair.name, sampling.name)
            else:
                where = f"pair {pair.name} and sampling {sampling.name}"
                gaps.append(
                    Gap(
                        code="acceptance_missing",
                        message=f"No acceptance has been recorded for {where}.",
                        remedy=_RESUME,
                    )
                )
    return ReportData(
        path=run_dir,
        config=run.config,
        config_text=(run_dir / CONFIG).read_text(encoding="utf-8"),
        environment=run.environment,
        lines=lines,
        timings=collect_timings(plan_cells(run.config), tuple(run.config.grid.gamma), lines),
        acceptance=acceptance,
        predictions=_predictions(run, gaps),
        answers=_answers(run, gaps),
        warnings=run.warnings if (run_dir / RECOMMENDATION).is_file() else None,
        gaps=gaps,
    )


def _predictions(run: Run, gaps: list[Gap]) -> list[Prediction]:
    path = run.path / PREDICTIONS
    if not path.is_file():
        gaps.append(Gap(code="no_predictions", message="Nothing has been predicted yet.", remedy=_RESUME))
        return []
    rows = run.predictions().to_dict("records")
    try:
        return [prediction({str(name): value for name, value in row.items()}) for row in rows]
    except ValueError as error:
        raise ValueError(f"{path}: {error}; make it anew with `specgauge run`") from error


def _answers(run: Run, gaps: list[Gap]) -> list[Answer]:
    path = run.path / RECOMMENDATION
    if not path.is_file():
        gaps.append(Gap(code="no_recommendation", message="Nothing has been recommended yet.", remedy=_RESUME))
        return []
    try:
        return [answer(entry) for entry in run.recommendations()]
    except ValueError as error:
        raise ValueError(f"{path}: {error}; make it anew with `specgauge run`") from error
