"""What decoding end to end found, over many rows of verification.csv, in a few numbers and in one line. No torch.

error of S           mean and largest |S predicted / S measured − 1|
cost error           mean and largest |S from counts / S measured − 1|
acceptance error     in how many rows its 95 % interval holds 0
rounds               in how many rows they agree with those expected on the very texts
greedy texts         how many are the plain loop's, leave it at a numeric tie, or elsewhere

summary = summarise(run.verification())
summary.text()       # Decoded end to end in 8 cells: predicted S within 2.1 % of measured on average, 5.0 % at worst;
                     # S from the rounds counted in these texts within 1.0 % on average, 2.4 % at worst
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from specgauge.model.ratio_error import holds_zero

PLACE = ("pair", "mode", "sampling", "draft_sampling", "acceptance_rule", "batch_size", "context")
"""What makes a cell, in verification.csv and in recommendation.yaml alike."""


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Absolute relative errors of some rows."""

    mean: float
    worst: float
    count: int

    def text(self) -> str:
        """`within 2.1 % of measured on average, 5.0 % at worst`; of one row `within 2.1 % of measured`."""
        return self._text(" of measured")

    def more(self) -> str:
        """The same after a sentence that has said what is measured: `within 2.1 % on average, 5.0 % at worst`."""
        return self._text("")

    def _text(self, of: str) -> str:
        mean = f"within {100 * self.mean:.1f} %{of}"
        return mean if self.count == 1 else f"{mean} on average, {100 * self.worst:.1f} % at worst"


@dataclass(frozen=True, kw_only=True)
class VerificationSummary:
    """All rows of a run, or of a part of it; a row is a cell at one γ."""

    cells: int
    rows: int
    forced: int
    """Rows that are not lossless, since acceptance was forced by coin."""
    speedup: Errors | None
    """S predicted against measured; None without a lossless row to compare."""
    cost: Errors | None
    """S from the counted rounds and tokens against measured."""
    acceptance_known: int
    """Rows whose acceptance error has an interval."""
    acceptance_agrees: int
    """Those whose interval holds 0."""
    rounds_known: int
    """Rows whose counted rounds could be held against those expected."""
    rounds_agree: int
    texts_same: int
    """Greedy texts that are the plain loop's, token for token."""
    texts_tied: int
    """Those that leave it where rounding decides between two tokens."""
    texts_differ: int
    """Those that leave it elsewhere."""
    whole_low: float | None
    """Smallest gain of whole requests, prefills and ragged ends included."""
    whole_high: float | None

    def text(self) -> str:
        """One line, without a full stop."""
        where = f"Decoded end to end in {self.cells} {'cell' if self.cells == 1 else 'cells'}"
        if self.forced == self.rows:
            where += ", acceptance forced by coin (not lossless)"
        if self.speedup is not None:
            from_counts = "" if self.cost is None else f"; S from the rounds counted in these texts {self.cost.more()}"
            return f"{where}: predicted S {self.speedup.text()}{from_counts}"
        if self.cost is not None:
            return f"{where}: S from the parts and the rounds counted {self.cost.text()}"
        return f"{where}: no stretch with all rows active to compare"

    def as_mapping(self) -> dict[str, Any]:
        """Plain data for JSON; unknown is None."""
        return {
            "text": self.text(),
            "cells": self.cells,
            "rows": self.rows,
            "forced": self.forced,
            "speedup_error_mean": None if self.speedup is None else self.speedup.mean,
            "speedup_error_worst": None if self.speedup is None else self.speedup.worst,
            "cost_error_mean": None if self.cost is None else self.cost.mean,
            "cost_error_worst": None if self.cost is None else self.cost.worst,
            "acceptance_known": self.acceptance_known,
            "acceptance_agrees": self.acceptance_agrees,
            "rounds_known": self.rounds_known,
            "rounds_agree": self.rounds_agree,
            "texts_same": self.texts_same,
            "texts_tied": self.texts_tied,
            "texts_differ": self.texts_differ,
        }


def summarise(rows: Iterable[Mapping[str, Any]]) -> VerificationSummary | None:
    """The summary of rows of verification.csv (unknown is None); None without any."""
    rows = list(rows)
    if not rows:
        return None
    intervals = [
        (row["acceptance_error_low"], row["acceptance_error_high"])
        for row in rows
        if row["acceptance_error_low"] is not None and row["acceptance_error_high"] is not None
    ]
    agreements = [row["rounds_agree"] for row in rows if row["rounds_agree"] is not None]
    whole = [row["speedup_whole"] for row in rows if row["speedup_whole"] is not None]
    return VerificationSummary(
        cells=len({cell_of(row) for row in rows}),
        rows=len(rows),
        forced=sum(not row["lossless"] for row in rows),
        speedup=_errors(row["error"] for row in rows),
        cost=_errors(row["cost_error"] for row in rows),
        acceptance_known=len(intervals),
        acceptance_agrees=sum(holds_zero(low, high) for low, high in intervals),
        rounds_known=len(agreements),
        rounds_agree=sum(agreements),
        texts_same=sum(row["texts_same"] or 0 for row in rows),
        texts_tied=sum(row["texts_tied"] or 0 for row in rows),
        texts_differ=sum(row["texts_differ"] or 0 for row in rows),
        whole_low=min(whole, default=None),
        whole_high=max(whole, default=None),
    )


def cell_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where a row of verification.csv or an entry of recommendation.yaml belongs."""
    return tuple(entry[name] for name in PLACE)


def _errors(values: Iterable[float | None]) -> Errors | None:
    known = [abs(value) for value in values if value is not None]
    return Errors(mean=sum(known) / len(known), worst=max(known), count=len(known)) if known else None
