"""Checks every entry of the model shares: what a number may be, and one line that says so when it is not.

Each check takes the name the caller knows the value by, returns it as a float64 (or int64) array and raises
`ValueError` with one line: where, what was found, what is allowed.  Nothing is clipped or repaired.
"""

from __future__ import annotations

import math
from typing import SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LARGEST_WHOLE = 2**53
"""Whole numbers beyond it are not kept by a float64."""
SHORTEST_S, LONGEST_S = 1e-30, 1e12
"""Times outside are no times of a machine, and ratios of them overflow."""
LARGEST_GAMMA = 1000
"""More drafts a round than any engine makes; work and memory grow with gamma."""


def numbers(name: str, values: ArrayLike) -> FloatArray:
    """`values` as float64, any shape; every entry must be finite."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: expected numbers, in lists of equal lengths, got {_short(values)}") from error
    _require(name, array, np.isfinite(array), "a finite number")
    return array


def times_s(name: str, values: ArrayLike) -> FloatArray:
    """`values` as seconds, any shape; from 0 to `LONGEST_S`."""
    array = numbers(name, values)
    _require(name, array, array >= 0, "seconds, at least 0")
    _require(name, array, array <= LONGEST_S, f"seconds, at most {LONGEST_S:g}")
    return array


def positive_times_s(name: str, values: ArrayLike) -> FloatArray:
    """`values` as seconds, any shape; from `SHORTEST_S` (0 is refused) to `LONGEST_S`."""
    array = numbers(name, values)
    _require(name, array, array > 0, "seconds, above 0")
    _require(name, array, array <= LONGEST_S, f"seconds, at most {LONGEST_S:g}")
    _require(name, array, array >= SHORTEST_S, f"seconds, at least {SHORTEST_S:g}")
    return array


def positive_numbers(name: str, values: ArrayLike) -> FloatArray:
    """`values` as float64, any shape; finite and above 0."""
    array = numbers(name, values)
    _require(name, array, array > 0, "a number above 0")
    return array


def probabilities(name: str, values: ArrayLike) -> FloatArray:
    """`values` as probabilities, any shape; each in [0, 1]."""
    array = numbers(name, values)
    _require(name, array, (array >= 0) & (array <= 1), "a probability in [0, 1]")
    return array


def survival_rates(name: str, values: ArrayLike) -> FloatArray:
    """`values` as survival A_1 … A_γ along the last axis, shape (…, γ); in [0, 1] and never increasing."""
    array = probabilities(name, values)
    if array.ndim == 0:
        raise ValueError(f"{name}: expected a list A_1 … A_gamma along the last axis, got one number")
    rises = np.argwhere(np.diff(array, axis=-1) > 0)
    if rises.size:
        place = tuple(int(i) for i in rises[0])
        before, after = array[place], array[(*place[:-1], place[-1] + 1)]
        raise ValueError(
            f"{name}: expected rates that never increase (the first i drafts pass at least as often as the first i+1), "
            f"got {before:g} at position {place[-1] + 1} and {after:g} at position {place[-1] + 2}; rates given that "
            "the drafts before were accepted are conditional rates"
        )
    return array


def whole_numbers(name: str, values: ArrayLike, *, minimum: int) -> IntArray:
    """`values` as int64, any shape; whole, at least `minimum` and at most `LARGEST_WHOLE`."""
    given = np.asarray(values) if isinstance(values, (int, np.ndarray, np.integer)) else np.empty(0)
    if given.dtype.kind == "i" and given.size and minimum <= given.min() and given.max() <= LARGEST_WHOLE:
        return given.astype(np.int64)  # as most are, without a copy as float64
    array = numbers(name, values)
    _require(name, array, (array == np.floor(array)) & (array >= minimum), f"a whole number, at least {minimum}")
    _require(name, array, array <= LARGEST_WHOLE, f"a whole number, at most {LARGEST_WHOLE}")
    return array.astype(np.int64)


def distribution(name: str, values: ArrayLike, *, tolerance: float = 1e-6) -> FloatArray:
    """`values` as probability distributions along the last axis, shape (…, V).

    Each must sum to 1 within `tolerance`; what is left of it is divided away, so that the result sums to 1 in float64.
    """
    array = probabilities(name, values)
    if array.ndim == 0 or array.shape[-1] == 0:
        raise ValueError(f"{name}: expected one probability for every token, got no list of probabilities")
    totals = array.sum(axis=-1)
    _require(f"sum of {name}", totals, np.abs(totals - 1) <= tolerance, "1")
    return np.asarray(array / totals[..., np.newaxis], dtype=np.float64)


def _require(name: str, array: FloatArray, allowed: BoolArray | np.bool_, what: str) -> None:
    if allowed.all():
        return
    place = tuple(int(i) for i in np.argwhere(~np.asarray(allowed))[0])
    where = f" (item {', '.join(str(i + 1) for i in place)})" if place else ""
    raise ValueError(f"{name}{where}: expected {what}, got {array[place]:g}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def finite_or_none(value: SupportsFloat) -> float | None:
    """A number as it stands in JSON and in records: None where it is NaN or infinite, which is unknown."""
    number = float(value)
    return number if math.isfinite(number) else None
