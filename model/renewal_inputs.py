"""Checked inputs of whatever runs along recorded texts: acceptance, where texts end and why, and what a round costs.

    left(t)        = limit - t                     positions the decoder may still write when a round starts at t
    γ in force     = min(γ, left(t) - 1)           an EOS is not foreseen, a length limit is

N texts, T positions, D gamma_max.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import (
    LARGEST_WHOLE,
    BoolArray,
    FloatArray,
    IntArray,
    numbers,
    probabilities,
    whole_numbers,
)

NO_LIMIT = LARGEST_WHOLE
"""The limit of a text that ended by EOS and whose own is not given: never reached."""


@dataclass(frozen=True, kw_only=True)
class JudgedTexts:
    """N texts padded to T positions, with the limits their decoder had."""

    acceptance: FloatArray
    """(N, T) a_t, zero beyond each length."""
    lengths: IntArray
    """(N,) positions of each text."""
    ended_by_eos: BoolArray
    """(N,) True where the last position is an end-of-text token."""
    limits: IntArray
    """(N,) positions the decoder was allowed; NO_LIMIT where unknown."""


def judged_texts(
    acceptance: ArrayLike, lengths: ArrayLike, ended_by_eos: ArrayLike, length_limits: ArrayLike | None
) -> JudgedTexts:
    """Check and pad with zeros; shapes as in `JudgedTexts`, length_limits (N,) or one number or None.

    A text that ended by length has its length as limit, whatever is given. Raises ValueError for shapes that do not
    fit, acceptance outside [0, 1] within a text, a length over T and a limit under a length.
    """
    a = np.asarray(acceptance, dtype=np.float64)
    size = whole_numbers("lengths", lengths, minimum=0)
    eos = np.asarray(ended_by_eos, dtype=np.bool_)
    if a.ndim != 2 or size.shape != a.shape[:1] or eos.shape != a.shape[:1]:
        raise ValueError(
            f"acceptance: found shapes acceptance {a.shape}, lengths {size.shape}, ended_by_eos {eos.shape}; "
            "allowed are (N, T), (N,), (N,)"
        )
    if bool((size > a.shape[1]).any()):
        raise ValueError(f"lengths: found {int(size.max())} for texts padded to {a.shape[1]}; allowed is at most that")
    limits = size.copy()
    if length_limits is None:
        limits[eos] = NO_LIMIT
    else:
        given = np.broadcast_to(whole_numbers("length_limits", length_limits, minimum=0), size.shape)
        if bool((given < size).any()):
            place = int(np.flatnonzero(given < size)[0])
            raise ValueError(
                f"length_limits (item {place + 1}): found {given[place]} for a text of {size[place]} positions; "
                "allowed is at least its length"
            )
        limits[eos] = given[eos]
    return JudgedTexts(acceptance=within_texts("acceptance", a, size), lengths=size, ended_by_eos=eos, limits=limits)


def within_texts(name: str, values: ArrayLike, lengths: IntArray) -> FloatArray:
    """Probabilities (N, T) with everything beyond the lengths (N,) set to zero, unread.

    Raises ValueError for values outside [0, 1] within a text.
    """
    array = np.asarray(values, dtype=np.float64)
    return probabilities(name, np.where(np.arange(array.shape[1]) < lengths[:, None], array, 0.0))


def round_costs_s(costs_s: ArrayLike, gamma_max: int, shape: tuple[int, ...]) -> FloatArray:
    """Costs of a round as (D + 1, N or 1, T) from (D + 1,), (D + 1, T) or (D + 1, N, T); shape is (N, T).

    Raises ValueError for another shape and for costs that are not finite.
    """
    costs = numbers("costs_s", costs_s)
    if costs.ndim == 1:
        costs = np.broadcast_to(costs[:, None], (costs.size, shape[1]))
    if costs.ndim == 2:
        costs = costs[:, None, :]
    if costs.ndim != 3 or costs.shape[0] != gamma_max + 1 or costs.shape[1] not in (1, shape[0]):
        costs = np.empty((0, 0, 0))
    if costs.shape[2] != shape[1] or costs.shape[0] == 0:
        raise ValueError(
            f"costs_s: found shape {np.shape(costs_s)}; allowed are ({gamma_max + 1},), ({gamma_max + 1}, {shape[1]}) "
            f"and ({gamma_max + 1}, {shape[0]}, {shape[1]}): one row for each of 0 … gamma_max drafts in force"
        )
    return costs
