"""Acceptance from given rates or counts: survival by position, Omega at any gamma, and whether one alpha describes it.

    A_i = P(the first i drafts of a round are all accepted)        Omega(gamma) = 1 + sum_{i <= gamma} A_i

Survival depends on where rounds start, hence on gamma: rates taken at one gamma measure that one, interpolate those
below and extrapolate those above with the last conditional rate.  Accepted / drafted is never taken for alpha:

    alpha_accepted   sum accepted / sum tested   a draft is tested when those before it were accepted: the maximum of
                                                    the likelihood prod_i alpha^accepted_i (1 - alpha)^rejected_i
    alpha_omega    the alpha whose Omega(gamma) is the measured one; Leviathan et al., arXiv 2211.17192, equation 1

One alpha is held against one rate a position by the likelihood ratio G = 2 sum n ln(n / expected).

    >>> profile = profile_from_histogram([1, 1, 1, 1])
    >>> profile.survival.tolist(), profile.at([3]).tokens_per_round.tolist()
    ([0.75, 0.5, 0.25], [2.5])
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import FloatArray, IntArray, numbers, probabilities, survival_rates, whole_numbers
from specgauge.model.sensitivity import alpha_from_tokens_per_round, refuse_more_than_a_chain
from specgauge.model.settings import Provenance
from specgauge.model.speedup import survival_iid, tokens_per_round_by_gamma, tokens_per_round_iid

Source = Literal["alpha", "conditional", "marginal", "counts", "histogram", "totals", "tokens_per_round"]
Number = TypeVar("Number", np.float64, np.int64)

MATERIAL_ERROR = 0.01
"""An error of Omega below this fraction does not make one alpha misleading, however significant."""
SIGNIFICANCE = 0.05
CONFIDENCE = 0.9
"""Of the interval of alpha_accepted."""


@dataclass(frozen=True, kw_only=True)
class OneAlpha:
    """The one-number summary of an acceptance profile and how far it can be trusted."""

    alpha_accepted: float
    """Accepted over accepted plus rejected."""
    low: float | None
    """Lower end of Wilson's interval of alpha_accepted, rounds taken as independent; None without counts."""
    high: float | None
    confidence: float
    alpha_omega: float
    """The only alpha that reproduces Omega at the gamma drafted at."""
    p_value: float | None
    """Probability of counts at least this uneven if one alpha were true; None without counts or with one position."""
    worst_error: float
    """Largest |Omega by alpha_accepted / Omega measured - 1| over gamma = 1 … the gamma drafted at."""
    worst_gamma: int

    @property
    def misleads(self) -> bool:
        """One alpha errs by more than 1 % on Omega, and chance does not explain it."""
        return self.worst_error > MATERIAL_ERROR and (self.p_value is None or self.p_value < SIGNIFICANCE)

    @property
    def verdict(self) -> str:
        """One line: does one alpha do, and if not, how wrong it is and where."""
        error = f"tokens per round off by {100 * self.worst_error:.1f} % at gamma {self.worst_gamma}"
        if self.misleads:
            return f"one alpha misleads: {error}; use the rates per position"
        if self.worst_error > MATERIAL_ERROR:
            return f"one alpha is not ruled out by these few counts ({error})"
        return "one alpha describes these rates"


@dataclass(frozen=True, kw_only=True)
class AcceptanceProfile:
    """Survival by gamma, with what one alpha would make of it."""

    source: Source
    by_gamma: FloatArray
    """(D, D): row g - 1 holds A_1 … A_g of rounds that draft g, zeros after; D is the gamma drafted at."""
    row_provenance: tuple[Provenance, ...]
    """How each row is known, (D,): counts taken at one gamma measure the last row and interpolate those above it."""
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
        """A_1 … A_D at the gamma drafted at."""
        return np.asarray(self.by_gamma[-1], dtype=np.float64)

    def survival_at(self, gamma: int) -> FloatArray:
        """A_1 … A_gamma of rounds that draft `gamma`, shape (gamma,)."""
        if gamma <= self.gamma_drafted:
            return self.by_gamma[gamma - 1, :gamma]
        beyond = self.survival[-1] * self.tail_rate ** np.arange(1, gamma - self.gamma_drafted + 1)
        return np.concatenate([self.survival, beyond])

    def at(self, gammas: ArrayLike) -> Acceptance:
        """What rounds of these gammas yield, (G,)."""
        drafts = _gammas(gammas)
        survival = [self.survival_at(g) for g in drafts]
        return Acceptance(
            gammas=np.array(drafts),
            tokens_per_round=np.array([1.0 + own.sum() for own in survival]),
            full_acceptance=np.array([own[-1] for own in survival]),
            provenance=np.array([int(self._provenance(g)) for g in drafts]),
        )

    def _provenance(self, gamma: int) -> Provenance:
        if gamma <= self.gamma_drafted:
            return self.row_provenance[gamma - 1]
        return Provenance.ASSUMED if self.source == "alpha" else Provenance.EXTRAPOLATED


def profile_from_alpha(alpha: float) -> AcceptanceProfile:
    """The i.i.d. profile A_i = alpha^i, assumed at every gamma."""
    survival = survival_iid(alpha, 1)
    if survival.ndim != 1:
        raise ValueError(f"alpha: expected one number, got {survival[..., 0].size} values")
    return _profile("alpha", survival, Provenance.ASSUMED, Provenance.ASSUMED, tail_rate=float(survival[0]), fit=None)


def profile_from_conditional(rates: ArrayLike) -> AcceptanceProfile:
    """From P(draft i accepted given that those before it were), i = 1 … gamma; these may rise and fall."""
    given = _one_list("conditional rates", probabilities("conditional rates", rates))
    return _from_survival("conditional", np.cumprod(given, dtype=np.float64), tail_rate=float(given[-1]))


def profile_from_marginal(rates: ArrayLike) -> AcceptanceProfile:
    """From A_i themselves (accepted at position i over rounds, as vLLM counts), i = 1 … gamma; never increasing."""
    given = _one_list("rates", survival_rates("rates", np.atleast_1d(rates)))
    return _from_survival("marginal", given)


def profile_from_counts(accepted: ArrayLike, *, rounds: int) -> AcceptanceProfile:
    """From drafts accepted per position (gamma,) in `rounds` rounds of gamma drafts.

    Position i was tested accepted_(i-1) times.

    Raises:
        ValueError: counts that no chain of drafts can have, or no round.
    """
    passed = _one_list("accepted", whole_numbers("accepted", accepted, minimum=0))
    tested = np.concatenate([[int(whole_numbers("rounds", rounds, minimum=1))], passed[:-1]])
    rises = np.flatnonzero(passed > tested)
    if rises.size:
        i = int(rises[0])
        before = "rounds" if i == 0 else f"accepted at position {i}"
        raise ValueError(
            f"accepted (position {i + 1}): expected counts that never increase, got {passed[i]} for {tested[i]} "
            f"{before}; a draft tree or a sum over positions is not a count per position"
        )
    conditional = passed / np.maximum(tested, 1)
    return _from_survival(
        "counts",
        np.cumprod(conditional, dtype=np.float64),
        tail_rate=float(conditional[np.flatnonzero(tested)[-1]]),
        counts=(passed, tested),
    )


def profile_from_histogram(rounds_by_accepted: ArrayLike, *, gamma: int | None = None) -> AcceptanceProfile:
    """From the number of rounds that accepted 0, 1, … gamma drafts (bonus left out), all drafted at `gamma`.

    `gamma` defaults to the length of the list less one; give it when the longest runs never happened.

    Raises:
        ValueError: rounds that accepted more than gamma, as in a draft tree, or no rounds.
    """
    counts = _one_list("histogram", whole_numbers("histogram", rounds_by_accepted, minimum=0))
    drafted = counts.size - 1 if gamma is None else int(whole_numbers("gamma", gamma, minimum=1))
    if drafted < 1:
        raise ValueError("histogram: expected rounds that accepted 0, 1, … gamma drafts, got one entry")
    if np.any(counts[drafted + 1 :]):
        longest = int(np.flatnonzero(counts)[-1])
        raise ValueError(
            f"histogram: expected at most gamma, got rounds with {longest} accepted at gamma {drafted}; the bonus "
            "token is left out, and draft trees are not covered"
        )
    at_least = np.zeros(drafted + 1, dtype=np.int64)
    at_least[: counts.size] = np.cumsum(counts[: drafted + 1][::-1])[::-1]
    profile = profile_from_counts(at_least[1:], rounds=int(at_least[0]))
    return replace(profile, source="histogram")


def profile_from_totals(*, accepted: int, drafted: int, rounds: int) -> AcceptanceProfile:
    """From sums only: Omega(gamma) = 1 + accepted / rounds is measured at gamma = drafted / rounds, its shape is not.

    The shape is filled in with the one alpha that reproduces Omega (`alpha_omega`), which is not accepted / drafted.

    Raises:
        ValueError: a drafted count that is no whole multiple of rounds, or more accepted than drafted.
    """
    n = int(whole_numbers("rounds", rounds, minimum=1))
    proposed = int(whole_numbers("drafted", drafted, minimum=1))
    passed = int(whole_numbers("accepted", accepted, minimum=0))
    if proposed % n:
        raise ValueError(
            f"drafted: expected a whole gamma times rounds, got {proposed} in {n} rounds; where gamma varied, give "
            "counts per position or single rounds"
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

    Raises:
        ValueError: lengths that differ, gammas that do not rise, or more than gamma + 1 tokens a round.
    """
    drafts = np.array(_gammas(gammas))
    omega = _one_list("tokens_per_round", numbers("tokens_per_round", tokens_per_round))
    if omega.shape != drafts.shape or np.any(np.diff(drafts) <= 0):
        raise ValueError(
            f"tokens_per_round: expected one for each of gammas that rise, got {omega.size} values for gammas "
            f"{drafts.tolist()}"
        )
    alphas = np.atleast_1d(alpha_from_tokens_per_round(omega, drafts))
    every = np.arange(1, drafts[-1] + 1)
    by_gamma = np.tril(survival_iid(alphas[np.searchsorted(drafts, every)], int(drafts[-1])))
    return AcceptanceProfile(
        source="tokens_per_round",
        by_gamma=by_gamma,
        row_provenance=tuple(Provenance.MEASURED if g in drafts else Provenance.ASSUMED for g in every),
        tail_rate=float(alphas[-1]),
        fit=None,
    )


def run_distribution(survival: ArrayLike) -> FloatArray:
    """P(exactly j drafts accepted), j = 0 … gamma: A_j - A_{j+1}, and A_gamma last; (…, gamma) -> (…, gamma + 1)."""
    rates = survival_rates("survival", survival)
    ends = np.zeros((*rates.shape[:-1], 1))
    padded = np.concatenate([ends + 1.0, rates, ends], axis=-1)
    return np.asarray(padded[..., :-1] - padded[..., 1:], dtype=np.float64)


def _gammas(gammas: ArrayLike) -> list[int]:
    return [int(g) for g in np.atleast_1d(whole_numbers("gammas", gammas, minimum=1))]


def wilson_interval(rate: float, trials: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion; Wilson 1927, J. Am. Stat. Assoc. 22, 209."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2) / (1 + z * z / trials)
    return min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))


def one_alpha(survival: FloatArray, counts: tuple[IntArray, IntArray] | None = None) -> OneAlpha:
    """Fit one alpha to A_1 … A_gamma, or to the counts they come from: (accepted, tested), (gamma,) each.

    Without counts a round accepts sum A_i of 1 + A_1 + … + A_(gamma-1) tested drafts.
    """
    low = high = p_value = None
    rate = float(survival.sum() / (1.0 + survival[:-1].sum()))
    if counts is not None:
        accepted, tested = counts
        rate = float(accepted.sum()) / int(tested.sum())
        low, high = wilson_interval(rate, int(tested.sum()), CONFIDENCE)
        p_value = _uneven_p_value(accepted, tested, rate)
    omega = tokens_per_round_by_gamma(survival)
    errors = np.abs(tokens_per_round_iid(rate, np.arange(1, survival.size + 1)) / omega - 1.0)
    worst = int(np.argmax(errors))
    return OneAlpha(
        alpha_accepted=rate,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        alpha_omega=float(alpha_from_tokens_per_round(omega[-1], survival.size)),
        p_value=p_value,
        worst_error=float(errors[worst]),
        worst_gamma=worst + 1,
    )


def _uneven_p_value(accepted: IntArray, tested: IntArray, rate: float) -> float | None:
    passed, tried = accepted[tested > 0].astype(np.float64), tested[tested > 0].astype(np.float64)
    if tried.size < 2:
        return None
    if rate in (0.0, 1.0):
        return 1.0
    from scipy.special import chdtrc, xlogy

    rejected = tried - passed
    statistic = 2 * np.sum(xlogy(passed, passed / (tried * rate)) + xlogy(rejected, rejected / (tried * (1 - rate))))
    return float(chdtrc(tried.size - 1, max(0.0, float(statistic))))


def _from_survival(
    source: Source,
    survival: FloatArray,
    *,
    tail_rate: float | None = None,
    counts: tuple[IntArray, IntArray] | None = None,
) -> AcceptanceProfile:
    """A profile measured at one gamma; its tail goes on with the last conditional rate unless told otherwise."""
    if tail_rate is None:
        before = survival[-2] if survival.size > 1 else 1.0
        tail_rate = float(survival[-1] / before) if before > 0 else 0.0
    fit = one_alpha(survival, counts)
    return _profile(source, survival, Provenance.INTERPOLATED, Provenance.MEASURED, tail_rate=tail_rate, fit=fit)


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
        tail_rate=tail_rate,
        fit=fit,
    )


def _one_list(name: str, values: NDArray[Number]) -> NDArray[Number]:
    flat = np.atleast_1d(values)
    if flat.ndim != 1 or flat.size == 0:
        raise ValueError(f"{name}: expected one list with a number for each position, got shape {values.shape}")
    return flat
