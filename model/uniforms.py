"""Uniform numbers that are a function of what they decide, and the inverse CDF that turns one into a token.

A draw depends on (seed, prompt, repetition, position, purpose) and on nothing else, so a row draws the same tokens
alone and in any batch, and a resumed run repeats what it did. Each field is absorbed into a 64-bit state by the
finaliser of SplitMix64 (Steele, Lea & Flood 2014; Stafford's Mix13); its top 53 bits make a double in [0, 1).

    uniforms(seed=0, prompt=3, repetition=0, position=np.arange(8), purpose="accept")   # float64 (8,)
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

PURPOSES: Mapping[str, int] = MappingProxyType({"token": 0, "draft": 1, "accept": 2, "residual": 3, "bonus": 4})
"""What a uniform decides: a plain token, a draft's proposal, its test, a replacement, a bonus token."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def uniforms(
    seed: ArrayLike,
    prompt: ArrayLike,
    repetition: ArrayLike,
    position: ArrayLike,
    purpose: str | ArrayLike,
) -> NDArray[np.float64]:
    """Uniform float64 in [0, 1), one for each element of the broadcast of the five arguments.

    All but purpose are non-negative integers under 2**64; purpose is a name in PURPOSES or integers.
    Raises ValueError for negative or non-integer arguments and for an unknown purpose.
    """
    fields = {"seed": seed, "prompt": prompt, "repetition": repetition, "position": position}
    counters = [_counter(name, value) for name, value in fields.items()]
    counters.append(_counter("purpose", _purpose_number(purpose) if isinstance(purpose, str) else purpose))
    state = np.zeros((1,) * max(counter.ndim for counter in counters), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for counter in counters:
            state = _mix(state ^ _mix((counter + np.uint64(1)) * _GOLDEN))
    shape = np.broadcast_shapes(*(counter.shape for counter in counters))
    return np.asarray((state >> np.uint64(11)) * 2.0**-53, dtype=np.float64).reshape(shape)


def inverse_cdf(probs: ArrayLike, u: ArrayLike) -> NDArray[np.int64]:
    """The token that uniform u picks: the lowest index whose cumulative mass exceeds u times the total.

    probs: (..., V), non-negative masses that need not be normalised; u: (...) in [0, 1), broadcast against the leading
    axes of probs. Returns int64 (...). A token without mass is never picked.
    Raises ValueError for negative or non-finite masses, rows without mass, and u outside [0, 1).
    """
    masses = np.asarray(probs, dtype=np.float64)
    draws = np.asarray(u, dtype=np.float64)
    if not (masses >= 0).all() or not np.isfinite(masses).all():
        raise ValueError("probs: found a negative, infinite or NaN mass; allowed are finite masses >= 0")
    if not ((draws >= 0) & (draws < 1)).all():
        raise ValueError("u: found a value outside [0, 1); allowed are uniform numbers in [0, 1)")
    cumulative = np.cumsum(masses, axis=-1)
    total = cumulative[..., -1]
    if not ((total > 0) & np.isfinite(total)).all():
        raise ValueError("probs: found a row whose total mass is 0 or overflows; there is nothing to draw from")
    threshold = np.minimum(draws * total, np.nextafter(total, 0.0))  # u * total rounds up to a subnormal total
    if masses.ndim == 1:
        return np.asarray(np.searchsorted(cumulative, threshold, side="right"), dtype=np.int64)
    return np.asarray((cumulative > threshold[..., None]).argmax(axis=-1), dtype=np.int64)


def _purpose_number(purpose: str) -> int:
    if purpose not in PURPOSES:
        nearest = difflib.get_close_matches(purpose, PURPOSES, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"purpose: found {purpose!r}; allowed are {', '.join(PURPOSES)}{hint}")
    return PURPOSES[purpose]


def _counter(name: str, value: ArrayLike) -> NDArray[np.uint64]:
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.integer) or bool((array < 0).any()):
        raise ValueError(f"{name}: found {value!r}; allowed are integers from 0 to 2**64 - 1")
    return array.astype(np.uint64)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
