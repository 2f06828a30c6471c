"""predictions.csv and recommendation.yaml, made from the journal and the recorded acceptance. No torch.

    predictions.csv       one row per (pair, mode, sampling, draft_sampling, acceptance_rule, batch_size, context, γ):
                          the parts of a round, Ω and S with intervals, how each is known, and why a number is missing
    recommendation.yaml   one entry per cell of those: decision, γ, S with its interval, doubt; and all warnings

Timings are joined by the cell's chain, which sampling settings share (a greedy draft's by its own, where that is timed
too); acceptance is pooled over all texts of a setting.
ε is not measured here, so every S is labelled optimistic.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.model.arms import verify_arm
from specgauge.model.known import Known, finite_or_none
from specgauge.model.prediction import OPTIMISTIC
from specgauge.model.sampling import chain_name
from specgauge.sweeps.cautions import Caution, acceptance_cautions, decision_cautions, judging_cautions, timing_cautions
from specgauge.sweeps.decoded_tables import DecodedKey
from specgauge.sweeps.files import write_text_atomically
from specgauge.sweeps.plan import Cell, chains, plan_cells, settings_of
from specgauge.sweeps.reading import PREDICTION_COLUMNS
from specgauge.sweeps.recorded import RecordedTexts, recorded_texts
from specgauge.sweeps.records import SCHEMA
from specgauge.sweeps.rounds import CellAnswer, JudgedRounds, answer_cell, judge_rounds
from specgauge.sweeps.rundir import PREDICTIONS, RECOMMENDATION, Run
from specgauge.sweeps.timings import CellTimings, collect_timings

if TYPE_CHECKING:
    from specgauge.configs.schema import Config

NO_ACCEPTANCE = "acceptance is not recorded yet; run the same command again, it goes on where it stopped"
TOO_SHORT = "no text leaves room for the largest gamma; raise workload.max_new_tokens"
COLUMNS = (*PREDICTION_COLUMNS, "status", "reason")


@dataclass(frozen=True, kw_only=True)
class Way:
    """One pair under one way of sampling, drawing drafts and judging them, and what its rounds yield."""

    pair: str
    sampling: str
    draft_sampling: str
    acceptance_rule: str
    chain: str
    """The target's sampling chain."""
    draft_chain: str
    """The draft's: the target's, or the argmax at the end of it."""
    texts: RecordedTexts | None
    rounds: JudgedRounds | None
    """None where acceptance is missing, for the reason given."""
    reason: str

    def key(self, cell: Cell) -> dict[str, Any]:
        """What keys an entry at a cell."""
        return {
            "pair": self.pair,
            "mode": cell.mode,
            "sampling": self.sampling,
            "draft_sampling": self.draft_sampling,
            "acceptance_rule": self.acceptance_rule,
            "batch_size": cell.batch_size,
            "context": cell.context,
        }


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """What a run predicts and recommends, as plain data; unknown is None."""

    rows: tuple[dict[str, Any], ...]
    recommendations: tuple[dict[str, Any], ...]
    warnings: tuple[dict[str, str], ...]


def predict_run(run: Run, *, acceptance_reasons: Mapping[tuple[str, str], str] | None = None) -> Predictions:
    """Predict from what `run` holds and write predictions.csv and recommendation.yaml.

    `acceptance_reasons` says, by (pair, sampling), why acceptance is missing, where the caller knows.

    Raises:
        ValueError: the journal or an acceptance file is damaged.
        StorageError: the disk refused a write; the older files stay.
    """
    predictions = predict(run, acceptance_reasons=acceptance_reasons)
    write_text_atomically(run.path / PREDICTIONS, predictions_csv(predictions.rows))
    write_text_atomically(run.path / RECOMMENDATION, recommendation_yaml(predictions))
    return predictions


def predict(run: Run, *, acceptance_reasons: Mapping[tuple[str, str], str] | None = None) -> Predictions:
    """The rows, recommendations and warnings of a run; writes nothing. Errors as `predict_run`."""
    config = run.config
    cells = collect_timings(plan_cells(config), config.grid.gamma, run.journal())
    found = list(ways(run, acceptance_reasons or {}))
    rows: list[dict[str, Any]] = []
    recommendations: list[dict[str, Any]] = []
    for way in found:
        for cell in cells_of(way, cells):
            answer = None if way.rounds is None else answer_cell(config, cell, way.rounds)
            rows += [_row(config, way, cell, answer, gamma) for gamma in config.grid.gamma]
            recommendations.append(recommendation(way, cell, answer))
    warnings = [caution.as_mapping() for caution in _cautions(config, cells, found, recommendations)]
    return Predictions(rows=tuple(rows), recommendations=tuple(recommendations), warnings=tuple(warnings))


def recommended_gammas(run: Run, pair: str) -> dict[DecodedKey, int | None]:
    """The γ that the measured parts of a pair recommend, by where it would be decoded; None where nothing is known.

    ε stays out of it, so that an interrupted run goes on with the γ it began with.  Errors as `predict`.
    """
    return {
        DecodedKey(
            pair=entry["pair"],
            mode=entry["mode"],
            sampling=entry["sampling"],
            draft_sampling=entry["draft_sampling"],
            acceptance_rule=entry["acceptance_rule"],
            batch_size=entry["batch_size"],
            start_context=entry["context"],
        ): entry["recommended_gamma"]
        for entry in predict(run).recommendations
        if entry["pair"] == pair
    }


def cells_of(way: Way, cells: Iterable[CellTimings]) -> list[CellTimings]:
    """The cells of a way's chain; the draft's times are those of its own chain, where that one was planned."""
    own = [cell for cell in cells if cell.cell.pair == way.pair]
    drafts = {(c.cell.batch_size, c.cell.context): c for c in own if c.cell.chain == way.draft_chain}
    return [
        cell.with_draft_of(drafts.get((cell.cell.batch_size, cell.cell.context), cell))
        for cell in own
        if cell.cell.chain == way.chain
    ]


def ways(run: Run, reasons: Mapping[tuple[str, str], str]) -> Iterator[Way]:
    """Every pair with every sampling setting, draft sampling and acceptance rule of the configuration."""
    config = run.config
    for pair in config.pairs:
        for sampling in config.sampling:
            texts = None
            if run.has_acceptance(pair.name, sampling.name):
                texts = recorded_texts(run.acceptance_of(pair.name, sampling.name))
            settings = settings_of(sampling)
            drafts = {"same": settings, "greedy": replace(settings, temperature=0.0)}
            for draft_sampling in config.draft_sampling:
                for rule in config.acceptance_rule:
                    rounds = None
                    if texts is not None:
                        rounds = judge_rounds(config, texts, acceptance_rule=rule, draft_sampling=draft_sampling)
                    yield Way(
                        pair=pair.name,
                        sampling=sampling.name,
                        draft_sampling=draft_sampling,
                        acceptance_rule=rule,
                        chain=chain_name(settings),
                        draft_chain=chain_name(drafts[draft_sampling]),
                        texts=texts,
                        rounds=rounds,
                        reason="" if rounds is not None else reasons.get((pair.name, sampling.name), NO_ACCEPTANCE),
                    )


def _trouble(way: Way, cell: CellTimings, gamma: int) -> tuple[str, str]:
    """(status, reason) of a row: of its timing, else of its acceptance; ("ok", "") when nothing is missing."""
    status, reason = cell.trouble(gamma)
    if status != "ok":
        return status, reason
    if way.rounds is None:
        return "unmeasured", way.reason
    if not way.rounds.known[way.rounds.gammas.index(gamma)]:
        return "unmeasured", TOO_SHORT
    return "ok", ""


def _row(config: Config, way: Way, cell: CellTimings, answer: CellAnswer | None, gamma: int) -> dict[str, Any]:
    status, reason = _trouble(way, cell, gamma)
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= way.key(cell.cell) | {"gamma": gamma, "status": status, "reason": reason}
    row |= {"is_best": False, "is_recommended": False, "cost_known": "", "acceptance_known": "", "label": ""}
    row |= _parts(cell, gamma)
    if way.rounds is not None and way.texts is not None:
        row |= _acceptance(config, way.rounds, gamma)
        inside = way.texts.covers(cell.cell.context)
        row["acceptance_known"] = (Known.MEASURED if inside else Known.EXTRAPOLATED).label
    if cell.trouble(gamma)[0] == "ok":
        row["cost_known"] = Known.MEASURED.label
    if answer is not None and gamma in answer.gammas:
        row |= _speedup(answer, gamma)
    return row


def _parts(cell: CellTimings, gamma: int) -> dict[str, float | None]:
    """Medians of the parts of a round that were timed, whether or not all of them were."""

    def median(arm: str, mark: int = 0) -> float | None:
        samples = cell.arms[arm].samples_s
        return float(np.median(samples[:, mark])) if len(samples) and mark < samples.shape[1] else None

    first, first_of_two = median("draft"), median("draft_catch_up")
    catch_up = None if first is None or first_of_two is None else max(0.0, first_of_two - first)
    return {
        "t_decode_s": median("decode"),
        "t_draft_total_s": median("draft", gamma - 1),
        "t_draft_catch_up_s": catch_up,
        "t_verify_s": median(verify_arm(gamma)),
    }


def _acceptance(config: Config, rounds: JudgedRounds, gamma: int) -> dict[str, float | None]:
    index = rounds.gammas.index(gamma)
    low, high = rounds.interval(config.precision.confidence)
    return {
        "tokens_per_round": finite_or_none(rounds.tokens_per_round[0, index]),
        "tokens_per_round_low": finite_or_none(low[index]),
        "tokens_per_round_high": finite_or_none(high[index]),
        "accepted_draft_tokens": finite_or_none(rounds.accepted_draft_tokens[index]),
        "full_acceptance": finite_or_none(rounds.full_acceptance[0, index]),
    }


def _speedup(answer: CellAnswer, gamma: int) -> dict[str, Any]:
    index, doubt = answer.gammas.index(gamma), answer.doubt
    return {
        "t_round_s": finite_or_none(answer.t_round_s[index]),
        "speedup": finite_or_none(doubt.speedup[index]),
        "speedup_low": None if doubt.low is None else finite_or_none(doubt.low[index]),
        "speedup_high": None if doubt.high is None else finite_or_none(doubt.high[index]),
        "p_best": None if doubt.p_best is None else finite_or_none(doubt.p_best[index]),
        "is_best": gamma == doubt.best_gamma,
        "is_recommended": gamma == doubt.recommended_gamma,
        "label": OPTIMISTIC,
    }


def recommendation(way: Way, cell: CellTimings, answer: CellAnswer | None) -> dict[str, Any]:
    """The entry of a cell in recommendation.yaml; `undecided`, with the reason, where nothing is known."""
    entry = way.key(cell.cell)
    if answer is None:
        gammas = [int(arm.partition(":")[2]) for arm in cell.arms if arm.startswith("verify:")]
        status, reason = _trouble(way, cell, gammas[0])
        nothing = dict.fromkeys(("gamma", "best_gamma", "recommended_gamma"))
        unknown = dict.fromkeys(("p_gamma_best", "expected_loss", "p_speculation_pays"))
        speedup = dict.fromkeys(("value", "low", "high"))
        return entry | {"decision": "undecided"} | nothing | {"speedup": speedup} | unknown | {
            "reason": f"{status}: {reason}"
        }  # fmt: skip
    doubt = answer.doubt
    chosen = doubt.recommended_gamma or answer.gammas[int(np.argmax(doubt.speedup))]
    index = answer.gammas.index(chosen)

    def at(values: Any) -> float | None:
        return None if values is None else finite_or_none(values[index])

    return entry | {
        "decision": doubt.decision,
        "gamma": doubt.recommended_gamma if doubt.decision == "speculate" else None,
        "best_gamma": doubt.best_gamma or None,
        "recommended_gamma": doubt.recommended_gamma or None,
        "speedup": {"value": at(doubt.speedup), "low": at(doubt.low), "high": at(doubt.high)},
        "p_gamma_best": at(doubt.p_best),
        "expected_loss": at(doubt.expected_loss),
        "p_speculation_pays": at(doubt.p_pays),
        "reason": doubt.reason,
    }


def _cautions(
    config: Config, cells: Sequence[CellTimings], found: Sequence[Way], decisions: Sequence[Mapping[str, Any]]
) -> Iterator[Caution]:
    for pair in config.pairs:
        yield from timing_cautions(config, pair.name, [cell for cell in cells if cell.cell.pair == pair.name])
        settings = {way.sampling: way for way in found if way.pair == pair.name}
        texts = {name: way.texts for name, way in settings.items() if way.texts is not None}
        yield from acceptance_cautions(config, pair.name, texts)
        for name, way in settings.items():
            if way.texts is None:
                yield Caution(
                    code="acceptance_missing",
                    message=f"pair {pair.name}, sampling {name}: no acceptance: {way.reason}",
                    remedy="run the same command again; where memory ran out, lower acceptance.batch_size and chunk",
                )
    for way in found:
        if way.rounds is not None:
            yield from judging_cautions(
                way.pair,
                way.sampling,
                way.draft_sampling,
                way.acceptance_rule,
                draft_is_timed=way.draft_chain == way.chain or way.draft_chain in chains(config),
                check=way.rounds.chain_check,
            )
    yield from decision_cautions(decisions)


def predictions_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """The text of predictions.csv; unknown is empty, floats come back exactly."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def recommendation_yaml(predictions: Predictions) -> str:
    """The text of recommendation.yaml."""
    import yaml

    content = {
        "schema": SCHEMA,
        "recommendations": list(predictions.recommendations),
        "warnings": list(predictions.warnings),
    }
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return text
