"""Prediction: an acceptance profile joined with costs gives S(gamma), its best gamma, and how each part is known.

    S(…, gamma) = Omega(gamma) T_decode(…) / (C(…, gamma) + pi Delta_2(…) + T_verify(…, gamma) + epsilon(…, gamma))

Costs of any leading shape (batch, context, …) go in, arrays of that shape and one axis of gammas come out.

    predict(profile_from_marginal([0.8, 0.6]), table.at(8, [512, 4096], [1, 2]), batch_size=8).best_gamma
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.profiles import AcceptanceProfile
from specgauge.model.checks import FloatArray, IntArray, whole_numbers
from specgauge.model.costs import CostsAt
from specgauge.model.speedup import best_gamma, recommended_gamma, round_time_s, speedup, within_limits

OPTIMISTIC = "optimistic: overhead not measured"
"""The label of a speed-up whose epsilon is unknown."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """S by gamma for every place costs were given at; (…) is the shape of the costs without gamma."""

    gammas: IntArray
    tokens_per_round: FloatArray
    """(G,)."""
    full_acceptance: FloatArray
    """A_gamma, (G,)."""
    t_round_s: FloatArray
    """(…, G)."""
    speedup: FloatArray
    """(…, G)."""
    best_gamma: IntArray
    """(…); 0 where no gamma is within the limits."""
    recommended_gamma: IntArray
    acceptance_known: IntArray
    """`Known` of Omega, (G,)."""
    cost_known: IntArray
    """`Known` of the costs, (…, G)."""
    optimistic: bool
    """No decoder has measured epsilon."""


def predict(
    profile: AcceptanceProfile, costs: CostsAt, *, batch_size: ArrayLike = 1, max_itl_s: float | None = None
) -> Prediction:
    """Join acceptance and costs; `batch_size` (…) weighs the catch-up, `max_itl_s` bounds the gammas to choose from."""
    rows = whole_numbers("batch_size", batch_size, minimum=1)
    omega, full = profile.tokens_per_round(costs.gammas), profile.full_acceptance(costs.gammas)
    t_round = round_time_s(
        t_draft_total_s=costs.t_draft_total_s,
        t_verify_s=costs.t_verify_s,
        t_draft_catch_up_s=costs.t_draft_catch_up_s[..., np.newaxis],
        full_acceptance=full,
        batch_size=rows[..., np.newaxis],
        t_overhead_s=costs.t_overhead_s,
    )
    gain = speedup(omega, t_decode_s=costs.t_decode_s[..., np.newaxis], t_round_s=t_round)
    allowed = within_limits(t_round_s=t_round, max_itl_s=max_itl_s)
    return Prediction(
        gammas=costs.gammas,
        tokens_per_round=omega,
        full_acceptance=full,
        t_round_s=t_round,
        speedup=gain,
        best_gamma=best_gamma(gain, costs.gammas, allowed),
        recommended_gamma=recommended_gamma(gain, costs.gammas, allowed),
        acceptance_known=np.array([int(k) for k in profile.known(costs.gammas)]),
        cost_known=costs.known,
        optimistic=costs.t_overhead_s is None,
    )
