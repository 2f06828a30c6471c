"""What the renewal pass over texts returns: sums per text, and the pooled ratios made of them.

    Ω(γ)        = (starts + Σ_j survival_j - lost_bonus) / starts      rounds with gamma_max positions left: for S
    Ω_finite(γ) = tokens / rounds                                      whole texts, the shrunk last rounds included
    A_j(γ)      = survival_j / starts                                  as measured at that γ

Ratios are pooled (sum over sum, never a mean of ratios); a ratio without a start is NaN inside the array.

N texts or prompts, G gammas, D gamma_max.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, IntArray
from specgauge.model.texts import sum_by_prompt


@dataclass(frozen=True, kw_only=True)
class RenewalResult:
    """Expected counts per text (N, G), given the text; add them up over texts or prompts, then divide."""

    gammas: IntArray
    """(G,) drafts per round."""
    gamma_max: int
    """D: starts in the window have this many positions left before the length limit."""
    tokens: IntArray
    """(N,) tokens of each text after the one sampled from the prefill."""
    rounds: FloatArray
    """E[rounds] of the whole text, a plain last step included."""
    starts: FloatArray
    """E[rounds that start in the window]."""
    survival: FloatArray
    """(N, G, D) E[rounds from the window whose first j drafts are all accepted]; zero for j over γ."""
    lost_bonus: FloatArray
    """E[rounds from the window that end on an accepted EOS], which commit no bonus."""
    judged: FloatArray
    """E[positions judged], Σ u_t, of the whole text."""
    judged_accepted: FloatArray
    """E[drafts accepted], Σ u_t a_t, of the whole text."""
    judged_overlap: FloatArray
    """Σ u_t o_t: equals judged_accepted in expectation when the text comes from the recomputed chain."""
    catch_ups: FloatArray
    """E[drafting rounds that follow a fully accepted one], whose first draft step feeds two tokens."""
    time_s: FloatArray | None
    """E[seconds] of the whole text, if costs were given."""
    rounds_by_drafts: FloatArray | None = None
    """(N, G, D + 1) E[rounds from the window that verify k drafts], k = 0 … D; None where every one verifies γ."""

    @property
    def committed(self) -> FloatArray:
        """(N, G) expected tokens committed by the rounds that start in the window: the numerator of Ω."""
        return np.asarray(self.starts + self.survival.sum(axis=2) - self.lost_bonus, dtype=np.float64)

    @property
    def full_acceptance(self) -> FloatArray:
        """(N, G) expected rounds from the window that accept all γ drafts: the numerator of A_γ."""
        picked = self.survival[:, np.arange(self.gammas.size), np.maximum(self.gammas, 1) - 1]
        return np.where(self.gammas > 0, picked, self.starts)

    def tokens_per_round(self) -> FloatArray:
        """Ω(γ), (G,), pooled over texts: rounds with gamma_max positions left; NaN where there is none."""
        return _ratio(self.committed.sum(axis=0), self.starts.sum(axis=0))

    def tokens_per_round_finite(self) -> FloatArray:
        """Tokens per round over whole finite texts, (G,); NaN without tokens."""
        return _ratio(np.full(self.gammas.size, float(self.tokens.sum())), self.rounds.sum(axis=0))

    def survival_rates(self) -> FloatArray:
        """A_j(γ), (G, D): P(the first j drafts of a round are all accepted) at that γ; NaN for j over γ.

        Each rate is unbiased by itself; in small samples they need not fall in j, since A_j averages overlaps of other
        positions than A_{j+1} does.
        """
        rates = _ratio(self.survival.sum(axis=0), self.starts.sum(axis=0)[:, None])
        rates[np.arange(self.gamma_max) >= self.gammas[:, None]] = np.nan
        return rates

    def by_prompt(self, prompts: ArrayLike) -> RenewalResult:
        """The same sums by prompt, prompts (N,) in rising order: the clusters of standard errors and bootstrap."""
        return RenewalResult(
            gammas=self.gammas,
            gamma_max=self.gamma_max,
            tokens=sum_by_prompt(self.tokens, prompts).astype(np.int64),
            rounds=sum_by_prompt(self.rounds, prompts),
            starts=sum_by_prompt(self.starts, prompts),
            survival=sum_by_prompt(self.survival, prompts),
            lost_bonus=sum_by_prompt(self.lost_bonus, prompts),
            judged=sum_by_prompt(self.judged, prompts),
            judged_accepted=sum_by_prompt(self.judged_accepted, prompts),
            judged_overlap=sum_by_prompt(self.judged_overlap, prompts),
            catch_ups=sum_by_prompt(self.catch_ups, prompts),
            time_s=None if self.time_s is None else sum_by_prompt(self.time_s, prompts),
            rounds_by_drafts=None if self.rounds_by_drafts is None else sum_by_prompt(self.rounds_by_drafts, prompts),
        )


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    top, bottom = np.broadcast_arrays(numerator, denominator)
    result = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=bottom > 0)
    return result
