"""The answers of a run for an export: one setting at one context, γ at every measured batch size and between them.

    run_answers(Run.open(path), RULES, sampling="greedy", context=256, undecided="off")

Where a run has several draft samplings, the one that the engine uses by default is taken. One that the run was not
configured for is answered from the same recorded positions, as every rule is: the run's files stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from specgauge.configs.engines import AT_ZERO
from specgauge.configs.errors import did_you_mean
from specgauge.configs.fields import EMBEDDED
from specgauge.configs.pairs import LayersDraft, ModelConfig, NgramDraft, PairConfig
from specgauge.model.checks import finite_or_none
from specgauge.model.decision import OPTIMISTIC
from specgauge.model.sampling import chain_name
from specgauge.model.search.candidates import EQUIVALENCE_MARGIN
from specgauge.model.speedup import round_times_s
from specgauge.sweeps.analysis.cell_estimate import CellEstimate
from specgauge.sweeps.analysis.predictions import AnalysedRun
from specgauge.sweeps.analysis.served import zero_words
from specgauge.sweeps.analysis.settings import RunSetting, cells_of
from specgauge.sweeps.analysis.timings import CellTimings
from specgauge.sweeps.exports.answers import DraftSource, GammaFigures, PointAnswer, ServingAnswers
from specgauge.sweeps.exports.engine import DraftRules
from specgauge.sweeps.exports.schedule import KnownPoint, Undecided, answer, decided_schedule, gaps
from specgauge.sweeps.imports.write import UNKNOWN
from specgauge.sweeps.plan import chains, planned_pairs, settings_of
from specgauge.sweeps.recommend import recommend, refuse_what_is_not_there
from specgauge.sweeps.served.validation import served_policies
from specgauge.sweeps.store.environment import environment_on
from specgauge.sweeps.store.rundir import Run


def run_answers(
    run: Run,
    rules: DraftRules,
    *,
    pair: str | None = None,
    sampling: str | None = None,
    context: int | None = None,
    undecided: Undecided,
    draft_sampling: str | None = None,
) -> ServingAnswers:
    """The answers of one setting, as near to an engine's `rules` as the run has any.

    Where the run has several sampling settings or contexts and none is named, the first sampling and the longest
    context are taken, and `notes` says so.

    Raises:
        ValueError: a name or number that the run does not have, several pairs and none named, a draft sampling that was
            not recorded, nothing known at the context, or a damaged file.
    """
    refuse_what_is_not_there(run, pair=pair, sampling=sampling, batch_size=None, context=context)
    warnings: list[str] = []
    chosen_pair = _pair(run, pair)
    if sampling is None:
        sampling = run.config.sampling[0].name
        warnings += _chosen("sampling", sampling, [one.name for one in run.config.sampling])
    settings = next(settings_of(one) for one in run.config.sampling if one.name == sampling)
    rules_differ = chosen_pair.drafts_with_model and chain_name(settings).endswith("draw")
    _check_draft_sampling(draft_sampling)
    wanted = draft_sampling if rules_differ or draft_sampling in run.config.draft_sampling else None
    setting, analysed = _setting(run, rules, chosen_pair, sampling, wanted)
    cells = cells_of(setting, analysed.cells)
    contexts = sorted({cell.cell.context for cell in cells})
    if context is None:
        context = contexts[-1]
        warnings += _chosen("context", str(context), list(map(str, contexts)))
    known = _known_points(analysed, setting, [cell for cell in cells if cell.cell.context == context], warnings)
    confidence = run.config.precision.confidence
    known_points = {size: known_point for size, (known_point, _) in known.items()}
    ranges = decided_schedule(known_points, undecided=undecided, confidence=confidence)
    return ServingAnswers(
        source=str(run.path),
        origin=_origin(run, chosen_pair),
        target=_loadable(chosen_pair.target),
        draft=_draft(chosen_pair),
        pair=setting.key.pair,
        sampling=setting.key.sampling,
        draft_sampling=None if run.is_imported else setting.key.draft_sampling,
        acceptance_rule=None if run.is_imported else setting.key.acceptance_rule,
        rules_differ=rules_differ,
        context=context,
        confidence=confidence,
        ranges=ranges,
        points=tuple(_point(size, *known[size], undecided) for size in sorted(known)),
        gaps=gaps(known_points, ranges, confidence=confidence),
        reach=_reach(sorted(known), is_imported=run.is_imported),
        notes=tuple(_notes(setting, analysed, {size: point for size, (point, _) in known.items()}, context)),
        warnings=tuple(warnings),
    )


def _pair(run: Run, name: str | None) -> PairConfig:
    pairs = {pair.name: pair for pair in planned_pairs(run.config)}
    if name is None and len(pairs) > 1:
        raise ValueError(f"pair: expected one of {', '.join(pairs)}, since an engine takes one draft, got none")
    return pairs[name or next(iter(pairs))]


def _chosen(what: str, value: str, values: list[str]) -> list[str]:
    return [f"{what} {value} was taken of {', '.join(values)}: --{what} chooses"] if len(values) > 1 else []


def _check_draft_sampling(written: str | None) -> None:
    known = ("same", "greedy")
    if written not in (None, *known):
        raise ValueError(
            f"draft sampling: expected {' or '.join(known)}, got {written!r}{did_you_mean(str(written), known)}"
        )


def _setting(
    run: Run, rules: DraftRules, pair: PairConfig, sampling: str, wanted: str | None
) -> tuple[RunSetting, AnalysedRun]:
    """The setting whose rules are wanted, else nearest to the engine's, and the run analysed for it."""
    config = run.config
    drafts, accepted = config.draft_sampling, config.acceptance_rule
    draws = wanted or (rules.draft_sampling if rules.draft_sampling in drafts else drafts[0])
    rule = rules.acceptance_rule if rules.acceptance_rule in accepted else accepted[0]
    if draws not in drafts:  # beside the others, whose decoding end to end says what a round costs besides
        run = replace(run, config=config.model_copy(update={"draft_sampling": (*drafts, draws)}))
    analysed = AnalysedRun.read(run, pairs=[pair.name])
    setting = next(
        one
        for one in analysed.settings
        if (one.key.sampling, one.key.draft_sampling, one.key.acceptance_rule) == (sampling, draws, rule)
    )
    if draws not in drafts and setting.texts is None:
        raise ValueError(
            f"{run.path}: no drafts were recorded from which {draws} ones could be answered, only "
            f"{' and '.join(drafts)} ones; record both with `specgauge run … --set draft_sampling=[same,greedy]`, or "
            "import runs of an engine that drafts so"
        )
    return setting, analysed


def _known_points(
    analysed: AnalysedRun, setting: RunSetting, cells: list[CellTimings], warnings: list[str]
) -> dict[int, tuple[KnownPoint, CellEstimate]]:
    """What is known at each batch size; a warning for each that is not."""
    found: dict[int, tuple[KnownPoint, CellEstimate]] = {}
    reason = setting.reason
    for cell in cells:
        size, acceptance = cell.cell.batch_size, setting.acceptance_at(cell.cell.context)
        estimate = analysed.estimate(setting, cell)
        if estimate is None or acceptance is None:
            status, why = cell.trouble(cell.gammas[0])
            missing = "no text is long enough" if acceptance is not None else setting.reason
            reason = missing if status == "ok" else f"{status}: {why}"
            warnings.append(f"batch size {size} is not known ({reason})")
            continue
        known = KnownPoint(
            costs=estimate.costs, acceptance=acceptance.only(estimate.costs.gammas), estimate=estimate.speedup
        )
        found[size] = known, estimate
    if not found:
        raise ValueError(f"{analysed.run.path}: nothing to export, no batch size is known ({reason})")
    return found


def _reach(sizes: list[int], *, is_imported: bool) -> str:
    """What the batch sizes measured leave open."""
    below = f"below batch size {sizes[0]} nothing was measured: γ is as there; " if sizes[0] > 1 else ""
    if len(sizes) == 1:
        more = "`specgauge run … --set grid.batch_size=[1,4,16,64]` measures more"
        if is_imported:
            more = "import runs at more batch sizes beside these"
        return f"{below}only batch size {sizes[0]} was measured: γ is 0 beyond it; {more}"
    measured = ", ".join(map(str, sizes))
    between = f"measured at batch size {measured}, costs interpolated between them"
    return f"{below}{between}; beyond {sizes[-1]} nothing was measured: γ is 0"


def _notes(setting: RunSetting, analysed: AnalysedRun, known: Mapping[int, KnownPoint], context: int) -> Iterator[str]:
    if any(point.costs.is_optimistic for point in known.values()):
        yield f"S is {OPTIMISTIC}"
    is_timed = setting.draft_chain == setting.chain or setting.draft_chain in chains(analysed.run.config)
    if not (is_timed or analysed.run.has_counts):
        yield "the time of a draft step is that of drawn drafts; greedy ones were not timed"
    if analysed.run.is_served:
        own = [row for row in served_policies(analysed.run, [setting]) if row["context"] == context]
        if words := zero_words(own):
            yield words
        yield from _less_than_zero(known, own)
    if whole := recommend(analysed.run, setting=setting.key, context=context).whole_requests_lose:
        yield whole


def _less_than_zero(known: Mapping[int, KnownPoint], policies: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Where γ = 0 is written and drafts would cost less than it does; policies: rows of validation.csv."""
    for row in policies:
        point, zero = known.get(row["batch_size"]), row["speedup_measured"]
        if row["policy"] != AT_ZERO or zero is None or point is None or point.estimate.decision.verdict == "speculate":
            continue
        gamma = point.estimate.recommended_gamma
        own = float(point.estimate.speedup[point.estimate.gammas.tolist().index(gamma)])
        if own > zero / (1 - EQUIVALENCE_MARGIN):
            yield f"batch {row['batch_size']}: γ {gamma} has S {own:.2f} there, 0 by schedule {zero:.2f}"


def _point(size: int, known: KnownPoint, estimate: CellEstimate, undecided: Undecided) -> PointAnswer:
    found, acceptance = estimate.speedup, known.acceptance.estimate
    t_round_s = round_times_s(known.costs, known.acceptance, batch_size=size)[0]
    chosen = answer(found, undecided)
    by_gamma = {
        gamma: GammaFigures(
            tokens_per_round=float(acceptance.tokens_per_round[g]),
            t_round_s=float(t_round_s[g]),
            speedup=float(found.speedup[g]),
            low=None if found.low is None else finite_or_none(found.low[g]),
            high=None if found.high is None else finite_or_none(found.high[g]),
        )
        for g, gamma in enumerate(found.gammas.tolist())
    }
    return PointAnswer(
        batch_size=size, gamma=chosen.gamma, verdict=chosen.verdict, reason=chosen.reason, by_gamma=by_gamma
    )


def _origin(run: Run, pair: PairConfig) -> str:
    days = sorted(line.at[:10] for line in run.journal() if line.at)
    if run.is_imported:
        release = run.environment.get("release")
        engine = run.environment.get("engine") or "an engine"
        when = f" {days[-1]}" if days else ""
        return f"imported{when} ({run.environment.get('format')}) from {engine}{f' {release}' if release else ''}"
    day = days[-1] if days else "on an unknown day"
    if run.is_served:
        return f"measured {day} on servers ({run.environment.get('engine')})"
    environment = environment_on(run.environment, pair.accelerator_type)
    device = environment.get("device")
    if device in (None, "cpu"):
        device = environment.get("cpu") or device or "an unknown machine"
    return f"measured {day} on {device}"


def _loadable(model: ModelConfig) -> str | None:
    return None if model.model in (EMBEDDED, UNKNOWN) else model.model


def _draft(pair: PairConfig) -> DraftSource:
    match pair.draft:
        case NgramDraft(ngram=ngram):
            return DraftSource(kind="ngram", longest=ngram.longest, shortest=ngram.shortest)
        case LayersDraft(layers=layers):
            return DraftSource(kind="layers", layers=layers)
        case ModelConfig() as model:
            return DraftSource(kind="model", model=_loadable(model))
