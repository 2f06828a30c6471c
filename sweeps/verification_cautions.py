"""Warnings about what was decoded end to end: slow baselines, rounds nobody expected, predictions that missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specgauge.sweeps.cautions import Caution

SLOW_BASELINE = 0.95
"""Our plain loop slower than transformers' generate by more than this flatters speculation."""
LARGE_COST_ERROR = 0.08


def verification_cautions(
    rows: Sequence[Mapping[str, Any]], reasons: Mapping[tuple[str, str], str]
) -> Iterator[Caution]:
    """rows: those of verification.csv; reasons: why cells were not decoded, by (pair, words)."""
    for (pair, words), reason in list(reasons.items())[:1]:
        yield Caution(
            code="not_decoded",
            message=f"pair {pair}: {len(reasons)} cells were not decoded to their end, first {words}: {reason}",
            remedy="raise verify.max_seconds, or run the same command again where something failed",
        )
    slow = [row for row in rows if _below(row["plain_over_generate"], SLOW_BASELINE)]
    if slow:
        worst = min(slow, key=lambda row: row["plain_over_generate"])
        yield Caution(
            code="slow_baseline",
            message=f"{_place(worst)}: the plain loop has {worst['plain_over_generate']:.2f} × the tokens a second of "
            f"transformers' generate; against a slow baseline speculation looks better than it is",
            remedy="compare with generate's own speed in verification.csv (plain_over_generate)",
        )
    odd = [row for row in rows if row["rounds_agree"] is False]
    if odd:
        worst = max(odd, key=lambda row: abs(row["rounds_counted"] / row["rounds_expected"] - 1.0))
        yield Caution(
            code="rounds_unexpected",
            message=f"{_place(worst)}, γ = {worst['gamma']}: the decoder took {worst['rounds_counted']} rounds where "
            f"its own texts' acceptance says {worst['rounds_expected']:.1f}: one of the two is wrong",
            remedy="load both models in float32; if it stays, report it as a bug with the run directory",
        )
    missed = [row for row in rows if row["cost_error"] is not None and abs(row["cost_error"]) > LARGE_COST_ERROR]
    if missed:
        worst = max(missed, key=lambda row: abs(row["cost_error"]))
        yield Caution(
            code="cost_error",
            message=f"{_place(worst)}, γ = {worst['gamma']}: the parts give S = {worst['speedup_from_counts']:.2f} for "
            f"the rounds counted, measured was {worst['speedup_measured']:.2f} ({100 * worst['cost_error']:+.1f} %)",
            remedy="close other programs, let the machine cool down, and measure again with --fresh",
        )
    forced = [row for row in rows if not row["lossless"]]
    if forced:
        yield Caution(
            code="not_lossless",
            message=f"{_place(forced[0])}: acceptance was forced by coin (verify.acceptance), so the texts decoded are "
            f"not the target's and say nothing about the draft",
            remedy="set verify.acceptance to null to decode as the models decide",
        )


def _below(value: float | None, least: float) -> bool:
    return value is not None and value < least


def _place(row: Mapping[str, Any]) -> str:
    return f"pair {row['pair']}, sampling {row['sampling']}, batch size {row['batch_size']}, context {row['context']}"
