"""Warnings about what was decoded end to end: slow baselines, rounds nobody expected, predictions that missed.

One warning a kind and pair: it names the worst point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from specgauge.sweeps.store.schema import TunedCell, WarningRow

SLOW_BASELINE = 0.95
"""Our plain loop slower than transformers' generate by more than this flatters speculation."""
LARGE_COST_ERROR = 0.08
CLEARLY = 0.02
"""How far from 1 a predicted S says that speculation pays, or does not."""
_IN_FLOAT32 = "load both models in float32; if it stays, report it as a bug with the run directory"

_Row = Mapping[str, Any]


def decoding_warnings(rows: Sequence[_Row], reasons: Mapping[tuple[str, str], str]) -> Iterator[WarningRow]:
    """rows: those of validation.csv; reasons: why cells were not decoded, by (pair, label)."""
    for pair in _distinct(pair for pair, _ in reasons):
        own = {label: reason for (one, label), reason in reasons.items() if one == pair}
        label, reason = next(iter(own.items()))
        cells = "1 cell was" if len(own) == 1 else f"{len(own)} cells were"
        yield WarningRow(
            code="not_decoded",
            message=f"pair {pair}: {cells} decoded in part or not at all, first {label}: {reason}",
            remedy="where time ran out, raise validate.max_seconds or limits.run_seconds, else see to the reason; then "
            "run the same command again, which goes on",
        )
    for pair in _distinct(row["pair"] for row in rows):
        yield from _pair_warnings([row for row in rows if row["pair"] == pair])


def _pair_warnings(rows: Sequence[_Row]) -> Iterator[WarningRow]:
    if slow := [row for row in rows if (row["plain_over_generate"] or 1.0) < SLOW_BASELINE]:
        row = min(slow, key=lambda row: row["plain_over_generate"])
        yield WarningRow(
            code="slow_baseline",
            message=f"{_point(row)}: the plain loop has {row['plain_over_generate']:.2f} × the tokens a second of "
            f"transformers' generate; against a slow baseline speculation looks better than it is",
            remedy="compare with generate's own speed in validation.csv (plain_over_generate)",
        )
    if unexpected := [row for row in rows if row["rounds_agree"] is False]:
        row = max(
            unexpected,
            key=lambda row: abs(row["rounds_counted"] - row["rounds_expected"]) / max(row["rounds_expected"], 1.0),
        )
        yield WarningRow(
            code="rounds_unexpected",
            message=f"{_point(row)}, γ = {row['gamma']}: the decoder took {row['rounds_counted']} rounds where "
            f"its own texts' acceptance says {row['rounds_expected']:.1f}: one of the two is wrong",
            remedy=_IN_FLOAT32,
        )
    if missed := [row for row in rows if abs(row["cost_error"] or 0.0) > LARGE_COST_ERROR]:
        row = max(missed, key=lambda row: abs(row["cost_error"]))
        yield WarningRow(
            code="cost_error",
            message=f"{_point(row)}, γ = {row['gamma']}: the measured costs give S = {row['speedup_from_counts']:.2f} "
            f"for the rounds counted, measured was {row['speedup_measured']:.2f} ({100 * row['cost_error']:+.1f} %)",
            remedy="close other programs, let the machine cool down, and measure again with --fresh",
        )
    if contradicted := [row for row in rows if _is_contradicted(row)]:
        row = max(contradicted, key=lambda row: abs(math.log(row["speedup_predicted"] / row["speedup_measured"])))
        low, high = row["speedup_measured_low"], row["speedup_measured_high"]
        verb = "pays" if row["speedup_predicted"] > 1 else "does not pay"
        yield WarningRow(
            code="prediction_contradicted",
            message=f"{_point(row)}, γ = {row['gamma']}: the measured costs predict that it {verb} (S = "
            f"{row['speedup_predicted']:.2f}), decoding says otherwise ({row['speedup_measured']:.2f}, interval "
            f"{low:.2f}–{high:.2f})",
            remedy="trust what was decoded there; then find out which is wrong: cost_error and acceptance_error in "
            "validation.csv tell",
        )
    if lossy := [row for row in rows if not row["lossless"]]:
        row = lossy[0]
        yield WarningRow(
            code="not_lossless",
            message=f"{_point(row)}: {row['why_not_lossless']}, so the texts decoded are not the target's and say "
            "nothing about the draft",
            remedy="set validate.acceptance to null to decode as the models decide",
        )


def _is_contradicted(row: _Row) -> bool:
    """Whether the prediction and the whole interval measured are on two sides of 1, the prediction not just so."""
    predicted, low, high = row["speedup_predicted"], row["speedup_measured_low"], row["speedup_measured_high"]
    if predicted is None or low is None:
        return False
    return bool(high < 1 <= predicted - CLEARLY or predicted + CLEARLY <= 1 < low)


def policy_warnings(tuned: Iterable[TunedCell]) -> Iterator[WarningRow]:
    """Policies that were asked for and not decoded, once for every pair and reason."""
    found: dict[tuple[str, str], list[TunedCell]] = {}
    for cell in tuned:
        for reason in _distinct(cell.left_out.values()):
            found.setdefault((cell.key.pair, reason), []).append(cell)
    for (pair, reason), cells in found.items():
        key, count = cells[0].key, "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
        names = [name for name, why in cells[0].left_out.items() if why == reason]
        yield WarningRow(
            code="policy_left_out",
            message=f"pair {pair}: {', '.join(names)} left out of {count}, first sampling {key.sampling}, batch size "
            f"{key.batch_size}, context {key.start_context}: {reason}",
            remedy="see to what is missing, or ask for fewer in validate.policies; then start anew with --fresh",
        )


def text_warnings(rows: Sequence[_Row]) -> Iterator[WarningRow]:
    """Greedy texts that are not plain decoding's, for every pair once; rows: of fixed γ and of adaptive policies."""
    for pair in _distinct(row["pair"] for row in rows):
        found = [row for row in rows if row["pair"] == pair and row["texts_differ"]]
        if found:
            row = max(found, key=lambda row: int(row["texts_differ"]))
            texts = row["texts_same"] + row["texts_tied"] + row["texts_differ"]
            drafts = f"γ = {row['gamma']}" if row["gamma"] is not None else f"policy {row['policy']}"
            yield WarningRow(
                code="texts_differ",
                message=f"{_point(row)}, {drafts}: {row['texts_differ']} of {texts} greedy texts leave plain "
                "decoding's where rounding does not explain it: they are not the target's",
                remedy=f"{_IN_FLOAT32} (requests.parquet, against_plain)",
            )


def _distinct(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _point(row: _Row) -> str:
    return f"pair {row['pair']}, sampling {row['sampling']}, batch size {row['batch_size']}, context {row['context']}"
