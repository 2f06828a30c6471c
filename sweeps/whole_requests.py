"""Whole requests of one cell: tokens, baselines, speed-up with prefills and ragged ends, rounds and texts as expected.

    figures = request_figures(requests)          # the rows of requests.parquet of one cell
    figures[4]["speedup_whole"]                  # tokens a second at γ = 4 over those of the plain loop

Unknown is None. Times in seconds; those of a batch stand in each of its rows and count once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.model.end_to_end import DIFFERS, GENERATE, LOOP, PLAIN, SAME, TIE, arm_gamma, speculate_arm
from specgauge.model.known import finite_or_none
from specgauge.model.round_check import round_check

if TYPE_CHECKING:
    import pandas as pd


@dataclass(kw_only=True)
class BatchTotal:
    """One block under one arm, all rows together."""

    prefill_s: float
    decode_s: float
    tokens: int = 0
    rows: int = 0

    @property
    def rate(self) -> float | None:
        """Tokens a second after the first ones; None where there is none."""
        return (self.tokens - self.rows) / self.decode_s if self.decode_s > 0 else None


Totals = Mapping[str, Mapping[int, BatchTotal]]
"""By arm, by block."""


def gammas_of(requests: pd.DataFrame) -> list[int]:
    """The γ above 0 that a cell was decoded at."""
    return sorted(gamma for arm in requests["arm"].unique() if (gamma := arm_gamma(arm)))


def request_figures(requests: pd.DataFrame) -> dict[int, dict[str, Any]]:
    """By γ: tokens, losslessness, speed-up of whole requests, baselines, and rounds against those expected."""
    totals = block_totals(requests)
    return {gamma: arm_figures(requests, totals, speculate_arm(gamma)) for gamma in gammas_of(requests)}


def arm_figures(requests: pd.DataFrame, totals: Totals, arm: str) -> dict[str, Any]:
    """The same figures of one arm; the rounds of an adaptive one are counted only."""
    own = requests[requests["arm"] == arm]
    return {
        "tokens": sum(total.tokens for total in totals[arm].values()),
        "lossless": bool(own["lossless"].all()),
        "why_not_lossless": next(iter(own["why_not_lossless"].dropna()), None),
        "speedup_whole": _whole(totals, arm),
        "plain_over_generate": _median_ratio(totals, PLAIN, GENERATE),
        "plain_over_loop": _median_ratio(totals, PLAIN, LOOP),
        **_rounds(own),
        **_texts(own),
    }


def block_totals(requests: pd.DataFrame) -> Totals:
    """Tokens, rows and seconds of every block under every arm."""
    columns = ("arm", "block", "prefill_s", "decode_s", "tokens")
    found: dict[str, dict[int, BatchTotal]] = {}
    for arm, block, prefill_s, decode_s, tokens in zip(*(requests[name].tolist() for name in columns), strict=True):
        total = found.setdefault(arm, {}).setdefault(block, BatchTotal(prefill_s=prefill_s, decode_s=decode_s))
        total.tokens += len(tokens)
        total.rows += 1
    return found


def _median_ratio(totals: Totals, arm: str, other: str) -> float | None:
    """Median over blocks of tokens a second of `arm` over those of `other`, after the first tokens."""
    beside = totals.get(other, {})
    rates = [(total.rate, beside[block].rate) for block, total in totals.get(arm, {}).items() if block in beside]
    ratios = [own / its for own, its in rates if own is not None and its]
    return float(np.median(ratios)) if ratios else None


def _whole(totals: Totals, arm: str) -> float | None:
    """Tokens a second over those of the plain loop, prefills and ragged ends included, in blocks that have both."""
    own, plain = totals[arm], totals.get(PLAIN, {})
    shared = [block for block in own if block in plain]

    def tokens_per_s(batches: Mapping[int, BatchTotal]) -> float:
        seconds = sum(batches[block].prefill_s + batches[block].decode_s for block in shared)
        return sum(batches[block].tokens for block in shared) / seconds

    return finite_or_none(tokens_per_s(own) / tokens_per_s(plain)) if shared else None


def _rounds(arm: pd.DataFrame) -> dict[str, Any]:
    """Rounds counted, and where a text's own acceptance says how many to expect, whether the two agree."""
    rounds = arm["rounds"].to_numpy(dtype=np.int64)
    expected = arm["expected_rounds"].to_numpy(dtype=np.float64)
    known = np.isfinite(expected)
    if not known.any():
        return {"rounds_counted": int(rounds.sum())}
    _, of_prompt = np.unique(arm["prompt"].to_numpy()[known], return_inverse=True)
    counted = np.bincount(of_prompt, rounds[known])
    check = round_check(counted.astype(np.int64), np.bincount(of_prompt, expected[known]))
    return {
        "rounds_counted": check.counted,
        "rounds_expected": check.expected,
        "rounds_standard_errors": check.standard_errors,
        "rounds_agree": check.agrees,
    }


def _texts(arm: pd.DataFrame) -> dict[str, Any]:
    """How many greedy texts are the plain loop's, leave it where rounding decides, or elsewhere; {} if not asked."""
    standing = arm["against_plain"].dropna()
    if standing.empty:
        return {}
    return {
        f"texts_{name}": int((standing == value).sum())
        for name, value in (("same", SAME), ("tied", TIE), ("differ", DIFFERS))
    }
