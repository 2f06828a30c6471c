"""Texts of different lengths as arrays, and what their tokens say about themselves.

A text is one (prompt, repetition) and its positions are 0 … length - 1. Texts of one prompt are not independent:
per-text sums are added up by prompt (`sum_by_prompt`) before any standard error or bootstrap.

    texts = pad_texts(frame["prompt"], frame["repetition"], frame["position"], frame["end_reason"], {"a": a, "o": o})
    texts.columns["a"]          # (N, T), zero beyond texts.lengths

N texts, T the longest text, M recorded positions, P prompts.

Whether recorded texts can be trusted: do they loop, and do they come from the chain that was recomputed for them?

    repeated n-gram share  =  1 - distinct n-grams / n-grams               of one text; loops make acceptance look good
    chain check            =  sum u_t (a_t - o_t) / its standard error      0 in expectation, u_t = P(t is judged)

The sum is a martingale when the text was drawn from the target's recomputed probabilities, whatever the prompt. Its
standard error is that of per-prompt sums, since tokens of one prompt are not independent, but never below the root of
sum o_t (1 - o_t): a_t lies in [0, 1] with mean o_t, so that bounds its variance (Bhatia and Davis 2000; reached by a
greedy draft's 0 and 1). A few prompts, or drafts hardly ever accepted, spread by far less than the sum may stray.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specgauge.model.checks import BoolArray, FloatArray, IntArray, whole_numbers

END_REASONS = ("eos", "length")


@dataclass(frozen=True, kw_only=True)
class PaddedTexts:
    """N texts in the order of (prompt, repetition), padded with zeros to the longest."""

    prompts: IntArray
    """(N,) prompt of each text."""
    repetitions: IntArray
    """(N,) repetition of each text."""
    lengths: IntArray
    """(N,) positions of each text, at least 1."""
    ended_by_eos: BoolArray
    """(N,) True where the last position is an end-of-text token."""
    columns: Mapping[str, NDArray[Any]]
    """Each column as (N, T), in its own dtype."""


def pad_texts(
    prompt: ArrayLike,
    repetition: ArrayLike,
    position: ArrayLike,
    end_reason: ArrayLike,
    columns: Mapping[str, ArrayLike],
) -> PaddedTexts:
    """Sort the recorded positions into texts; all arguments and columns are (M,), in any order of rows.

    Raises ValueError for an empty table, columns of other lengths, an unknown or changing end reason, and a text whose
    positions are not 0 … length - 1, each once.
    """
    prompts, repetitions, positions = (np.asarray(values, dtype=np.int64) for values in (prompt, repetition, position))
    reasons = np.asarray(end_reason, dtype=np.str_)
    values = {name: np.asarray(column) for name, column in columns.items()}
    rows = prompts.size
    if rows == 0:
        raise ValueError("acceptance table: found no recorded position; allowed is at least one text of one position")
    sized = {"repetition": repetitions, "position": positions, "end_reason": reasons, **values}
    for name, column in sized.items():
        if column.shape != (rows,):
            raise ValueError(
                f"acceptance column {name}: found shape {column.shape}; allowed is ({rows},) as prompt has"
            )
    order = np.lexsort((positions, repetitions, prompts))
    prompts, repetitions, positions, reasons = prompts[order], repetitions[order], positions[order], reasons[order]
    opens = np.ones(rows, dtype=np.bool_)
    opens[1:] = (np.diff(prompts) != 0) | (np.diff(repetitions) != 0)
    firsts = np.flatnonzero(opens)
    lengths = np.diff(np.append(firsts, rows))
    text = np.cumsum(opens) - 1
    _refuse_gaps(positions, firsts[text], prompts, repetitions)
    _refuse_reasons(reasons, reasons[firsts[text]], prompts, repetitions)
    padded: dict[str, NDArray[Any]] = {}
    for name, column in values.items():
        padded[name] = np.zeros((firsts.size, int(lengths.max())), dtype=column.dtype)
        padded[name][text, positions] = column[order]
    return PaddedTexts(
        prompts=prompts[firsts],
        repetitions=repetitions[firsts],
        lengths=lengths,
        ended_by_eos=reasons[firsts] == "eos",
        columns=padded,
    )


def batch_numbers(prompts: Iterable[Iterable[int]]) -> IntArray:
    """(blocks,) a number for each block, the same for the same set of prompts, in order of appearance.

    prompts: those of each block's rows. What blocks of the same prompts came to is no independent evidence.
    """
    numbers: dict[frozenset[int], int] = {}
    return np.array([numbers.setdefault(frozenset(own), len(numbers)) for own in prompts], dtype=np.int64)


def sum_by_prompt(values: ArrayLike, prompts: ArrayLike) -> FloatArray:
    """Per-text sums (N, …) added up by prompt: (P, …), prompts in rising order."""
    sums = np.asarray(values, dtype=np.float64)
    distinct, index = np.unique(np.asarray(prompts), return_inverse=True)
    if sums.shape[:1] != index.shape:
        raise ValueError(
            f"prompts: found shape {index.shape} for values of shape {sums.shape}; allowed is one per text"
        )
    total = np.zeros((distinct.size, *sums.shape[1:]))
    np.add.at(total, index, sums)
    return total


def _refuse_gaps(positions: IntArray, firsts: IntArray, prompts: IntArray, repetitions: IntArray) -> None:
    expected = np.arange(positions.size) - firsts
    wrong = np.flatnonzero(positions != expected)
    if wrong.size:
        row = wrong[0]
        raise ValueError(
            f"acceptance table, prompt {prompts[row]}, repetition {repetitions[row]}: found position {positions[row]} "
            f"in place of {expected[row]}; allowed are positions 0, 1, 2, …, each once"
        )


def _refuse_reasons(
    reasons: NDArray[np.str_], first_reasons: NDArray[np.str_], prompts: IntArray, repetitions: IntArray
) -> None:
    wrong = np.flatnonzero((reasons != first_reasons) | ~np.isin(reasons, END_REASONS))
    if wrong.size:
        row = wrong[0]
        raise ValueError(
            f"acceptance table, prompt {prompts[row]}, repetition {repetitions[row]}: found end_reason "
            f"{str(reasons[row])!r}; allowed is one of {', '.join(END_REASONS)}, the same at every position of a text"
        )


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
