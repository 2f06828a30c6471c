"""A prediction held against what was decoded: errors of ratios, the fastest γ, and rounds expected and counted.

`ratio_error`: clusters are prompts; what one does to both ratios cancels.

    r = (Σ a / Σ b) / (Σ c / Σ d) − 1
    influence of cluster p on log(1 + r):  f (a_p − A b_p) / Σ a − g (c_p − C d_p) / Σ c,  A = Σ a / Σ b,  C = Σ c / Σ d

f and g are √(n / (n − 1)) with the n clusters of their side; the interval is Student's, with Satterthwaite's degrees of
freedom.  Nominal 95 % covered the truth in 93.5 to 95.1 % of 1,500 simulated experiments each, 3 to 48 clusters a side.

`PairedSpeeds`: which of the γ decoded side by side was fastest, and what another loses; n blocks, G gammas.

    share of best(γ) = speed(γ) / max_γ' speed(γ'),      speed(γ) = Σ_b committed_b(γ) / Σ_b seconds_b(γ)

The largest speed is sought anew in every replicate, so that the interval also covers which γ is the best.  *On these
prompts*, decoded again, blocks are drawn within each prompt (or batch of prompts); *on others like them*, prompts are
drawn with all their blocks.  Both are widened by √(n / (n - 1)) · t / z, with n blocks of a prompt, or n prompts.

`round_check`: given a text, the expected rounds Σ v_t (`specgauge.model.acceptance.renewal`) are the exact mean of what
the decoder that wrote it would count.

    z = Σ_p (counted_p − expected_p) / (√P · standard deviation of the differences)          P prompts

It is held against Student's t of P − 1 degrees: few prompts prove little, and neither does the same difference in a few
(a tie within rounding flips a greedy draft, and costs that text a round).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import BoolArray, FloatArray, IntArray, numbers, whole_numbers
from specgauge.model.stats.bootstrap import draw_prompts, expansion, percentile_interval, student_over_normal

_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class RatioError:
    """The relative difference of two pooled ratios."""

    value: float
    first: float
    second: float
    low: float | None
    """The interval; None where one of the two has a single cluster, which says nothing about others."""
    high: float | None


def holds_zero(low: float, high: float) -> bool:
    """Whether an interval of an error holds 0, but for rounding."""
    return low - _ROUNDING <= 0.0 <= high + _ROUNDING


def ratio_error(
    first: Mapping[int, tuple[float, float]], second: Mapping[int, tuple[float, float]], *, confidence: float = 0.95
) -> RatioError | None:
    """first: (numerator, denominator) by cluster, over second alike; None where either has nothing to divide.

    Raises:
        ValueError: a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected above 0 and below 1, got {confidence:g}")
    clusters = sorted(first.keys() | second.keys())
    sums = np.array([[*first.get(c, (0.0, 0.0)), *second.get(c, (0.0, 0.0))] for c in clusters]).reshape(-1, 4)
    total = sums.sum(axis=0)
    if not (total > 0).all():
        return None
    ratios = float(total[0] / total[1]), float(total[2] / total[3])
    value = ratios[0] / ratios[1] - 1.0
    inside = sums[:, [1, 3]] > 0
    low = high = None
    if int(inside.sum(axis=0).min()) > 1:
        influence = _influence(sums[:, :2], inside[:, 0]) - _influence(sums[:, 2:], inside[:, 1])
        reach = _reach(influence, inside, confidence)
        low, high = (1.0 + value) * math.exp(-reach) - 1.0, (1.0 + value) * math.exp(reach) - 1.0
    return RatioError(value=value, first=ratios[0], second=ratios[1], low=low, high=high)


def _influence(sums: FloatArray, inside: BoolArray) -> FloatArray:
    """(P,) of each cluster on the log of one pooled ratio, from its (numerator, denominator); n / (n − 1) in it."""
    top, bottom = sums.sum(axis=0)
    count = int(inside.sum())
    return np.asarray((sums[:, 0] - top / bottom * sums[:, 1]) / top * math.sqrt(count / (count - 1)))


def _reach(influence: FloatArray, inside: BoolArray, confidence: float) -> float:
    """Half of the interval of log(1 + r); inside (P, 2): which side has the cluster."""
    from scipy.special import stdtrit

    groups = [inside.all(axis=1), inside[:, 0] & ~inside[:, 1], inside[:, 1] & ~inside[:, 0]]
    variances = [(float((influence[group] ** 2).sum()), int(group.sum())) for group in groups]
    variance = sum(own for own, _ in variances)
    if variance == 0.0:
        return 0.0
    freedom = variance**2 / sum(own**2 / max(count - 1, 1) for own, count in variances)
    return float(stdtrit(freedom, 0.5 + confidence / 2)) * math.sqrt(variance)


REPLICATES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True, kw_only=True)
class ShareOfBest:
    """Speed at one γ over that of the fastest; half-widths of 95 % intervals, None where the blocks cannot say."""

    value: float
    """At most 1."""
    half_width: float | None
    """Had the same prompts been decoded again; None where none was decoded twice."""
    half_width_of_others: float | None
    """On other prompts like these; None with fewer than two."""


@dataclass(frozen=True, kw_only=True)
class PairedSpeeds:
    """Blocks that were decoded at every γ."""

    gammas: tuple[int, ...]
    committed: FloatArray
    """(n, G) tokens, above 0."""
    seconds: FloatArray
    """(n, G), above 0, in which they were committed."""
    prompts: IntArray
    """(n,) which prompts a block decoded, as one number."""

    def __post_init__(self) -> None:
        """Raise ValueError for shapes that do not fit, no block, or a value that is not above 0."""
        shape = (self.prompts.size, len(self.gammas))
        if self.committed.shape != shape or self.seconds.shape != shape or 0 in shape:
            raise ValueError(
                f"committed: expected (blocks, gammas), one of each at least, got shapes {self.committed.shape} and "
                f"{self.seconds.shape} of {self.prompts.size} blocks and {len(self.gammas)} gammas"
            )
        for name, values in (("committed", self.committed), ("seconds", self.seconds)):
            if not (values > 0).all():
                raise ValueError(f"{name}: expected values above 0, got {values.min():g}")

    def best(self) -> int:
        """The fastest γ, the smaller one of two that are equal."""
        return self.gammas[int(np.argmax(self.committed.sum(axis=0) / self.seconds.sum(axis=0)))]

    def share_of_best(self, gamma: int) -> ShareOfBest:
        """What one γ has of the speed of the fastest.

        Raises:
            ValueError: a γ that was not decoded.
        """
        own = self.gammas.index(gamma)

        def shares(weights: FloatArray) -> FloatArray:
            speeds = (weights @ self.committed) / (weights @ self.seconds)
            return np.asarray(speeds[:, own] / speeds.max(axis=1), dtype=np.float64)

        value = float(shares(np.ones((1, self.prompts.size)))[0])

        def half_width(drawn: tuple[FloatArray, float] | None) -> float | None:
            """Half the central interval, its spread on the log scale widened by the factor."""
            if drawn is None:
                return None
            low, high = percentile_interval(value * (shares(drawn[0]) / value) ** drawn[1], CONFIDENCE)
            return (min(1.0, float(high)) - float(low)) / 2

        return ShareOfBest(
            value=value,
            half_width=half_width(self._same_prompts()),
            half_width_of_others=half_width(self._other_prompts()),
        )

    def _same_prompts(self) -> tuple[FloatArray, float] | None:
        """Weights (R, n) of replicates that draw each prompt's blocks anew, and the factor that widens them."""
        clusters = [np.flatnonzero(self.prompts == prompt) for prompt in np.unique(self.prompts)]
        fewest = min(cluster.size for cluster in clusters)
        if fewest < 2:
            return None
        generator = np.random.default_rng(0)
        weights = np.zeros((REPLICATES, self.prompts.size))
        for cluster in clusters:
            weights[:, cluster] = generator.multinomial(
                cluster.size, np.full(cluster.size, 1 / cluster.size), REPLICATES
            )
        freedom = self.prompts.size - len(clusters)
        return weights, math.sqrt(fewest / (fewest - 1)) * student_over_normal(freedom, CONFIDENCE)

    def _other_prompts(self) -> tuple[FloatArray, float] | None:
        """The same of replicates that draw prompts with all their blocks."""
        _, prompt_of = np.unique(self.prompts, return_inverse=True)
        count = int(prompt_of.max()) + 1
        if count < 2:
            return None
        drawn = draw_prompts(count, REPLICATES, 0)
        return drawn[:, prompt_of].astype(np.float64), expansion(count, CONFIDENCE)


LEAST_P_VALUE = math.erfc(4.0 / math.sqrt(2.0))
"""That of 4 standard errors where many prompts are known."""
ROUNDING_PER_ROUND = 1e-5
"""A total that differs by less than this share is rounding of recorded probabilities, however many errors it is."""


@dataclass(frozen=True, kw_only=True)
class RoundCheck:
    """Rounds counted against rounds expected, over all prompts."""

    counted: int
    expected: float
    prompts: int
    standard_errors: float | None
    """z; None with fewer than two prompts or where every prompt differs alike."""
    p_value: float | None
    """Two-sided probability of a z as large by chance; None where z is."""
    agrees: bool
    """False when chance hardly makes such a difference (or it has no error) and it is more than rounding."""

    def warning(self) -> str | None:
        """One line for the report when they disagree, else None."""
        if self.agrees:
            return None
        by = "" if self.standard_errors is None else f", {self.standard_errors:+.1f} standard errors"
        return (
            f"the decoder took {self.counted} rounds where its own texts' acceptance says {self.expected:.1f}{by}; "
            "decoder and acceptance do not describe the same process"
        )


def round_check(counted: ArrayLike, expected: ArrayLike) -> RoundCheck:
    """Hold the rounds of each prompt (P,) against what the renewal pass expects for its texts (P,).

    A single prompt has no standard error; it disagrees only when the difference is more than its expected rounds.
    Raises:
        ValueError: shapes that differ, for counts that are not whole, and for no prompt.
    """
    counts, means = whole_numbers("counted", counted, minimum=0), numbers("expected", expected)
    if counts.ndim != 1 or counts.shape != means.shape or counts.size == 0:
        raise ValueError(
            f"rounds: expected equal ones, of at least one prompt, got shapes {counts.shape} and {means.shape}"
        )
    differences = counts - means
    total, expected_rounds, prompts = float(differences.sum()), float(means.sum()), int(counts.size)
    material = abs(total) > ROUNDING_PER_ROUND * max(expected_rounds, 1.0)
    error = math.sqrt(prompts) * float(differences.std(ddof=1)) if prompts > 1 else 0.0
    z: float | None = None
    p_value: float | None = None
    if error > ROUNDING_PER_ROUND:
        from scipy.stats import t

        z = total / error
        p_value = float(2.0 * t.sf(abs(z), prompts - 1))
        agrees = not (material and p_value < LEAST_P_VALUE)
    elif prompts == 1:
        agrees = not material or abs(total) <= expected_rounds
    else:  # every prompt differs alike: by chance all have the same sign with 2 · 2^−P
        p_value = 2.0 ** (1 - prompts) if material else None
        agrees = p_value is None or p_value >= LEAST_P_VALUE
    return RoundCheck(
        counted=int(counts.sum()),
        expected=expected_rounds,
        prompts=prompts,
        standard_errors=z,
        p_value=p_value,
        agrees=agrees,
    )
