"""Recorded texts as a replay needs them: acceptance and the draft's signals along each, and signals off the path.

Up to the first rejection a policy that stops while drafting sees what the teacher-forced pass recorded. After it,
unknown to the policy, the drafter goes on from its own rejected token; those signals come from `Rollouts`. A start that
was not rolled out takes the chain of the sampled start nearest in the draft's top probability, in its own text where
that has any, else in all texts (`off_path` is "measured"; chains that ended early keep their last signals). Without
rollouts it takes what was recorded after a random other position of all texts (`off_path` is "assumed").

    texts = replay_texts(acceptance, ends, prompts=…, repetitions=…, top_probs=…, entropies_nats=…, gamma_max=6)

Lookups are recorded by start (`lookup_texts`); given the text nothing is left to chance, and nothing lies off the path.
A lookup's confidence in a draft is `specgauge.model.acceptance.lookups.confidence`; its entropy is 0.

N texts, T positions, C chains, D gamma_max.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.lookups import confidence
from specgauge.model.acceptance.renewal import TextEnds, within_texts
from specgauge.model.checks import BoolArray, FloatArray, IntArray, whole_numbers
from specgauge.model.sampling import uniforms

OTHER_POSITION = 9
"""The purpose of the uniforms that pick a position in place of a rollout."""

OffPath = Literal["measured", "assumed"]


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """Draft chains that begin with a rejected draft, one row per step; arrays (M,), in any order."""

    prompt: IntArray
    repetition: IntArray
    start: IntArray
    """The position whose draft was rejected."""
    depth: IntArray
    """1 for the signals after feeding the rejected draft, 2 for those after the next one, …"""
    top_prob: FloatArray
    entropy_nats: FloatArray


@dataclass(frozen=True, kw_only=True)
class Chains:
    """Signals after a rejection, and which of them follow each position."""

    top_probs: FloatArray
    """(C, max(D - 1, 1)) largest probability of the draft 1, 2, … steps after the rejected one."""
    entropies_nats: FloatArray
    chain_of: IntArray
    """(N, T) the chain after a rejection at each position."""
    off_path: OffPath


@dataclass(frozen=True)
class LookupStarts:
    """What a round is offered that starts at a position, (N, T) each."""

    offered: IntArray
    """Drafts."""
    matching: IntArray
    """Of them, those from the first on that the text goes on with."""
    matched: IntArray
    """Tokens of the text's end that were found earlier in it; 0 where nothing is offered."""

    def of_rows(self, rows: IntArray) -> LookupStarts:
        """Those of some texts."""
        return LookupStarts(self.offered[rows], self.matching[rows], self.matched[rows])


@dataclass(frozen=True, kw_only=True)
class ReplayTexts:
    """N texts, padded to T positions."""

    ends: TextEnds
    acceptance: FloatArray
    """(N, T) a_t, zero beyond each text; of lookups 0, as theirs is not a matter of positions."""
    prompts: IntArray
    """(N,)"""
    repetitions: IntArray
    """(N,)"""
    top_probs: FloatArray
    """(N, T) the draft's largest probability where it drafts this position."""
    entropies_nats: FloatArray
    """(N, T)"""
    chains: Chains
    lookups: LookupStarts | None = None
    """What lookups offer; None where a model drafts."""

    @property
    def inside(self) -> BoolArray:
        """(N, T) which positions are part of a text."""
        return self.ends.inside(self.top_probs.shape[1])

    def of_prompts(self, prompts: ArrayLike) -> ReplayTexts:
        """The texts of these prompts, in the same order; their chains stay as they are."""
        rows = np.flatnonzero(np.isin(self.prompts, np.asarray(prompts)))
        return replace(
            self,
            ends=self.ends.of_rows(rows),
            acceptance=self.acceptance[rows],
            prompts=self.prompts[rows],
            repetitions=self.repetitions[rows],
            top_probs=self.top_probs[rows],
            entropies_nats=self.entropies_nats[rows],
            chains=replace(self.chains, chain_of=self.chains.chain_of[rows]),
            lookups=None if self.lookups is None else self.lookups.of_rows(rows),
        )


def replay_texts(
    acceptance: ArrayLike,
    ends: TextEnds,
    *,
    prompts: ArrayLike,
    repetitions: ArrayLike,
    top_probs: ArrayLike,
    entropies_nats: ArrayLike,
    gamma_max: int,
    rollouts: Rollouts | None = None,
    seed: int = 0,
) -> ReplayTexts:
    """Join acceptance with signals, all (N, T) or (N,), and find every position's chain.

    Raises:
        ValueError: shapes that do not fit, texts without a position, acceptance or signals that are no probability or
            entropy within a text, or rollouts of which none belongs to these texts.
    """
    shape, one_each = np.shape(acceptance), ends.lengths.shape
    found = (np.shape(top_probs), np.shape(entropies_nats), np.shape(prompts), np.shape(repetitions))
    if found != (shape, shape, one_each, one_each):
        raise ValueError(
            f"signals: expected {shape}, {shape}, {one_each}, {one_each} as acceptance has, got shapes "
            f"{', '.join(map(str, found))} of top_probs, entropies_nats, prompts, repetitions"
        )
    tops = within_texts("draft_top_prob", top_probs, ends.lengths)
    entropies = np.where(ends.inside(shape[1]), np.asarray(entropies_nats, dtype=np.float64), 0.0)
    if not bool((np.isfinite(entropies) & (entropies >= 0)).all()):
        raise ValueError("draft_entropy_nats: expected nats of 0 or more, got a value below 0 or unknown")
    a = within_texts("acceptance", acceptance, ends.lengths)
    texts = _on_path(ends, a, tops, entropies, prompts, repetitions)
    steps = max(gamma_max - 1, 1)
    chains = _assumed(texts, steps, seed) if rollouts is None else _measured(texts, rollouts, steps)
    return replace(texts, chains=chains)


def lookup_texts(
    ends: TextEnds,
    *,
    prompts: ArrayLike,
    repetitions: ArrayLike,
    offered: ArrayLike,
    matching: ArrayLike,
    matched: ArrayLike,
) -> ReplayTexts:
    """Texts of lookups, from what was recorded of every start; offered, matching, matched (N, T) as `LookupStarts`.

    Raises:
        ValueError: shapes that do not fit, texts without a position, or matched tokens that do not go with what is
            offered.
    """
    names = ("proposed_length", "match_length", "lookup_match")
    values = [
        whole_numbers(name, value, minimum=0) for name, value in zip(names, (offered, matching, matched), strict=True)
    ]
    shape = values[0].shape
    if any(value.shape != shape for value in values) or shape[:1] != ends.lengths.shape:
        raise ValueError(
            f"lookups: expected one shape (N, T), got shapes {', '.join(str(value.shape) for value in values)} for "
            f"{ends.lengths.size} texts"
        )
    inside = ends.inside(shape[1])
    starts = LookupStarts(*(np.where(inside, value, 0) for value in values))
    if bool(((starts.matched == 0) & (starts.offered > 0)).any()):
        raise ValueError("lookup_match: expected 1 or more tokens there, got 0 where drafts are offered")
    tops, nothing = confidence(starts.matched), np.zeros(shape)
    return replace(_on_path(ends, nothing, tops, nothing, prompts, repetitions), lookups=starts)


def _on_path(
    ends: TextEnds, a: FloatArray, tops: FloatArray, entropies: FloatArray, prompts: ArrayLike, repetitions: ArrayLike
) -> ReplayTexts:
    """Texts whose rejections lead nowhere: one chain of no confidence."""
    if not bool(ends.lengths.any()):
        raise ValueError("replay: expected at least one text of one position, got no recorded position")
    nothing, first = np.zeros((1, 1)), np.zeros(tops.shape, dtype=np.int64)
    return ReplayTexts(
        ends=ends,
        acceptance=a,
        prompts=np.asarray(prompts, dtype=np.int64),
        repetitions=np.asarray(repetitions, dtype=np.int64),
        top_probs=tops,
        entropies_nats=entropies,
        chains=Chains(top_probs=nothing, entropies_nats=nothing, chain_of=first, off_path="measured"),
    )


def _assumed(texts: ReplayTexts, steps: int, seed: int) -> Chains:
    """A chain for each position: what was recorded on the path from there on, the last signals kept at the end."""
    count, longest = texts.inside.shape
    rows, places = np.nonzero(texts.inside)
    last = texts.ends.lengths[rows] - 1
    ahead = np.minimum(places[:, None] + np.arange(steps), last[:, None])
    keys = (texts.prompts[:, None], texts.repetitions[:, None], np.arange(longest))
    draws = uniforms(seed, *keys, OTHER_POSITION)
    own = np.zeros((count, longest), dtype=np.int64)
    own[rows, places] = np.arange(rows.size)
    others = max(rows.size - 1, 1)
    chain_of = (own + 1 + (draws * others).astype(np.int64)) % rows.size
    return Chains(
        top_probs=texts.top_probs[rows[:, None], ahead],
        entropies_nats=texts.entropies_nats[rows[:, None], ahead],
        chain_of=np.where(texts.inside, chain_of, 0),
        off_path="assumed",
    )


def _measured(texts: ReplayTexts, rollouts: Rollouts, steps: int) -> Chains:
    """One chain per sampled start of these texts, and the nearest of them for every position."""
    row_of = {key: row for row, key in enumerate(zip(texts.prompts.tolist(), texts.repetitions.tolist(), strict=True))}
    keys = zip(rollouts.prompt.tolist(), rollouts.repetition.tolist(), strict=True)
    rows = np.array([row_of.get(key, -1) for key in keys], dtype=np.int64)
    starts = rollouts.start
    longest = texts.inside.shape[1]
    known = (rows >= 0) & (starts >= 0) & (starts < longest) & (rollouts.depth >= 1) & (rollouts.depth <= steps)
    known &= texts.inside[np.maximum(rows, 0), np.clip(starts, 0, longest - 1)]
    if not bool((known & (rollouts.depth == 1)).any()):
        raise ValueError("rollouts: expected chains of these texts, got none; leave them out, or measure them again")
    places = rows[known] * longest + starts[known]
    sampled = np.unique(places[rollouts.depth[known] == 1])
    chain = np.searchsorted(sampled, places)
    fits = (chain < sampled.size) & (sampled[np.minimum(chain, sampled.size - 1)] == places)
    signals = []
    for values in (rollouts.top_prob, rollouts.entropy_nats):
        table = np.full((sampled.size, steps), np.nan)
        table[chain[fits], rollouts.depth[known][fits] - 1] = values[known][fits]
        for step in range(1, steps):
            table[:, step] = np.where(np.isnan(table[:, step]), table[:, step - 1], table[:, step])
        signals.append(table)
    return Chains(
        top_probs=signals[0],
        entropies_nats=signals[1],
        chain_of=_nearest(texts, sampled // longest, sampled % longest),
        off_path="measured",
    )


def _nearest(texts: ReplayTexts, rows: IntArray, places: IntArray) -> IntArray:
    """(N, T) the sampled start nearest in top probability: in the same text where it has any, else among all."""
    tops = texts.top_probs[rows, places]
    chain_of = np.zeros(texts.inside.shape, dtype=np.int64)
    for text in range(texts.inside.shape[0]):
        own = np.flatnonzero(rows == text)
        among = own if own.size else np.arange(rows.size)
        chain_of[text] = among[_closest(tops[among], texts.top_probs[text])]
        chain_of[text, places[own]] = own
    return chain_of


def _closest(values: FloatArray, wanted: FloatArray) -> IntArray:
    """For each wanted (T,) the index of the nearest of values (C,), the lower of two as near."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    right = np.clip(np.searchsorted(ranked, wanted), 0, ranked.size - 1)
    left = np.maximum(right - 1, 0)
    nearer = np.where(np.abs(wanted - ranked[left]) <= np.abs(ranked[right] - wanted), left, right)
    return np.asarray(order[nearer], dtype=np.int64)
