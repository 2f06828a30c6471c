"""Adaptive policies over recorded texts: tuned on some prompts, replayed on others, beside what bounds them.

Prompts are dealt into folds at random; every policy is tuned on all folds but one and replayed on that one. Per batch
size B, with seconds added up over all texts:

    speedup            plain decoding / policy                         plain: every step at T_decode
    over_best_fixed    the best fixed γ / policy                       chosen with hindsight on these texts; γ = 0 is
                                                                       plain decoding
    gap closed         (best fixed - policy) / (best fixed - bound)    1: the bound reached; below 0: slower

At B = 1 fixed γ and the bounds are exact expectations, as everything of lookups is; the rest are means over replicates
with common random numbers. The bounds of a batch let every row choose for itself at its share of the round, so they are
loose there. Intervals draw prompts, the same for all policies; a row takes 1 / B of its batch.

    replay(texts, costs, folds=4, replicates=200, seed=0).policies["renewal"].speedup
    replayed_seconds(policy, texts, [[1, 3], [5, 1]], costs, replicates=100, seed=0).speedup     # one policy as it is

N texts, P prompts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.renewal import renewal
from specgauge.model.checks import FloatArray, IntArray, finite_or_none, whole_numbers
from specgauge.model.policies.policy import FixedPolicy, GammaPolicy
from specgauge.model.policies.tuning import MAKERS, PolicyMaker
from specgauge.model.replay.bounds import accepted_length_oracle_time_s, best_by_start_time_s, best_lookups_time_s
from specgauge.model.replay.rounds import ReplayBatches, ReplayCosts, SimulatedRounds
from specgauge.model.replay.texts import OffPath, ReplayTexts
from specgauge.model.sampling import uniforms
from specgauge.model.speedup import speedup
from specgauge.model.stats.bootstrap import (
    draw_prompts,
    expansion,
    percentile_interval,
    ratio_replicates,
    sum_by_prompt,
)

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
class ReplayedPolicy:
    """What one policy came to on prompts it was not tuned on."""

    speedup: Interval
    """Over plain decoding."""
    over_best_fixed: Interval
    gap_closed_by_start: Interval | None
    """Of the gap from the best fixed γ to the bound by start (`bounds`); None where there is no gap."""
    gap_closed_oracle: Interval | None
    """Of the gap to the run oracle, the bound of policies that stop while drafting."""
    mean_gamma: float
    """Drafts per row and round."""
    switches_per_round: float
    tuned: tuple[GammaPolicy, ...]
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
    policies: Mapping[str, ReplayedPolicy]


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
    """Tune and replay every policy at the batch size of `costs`; `folds` are at most one per prompt.

    Raises:
        ValueError: fewer than two prompts, fewer than two folds, or costs without a round of drafts.
    """
    prompts = np.unique(texts.prompts)
    count = min(int(whole_numbers("folds", folds, minimum=2)), prompts.size)
    if count < 2:
        raise ValueError("replay: expected at least 2 prompts, to tune on one and replay on another, got 1")
    if costs.gamma_max < 1:
        raise ValueError("replay: expected at least one γ above 0, got costs of plain rounds only")
    dealt = np.argsort(uniforms(seed, prompts, 0, 0, DEALING), kind="stable")
    fold_of = np.empty(prompts.size, dtype=np.int64)
    fold_of[dealt] = np.arange(prompts.size) % count
    pieces = [
        _replay_fold(
            texts.of_prompts(prompts[fold_of != fold]),
            texts.of_prompts(prompts[fold_of == fold]),
            costs,
            makers=makers,
            replicates=replicates,
            tuning_replicates=tuning_replicates,
            seed=seed,
        )
        for fold in range(count)
    ]
    return _result(pieces, costs, replicates=replicates, confidence=confidence, seed=seed)


@dataclass(frozen=True, kw_only=True)
class _Fold:
    """Seconds of one fold's texts, (n,) each, a mean over replicates."""

    prompts: IntArray
    plain_s: FloatArray
    fixed_s: FloatArray
    """(n, γ_max + 1)."""
    by_start_s: FloatArray
    oracle_s: FloatArray
    policy_s: Mapping[str, FloatArray]
    rounds: Mapping[str, SimulatedRounds]
    tuned: Mapping[str, GammaPolicy]
    off_path: OffPath


def _replay_fold(
    tuning_texts: ReplayTexts,
    texts: ReplayTexts,
    costs: ReplayCosts,
    *,
    makers: Mapping[str, PolicyMaker],
    replicates: int,
    tuning_replicates: int,
    seed: int,
) -> _Fold:
    tuning = ReplayBatches.drawn(tuning_texts, costs, replicates=tuning_replicates, seed=seed)
    tuned = {name: make(tuning) for name, make in makers.items()}
    batches = ReplayBatches.drawn(texts, costs, replicates=replicates, seed=seed)
    rounds = {name: batches.simulate(policy) for name, policy in tuned.items()}
    policy_s = {name: batches.time_by_text(found.time_s) / replicates for name, found in rounds.items()}
    gammas = list(range(costs.gamma_max + 1))
    if costs.batch_size == 1 and texts.lookups is None:
        fixed_s = _exact_fixed_s(texts, costs, gammas)
        fixed = {name: own.gamma for name, own in tuned.items() if isinstance(own, FixedPolicy)}
        policy_s |= {name: _exact_fixed_s(texts, costs, [gamma])[:, 0] for name, gamma in fixed.items()}
    else:
        simulated = [batches.simulate(FixedPolicy(gamma=gamma)).time_s for gamma in gammas]
        fixed_s = np.stack([batches.time_by_text(time_s) / replicates for time_s in simulated], axis=1)
    appearances = np.bincount(batches.rows.ravel(), minlength=texts.prompts.size) / replicates
    by_start_s, oracle_s = _bounds(texts, costs)
    return _Fold(
        prompts=texts.prompts,
        plain_s=batches.time_by_text(batches.plain_s) / replicates,
        fixed_s=fixed_s,
        by_start_s=by_start_s * appearances,
        oracle_s=oracle_s * appearances,
        policy_s=policy_s,
        rounds=rounds,
        tuned=tuned,
        off_path=texts.chains.off_path,
    )


def _exact_fixed_s(texts: ReplayTexts, costs: ReplayCosts, gammas: list[int]) -> FloatArray:
    """(n, G) expected seconds of each text at fixed γ; at γ = 0 of the plain loop."""
    a, ends = texts.acceptance, texts.ends
    found = renewal(
        a, a, ends.lengths, ends.ended_by_eos, gammas, costs.gamma_max, costs.rounds_s, length_limits=ends.limits
    )
    assert found.time_s is not None
    time_s = found.time_s + found.catch_ups * costs.t_draft_catch_up_s
    return np.where(np.array(gammas) > 0, time_s, ends.lengths[:, None] * costs.t_decode_s)


def _bounds(texts: ReplayTexts, costs: ReplayCosts) -> tuple[FloatArray, FloatArray]:
    """(n,) least seconds of a row that fixes γ at its starts knowing a_t, and of one that knows its runs.

    Δ₂ and early-stop checks are left out; a row pays 1 / B of the cheapest round of as many drafts or more, and no text
    takes longer than in the plain loop.
    """
    ends = texts.ends
    plain_s = ends.lengths * (costs.t_decode_s / costs.batch_size)
    share_s = np.minimum.accumulate(costs.rounds_s[::-1])[::-1] / costs.batch_size
    if texts.lookups is not None:
        best_s = best_lookups_time_s(texts.lookups.offered, texts.lookups.matching, ends, share_s)
        return np.minimum(best_s, plain_s), np.minimum(best_s, plain_s)
    return (
        np.minimum(best_by_start_time_s(texts.acceptance, ends, share_s), plain_s),
        np.minimum(accepted_length_oracle_time_s(texts.acceptance, ends, share_s), plain_s),
    )


def _result(pieces: list[_Fold], costs: ReplayCosts, *, replicates: int, confidence: float, seed: int) -> ReplayResult:
    by_text = np.concatenate([piece.prompts for piece in pieces])

    def by_prompt(values: list[FloatArray]) -> FloatArray:
        return sum_by_prompt(np.concatenate(values), by_text)

    names = ("plain_s", "fixed_s", "by_start_s", "oracle_s")
    plain_s, fixed_s, by_start_s, oracle_s = (by_prompt([getattr(piece, name) for piece in pieces]) for name in names)
    best = int(fixed_s.sum(axis=0).argmin())
    best_s, plain_total_s = fixed_s[:, best], float(plain_s.sum())
    weights = draw_prompts(plain_s.size, BOOTSTRAP_REPLICATES, seed)

    def interval(value: float, drawn: FloatArray) -> Interval:
        low, high = percentile_interval(drawn, confidence)
        return Interval(value=value, low=finite_or_none(low), high=finite_or_none(high))

    def ratio(numerators: FloatArray, denominators: FloatArray) -> Interval:
        drawn = ratio_replicates(numerators[:, None], denominators[:, None], weights, confidence=confidence)[:, 0]
        return interval(float(drawn[0]), drawn[1:])

    def closed(time_s: FloatArray, bound_s: FloatArray) -> Interval | None:
        """Of the totals; prompts whose draws beat their bound, an expectation, count as they are."""
        gains_s, gaps_s, least_s = best_s - time_s, best_s - bound_s, _NO_GAP * best_s.sum()
        if gaps_s.sum() <= least_s:
            return None
        value = float(gains_s.sum() / gaps_s.sum())
        drawn_gaps_s = weights @ gaps_s
        drawn = np.full(len(weights), value)
        np.divide(weights @ gains_s, drawn_gaps_s, out=drawn, where=drawn_gaps_s > least_s)
        return interval(value, value + expansion(gaps_s.size, confidence) * (drawn - value))

    def total(name: str, count: str) -> float:
        return float(sum(int(getattr(piece.rounds[name], count).sum()) for piece in pieces))

    policies = {}
    for name in pieces[0].tuned:
        time_s = by_prompt([piece.policy_s[name] for piece in pieces])
        policies[name] = ReplayedPolicy(
            speedup=ratio(plain_s, time_s),
            over_best_fixed=ratio(best_s, time_s),
            gap_closed_by_start=closed(time_s, by_start_s),
            gap_closed_oracle=closed(time_s, oracle_s),
            switches_per_round=total(name, "switches") / total(name, "rounds"),
            mean_gamma=total(name, "drafted") / total(name, "row_rounds"),
            tuned=tuple(piece.tuned[name] for piece in pieces),
        )
    return ReplayResult(
        batch_size=costs.batch_size,
        prompts=plain_s.size,
        replicates=replicates,
        confidence=confidence,
        best_fixed_gamma=best,
        best_fixed_speedup=plain_total_s / float(best_s.sum()),
        loop_speedup=float(speedup(1.0, t_decode_s=costs.t_decode_s, t_round_s=costs.t_round_s[0])),
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
    policy: GammaPolicy, texts: ReplayTexts, prompts: ArrayLike, costs: ReplayCosts, *, replicates: int, seed: int
) -> ReplayedSeconds:
    """Simulate each batch `replicates` times; prompts: (L, B) the prompt of every row, B the batch size of the costs.

    Raises:
        ValueError: as `ReplayBatches.of_prompts` and `ReplayBatches.simulate`, or another batch size.
    """
    numbers = np.asarray(prompts, dtype=np.int64)
    if numbers.ndim != 2 or numbers.shape[1] != costs.batch_size:
        raise ValueError(f"prompts: expected (L, {costs.batch_size}), a row a batch, got shape {numbers.shape}")
    batches = ReplayBatches.of_prompts(texts.of_prompts(numbers), costs, numbers, replicates=replicates, seed=seed)
    return ReplayedSeconds(
        plain_s=batches.plain_s.reshape(-1, replicates).mean(axis=1),
        policy_s=batches.simulate(policy).time_s.reshape(-1, replicates).mean(axis=1),
    )
