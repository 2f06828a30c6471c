"""From one cell's timings and what rounds of a setting yield to S(γ), its uncertainty and a decision.

    Acceptance      Ω(γ), A_γ pooled over prompts, with replicates that draw prompts      (one for all batch sizes)
    RoundCosts      medians of the arms, with replicates that draw blocks                 (one for all arms of a cell);
                    where rounds may verify fewer than γ drafts, T_verify is its mean over them; rounds that a
                    serving engine timed whole are T_round as they are
    SpeedupEstimate S(γ) and its decision                                                 `specgauge.model.decision`

γ whose round was not timed, or that no text is long enough for, take no part; the rest is decided without them.
Row 0 of every replicate array is the estimate. R replicates, G gammas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.configs.fields import LARGEST_GAMMA
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.acceptance.lookups import draft_share_replicates, mean_verify_s
from specgauge.model.acceptance.recorded import ChainCheck
from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.arms import SEVERAL_MARKS, round_arm, round_arms, verify_arm
from specgauge.model.checks import FloatArray, IntArray, finite_or_none
from specgauge.model.costs import RoundCosts
from specgauge.model.decision import SpeedupEstimate, costs_from_blocks, estimate_speedup
from specgauge.model.settings import Provenance, Setting
from specgauge.model.speedup import round_times_s, speedups
from specgauge.model.stats.bootstrap import (
    draw_blocks,
    draw_prompts,
    median_replicates,
    percentile_interval,
    ratio_replicates,
)
from specgauge.sweeps.analysis.acceptance import RecordedTexts
from specgauge.sweeps.analysis.timings import CellTimings

if TYPE_CHECKING:
    from specgauge.configs.schema import Config


ONE_RUN_SPREAD = 0.05
"""Relative standard deviation that is assumed from run to run of a serving engine, where there was one run."""
SharedCosts = dict[tuple[object, ...], tuple[CellTimings, RoundCosts]]
"""Costs of cells that several settings have; empty at first."""


@dataclass(frozen=True, kw_only=True)
class RecordedRounds:
    """The rounds that recorded texts expect under one setting, the same at every batch size."""

    acceptance: Acceptance
    """(1 + R, G), every gamma of the grid."""
    by_prompt: RenewalResult | None = None
    """The sums behind it, by prompt; None of counts that somebody else kept."""
    chain_check: ChainCheck | None = None
    """Whether the recorded texts come from the chain that acceptance was computed for; None without texts."""

    def interval(self, confidence: float) -> tuple[FloatArray, FloatArray]:
        """(low, high) of Ω, each (G,); NaN where the uncertainty is unknown."""
        accepted = self.acceptance
        return percentile_interval(np.clip(accepted.tokens_per_round[1:], 1, accepted.gammas + 1), confidence)


def recorded_acceptance(config: Config, texts: RecordedTexts, setting: Setting) -> RecordedRounds:
    """Ω and A_γ of every gamma of the grid, from the recorded texts of a setting."""
    gammas, precision = config.grid.gamma, config.precision
    result = texts.rounds(setting, gammas=gammas, max_new_tokens=config.workload.max_new_tokens)
    weights = draw_prompts(result.starts.shape[0], precision.replicates, config.seed)
    ratios = [
        ratio_replicates(sums, result.starts, weights, confidence=precision.confidence)
        for sums in (result.committed, result.full_acceptance)
    ]
    starts = result.starts.sum(axis=0)
    accepted = np.full(len(gammas), np.nan)
    np.divide(result.survival.sum(axis=(0, 2)), starts, out=accepted, where=starts > 0)
    return RecordedRounds(
        acceptance=Acceptance(
            gammas=np.array(gammas),
            tokens_per_round=ratios[0],
            full_acceptance=ratios[1],
            provenance=np.full(len(gammas), int(Provenance.MEASURED)),
            accepted_draft_tokens=accepted,
            draft_count_distribution=None
            if result.rounds_by_drafts is None
            else draft_share_replicates(result, weights, confidence=precision.confidence),
            prompts=tuple(np.unique(texts.padded.prompts).tolist()),
        ),
        by_prompt=result,
        chain_check=texts.chain_check(result, setting),
    )


@dataclass(frozen=True, kw_only=True)
class GroupAcceptance:
    """Ω of some of a setting's prompts, such as those of one category."""

    group: Any
    prompts: int
    gammas: IntArray
    """(G,)."""
    tokens_per_round: FloatArray
    """(G,) pooled over the prompts; NaN where no text is long enough."""
    low: FloatArray
    """(G,) ends of its interval over prompts; NaN with a single one."""
    high: FloatArray

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each γ; unknown is None."""
        for index, gamma in enumerate(self.gammas.tolist()):
            yield {
                "gamma": gamma,
                "prompts": self.prompts,
                "tokens_per_round": finite_or_none(self.tokens_per_round[index]),
                "tokens_per_round_low": finite_or_none(self.low[index]),
                "tokens_per_round_high": finite_or_none(self.high[index]),
            }


def acceptance_by_group(config: Config, rounds: RecordedRounds, groups: Mapping[int, Any]) -> Iterator[GroupAcceptance]:
    """Ω by γ of each group of a setting's prompts, with its interval over them, groups as they first appear.

    groups: that of each prompt by its number; None where it has none.
    """
    result, precision = rounds.by_prompt, config.precision
    assert result is not None, "counts have no prompts"
    found = [groups.get(number) for number in rounds.acceptance.prompts]
    for group in dict.fromkeys(found):
        own = [index for index, one in enumerate(found) if one == group]
        weights = draw_prompts(len(own), precision.replicates, config.seed)
        omega = ratio_replicates(result.committed[own], result.starts[own], weights, confidence=precision.confidence)
        low, high = percentile_interval(np.clip(omega[1:], 1, result.gammas + 1), precision.confidence)
        yield GroupAcceptance(
            group=group, prompts=len(own), gammas=result.gammas, tokens_per_round=omega[0], low=low, high=high
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """S of a cell as it was decoded, beside what is predicted of it."""

    speedups: Mapping[int, FloatArray] = field(default_factory=dict)
    """By γ, (1 + R,)."""
    errors: Mapping[int, FloatArray] = field(default_factory=dict)
    """By γ, (1 + R,): log S measured over S predicted, of the very blocks that the prediction is made of."""
    drawn_together: bool = False
    """Whether replicates vary with those of the prediction as they do in truth; errors always do."""


@dataclass(frozen=True, kw_only=True)
class CellEstimate:
    """S(γ) of one cell under one setting, for the gammas whose round is known, with what it was computed from."""

    costs: RoundCosts
    """(1 + R, G)."""
    t_round_s: FloatArray
    """(G,) estimates."""
    speedup: SpeedupEstimate

    @property
    def t_overhead_s(self) -> float | None:
        """ε in them; None where no decoder has measured it, and S is optimistic."""
        overhead_s = self.costs.t_overhead_s
        return None if overhead_s is None else float(overhead_s[0, 0])

    def at(self, gamma: int) -> Callable[[FloatArray | None], float | None]:
        """What reads one of its figures (G,) at a γ; None where the figure is unknown."""
        index = self.costs.gammas.tolist().index(gamma)
        return lambda values: None if values is None else finite_or_none(values[index])


def estimate_cell(
    config: Config,
    cell: CellTimings,
    acceptance: Acceptance | None,
    *,
    max_itl_s: float | None = None,
    t_overhead_s: FloatArray | None = None,
    measured: Measured | None = None,
    shared: SharedCosts | None = None,
) -> CellEstimate | None:
    """S(γ) with its uncertainty and the decision; None where no γ is known.

    Args:
        config: of the run.
        cell: its timings.
        acceptance: at the cell's context; None where it is not known.
        max_itl_s: bounds T_round of what may win.
        t_overhead_s: (1 + R,) ε with its replicates; None where no decoder has measured it.
        measured: S decoded end to end.
        shared: where the costs of cells that several settings have are kept.
    """
    if acceptance is None:
        return None
    known = zip(acceptance.gammas.tolist(), acceptance.is_known, strict=True)
    gammas = tuple(gamma for gamma, is_known in known if is_known and cell.trouble(gamma)[0] == "ok")
    if cell.has_whole_rounds:  # parts timed in another way are no evidence beside them
        gammas = tuple(filter(cell.is_whole, gammas))
    if not gammas:
        return None
    accepted, batch_size = acceptance.only(gammas), cell.cell.batch_size
    costs = cell_costs(config, cell, gammas, {} if shared is None else shared)
    if accepted.draft_count_distribution is not None:
        costs = replace(
            costs, t_verify_s=mean_verify_s(costs, accepted.draft_count_distribution, batch_size=batch_size)
        )
    if t_overhead_s is not None:
        costs = replace(costs, t_overhead_s=t_overhead_s[:, None])
    measured = measured or Measured()
    found = dict(measured.speedups)
    if measured.errors:
        columns = zip(gammas, speedups(costs, accepted, batch_size=batch_size).T, strict=True)
        found = {gamma: own * np.exp(measured.errors[gamma]) for gamma, own in columns if gamma in measured.errors}
    return CellEstimate(
        costs=costs,
        t_round_s=round_times_s(costs, accepted, batch_size=batch_size)[0],
        speedup=estimate_speedup(
            costs,
            accepted,
            batch_size=batch_size,
            confidence=config.precision.confidence,
            max_itl_s=max_itl_s,
            measured=found,
            drawn_together=measured.drawn_together or bool(measured.errors),
        ),
    )


def cell_costs(config: Config, cell: CellTimings, gammas: tuple[int, ...], shared: SharedCosts) -> RoundCosts:
    """Medians of a cell's arms with replicates, (1 + R, G); made once for all settings that have the same arms."""
    key = (cell.cell, gammas, *(id(arm) for arm in cell.arms.values()))
    if key not in shared and cell.is_apart:
        shared[key] = cell, _costs_apart(config, cell, gammas)
    if key not in shared:  # the cell is kept, so that no other arm takes the ids of its arms
        names = round_arms(gammas, catches_up=cell.cell.catches_up, transfers=cell.transfers)
        blocks = {name: _blocks(cell, name) for name in names}
        draws = draw_blocks(
            max(len(arm) for arm in blocks.values()),
            config.precision.replicates,
            (config.seed, int(cell.cell.id, 16)),
        )
        shared[key] = cell, costs_from_blocks(blocks, gammas, draws, waiting_spread=cell.waiting_spread(blocks))
    return shared[key][1]


def _costs_apart(config: Config, cell: CellTimings, gammas: tuple[int, ...]) -> RoundCosts:
    """Costs of arms that were timed apart, as the runs of a serving engine are: every arm by its own blocks.

    Servers whose blocks interleave share the pace of each, and so the draws.
    """
    replicates, seed = config.precision.replicates, (config.seed, int(cell.cell.id, 16))
    most = max(len(arm.blocks) for arm in cell.arms.values())

    def drawn(name: str, stream: int) -> FloatArray:
        """(1 + R, marks) medians; NaN where the arm was not timed."""
        blocks = list(cell.arms[name].blocks.values()) if name in cell.arms else []
        if not blocks:
            return np.full((1 + replicates, 1), np.nan)
        is_shared = cell.is_interleaved and len(blocks) > 1
        draws = draw_blocks(most if is_shared else len(blocks), replicates, seed if is_shared else (*seed, stream))
        values = median_replicates(blocks, draws, name)
        if len(blocks) == 1:
            values[1:] = values[0] * np.exp(ONE_RUN_SPREAD * draws.normals)
        return values

    def by_gamma(arm: Callable[[int], str], stream: int) -> FloatArray:
        return np.concatenate([drawn(arm(gamma), stream + gamma) for gamma in gammas], axis=1)

    marks = [gamma - 1 for gamma in gammas]
    chain_s, whole_s = drawn("draft", 1), by_gamma(round_arm, 2 * LARGEST_GAMMA)
    return RoundCosts(
        gammas=np.array(gammas),
        t_decode_s=drawn("decode", 0)[:, 0],
        t_draft_total_s=chain_s[:, marks] if max(marks) < chain_s.shape[1] else np.full(whole_s.shape, np.nan),
        t_verify_s=by_gamma(verify_arm, LARGEST_GAMMA),
        t_round_s=whole_s if cell.has_whole_rounds else None,
        provenance=np.full(len(gammas), int(cell.round_provenance)),
    )


def _blocks(cell: CellTimings, name: str) -> list[FloatArray]:
    """An arm's samples by block: (n, marks) for the chain and transfers, (n,) for arms of one mark."""
    blocks = list(cell.arms[name].blocks.values())
    return blocks if name in SEVERAL_MARKS else [block[:, 0] for block in blocks]
