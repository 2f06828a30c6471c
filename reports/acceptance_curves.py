"""Acceptance by position in a round, from the recorded positions of a run: survival with its interval, and summaries.

    A_j(γ_max) = Σ survival_j / Σ starts        pooled over texts by the renewal pass, resampled by prompt

Output: one `AcceptanceCurve` per (pair, sampling, draft sampling, rule) that has recorded positions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specgauge.model.acceptance.recorded import alpha_judged, alpha_overlap
from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.provenance import finite_or_none
from specgauge.model.sensitivity import alpha_from_tokens_per_round
from specgauge.model.stats.bootstrap import draw_prompts, percentile_interval, ratio_replicates
from specgauge.reports.records import Strategy
from specgauge.sweeps.analysis.acceptance import RecordedTexts, recorded_texts

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.configs.schema import Config


@dataclass(frozen=True, kw_only=True)
class AcceptanceCurve:
    """One sampling setting's acceptance under one draft sampling and rule."""

    pair: str
    sampling: str
    draft_sampling: str
    acceptance_rule: str
    gamma: int
    """Drafts of the rounds that survival belongs to."""
    survival: Sequence[float | None]
    """A_1 … A_gamma; None without a round that had room for it."""
    low: Sequence[float | None]
    """Lower ends of the intervals; None with a single prompt."""
    high: Sequence[float | None]
    tokens_per_round: float | None
    alpha_overlap: float | None
    alpha_judged: float | None
    alpha_omega: float | None
    prompts: int
    texts: int
    positions: int
    null_share: float
    """Share of positions whose acceptance is unknown: the token lies outside the recomputed support."""
    repeated_ngrams: float | None
    """Mean share of 4-grams that occurred before in the same text."""


def acceptance_curves(
    frames: Mapping[tuple[str, str], pd.DataFrame], strategies: Iterable[Strategy], config: Config
) -> list[AcceptanceCurve]:
    """The curves of `strategies` at rounds of the largest gamma; `frames` are recorded positions by (pair, sampling).

    Raises:
        ValueError: a frame holds no complete texts.
    """
    texts = {name: recorded_texts(frame) for name, frame in frames.items()}
    keys = dict.fromkeys(strategy._replace(mode="") for strategy in strategies)
    return [_curve(texts[key.pair, key.sampling], key, config) for key in keys if (key.pair, key.sampling) in frames]


def _curve(texts: RecordedTexts, key: Strategy, config: Config) -> AcceptanceCurve:
    gamma = max(config.grid.gamma)
    rounds = texts.rounds(
        key.acceptance_rule, key.draft_sampling, gammas=[gamma], max_new_tokens=config.workload.max_new_tokens
    )
    omega = finite_or_none(rounds.tokens_per_round()[0])
    low, high = _intervals(rounds, config)
    return AcceptanceCurve(
        pair=key.pair,
        sampling=key.sampling,
        draft_sampling=key.draft_sampling,
        acceptance_rule=key.acceptance_rule,
        gamma=gamma,
        survival=[finite_or_none(value) for value in rounds.survival_rates()[0]],
        low=low,
        high=high,
        tokens_per_round=omega,
        alpha_overlap=alpha_overlap(texts.overlaps(key.acceptance_rule, key.draft_sampling)),
        alpha_judged=alpha_judged(rounds.accepted, rounds.tested),
        alpha_omega=float(alpha_from_tokens_per_round(omega, gamma))
        if omega is not None and 1 <= omega <= gamma + 1
        else None,
        prompts=texts.prompts,
        texts=int(texts.padded.lengths.size),
        positions=texts.positions,
        null_share=texts.null_share,
        repeated_ngrams=texts.repeated_share(),
    )


def _intervals(by_prompt: RenewalResult, config: Config) -> tuple[list[float | None], list[float | None]]:
    """(low, high) of survival by position, from the replicates that Ω has its interval from; None where unknown."""
    survival = by_prompt.survival[:, 0]
    starts = np.broadcast_to(by_prompt.starts, survival.shape)
    weights = draw_prompts(survival.shape[0], config.precision.bootstrap_replicates, config.seed)
    replicates = ratio_replicates(survival, starts, weights, confidence=config.precision.confidence)
    ends = percentile_interval(np.clip(replicates[1:], 0.0, 1.0), config.precision.confidence)
    low, high = ([finite_or_none(value) for value in end] for end in ends)
    return low, high
