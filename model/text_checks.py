"""Whether recorded texts can be trusted: do they loop, and do they come from the chain that was recomputed for them?

    repeated n-gram share  =  1 - distinct n-grams / n-grams               of one text; loops make acceptance look good
    chain check            =  sum u_t (a_t - o_t) / its standard error      0 in expectation, u_t = P(t is judged)

The sum is a martingale when the text was drawn from the target's recomputed probabilities, whatever the prompt. Its
standard error is that of per-prompt sums, since tokens of one prompt are not independent, but never below the root of
sum o_t (1 - o_t): a_t lies in [0, 1] with mean o_t, so that bounds its variance (Bhatia and Davis 2000; reached by a
greedy draft's 0 and 1). A few prompts, or drafts hardly ever accepted, spread by far less than the sum may stray.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specgauge.model.checks import FloatArray, whole_numbers

MAX_STANDARD_ERRORS = 4.0
ROUNDING_PER_POSITION = 1e-5
"""A mean deviation below this is float32 rounding of the overlap's sum, however many standard errors it is."""


@dataclass(frozen=True, kw_only=True)
class ChainCheck:
    """Do the recorded texts come from the recomputed sampling chain?"""

    deviation_per_position: float | None
    """Mean of a_t - o_t over judged positions; None when nothing was judged."""
    standard_errors: float | None
    """The sum over its standard error; None with fewer than two prompts or where that error is 0."""
    consistent: bool
    """False when the deviation is over 4 standard errors and more than rounding."""


def chain_check(
    judged_accepted: ArrayLike, judged_overlap: ArrayLike, judged: ArrayLike, *, largest_variance: float
) -> ChainCheck:
    """Hold sum u_t (a_t - o_t) against 0, in standard errors clustered by prompt.

    The first three are (P,) sums by prompt at one gamma, as the renewal pass gives them: of u_t a_t, u_t o_t and u_t.
    `largest_variance` is sum o_t (1 - o_t) over all positions, below whose root no standard error is believed.
    """
    differences = np.asarray(judged_accepted, dtype=np.float64) - np.asarray(judged_overlap, dtype=np.float64)
    prompts, positions = differences.size, float(np.sum(np.asarray(judged, dtype=np.float64)))
    if positions <= 0:
        return ChainCheck(deviation_per_position=None, standard_errors=None, consistent=True)
    total = float(differences.sum())
    if prompts < 2:
        return ChainCheck(deviation_per_position=total / positions, standard_errors=None, consistent=True)
    error = max(math.sqrt(prompts) * float(differences.std(ddof=1)), math.sqrt(max(largest_variance, 0.0)))
    material = abs(total) / positions > ROUNDING_PER_POSITION
    return ChainCheck(
        deviation_per_position=total / positions,
        standard_errors=total / error if error > 0 else None,
        consistent=not (material and abs(total) > MAX_STANDARD_ERRORS * error),
    )


def repeated_ngram_share(tokens: ArrayLike, lengths: ArrayLike, n: int = 4) -> FloatArray:
    """Share of n-grams of each text that occurred in it before: 0 for a text without repeats, near 1 for a loop.

    tokens: int (N, T), padded; lengths: (N,). Returns (N,), NaN for texts shorter than n (they have no n-gram).
    Raises ValueError for n under 1 and lengths outside 0 … T.
    """
    size = int(whole_numbers("n", n, minimum=1))
    ids: NDArray[Any] = np.asarray(tokens)
    counts = whole_numbers("lengths", lengths, minimum=0)
    if ids.ndim != 2 or counts.shape != ids.shape[:1] or bool((counts > ids.shape[1]).any()):
        raise ValueError(
            f"lengths: found shape {counts.shape} or a length over T for tokens {ids.shape}; allowed is (N,)"
        )
    grams = np.maximum(counts - size + 1, 0)
    share = np.full(counts.shape, np.nan)
    if not grams.any():
        return share
    names = np.unique(ids, return_inverse=True)[1].reshape(ids.shape)
    pieces, kinds = names, int(names.max()) + 1
    for extra in range(1, size):
        pairs = pieces[:, :-1] * kinds + names[:, extra:]
        pieces = np.unique(pairs, return_inverse=True)[1].reshape(pairs.shape)
    text, start = np.nonzero(np.arange(ids.shape[1] - size + 1) < grams[:, None])
    keys = np.unique(text * (int(pieces.max()) + 1) + pieces[text, start])
    distinct = np.bincount(keys // (int(pieces.max()) + 1), minlength=counts.size)
    np.divide(grams - distinct, grams, out=share, where=grams > 0)
    return share
