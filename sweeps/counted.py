"""What was counted and timed end to end, block by block, beside what the measured parts make of those very counts.

A block decodes one batch of prompts plainly and at every γ. Compared are the stretches in which all B rows are active
and every row has γ_max positions left, so that no γ is shrunk:

    S measured       (plain seconds / plain tokens) / (speculative seconds / speculative tokens)
    S from counts    the same tokens and rounds, each plain step at T_decode(B, s), each round at
                     C(γ) + Δ₂ (where some row of the round before was fully accepted) + T_verify(γ), at its own
                     context s, plus ε

Costs are interpolated over the growing context; a ragged batch costs what its longest row does.

    for block in counted_blocks(table, rounds, batch_size=4, …): block.speedup_measured, block.speedup_from_counts(ε)

All times in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specgauge.model.checks import BoolArray, FloatArray, IntArray
from specgauge.model.costs import CostCell, CostTable, cost_tables
from specgauge.model.end_to_end import PLAIN, speculate_arm
from specgauge.sweeps.timings import CellTimings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class CountedBlock:
    """One γ in one block, beside the plain decoding of the same prompts."""

    gamma: int
    block: int
    rounds: int
    """Rounds of the batch in the stretch compared."""
    tokens_per_round: float
    """Tokens committed in them by all rows, over rounds and rows."""
    t_plain_step_s: float
    """Mean plain step with all rows active, as decoded."""
    t_round_s: float
    """Mean round, as decoded."""
    t_decode_s: float
    """T_decode averaged over the contexts of the plain steps, from the measured parts."""
    t_parts_s: float
    """C + π Δ₂ + T_verify averaged over the rounds, from the measured parts."""
    t_draft_catch_up_s: float
    """Δ₂ averaged over the rounds."""
    catch_up_share: float
    """Share of rounds that had to catch up."""
    t_accept_rest_s: float
    """Mean of accept, roll back and host work, as the decoder timed them."""

    @property
    def speedup_measured(self) -> float:
        """S as decoded."""
        return self.tokens_per_round * self.t_plain_step_s / self.t_round_s

    @property
    def t_overhead_implied_s(self) -> float:
        """The ε with which the parts give S as measured; it is in the parts' own time, whatever drifted since."""
        return self.t_round_s * self.t_decode_s / self.t_plain_step_s - self.t_parts_s

    def speedup_from_counts(self, t_overhead_s: float) -> float:
        """S that the parts give for these counts."""
        return self.tokens_per_round * self.t_decode_s / (self.t_parts_s + t_overhead_s)


def cost_table(cells: Iterable[CellTimings]) -> CostTable | None:
    """The medians of one pair and chain, as a table over batch size and context; None where no cell has a time."""
    found = [_cost_cell(cell) for cell in cells]
    measured = [cell for cell in found if cell.t_decode_s is not None and cell.t_verify_s and cell.t_draft_chain_s]
    return next(iter(cost_tables(measured).values())) if measured else None


def _cost_cell(cell: CellTimings) -> CostCell:
    def median(arm: str) -> FloatArray | None:
        found = cell.arms.get(arm)
        return None if found is None or found.status != "ok" else np.median(found.samples_s, axis=0)

    decode, chain, catch_up = median("decode"), median("draft"), median("draft_catch_up")
    verify = {int(arm.partition(":")[2]): median(arm) for arm in cell.arms if arm.startswith("verify:")}
    return CostCell(
        pair=cell.cell.pair,
        mode=cell.cell.mode,
        batch_size=cell.cell.batch_size,
        context=cell.cell.context,
        t_decode_s=None if decode is None else float(decode[0]),
        t_draft_chain_s=() if chain is None else np.maximum.accumulate(chain).tolist(),
        t_draft_catch_up_s=None if catch_up is None or chain is None else max(0.0, float(catch_up[0] - chain[0])),
        t_verify_s={gamma: float(seconds[0]) for gamma, seconds in verify.items() if seconds is not None},
    )


@dataclass(frozen=True, kw_only=True)
class BatchRounds:
    """The rounds of one batch under one arm, in order; R rounds."""

    context: IntArray
    """(R,) of the longest active row."""
    active_rows: IntArray
    emitted: IntArray
    """(R,) by all rows."""
    drafted: IntArray
    """(R,) by the row that drafted most: what the block is wide."""
    follows_full: BoolArray
    """(R,) whether some row accepted everything in the round before, so that the draft has two tokens to catch up."""
    asked_in_force: BoolArray
    """(R,) whether γ in force was what was asked for, in every row."""
    furthest: IntArray
    """(R,) position of the row that is furthest in its text."""
    t_round_s: FloatArray
    t_accept_rest_s: FloatArray
    """(R,) zero where phases were not timed."""


def batch_rounds(rows: pd.DataFrame) -> BatchRounds:
    """The rows of one block and arm, added up by round."""
    by_round = rows.groupby("round", sort=True)
    accepts_all = (rows["drafted"] > 0) & (rows["accepted"] == rows["drafted"])
    full = accepts_all.groupby(rows["round"], sort=True).any().to_numpy()
    return BatchRounds(
        context=by_round["context"].max().to_numpy(),
        active_rows=by_round["active_rows"].first().to_numpy(),
        emitted=by_round["emitted"].sum().to_numpy(),
        drafted=by_round["drafted"].max().to_numpy(),
        follows_full=np.concatenate([[False], full[:-1]]),
        asked_in_force=(rows["gamma"] == rows["gamma_asked"]).groupby(rows["round"], sort=True).all().to_numpy(),
        furthest=by_round["position"].max().to_numpy(),
        t_round_s=by_round["t_round_s"].first().to_numpy(),
        t_accept_rest_s=(by_round["t_accept_s"].first() + by_round["t_rest_s"].first()).fillna(0.0).to_numpy(),
    )


def counted_blocks(
    table: CostTable,
    rounds: pd.DataFrame,
    *,
    batch_size: int,
    gammas: Iterable[int],
    gamma_max: int,
    max_new_tokens: int,
) -> Iterator[CountedBlock]:
    """Every block of one cell and γ that has a stretch to compare.

    rounds: the rows of rounds.parquet of one cell. gamma_max: what the acceptance is compared at, which sets how many
    positions a round must have left.
    """
    for block, rows in rounds.groupby("block", sort=True):
        arms = dict(iter(rows.groupby("arm")))
        if PLAIN not in arms:
            continue
        plain = batch_rounds(arms[PLAIN])
        steps = plain.active_rows == batch_size
        if not steps.any():
            continue
        t_decode_s = _decode_s(table, batch_size, plain.context[steps])
        for gamma in gammas:
            arm = arms.get(speculate_arm(gamma))
            if arm is None:
                continue
            found = batch_rounds(arm)
            full = full_rounds(found, batch_size, gamma_max=gamma_max, max_new_tokens=max_new_tokens)
            if not full.any():
                continue
            parts_s, catch_up_s = _parts_s(table, batch_size, found)
            yield CountedBlock(
                gamma=gamma,
                block=int(str(block)),
                rounds=int(full.sum()),
                tokens_per_round=float(found.emitted[full].sum() / (full.sum() * batch_size)),
                t_plain_step_s=float(plain.t_round_s[steps].mean()),
                t_round_s=float(found.t_round_s[full].mean()),
                t_decode_s=float(t_decode_s.mean()),
                t_parts_s=float(parts_s[full].mean()),
                t_draft_catch_up_s=float(catch_up_s[full].mean()),
                catch_up_share=float(found.follows_full[full].mean()),
                t_accept_rest_s=float(found.t_accept_rest_s[full].mean()),
            )


def full_rounds(found: BatchRounds, batch_size: int, *, gamma_max: int, max_new_tokens: int) -> BoolArray:
    """(R,) rounds of a whole batch in which every row has `gamma_max` positions left before its length limit."""
    room = found.furthest - 1 + gamma_max <= max_new_tokens - 1
    return np.asarray((found.active_rows == batch_size) & found.asked_in_force & room, dtype=np.bool_)


def _decode_s(table: CostTable, batch_size: int, context: IntArray) -> FloatArray:
    return table.at(batch_size, context, [1]).t_decode_s


def _parts_s(table: CostTable, batch_size: int, found: BatchRounds) -> tuple[FloatArray, FloatArray]:
    """(R,) seconds that the parts give each round, and Δ₂ there; a round that verifies nothing costs a plain step."""
    widths = np.unique(found.drafted[found.drafted > 0])
    if widths.size == 0:
        return _decode_s(table, batch_size, found.context), np.zeros(found.context.size)
    costs = table.at(batch_size, found.context, widths)
    place = np.clip(np.searchsorted(widths, found.drafted), 0, widths.size - 1)
    index = np.arange(place.size)
    drafting_s = costs.t_draft_total_s[index, place] + costs.t_verify_s[index, place]
    drafting_s = drafting_s + np.where(found.follows_full, costs.t_draft_catch_up_s, 0.0)
    return np.where(found.drafted > 0, drafting_s, costs.t_decode_s), costs.t_draft_catch_up_s


def baseline_ratio(requests: pd.DataFrame, arm: str, other: str) -> FloatArray:
    """(blocks,) tokens a second of `arm` over those of `other`, after the first tokens, in blocks that have both."""
    first = requests.assign(later=requests["tokens"].map(len) - 1)
    found = first.groupby(["block", "arm"], sort=True).agg(tokens=("later", "sum"), seconds=("decode_s", "first"))
    rate = (found["tokens"] / found["seconds"].where(found["seconds"] > 0)).unstack("arm")
    if arm not in rate or other not in rate:
        return np.empty(0)
    return (rate[arm] / rate[other]).dropna().to_numpy(dtype=np.float64)
