"""One alpha for everything: its maximum likelihood from counts, and whether it misleads.

A draft at position i is judged when the i - 1 before it were accepted.  If every judged draft passes with the same
probability, the likelihood of the counts is prod_i alpha^accepted_i (1 - alpha)^(judged_i - accepted_i), so

    alpha_judged = sum accepted / sum judged        (never accepted / drafted: most drafts of a round are not judged)
    alpha_omega  = the alpha whose Omega(gamma) is the measured one

The fit is tested by the likelihood ratio G = 2 sum n ln(n / expected) of one rate against one rate per position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import FloatArray, numbers, survival_rates, whole_numbers
from specgauge.model.sensitivity import alpha_from_tokens_per_round
from specgauge.model.speedup import tokens_per_round_by_gamma, tokens_per_round_iid

MATERIAL_ERROR = 0.01
"""An error of Omega below this fraction does not make one alpha misleading, however significant."""
SIGNIFICANCE = 0.05


@dataclass(frozen=True, kw_only=True)
class OneAlpha:
    """The one-number summary of an acceptance profile and how far it can be trusted."""

    alpha_judged: float
    """Accepted over accepted plus rejected: the maximum of the likelihood."""
    low: float | None
    """Lower end of the interval of alpha_judged; None without counts.

    From counts it is Wilson's, rounds taken as independent; from trajectories it takes prompts as independent."""
    high: float | None
    confidence: float
    alpha_omega: float
    """The only alpha that reproduces Omega at the gamma drafted at."""
    p_value: float | None
    """Probability of counts at least this uneven if one alpha were true; None without counts or with one position."""
    worst_error: float
    """Largest |Omega by alpha_judged / Omega measured - 1| over gamma = 1 … the gamma drafted at."""
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


def one_alpha_from_counts(accepted: ArrayLike, judged: ArrayLike, *, confidence: float = 0.9) -> OneAlpha:
    """Fit one alpha to counts per position: accepted (gamma,) of judged (gamma,).

    Raises ValueError for no judged draft, for more accepted than judged and for a confidence outside (0, 1).
    """
    passed = whole_numbers("accepted", accepted, minimum=0)
    tried = whole_numbers("judged", judged, minimum=0)
    total = int(tried.sum())
    if total == 0:
        raise ValueError("judged: found no judged draft, allowed: at least one; without one no rate is known")
    over = np.flatnonzero(passed > tried)
    if over.size:
        i = int(over[0])
        raise ValueError(
            f"accepted (position {i + 1}): found {passed[i]} of {tried[i]} judged, allowed: at most {tried[i]}"
        )
    rate = float(passed.sum()) / total
    low, high = wilson_interval(rate, total, confidence)
    survival = np.asarray(np.cumprod(passed / np.maximum(tried, 1)), dtype=np.float64)
    return _summary(
        survival, rate, low=low, high=high, confidence=confidence, p_value=_uneven_p_value(passed, tried, rate)
    )


def one_alpha_from_survival(survival: ArrayLike, *, confidence: float = 0.9) -> OneAlpha:
    """The same of rates without counts: a round accepts sum A_i of 1 + A_1 + … + A_(gamma-1) judged drafts."""
    rates = survival_rates("survival", survival)
    rate = float(rates.sum() / (1.0 + rates[:-1].sum()))
    return _summary(rates, rate, low=None, high=None, confidence=confidence, p_value=None)


def one_alpha_from_clusters(
    accepted: ArrayLike, judged: ArrayLike, survival: ArrayLike, *, confidence: float = 0.9
) -> OneAlpha:
    """The same of expected counts by cluster (prompt), accepted (P,) of judged (P,), beside the survival they gave.

    The rate is the pooled ratio; its interval is the normal one of a ratio whose clusters are independent (None for a
    single cluster).  Raises ValueError where nothing was judged.
    """
    passed, tried = numbers("accepted", accepted), numbers("judged", judged)
    if not tried.sum() > 0:
        raise ValueError("judged: found no judged draft, allowed: at least one; without one no rate is known")
    rate = float(passed.sum() / tried.sum())
    low = high = None
    if tried.size > 1:
        spread = math.sqrt(float(np.sum((passed - rate * tried) ** 2)) * tried.size / (tried.size - 1))
        half = NormalDist().inv_cdf(0.5 + confidence / 2) * spread / float(tried.sum())
        low, high = max(0.0, rate - half), min(1.0, rate + half)
    rates = survival_rates("survival", survival)
    return _summary(rates, rate, low=low, high=high, confidence=confidence, p_value=None)


def alpha_from_accepted_over_drafted(ratio: ArrayLike, gamma: ArrayLike) -> FloatArray:
    """The alpha behind an accepted / drafted ratio at a fixed gamma: Omega = 1 + gamma * ratio, inverted."""
    return alpha_from_tokens_per_round(1.0 + numbers("accepted / drafted", ratio) * np.asarray(gamma), gamma)


def wilson_interval(rate: float, trials: int, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion; Wilson 1927, J. Am. Stat. Assoc. 22, 209."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: found {confidence:g}, allowed: above 0 and below 1")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + (z / (2 * trials)) ** 2) / (1 + z * z / trials)
    return min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))


def _summary(
    survival: FloatArray,
    rate: float,
    *,
    low: float | None,
    high: float | None,
    confidence: float,
    p_value: float | None,
) -> OneAlpha:
    gammas = np.arange(1, survival.size + 1)
    omega = tokens_per_round_by_gamma(survival)
    errors = np.abs(tokens_per_round_iid(rate, gammas) / omega - 1.0)
    worst = int(np.argmax(errors))
    return OneAlpha(
        alpha_judged=rate,
        low=low,
        high=high,
        confidence=confidence,
        alpha_omega=float(alpha_from_tokens_per_round(omega[-1], survival.size)),
        p_value=p_value,
        worst_error=float(errors[worst]),
        worst_gamma=worst + 1,
    )


def _uneven_p_value(passed: FloatArray | ArrayLike, tried: FloatArray | ArrayLike, rate: float) -> float | None:
    accepted = np.asarray(passed, dtype=np.float64)
    judged = np.asarray(tried, dtype=np.float64)
    accepted, judged = accepted[judged > 0], judged[judged > 0]
    if judged.size < 2:
        return None
    if rate in (0.0, 1.0):
        return 1.0
    from scipy.special import chdtrc, xlogy

    rejected = judged - accepted
    statistic = 2 * np.sum(
        xlogy(accepted, accepted / (judged * rate)) + xlogy(rejected, rejected / (judged * (1 - rate)))
    )
    return float(chdtrc(judged.size - 1, max(0.0, float(statistic))))
