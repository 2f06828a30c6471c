"""The renewal pass over a text: where rounds start, how many there are, and what they yield.

A round that starts at t and accepts j < γ drafts ends with a replacement, and the next starts at t + j + 1; one that
accepts all γ ends with a bonus, and the next starts at t + γ + 1. Every position is therefore either the bonus of a
round that started γ before it, or tested, and a tested position that is not accepted ends its round:

    u_t = 1 - v_{t-γ} Π_{i<γ} a_{t-γ+i}        P(position t is tested)
    v_{t+1} = 1 - u_t a_t,  v_0 = 1            P(a round starts at t + 1)

    E[rounds] = Σ v_t        E[time] = Σ v_t T_round(γ in force)
    Ω(γ) = 1 + Σ_j A_j(γ) - P(ends on an accepted EOS),    A_j(γ) = Σ_t v_t Ã[t,j] / Σ_t v_t,
    Ã[t,j] = Π_{i<j-1} a_{t+i} · o_{t+j-1}

Given the text, tests are independent with probability a_t, so over texts drawn from the target sums of a_t have the
expectation of the decoder that would have written them. In Ã the overlap stands for the last factor only: a_{t+j-1} has
mean o_{t+j-1} given everything before it, so the expectation stays and the variance of Ω falls. Overlap elsewhere would
be biased: o_{t+1} and a_t share y_t. Ω is a ratio of sums pooled over texts; its bias is of the order of 1/texts.

γ in force is min(γ, positions left before the length limit - 1); γ is not shrunk before an EOS, and an accepted EOS
ends the text without a bonus. Starts that count for Ω and A_j (the window) have gamma_max positions left before the
limit: no γ is shrunk in their past. A text that ended by EOS counts all its starts where its limit is not given; give
`length_limits` where texts may end by EOS within gamma_max of it.

    result = renewal(a, o, lengths, ended_by_eos, gammas=[1, 2, 4], gamma_max=8)
    result.tokens_per_round()            # Ω by γ, (3,)

N texts, T positions, G gammas, D gamma_max.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import LARGEST_WHOLE, BoolArray, FloatArray, IntArray, numbers, probabilities, whole_numbers
from specgauge.model.stats.bootstrap import sum_by_prompt

NO_LIMIT = LARGEST_WHOLE
"""The limit of a text that ended by EOS and whose own is not given: never reached."""


@dataclass(frozen=True, kw_only=True)
class TextEnds:
    """Where N texts end, why, and how far their decoder could have gone."""

    lengths: IntArray
    """(N,) positions of each text."""
    ended_by_eos: BoolArray
    """(N,) True where the last position is an end-of-text token."""
    limits: IntArray
    """(N,) positions the decoder was allowed; NO_LIMIT where unknown."""

    def of_rows(self, rows: IntArray) -> TextEnds:
        """Those of some texts."""
        return TextEnds(lengths=self.lengths[rows], ended_by_eos=self.ended_by_eos[rows], limits=self.limits[rows])

    def inside(self, longest: int) -> BoolArray:
        """(N, `longest`) True at the positions of each text."""
        return np.asarray(np.arange(longest) < self.lengths[:, None], dtype=np.bool_)


def text_ends(
    shape: tuple[int, ...], lengths: ArrayLike, ended_by_eos: ArrayLike, length_limits: ArrayLike | None
) -> TextEnds:
    """The checked ends of texts padded to `shape` (N, T); length_limits is (N,) or one number or None.

    A text that ended by length has its length as limit, whatever is given.

    Raises:
        ValueError: shapes that do not fit, a length over T, or a limit under a length.
    """
    size = whole_numbers("lengths", lengths, minimum=0)
    eos = np.asarray(ended_by_eos, dtype=np.bool_)
    if len(shape) != 2 or size.shape != shape[:1] or eos.shape != shape[:1]:
        raise ValueError(
            f"acceptance: expected (N, T), (N,), (N,), got shapes acceptance {shape}, lengths {size.shape}, "
            f"ended_by_eos {eos.shape}"
        )
    if bool((size > shape[1]).any()):
        raise ValueError(
            f"lengths: expected at most the width of the texts, got {int(size.max())} for texts padded to {shape[1]}"
        )
    limits = size.copy()
    if length_limits is None:
        limits[eos] = NO_LIMIT
    else:
        given = np.broadcast_to(whole_numbers("length_limits", length_limits, minimum=0), size.shape)
        if bool((given < size).any()):
            place = int(np.flatnonzero(given < size)[0])
            raise ValueError(
                f"length_limits (item {place + 1}): expected at least its length, got {given[place]} for a text of "
                f"{size[place]} positions"
            )
        limits[eos] = given[eos]
    return TextEnds(lengths=size, ended_by_eos=eos, limits=limits)


def gamma_axis(gammas: ArrayLike, gamma_max: int) -> tuple[IntArray, int]:
    """(gammas (G,), D) as whole numbers, each γ from 0 to D = gamma_max; ValueError otherwise."""
    depth = int(whole_numbers("gamma_max", gamma_max, minimum=1))
    drafts = np.atleast_1d(whole_numbers("gammas", gammas, minimum=0))
    if drafts.ndim != 1 or drafts.size == 0 or int(drafts.max()) > depth:
        raise ValueError(f"gammas: expected a list of numbers from 0 to gamma_max = {depth}, got {drafts.tolist()}")
    return drafts, depth


def within_texts(name: str, values: ArrayLike, lengths: IntArray) -> FloatArray:
    """Probabilities (N, T) with everything beyond the lengths (N,) set to zero, unread.

    Raises:
        ValueError: a value outside [0, 1] within a text.
    """
    array = np.asarray(values, dtype=np.float64)
    return probabilities(name, np.where(np.arange(array.shape[1]) < lengths[:, None], array, 0.0))


def sums_by_text(
    lengths: IntArray, cells: int, sums: Callable[[IntArray, int], Mapping[str, FloatArray]]
) -> dict[str, FloatArray]:
    """The sums of all texts (N, …), few texts of similar lengths at a time: arrays of so many cells a text fit.

    sums: those of the texts at some rows, cut to their longest.
    """
    order = np.argsort(lengths, kind="stable")
    size = max(1, CHUNK_CELLS // max(1, cells))
    chunks = [order[first : first + size] for first in range(0, max(order.size, 1), size)]
    parts = [sums(rows, int(lengths[rows].max(initial=0))) for rows in chunks]
    back = np.argsort(order, kind="stable")
    return {name: np.concatenate([part[name] for part in parts])[back] for name in parts[0]}


@dataclass(frozen=True, kw_only=True)
class RenewalResult:
    """Expected counts per text (N, G), given the text; add them up over texts or prompts, then divide."""

    gammas: IntArray
    """(G,) drafts per round."""
    gamma_max: int
    """D: starts in the window have this many positions left before the length limit."""
    tokens: IntArray
    """(N,) tokens of each text after the one sampled from the prefill."""
    rounds: FloatArray
    """E[rounds] of the whole text, a plain last step included."""
    starts: FloatArray
    """E[rounds that start in the window]."""
    survival: FloatArray
    """(N, G, D) E[rounds from the window whose first j drafts are all accepted]; zero for j over γ."""
    lost_bonus: FloatArray
    """E[rounds from the window that end on an accepted EOS], which commit no bonus."""
    tested: FloatArray
    """E[positions tested], Σ u_t, of the whole text."""
    accepted: FloatArray
    """E[drafts accepted], Σ u_t a_t, of the whole text."""
    tested_overlap: FloatArray
    """Σ u_t o_t: equals accepted in expectation when the text comes from the recomputed chain."""
    catch_ups: FloatArray
    """E[drafting rounds that follow a fully accepted one], whose first draft step feeds two tokens."""
    time_s: FloatArray | None
    """E[seconds] of the whole text, if costs were given."""
    rounds_by_drafts: FloatArray | None = None
    """(N, G, D + 1) E[rounds from the window that verify k drafts], k = 0 … D; None where every one verifies γ."""

    @property
    def committed(self) -> FloatArray:
        """(N, G) expected tokens committed by the rounds that start in the window: the numerator of Ω."""
        return np.asarray(self.starts + self.survival.sum(axis=2) - self.lost_bonus, dtype=np.float64)

    @property
    def full_acceptance(self) -> FloatArray:
        """(N, G) expected rounds from the window that accept all γ drafts: the numerator of A_γ."""
        picked = self.survival[:, np.arange(self.gammas.size), np.maximum(self.gammas, 1) - 1]
        return np.where(self.gammas > 0, picked, self.starts)

    def tokens_per_round(self) -> FloatArray:
        """Ω(γ), (G,), pooled over texts: rounds with gamma_max positions left; NaN where there is none."""
        return _ratio(self.committed.sum(axis=0), self.starts.sum(axis=0))

    def survival_rates(self) -> FloatArray:
        """A_j(γ), (G, D): P(the first j drafts of a round are all accepted) at that γ; NaN for j over γ.

        Each rate is unbiased by itself; in small samples they need not fall in j, since A_j averages overlaps of other
        positions than A_{j+1} does.
        """
        rates = _ratio(self.survival.sum(axis=0), self.starts.sum(axis=0)[:, None])
        rates[np.arange(self.gamma_max) >= self.gammas[:, None]] = np.nan
        return rates

    def by_prompt(self, prompts: ArrayLike) -> RenewalResult:
        """The same sums by prompt, prompts (N,) in rising order: the clusters of standard errors and bootstrap."""
        kept = ("gammas", "gamma_max")
        sums = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in kept}
        grouped: dict[str, Any] = {
            name: None if values is None else sum_by_prompt(values, prompts) for name, values in sums.items()
        }
        return replace(self, **grouped | {"tokens": grouped["tokens"].astype(np.int64)})


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    top, bottom = np.broadcast_arrays(numerator, denominator)
    result = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=bottom > 0)
    return result


CHUNK_CELLS = 4_000_000
"""Numbers of an array handled at once, about 32 MB for each of a few arrays."""


def renewal(
    acceptance: ArrayLike,
    overlap: ArrayLike,
    lengths: ArrayLike,
    ended_by_eos: ArrayLike,
    gammas: ArrayLike,
    gamma_max: int,
    costs_s: ArrayLike | None = None,
    *,
    length_limits: ArrayLike | None = None,
) -> RenewalResult:
    """Carry the renewal process along N texts at once for every γ; sums come back per text.

    Args:
        acceptance: (N, T) a_t, padded; beyond each length it is not read. Nulls must be filled before.
        overlap: (N, T) o_t = E[a_t | history].
        lengths: (N,) positions of each text (its tokens after the one sampled from the prefill), 0 … T.
        ended_by_eos: (N,) True where the last position is an end-of-text token; other texts ended at their limit.
        gammas: (G,) drafts per round, each from 0 (plain decoding) to gamma_max.
        gamma_max: D, the largest γ that results for Ω are to be compared with; it sets the window.
        costs_s: (D + 1,) seconds of a round by drafts in force, without Δ₂ (`catch_ups` counts where it is paid).
        length_limits: (N,) or one number: positions the decoder was allowed (max_new_tokens - 1); read of texts that
            ended by EOS.

    Raises:
        ValueError: shapes that do not fit, values outside [0, 1] within a text, a γ over gamma_max, or a limit under a
            length.
    """
    drafts, depth = gamma_axis(gammas, gamma_max)
    shape_of_texts = np.shape(acceptance)
    ends = text_ends(shape_of_texts, lengths, ended_by_eos, length_limits)
    if np.shape(overlap) != shape_of_texts:
        raise ValueError(f"overlap: expected {shape_of_texts} as acceptance, got shape {np.shape(overlap)}")
    costs = None if costs_s is None else numbers("costs_s", costs_s)
    if costs is not None and costs.shape != (depth + 1,):
        raise ValueError(f"costs_s: expected {depth + 1} seconds, of 0 … gamma_max drafts, got shape {costs.shape}")
    a, o = within_texts("acceptance", acceptance, ends.lengths), within_texts("overlap", overlap, ends.lengths)

    def sums(rows: IntArray, longest: int) -> dict[str, FloatArray]:
        return _sums(ends.of_rows(rows), a[rows, :longest], o[rows, :longest], costs, drafts, depth)

    found: dict[str, Any] = sums_by_text(ends.lengths, shape_of_texts[1] * (drafts.size + depth + 1), sums)
    return RenewalResult(gammas=drafts, gamma_max=depth, tokens=ends.lengths, **{"time_s": None} | found)


def run_products(acceptance: FloatArray, gamma_max: int) -> FloatArray:
    """R[j, n, t] = Π_{i<j} a_{t+i} for j = 0 … gamma_max: (n, T) -> (D + 1, n, T); zero where it leaves the text."""
    products = np.zeros((gamma_max + 1, *acceptance.shape))
    products[0] = 1.0
    for j in range(1, min(gamma_max, acceptance.shape[1]) + 1):
        reach = acceptance.shape[1] - j + 1
        np.multiply(products[j - 1, :, :reach], acceptance[:, j - 1 :], out=products[j, :, :reach])
    return products


def _starts_and_bonuses(
    products: FloatArray, acceptance: FloatArray, gammas: IntArray
) -> tuple[FloatArray, FloatArray]:
    """v_t and P(position t is the bonus of a full round), both (T, G, n), without regard to where texts end."""
    count, longest = acceptance.shape
    starts = np.ones((longest, gammas.size, count))
    full = np.empty_like(starts)
    bonus = np.zeros_like(starts)
    runs = products[gammas].transpose(2, 0, 1)
    index = np.arange(gammas.size)
    for t in range(longest):
        np.multiply(starts[t], runs[t], out=full[t])
        reached = gammas <= t
        bonus[t, reached] = full[t - gammas[reached], index[reached]]
        if t + 1 < longest:
            np.subtract(1.0, (1.0 - bonus[t]) * acceptance[:, t], out=starts[t + 1])
    return starts, bonus


def _sums(
    ends: TextEnds, a: FloatArray, overlap: FloatArray, costs_s: FloatArray | None, gammas: IntArray, depth: int
) -> dict[str, FloatArray]:
    """Every per-text sum of `RenewalResult`, (n, G) or (n, G, D), from a_t and o_t (n, T), zero beyond each text."""
    lengths, limits = ends.lengths, ends.limits
    products = run_products(a, depth)
    starts, bonus = _starts_and_bonuses(products, a, gammas)
    place = np.arange(a.shape[1])
    inside = ends.inside(a.shape[1])
    starts = np.where(inside.T[:, None, :], starts, 0.0).transpose(2, 1, 0)
    bonus = bonus.transpose(2, 1, 0)
    tested = np.where((inside & (place < limits[:, None] - 1))[:, None, :], 1.0 - bonus, 0.0)
    goes_on = (place + 1 < lengths[:, None]) & (place + 1 < limits[:, None] - 1)
    windowed = starts * (place + depth <= limits[:, None])[:, None, :]
    survival = windowed @ _ahead(products, overlap)
    survival[:, np.arange(depth) >= gammas[:, None]] = 0.0
    sums = {
        "rounds": starts.sum(axis=2),
        "starts": windowed.sum(axis=2),
        "survival": survival,
        "lost_bonus": lost_bonus(windowed, products.transpose(1, 2, 0), ends, gammas),
        "tested": tested.sum(axis=2),
        "accepted": (tested @ a[:, :, None])[:, :, 0],
        "tested_overlap": (tested @ overlap[:, :, None])[:, :, 0],
        "catch_ups": np.where(gammas > 0, (bonus @ goes_on[:, :, None].astype(np.float64))[:, :, 0], 0.0),
    }
    if costs_s is not None:
        sums["time_s"] = _time_s(starts, ends, costs_s, gammas)
    return sums


def _ahead(products: FloatArray, overlap: FloatArray) -> FloatArray:
    """Ã[n, t, j - 1] = Π_{i<j-1} a_{t+i} · o_{t+j-1} for j = 1 … D; zero where position t + j - 1 is not written."""
    count, longest = overlap.shape
    ahead = np.zeros((count, longest, products.shape[0] - 1))
    for j in range(1, min(ahead.shape[2], longest) + 1):
        reach = longest - j + 1
        np.multiply(products[j - 1, :, :reach], overlap[:, j - 1 :], out=ahead[:, :reach, j - 1])
    return ahead


def lost_bonus(windowed: FloatArray, survival: FloatArray, ends: TextEnds, gammas: IntArray) -> FloatArray:
    """Expected rounds, from starts in the window, that end on an accepted EOS: Σ_t v_t A[t, j] up to the EOS, (n, G).

    windowed: (n, G, T) v_t; survival: (n, T, D + 1) P(the first j drafts from t are all accepted), j = 0 … D.
    """
    lost = np.zeros(windowed.shape[:2])
    for drafts in range(1, survival.shape[2]):
        rows = np.flatnonzero(ends.ended_by_eos & (ends.lengths >= drafts))
        t = ends.lengths[rows] - drafts
        lost[rows] += np.where(gammas >= drafts, windowed[rows, :, t] * survival[rows, t, drafts][:, None], 0.0)
    return lost


def _time_s(starts: FloatArray, ends: TextEnds, costs_s: FloatArray, gammas: IntArray) -> FloatArray:
    """Σ_t v_t T_round(γ in force), (n, G): as if γ never shrank, then the last starts before a limit put right."""
    time_s = np.empty(starts.shape[:2])
    for index, gamma in enumerate(gammas):
        every = np.broadcast_to(costs_s[gamma], starts[:, index].shape)
        time_s[:, index] = np.einsum("nt,nt->n", starts[:, index], every)
    for left in range(1, int(gammas.max()) + 1):
        rows = np.flatnonzero((ends.limits >= left) & (ends.limits - left < ends.lengths))
        change = costs_s[left - 1] - costs_s[gammas]
        time_s[rows] += np.where(gammas >= left, starts[rows, :, ends.limits[rows] - left] * change, 0.0)
    return time_s
