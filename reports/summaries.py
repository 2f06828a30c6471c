"""Numbers that the report shows beyond the rows: acceptance by position, and the parts of a round's cost.

A_i(γ_max) = Σ survival_i / Σ starts        pooled over texts by the renewal pass, resampled by prompt
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specgauge.model.acceptance.recorded import alpha_accepted, alpha_overlap
from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.checks import finite_or_none
from specgauge.model.sensitivity import alpha_from_tokens_per_round
from specgauge.model.settings import Setting
from specgauge.model.stats.bootstrap import draw_prompts, percentile_interval, ratio_replicates
from specgauge.reports.formatting import TimeUnit, time_unit
from specgauge.reports.records import Curve
from specgauge.sweeps.analysis.acceptance import RecordedTexts, recorded_texts
from specgauge.sweeps.analysis.cell_estimate import GroupAcceptance, acceptance_by_group, recorded_acceptance
from specgauge.sweeps.store.schema import PredictionRow

ALL_PROMPTS = "all prompts"

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.configs.schema import Config


@dataclass(frozen=True, kw_only=True)
class AcceptanceCurve:
    """Acceptance of one setting, alike in all its modes."""

    setting: Setting
    """Its mode is empty."""
    gamma: int
    """Drafts of the rounds that survival belongs to."""
    survival: Sequence[float | None]
    """A_1 … A_gamma; None without a round that had room for it."""
    low: Sequence[float | None]
    """Lower ends of the intervals; None with a single prompt."""
    high: Sequence[float | None]
    tokens_per_round: float | None
    alpha_overlap: float | None
    """Mean overlap of the two distributions over positions."""
    alpha_accepted: float | None
    """Accepted over verified drafts."""
    alpha_omega: float | None
    """The α that gives Ω."""
    texts: RecordedTexts
    """What all of it rests on."""
    categories: Sequence[GroupAcceptance] = ()
    """Ω of the prompts of each category, that of all of them last; empty where prompts have none."""


def acceptance_curves(
    frames: Mapping[tuple[str, str], pd.DataFrame],
    config: Config,
    categories: Mapping[str, Mapping[int, str]] | None = None,
) -> list[AcceptanceCurve]:
    """The curves at rounds of the largest γ; `frames` are recorded positions by (pair, sampling).

    categories: of the prompts that have one, by pair and number.

    Raises:
        ValueError: a frame holds no complete texts.
    """
    return [
        _curve(
            texts,
            Setting(pair=pair, mode="", sampling=name, draft_sampling=drawn, acceptance_rule=rule),
            config,
            (categories or {}).get(pair, {}),
        )
        for (pair, name), texts in ((key, recorded_texts(frame)) for key, frame in frames.items())
        for drawn in config.draft_sampling
        for rule in config.acceptance_rule
    ]


def _curve(texts: RecordedTexts, setting: Setting, config: Config, categories: Mapping[int, str]) -> AcceptanceCurve:
    gamma = max(config.grid.gamma)
    rounds = texts.rounds(setting, gammas=[gamma], max_new_tokens=config.workload.max_new_tokens)
    omega = finite_or_none(rounds.tokens_per_round()[0])
    alpha = None
    if omega is not None and 1 <= omega <= gamma + 1:
        alpha = float(alpha_from_tokens_per_round(omega, gamma))
    low, high = _intervals(rounds, config)
    return AcceptanceCurve(
        setting=setting,
        gamma=gamma,
        survival=[finite_or_none(value) for value in rounds.survival_rates()[0]],
        low=low,
        high=high,
        tokens_per_round=omega,
        alpha_overlap=alpha_overlap(texts.overlaps(setting)),
        alpha_accepted=alpha_accepted(rounds.accepted, rounds.tested),
        alpha_omega=alpha,
        texts=texts,
        categories=_by_category(texts, setting, config, categories) if categories else (),
    )


def _by_category(
    texts: RecordedTexts, setting: Setting, config: Config, categories: Mapping[int, str]
) -> list[GroupAcceptance]:
    recorded = recorded_acceptance(config, texts, setting)
    everything = dict.fromkeys(recorded.acceptance.prompts, ALL_PROMPTS)
    return [
        *acceptance_by_group(config, recorded, categories),
        *acceptance_by_group(config, recorded, everything),
    ]


def _intervals(by_prompt: RenewalResult, config: Config) -> tuple[list[float | None], list[float | None]]:
    """(low, high) of survival by position, from the replicates that Ω has its interval from; None where unknown."""
    survival = by_prompt.survival[:, 0]
    starts = np.broadcast_to(by_prompt.starts, survival.shape)
    weights = draw_prompts(survival.shape[0], config.precision.replicates, config.seed)
    replicates = ratio_replicates(survival, starts, weights, confidence=config.precision.confidence)
    ends = percentile_interval(np.clip(replicates[1:], 0.0, 1.0), config.precision.confidence)
    low, high = ([finite_or_none(value) for value in end] for end in ends)
    return low, high


def conditional(survival: Sequence[float | None]) -> list[float | None]:
    """A_i / A_(i-1) for i = 1 …, A_0 = 1; at most 1, since pooled A_i may rise; None where no round gets that far."""
    before = [1.0, *survival[:-1]]
    steps = zip(survival, before, strict=True)
    return [min(1.0, now / past) if now is not None and past else None for now, past in steps]


_COST_ROOM = 1.06
_ROUNDING = 1e-9
"""Share of a round below which what its parts leave of it is the rounding of their sum."""


@dataclass(frozen=True, kw_only=True)
class CostBar:
    """One bar; parts in seconds. The last two are the largest among the series, which share the others."""

    gamma: int
    draft_s: float
    verify_s: float
    transfer_s: float
    """0 where both models are on one device."""
    rest_s: float
    """What is left of T_round: catching up."""
    overhead_s: float | None
    """ε; None where no decoder has measured it. Noise can make it negative, which takes nothing off the bar."""

    @property
    def total_s(self) -> float:
        """The whole round."""
        return self.draft_s + self.transfer_s + self.verify_s + self.rest_s + max(0.0, self.overhead_s or 0.0)


def cost_bars(series: Mapping[str, Curve]) -> list[CostBar]:
    """The bars of a panel, in rising γ, where drafting and verification are both known."""
    bars: dict[int, CostBar] = {}
    for row in (row for curve in series.values() for row in curve):
        if row.t_draft_total_s is None or row.round_verify_s is None:
            continue
        round_s, transfer_s = row.t_round_s or 0.0, row.t_transfer_s or 0.0
        left_s = round_s - row.t_draft_total_s - transfer_s - row.round_verify_s - max(0.0, row.t_overhead_s or 0.0)
        before = [bars[row.gamma]] if row.gamma in bars else []
        overheads_s = [value for value in (row.t_overhead_s, *(bar.overhead_s for bar in before)) if value is not None]
        bars[row.gamma] = CostBar(
            gamma=row.gamma,
            draft_s=row.t_draft_total_s,
            transfer_s=transfer_s,
            verify_s=row.round_verify_s,
            rest_s=max(0.0 if left_s < _ROUNDING * round_s else left_s, *(bar.rest_s for bar in before), 0.0),
            overhead_s=max(overheads_s, default=None),
        )
    return [bars[gamma] for gamma in sorted(bars)]


def plain_s(row: PredictionRow) -> float | None:
    """Ω · T_decode in seconds: plain decoding of the tokens that a round commits."""
    return None if row.tokens_per_round is None or row.t_decode_s is None else row.tokens_per_round * row.t_decode_s


def cost_domain(panels: Iterable[Mapping[str, Curve]]) -> tuple[TimeUnit, float] | None:
    """The unit and the upper end of the y axis (in that unit) over all panels; None without a known cost."""
    heights_s = [0.0]
    for series in panels:
        heights_s += [bar.total_s for bar in cost_bars(series)]
        heights_s += [height for curve in series.values() for row in curve if (height := plain_s(row)) is not None]
    top_s = max(heights_s)
    if top_s <= 0:
        return None
    unit = time_unit([top_s])
    return unit, _COST_ROOM * top_s / unit.seconds
