"""The speed-up of speculative decoding: tokens per round over time per round, against plain decoding.

    Omega(gamma) = 1 + sum_{i<=gamma} A_i                 tokens a round commits, bonus or replacement included
    T_round      = max(C(gamma) + pi * Delta_2 + T_transfer(gamma) + T_verify(gamma) + epsilon, T_verify(gamma))
    S(gamma)     = Omega(gamma) * T_decode / T_round      gamma = 0 is plain decoding, S = 1

A_i is survival, C the draft chain, Delta_2 the catch-up after a full round, pi the probability that a round follows
one in which some row accepted everything, T_transfer what a draft on another device takes to hand its drafts over (0
on one device).  A round that was timed whole is T_round as it is.  No round is shorter than
its verification: an epsilon below 0, which a fit gives where the costs were timed slowly, takes away at most
C + pi * Delta_2 + T_transfer.  These are computed nowhere else; `round_times_s` and `speedups` take `RoundCosts` and
`Acceptance`, the others plain arrays.  Everything broadcasts.

    >>> omega = tokens_per_round_iid(0.8, 5)
    >>> t_round = round_time_s(t_draft_total_s=5 * 0.001614, t_verify_s=0.04108)
    >>> round(float(speedup(omega, t_decode_s=0.01905, t_round_s=t_round)), 4)
    1.4299
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import (
    BoolArray,
    FloatArray,
    IntArray,
    numbers,
    positive_times_s,
    probabilities,
    survival_rates,
    times_s,
    whole_numbers,
)
from specgauge.model.costs import RoundCosts

RECOMMENDED_TOLERANCE = 0.01
_ROUNDING = 1e-9
"""What a pooled ratio that is exactly 1 may miss it by in float64."""


def survival_iid(alpha: ArrayLike, gamma_max: int) -> FloatArray:
    """A_i = alpha^i for i = 1 … gamma_max, shape (…, gamma_max); Leviathan et al., arXiv 2211.17192, section 3.1.

    Raises:
        ValueError: alpha outside [0, 1], or a gamma_max that is not whole or below 1.
    """
    rate = probabilities("alpha", alpha)
    steps = np.arange(1, int(whole_numbers("gamma_max", gamma_max, minimum=1)) + 1)
    return np.asarray(rate[..., np.newaxis] ** steps, dtype=np.float64)


def tokens_per_round_iid(alpha: ArrayLike, gamma: ArrayLike) -> FloatArray:
    """Omega(gamma) = (1 - alpha^(gamma+1)) / (1 - alpha), gamma + 1 at alpha = 1; alpha and gamma broadcast.

    Equation 1 of Leviathan et al., arXiv 2211.17192.  Evaluated as 1 + alpha (1 - alpha^gamma) / (1 - alpha) through
    expm1, so that it is exactly 1 at gamma = 0 and loses nothing near alpha = 1.

    Raises:
        ValueError: alpha outside [0, 1] and for a gamma that is negative or not whole.
    """
    rate = probabilities("alpha", alpha)
    drafts = whole_numbers("gamma", gamma, minimum=0)
    gap = 1.0 - rate
    accepted = (
        -np.expm1(drafts * np.log(np.maximum(rate, np.finfo(np.float64).tiny))) * rate / np.where(gap > 0, gap, 1.0)
    )
    return np.asarray(1.0 + np.where(gap > 0, accepted, drafts), dtype=np.float64)


def tokens_per_round(survival: ArrayLike) -> FloatArray:
    """Omega(gamma) = 1 + sum_i A_i for gamma = the length of the last axis: (…, gamma) -> (…).

    Raises:
        ValueError: rates outside [0, 1] or that increase.
    """
    return np.asarray(1.0 + survival_rates("survival", survival).sum(axis=-1), dtype=np.float64)


def tokens_per_round_by_gamma(survival: ArrayLike) -> FloatArray:
    """Omega(1) … Omega(gamma_max) when survival does not depend on gamma: (…, gamma_max) -> (…, gamma_max)."""
    return np.asarray(1.0 + np.cumsum(survival_rates("survival", survival), axis=-1), dtype=np.float64)


def accepted_draft_tokens(tokens_per_round: ArrayLike) -> FloatArray:
    """Omega - 1: drafts a round accepts, the bonus or replacement left out.

    A round that ends on an accepted end-of-text token has no bonus and is not described by this.
    """
    omega = numbers("tokens_per_round", tokens_per_round)
    if np.any(omega < 1 - _ROUNDING):
        raise ValueError(f"tokens_per_round: expected at least 1 (every round commits a token), got {omega.min():g}")
    return np.asarray(omega - 1.0, dtype=np.float64)


def catch_up_probability(full_acceptance: ArrayLike, batch_size: ArrayLike = 1) -> FloatArray:
    """pi: probability that a round's first draft step feeds two tokens, 1 - (1 - A_gamma)^B, which is A_gamma at B = 1.

    One row that accepted everything in the round before is enough; rows are taken as independent, and a text's first
    round counts as any other.

    Raises:
        ValueError: A_gamma outside [0, 1], or a batch size that is not whole or below 1.
    """
    full = probabilities("full_acceptance", full_acceptance)
    return _catch_up_probability(full, whole_numbers("batch_size", batch_size, minimum=1))


def round_time_s(
    *,
    t_draft_total_s: ArrayLike,
    t_verify_s: ArrayLike,
    t_draft_catch_up_s: ArrayLike = 0.0,
    t_transfer_s: ArrayLike = 0.0,
    full_acceptance: ArrayLike | None = None,
    batch_size: ArrayLike = 1,
    t_overhead_s: ArrayLike | None = None,
) -> FloatArray:
    """T_round in seconds, from its costs as numbers, named as in `RoundCosts`; all arguments broadcast.

    full_acceptance is A_gamma, the probability that a row accepts all gamma drafts; needed as soon as Delta_2 > 0.
    batch_size are the rows decoded together.

    Raises:
        ValueError: negative times, probabilities outside [0, 1], a round that takes no time.
    """
    catch_up = times_s("t_draft_catch_up_s", t_draft_catch_up_s)
    follows: FloatArray = np.zeros(())
    if np.any(catch_up > 0):
        if full_acceptance is None:
            raise ValueError("full_acceptance: expected A_gamma in [0, 1] beside t_draft_catch_up_s, got none")
        follows = catch_up_probability(full_acceptance, batch_size)
    t_round = _round_time_s(
        times_s("t_draft_total_s", t_draft_total_s) + times_s("t_transfer_s", t_transfer_s),
        follows * catch_up,
        times_s("t_verify_s", t_verify_s),
        None if t_overhead_s is None else numbers("t_overhead_s", t_overhead_s),
    )
    return positive_times_s("t_round_s", t_round)


def speedup(tokens_per_round: ArrayLike, *, t_decode_s: ArrayLike, t_round_s: ArrayLike) -> FloatArray:
    """S = Omega * T_decode / T_round while all rows are active, of throughput and of each row; arguments broadcast.

    Theorem 3.8 of Leviathan et al., arXiv 2211.17192, is its case T_verify = T_decode, epsilon = 0.

    Raises:
        ValueError: fewer tokens per round than 1, or times that are not above 0.
    """
    accepted_draft_tokens(tokens_per_round)
    return _speedup(
        np.asarray(tokens_per_round, dtype=np.float64),
        positive_times_s("t_decode_s", t_decode_s),
        positive_times_s("t_round_s", t_round_s),
    )


def round_times_s(costs: RoundCosts, acceptance: Acceptance, *, batch_size: ArrayLike = 1) -> FloatArray:
    """T_round of every gamma of `costs`, (…, G); `acceptance` has the same gammas, batch_size broadcasts to (…).

    Replicates of A_gamma that a small sample throws outside [0, 1] count as 0 or 1; what is NaN stays NaN.

    Raises:
        ValueError: a round that takes no time.
    """
    catch_up_s: FloatArray | None = None
    if costs.t_draft_catch_up_s is not None:
        rows = whole_numbers("batch_size", batch_size, minimum=1)[..., np.newaxis]
        follows = _catch_up_probability(np.clip(acceptance.full_acceptance, 0.0, 1.0), rows)
        delta_s = np.asarray(costs.t_draft_catch_up_s)[..., np.newaxis]
        catch_up_s = np.where(delta_s == 0, 0.0, follows * delta_s)  # 0 whatever A_gamma, known or not
    parts = _drafts_there_s(costs), catch_up_s, costs.t_verify_s, costs.t_overhead_s
    return _positive(_round_time_s(*parts, costs.t_round_s))


def is_verification_alone(costs: RoundCosts, acceptance: Acceptance, *, batch_size: ArrayLike = 1) -> BoolArray:
    """Whether a round takes its verification alone, (…, G): an epsilon below 0 would take away more than its drafts."""
    if costs.t_overhead_s is None:
        return np.zeros(costs.t_verify_s.shape, dtype=np.bool_)
    parts_s = round_times_s(replace(costs, t_overhead_s=None), acceptance, batch_size=batch_size)
    return np.asarray(parts_s + costs.t_overhead_s < costs.t_verify_s, dtype=np.bool_)


def speedups(costs: RoundCosts, acceptance: Acceptance, *, batch_size: ArrayLike = 1) -> FloatArray:
    """S of every gamma of `costs`, (…, G), shapes and errors as `round_times_s`.

    Replicates of Omega count within [1, gamma + 1], all that a round can commit; what is NaN stays NaN.
    """
    omega = np.clip(acceptance.tokens_per_round, 1.0, acceptance.gammas + 1.0)
    t_round = round_times_s(costs, acceptance, batch_size=batch_size)
    return _speedup(omega, costs.t_decode_s[..., np.newaxis], t_round)


def round_times_by_drafts_s(costs: RoundCosts) -> FloatArray:
    """T_round of 0, 1, … gamma_max drafts without Delta_2, (…, 1 + G), from costs of every gamma 1 … gamma_max.

    A round of 0 drafts is a plain step inside the speculative loop, T_verify(0) = T_decode: epsilon is in it too.
    """
    decode = costs.t_decode_s[..., np.newaxis]
    draft = np.concatenate([np.zeros_like(decode), _drafts_there_s(costs)], axis=-1)
    verify = np.concatenate([decode, costs.t_verify_s], axis=-1)
    overhead = costs.t_overhead_s
    if overhead is not None:  # that of one draft for none
        overhead = np.broadcast_to(overhead, costs.t_verify_s.shape)
        overhead = np.concatenate([overhead[..., :1], overhead], axis=-1)
    whole = costs.t_round_s
    if whole is not None:  # of no drafts nothing is known whole
        whole = np.concatenate([np.full_like(decode, np.nan), whole], axis=-1)
    return _positive(_round_time_s(draft, None, verify, overhead, whole))


def with_overhead_s(t_costs_s: ArrayLike, t_verify_s: ArrayLike, t_overhead_s: ArrayLike | None) -> FloatArray:
    """T_round from the sum of its costs C + pi Delta_2 + T_verify, such as a mean over rounds; arguments broadcast."""
    overhead = None if t_overhead_s is None else numbers("t_overhead_s", t_overhead_s)
    return _with_overhead_s(times_s("t_costs_s", t_costs_s), times_s("t_verify_s", t_verify_s), overhead)


def measured_speedup(
    tokens: ArrayLike, seconds: ArrayLike, *, plain_tokens: ArrayLike, plain_seconds: ArrayLike
) -> FloatArray:
    """S as decoded: tokens a second over those of plain decoding; all arguments broadcast, seconds above 0."""
    own, plain = np.asarray(tokens) / np.asarray(seconds), np.asarray(plain_tokens) / np.asarray(plain_seconds)
    return np.asarray(own / plain, dtype=np.float64)


def _drafts_there_s(costs: RoundCosts) -> FloatArray:
    """C + T_transfer, (…, G): the seconds until the target's device has the drafts."""
    return costs.t_draft_total_s if costs.t_transfer_s is None else costs.t_draft_total_s + costs.t_transfer_s


def _catch_up_probability(full: FloatArray, rows: IntArray) -> FloatArray:
    return np.asarray(np.where(rows == 1, full, 1.0 - (1.0 - full) ** rows), dtype=np.float64)


def _round_time_s(
    draft_s: FloatArray,
    catch_up_s: FloatArray | None,
    verify_s: FloatArray,
    overhead_s: FloatArray | None,
    whole_s: FloatArray | None = None,
) -> FloatArray:
    costs_s = draft_s + verify_s
    if catch_up_s is not None:
        costs_s = costs_s + catch_up_s
    from_parts_s = _with_overhead_s(costs_s, verify_s, overhead_s)
    if whole_s is None:
        return from_parts_s
    return np.asarray(np.where(np.isnan(whole_s), from_parts_s, whole_s), dtype=np.float64)


def _with_overhead_s(costs_s: FloatArray, verify_s: FloatArray, overhead_s: FloatArray | None) -> FloatArray:
    if overhead_s is None:
        return costs_s
    return np.asarray(np.maximum(costs_s + overhead_s, verify_s), dtype=np.float64)


def _speedup(omega: FloatArray, t_decode_s: FloatArray, t_round_s: FloatArray) -> FloatArray:
    return np.asarray(omega * t_decode_s / t_round_s, dtype=np.float64)


def _positive(t_round_s: FloatArray) -> FloatArray:
    if bool((t_round_s <= 0).any()):
        raise ValueError("t_round_s: expected costs that add up to over 0, got a round of no time")
    return t_round_s


def time_per_token_s(tokens_per_round: ArrayLike, *, t_round_s: ArrayLike) -> FloatArray:
    """Mean seconds per committed token of one row, T_round / Omega; plain decoding is tokens_per_round 1, T_decode."""
    omega = 1.0 + accepted_draft_tokens(tokens_per_round)
    return np.asarray(positive_times_s("t_round_s", t_round_s) / omega, dtype=np.float64)


def throughput_tokens_per_s(tokens_per_round: ArrayLike, *, t_round_s: ArrayLike, batch_size: ArrayLike) -> FloatArray:
    """Tokens per second of the whole batch, B * Omega / T_round, while all B rows are active."""
    rows = whole_numbers("batch_size", batch_size, minimum=1)
    return np.asarray(rows / time_per_token_s(tokens_per_round, t_round_s=t_round_s), dtype=np.float64)


def within_limits(t_round_s: ArrayLike, max_itl_s: float | None = None) -> BoolArray:
    """Which gammas a deployment's limit leaves, as a mask for `best_gamma`.

    `max_itl_s` bounds T_round: the tokens of a round arrive together, so the wait between chunks is a round.

    Raises:
        ValueError: times that are not above 0.
    """
    t_round = positive_times_s("t_round_s", t_round_s)
    limit = np.inf if max_itl_s is None else positive_times_s("max_itl_s", max_itl_s)
    return np.asarray(t_round <= limit, dtype=np.bool_)


def best_gamma(speedups: ArrayLike, gammas: ArrayLike, allowed: ArrayLike | None = None) -> IntArray:
    """The gamma of the largest S along the last axis, the smallest among equals: (…, G), (G,) -> (…).

    `allowed` masks candidates out, whose S may be NaN; where none is left the answer is 0, plain decoding.

    Raises:
        ValueError: lengths that differ and for an allowed S that is not a number.
    """
    return recommended_gamma(speedups, gammas, allowed, tolerance=0.0)


def nearest_gamma(gamma: int, gammas: Iterable[int]) -> int:
    """The one of `gammas` that is nearest to a γ, the smaller of two; ValueError where there is none."""
    return min(gammas, key=lambda one: (abs(one - gamma), one))


def recommended_gamma(
    speedups: ArrayLike,
    gammas: ArrayLike,
    allowed: ArrayLike | None = None,
    *,
    tolerance: float = RECOMMENDED_TOLERANCE,
) -> IntArray:
    """The smallest gamma whose S is at least (1 - tolerance) of the largest; shapes and errors as `best_gamma`."""
    candidates = whole_numbers("gammas", gammas, minimum=0)
    if candidates.ndim != 1 or candidates.size == 0 or np.any(np.diff(candidates) <= 0):
        raise ValueError(f"gammas: expected a rising list of whole numbers, got {candidates.tolist()}")
    values = np.asarray(speedups, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] != candidates.size:
        found = values.shape[-1] if values.ndim else 1
        raise ValueError(f"speedups: expected one for each of {candidates.size} gammas, got {found}")
    if allowed is not None:
        values = np.where(np.asarray(allowed, dtype=np.bool_), values, -np.inf)
    if np.any(np.isnan(values)):
        raise ValueError("speedups: expected numbers, got NaN; mask unknown cells out with `allowed`")
    top = values.max(axis=-1, keepdims=True)
    first = np.argmax(values >= top * (1.0 - tolerance), axis=-1)
    return np.asarray(np.where(np.isneginf(top[..., 0]), 0, candidates[first]), dtype=np.int64)
