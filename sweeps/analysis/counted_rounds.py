"""Rounds decoded end to end, counted and timed, beside what the measured costs make of those very counts.

`counted_blocks` takes the rounds of a block in which all B rows are active, have γ_max positions left and draft under
the γ that was asked for, beside the plain steps of the same prompts with all rows active:

    S measured       (plain seconds / plain tokens) / (speculative seconds / speculative tokens)
    S from counts    the same tokens and rounds, each plain step at T_decode(B, s), each round at its own T_round, with
                     Δ₂ where some row of the round before was fully accepted, at its own context s, plus ε

`CountedArm` counts whole texts of one arm: drafts, early-stop checks (drafts whose signals were read before the next)
and switches (rounds whose γ asked for differs from the last, those whose limits left no row its γ passed over).

Costs are interpolated over the growing context; a ragged batch costs what its longest row does. Times in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specgauge.model.arms import PLAIN, speculate_arm
from specgauge.model.checks import BoolArray, FloatArray, IntArray
from specgauge.model.costs import CostSource, CostTable, RoundCosts, cost_table
from specgauge.model.settings import Point
from specgauge.model.speedup import measured_speedup, round_time_s, speedup, with_overhead_s
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
    """Rounds of the batch that are compared."""
    tokens_per_round: float
    """Tokens committed in them by all rows, over rounds and rows."""
    t_plain_step_s: float
    """Mean plain step with all rows active, as decoded; so are the mean round and accept, roll back and host work."""
    t_round_s: float
    t_accept_rest_s: float
    """NaN where no round's phases were timed."""
    t_decode_s: float
    """T_decode averaged over the contexts of the plain steps, from the measured costs."""
    t_costs_s: float
    """C + π Δ₂ + T_transfer + T_verify averaged over the rounds, by the measured costs; then T_verify and Δ₂ alone."""
    t_verify_s: float
    t_draft_catch_up_s: float
    catch_up_share: float
    """Share of rounds that had to catch up."""

    @property
    def speedup_measured(self) -> float:
        """S as decoded."""
        own, plain = (self.tokens_per_round, self.t_round_s), (1.0, self.t_plain_step_s)
        return float(measured_speedup(*own, plain_tokens=plain[0], plain_seconds=plain[1]))

    @property
    def t_overhead_s(self) -> float:
        """ε as the phases of the rounds were timed, in the costs' own time, whatever drifted since; NaN where none was.

        The ε with which the costs would give S as measured also holds what blocks and costs differ by: it swings far
        below 0 and above any phase, and predicts other texts worse.
        """
        return self.t_accept_rest_s * self.t_decode_s / self.t_plain_step_s

    def speedup_from_counts(self, t_overhead_s: float) -> float:
        """S that the costs give for these counts."""
        t_round_s = with_overhead_s(self.t_costs_s, self.t_verify_s, t_overhead_s)
        return float(speedup(self.tokens_per_round, t_decode_s=self.t_decode_s, t_round_s=t_round_s))


def costs_of_cells(cells: Iterable[CellTimings]) -> CostTable | None:
    """The medians of one pair and chain, as a table over batch size and context; None where no cell has a time."""
    cells = list(cells)
    found = {Point(batch_size=cell.cell.batch_size, context=cell.cell.context): cell.costs for cell in cells}
    measured = {
        point: costs
        for point, costs in found.items()
        if np.isfinite(costs.t_decode_s)
        and (
            costs.t_round_s is not None or all(np.isfinite(v).any() for v in (costs.t_verify_s, costs.t_draft_total_s))
        )
    }
    return cost_table(f"pair {cells[0].cell.pair}, mode {cells[0].cell.mode}", measured) if measured else None


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
    """(R,) NaN where phases were not timed."""


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
        t_accept_rest_s=column["t_accept_s"][first] + column["t_rest_s"][first],
    )


def counted_blocks(
    source: CostSource,
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
    indices_by_arm: Mapping[Any, Any] = rounds.groupby(["block", "arm"], sort=True).indices
    costs = costs_along(source, batch_size, columns["context"], columns["drafted"]) if indices_by_arm else None
    found = {
        block_arm: batch_rounds({name: values[indices] for name, values in columns.items()})
        for block_arm, indices in indices_by_arm.items()
    }
    for (block, arm), plain in found.items():
        steps = plain.active_rows == batch_size
        if arm != PLAIN or not steps.any():
            continue
        assert costs is not None
        t_decode_s = costs.by_context.t_decode_s[costs.rows(plain.context[steps])].mean()
        for gamma in gammas:
            decoded = found.get((block, speculate_arm(gamma)))
            if decoded is None:
                continue
            room = decoded.furthest - 1 + gamma_max <= max_new_tokens - 1
            full = (decoded.active_rows == batch_size) & decoded.asked_in_force & room
            if not full.any():
                continue
            costs_s, verify_s, catch_up_s = costs.of(decoded)
            yield CountedBlock(
                gamma=gamma,
                block=int(block),
                rounds=int(full.sum()),
                tokens_per_round=float(decoded.emitted[full].sum() / (full.sum() * batch_size)),
                t_plain_step_s=float(plain.t_round_s[steps].mean()),
                t_round_s=float(decoded.t_round_s[full].mean()),
                t_decode_s=float(t_decode_s),
                t_costs_s=float(costs_s[full].mean()),
                t_verify_s=float(verify_s[full].mean()),
                t_draft_catch_up_s=float(catch_up_s[full].mean()),
                catch_up_share=float(decoded.follows_full[full].mean()),
                t_accept_rest_s=_mean_known(decoded.t_accept_rest_s[full]),
            )


def _mean_known(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else np.nan


@dataclass(frozen=True, kw_only=True)
class CostsAlong:
    """Costs at the contexts that rounds have, of every number of drafts that some round has."""

    contexts: IntArray
    """(S,) in order, each once."""
    by_context: RoundCosts
    """(S, G)."""

    def rows(self, context: IntArray) -> IntArray:
        """The rows of `by_context` at contexts that are among `contexts`."""
        return np.searchsorted(self.contexts, context)

    def of(self, decoded: BatchRounds) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(R,) costs of each round, T_verify in them, and Δ₂ there; one without drafts is a plain step."""
        costs, at = self.by_context, self.rows(decoded.context)
        column = np.clip(np.searchsorted(costs.gammas, decoded.drafted), 0, costs.gammas.size - 1)
        drafts = decoded.drafted > 0
        catch_up_s = np.zeros(at.size) if costs.t_draft_catch_up_s is None else costs.t_draft_catch_up_s[at]
        transfer_s = costs.t_transfer_s
        verify_s = np.where(drafts, costs.t_verify_s[at, column], costs.t_decode_s[at])
        costs_s = round_time_s(
            t_draft_total_s=np.where(drafts, costs.t_draft_total_s[at, column], 0.0),
            t_verify_s=verify_s,
            t_draft_catch_up_s=catch_up_s,
            t_transfer_s=0.0 if transfer_s is None else np.where(drafts, transfer_s[at, column], 0.0),
            full_acceptance=drafts & decoded.follows_full,
        )
        return costs_s, verify_s, catch_up_s


def costs_along(source: CostSource, batch_size: int, context: IntArray, drafted: IntArray) -> CostsAlong:
    """The costs at every context that rounds have, and of every number of drafts that one has."""
    contexts, gammas = np.unique(context), np.unique(drafted[drafted > 0])
    costs = source.costs(batch_size, contexts, gammas if gammas.size else [1])
    return CostsAlong(contexts=contexts, by_context=costs)


@dataclass(frozen=True, kw_only=True)
class CountedArm:
    """All rounds of one arm."""

    blocks: Sequence[BatchRounds]
    mean_gamma: float | None
    """Drafts of a row and round; None without a round."""
    early_stop_checks: int
    switches: int
    loop_rounds: int
    """Rounds of batches in the speculative loop, which cost ε; a policy that never drafts has none."""

    @classmethod
    def of(cls, rounds: pd.DataFrame, arm: str) -> CountedArm:
        """Count the rows of rounds.parquet of one cell that belong to an arm."""
        own = rounds[rounds["arm"] == arm]
        blocks = [{name: rows[name].to_numpy() for name in USED_COLUMNS} for _, rows in own.groupby("block")]
        signals = own["top_probs"].map(len).groupby([own["block"], own["round"]]).max()
        in_force = own[own["gamma"] == own["gamma_asked"]]
        asked = in_force.groupby(["block", "round"])["gamma_asked"].first()
        return cls(
            blocks=[_with_catch_ups(batch_rounds(columns)) for columns in blocks],
            mean_gamma=float(own["drafted"].mean()) if len(own) else None,
            early_stop_checks=int(signals.sum()),
            switches=int(asked.groupby("block").diff().fillna(0).ne(0).sum()),
            loop_rounds=len(own.loc[own["t_accept_s"].notna(), ["block", "round"]].drop_duplicates()),
        )

    @property
    def rounds(self) -> int:
        """Rounds of batches."""
        return sum(block.context.size for block in self.blocks)

    def figures(self) -> dict[str, Any]:
        """Columns of a row of validation.csv."""
        counts = {"rounds": self.rounds, "gamma_switches": self.switches, "early_stop_checks": self.early_stop_checks}
        if not self.rounds:
            return counts
        t_round_s, rest_s = (
            np.concatenate([getattr(block, name) for block in self.blocks]) for name in ("t_round_s", "t_accept_rest_s")
        )
        timed_s = rest_s[np.isfinite(rest_s)]
        return counts | {
            "mean_gamma": self.mean_gamma,
            "t_round_s": float(t_round_s.mean()),
            "t_accept_rest_s": float(timed_s.mean()) if timed_s.size else None,
        }

    def time_s(self, costs: CostsAlong, t_overhead_s: float = 0.0) -> float:
        """Seconds of all rounds by the measured costs, ε in those of the loop; early-stop checks left out."""
        found = [costs.of(block) for block in self.blocks]
        costs_s, verify_s = (float(sum(block[column].sum() for block in found)) for column in (0, 1))
        return float(with_overhead_s(costs_s, verify_s, self.loop_rounds * t_overhead_s))


def _with_catch_ups(block: BatchRounds) -> BatchRounds:
    """The rounds, a plain one leaving the draft two tokens to catch up as a fully accepted one does."""
    follows_plain = np.concatenate([[False], block.drafted[:-1] == 0])
    return replace(block, follows_full=block.follows_full | follows_plain)
