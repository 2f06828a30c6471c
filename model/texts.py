"""From the recorded table, one row per position, to padded arrays, one row per text.

A text is one (prompt, repetition) and its positions are 0 … length - 1. Texts of one prompt are not independent:
per-text sums are added up by prompt (`sum_by_prompt`) before any standard error or bootstrap.

    texts = pad_texts(frame["prompt"], frame["repetition"], frame["position"], frame["end_reason"], {"a": a, "o": o})
    texts.columns["a"]          # (N, T), zero beyond texts.lengths

N texts, T the longest text, M recorded positions, P prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specgauge.model.checks import BoolArray, FloatArray, IntArray

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
