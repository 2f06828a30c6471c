"""Recorded texts as a replay needs them: acceptance and the draft's signals along each, and signals off the path.

A policy that stops while drafting sees the draft's confidence of every draft it makes. Where all drafts before it were
accepted, that is what the teacher-forced pass recorded at its position. After a rejection, which the policy does not
know of, the drafter goes on from its own rejected token; those signals come from `Rollouts`: chains that begin with a
rejected draft. Only some starts are rolled out. Another start takes the chain of the sampled start nearest in the
draft's top probability, in its own text where that has any, else in all texts (`off_path` is "measured"; chains that
ended early keep their last signals). Without any rollouts it takes what was recorded on the path after a random other
position of all texts, which is a guess (`off_path` is "assumed").

    texts = replay_texts(judged, prompts=…, repetitions=…, top_probs=…, entropies_nats=…, gamma_max=6)

Lookups are recorded by start instead (`lookup_texts`): what a round that starts there is offered, how many of these
drafts the text goes on with, and how many tokens matched. Given the text nothing is left to chance and nothing lies off
the path. A lookup's confidence in a draft is `specgauge.model.acceptance.lookups.confidence`; its entropy is 0, being
one-hot.

N texts, T positions, C chains, D gamma_max.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.lookups import RecordedLookups, confidence
from specgauge.model.acceptance.renewal import JudgedTexts, within_texts
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


@dataclass(frozen=True, kw_only=True)
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
        return LookupStarts(offered=self.offered[rows], matching=self.matching[rows], matched=self.matched[rows])


@dataclass(frozen=True, kw_only=True)
class ReplayTexts:
    """N texts, padded to T positions."""

    judged: JudgedTexts
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
    """What lookups offer; None where a model drafts. The acceptance of lookups is not a matter of positions, and 0."""

    @property
    def inside(self) -> BoolArray:
        """(N, T) which positions are part of a text."""
        return np.asarray(np.arange(self.top_probs.shape[1]) < self.judged.lengths[:, None], dtype=np.bool_)

    def of_prompts(self, prompts: ArrayLike) -> ReplayTexts:
        """The texts of these prompts, in the same order; their chains stay as they are."""
        rows = np.flatnonzero(np.isin(self.prompts, np.asarray(prompts)))
        judged = self.judged
        return replace(
            self,
            judged=JudgedTexts(
                acceptance=judged.acceptance[rows],
                lengths=judged.lengths[rows],
                ended_by_eos=judged.ended_by_eos[rows],
                limits=judged.limits[rows],
            ),
            prompts=self.prompts[rows],
            repetitions=self.repetitions[rows],
            top_probs=self.top_probs[rows],
            entropies_nats=self.entropies_nats[rows],
            chains=replace(self.chains, chain_of=self.chains.chain_of[rows]),
            lookups=None if self.lookups is None else self.lookups.of_rows(rows),
        )


def replay_texts(
    judged: JudgedTexts,
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

    Raises ValueError for shapes that do not fit, texts without a position, signals that are no probability or entropy
    within a text, and rollouts of which none belongs to these texts.
    """
    shape = judged.acceptance.shape
    numbers_of = np.asarray(prompts, dtype=np.int64), np.asarray(repetitions, dtype=np.int64)
    found = (np.shape(top_probs), np.shape(entropies_nats), numbers_of[0].shape, numbers_of[1].shape)
    if found != (shape, shape, shape[:1], shape[:1]):
        raise ValueError(
            f"signals: found shapes {', '.join(map(str, found))} of top_probs, entropies_nats, prompts, repetitions; "
            f"allowed are {shape}, {shape}, {shape[:1]}, {shape[:1]} as acceptance has"
        )
    tops = within_texts("draft_top_prob", top_probs, judged.lengths)
    inside = np.arange(shape[1]) < judged.lengths[:, None]
    entropies = np.where(inside, np.asarray(entropies_nats, dtype=np.float64), 0.0)
    if not bool((np.isfinite(entropies) & (entropies >= 0)).all()):
        raise ValueError("draft_entropy_nats: found a value below 0 or unknown; allowed are nats of 0 or more")
    if not bool(inside.any()):
        raise ValueError("replay: found no recorded position; allowed is at least one text of one position")
    steps = max(gamma_max - 1, 1)
    where = _Where(prompts=numbers_of[0], repetitions=numbers_of[1], inside=inside, tops=tops, entropies=entropies)
    chains = _assumed(where, steps, seed) if rollouts is None else _measured(where, rollouts, steps)
    return ReplayTexts(
        judged=judged,
        prompts=numbers_of[0],
        repetitions=numbers_of[1],
        top_probs=tops,
        entropies_nats=entropies,
        chains=chains,
    )


def lookup_texts(
    judged: JudgedTexts, *, prompts: ArrayLike, repetitions: ArrayLike, lookups: RecordedLookups, matched: ArrayLike
) -> ReplayTexts:
    """Texts of lookups: what was recorded of every start (N, T), and how many tokens matched there (N, T).

    judged: lengths and limits; its acceptance is not read. Raises ValueError for shapes that do not fit, texts without
    a position, and matched tokens that do not go with what is offered.
    """
    shape = judged.acceptance.shape
    inside = np.arange(shape[1]) < judged.lengths[:, None]
    found = whole_numbers("lookup_match", matched, minimum=0)
    if found.shape != shape or lookups.proposed_length.shape != shape:
        raise ValueError(
            f"lookups: found shapes {found.shape}, {lookups.proposed_length.shape}; allowed is that of texts, {shape}"
        )
    if not bool(inside.any()):
        raise ValueError("replay: found no recorded position; allowed is at least one text of one position")
    offered = np.where(inside, lookups.proposed_length, 0)
    if bool(((found == 0) & (offered > 0)).any()):
        raise ValueError("lookup_match: found 0 where drafts are offered; allowed is 1 or more tokens there")
    nothing = np.zeros((1, 1))
    return ReplayTexts(
        judged=judged,
        prompts=np.asarray(prompts, dtype=np.int64),
        repetitions=np.asarray(repetitions, dtype=np.int64),
        top_probs=confidence(np.where(inside, found, 0)),
        entropies_nats=np.zeros(shape),
        chains=Chains(
            top_probs=nothing,
            entropies_nats=nothing,
            chain_of=np.zeros(shape, dtype=np.int64),
            off_path="measured",
        ),
        lookups=LookupStarts(
            offered=offered,
            matching=np.where(inside, lookups.match_length, 0),
            matched=np.where(inside, found, 0),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Where:
    """The texts' positions and their signals on the path."""

    prompts: IntArray
    repetitions: IntArray
    inside: BoolArray
    tops: FloatArray
    entropies: FloatArray


def _assumed(where: _Where, steps: int, seed: int) -> Chains:
    """A chain for each position: what was recorded on the path from there on, the last signals kept at the end."""
    count, longest = where.inside.shape
    texts, places = np.nonzero(where.inside)
    last = where.inside.sum(axis=1)[texts] - 1
    ahead = np.minimum(places[:, None] + np.arange(steps), last[:, None])
    draws = uniforms(
        seed, where.prompts[:, None], where.repetitions[:, None], np.arange(longest)[None, :], OTHER_POSITION
    )
    own = np.zeros((count, longest), dtype=np.int64)
    own[texts, places] = np.arange(texts.size)
    others = max(texts.size - 1, 1)
    chain_of = (own + 1 + (draws * others).astype(np.int64)) % texts.size
    return Chains(
        top_probs=where.tops[texts[:, None], ahead],
        entropies_nats=where.entropies[texts[:, None], ahead],
        chain_of=np.where(where.inside, chain_of, 0),
        off_path="assumed",
    )


def _measured(where: _Where, rollouts: Rollouts, steps: int) -> Chains:
    """One chain per sampled start of these texts, and the nearest of them for every position."""
    row_of = {key: row for row, key in enumerate(zip(where.prompts.tolist(), where.repetitions.tolist(), strict=True))}
    keys = zip(rollouts.prompt.tolist(), rollouts.repetition.tolist(), strict=True)
    rows = np.array([row_of.get(key, -1) for key in keys], dtype=np.int64)
    starts = rollouts.start
    longest = where.inside.shape[1]
    known = (rows >= 0) & (starts >= 0) & (starts < longest) & (rollouts.depth >= 1) & (rollouts.depth <= steps)
    known &= where.inside[np.maximum(rows, 0), np.clip(starts, 0, longest - 1)]
    if not bool((known & (rollouts.depth == 1)).any()):
        raise ValueError("rollouts: found no chain of these texts; leave them out, or measure them again")
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
        chain_of=_nearest(where, sampled // longest, sampled % longest),
        off_path="measured",
    )


def _nearest(where: _Where, rows: IntArray, places: IntArray) -> IntArray:
    """(N, T) the sampled start nearest in top probability: in the same text where it has any, else among all."""
    tops = where.tops[rows, places]
    chain_of = np.zeros(where.inside.shape, dtype=np.int64)
    for text in range(where.inside.shape[0]):
        own = np.flatnonzero(rows == text)
        among = own if own.size else np.arange(rows.size)
        chain_of[text] = among[_closest(tops[among], where.tops[text])]
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
