"""Every setting that a run covers, with what its rounds yield. No torch.

    for setting in run_settings(run, {}):
        for cell in cells_of(setting, cells):
            estimate = estimate_cell(config, cell, setting.acceptance_at(cell.cell.context))

Acceptance is pooled over all texts of a sampling setting; at a context that texts start from exactly
(`workload.prompt_tokens`), over those. A run of serving engines has counts in the place of texts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.sampling import chain_name
from specgauge.model.settings import Provenance, Setting
from specgauge.sweeps.analysis.acceptance import RecordedTexts, recorded_texts
from specgauge.sweeps.analysis.cell_estimate import RecordedRounds, recorded_acceptance
from specgauge.sweeps.analysis.counts import counted_acceptance
from specgauge.sweeps.analysis.timings import CellTimings
from specgauge.sweeps.plan import Cell, planned_pairs, settings_of
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config, SamplingConfig

NO_TEXTS = "the run is imported: it has counts of rounds, no texts whose positions were recorded"
OF_SERVERS = "servers decoded: there are counts of rounds, no texts whose positions were recorded"
NOTHING_COUNTED = "the imported files count no rounds at this γ, nor at a larger one"
NOT_COUNTED = "no rounds were counted at this γ yet, nor at a larger one; run the same command again"
NO_ACCEPTANCE = "acceptance is not recorded yet; run the same command again, it goes on where it stopped"


@dataclass(frozen=True, kw_only=True)
class RunSetting:
    """One setting of a run: its chains, its recorded texts, and what its rounds yield."""

    key: Setting
    chain: str
    """The target's sampling chain."""
    draft_chain: str
    """The draft's: the target's, or the argmax at the end of it."""
    texts: RecordedTexts | None
    rounds: RecordedRounds | None
    """None where acceptance is missing, for the reason given."""
    reason: str
    """Why there are no texts; empty where there are."""
    starting_at: Mapping[int, RecordedRounds] = field(default_factory=dict)
    """What the texts that start at exactly a context yield, by context; all others take `rounds`."""

    def rounds_at(self, context: int) -> RecordedRounds | None:
        """What rounds yield in cells of a context."""
        return self.starting_at.get(context, self.rounds)

    def acceptance_at(self, context: int) -> Acceptance | None:
        """Ω and A_γ in cells of a context."""
        rounds = self.rounds_at(context)
        return None if rounds is None else rounds.acceptance

    def tokens_per_round_by_prompt(self, context: int) -> dict[int, float]:
        """Ω at the largest γ in each recorded text of a context, by the prompt's number; NaN of a text without rounds.

        Empty where nothing was recorded by prompt.
        """
        recorded = self.rounds_at(context)
        if recorded is None or recorded.by_prompt is None:
            return {}
        committed, starts = recorded.by_prompt.committed[:, -1], recorded.by_prompt.starts[:, -1]
        per_round = np.divide(committed, starts, out=np.full(len(starts), np.nan), where=starts > 0)
        return dict(zip(recorded.acceptance.prompts, per_round.tolist(), strict=True))

    def decoded_key(self, cell: Cell) -> DecodedKey:
        """Where the cell is decoded end to end under this setting."""
        return DecodedKey(**asdict(self.key), batch_size=cell.batch_size, start_context=cell.context)

    def columns(self, cell: Cell) -> dict[str, Any]:
        """What keys an entry at a cell."""
        return {**asdict(self.key), "batch_size": cell.batch_size, "context": cell.context}


def cells_of(setting: RunSetting, cells: Iterable[CellTimings]) -> list[CellTimings]:
    """The cells of a setting's chain; the draft's times are those of its own chain, where that one was planned."""
    own = [cell for cell in cells if cell.cell.pair == setting.key.pair]
    drafts = {(c.cell.batch_size, c.cell.context): c for c in own if c.cell.chain == setting.draft_chain}
    return [
        cell.with_draft_of(drafts.get((cell.cell.batch_size, cell.cell.context), cell))
        for cell in own
        if cell.cell.chain == setting.chain
    ]


def acceptance_reasons(outcomes: Mapping[str, PairOutcome]) -> dict[tuple[str, str], str]:
    """Why acceptance is missing, by (pair, sampling), where it is known."""
    return {(pair, key): why for pair, one in outcomes.items() for key, why in one.acceptance_reasons.items()}


def run_settings(
    run: Run, reasons: Mapping[tuple[str, str], str], *, pairs: Collection[str] | None = None
) -> Iterator[RunSetting]:
    """Every pair that has cells with every sampling setting, draft sampling and acceptance rule of the configuration.

    reasons: why acceptance is missing, by (pair, sampling), where it is known; pairs: those wanted, None for all.
    """
    for pair in planned_pairs(run.config):
        if pairs is not None and pair.name not in pairs:
            continue
        for sampling in run.config.sampling:
            is_there = run.has_acceptance(pair.name, sampling.name)
            frame = run.acceptance_of(pair.name, sampling.name) if is_there else None
            reason = reasons.get((pair.name, sampling.name), NO_ACCEPTANCE)
            counted = None if is_there else _counted(run, pair.name, sampling.name)
            if run.has_counts:
                reason = NOT_COUNTED if run.is_served else NOTHING_COUNTED
            no_texts = OF_SERVERS if run.is_served else NO_TEXTS
            for setting in _settings_of_pair(run.config, pair, sampling, frame, reason):
                yield setting if counted is None else replace(setting, rounds=counted, reason=no_texts)


def _counted(run: Run, pair: str, sampling: str) -> RecordedRounds | None:
    rows, precision = run.counts(pair, sampling), run.config.precision
    if not rows:
        return None
    acceptance = counted_acceptance(
        rows,
        run.config.grid.gamma,
        replicates=precision.replicates,
        seed=run.config.seed,
        confidence=precision.confidence,
        counted=Provenance.MEASURED if run.is_served else Provenance.IMPORTED,
    )
    return RecordedRounds(acceptance=acceptance)


def _settings_of_pair(
    config: Config, pair: PairConfig, sampling: SamplingConfig, frame: pd.DataFrame | None, reason: str
) -> Iterator[RunSetting]:
    texts = None if frame is None else recorded_texts(frame)
    starting = {} if frame is None else _starting_at(frame, config.grid.context)
    settings = settings_of(sampling)
    greedy = replace(settings, temperature=0.0) if pair.drafts_with_model else settings
    drafts = {"same": settings, "greedy": greedy}  # a lookup draws nothing
    for draft_sampling in config.draft_sampling:
        for rule in config.acceptance_rule:
            key = Setting(
                pair=pair.name,
                mode=config.mode_of(pair),
                sampling=sampling.name,
                draft_sampling=draft_sampling,
                acceptance_rule=rule,
            )
            yield RunSetting(
                key=key,
                chain=chain_name(settings),
                draft_chain=chain_name(drafts[draft_sampling]),
                texts=texts,
                rounds=None if texts is None else recorded_acceptance(config, texts, key),
                reason="" if texts is not None else reason,
                starting_at={context: recorded_acceptance(config, own, key) for context, own in starting.items()},
            )


def _starting_at(frame: pd.DataFrame, contexts: Iterable[int]) -> dict[int, RecordedTexts]:
    """The texts that start at exactly each of the contexts, where not all do and at least two prompts do."""
    starts = frame["context"] - frame["position"]
    found = {}
    for context in contexts:
        own = frame[starts == context]
        if 0 < len(own) < len(frame) and own["prompt"].nunique() > 1:
            found[context] = recorded_texts(own)
    return found
