"""From one cell's timings and one way of judging to S(γ), its doubt and a decision.

    Ω(γ), A_γ      pooled over prompts, with replicates that draw prompts       (one for all cells)
    parts          medians of the arms, with replicates that draw blocks        (one for all arms of a cell);
                   where rounds may verify fewer than γ drafts, T_verify is its mean over them
    S(γ) = Ω(γ) · T_decode / T_round(γ)      and its decision: specgauge.model.decision

γ whose round was not timed, or that no text is long enough to judge, take no part; the rest is decided without them.
Row 0 of every replicate array is the estimate. R replicates, G gammas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from specgauge.model.acceptance.lookups import draft_share_replicates, mean_drafts, mean_verify_replicates_s
from specgauge.model.acceptance.recorded import ChainCheck
from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.arms import round_arms
from specgauge.model.checks import BoolArray, FloatArray
from specgauge.model.decision import (
    PartReplicates,
    SpeedupDoubt,
    parts_replicates,
    round_time_replicates_s,
    speedup_replicates,
    summarise,
)
from specgauge.model.speedup import within_limits
from specgauge.model.stats.bootstrap import draw_blocks, draw_prompts, percentile_interval, ratio_replicates
from specgauge.sweeps.analysis.acceptance import RecordedTexts
from specgauge.sweeps.analysis.timings import CellTimings

if TYPE_CHECKING:
    from specgauge.configs.schema import Config


@dataclass(frozen=True, kw_only=True)
class JudgedRounds:
    """What rounds yield under one way of drawing and judging drafts, the same at every batch size and context."""

    gammas: tuple[int, ...]
    tokens_per_round: FloatArray
    """(1 + R, G) Ω; NaN where no text is long enough."""
    full_acceptance: FloatArray
    """(1 + R, G) A_γ."""
    accepted_draft_tokens: FloatArray
    """(G,) drafts accepted per round: Ω − 1, and the bonus that a round ending on an accepted EOS lacks."""
    chain_check: ChainCheck
    """Whether the recorded texts come from the chain that acceptance was computed for."""
    by_prompt: RenewalResult
    """The sums behind it, by prompt."""
    draft_shares: FloatArray | None
    """(1 + R, G, D + 1) P(a round verifies k drafts); None where every round verifies γ."""
    prompts: tuple[int, ...]
    """The number of each of those prompts."""

    @property
    def known(self) -> BoolArray:
        """(G,) whether Ω is known."""
        return np.asarray(np.isfinite(self.tokens_per_round[0]), dtype=np.bool_)

    @property
    def drafts_per_round(self) -> FloatArray:
        """(G,) drafts that a round verifies on average; NaN where no text is long enough."""
        if self.draft_shares is None:
            return np.array(self.gammas, dtype=np.float64)
        return mean_drafts(self.draft_shares[0])

    def interval(self, confidence: float) -> tuple[FloatArray, FloatArray]:
        """(low, high) of Ω, each (G,); NaN where the doubt is unknown."""
        return percentile_interval(np.clip(self.tokens_per_round[1:], 1, np.array(self.gammas) + 1), confidence)


def judge_rounds(config: Config, texts: RecordedTexts, *, acceptance_rule: str, draft_sampling: str) -> JudgedRounds:
    """Ω and A_γ of every gamma of the grid, from the recorded texts of one sampling setting."""
    gammas, precision = config.grid.gamma, config.precision
    result = texts.rounds(acceptance_rule, draft_sampling, gammas=gammas, max_new_tokens=config.workload.max_new_tokens)
    weights = draw_prompts(result.starts.shape[0], precision.bootstrap_replicates, config.seed)
    ratios = [
        ratio_replicates(sums, result.starts, weights, confidence=precision.confidence)
        for sums in (result.committed, result.full_acceptance)
    ]
    starts = result.starts.sum(axis=0)
    accepted = np.full(len(gammas), np.nan)
    np.divide(result.survival.sum(axis=(0, 2)), starts, out=accepted, where=starts > 0)
    return JudgedRounds(
        gammas=gammas,
        tokens_per_round=ratios[0],
        full_acceptance=ratios[1],
        accepted_draft_tokens=accepted,
        chain_check=texts.chain_check(result, acceptance_rule=acceptance_rule, draft_sampling=draft_sampling),
        by_prompt=result,
        draft_shares=None
        if result.rounds_by_drafts is None
        else draft_share_replicates(result, weights, confidence=precision.confidence),
        prompts=tuple(np.unique(texts.padded.prompts).tolist()),
    )


@dataclass(frozen=True, kw_only=True)
class CellAnswer:
    """One cell under one way of judging, for the gammas whose round is known."""

    gammas: tuple[int, ...]
    parts: PartReplicates
    t_round_s: FloatArray
    """(G,) estimates."""
    doubt: SpeedupDoubt
    speedups: FloatArray
    """(1 + R, G) S behind it, the estimate first."""
    t_overhead_s: float | None = None
    """ε in them; None where no decoder has measured it, and S is optimistic."""


def known_gammas(cell: CellTimings, rounds: JudgedRounds) -> tuple[int, ...]:
    """The gammas of which both the round's times and its tokens are known."""
    judged = zip(rounds.gammas, rounds.known, strict=True)
    return tuple(gamma for gamma, known in judged if known and cell.trouble(gamma)[0] == "ok")


def answer_cell(
    config: Config,
    cell: CellTimings,
    rounds: JudgedRounds,
    *,
    max_itl_s: float | None = None,
    t_overhead_s: FloatArray | None = None,
    shared: SharedParts | None = None,
) -> CellAnswer | None:
    """S(γ) with its doubt and the decision; None where no γ is known.

    max_itl_s bounds T_round of what may win; t_overhead_s (1 + R,) is ε with its replicates, None where no decoder has
    measured it; shared: where the parts of cells that several ways have are kept.
    """
    gammas = known_gammas(cell, rounds)
    if not gammas:
        return None
    parts = _round_parts(cell, rounds, gammas, shared or SharedParts(config))
    columns = [rounds.gammas.index(gamma) for gamma in gammas]
    full = rounds.full_acceptance[:, columns]
    batch_size = cell.cell.batch_size
    overhead = None
    if t_overhead_s is not None:  # below 0 where parts were timed slowly, but no round is shorter than a plain step
        spare_s = round_time_replicates_s(parts, full, batch_size=batch_size) - parts.t_decode_s[:, None]
        overhead = np.maximum(t_overhead_s[:, None], -np.maximum(spare_s, 0.0))
    t_round_s = round_time_replicates_s(parts, full, batch_size=batch_size, t_overhead_s=overhead)[0]
    speedups = speedup_replicates(
        parts,
        rounds.tokens_per_round[:, columns],
        full,
        gammas=gammas,
        batch_size=batch_size,
        t_overhead_s=overhead,
    )
    allowed = within_limits(t_round_s=t_round_s, max_itl_s=max_itl_s)
    doubt = summarise(speedups, gammas, confidence=config.precision.confidence, allowed=allowed)
    return CellAnswer(
        gammas=gammas,
        parts=parts,
        t_round_s=t_round_s,
        doubt=doubt,
        speedups=speedups,
        t_overhead_s=None if t_overhead_s is None else float(t_overhead_s[0]),
    )


class SharedParts:
    """The parts of cells, each made once: ways that have the same arms of a cell share its replicates."""

    def __init__(self, config: Config) -> None:
        """Nothing is made yet."""
        self._config = config
        self._made: dict[tuple[object, ...], tuple[CellTimings, PartReplicates]] = {}

    def of(self, cell: CellTimings, gammas: tuple[int, ...]) -> PartReplicates:
        """As `cell_parts`."""
        key = (cell.cell, gammas, *(id(arm) for arm in cell.arms.values()))
        if key not in self._made:  # the cell is kept, so that no other arm takes the ids of its arms
            self._made[key] = cell, cell_parts(self._config, cell, gammas)
        return self._made[key][1]


def _round_parts(
    cell: CellTimings, rounds: JudgedRounds, gammas: tuple[int, ...], shared: SharedParts
) -> PartReplicates:
    """A cell's parts as its rounds meet them: T_verify over the drafts that they verify."""
    parts = shared.of(cell, gammas)
    if rounds.draft_shares is None:
        return parts
    shares = rounds.draft_shares[:, [rounds.gammas.index(gamma) for gamma in gammas]]
    verify_s = mean_verify_replicates_s(parts, gammas, shares, batch_size=cell.cell.batch_size)
    return replace(parts, t_verify_s=verify_s)


def cell_parts(config: Config, cell: CellTimings, gammas: Sequence[int]) -> PartReplicates:
    """Medians of a cell's arms with replicates; Δ₂ is 0 where noise makes it negative: two tokens save nothing."""
    blocks = {name: _blocks(cell, name) for name in round_arms(gammas, catches_up=cell.cell.catches_up)}
    draws = draw_blocks(
        max(len(arm) for arm in blocks.values()),
        config.precision.bootstrap_replicates,
        (config.seed, int(cell.cell.id, 16)),
    )
    parts = parts_replicates(blocks, gammas, draws)
    if parts.t_draft_catch_up_s is None:
        return parts
    return replace(parts, t_draft_catch_up_s=np.maximum(parts.t_draft_catch_up_s, 0.0))


def _blocks(cell: CellTimings, name: str) -> list[FloatArray]:
    """An arm's samples by block: (n, marks) for the chain, (n,) for arms of one mark."""
    blocks = list(cell.arms[name].blocks.values())
    return blocks if name == "draft" else [block[:, 0] for block in blocks]
