"""An acceptance profile: survival A_i and Omega(gamma) at any gamma, and how each is known.

    A_i = P(the first i drafts of a round are all accepted) = prod of conditional rates
    Omega(gamma) = 1 + sum_{i <= gamma} A_i - P(the round ends on an accepted end of text)

Survival depends on where rounds start, hence on gamma: counts taken at one gamma measure that one, interpolate those
below and extrapolate those above with the last conditional rate; trajectories measure every gamma.  Profiles are built
by `specgauge.model.profiles`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, whole_numbers
from specgauge.model.known import Known
from specgauge.model.one_alpha import OneAlpha

Source = Literal[
    "alpha", "conditional", "marginal", "counts", "histogram", "rounds", "totals", "tokens_per_round", "trajectories"
]


@dataclass(frozen=True, kw_only=True)
class AcceptanceProfile:
    """Survival by gamma, with what one alpha would make of it."""

    source: Source
    by_gamma: FloatArray
    """(D, D): row g - 1 holds A_1 … A_g of rounds that draft g, zeros after; D is the gamma drafted at."""
    row_known: tuple[Known, ...]
    """How each row is known, (D,): counts taken at one gamma measure the last row and interpolate those above it."""
    lost_bonus: FloatArray
    """(D,): probability, by gamma, that a round ends on an accepted end-of-text token and so has no bonus."""
    tail_rate: float
    """Conditional rate of every position beyond those measured."""
    fit: OneAlpha | None
    """One alpha fitted to the profile; None where the profile is one alpha or knows only totals."""

    @property
    def gamma_drafted(self) -> int:
        """The gamma the rates were taken at, and the last position measured."""
        return int(self.by_gamma.shape[0])

    @property
    def survival(self) -> FloatArray:
        """A_1 … A_D at the gamma drafted at; from few trajectories they need not fall everywhere."""
        return np.asarray(self.by_gamma[-1], dtype=np.float64)

    @property
    def conditional(self) -> FloatArray:
        """Rates of a position given that the drafts before it were accepted; 0 where none were."""
        before = np.concatenate([[1.0], self.survival[:-1]])
        return np.asarray(self.survival / np.where(before > 0, before, 1.0), dtype=np.float64)

    def survival_at(self, gamma: int) -> FloatArray:
        """A_1 … A_gamma of rounds that draft `gamma`, shape (gamma,)."""
        g = int(whole_numbers("gamma", gamma, minimum=1))
        if g <= self.gamma_drafted:
            return self.by_gamma[g - 1, :g]
        beyond = self.survival[-1] * self.tail_rate ** np.arange(1, g - self.gamma_drafted + 1)
        return np.concatenate([self.survival, beyond])

    def full_acceptance(self, gammas: ArrayLike) -> FloatArray:
        """A_gamma, the probability that a round accepts everything: (G,) -> (G,)."""
        return np.array([self.survival_at(g)[-1] for g in gamma_list(gammas)])

    def tokens_per_round(self, gammas: ArrayLike) -> FloatArray:
        """Omega(gamma) of each gamma: (G,) -> (G,)."""
        drafts = gamma_list(gammas)
        lost = [self.lost_bonus[min(g, self.gamma_drafted) - 1] for g in drafts]
        return np.array([1.0 + self.survival_at(g).sum() - loss for g, loss in zip(drafts, lost, strict=True)])

    def known(self, gammas: ArrayLike) -> list[Known]:
        """How Omega is known at each gamma: (G,)."""
        return [self._known(g) for g in gamma_list(gammas)]

    def _known(self, gamma: int) -> Known:
        if gamma <= self.gamma_drafted:
            return self.row_known[gamma - 1]
        return Known.ASSUMED if self.source == "alpha" else Known.EXTRAPOLATED


def gamma_list(gammas: ArrayLike) -> list[int]:
    """One gamma or several as whole numbers of at least 1; ValueError for anything else."""
    return [int(g) for g in np.atleast_1d(whole_numbers("gammas", gammas, minimum=1))]
