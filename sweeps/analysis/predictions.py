"""predictions.csv and recommendation.yaml, made from the journal and the recorded acceptance. No torch.

    predictions.csv       one row per cell and γ: the costs of a round, Ω and S with intervals, their provenance, and
                          why a number is missing
    recommendation.yaml   one entry per cell: decision, γ, S with its uncertainty; and all warnings
    validation.csv        one row per cell and γ that was decoded end to end: prediction against measurement

t_verify_s is T_verify(γ), of γ drafts; t_verify_mean_s is what a round of that γ spends on verification on average,
which differs for lookups, that may find fewer drafts (`drafts_per_round`) or none. Timings are joined by the cell's
chain, which sampling settings share. Without an ε decoded end to end every S is labelled optimistic. `AnalysedRun`
reads a run once for all that is predicted, compared and replayed of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

import numpy as np

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import FloatArray, finite_or_none
from specgauge.model.decision import OPTIMISTIC
from specgauge.model.settings import Provenance, Setting
from specgauge.sweeps.analysis.adaptive import policy_rows
from specgauge.sweeps.analysis.answers import Recommendations, is_conflict
from specgauge.sweeps.analysis.cell_estimate import CellEstimate, Measured, SharedCosts, estimate_cell
from specgauge.sweeps.analysis.decoded import DecodedCells
from specgauge.sweeps.analysis.imported_warnings import between_warnings, imported_warnings
from specgauge.sweeps.analysis.left_out import ANEW, left_out_warnings, with_one_remedy
from specgauge.sweeps.analysis.served import ServedCells
from specgauge.sweeps.analysis.settings import (
    NOT_COUNTED,
    NOTHING_COUNTED,
    RunSetting,
    acceptance_reasons,
    cells_of,
    run_settings,
)
from specgauge.sweeps.analysis.timings import REFUSED, UNMEASURED, CellTimings, collect_timings, timings_of
from specgauge.sweeps.analysis.warnings import (
    acceptance_warnings,
    decision_warnings,
    decoding_warnings,
    impossible_figures,
    met_warnings,
    policy_warnings,
    setting_warnings,
    text_warnings,
    timing_warnings,
)
from specgauge.sweeps.exports.schedule import KnownPoint, paying_sizes
from specgauge.sweeps.plan import chains, plan_cells, planned_pairs
from specgauge.sweeps.served.validation import served_policies, served_validation
from specgauge.sweeps.served.warnings import exported_warnings, live_warnings, lost_warnings, served_warnings
from specgauge.sweeps.store.derived import stands, write_answers
from specgauge.sweeps.store.outcomes import OUT_OF_TIME, PairOutcome, read_outcomes
from specgauge.sweeps.store.rows import columns, plain, readable, write_csv
from specgauge.sweeps.store.rundir import PREDICTIONS, VALIDATION, Run
from specgauge.sweeps.store.schema import DecodedKey, PredictionRow, RecommendationRow, ValidationRow, WarningRow
from specgauge.sweeps.store.served import read_served
from specgauge.sweeps.store.tables import read_tuned

TOO_SHORT = "no text leaves room for the largest gamma; raise workload.max_new_tokens"


@dataclass(frozen=True, kw_only=True)
class AnalysedRun:
    """Everything that a run has of its settings."""

    run: Run
    cells: tuple[CellTimings, ...]
    settings: tuple[RunSetting, ...]
    decoded: DecodedCells
    outcomes: Mapping[str, PairOutcome]
    """What went wrong with a pair, where anything did."""
    served: ServedCells
    shared: SharedCosts = field(default_factory=dict)

    @classmethod
    def read(cls, run: Run, *, pairs: Collection[str] | None = None, seed: int | None = None) -> Self:
        """Read the journal, acceptance, decoded tables and outcomes.

        pairs: those wanted, None for all; seed: of the blocks that are drawn, where it is not the run's own.

        Raises:
            ValueError: a file of the run is damaged, foreign or of another release.
        """
        outcomes = read_outcomes(run.path)
        settings = tuple(run_settings(run, acceptance_reasons(outcomes), pairs=pairs))
        if seed is not None:
            run = replace(run, config=run.config.model_copy(update={"seed": seed}))
        cells = timings_of(run, outcomes)
        decoded = DecodedCells.read(run, cells, settings)
        return cls(
            run=run, cells=cells, settings=settings, decoded=decoded, outcomes=outcomes, served=ServedCells.read(run)
        )

    def points(self) -> Iterator[tuple[RunSetting, CellTimings]]:
        """Every cell of every setting."""
        for setting in self.settings:
            for cell in cells_of(setting, self.cells):
                yield setting, cell

    def estimate(
        self, setting: RunSetting, cell: CellTimings, *, max_itl_s: float | None = None
    ) -> CellEstimate | None:
        """S(γ) of a cell from all evidence, with ε where something like it was decoded; None where no γ is known."""
        acceptance = setting.acceptance_at(cell.cell.context)
        if self.run.is_served:
            measured = self.served.measured(setting, cell, acceptance)
        else:
            measured = Measured(speedups=self.decoded.measured_where_models_decide(setting, cell))
        return estimate_cell(
            self.run.config,
            cell,
            acceptance,
            max_itl_s=max_itl_s,
            t_overhead_s=self.decoded.overhead_s(setting, cell),
            measured=measured,
            shared=self.shared,
        )


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a run predicts and recommends, as plain data; unknown is None."""

    rows: tuple[dict[str, Any], ...]
    recommendations: tuple[dict[str, Any], ...]
    warnings: tuple[dict[str, str], ...]
    validation: tuple[dict[str, Any], ...] = ()
    """The rows of validation.csv; empty where nothing was decoded."""
    policies: tuple[dict[str, Any], ...] = ()
    """Its rows of adaptive policies."""
    break_even: tuple[dict[str, Any], ...] = ()
    """Of servers, by setting and context: at which concurrencies speculation pays."""


def predict_run(run: Run, parameters: Mapping[str, Mapping[str, int | None]] | None = None) -> Predictions:
    """Predict from what `run` holds; write predictions.csv, recommendation.yaml and, where decoded, validation.csv.

    parameters: of target and draft by pair, kept beside the answers.

    Raises:
        ValueError: the journal, an acceptance file or a table of what was decoded is damaged.
        StorageError: the disk refused a write; the older files stay.
    """
    predictions = predict(run)
    if predictions.validation:
        write_csv(run.path / VALIDATION, ValidationRow, [*predictions.validation, *predictions.policies])
    write_csv(run.path / PREDICTIONS, PredictionRow, predictions.rows)
    answers = Recommendations(
        entries=predictions.recommendations,
        confidence=run.config.precision.confidence,
        is_served=run.is_served,
        warnings=predictions.warnings,
        validation=predictions.validation,
    )
    write_answers(
        run.path,
        predictions.recommendations,
        predictions.warnings,
        trust=answers.trust.as_mapping(),
        parameters={name: dict(sizes) for name, sizes in (parameters or {}).items()},
        **({"break_even": list(predictions.break_even)} if predictions.break_even else {}),
    )
    return predictions


def standing(run: Run) -> Predictions:
    """The answers of a run as they were written, where they stand; else what is derived anew, which writes nothing.

    Raises:
        ValueError: a file of the run is damaged.
    """
    if not stands(run.path):
        return predict(run)
    return Predictions(
        rows=tuple(map(plain, run.rows(PredictionRow))),
        recommendations=run.recommendations(),
        warnings=run.warnings,
        validation=run.validation(),
        policies=tuple(plain(row) for row in run.rows(ValidationRow) if row.gamma is None),
        break_even=run.break_even,
    )


def predict(run: Run) -> Predictions:
    """The rows, recommendations and warnings of a run; writes nothing. Errors as `predict_run`."""
    config = run.config
    analysed = AnalysedRun.read(run)
    rows: list[dict[str, Any]] = []
    recommendations: list[dict[str, Any]] = []
    predicted: dict[tuple[DecodedKey, int], float] = {}
    known: dict[tuple[Setting, int], dict[int, KnownPoint]] = {}
    for setting, cell in analysed.points():
        recorded = setting.rounds_at(cell.cell.context)
        interval = None if recorded is None else recorded.interval(config.precision.confidence)
        estimate = analysed.estimate(setting, cell)
        rows += [_row(setting, cell, estimate, gamma, interval) for gamma in config.grid.gamma]
        recommendations.append(recommendation(setting, cell, estimate))
        if estimate is not None:
            key, found = setting.decoded_key(cell.cell), estimate.speedup
            pairs = zip(found.gammas.tolist(), found.predicted.tolist(), strict=True)
            predicted |= {(key, gamma): value for gamma, value in pairs}
            acceptance = setting.acceptance_at(cell.cell.context)
            if run.is_served and acceptance is not None:
                known.setdefault((setting.key, cell.cell.context), {})[cell.cell.batch_size] = KnownPoint(
                    costs=estimate.costs, acceptance=acceptance.only(estimate.costs.gammas), estimate=found
                )
    validation = (*analysed.decoded.rows(predicted), *served_validation(analysed.run, analysed.settings, predicted))
    policies = (*policy_rows(run, analysed.decoded), *served_policies(analysed.run, analysed.settings))
    found_warnings = [
        *_run_warnings(analysed, recommendations, validation),
        *text_warnings([*validation, *policies]),
        *policy_warnings(read_tuned(run.path).values()),
        *exported_warnings(policies, validation),
    ]
    impossible: list[str] = []

    def possible(row_type: type[Any], found: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
        """What a reader takes, whatever went wrong in the arithmetic: a figure that cannot be is unknown."""
        made = [readable(row_type, row) for row in found]
        impossible.extend(name for _, names in made for name in names)
        return tuple(row for row, _ in made)

    made = Predictions(
        rows=possible(PredictionRow, rows),
        recommendations=possible(RecommendationRow, recommendations),
        warnings=tuple(asdict(warning) for warning in found_warnings),
        validation=possible(ValidationRow, validation),
        policies=possible(ValidationRow, policies),
        break_even=tuple(
            _break_even(setting, context, points, config.precision.confidence)
            for (setting, context), points in known.items()
        ),
    )
    return replace(made, warnings=(*made.warnings, *map(asdict, impossible_figures(impossible))))


def _break_even(setting: Setting, context: int, points: Mapping[int, KnownPoint], confidence: float) -> dict[str, Any]:
    """Where the schedule that takes undecided γ has drafts, costs interpolated between the batch sizes measured."""
    pays, end = paying_sizes(points, confidence=confidence)
    return {
        **asdict(setting),
        "context": context,
        "measured": sorted(points),
        "pays": [list(ends) for ends in pays],
        "break_even_batch_size": end,
    }


def recommended_gammas(run: Run, pair: str) -> dict[DecodedKey, int | None]:
    """The γ that the measured costs of a pair recommend, by where it would be decoded; None where none can.

    ε stays out of it, so that an interrupted run goes on with the γ it began with.  Errors as `predict`.
    """
    config = run.config
    shared: SharedCosts = {}
    cells = [cell for cell in plan_cells(config) if cell.pair == pair]
    timed = collect_timings(cells, config.grid.gamma, run.journal(), is_served=run.is_served)
    found: dict[DecodedKey, int | None] = {}
    for setting in run_settings(run, {}, pairs=[pair]):
        for cell in cells_of(setting, timed):
            estimate = estimate_cell(config, cell, setting.acceptance_at(cell.cell.context), shared=shared)
            key = setting.decoded_key(cell.cell)
            found[key] = None if estimate is None else estimate.speedup.recommended_gamma or None
    return found


def _trouble(setting: RunSetting, cell: CellTimings, gamma: int) -> tuple[str, str]:
    """(status, reason) of a row: of its timing, else of its acceptance; ("ok", "") when nothing is missing."""
    status, reason = cell.trouble(gamma)
    if status != "ok":
        return status, reason
    acceptance = setting.acceptance_at(cell.cell.context)
    if acceptance is None:
        return "unmeasured", setting.reason
    if not acceptance.only([gamma]).is_known[0]:
        nothing = NOT_COUNTED if cell.is_served else NOTHING_COUNTED
        return "unmeasured", nothing if setting.texts is None else TOO_SHORT
    return "ok", ""


def _row(
    setting: RunSetting,
    cell: CellTimings,
    estimate: CellEstimate | None,
    gamma: int,
    interval: tuple[FloatArray, FloatArray] | None,
) -> dict[str, Any]:
    status, reason = _trouble(setting, cell, gamma)
    row: dict[str, Any] = dict.fromkeys(columns(PredictionRow))
    row |= setting.columns(cell.cell) | {"gamma": gamma, "status": status, "reason": reason}
    row |= {"is_best": False, "is_recommended": False, "cost_provenance": "", "acceptance_provenance": "", "label": ""}
    row |= _medians(cell, gamma)
    acceptance = setting.acceptance_at(cell.cell.context)
    known = acceptance is not None and (setting.texts is not None or acceptance.only([gamma]).is_known[0])
    if acceptance is not None and interval is not None and known:
        row |= _acceptance(acceptance, gamma, *interval)
        provenance = Provenance(int(acceptance.only([gamma]).provenance[0]))
        if setting.texts is not None and not setting.texts.covers(cell.cell.context):
            provenance = max(provenance, Provenance.EXTRAPOLATED)
        row["acceptance_provenance"] = provenance.label
    if cell.trouble(gamma)[0] == "ok":
        row["cost_provenance"] = cell.round_provenance.label
    if estimate is not None and gamma in estimate.costs.gammas:
        row |= _speedup(estimate, gamma)
    return row


def _medians(cell: CellTimings, gamma: int) -> dict[str, float | None]:
    """Medians of the costs of a round that were timed, whether or not all of them were."""
    costs = cell.costs.only([gamma])
    catch_up_s = costs.t_draft_catch_up_s
    return {
        "t_decode_s": finite_or_none(costs.t_decode_s),
        "t_draft_total_s": finite_or_none(costs.t_draft_total_s[0]),
        "t_draft_catch_up_s": 0.0 if catch_up_s is None else finite_or_none(catch_up_s),
        "t_transfer_s": None if costs.t_transfer_s is None else finite_or_none(costs.t_transfer_s[0]),
        "t_verify_s": finite_or_none(costs.t_verify_s[0]),
        "t_round_s": None if costs.t_round_s is None else finite_or_none(costs.t_round_s[0]),
    }


def _acceptance(acceptance: Acceptance, gamma: int, low: FloatArray, high: FloatArray) -> dict[str, float | None]:
    index = acceptance.gammas.tolist().index(gamma)
    accepted = acceptance.accepted_draft_tokens
    return {
        "tokens_per_round": finite_or_none(acceptance.tokens_per_round[0, index]),
        "tokens_per_round_low": finite_or_none(low[index]),
        "tokens_per_round_high": finite_or_none(high[index]),
        "accepted_draft_tokens": None if accepted is None else finite_or_none(accepted[index]),
        "drafts_per_round": finite_or_none(acceptance.drafts_per_round[0, index]),
        "full_acceptance": finite_or_none(acceptance.full_acceptance[0, index]),
    }


def _speedup(estimate: CellEstimate, gamma: int) -> dict[str, Any]:
    found, at = estimate.speedup, estimate.at(gamma)
    return {
        "t_verify_mean_s": at(estimate.costs.t_verify_s[0]),
        "t_round_s": at(estimate.t_round_s),
        "speedup": at(found.predicted),
        "speedup_low": at(found.predicted_low),
        "speedup_high": at(found.predicted_high),
        "p_best": at(found.p_best),
        "is_best": gamma == found.best_gamma,
        "is_recommended": gamma == found.recommended_gamma,
        "t_overhead_s": estimate.t_overhead_s,
        "label": OPTIMISTIC if estimate.costs.is_optimistic else "",
    }


def recommendation(setting: RunSetting, cell: CellTimings, estimate: CellEstimate | None) -> dict[str, Any]:
    """The entry of a cell in recommendation.yaml; `undecided`, with the reason, where nothing is known."""
    entry = setting.columns(cell.cell)
    if estimate is None:
        status, reason = _trouble(setting, cell, cell.gammas[0])
        entry |= dict.fromkeys(name for name in columns(RecommendationRow) if name not in entry)
        speedup = dict.fromkeys(("value", "low", "high"))
        entry["whole_rounds"] = cell.has_whole_rounds
        unknown = {"speedup": speedup, "speedup_predicted": dict(speedup)}
        return entry | {"decision": "undecided", **unknown, "reason": f"{status}: {reason}"}
    found = estimate.speedup
    chosen = found.recommended_gamma or int(found.gammas[np.argmax(found.speedup)])
    at, acceptance = estimate.at(chosen), setting.acceptance_at(cell.cell.context)
    assert acceptance is not None  # or there were no estimate
    return entry | {
        "decision": found.decision.verdict,
        "gamma": found.recommended_gamma if found.decision.verdict == "speculate" else None,
        "best_gamma": found.best_gamma or None,
        "recommended_gamma": found.recommended_gamma or None,
        "speedup": {"value": at(found.speedup), "low": at(found.low), "high": at(found.high)},
        "speedup_predicted": {
            "value": at(found.predicted),
            "low": at(found.predicted_low),
            "high": at(found.predicted_high),
        },
        "p_gamma_best": at(found.p_best),
        "expected_loss": at(found.expected_loss),
        "p_speculation_pays": at(found.p_pays),
        "tokens_per_round": finite_or_none(acceptance.only([chosen]).tokens_per_round[0, 0]),
        "t_overhead_s": estimate.t_overhead_s,
        "whole_rounds": estimate.costs.t_round_s is not None,
        "t_decode_s": float(estimate.costs.t_decode_s[0]),
        "t_round_s": at(estimate.t_round_s),
        "reason": found.decision.reason,
    }


def _run_warnings(
    analysed: AnalysedRun, decisions: Sequence[Mapping[str, Any]], validation: Sequence[Mapping[str, Any]]
) -> Iterator[WarningRow]:
    """Every warning; that of what there was no time for knows all others, and its remedy is theirs."""
    outcomes = analysed.outcomes
    found = [*_measured_warnings(analysed, validation), *decision_warnings(decisions)]
    found += lost_warnings(decisions, validation)
    anew = any(row.code in ANEW for row in found) or any(map(is_conflict, decisions))
    late = left_out_warnings(analysed.run.config, outcomes, anew=anew)
    yield from with_one_remedy([*found, *late], outcomes)


def _measured_warnings(analysed: AnalysedRun, validation: Sequence[Mapping[str, Any]]) -> Iterator[WarningRow]:
    config, cells, found = analysed.run.config, analysed.cells, analysed.settings
    served = read_served(analysed.run.path)
    yield from met_warnings(analysed.outcomes)
    for pair in planned_pairs(config):
        own = [cell for cell in cells if cell.cell.pair == pair.name]
        has_time = not analysed.outcomes.get(pair.name, PairOutcome()).left_out
        if analysed.run.is_imported:
            yield from imported_warnings(analysed.run, pair.name, own)
        else:
            if analysed.run.is_served:
                yield from served_warnings(pair.name, served)
                yield from live_warnings(pair.name, served, confidence=config.precision.confidence)
            for row in timing_warnings(config, pair.name, own, analysed.decoded.disturbances(pair.name)):
                is_told = row.code == "skipped" and analysed.run.is_served  # as a batch size that was not reached
                if (has_time or row.code != UNMEASURED) and not is_told:  # what there was no time for is told once
                    yield row
        is_skipped = all(arm.status in ("skipped", REFUSED) for cell in own for arm in cell.arms.values())
        settings = {setting.key.sampling: setting for setting in found if setting.key.pair == pair.name}
        texts = {name: setting.texts for name, setting in settings.items() if setting.texts is not None}
        yield from acceptance_warnings(config, pair.name, texts)
        for name, setting in settings.items():
            if setting.rounds is None and not is_skipped and setting.reason != OUT_OF_TIME:  # whose cells tell why
                yield WarningRow(
                    code="acceptance_missing",
                    message=f"pair {pair.name}, sampling {name}: no acceptance: {setting.reason}",
                    remedy="import files that count them together with these (--guess takes several formats)"
                    if analysed.run.is_imported
                    else "run the same command again; where memory ran out, lower acceptance.batch_size and chunk",
                )
    for setting in found:
        if analysed.run.has_counts:
            yield from between_warnings(analysed.run, setting, cells_of(setting, cells))
        if setting.rounds is not None and setting.rounds.chain_check is not None:
            yield from setting_warnings(
                setting.key,
                draft_is_timed=setting.draft_chain == setting.chain or setting.draft_chain in chains(config),
                check=setting.rounds.chain_check,
            )
    undecoded = {
        (pair, key): why for pair, one in analysed.outcomes.items() for key, why in one.validation_reasons.items()
    }
    yield from decoding_warnings(validation, undecoded)
