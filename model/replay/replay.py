"""Adaptive policies over recorded texts: tuned on some prompts, judged on others, beside what bounds them.

Prompts are dealt into folds at random; every policy is tuned on all folds but one and replayed on that one, so no text
is judged by a policy that has seen its prompt. Per batch size B, with seconds added up over all texts:

    speedup            plain decoding / policy                         plain: every step at T_decode
    over_best_fixed    the best fixed γ / policy                       chosen with hindsight on the judged texts; γ = 0
                                                                       is plain decoding
    gap closed         (best fixed - policy) / (best fixed - bound)    1: the bound reached; below 0: slower

At B = 1 fixed γ and the bounds are exact expectations (`renewal`, `bounds`), as everything of lookups is; the rest are
means over replicates of the same coins. A batch costs T_round(B, γ) until its last row has ended; its bounds let every
row choose for itself at its share of the round, which no batch can do, so they are loose there. Intervals draw prompts,
the same for all policies; a row's time is its share 1 / B of its batch's.

    result = replay(texts, costs, folds=4, replicates=200, seed=0)
    result.policies["renewal"].speedup

N texts, P prompts.

One policy as it is, over batches that it decoded: what their prompts' recorded texts should take, and plain ones.

    seconds = replayed_seconds(policy, texts, [[1, 3], [5, 1]], costs, replicates=100, seed=0)
    seconds.plain_s / seconds.policy_s          # a ratio a batch
    seconds.speedup

Rounds are played as `specgauge.model.replay.rounds` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import renewal
from specgauge.model.acceptance.texts import sum_by_prompt
from specgauge.model.checks import FloatArray, IntArray, whole_numbers
from specgauge.model.policies.policy import FixedPolicy, RoundPolicy
from specgauge.model.policies.tuning import MAKERS, PolicyMaker, Tuning
from specgauge.model.provenance import finite_or_none
from specgauge.model.replay.bounds import best_gamma_by_start, best_lookups_time_s, run_oracle_time_s
from specgauge.model.replay.rounds import (
    Lanes,
    ReplayCosts,
    batches,
    batches_of_prompts,
    play,
    rejections,
    time_by_text,
)
from specgauge.model.replay.texts import OffPath, ReplayTexts
from specgauge.model.sampling import uniforms
from specgauge.model.stats.bootstrap import draw_prompts, expansion, percentile_interval, ratio_replicates

DEALING = 11
"""The purpose of the uniforms that deal prompts into folds."""
TUNING_REPLICATES = 16
BOOTSTRAP_REPLICATES = 1000
_NO_GAP = 1e-9


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A ratio of seconds with its central interval; low and high are None where a single prompt leaves them unknown."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class JudgedPolicy:
    """What one policy came to on prompts it was not tuned on."""

    speedup: Interval
    """Over plain decoding."""
    over_best_fixed: Interval
    gap_closed_by_start: Interval | None
    """Of the gap from the best fixed γ to who knows a_t and fixes γ at each start; None where there is no gap."""
    gap_closed_oracle: Interval | None
    """Of the gap to who knows each run before drafting: the bound of policies that stop while drafting."""
    switches_per_round: float
    mean_gamma: float
    """Drafts per row and round."""
    tuned: tuple[RoundPolicy, ...]
    """The policy of each fold."""


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """All policies at one batch size."""

    batch_size: int
    prompts: int
    replicates: int
    confidence: float
    best_fixed_gamma: int
    best_fixed_speedup: float
    loop_speedup: float
    """Of the speculative loop at γ = 0 over plain decoding."""
    bound_by_start_speedup: float
    bound_oracle_speedup: float
    off_path: OffPath
    """Whether signals after a rejection were rolled out or assumed."""
    policies: Mapping[str, JudgedPolicy]


@dataclass(frozen=True, kw_only=True)
class _Tally:
    """Seconds by text, added up over the rows a text stands in and divided by the replicates, (N,)."""

    time_s: FloatArray
    rounds: float
    row_rounds: float
    drafted: float
    switches: float


def replay(
    texts: ReplayTexts,
    costs: ReplayCosts,
    *,
    makers: Mapping[str, PolicyMaker] = MAKERS,
    folds: int = 4,
    replicates: int = 200,
    tuning_replicates: int = TUNING_REPLICATES,
    confidence: float = 0.9,
    seed: int = 0,
) -> ReplayResult:
    """Tune and judge every policy at the batch size of `costs`.

    folds: at most one per prompt. Raises ValueError for fewer than two prompts, fewer than two folds, and costs without
    a round of drafts.
    """
    prompts = np.unique(texts.prompts)
    parts = min(int(whole_numbers("folds", folds, minimum=2)), prompts.size)
    if parts < 2:
        raise ValueError(
            "replay: found 1 prompt; allowed is at least 2, to tune policies on one and judge them on another"
        )
    if costs.gamma_max < 1:
        raise ValueError("replay: found costs of plain rounds only; allowed is at least one γ above 0")
    dealt = np.argsort(uniforms(seed, prompts, 0, 0, DEALING), kind="stable")
    fold_of = np.empty(prompts.size, dtype=np.int64)
    fold_of[dealt] = np.arange(prompts.size) % parts
    pieces = [
        _judge_fold(
            texts.of_prompts(prompts[fold_of != fold]),
            texts.of_prompts(prompts[fold_of == fold]),
            costs,
            makers=makers,
            replicates=replicates,
            tuning_replicates=tuning_replicates,
            seed=seed,
        )
        for fold in range(parts)
    ]
    return _result(pieces, costs, replicates=replicates, confidence=confidence, seed=seed)


@dataclass(frozen=True, kw_only=True)
class _Fold:
    """The judged texts of one fold."""

    prompts: IntArray
    """(n,) of each text."""
    plain_s: FloatArray
    """(n,) plain decoding."""
    fixed_s: FloatArray
    """(n, γ_max + 1)."""
    by_start_s: FloatArray
    oracle_s: FloatArray
    tallies: Mapping[str, _Tally]
    tuned: Mapping[str, RoundPolicy]
    off_path: OffPath


def _judge_fold(
    tuning_texts: ReplayTexts,
    texts: ReplayTexts,
    costs: ReplayCosts,
    *,
    makers: Mapping[str, PolicyMaker],
    replicates: int,
    tuning_replicates: int,
    seed: int,
) -> _Fold:
    tuning = Tuning.on(tuning_texts, costs, replicates=tuning_replicates, seed=seed)
    tuned = {name: make(tuning) for name, make in makers.items()}
    calls = batches(texts, costs.batch_size, replicates, seed)
    coins = rejections(texts, int(calls.replicates.max()) + 1, seed)
    longest = texts.judged.lengths[calls.texts].max(axis=1)
    appearances = np.bincount(calls.texts.ravel(), minlength=texts.prompts.size) / replicates
    by_start, oracle = _bounds(texts, costs)
    return _Fold(
        prompts=texts.prompts,
        plain_s=time_by_text(longest * costs.t_decode_s, calls, texts) / replicates,
        fixed_s=_fixed_s(texts, calls, coins, costs, replicates),
        by_start_s=by_start * appearances,
        oracle_s=oracle * appearances,
        tallies={name: _tally(policy, texts, calls, coins, costs, replicates) for name, policy in tuned.items()},
        tuned=tuned,
        off_path=texts.chains.off_path,
    )


def _tally(
    policy: RoundPolicy, texts: ReplayTexts, calls: Lanes, coins: IntArray, costs: ReplayCosts, replicates: int
) -> _Tally:
    played = play(policy, texts, calls, coins, costs)
    time_s = time_by_text(played.time_s, calls, texts) / replicates
    if isinstance(policy, FixedPolicy) and _is_exact(texts, costs):
        time_s = _exact_fixed_s(texts, costs, [policy.gamma])[:, 0]
    return _Tally(
        time_s=time_s,
        rounds=float(played.rounds.sum()),
        row_rounds=float(played.row_rounds.sum()),
        drafted=float(played.drafted.sum()),
        switches=float(played.switches.sum()),
    )


def _fixed_s(texts: ReplayTexts, calls: Lanes, coins: IntArray, costs: ReplayCosts, replicates: int) -> FloatArray:
    """(n, γ_max + 1) seconds of every fixed γ: exact for single rows, else by the same coins as the policies'."""
    gammas = range(costs.gamma_max + 1)
    if _is_exact(texts, costs):
        return _exact_fixed_s(texts, costs, list(gammas))
    times = [play(FixedPolicy(gamma=gamma), texts, calls, coins, costs).time_s for gamma in gammas]
    return np.stack([time_by_text(time_s, calls, texts) / replicates for time_s in times], axis=1)


def _is_exact(texts: ReplayTexts, costs: ReplayCosts) -> bool:
    """Whether fixed γ are expectations of `renewal`; lookups know no chance, and playing them is exact."""
    return costs.batch_size == 1 and texts.lookups is None


def _exact_fixed_s(texts: ReplayTexts, costs: ReplayCosts, gammas: list[int]) -> FloatArray:
    """(n, G) expected seconds of each text at fixed γ; at γ = 0 of the plain loop."""
    judged = texts.judged
    found = renewal(
        judged.acceptance,
        judged.acceptance,
        judged.lengths,
        judged.ended_by_eos,
        gammas,
        costs.gamma_max,
        costs.rounds_s,
        length_limits=judged.limits,
    )
    assert found.time_s is not None
    time_s = found.time_s + found.catch_ups * costs.t_draft_catch_up_s
    plain_s = judged.lengths[:, None] * costs.t_decode_s
    return np.where(np.array(gammas) > 0, time_s, plain_s)


def _bounds(texts: ReplayTexts, costs: ReplayCosts) -> tuple[FloatArray, FloatArray]:
    """(n,) least seconds of a row that fixes γ at its starts knowing a_t, and of one that knows its runs.

    Δ₂ and looks are left out, and a round costs what the cheapest round of as many drafts or more does, over B: a row
    of a batch never pays less than that for its share. Nor do texts take more than the plain loop.
    """
    judged = texts.judged
    plain_s = judged.lengths * (costs.t_decode_s / costs.batch_size)
    share_s = np.minimum.accumulate(costs.rounds_s[::-1])[::-1] / costs.batch_size
    if texts.lookups is not None:
        starts = (texts.lookups.offered, texts.lookups.matching)
        ends = (judged.lengths, judged.ended_by_eos)
        best_s = best_lookups_time_s(*starts, *ends, costs.gamma_max, share_s, length_limits=judged.limits)
        return np.minimum(best_s, plain_s), np.minimum(best_s, plain_s)
    given = (judged.acceptance, judged.lengths, judged.ended_by_eos, costs.gamma_max, share_s)
    return (
        np.minimum(best_gamma_by_start(*given, length_limits=judged.limits).time_s, plain_s),
        np.minimum(run_oracle_time_s(*given, length_limits=judged.limits), plain_s),
    )


def _result(pieces: list[_Fold], costs: ReplayCosts, *, replicates: int, confidence: float, seed: int) -> ReplayResult:
    by_text = np.concatenate([piece.prompts for piece in pieces])

    def by_prompt(values: list[FloatArray]) -> FloatArray:
        return sum_by_prompt(np.concatenate(values), by_text)

    plain_s, fixed_s = by_prompt([piece.plain_s for piece in pieces]), by_prompt([piece.fixed_s for piece in pieces])
    by_start_s, oracle_s = by_prompt([piece.by_start_s for piece in pieces]), by_prompt([p.oracle_s for p in pieces])
    best = int(fixed_s.sum(axis=0).argmin())
    best_s, plain_total_s = fixed_s[:, best], float(plain_s.sum())
    weights = draw_prompts(plain_s.size, BOOTSTRAP_REPLICATES, seed)

    def ratio(numerators: FloatArray, denominators: FloatArray) -> Interval:
        drawn = ratio_replicates(numerators[:, None], denominators[:, None], weights, confidence=confidence)[:, 0]
        low, high = percentile_interval(drawn[1:], confidence)
        return Interval(value=float(drawn[0]), low=finite_or_none(low), high=finite_or_none(high))

    def closed(time_s: FloatArray, bound_s: FloatArray) -> Interval | None:
        """Of the totals; prompts whose coins beat their bound, an expectation, count as they are."""
        gains_s, gaps_s, least_s = best_s - time_s, best_s - bound_s, _NO_GAP * best_s.sum()
        if gaps_s.sum() <= least_s:
            return None
        value = float(gains_s.sum() / gaps_s.sum())
        drawn_gaps_s = weights @ gaps_s
        drawn = np.full(len(weights), value)
        np.divide(weights @ gains_s, drawn_gaps_s, out=drawn, where=drawn_gaps_s > least_s)
        drawn = value + expansion(gaps_s.size, confidence) * (drawn - value)
        low, high = percentile_interval(drawn, confidence)
        return Interval(value=value, low=finite_or_none(low), high=finite_or_none(high))

    policies = {}
    for name in pieces[0].tallies:
        tallies = [piece.tallies[name] for piece in pieces]
        time_s = by_prompt([tally.time_s for tally in tallies])
        policies[name] = JudgedPolicy(
            speedup=ratio(plain_s, time_s),
            over_best_fixed=ratio(best_s, time_s),
            gap_closed_by_start=closed(time_s, by_start_s),
            gap_closed_oracle=closed(time_s, oracle_s),
            switches_per_round=sum(tally.switches for tally in tallies) / sum(tally.rounds for tally in tallies),
            mean_gamma=sum(tally.drafted for tally in tallies) / sum(tally.row_rounds for tally in tallies),
            tuned=tuple(piece.tuned[name] for piece in pieces),
        )
    return ReplayResult(
        batch_size=costs.batch_size,
        prompts=plain_s.size,
        replicates=replicates,
        confidence=confidence,
        best_fixed_gamma=best,
        best_fixed_speedup=plain_total_s / float(best_s.sum()),
        loop_speedup=costs.t_decode_s / costs.t_round_s[0],
        bound_by_start_speedup=plain_total_s / float(by_start_s.sum()),
        bound_oracle_speedup=plain_total_s / float(oracle_s.sum()),
        off_path=pieces[0].off_path,
        policies=policies,
    )


@dataclass(frozen=True, kw_only=True)
class ReplayedSeconds:
    """What each of L batches should take, a mean over replays."""

    plain_s: FloatArray
    """(L,)"""
    policy_s: FloatArray
    """(L,)"""

    @property
    def speedup(self) -> float:
        """Over plain decoding, all batches together."""
        return float(self.plain_s.sum() / self.policy_s.sum())


def replayed_seconds(
    policy: RoundPolicy, texts: ReplayTexts, prompts: ArrayLike, costs: ReplayCosts, *, replicates: int, seed: int
) -> ReplayedSeconds:
    """Play each batch `replicates` times.

    prompts: (L, B) the prompt of every row, B the batch size of the costs.
    Raises ValueError as `play` and `batches_of_prompts`, and for another batch size.
    """
    numbers = np.asarray(prompts, dtype=np.int64)
    if numbers.ndim != 2 or numbers.shape[1] != costs.batch_size:
        raise ValueError(f"prompts: found shape {numbers.shape}; allowed is (L, {costs.batch_size}), a row a batch")
    played = texts.of_prompts(numbers)
    calls = batches_of_prompts(played, numbers, replicates)
    coins = rejections(played, int(calls.replicates.max(initial=0)) + 1, seed)
    longest = played.judged.lengths[calls.texts].max(axis=1)
    plain_s, policy_s = longest * costs.t_decode_s, play(policy, played, calls, coins, costs).time_s
    return ReplayedSeconds(
        plain_s=plain_s.reshape(-1, replicates).mean(axis=1), policy_s=policy_s.reshape(-1, replicates).mean(axis=1)
    )
