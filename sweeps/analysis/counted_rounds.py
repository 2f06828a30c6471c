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

The rounds of a cell under one arm, counted over whole texts: drafts, looks, switches of γ, and what parts they cost.

    counted = CountedArm.of(rounds, "adaptive:renewal")
    counted.figures()["gamma_switches"]
    counted.parts_s(costs)                   # seconds that the measured parts give these rounds

A look is a draft whose signals were read before the next; a switch is a round whose γ differs from the one before in
its block, where γ is what was asked for and some row had the room for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specgauge.model.arms import PLAIN, speculate_arm
from specgauge.model.checks import BoolArray, FloatArray, IntArray
from specgauge.model.costs import CostCell, CostTable, cost_tables
from specgauge.sweeps.analysis.timings import CellTimings

if TYPE_CHECKING:
    import pandas as pd


USED_COLUMNS = (
    "round", "active_rows", "position", "context", "gamma_asked", "gamma", "drafted", "accepted", "emitted",
    "t_round_s", "t_accept_s", "t_rest_s",
)  # fmt: skip
"""Of rounds.parquet, what is looked at here."""


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
        return None if found is None or found.status != "ok" else found.median_s

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


def batch_rounds(rows: Mapping[str, NDArray[Any]]) -> BatchRounds:
    """The rows of one block and arm, columns by name, added up by round."""
    order = np.argsort(rows["round"], kind="stable")
    column = {name: rows[name][order] for name in USED_COLUMNS}
    first = np.flatnonzero(np.diff(column["round"], prepend=-1))

    def largest(values: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(np.maximum.reduceat(values, first))

    full = largest((column["drafted"] > 0) & (column["accepted"] == column["drafted"]))
    return BatchRounds(
        context=largest(column["context"]),
        active_rows=column["active_rows"][first],
        emitted=np.add.reduceat(column["emitted"], first),
        drafted=largest(column["drafted"]),
        follows_full=np.concatenate([[False], full[:-1]]),
        asked_in_force=np.logical_and.reduceat(column["gamma"] == column["gamma_asked"], first),
        furthest=largest(column["position"]),
        t_round_s=column["t_round_s"][first],
        t_accept_rest_s=np.nan_to_num(column["t_accept_s"][first] + column["t_rest_s"][first]),
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
    columns = {name: rounds[name].to_numpy() for name in USED_COLUMNS}
    places: Mapping[Any, Any] = rounds.groupby(["block", "arm"], sort=True).indices
    costs = costs_along(table, batch_size, columns["context"], columns["drafted"]) if places else None
    found = {
        place: batch_rounds({name: values[indices] for name, values in columns.items()})
        for place, indices in places.items()
    }
    for (block, arm), plain in found.items():
        steps = plain.active_rows == batch_size
        if arm != PLAIN or not steps.any():
            continue
        assert costs is not None
        t_decode_s = costs.t_decode_s[plain.context[steps] - costs.first_context].mean()
        for gamma in gammas:
            decoded = found.get((block, speculate_arm(gamma)))
            if decoded is None:
                continue
            full = full_rounds(decoded, batch_size, gamma_max=gamma_max, max_new_tokens=max_new_tokens)
            if not full.any():
                continue
            parts_s, catch_up_s = costs.parts_s(decoded)
            yield CountedBlock(
                gamma=gamma,
                block=int(block),
                rounds=int(full.sum()),
                tokens_per_round=float(decoded.emitted[full].sum() / (full.sum() * batch_size)),
                t_plain_step_s=float(plain.t_round_s[steps].mean()),
                t_round_s=float(decoded.t_round_s[full].mean()),
                t_decode_s=float(t_decode_s),
                t_parts_s=float(parts_s[full].mean()),
                t_draft_catch_up_s=float(catch_up_s[full].mean()),
                catch_up_share=float(decoded.follows_full[full].mean()),
                t_accept_rest_s=float(decoded.t_accept_rest_s[full].mean()),
            )


def full_rounds(found: BatchRounds, batch_size: int, *, gamma_max: int, max_new_tokens: int) -> BoolArray:
    """(R,) rounds of a whole batch in which every row has `gamma_max` positions left before its length limit."""
    room = found.furthest - 1 + gamma_max <= max_new_tokens - 1
    return np.asarray((found.active_rows == batch_size) & found.asked_in_force & room, dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class CellCosts:
    """The measured parts at every context from the first on, S of them; W widths of what is drafted."""

    first_context: int
    widths: IntArray
    """(W,) drafts, rising, above 0."""
    t_decode_s: FloatArray
    """(S,)"""
    t_drafting_s: FloatArray
    """(S, W) C + T_verify."""
    t_draft_catch_up_s: FloatArray
    """(S,)"""

    def parts_s(self, decoded: BatchRounds) -> tuple[FloatArray, FloatArray]:
        """(R,) seconds that the parts give each round, and Δ₂ there; a round that verifies nothing is a plain step."""
        at = decoded.context - self.first_context
        catch_up_s = self.t_draft_catch_up_s[at]
        if self.widths.size == 0:
            return self.t_decode_s[at], catch_up_s
        place = np.clip(np.searchsorted(self.widths, decoded.drafted), 0, self.widths.size - 1)
        drafting_s = self.t_drafting_s[at, place] + np.where(decoded.follows_full, catch_up_s, 0.0)
        return np.where(decoded.drafted > 0, drafting_s, self.t_decode_s[at]), catch_up_s


def costs_along(table: CostTable, batch_size: int, context: IntArray, drafted: IntArray) -> CellCosts:
    """The costs at every context that rounds have, and of every number of drafts that one has."""
    first, last = int(context.min()), int(context.max())
    widths = np.unique(drafted[drafted > 0]).astype(np.int64)
    costs = table.at(batch_size, np.arange(first, last + 1), widths if widths.size else [1])
    drafting_s = costs.t_draft_total_s + costs.t_verify_s
    return CellCosts(
        first_context=first,
        widths=widths,
        t_decode_s=costs.t_decode_s,
        t_drafting_s=drafting_s if widths.size else drafting_s[:, :0],
        t_draft_catch_up_s=costs.t_draft_catch_up_s,
    )


@dataclass(frozen=True, kw_only=True)
class CountedArm:
    """All rounds of one arm."""

    blocks: Sequence[BatchRounds]
    mean_gamma: float | None
    """Drafts of a row and round; None without a round."""
    looks: int
    switches: int
    loop_rounds: int
    """Rounds of batches in the speculative loop, which cost ε; a policy that never drafts has none."""

    @classmethod
    def of(cls, rounds: pd.DataFrame, arm: str) -> CountedArm:
        """Count the rows of rounds.parquet of one cell that belong to an arm."""
        own = rounds[rounds["arm"] == arm]
        blocks = [{name: rows[name].to_numpy() for name in _COLUMNS} for _, rows in own.groupby("block", sort=True)]
        return cls(
            blocks=[_with_catch_ups(batch_rounds(columns)) for columns in blocks],
            mean_gamma=float(own["drafted"].mean()) if len(own) else None,
            looks=sum(sum(_looks(columns)) for columns in blocks),
            switches=sum(_switches(columns) for columns in blocks),
            loop_rounds=len(own.loc[own["t_accept_s"].notna(), ["block", "round"]].drop_duplicates()),
        )

    @property
    def rounds(self) -> int:
        """Rounds of batches."""
        return sum(block.context.size for block in self.blocks)

    def figures(self) -> dict[str, Any]:
        """Columns of a row of validation.csv."""
        if not self.rounds:
            return {"rounds": 0, "gamma_switches": 0, "looks": 0}
        return {
            "rounds": self.rounds,
            "mean_gamma": self.mean_gamma,
            "gamma_switches": self.switches,
            "looks": self.looks,
            "t_round_s": float(np.concatenate([block.t_round_s for block in self.blocks]).mean()),
            "t_accept_rest_s": float(np.concatenate([block.t_accept_rest_s for block in self.blocks]).mean()),
        }

    def parts_s(self, costs: CellCosts) -> float:
        """Seconds of all rounds by the measured parts, ε and looks left out; plain steps where nothing was drafted."""
        return float(sum(costs.parts_s(block)[0].sum() for block in self.blocks))


_COLUMNS = (*USED_COLUMNS, "top_probs")
_Columns = Mapping[str, NDArray[Any]]


def _with_catch_ups(block: BatchRounds) -> BatchRounds:
    """The rounds, a plain one leaving the draft two tokens to catch up as a fully accepted one does."""
    follows_plain = np.concatenate([[False], block.drafted[:-1] == 0])
    return replace(block, follows_full=block.follows_full | follows_plain)


def _by_round(columns: _Columns) -> Iterator[NDArray[np.intp]]:
    """The rows of each round, in order."""
    for number in np.unique(columns["round"]):
        yield np.flatnonzero(columns["round"] == number)


def _looks(columns: _Columns) -> list[int]:
    """How often each round was looked at: as often as its widest row's signals were read."""
    return [max(len(columns["top_probs"][row]) for row in rows) for rows in _by_round(columns)]


def _switches(columns: _Columns) -> int:
    """Changes of γ between neighbouring rounds, those whose limits left no row its γ passed over."""
    in_force = columns["gamma"] == columns["gamma_asked"]
    asked = [int(columns["gamma_asked"][rows[0]]) for rows in _by_round(columns) if in_force[rows].any()]
    return sum(one != other for one, other in pairwise(asked))
