"""From S over batch sizes to what an engine is told: where speculation pays, and which gamma from which batch size on.

    pays, schedule = paying_ranges(batch_sizes, best), gamma_schedule(batch_sizes, gammas, speedups)

S is taken as `specgauge.model.speedup.speedups` gave it; gamma 0 is plain decoding, S = 1.

    >>> sizes, values = [1, 2, 3, 4], [[1.5, 1.8], [1.5, 1.505], [1.2, 0.9], [0.9, 0.7]]
    >>> [(one.first, one.last, one.gamma) for one in gamma_schedule(sizes, [1, 2], values)]
    [(1, 2, 2), (3, 3, 1), (4, 4, 0)]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import IntArray, numbers, whole_numbers
from specgauge.model.speedup import recommended_gamma

MOST_SIZES = 512
"""Batch sizes a schedule is computed at; of a wider range as many, evenly spread on a logarithmic scale."""


@dataclass(frozen=True, kw_only=True)
class ScheduleStep:
    """One gamma for a range of batch sizes, both ends included."""

    first: int
    last: int
    gamma: int
    """Drafts a round; 0: plain decoding."""


def sizes_between(first: int, last: int) -> IntArray:
    """Every batch size from `first` to `last`, or `MOST_SIZES` of them."""
    if last - first < MOST_SIZES:
        return np.arange(first, last + 1)
    return np.unique(np.round(np.geomspace(first, last, MOST_SIZES)).astype(np.int64))


def gamma_schedule(
    batch_sizes: ArrayLike, gammas: ArrayLike, speedups: ArrayLike, allowed: ArrayLike | None = None
) -> list[ScheduleStep]:
    """Ranges of batch sizes that share a gamma, without gaps, from S (B, G) at rising batch sizes (B,).

    Each batch size has the smallest gamma whose S (1 for plain decoding, gamma 0) is within 1 % of the best, as
    everywhere.  allowed: (B, G) mask of what limits leave.  A range ends where the next begins: what lies between two
    batch sizes of the list belongs to the smaller.

    Raises:
        ValueError: shapes that do not fit, batch sizes that do not rise, or an S that is not a number.
    """
    sizes, drafts = whole_numbers("batch_sizes", batch_sizes, minimum=1), whole_numbers("gammas", gammas, minimum=1)
    shape = np.shape(speedups)
    if sizes.ndim != 1 or drafts.ndim != 1 or shape != (sizes.size, drafts.size) or np.any(np.diff(sizes) <= 0):
        raise ValueError(f"speedups: expected ({sizes.size}, {drafts.size}) at rising batch sizes, got {shape}")
    chosen = chosen_gammas(drafts, speedups, allowed).tolist()
    ranges = equal_ranges(dict(zip(sizes.tolist(), chosen, strict=True)))
    return [ScheduleStep(first=own[0], last=last, gamma=chosen[sizes.tolist().index(own[0])]) for own, last in ranges]


def chosen_gammas(gammas: ArrayLike, speedups: ArrayLike, allowed: ArrayLike | None = None) -> IntArray:
    """The gamma of each batch size, (B,), as `gamma_schedule` has it; arguments and errors as there."""
    drafts, values = whole_numbers("gammas", gammas, minimum=1), numbers("speedups", speedups)
    mask = np.ones(values.shape, dtype=np.bool_) if allowed is None else np.asarray(allowed, dtype=np.bool_)
    padded = np.concatenate([np.ones((values.shape[0], 1)), np.where(mask, values, -np.inf)], axis=1)
    return recommended_gamma(padded, np.concatenate([[0], drafts]))


def equal_ranges(answers: Mapping[int, object]) -> list[tuple[list[int], int]]:
    """Neighbouring batch sizes with the same answer, each with where their range ends: before the next begins.

    >>> equal_ranges({1: "a", 4: "a", 8: "b"})
    [([1, 4], 7), ([8], 8)]
    """
    runs = [list(group) for _, group in groupby(sorted(answers), key=lambda size: answers[size])]
    return list(zip(runs, [*(run[0] - 1 for run in runs[1:]), *(run[-1] for run in runs[-1:])], strict=True))


def paying_ranges(batch_sizes: ArrayLike, best_speedups: ArrayLike) -> list[tuple[int, int]]:
    """Ranges of batch sizes, both ends included, whose best S is over 1: (B,), (B,) -> [(first, last), …]."""
    sizes = whole_numbers("batch_sizes", batch_sizes, minimum=1)
    pays = numbers("best_speedups", best_speedups) > 1.0
    edges = np.flatnonzero(np.diff(np.concatenate([[False], pays, [False]]).astype(np.int64)))
    return [(int(sizes[first]), int(sizes[end - 1])) for first, end in zip(edges[0::2], edges[1::2], strict=True)]


def break_even_batch_size(batch_sizes: ArrayLike, best_speedups: ArrayLike) -> int | None:
    """The first batch size at which speculation no longer pays, after one at which it did; None: there is none."""
    sizes, ranges = whole_numbers("batch_sizes", batch_sizes, minimum=1), paying_ranges(batch_sizes, best_speedups)
    beyond = sizes[sizes > ranges[0][1]] if ranges else sizes[:0]
    return int(beyond[0]) if beyond.size else None
