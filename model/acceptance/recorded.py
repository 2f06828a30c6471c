"""Recorded texts: a_t and o_t along each, the rounds they would take, and whether they can be trusted.

Given that the target emitted y after some history, the draft's proposal was accepted there with probability a_t; its
mean given the history alone is the overlap o_t = E[a_t | history] (Leviathan et al., arXiv 2211.17192, section 3.1):

    acceptance_rule  draft_sampling  a_t                                        o_t
    ratio            same            min(1, draft_probs[y] / target_probs[y])   sum_x min(draft_probs, target_probs)
    match            same            draft_probs[y]                             sum_x draft_probs * target_probs
    either           greedy          1 if y is the draft's argmax               target_probs[draft's argmax]

Lookups are recorded by where a round starts (`specgauge.model.acceptance.lookups`) and are the same under every rule.
A text is one (prompt, repetition); texts of one prompt are not independent.

    texts = pad_texts(frame["prompt"], frame["repetition"], frame["position"], frame["end_reason"], columns)
    recorded_rounds(texts, acceptance_rule="ratio", draft_sampling="same", gammas=[1, 2], length_limits=63)

N texts, T the longest text, M recorded positions, P prompts.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specgauge.model.acceptance.lookups import LOOKUP_COLUMNS, lookup_overlap, lookup_survival, probability_column
from specgauge.model.acceptance.renewal import RenewalResult, renewal
from specgauge.model.acceptance.renewal_lookups import renewal_by_start
from specgauge.model.checks import BoolArray, FloatArray, IntArray, whole_numbers
from specgauge.model.exact import AcceptanceRule, DraftSampling

END_REASONS = ("eos", "length")
MAX_STANDARD_ERRORS = 4.0
ROUNDING_PER_POSITION = 1e-5
"""A mean deviation below this is float32 rounding of the overlap's sum, however many standard errors it is."""
_DRAFT_COLUMNS = (
    "token",
    "target_prob",
    "draft_prob",
    "overlap_ratio",
    "overlap_match",
    "draft_argmax",
    "draft_argmax_target_prob",
)


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

    @property
    def inside(self) -> BoolArray:
        """(N, T) which positions are part of a text."""
        longest = next(iter(self.columns.values())).shape[1]
        return np.asarray(np.arange(longest) < self.lengths[:, None], dtype=np.bool_)


def pad_texts(
    prompt: ArrayLike,
    repetition: ArrayLike,
    position: ArrayLike,
    end_reason: ArrayLike,
    columns: Mapping[str, ArrayLike],
) -> PaddedTexts:
    """Sort the recorded positions into texts; all arguments and columns are (M,), in any order of rows.

    Raises:
        ValueError: an empty table, columns of other lengths, an unknown or changing end reason, or a text whose
            positions are not 0 … length - 1, each once.
    """
    prompts, repetitions, positions = (np.asarray(values, dtype=np.int64) for values in (prompt, repetition, position))
    reasons = np.asarray(end_reason, dtype=np.str_)
    values = {name: np.asarray(column) for name, column in columns.items()}
    rows = prompts.size
    if rows == 0:
        raise ValueError("acceptance table: expected at least one text of one position, got no recorded position")
    sized = {"repetition": repetitions, "position": positions, "end_reason": reasons, **values}
    for name, column in sized.items():
        if column.shape != (rows,):
            raise ValueError(f"acceptance column {name}: expected ({rows},) as prompt has, got shape {column.shape}")
    order = np.lexsort((positions, repetitions, prompts))
    prompts, repetitions, positions, reasons = prompts[order], repetitions[order], positions[order], reasons[order]
    opens = np.ones(rows, dtype=np.bool_)
    opens[1:] = (np.diff(prompts) != 0) | (np.diff(repetitions) != 0)
    firsts = np.flatnonzero(opens)
    lengths = np.diff(np.append(firsts, rows))
    text = np.cumsum(opens) - 1
    expected = np.arange(rows) - firsts[text]
    for row in np.flatnonzero(positions != expected)[:1]:
        raise ValueError(
            f"acceptance table, prompt {prompts[row]}, repetition {repetitions[row]}: expected position "
            f"{expected[row]} (each from 0 on once), got {positions[row]}"
        )
    for row in np.flatnonzero((reasons != reasons[firsts[text]]) | ~np.isin(reasons, END_REASONS))[:1]:
        raise ValueError(
            f"acceptance table, prompt {prompts[row]}, repetition {repetitions[row]}: expected one end_reason of "
            f"{', '.join(END_REASONS)} at every position of a text, got {str(reasons[row])!r}"
        )
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


def are_lookups(columns: Iterable[str]) -> bool:
    """Whether these columns were recorded of lookups."""
    return "proposed_length" in columns


def needed_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that rounds are made of, among those of a recorded table."""
    return ("token", *LOOKUP_COLUMNS) if are_lookups(columns) else _DRAFT_COLUMNS


def acceptance_and_overlap(
    columns: Mapping[str, ArrayLike], *, acceptance_rule: str, draft_sampling: str
) -> tuple[FloatArray, FloatArray]:
    """(a_t, o_t) of a draft model in the shape of its columns.

    Where a probability is null (NaN: y lies outside the recomputed support, or its own is 0), o_t stands for a_t as its
    mean given the history.

    Raises:
        ValueError: an unknown rule or draft sampling, a missing column, or a value that is no probability.
    """
    _check_choice("acceptance_rule", acceptance_rule, get_args(AcceptanceRule))
    _check_choice("draft_sampling", draft_sampling, get_args(DraftSampling))
    if draft_sampling == "greedy":
        missing = [name for name in ("draft_argmax", "token") if name not in columns]
        if missing:
            raise ValueError(f"acceptance table: expected columns {', '.join(_DRAFT_COLUMNS)}, got no {missing[0]!r}")
        overlap = np.clip(probability_column(columns, "draft_argmax_target_prob"), 0.0, 1.0)
        drafted = np.asarray(columns["token"]) == np.asarray(columns["draft_argmax"])
        return drafted.astype(np.float64), overlap
    overlap = np.clip(probability_column(columns, f"overlap_{acceptance_rule}"), 0.0, 1.0)
    accepted = probability_column(columns, "draft_prob")
    if acceptance_rule == "ratio":
        target, ratio = probability_column(columns, "target_prob"), np.full(accepted.shape, np.nan)
        with np.errstate(over="ignore"):  # a ratio above 1 is 1
            np.divide(accepted, target, out=ratio, where=target > 0)
        accepted = ratio
    accepted = np.clip(accepted, 0.0, 1.0)
    return np.where(np.isnan(accepted), overlap, accepted), overlap


def recorded_rounds(
    texts: PaddedTexts,
    *,
    acceptance_rule: str,
    draft_sampling: str,
    gammas: Sequence[int],
    gamma_max: int | None = None,
    length_limits: ArrayLike | None = None,
) -> RenewalResult:
    """Expected rounds of N texts for every γ, sums by text; γ_max is the largest of them unless given.

    Raises:
        ValueError: as `renewal` and `renewal_by_start`, and for recorded values that are no probabilities.
    """
    depth = max(1, *gammas) if gamma_max is None else gamma_max
    if are_lookups(texts.columns):
        survival, ahead = lookup_survival(texts.columns, texts.lengths, depth)
        offered = np.minimum(texts.columns["proposed_length"], depth)
        ends = (texts.lengths, texts.ended_by_eos)
        return renewal_by_start(survival, ahead, offered, *ends, gammas, depth, length_limits=length_limits)
    a, o = acceptance_and_overlap(texts.columns, acceptance_rule=acceptance_rule, draft_sampling=draft_sampling)
    return renewal(a, o, texts.lengths, texts.ended_by_eos, gammas, depth, length_limits=length_limits)


def recorded_overlaps(texts: PaddedTexts, *, acceptance_rule: str, draft_sampling: str) -> FloatArray:
    """o_t of every position of every text, in one list; of lookups at the starts where something is proposed."""
    if are_lookups(texts.columns):
        means = lookup_overlap(texts.columns)
        return np.asarray(means[texts.inside & np.isfinite(means)], dtype=np.float64)
    found = acceptance_and_overlap(texts.columns, acceptance_rule=acceptance_rule, draft_sampling=draft_sampling)
    return found[1][texts.inside]


def alpha_overlap(overlaps: FloatArray) -> float | None:
    """The mean overlap over recorded positions, which is not what a decoder's rounds see; None without positions."""
    return float(overlaps.mean()) if overlaps.size else None


def alpha_accepted(accepted: ArrayLike, tested: ArrayLike) -> float | None:
    """Accepted over accepted plus rejected, sums of any shape pooled; None when nothing was tested."""
    total = float(np.sum(np.asarray(tested, dtype=np.float64)))
    return float(np.sum(np.asarray(accepted, dtype=np.float64))) / total if total > 0 else None


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        nearest = difflib.get_close_matches(str(value), allowed, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ValueError(f"{name}: expected {', '.join(allowed)}{hint}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class ChainCheck:
    """Do the recorded texts come from the recomputed sampling chain?"""

    deviation_per_position: float | None
    """Mean of a_t - o_t over tested positions; None when nothing was tested."""
    standard_errors: float | None
    """The sum over its standard error; None with fewer than two prompts or where that error is 0."""
    consistent: bool
    """False when the deviation is over 4 standard errors and more than rounding."""


def chain_check(
    accepted: ArrayLike, tested_overlap: ArrayLike, tested: ArrayLike, *, largest_variance: float
) -> ChainCheck:
    """Hold sum u_t (a_t - o_t), u_t = P(t is tested), against 0 in standard errors clustered by prompt.

    The sum is a martingale when the text was drawn from the target's recomputed probabilities. Few prompts may spread
    by less than it strays: the standard error is at least the root of sum o_t (1 - o_t), which bounds the variance of
    a_t in [0, 1] (Bhatia and Davis, Am. Math. Mon. 107, 2000).

    accepted, tested_overlap and tested are (P,) sums by prompt at one gamma of u_t a_t, u_t o_t and u_t;
    largest_variance is sum o_t (1 - o_t) over all positions.
    """
    differences = np.asarray(accepted, dtype=np.float64) - np.asarray(tested_overlap, dtype=np.float64)
    prompts, positions = differences.size, float(np.sum(np.asarray(tested, dtype=np.float64)))
    total = float(differences.sum())
    if positions <= 0 or prompts < 2:
        deviation = total / positions if positions > 0 else None
        return ChainCheck(deviation_per_position=deviation, standard_errors=None, consistent=True)
    error = max(math.sqrt(prompts) * float(differences.std(ddof=1)), math.sqrt(max(largest_variance, 0.0)))
    material = abs(total) / positions > ROUNDING_PER_POSITION
    return ChainCheck(
        deviation_per_position=total / positions,
        standard_errors=total / error if error > 0 else None,
        consistent=not (material and abs(total) > MAX_STANDARD_ERRORS * error),
    )


def repeated_ngram_share(tokens: ArrayLike, lengths: ArrayLike, n: int = 4) -> FloatArray:
    """Share of n-grams of each text that occurred in it before, (N,): near 1 for a loop, which makes acceptance good.

    tokens (N, T) padded, lengths (N,); NaN for texts shorter than n.

    Raises:
        ValueError: n under 1, or lengths outside 0 … T.
    """
    size = int(whole_numbers("n", n, minimum=1))
    ids: NDArray[Any] = np.asarray(tokens)
    counts = whole_numbers("lengths", lengths, minimum=0)
    if ids.ndim != 2 or counts.shape != ids.shape[:1] or bool((counts > ids.shape[1]).any()):
        raise ValueError(f"lengths: expected (N,), got shape {counts.shape} or a length over T for tokens {ids.shape}")
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
