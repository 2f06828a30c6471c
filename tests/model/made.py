"""Costs and acceptance as wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.costs import RoundCosts
from specgauge.model.settings import Provenance


def made_costs(gammas: ArrayLike, **times_s: ArrayLike) -> RoundCosts:
    """Measured ones, from the times by their names in `RoundCosts`."""
    arrays: dict[str, Any] = {name: np.asarray(values, dtype=np.float64) for name, values in times_s.items()}
    return RoundCosts(gammas=np.asarray(gammas), provenance=np.array(Provenance.MEASURED), **arrays)


def made_acceptance(tokens_per_round: ArrayLike, full_acceptance: ArrayLike, **changes: Any) -> Acceptance:
    """Ω (…, G) and A_γ, measured, of every γ from 1 where nothing else is said."""
    omega = np.asarray(tokens_per_round, dtype=np.float64)
    values: dict[str, Any] = {
        "gammas": np.arange(1, omega.shape[-1] + 1),
        "tokens_per_round": omega,
        "full_acceptance": np.asarray(full_acceptance, dtype=np.float64),
        "provenance": np.zeros(omega.shape[-1], dtype=np.int64),
    }
    return Acceptance(**values | changes)
