"""The rounds of a cell under one arm, counted over whole texts: drafts, looks, switches of γ, and what parts they cost.

    counted = CountedArm.of(rounds, "adaptive:renewal")
    counted.figures()["gamma_switches"]
    counted.parts_s(costs)                   # seconds that the measured parts give these rounds

A look is a draft whose signals were read before the next; a switch is a round whose γ differs from the one before in
its block, where γ is what was asked for and some row had the room for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specgauge.sweeps.counted import USED_COLUMNS, BatchRounds, CellCosts, batch_rounds

if TYPE_CHECKING:
    import pandas as pd


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
        """Columns of a row of verification.csv."""
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
