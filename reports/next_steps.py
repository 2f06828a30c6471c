"""What to do with an answer, in a sentence or two: the setting to use, or what would change the answer.

Input: answers that share decision and gamma, and the predictions behind them. Output: plain text.
"""

from __future__ import annotations

from collections.abc import Sequence

from specgauge.model.speedup import RECOMMENDED_TOLERANCE
from specgauge.reports.formatting import listed, number, percent
from specgauge.reports.records import DO_NOT, SPECULATE, UNDECIDED, Answer, Curves, best_of


def following(members: Sequence[Answer], curves: Curves) -> str:
    """What to do next where all of `members` hold."""
    steps = {SPECULATE: _when_it_pays, DO_NOT: _when_it_does_not, UNDECIDED: _when_undecided}
    return steps[members[0].decision](members, curves)


def shown_gamma(one: Answer, curves: Curves) -> int | None:
    """The gamma that an answer's speed-up belongs to: the one recommended, else the one of the largest speed-up."""
    for gamma in (one.gamma, one.recommended_gamma, one.best_gamma):
        if gamma:
            return gamma
    best = best_of(curves.get(one.strategy, {}).get(one.place, ()))
    return None if best is None else best.gamma


def _when_it_pays(members: Sequence[Answer], _curves: Curves) -> str:
    gamma = members[0].gamma
    words = f"Set the engine's number of speculative tokens to {gamma}."
    faster = sorted({one.best_gamma for one in members if one.best_gamma not in (None, gamma)})
    if faster:
        words += (
            f" γ = {listed([str(one) for one in faster])} has the largest S; γ = {gamma} is within "
            f"{percent(RECOMMENDED_TOLERANCE)} of it and drafts less."
        )
    return words


def _when_it_does_not(members: Sequence[Answer], curves: Curves) -> str:
    words = "Decode plainly here."
    shortest = None
    for one in members:
        for row in curves.get(one.strategy, {}).get(one.place, ()):
            if row.gamma == shown_gamma(one, curves) and row.t_round_s and row.t_decode_s and row.tokens_per_round:
                needed = row.t_round_s / row.t_decode_s
                if shortest is None or needed / row.tokens_per_round < shortest[0] / shortest[1]:
                    shortest = (needed, row.tokens_per_round, row)
    if shortest is not None and shortest[0] > shortest[1]:
        needed, commits, row = shortest
        words += (
            f" Nearest to paying (batch {row.place.batch_size}, context {row.place.context}, γ = {row.gamma}): "
            f"a round costs {number(needed)} plain steps and commits {number(commits)} tokens."
        )
        if needed > row.gamma + 1:
            return (
                words + " Even perfect acceptance would not pay for that: only a cheaper draft or a smaller batch can."
            )
    return words + " A faster draft, one closer to the target, or a smaller batch would change that."


def _when_undecided(members: Sequence[Answer], curves: Curves) -> str:
    """Where the doubt comes from: squared relative half-widths, acceptance against all of it."""
    acceptance, total = 0.0, 0.0
    for one in members:
        for row in curves.get(one.strategy, {}).get(one.place, ()):
            if row.gamma == shown_gamma(one, curves):
                acceptance += _spread(row.tokens_per_round_low, row.tokens_per_round, row.tokens_per_round_high)
                total += _spread(row.speedup_low, row.speedup, row.speedup_high)
    words = "Decode plainly until more is measured:"
    prompts = "start a new run with more prompts (workload.prompts, workload.limit, workload.repetitions)"
    timings = "run the same command again with larger precision.max_blocks and precision.max_seconds"
    if total <= 0:
        return f"{words} {timings}, or {prompts}."
    share = min(1.0, acceptance / total)
    if share >= 0.5:
        return f"{words} {prompts}, since {percent(share)} of the variance comes from acceptance."
    return f"{words} {timings}, since {percent(1 - share)} of the variance comes from the timings."


def _spread(low: float | None, value: float | None, high: float | None) -> float:
    return ((high - low) / (2 * value)) ** 2 if low is not None and high is not None and value else 0.0
