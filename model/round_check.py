"""Whether the rounds a decoder counted agree with those the one-pass estimate expects on the very texts it wrote.

    z = Σ_p (counted_p − expected_p) / (√P · standard deviation of the differences)          P prompts

Given a text, the expected rounds Σ v_t (`specgauge.model.renewal`) are the exact mean of what the decoder that wrote it
would count, so every difference has mean 0.  Prompts are independent; texts of one prompt are added up first.  The
deviation is estimated, so z is held against Student's t of P − 1 degrees: few prompts prove little, and neither does
the same difference in a few (a tie within rounding flips a greedy draft, and costs that text a round).

    check = round_check(counted, expected)          # both (P,)
    check.agrees, check.standard_errors, check.p_value
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import numbers, whole_numbers

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

    @property
    def relative_difference(self) -> float | None:
        """counted / expected − 1; None without an expected round."""
        return self.counted / self.expected - 1 if self.expected > 0 else None

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
    Raises ValueError for shapes that differ, for counts that are not whole, and for no prompt.
    """
    counts, means = whole_numbers("counted", counted, minimum=0), numbers("expected", expected)
    if counts.ndim != 1 or counts.shape != means.shape or counts.size == 0:
        raise ValueError(
            f"rounds: found shapes {counts.shape} and {means.shape}; allowed are equal ones, of at least one prompt"
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


def rounds_by_prompt(prompts: ArrayLike) -> dict[int, int]:
    """Rounds of each prompt, from the prompt of every recorded round (R,)."""
    numbers_, counts = np.unique(np.asarray(prompts, dtype=np.int64), return_counts=True)
    return {int(number): int(count) for number, count in zip(numbers_, counts, strict=True)}
