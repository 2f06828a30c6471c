"""Acceptance as given or counted: survival by position, from rates, counts, histograms or rounds.

    A_i = P(the first i drafts of a round are all accepted) = prod of conditional rates
    Omega(gamma) = 1 + sum_{i <= gamma} A_i - P(the round ends on an accepted end of text)

Survival depends on where rounds start, hence on gamma: counts taken at one gamma measure that one, interpolate those
below and extrapolate those above with the last conditional rate; trajectories measure every gamma.  Profiles are built
by `specgauge.model.acceptance.profiles`.

Acceptance profiles from whatever was measured.

One alpha, rates per position (conditional or marginal), counts (per position, a histogram of accepted lengths, single
rounds, or bare totals), tokens per round by gamma, or trajectories: each gives an `AcceptanceProfile`, which knows
survival A_i and Omega(gamma) at any gamma and how it knows them.  Accepted / drafted is never taken for alpha.

    >>> profile = profile_from_histogram([1, 1, 1, 1])
    >>> profile.survival.tolist(), profile.tokens_per_round([3]).tolist()
    ([0.75, 0.5, 0.25], [2.5])
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.acceptance.alpha import (
    OneAlpha,
    one_alpha_from_clusters,
    one_alpha_from_counts,
    one_alpha_from_survival,
)
from specgauge.model.checks import FloatArray, numbers, probabilities, survival_rates, whole_numbers
from specgauge.model.provenance import Provenance
from specgauge.model.sensitivity import alpha_from_tokens_per_round, refuse_more_than_a_chain
from specgauge.model.speedup import survival_iid

Source = Literal[
    "alpha", "conditional", "marginal", "counts", "histogram", "rounds", "totals", "tokens_per_round", "trajectories"
]


@dataclass(frozen=True, kw_only=True)
class AcceptanceProfile:
    """Survival by gamma, with what one alpha would make of it."""

    source: Source
    by_gamma: FloatArray
    """(D, D): row g - 1 holds A_1 … A_g of rounds that draft g, zeros after; D is the gamma drafted at."""
    row_provenance: tuple[Provenance, ...]
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

    def at(self, gammas: ArrayLike) -> Acceptance:
        """What rounds of these gammas yield, (G,)."""
        drafts = gamma_list(gammas)
        return Acceptance(
            gammas=np.array(drafts),
            tokens_per_round=self.tokens_per_round(drafts),
            full_acceptance=self.full_acceptance(drafts),
            provenance=np.array([int(self._provenance(g)) for g in drafts]),
        )

    def _provenance(self, gamma: int) -> Provenance:
        if gamma <= self.gamma_drafted:
            return self.row_provenance[gamma - 1]
        return Provenance.ASSUMED if self.source == "alpha" else Provenance.EXTRAPOLATED


def gamma_list(gammas: ArrayLike) -> list[int]:
    """One gamma or several as whole numbers of at least 1; ValueError for anything else."""
    return [int(g) for g in np.atleast_1d(whole_numbers("gammas", gammas, minimum=1))]


Number = TypeVar("Number", np.float64, np.int64)


def profile_from_alpha(alpha: float) -> AcceptanceProfile:
    """The i.i.d. profile A_i = alpha^i, assumed at every gamma."""
    survival = survival_iid(alpha, 1)
    if survival.ndim != 1:
        raise ValueError(f"alpha: found {survival[..., 0].size} values, allowed: one number")
    return _profile("alpha", survival, Provenance.ASSUMED, Provenance.ASSUMED, tail_rate=float(survival[0]), fit=None)


def profile_from_conditional(rates: ArrayLike) -> AcceptanceProfile:
    """From P(draft i accepted given that those before it were), i = 1 … gamma; these may rise and fall."""
    given = _one_list("conditional rates", probabilities("conditional rates", rates))
    return _from_survival("conditional", _cumulative(given), tail_rate=float(given[-1]))


def profile_from_marginal(rates: ArrayLike) -> AcceptanceProfile:
    """From A_i themselves (accepted at position i over rounds, as vLLM counts), i = 1 … gamma; never increasing."""
    given = _one_list("rates", survival_rates("rates", np.atleast_1d(rates)))
    return _from_survival("marginal", given)


def profile_from_counts(
    accepted: ArrayLike, *, rounds: int | None = None, judged: ArrayLike | None = None, confidence: float = 0.9
) -> AcceptanceProfile:
    """From drafts accepted per position (gamma,), beside either the number of rounds or the drafts judged per position.

    With `rounds` every round drafted gamma tokens, so position i was judged accepted_(i-1) times.  With `judged`
    rounds may have drafted fewer; the profile ends at the last position that was judged.

    Raises ValueError where both or neither are given, for counts that no chain of drafts can have, for no round.
    """
    passed = _one_list("accepted", whole_numbers("accepted", accepted, minimum=0))
    if (rounds is None) == (judged is None):
        raise ValueError("rounds, judged: found both or neither, allowed: one of them beside the accepted counts")
    if judged is None:
        tried = np.concatenate([[int(whole_numbers("rounds", rounds or 0, minimum=1))], passed[:-1]])
        rises = np.flatnonzero(passed > tried)
        if rises.size:
            i = int(rises[0])
            before = "rounds" if i == 0 else f"accepted at position {i}"
            raise ValueError(
                f"accepted (position {i + 1}): found {passed[i]} for {tried[i]} {before}, allowed: counts that never "
                "increase; a draft tree or a sum over positions is not a count per position"
            )
    else:
        tried = _one_list("judged", whole_numbers("judged", judged, minimum=0))
        if tried.shape != passed.shape:
            raise ValueError(f"judged: found {tried.size} positions for {passed.size} in accepted, allowed: the same")
        depth = int(np.argmin(tried > 0)) if np.any(tried == 0) else tried.size
        passed, tried = passed[:depth], tried[:depth]
    fit = one_alpha_from_counts(passed, tried, confidence=confidence)
    conditional = passed / np.maximum(tried, 1)
    tail_rate = float(conditional[np.flatnonzero(tried)[-1]])
    return _from_survival("counts", _cumulative(conditional), tail_rate=tail_rate, fit=fit)


def profile_from_histogram(
    rounds_by_accepted: ArrayLike, *, gamma: int | None = None, confidence: float = 0.9
) -> AcceptanceProfile:
    """From the number of rounds that accepted 0, 1, … gamma drafts (bonus left out), all drafted at `gamma`.

    `gamma` defaults to the length of the list less one; give it when the longest runs never happened.

    Raises ValueError for rounds that accepted more than gamma, as in a draft tree, and for no rounds.
    """
    counts = _one_list("histogram", whole_numbers("histogram", rounds_by_accepted, minimum=0))
    drafted = counts.size - 1 if gamma is None else int(whole_numbers("gamma", gamma, minimum=1))
    if drafted < 1:
        raise ValueError("histogram: found one entry, allowed: rounds that accepted 0, 1, … gamma drafts")
    if np.any(counts[drafted + 1 :]):
        longest = int(np.flatnonzero(counts)[-1])
        raise ValueError(
            f"histogram: found rounds with {longest} accepted at gamma {drafted}, allowed: at most gamma; the bonus "
            "token is left out, and draft trees are not covered"
        )
    at_least = np.zeros(drafted + 1, dtype=np.int64)
    at_least[: counts.size] = np.cumsum(counts[: drafted + 1][::-1])[::-1]
    profile = profile_from_counts(at_least[1:], rounds=int(at_least[0]), confidence=confidence)
    return replace(profile, source="histogram")


def profile_from_rounds(accepted: ArrayLike, drafted: ArrayLike, *, confidence: float = 0.9) -> AcceptanceProfile:
    """From single rounds: drafts accepted (R,) and drafted (R,), gamma free to differ from round to round.

    Position i is judged in the rounds that drafted it and accepted the i - 1 before it (Kaplan and Meier's estimate).
    Where gamma varied, Omega at the largest gamma is interpolated, not measured.
    """
    runs = _one_list("accepted", whole_numbers("accepted", accepted, minimum=0))
    lengths = _one_list("drafted", whole_numbers("drafted", drafted, minimum=0))
    if runs.shape != lengths.shape:
        raise ValueError(f"drafted: found {lengths.size} rounds for {runs.size} in accepted, allowed: the same")
    over = np.flatnonzero(runs > lengths)
    if over.size:
        i = int(over[0])
        raise ValueError(f"accepted (round {i + 1}): found {runs[i]} of {lengths[i]} drafted, allowed: at most drafted")
    positions = np.arange(1, max(int(lengths.max()), 1) + 1)[:, np.newaxis]
    judged = np.sum((lengths >= positions) & (runs >= positions - 1), axis=-1)
    passed = np.sum(runs >= positions, axis=-1)
    profile = profile_from_counts(passed, judged=judged, confidence=confidence)
    known = (
        profile.row_provenance if np.all(lengths == lengths[0]) else (Provenance.INTERPOLATED,) * profile.gamma_drafted
    )
    return replace(profile, source="rounds", row_provenance=known)


def profile_from_totals(*, accepted: int, drafted: int, rounds: int) -> AcceptanceProfile:
    """From sums only: Omega(gamma) = 1 + accepted / rounds is measured at gamma = drafted / rounds, its shape is not.

    The shape is filled in with the one alpha that reproduces Omega (`alpha_omega`), which is not accepted / drafted.

    Raises ValueError for a drafted count that is no whole multiple of rounds and for more accepted than drafted.
    """
    n = int(whole_numbers("rounds", rounds, minimum=1))
    proposed = int(whole_numbers("drafted", drafted, minimum=1))
    passed = int(whole_numbers("accepted", accepted, minimum=0))
    if proposed % n:
        raise ValueError(
            f"drafted: found {proposed} in {n} rounds, allowed: a whole gamma times rounds; where gamma varied, "
            "give counts per position or single rounds"
        )
    gamma = proposed // n
    refuse_more_than_a_chain("1 + accepted / rounds", 1 + passed / n, gamma)
    alpha = float(alpha_from_tokens_per_round(1 + passed / n, gamma))
    return _profile(
        "totals", survival_iid(alpha, gamma), Provenance.ASSUMED, Provenance.MEASURED, tail_rate=alpha, fit=None
    )


def profile_from_tokens_per_round(gammas: ArrayLike, tokens_per_round: ArrayLike) -> AcceptanceProfile:
    """From Omega measured at each of some gammas, (G,) and (G,): exact there, its shape filled in by `alpha_omega`.

    Each gamma has its own alpha_omega; a gamma that was not measured takes that of the next larger one, assumed.

    Raises ValueError for lengths that differ, gammas that do not rise, and more than gamma + 1 tokens a round.
    """
    drafts = np.array(gamma_list(gammas))
    omega = _one_list("tokens_per_round", numbers("tokens_per_round", tokens_per_round))
    if omega.shape != drafts.shape or np.any(np.diff(drafts) <= 0):
        raise ValueError(
            f"tokens_per_round: found {omega.size} values for gammas {drafts.tolist()}, allowed: one for each of "
            "gammas that rise"
        )
    alphas = np.atleast_1d(alpha_from_tokens_per_round(omega, drafts))
    every = np.arange(1, drafts[-1] + 1)
    by_gamma = np.tril(survival_iid(alphas[np.searchsorted(drafts, every)], int(drafts[-1])))
    return AcceptanceProfile(
        source="tokens_per_round",
        by_gamma=by_gamma,
        row_provenance=tuple(Provenance.MEASURED if g in drafts else Provenance.ASSUMED for g in every),
        lost_bonus=np.zeros(every.size),
        tail_rate=float(alphas[-1]),
        fit=None,
    )


def profile_from_trajectories(
    acceptance: ArrayLike,
    overlap: ArrayLike,
    lengths: ArrayLike,
    ended_by_eos: ArrayLike,
    *,
    gamma_max: int,
    prompts: ArrayLike | None = None,
    length_limits: ArrayLike | None = None,
    confidence: float = 0.9,
) -> AcceptanceProfile:
    """From acceptance along N recorded texts: every gamma up to `gamma_max` is measured at its own rounds' starts.

    Arguments are those of `specgauge.model.acceptance.renewal.renewal`; `prompts` (N,) names the cluster of each text,
    by which the interval of alpha is taken (each text its own without it).

    Raises ValueError for what `renewal` refuses, and where no round has `gamma_max` positions left.
    """
    from specgauge.model.acceptance.renewal import renewal

    depth = int(whole_numbers("gamma_max", gamma_max, minimum=1))
    result = renewal(
        acceptance, overlap, lengths, ended_by_eos, np.arange(1, depth + 1), depth, length_limits=length_limits
    )
    starts = result.starts.sum(axis=0)
    if not np.all(starts > 0):
        longest = int(result.tokens.max(initial=0))
        raise ValueError(
            f"gamma_max: found {depth} for texts of at most {longest} tokens, allowed: a gamma_max that leaves rounds "
            "with that many positions left; take longer texts or a smaller gamma_max"
        )
    clusters = result if prompts is None else result.by_prompt(prompts)
    survival = np.nan_to_num(result.survival_rates())
    fit = one_alpha_from_clusters(
        clusters.judged_accepted[:, -1],
        clusters.judged[:, -1],
        np.minimum.accumulate(survival[-1]),
        confidence=confidence,
    )
    before = survival[-1, -2] if depth > 1 else 1.0
    return AcceptanceProfile(
        source="trajectories",
        by_gamma=survival,
        row_provenance=(Provenance.MEASURED,) * depth,
        lost_bonus=np.asarray(result.lost_bonus.sum(axis=0) / starts, dtype=np.float64),
        tail_rate=float(min(1.0, survival[-1, -1] / before)) if before > 0 else 0.0,
        fit=fit,
    )


def _from_survival(
    source: Source, survival: FloatArray, *, tail_rate: float | None = None, fit: OneAlpha | None = None
) -> AcceptanceProfile:
    """A profile measured at one gamma; its tail goes on with the last conditional rate unless told otherwise."""
    if tail_rate is None:
        before = survival[-2] if survival.size > 1 else 1.0
        tail_rate = float(survival[-1] / before) if before > 0 else 0.0
    summary = fit or one_alpha_from_survival(survival)
    return _profile(source, survival, Provenance.INTERPOLATED, Provenance.MEASURED, tail_rate=tail_rate, fit=summary)


def _profile(
    source: Source,
    survival: FloatArray,
    every: Provenance,
    at_drafted: Provenance,
    *,
    tail_rate: float,
    fit: OneAlpha | None,
) -> AcceptanceProfile:
    return AcceptanceProfile(
        source=source,
        by_gamma=np.tril(np.broadcast_to(survival, (survival.size, survival.size))),
        row_provenance=(*(every,) * (survival.size - 1), at_drafted),
        lost_bonus=np.zeros(survival.size),
        tail_rate=tail_rate,
        fit=fit,
    )


def _cumulative(conditional: FloatArray) -> FloatArray:
    return np.asarray(np.cumprod(conditional), dtype=np.float64)


def _one_list(name: str, values: NDArray[Number]) -> NDArray[Number]:
    flat = np.atleast_1d(values)
    if flat.ndim != 1 or flat.size == 0:
        raise ValueError(f"{name}: found shape {values.shape}, allowed: one list with a number for each position")
    return flat
