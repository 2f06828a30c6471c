"""Everything a report is made of, read once from a run directory: rows as typed values, and what is missing. No torch.

Each row type names the columns of one file (predictions.csv, recommendation.yaml, validation.csv); `record` reads any
of them; unknown is None. A run that stopped early still gives a report: it is predicted from what there is, and what is
missing is named in `gaps`, each with the remedy. A damaged file is an error in one line; so is a folder without a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specgauge.model.settings import Point, Setting
from specgauge.sweeps.analysis.predictions import Predictions, predict
from specgauge.sweeps.analysis.timings import CellTimings, collect_timings
from specgauge.sweeps.analysis.validation import ValidationSummary, summarise
from specgauge.sweeps.plan import plan_cells, planned_pairs
from specgauge.sweeps.store.rundir import CELLS, CONFIG, PREDICTIONS, RECOMMENDATION, REQUESTS, VALIDATION, Run
from specgauge.sweeps.store.schema import JournalLine

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.configs.schema import Config

SPECULATE = "speculate"
DO_NOT = "do not speculate"
UNDECIDED = "undecided"
DECISIONS = (SPECULATE, DO_NOT, UNDECIDED)


by_size = attrgetter("batch_size", "context")
"""Sorts points."""


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """What every row of a run's tables is about."""

    setting: Setting
    point: Point


@dataclass(frozen=True, kw_only=True)
class PredictionRow(RunRow):
    """One row of predictions.csv; times in seconds, rates and speed-ups as plain numbers."""

    gamma: int
    t_decode_s: float | None
    t_draft_total_s: float | None
    t_draft_catch_up_s: float | None
    t_verify_s: float | None
    """T_verify(γ), of γ drafts."""
    t_verify_mean_s: float | None
    """Mean verification of the rounds, which may find fewer drafts."""
    t_overhead_s: float | None
    t_round_s: float | None
    tokens_per_round: float | None
    tokens_per_round_low: float | None
    tokens_per_round_high: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    p_best: float | None
    is_best: bool
    is_recommended: bool
    full_acceptance: float | None
    cost_known: str
    acceptance_known: str
    label: str
    status: str
    """`ok`, or what kept the number from being known: `oom`, `skipped`, `failed`, `killed`, `unmeasured`."""
    reason: str

    @property
    def round_verify_s(self) -> float | None:
        """What a round spends on verification: the mean over its drafts where that is known, else T_verify(γ)."""
        return self.t_verify_s if self.t_verify_mean_s is None else self.t_verify_mean_s


@dataclass(frozen=True, kw_only=True)
class RecommendationRow(RunRow):
    """One entry of recommendation.yaml: what to do with one setting at one point, and how sure that is."""

    decision: str
    gamma: int | None
    best_gamma: int | None
    recommended_gamma: int | None
    speedup: float | None
    """None where there was no number to decide on; the entry only gives the reason then."""
    speedup_low: float | None
    speedup_high: float | None
    p_gamma_best: float | None
    expected_loss: float | None
    p_speculation_pays: float | None
    reason: str

    def __post_init__(self) -> None:
        """Refuse a decision that is none."""
        if self.decision not in DECISIONS:
            raise ValueError(f"decision: expected one of {', '.join(DECISIONS)}, got {self.decision!r}")


@dataclass(frozen=True, kw_only=True)
class DecodedRow(RunRow):
    """What was decoded end to end, beside its prediction: of one γ, or under an adaptive policy."""

    speedup_predicted: float | None
    speedup_from_counts: float | None
    speedup_measured: float | None
    speedup_measured_low: float | None
    speedup_measured_high: float | None
    cost_error: float | None
    """S from counts / S measured − 1."""
    error: float | None
    """S predicted / S measured − 1."""


@dataclass(frozen=True, kw_only=True)
class ValidationRow(DecodedRow):
    """One row of validation.csv: one point decoded at one γ."""

    gamma: int
    lossless: bool
    """Whether the texts follow the target's distribution; not so where acceptance was forced."""
    why_not_lossless: str
    t_overhead_s: float | None
    overhead_from: str
    """Where ε was fitted: `other contexts`, `same context`, or empty where it is unknown."""
    tokens_per_round_predicted: float | None
    tokens_per_round_counted: float | None
    acceptance_error: float | None
    """Ω predicted / Ω counted − 1, with its 95 % interval."""
    acceptance_error_low: float | None
    acceptance_error_high: float | None
    speedup_whole: float | None
    """Tokens a second over plain decoding for whole requests, prefills and ragged ends included."""
    plain_over_generate: float | None
    plain_over_loop: float | None
    rounds_counted: int
    rounds_expected: float | None
    rounds_standard_errors: float | None
    rounds_agree: bool | None


@dataclass(frozen=True, kw_only=True)
class PolicyRow(DecodedRow):
    """One row of validation.csv of an adaptive policy, over whole texts; predicted is its replay."""

    policy: str
    best_fixed_gamma: int | None
    """The γ decoded that was fastest over whole texts; None where none was decoded beside it."""
    over_best_fixed: float | None
    """S measured over that of the fastest γ."""
    over_best_fixed_low: float | None
    over_best_fixed_high: float | None
    error_low: float | None
    error_high: float | None
    mean_gamma: float | None
    """Drafts of a row and round."""
    rounds: int
    gamma_switches: int
    """Rounds whose γ differs from the one before."""


Record = TypeVar("Record", bound=Setting | Point | RunRow)


def record(kind: type[Record], row: Mapping[str, Any]) -> Record:
    """One row as `kind`; its values are text, numbers, or missing (None, '' or NaN).

    Raises:
        ValueError: a column is missing or holds something else than it should; the message names the column.
    """
    values: dict[str, Any] = {}
    for field in fields(kind):
        if field.name == "setting":
            values["setting"] = record(Setting, row)
        elif field.name == "point":
            values["point"] = record(Point, row)
        else:
            values[field.name] = _value(row, field.name, str(field.type))
    return kind(**values)


def _value(row: Mapping[str, Any], name: str, kind: str) -> Any:
    """The value of a column as `kind`, a type as it is annotated above."""
    if name not in row:
        raise ValueError(f"{name}: expected in every row, got none")
    value = row[name]
    is_missing = value is None or value == "" or value != value
    if kind == "str":
        return "" if is_missing else str(value)
    if is_missing:
        if kind.endswith("None"):
            return None
        raise ValueError(f"{name}: expected a value, got nothing")
    try:
        if kind.startswith("bool"):
            return {"true": True, "false": False}[str(value).lower()]
        number = float(value)
        if kind.startswith("int") and not number.is_integer():
            raise ValueError(value)
    except (KeyError, TypeError, ValueError) as error:
        expected = {"bool": "true or false", "int": "a whole number", "float": "a number"}[kind.partition(" ")[0]]
        raise ValueError(f"{name}: expected {expected}, got {value!r}") from error
    return int(number) if kind.startswith("int") else number


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something to know before relying on the numbers, and what to do about it."""

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
    """Every planned cell with what the journal says of its arms."""
    acceptance: Mapping[tuple[str, str], pd.DataFrame]
    """Recorded positions by (pair, sampling)."""
    predictions: Sequence[PredictionRow]
    recommendations: Sequence[RecommendationRow]
    validation: Sequence[ValidationRow]
    """What was decoded end to end; empty where nothing was."""
    policies: Sequence[PolicyRow]
    """Adaptive policies that were decoded end to end."""
    validation_summary: ValidationSummary | None
    """All of `validation` in a few numbers."""
    warnings: Sequence[Mapping[str, Any]]
    """What the run warns of: mappings of code, message and remedy."""
    gaps: Sequence[Finding]
    """Parts of the run that are not there."""


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
        predictions=_records(PredictionRow, predicted.rows, run_dir / PREDICTIONS),
        recommendations=_records(
            RecommendationRow, map(flat_recommendation, predicted.recommendations), run_dir / RECOMMENDATION
        ),
        validation=_records(ValidationRow, predicted.validation, run_dir / VALIDATION),
        policies=_records(PolicyRow, predicted.policies, run_dir / VALIDATION),
        validation_summary=summarise(predicted.validation),
        warnings=predicted.warnings,
        gaps=_gaps(run, lines),
    )


def flat_recommendation(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of recommendation.yaml with `speedup` and its interval as columns."""
    speedup = entry["speedup"]
    return {**entry, "speedup": speedup["value"], "speedup_low": speedup["low"], "speedup_high": speedup["high"]}


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


def _records(kind: type[Record], rows: Iterable[Mapping[str, Any]], path: Path) -> list[Record]:
    try:
        return [record(kind, row) for row in rows]
    except ValueError as error:
        raise ValueError(f"{path}: {error}; make it anew with `specgauge run`") from error


def _gaps(run: Run, lines: Sequence[JournalLine]) -> list[Finding]:
    """Parts of the run that are not there."""
    gaps = []
    if not lines:
        gaps.append(Finding(code="unmeasured", message="Nothing has been timed yet."))
    tried = {line.axes["pair"] for line in lines if line.status != "skipped"}
    skipped = {line.axes["pair"] for line in lines} - tried
    for pair in planned_pairs(run.config):
        for sampling in run.config.sampling:
            if pair.name not in skipped and not run.has_acceptance(pair.name, sampling.name):
                where = f"pair {pair.name} and sampling {sampling.name}"
                gaps.append(Finding(code="acceptance_missing", message=f"No acceptance has been recorded for {where}."))
    if lines and not _is_predicted(run):
        message = "This run stopped before it had predicted; what stands here is made from what it measured so far."
        gaps.append(Finding(code="stopped", message=message))
    if _is_predicted(run) and (run.path / REQUESTS).is_file() and not (run.path / VALIDATION).is_file():
        message = "Texts were decoded end to end, but the predictions have not been held against them yet."
        gaps.append(Finding(code="not_compared", message=message))
    return gaps


Curve = Sequence[PredictionRow]
"""The predictions of one setting at one point, in rising γ."""
Curves = Mapping[Setting, Mapping[Point, Curve]]
Validated = Mapping[tuple[Setting, Point, int], ValidationRow]
"""Speed-ups measured end to end, by setting, point and γ."""


def curves(predictions: Iterable[PredictionRow]) -> dict[Setting, dict[Point, list[PredictionRow]]]:
    """Predictions by setting and point, each curve in rising γ; settings keep their order of first appearance."""
    grouped: dict[Setting, dict[Point, list[PredictionRow]]] = {}
    for row in predictions:
        grouped.setdefault(row.setting, {}).setdefault(row.point, []).append(row)
    return {
        setting: {point: sorted(points[point], key=lambda row: row.gamma) for point in sorted(points, key=by_size)}
        for setting, points in grouped.items()
    }


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
        (row.setting, row.point, row.gamma): row for row in rows if row.lossless and row.speedup_measured is not None
    }
