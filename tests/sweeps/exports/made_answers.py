"""Answers of a run as an export takes them, with round numbers.

γ 4 up to 4 rows, 2 up to 8, 1 up to 32; at every γ a round takes γ / 4 + 1 times a plain step (10 ms), and S is Ω over
that, with Ω 1.6, 2.2 and 2.8 at γ 1, 2 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgauge.sweeps.exports.answers import DraftSource, GammaFigures, PointAnswer, ServingAnswers
from specgauge.sweeps.exports.schedule import DecidedRange

OMEGA = {1: 1.6, 2: 2.2, 4: 2.8}
STEPS = ((1, 4, 4), (5, 8, 2), (9, 32, 1))
NGRAM = DraftSource(kind="ngram", longest=4, shortest=2)
EAGLE = DraftSource(kind="eagle3", model="org/eagle")
LAYERS = DraftSource(kind="layers", layers=6)


def figures(gamma: int, t_decode_s: float = 0.010) -> GammaFigures:
    """Of one γ."""
    t_round_s = (gamma / 4 + 1) * t_decode_s
    speedup = OMEGA[gamma] * t_decode_s / t_round_s
    return GammaFigures(
        tokens_per_round=OMEGA[gamma], t_round_s=t_round_s, speedup=speedup, low=speedup - 0.1, high=speedup + 0.1
    )


def gamma_range(first: int, last: int, gamma: int) -> DecidedRange:
    """A range that was decided."""
    verdict: Any = "speculate" if gamma else "do not speculate"
    return DecidedRange(first=first, last=last, gamma=gamma, verdict=verdict, reason="why")


def answers(steps: Sequence[tuple[int, int, int]] = STEPS, **changes: Any) -> ServingAnswers:
    """Answers with a point at the last batch size of every step."""
    ranges = tuple(gamma_range(*step) for step in steps)
    points = tuple(
        PointAnswer(
            batch_size=one.last,
            gamma=one.gamma,
            verdict=one.verdict,
            reason=one.reason,
            by_gamma={gamma: figures(gamma) for gamma in OMEGA},
        )
        for one in ranges
    )
    fields: dict[str, Any] = {
        "source": "runs/a",
        "origin": "measured 2026-01-02 on cpu",
        "target": "org/target",
        "draft": DraftSource(kind="model", model="org/draft"),
        "pair": "p",
        "sampling": "t1",
        "draft_sampling": "greedy",
        "acceptance_rule": "ratio",
        "rules_differ": True,
        "context": 64,
        "confidence": 0.9,
        "ranges": ranges,
        "points": points,
        "reach": "beyond it nothing was measured: γ is 0",
    }
    return ServingAnswers(**fields | changes)


def single(gamma: int = 4, **changes: Any) -> ServingAnswers:
    """One batch size, 1."""
    return answers([(1, 1, gamma)], **changes)
