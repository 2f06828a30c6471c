"""Everything a report is made of, read once from a run directory, and what is missing. No torch.

A run that stopped early still gives a report: it is predicted from what there is, and what is missing is named in
`gaps`, each with the remedy. A damaged file is an error in one line; so is a folder without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from specgauge.configs.reading import CONFIG_BYTES, read_text
from specgauge.configs.schema import Config
from specgauge.model.decision import OPTIMISTIC
from specgauge.model.settings import Point, Setting
from specgauge.reports.formatting import count, sentence
from specgauge.sweeps.analysis.left_out import OUT_OF_TIME
from specgauge.sweeps.analysis.predictions import predict
from specgauge.sweeps.analysis.timings import CellTimings, refused, timings_of
from specgauge.sweeps.analysis.validation import ValidationSummary, summarise
from specgauge.sweeps.plan import planned_pairs
from specgauge.sweeps.store.derived import doubts, stands
from specgauge.sweeps.store.outcomes import PairOutcome, read_outcomes
from specgauge.sweeps.store.rows import row_of
from specgauge.sweeps.store.rundir import CELLS, CONFIG, PREDICTIONS, RECOMMENDATION, Run, prompt_rows
from specgauge.sweeps.store.schema import (
    CellRow,
    JournalLine,
    PredictionRow,
    RecommendationRow,
    ValidationRow,
    WarningRow,
)

if TYPE_CHECKING:
    import pandas as pd

SPECULATE: Final = "speculate"
DO_NOT: Final = "do not speculate"
UNDECIDED: Final = "undecided"
RESUME = "run the same `specgauge run` again: it goes on where it stopped"


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
    """Every planned cell with what the journal says of its arms."""
    acceptance: Mapping[tuple[str, str], pd.DataFrame]
    """Recorded positions by (pair, sampling)."""
    parameters: Mapping[str, Mapping[str, int]]
    """Of target and draft, by pair, where the run knew them."""
    categories: Mapping[str, Mapping[int, str]]
    """The category of each prompt that has one, by pair and its number."""
    predictions: Sequence[PredictionRow]
    recommendations: Sequence[RecommendationRow]
    validation: Sequence[ValidationRow]
    """What was decoded end to end at one γ; empty where nothing was."""
    policies: Sequence[ValidationRow]
    """Adaptive policies that were decoded end to end."""
    is_imported: bool
    """Whether another program measured it."""
    is_served: bool
    """Whether servers decoded, measured by `specgauge run`."""
    break_even: Sequence[Mapping[str, Any]]
    """Of servers, by setting and context: at which concurrencies speculation pays."""
    has_counts: bool
    """Whether an engine timed whole rounds and counted them, there or under `specgauge run`."""
    validation_summary: ValidationSummary | None
    """All of `validation` in a few numbers."""
    warnings: Sequence[WarningRow]
    """What the run warns of."""
    gaps: Sequence[WarningRow]
    """Parts of the run that are not there."""

    @property
    def more_time(self) -> str:
        """How what there was no time for is measured; empty where there was time for all."""
        return _more_time(self.warnings)


def read_report_data(run_dir: Path) -> ReportData:
    """Read the run at `run_dir`.

    Raises:
        ValueError: not a run directory, or one of its files is damaged, foreign or of another release.
    """
    run = Run.open(run_dir)
    lines = run.journal() if (run_dir / CELLS).exists() else ()
    outcomes = read_outcomes(run_dir)
    predictions, recommendations, decoded, warnings = _predicted(run, lines, outcomes)
    validation = [row for row in decoded if row.gamma is not None]
    return ReportData(
        path=run_dir,
        config=run.config,
        config_text=read_text(run_dir / CONFIG, CONFIG_BYTES),
        environment=run.environment,
        lines=lines,
        timings=timings_of(run, outcomes),
        acceptance={
            (pair.name, sampling.name): run.acceptance_of(pair.name, sampling.name)
            for pair in run.config.pairs
            for sampling in run.config.sampling
            if run.has_acceptance(pair.name, sampling.name)
        },
        parameters=run.parameters if stands(run_dir) else {},
        categories=_categories(run),
        predictions=predictions,
        recommendations=recommendations,
        validation=validation,
        policies=[row for row in decoded if row.gamma is None],
        is_imported=run.is_imported,
        is_served=run.is_served,
        break_even=run.break_even if run.is_served and stands(run_dir) else (),
        has_counts=run.has_counts,
        validation_summary=summarise(vars(row) for row in validation),
        warnings=warnings,
        gaps=tuple(_gaps(run, lines, outcomes, _more_time(warnings) or RESUME)),
    )


def _more_time(warnings: Iterable[WarningRow]) -> str:
    return next((one.remedy for one in warnings if one.code == OUT_OF_TIME), "")


def _categories(run: Run) -> dict[str, dict[int, str]]:
    """None where the prompts cannot be read, which is told as what was altered."""
    found: dict[str, dict[int, str]] = {}
    with suppress(ValueError):
        for row in prompt_rows(run.path):
            if row.category:
                found.setdefault(row.pair, {})[row.prompt] = row.category
    return found


_Predicted = tuple[Sequence[PredictionRow], Sequence[RecommendationRow], Sequence[ValidationRow], Sequence[WarningRow]]


def _predicted(run: Run, lines: Sequence[JournalLine], outcomes: Mapping[str, PairOutcome]) -> _Predicted:
    """What is predicted: as written, or, where the run stopped before or was altered since, made from what it has."""
    if stands(run.path):
        return run.rows(PredictionRow), run.rows(RecommendationRow), run.rows(ValidationRow), run.rows(WarningRow)
    if not lines and not outcomes:
        return (), (), (), ()
    found, where = predict(run), str(run.path)
    return (
        [row_of(PredictionRow, row, where) for row in found.rows],
        [row_of(RecommendationRow, row, where) for row in found.recommendations],
        [row_of(ValidationRow, row, where) for row in (*found.validation, *found.policies)],
        [row_of(WarningRow, row, where) for row in found.warnings],
    )


def _gaps(
    run: Run, lines: Sequence[JournalLine], outcomes: Mapping[str, PairOutcome], remedy: str
) -> Iterator[WarningRow]:

    def gap(code: str, message: str) -> WarningRow:
        return WarningRow(code=code, message=message, remedy=remedy)

    yield from doubts(run.path)
    if run.is_imported:  # whose warnings tell what its files lack
        return
    given_up = refused(outcomes)
    if not lines and not given_up:
        yield gap("unmeasured", "Nothing has been timed yet.")
    tried = {line.axes["pair"] for line in lines if line.status != "skipped"}
    skipped = {line.axes["pair"] for line in lines} - tried | given_up.keys()
    for pair in planned_pairs(run.config):
        for sampling in run.config.sampling:
            if pair.name not in skipped and not run.is_served and not run.has_acceptance(pair.name, sampling.name):
                where = f"pair {pair.name} and sampling {sampling.name}"
                yield gap("acceptance_missing", f"No acceptance has been recorded for {where}.")
    if lines and not ((run.path / PREDICTIONS).exists() and (run.path / RECOMMENDATION).exists()):
        message = "This run stopped before it had predicted; what stands here is made from what it measured so far."
        yield gap("stopped", message)


Row = TypeVar("Row", bound=CellRow)
Curve = Sequence[PredictionRow]
"""The predictions of one setting at one point, in rising γ."""
Curves = Mapping[Setting, Mapping[Point, Curve]]
Validated = Mapping[tuple[Setting, Point, int], ValidationRow]
"""Speed-ups measured end to end, by setting, point and γ."""


def by_point(rows: Sequence[Row], order: Callable[[Row], float]) -> dict[Setting, dict[Point, list[Row]]]:
    """Rows by setting and point: settings as they first appear, points rising, the rows of a point in `order`."""
    grouped: dict[Setting, dict[Point, list[Row]]] = {row.setting: {} for row in rows}
    for row in sorted(rows, key=lambda row: row.point):
        grouped[row.setting].setdefault(row.point, []).append(row)
    for points in grouped.values():
        for own in points.values():
            own.sort(key=order)
    return grouped


def curves(predictions: Sequence[PredictionRow]) -> Curves:
    """Predictions by setting and point, each curve in rising γ."""
    return by_point(predictions, lambda row: row.gamma)


def known_rows(curves: Curves) -> list[PredictionRow]:
    """Every prediction with a known speed-up."""
    return [row for points in curves.values() for curve in points.values() for row in curve if row.speedup is not None]


def best_of(curve: Curve) -> PredictionRow | None:
    """The prediction with the largest known speed-up, the smallest γ among equals."""
    known = [row for row in curve if row.speedup is not None]
    return max(known, key=lambda row: (row.speedup or 0.0, -row.gamma)) if known else None


def validated(rows: Iterable[ValidationRow]) -> dict[tuple[Setting, Point, int], ValidationRow]:
    """The rows that tell what the pair gains: lossless (forced acceptance says nothing of it) with a known speed-up."""
    return {
        (row.setting, row.point, row.gamma): row
        for row in rows
        if row.lossless and row.speedup_measured is not None and row.gamma is not None
    }


def findings(data: ReportData, curves: Curves) -> list[WarningRow]:
    """What to know before relying on the numbers: what is missing, what the run warns of, what all predictions show.

    Nothing is added of a code that the run warned of.
    """
    codes = {one.code for one in data.warnings}
    found = [one for one in data.gaps if one.code not in codes]
    found += data.warnings
    found += [one for one in (*_optimistic(curves), *_at_the_edge(data)) if one.code not in codes]
    sentences = [replace(one, message=sentence(one.message), remedy=sentence(one.remedy)) for one in found]
    return list(dict.fromkeys(sentences))


def _optimistic(curves: Curves) -> Iterator[WarningRow]:
    rows = known_rows(curves)
    unknown = [row for row in rows if row.label == OPTIMISTIC]
    if unknown:
        which = "every speed-up is" if len(unknown) == len(rows) else f"{len(unknown)} of {len(rows)} speed-ups are"
        yield WarningRow(
            code="optimistic",
            message=f"{which} optimistic: overhead not measured (accepting, rolling back, host work: ε)",
            remedy="a small gain may vanish in an engine: try it there before relying on it",
        )


def _at_the_edge(data: ReportData) -> Iterator[WarningRow]:
    """Recommendations to speculate whose best γ is the largest of the grid: a larger one may be better still."""
    largest = max(data.config.grid.gamma)
    edge = [one for one in data.recommendations if one.decision == SPECULATE and one.best_gamma == largest]
    if edge:
        first = edge[0]
        yield WarningRow(
            code="gamma_edge",
            message=f"in {count(len(edge), 'cell')} the best γ is {largest}, the largest measured; first sampling "
            f"{first.sampling}, batch {first.batch_size}, context {first.context}",
            remedy=f"extend grid.gamma beyond {largest} in a new run",
        )
