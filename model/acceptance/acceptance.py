"""What rounds yield: tokens per round and full acceptance by gamma, whatever they were taken from.

    Omega(gamma)    tokens a round commits, the bonus or replacement included
    A_gamma         P(a round accepts all its drafts)

Made by `AcceptanceProfile.at` (rates, counts, a histogram: `specgauge.model.acceptance.profiles`),
`specgauge.model.sensitivity.acceptance_iid` (one alpha) and
`specgauge.sweeps.analysis.cell_estimate.recorded_acceptance` (recorded texts).  With
`specgauge.model.costs.RoundCosts` it is all that `specgauge.model.speedup` needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from specgauge.model.checks import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """Tokens per round by gamma, the same at every batch size."""

    gammas: IntArray
    """(G,) rising."""
    tokens_per_round: FloatArray
    """(…, G) Omega; NaN where it is not known."""
    full_acceptance: FloatArray
    """(…, G) A_gamma."""
    provenance: IntArray
    """(G,) `Provenance` of Omega."""
    accepted_draft_tokens: FloatArray | None = None
    """(G,) drafts accepted in a round: Omega - 1, and the bonus that a round ending on an accepted EOS lacks; None
    where nothing tells how many rounds do."""
    draft_count_distribution: FloatArray | None = None
    """(…, G, D + 1) P(a round verifies k drafts), k = 0 … D; None where every round of gamma verifies gamma."""
    prompts: tuple[int, ...] = ()
    """Numbers of the prompts it was recorded on, which a bootstrap draws; empty where it was given."""

    @property
    def is_known(self) -> BoolArray:
        """(G,) whether the estimate of Omega is known."""
        return np.asarray(np.isfinite(self.estimate.tokens_per_round), dtype=np.bool_)

    @property
    def drafts_per_round(self) -> FloatArray:
        """(…, G) drafts that a round verifies on average; NaN where it is not known."""
        if self.draft_count_distribution is None:
            return np.broadcast_to(self.gammas.astype(np.float64), self.tokens_per_round.shape)
        return np.asarray(
            self.draft_count_distribution @ np.arange(self.draft_count_distribution.shape[-1]), dtype=np.float64
        )

    def first(self, rows: int) -> Acceptance:
        """The same with the first of its 1 + R rows alone; all of it where it has no replicates."""
        return self._of_rows(slice(rows))

    @property
    def estimate(self) -> Acceptance:
        """The same without replicates, (G,)."""
        return self._of_rows(0)

    def _of_rows(self, rows: int | slice) -> Acceptance:
        def cut(values: FloatArray, axes: int) -> FloatArray:
            return np.asarray(values[rows]) if values.ndim > axes else values

        shares = self.draft_count_distribution
        return replace(
            self,
            tokens_per_round=cut(self.tokens_per_round, 1),
            full_acceptance=cut(self.full_acceptance, 1),
            draft_count_distribution=None if shares is None else cut(shares, 2),
        )

    def only(self, gammas: Sequence[int] | IntArray) -> Acceptance:
        """The same for some of its gammas, in their order; ValueError for another gamma."""
        columns = [self.gammas.tolist().index(gamma) for gamma in np.asarray(gammas).tolist()]
        return replace(
            self,
            gammas=self.gammas[columns],
            tokens_per_round=self.tokens_per_round[..., columns],
            full_acceptance=self.full_acceptance[..., columns],
            provenance=self.provenance[columns],
            accepted_draft_tokens=None if self.accepted_draft_tokens is None else self.accepted_draft_tokens[columns],
            draft_count_distribution=None
            if self.draft_count_distribution is None
            else self.draft_count_distribution[..., columns, :],
        )
