"""The sampling chain in numpy, from logits to the probabilities a token is drawn from, and the numbers that draw it.

Active processors apply in transformers' order,

    repetition_penalty -> temperature -> top_k -> top_p -> min_p -> draw        (temperature 0: -> argmax)

with its tie rules: top-k keeps every token that ties with the k-th; top-p sorts upwards and stably, so of equal tokens
at its boundary the higher ids stay; an argmax is the lowest index of the maximum. `logits (..., V)` have any leading
axes.

A uniform number is a function of (seed, prompt, repetition, position, purpose), so a row draws the same tokens alone,
in any batch and in a resumed run. Each field is absorbed into a 64-bit state by the finaliser of SplitMix64 (Steele,
Lea and Flood, OOPSLA 2014; Stafford's Mix13); its top 53 bits make a double in [0, 1).

    processed_probs([2.0, 1.0, 0.0], SamplingSettings(top_k=2))                         # (0.731, 0.269, 0)
    uniforms(seed=0, prompt=3, repetition=0, position=np.arange(8), purpose="accept")   # float64 (8,)
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

PROCESSORS = ("repetition_penalty", "temperature", "top_k", "top_p", "min_p")
"""Names of the processors, in the order in which transformers applies them."""


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """How a token is drawn from logits; the same settings serve draft and target."""

    temperature: float = 1.0
    """Divides the logits; 1 is inactive, 0 means greedy (argmax) and is never divided by."""
    top_k: int | None = None
    """Keep the k largest logits and what ties with the k-th; None or 0 is inactive."""
    top_p: float | None = None
    """Keep the smallest set of most probable tokens with at least this mass; None or 1 is inactive."""
    min_p: float | None = None
    """Drop tokens under this fraction of the top probability; None or 0 is inactive."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the history; 1 is inactive."""
    min_tokens_to_keep: int = 1
    """Tokens that no filter may remove."""

    def __post_init__(self) -> None:
        """Raise ValueError (one line: field, found, allowed) for a value the chain cannot honour."""
        _check_number("temperature", self.temperature, "a finite number >= 0 (0 means greedy)", low=0.0)
        _check_number("repetition_penalty", self.repetition_penalty, "a finite number > 0 (1 is off)", above=0.0)
        if self.top_p is not None:
            _check_number("top_p", self.top_p, "a number in (0, 1] (1 or null is off)", above=0.0, high=1.0)
        if self.min_p is not None:
            _check_number("min_p", self.min_p, "a number in [0, 1] (0 or null is off)", low=0.0, high=1.0)
        whole = (int, np.integer)
        if self.top_k is not None:
            _check_number("top_k", self.top_k, "an integer >= 0 (0 or null is off)", low=0, kinds=whole)
        _check_number("min_tokens_to_keep", self.min_tokens_to_keep, "an integer >= 1", low=1, kinds=whole)


def _check_number(
    name: str,
    value: Any,
    allowed: str,
    *,
    low: float = -math.inf,
    above: float = -math.inf,
    high: float = math.inf,
    kinds: tuple[type, ...] = (int, float, np.integer, np.floating),
) -> None:
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not (is_number and low <= value <= high and value > above and value < math.inf):
        raise ValueError(f"sampling.{name}: expected {allowed}, got {value!r}")


def active_processors(settings: SamplingSettings) -> tuple[str, ...]:
    """Names of the processors that can change the outcome; of an argmax only the repetition penalty can."""
    greedy = settings.temperature == 0
    active = {
        "repetition_penalty": settings.repetition_penalty != 1,
        "temperature": not greedy and settings.temperature != 1,
        "top_k": not greedy and bool(settings.top_k),
        "top_p": not greedy and settings.top_p is not None and settings.top_p < 1,
        "min_p": not greedy and settings.min_p is not None and settings.min_p > 0,
    }
    return tuple(name for name in PROCESSORS if active[name])


def chain_name(settings: SamplingSettings) -> str:
    """The chain's name, which keys timings: active processors and "argmax" or "draw", joined by "+"."""
    return "+".join((*active_processors(settings), "argmax" if settings.temperature == 0 else "draw"))


def processed_logits(
    logits: ArrayLike, settings: SamplingSettings, history: ArrayLike | None = None, *, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Logits (..., V) after every active processor, in `dtype` (float32 or float64); removed tokens are -inf.

    At temperature 0 only the penalty is applied.

    Args:
        logits: (..., V).
        settings: which processors are active, and how.
        history: int (..., H), token ids seen before the position (prompt included), needed when the repetition penalty
            is active. It broadcasts against the leading axes of logits; negative ids are padding and ids >= V cannot be
            drawn, so both are left out.
        dtype: of the arithmetic and the result.

    Raises:
        ValueError: NaN or +inf logits, a row without a finite logit, a missing history, or a temperature so small that
            the division overflows.
    """
    scores = _checked_logits(logits, dtype)
    for name in active_processors(settings):
        scores = _apply(name, scores, settings, history)
    return scores


def processed_probs(
    logits: ArrayLike, settings: SamplingSettings, history: ArrayLike | None = None, *, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Probabilities (..., V) that the token is drawn from, in `dtype`; see `processed_logits` for arguments and errors.

    At temperature 0: one-hot at the lowest index of the maximum.
    """
    scores = processed_logits(logits, settings, history, dtype=dtype)
    return one_hot_argmax(scores) if settings.temperature == 0 else softmax(scores)


def softmax(scores: NDArray[Any]) -> NDArray[Any]:
    """Softmax over the last axis in the dtype of scores; every row needs a finite maximum."""
    weights: NDArray[Any] = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def one_hot_argmax(scores: NDArray[Any]) -> NDArray[Any]:
    """One-hot rows (..., V) at the lowest index of the maximum, in the dtype of scores."""
    probs = np.zeros_like(scores)
    np.put_along_axis(probs, scores.argmax(axis=-1)[..., None], 1, axis=-1)
    return probs


def effectively_greedy(settings: SamplingSettings, probs: ArrayLike) -> str | None:
    """Why a drawing setting always takes the argmax on these rows, in words; None when it does not, or openly does.

    probs: (..., V), the model's probabilities before temperature and filters (after the repetition penalty, if there is
    one). The reason names the first processor after which every row has all its mass on the argmax; equal maxima are
    never greedy.
    """
    if settings.temperature == 0:
        return None
    original = np.asarray(probs, dtype=np.float64)
    with np.errstate(divide="ignore"):
        scores = _checked_logits(np.log(original), np.float64)
    if _only_argmax_left(original, scores):
        return "the model gives one token all the probability"
    for name in active_processors(settings):
        if name == "repetition_penalty":
            continue
        before = scores
        scores = _apply(name, scores, settings, None)
        if _only_argmax_left(original, scores):
            lowest_top = float(softmax(before).max(axis=-1).min())
            return {
                "temperature": f"temperature {settings.temperature:g} leaves the maximum all the probability",
                "top_k": f"top_k {settings.top_k} keeps only the maximum",
                "top_p": f"top_p {settings.top_p} is at or below the top probability ({lowest_top:.4g}) "
                f"and min_tokens_to_keep is {settings.min_tokens_to_keep}",
                "min_p": f"min_p {settings.min_p} removes every token but the maximum",
            }[name]
    return None


def _only_argmax_left(original: NDArray[Any], scores: NDArray[Any]) -> bool:
    return bool((softmax(scores) == one_hot_argmax(original)).all())


def _checked_logits(logits: ArrayLike, dtype: DTypeLike) -> NDArray[Any]:
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype: expected float32 and float64, got {np.dtype(dtype)}")
    scores = np.asarray(logits, dtype=dtype)
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"logits: expected (..., V) with V >= 1, got shape {scores.shape}")
    if not np.isfinite(scores.max(axis=-1)).all():
        raise ValueError("logits: expected a finite maximum in every row, got a row that has NaN, +inf or only -inf")
    return scores


def _apply(name: str, scores: NDArray[Any], settings: SamplingSettings, history: ArrayLike | None) -> NDArray[Any]:
    if name == "repetition_penalty":
        return _repetition_penalty(scores, settings.repetition_penalty, history)
    if name == "temperature":
        return _temperature(scores, settings.temperature)
    if name == "top_k":
        return _top_k(scores, max(settings.top_k or 0, settings.min_tokens_to_keep))
    if name == "top_p":
        assert settings.top_p is not None
        return _top_p(scores, settings.top_p, settings.min_tokens_to_keep)
    assert name == "min_p"
    assert settings.min_p is not None
    return _min_p(scores, settings.min_p, settings.min_tokens_to_keep)


def _repetition_penalty(scores: NDArray[Any], penalty: float, history: ArrayLike | None) -> NDArray[Any]:
    if history is None:
        raise ValueError(
            "history: expected the token ids before each position (an empty array if none), since repetition_penalty "
            "needs them, got none"
        )
    vocabulary = scores.shape[-1]
    ids = np.asarray(history)
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"history: expected integer token ids, got dtype {ids.dtype}")
    ids = np.where((ids < 0) | (ids >= vocabulary), vocabulary, ids).astype(np.int64)
    ids = np.broadcast_to(ids, (*scores.shape[:-1], ids.shape[-1]))
    seen = np.zeros((*scores.shape[:-1], vocabulary + 1), dtype=bool)
    np.put_along_axis(seen, ids, True, axis=-1)
    factor = scores.dtype.type(penalty)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        weakened = np.where(seen[..., :vocabulary], np.where(scores < 0, scores * factor, scores / factor), scores)
    if not np.isfinite(weakened.max(axis=-1)).all() and np.isfinite(scores.max(axis=-1)).all():
        raise ValueError(
            f"sampling.repetition_penalty: found {penalty!r}, which overflows {scores.dtype} logits; use 1 for none"
        )
    return weakened


def _temperature(scores: NDArray[Any], temperature: float) -> NDArray[Any]:
    divisor = scores.dtype.type(temperature)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        divided: NDArray[Any] = scores / divisor
    if not np.isfinite(divided.max(axis=-1)).all():
        raise ValueError(
            f"sampling.temperature: found {temperature!r}, which overflows {scores.dtype} logits; use 0 for greedy"
        )
    return divided


def _top_k(scores: NDArray[Any], k: int) -> NDArray[Any]:
    vocabulary = scores.shape[-1]
    if k >= vocabulary:
        return scores
    boundary = np.partition(scores, vocabulary - k, axis=-1)[..., vocabulary - k, None]
    return np.where(scores < boundary, -np.inf, scores).astype(scores.dtype)


def _top_p(scores: NDArray[Any], top_p: float, keep: int) -> NDArray[Any]:
    order = np.argsort(scores, axis=-1, kind="stable")
    sorted_probs = softmax(np.take_along_axis(scores, order, axis=-1))
    cumulative = np.cumsum(sorted_probs, axis=-1, dtype=np.float64).astype(scores.dtype)
    remove_sorted = cumulative <= scores.dtype.type(1 - top_p)
    remove_sorted[..., -keep:] = False
    remove = np.empty_like(remove_sorted)
    np.put_along_axis(remove, order, remove_sorted, axis=-1)
    return np.where(remove, -np.inf, scores).astype(scores.dtype)


def _min_p(scores: NDArray[Any], min_p: float, keep: int) -> NDArray[Any]:
    probs = softmax(scores)
    remove = probs < scores.dtype.type(min_p) * probs.max(axis=-1, keepdims=True)
    kept = np.argsort(-probs, axis=-1, kind="stable")[..., :keep]
    np.put_along_axis(remove, kept, False, axis=-1)
    return np.where(remove, -np.inf, scores).astype(scores.dtype)


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

    Raises:
        ValueError: negative or non-integer arguments, or an unknown purpose.
    """
    fields = {"seed": seed, "prompt": prompt, "repetition": repetition, "position": position}
    if isinstance(purpose, str) and purpose not in PURPOSES:
        nearest = difflib.get_close_matches(purpose, PURPOSES, n=1)
        hint = f" (nearest: {nearest[0]})" if nearest else ""
        raise ValueError(f"purpose: expected one of {', '.join(PURPOSES)}, got {purpose!r}{hint}")
    fields["purpose"] = PURPOSES[purpose] if isinstance(purpose, str) else purpose
    counters = [_counter(name, value) for name, value in fields.items()]
    state = np.zeros((1,) * max(counter.ndim for counter in counters), dtype=np.uint64)
    with np.errstate(over="ignore"):
        for counter in counters:
            state = _mix(state ^ _mix((counter + np.uint64(1)) * _GOLDEN))
    shape = np.broadcast_shapes(*(counter.shape for counter in counters))
    return np.asarray((state >> np.uint64(11)) * 2.0**-53, dtype=np.float64).reshape(shape)


def inverse_cdf(probs: ArrayLike, u: ArrayLike) -> NDArray[np.int64]:
    """The token that uniform u picks, (...): the lowest index whose cumulative mass exceeds u times the total.

    probs (..., V) need not be normalised; u (...) in [0, 1) broadcasts against its leading axes.

    Raises:
        ValueError: negative or non-finite masses, rows without mass, or u outside [0, 1).
    """
    masses = np.asarray(probs, dtype=np.float64)
    draws = np.asarray(u, dtype=np.float64)
    if not (masses >= 0).all() or not np.isfinite(masses).all():
        raise ValueError("probs: expected finite masses >= 0, got a negative, infinite or NaN mass")
    if not ((draws >= 0) & (draws < 1)).all():
        raise ValueError("u: expected uniform numbers in [0, 1), got a value outside [0, 1)")
    cumulative = np.cumsum(masses, axis=-1)
    total = cumulative[..., -1]
    if not ((total > 0) & np.isfinite(total)).all():
        raise ValueError("probs: expected rows with a finite mass above 0, got one whose total is 0 or overflows")
    threshold = np.minimum(draws * total, np.nextafter(total, 0.0))  # u * total rounds up to a subnormal total
    if masses.ndim == 1:
        return np.asarray(np.searchsorted(cumulative, threshold, side="right"), dtype=np.int64)
    return np.asarray((cumulative > threshold[..., None]).argmax(axis=-1), dtype=np.int64)


def _counter(name: str, value: ArrayLike) -> NDArray[np.uint64]:
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.integer) or bool((array < 0).any()):
        raise ValueError(f"{name}: expected integers from 0 to 2**64 - 1, got {value!r}")
    return array.astype(np.uint64)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))
