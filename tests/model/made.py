"""Costs, acceptance and search objectives as wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.costs import RoundCosts
from specgauge.model.replay.replay import Interval
from specgauge.model.search.candidates import SearchObjective
from specgauge.model.settings import Provenance
from specgauge.model.speedup import survival_iid
from specgauge.model.validate import RatioError


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


def asked(tokens_per_round: ArrayLike, full_acceptance: ArrayLike, **changes: Any) -> SearchObjective:
    """A question from Ω (1 + R, G) and A_γ (G,), G every γ from 1."""
    return SearchObjective(acceptance=made_acceptance(tokens_per_round, full_acceptance, **changes))


def question(alpha: float, gamma_max: int, label: str = "") -> SearchObjective:
    """Every draft passes with probability alpha."""
    survival = survival_iid(alpha, gamma_max)
    return SearchObjective(acceptance=made_acceptance(1 + np.cumsum(survival)[None], survival), label=label)


def known(found: RatioError | Interval | None) -> tuple[float, float, float]:
    """(value, low, high)."""
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    return found.value, found.low, found.high
