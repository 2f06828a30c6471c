"""Where speculation starts and stops paying: break-even points, requirements, limits and sensitivities of S.

    S(alpha) = Omega(alpha, gamma) * T_decode / T_round(alpha, gamma)       `specgauge.model.speedup`, i.i.d. acceptance

solved for alpha or for the draft's cost, taken to its limits, and differentiated.  An alpha broadcasts against (…, G)
of the costs; results have that shape.
Source of the limiting cases: Leviathan et al., arXiv 2211.17192, theorems 3.8 and 3.11.

    >>> round(float(alpha_from_tokens_per_round(3.41, 3)), 3)
    0.894
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import FloatArray, numbers, positive_numbers, probabilities, whole_numbers
from specgauge.model.costs import RoundCosts
from specgauge.model.settings import Provenance
from specgauge.model.speedup import (
    accepted_draft_tokens,
    is_verification_alone,
    round_times_s,
    speedups,
    tokens_per_round_iid,
)

_GRID = np.linspace(0.0, 1.0, 257)
_HALVINGS = 54


def acceptance_iid(alpha: ArrayLike, gammas: ArrayLike) -> Acceptance:
    """Acceptance where every draft passes with probability alpha (…, G) whatever came before: A_gamma = alpha^gamma."""
    rate, drafts = probabilities("alpha", alpha), np.atleast_1d(whole_numbers("gammas", gammas, minimum=1))
    return Acceptance(
        gammas=drafts,
        tokens_per_round=tokens_per_round_iid(rate, drafts),
        full_acceptance=np.asarray(rate**drafts, dtype=np.float64),
        provenance=np.full(drafts.size, int(Provenance.ASSUMED)),
    )


def alpha_from_tokens_per_round(tokens_per_round: ArrayLike, gamma: ArrayLike) -> FloatArray:
    """`alpha_omega`: the one alpha whose Omega(gamma) is the measured one; arguments broadcast.

    Raises:
        ValueError: fewer than 1 token a round and for more than gamma + 1, which no chain of drafts commits.
    """
    omega = 1.0 + accepted_draft_tokens(tokens_per_round)
    drafts = whole_numbers("gamma", gamma, minimum=1)
    refuse_more_than_a_chain("tokens_per_round", omega, drafts)
    omega, drafts = np.broadcast_arrays(omega, drafts)
    low, high = np.zeros(omega.shape), np.ones(omega.shape)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        reached = tokens_per_round_iid(middle, drafts) >= omega
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return np.asarray(np.where(omega <= 1.0, 0.0, high), dtype=np.float64)


def refuse_more_than_a_chain(name: str, tokens_per_round: ArrayLike, gamma: ArrayLike) -> None:
    """Raise ValueError where more than gamma + 1 tokens a round are claimed: then a draft tree was counted."""
    omega, drafts = np.broadcast_arrays(numbers(name, tokens_per_round), np.asarray(gamma))
    over = omega > drafts + 1 + 1e-9
    if np.any(over):
        raise ValueError(
            f"{name}: expected at most gamma + 1, which is all a chain of drafts can commit, got "
            f"{omega[over].flat[0]:g} at gamma {drafts[over].flat[0]}; counts of draft trees are not covered"
        )


def speedup_iid(alpha: ArrayLike, costs: RoundCosts, *, batch_size: int = 1) -> FloatArray:
    """S under i.i.d. acceptance at rate alpha (…, G)."""
    return speedups(costs, acceptance_iid(alpha, costs.gammas), batch_size=batch_size)


def required_alpha(wanted_speedup: float, costs: RoundCosts, *, batch_size: int = 1) -> FloatArray:
    """The smallest i.i.d. alpha at which S reaches `wanted_speedup`, (…, G); NaN where even a perfect draft does not.

    Searched on a grid of 1/256 and halved down to float64: the catch-up can make S fall again near alpha = 1.
    """
    wanted = positive_numbers("wanted_speedup", wanted_speedup)
    shape = costs.t_verify_s.shape
    on_grid = speedup_iid(_GRID.reshape(-1, *(1,) * len(shape)), costs, batch_size=batch_size)
    reached = np.broadcast_to(on_grid >= wanted, (_GRID.size, *shape))
    first = np.argmax(reached, axis=0)
    high, low = _GRID[first], _GRID[np.maximum(first - 1, 0)]
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        enough = speedup_iid(middle, costs, batch_size=batch_size) >= wanted
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(np.where(np.any(reached, axis=0), high, np.nan), dtype=np.float64)


def break_even_alpha(costs: RoundCosts, *, batch_size: int = 1) -> FloatArray:
    """The smallest i.i.d. alpha at which speculation costs nothing, S = 1; NaN where no alpha does."""
    return required_alpha(1.0, costs, batch_size=batch_size)


def break_even_draft_total_s(costs: RoundCosts, acceptance: Acceptance, *, batch_size: int = 1) -> FloatArray:
    """The largest C(gamma) at which S is at least 1, (…, G) seconds: Omega * T_decode less the rest of a round.

    Negative where even a free draft does not pay, by what it misses.  No round is shorter than its verification
    (`specgauge.model.speedup`): a draft of C < -epsilon, for an epsilon below 0, may be hidden in it.  Divided by gamma
    it is the break-even cost of one draft step.
    """
    overhead_s = np.zeros(()) if costs.t_overhead_s is None else costs.t_overhead_s
    plain_s = acceptance.tokens_per_round * costs.t_decode_s[..., np.newaxis]

    def left_s(t_draft_total_s: FloatArray) -> FloatArray:
        drafted = replace(costs, t_draft_total_s=t_draft_total_s)
        return np.asarray(plain_s - round_times_s(drafted, acceptance, batch_size=batch_size), dtype=np.float64)

    hidden_s = np.broadcast_to(np.maximum(-overhead_s, 0.0), costs.t_draft_total_s.shape)  # then epsilon takes it all
    found = left_s(hidden_s) + hidden_s
    return np.where(plain_s >= costs.t_verify_s, found, left_s(np.zeros_like(costs.t_draft_total_s)))


@dataclass(frozen=True, kw_only=True)
class SpeedupLimits:
    """What S tends to when one thing becomes ideal, the rest left as it is; arrays of the broadcast shape."""

    free_draft: FloatArray
    """C = Delta_2 = T_transfer = 0: Omega * T_decode / (T_verify + epsilon)."""
    perfect_draft: FloatArray
    """Everything accepted: (gamma + 1) * T_decode / T_round."""
    free_verification: FloatArray
    """T_verify = T_decode, Leviathan's assumption."""


def speedup_limits(alpha: ArrayLike, costs: RoundCosts, *, batch_size: int = 1) -> SpeedupLimits:
    """The three limits of S at this alpha and these costs."""
    nothing = np.zeros_like(costs.t_draft_total_s)
    free_draft = replace(costs, t_draft_total_s=nothing, t_draft_catch_up_s=None, t_transfer_s=None)
    free_verification = replace(costs, t_verify_s=costs.t_decode_s[..., np.newaxis] + nothing)
    return SpeedupLimits(
        free_draft=speedup_iid(alpha, free_draft, batch_size=batch_size),
        perfect_draft=speedup_iid(1.0, costs, batch_size=batch_size),
        free_verification=speedup_iid(alpha, free_verification, batch_size=batch_size),
    )


@dataclass(frozen=True, kw_only=True)
class Sensitivities:
    """Partial derivatives of S; the time derivatives are per second."""

    per_alpha: FloatArray
    """dS/dalpha."""
    per_t_draft_s: FloatArray
    """dS/dT_draft, the cost of one draft step where C = draft_steps * T_draft."""
    per_t_verify_s: FloatArray
    """dS/dT_verify, equal to dS/dC and dS/depsilon but in a round that takes its verification alone, where those are
    0."""
    per_t_decode_s: FloatArray
    """dS/dT_decode, the costs of a round held fixed."""


def sensitivities(
    alpha: ArrayLike, costs: RoundCosts, *, batch_size: int = 1, draft_steps: ArrayLike | None = None
) -> Sensitivities:
    """The derivatives of S at this alpha and these costs; `draft_steps` is gamma unless one pass drafts everything.

    dS/dalpha = (Omega' T_round - Omega T_round') T_decode / T_round^2, with Omega' = sum_i i alpha^(i-1) and
    T_round' = B (1 - A_gamma)^(B-1) gamma alpha^(gamma-1) Delta_2; dS/dT = -S / T_round for the costs of a round.
    Where a round takes its verification alone (`is_verification_alone`), dS/dT_draft and T_round' are 0.
    """
    rate, drafts = probabilities("alpha", alpha), costs.gammas
    rows = whole_numbers("batch_size", batch_size, minimum=1)
    steps = drafts if draft_steps is None else whole_numbers("draft_steps", draft_steps, minimum=0)
    accepted = acceptance_iid(rate, drafts)
    t_round, s = round_times_s(costs, accepted, batch_size=rows), speedups(costs, accepted, batch_size=rows)
    counts = np.where(is_verification_alone(costs, accepted, batch_size=rows), 0.0, 1.0)
    full_slope = drafts * rate ** (drafts - 1)
    catch_up = np.zeros(()) if costs.t_draft_catch_up_s is None else costs.t_draft_catch_up_s[..., np.newaxis]
    round_slope = counts * catch_up * rows * (1 - rate**drafts) ** (rows - 1) * full_slope
    omega = accepted.tokens_per_round
    return Sensitivities(
        per_alpha=np.asarray(s * (_omega_slope(rate, drafts) / omega - round_slope / t_round), dtype=np.float64),
        per_t_draft_s=np.asarray(-s * counts * steps / t_round, dtype=np.float64),
        per_t_verify_s=np.asarray(-s / t_round, dtype=np.float64),
        per_t_decode_s=np.asarray(s / costs.t_decode_s[..., np.newaxis], dtype=np.float64),
    )


def _omega_slope(rate: FloatArray, drafts: ArrayLike) -> FloatArray:
    """sum_{i<=gamma} i alpha^(i-1), by Horner's rule from the largest gamma down."""
    gamma = np.asarray(drafts)
    slope = np.zeros(np.broadcast_shapes(rate.shape, gamma.shape))
    for i in range(int(gamma.max()), 0, -1):
        slope = np.where(i <= gamma, i + rate * slope, 0.0)
    return slope
