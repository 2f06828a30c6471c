"""Draft chains off the target's path: what a draft says of itself after a token of its own that will be rejected.

A policy that reads the draft's signals does not know yet that a draft was rejected, and a teacher-forced pass has those
signals on the target's path only.  So from sampled positions u of the target's texts a chain is followed that begins
with a draft that is rejected there, given that the target wrote y:

    ratio rule      drawn from the normalised (draft − target)₊         where draft[y] < target[y]
    match rule      drawn from the draft without y                      where draft[y] < 1
    greedy draft    its argmax                                          where that is not y

Elsewhere no draft is rejected, and no chain starts.  The chain goes on with the draft's own draws.

    frame = measure_rollouts(target, draft, texts, settings, starts_per_text=8, depth=6, seed=0, …)

Position u is the text's token u + 1, after the prompt and tokens 0 … u, as in
`specgauge.bench.acceptance.teacher_forced`.
Shapes: B texts, N positions of a chunk, R chains, V vocabulary (the larger of the two models').
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from specgauge.bench.acceptance.teacher_forced import (
    Histories,
    logit_chunks,
    sorted_frame,
    text_batches,
    text_cache,
)
from specgauge.bench.cache.cache import RowCache, forward
from specgauge.bench.decoding.drafters import confidence
from specgauge.bench.decoding.plain import check_room, pad_right
from specgauge.bench.decoding.records import NonFiniteLogitsError, Text, broken_logits, refuse_places
from specgauge.bench.decoding.sampling import History, draw, lowest_argmax, probabilities, processed_logits, widen
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.sampling import SamplingSettings, uniforms

_WHOLE = ("prompt", "repetition", "start", "depth", "token")
_FLOAT = ("top_prob", "entropy_nats")
CHOICE = 1 << 21
"""The purpose of the uniforms that choose the starts; that of the token at depth d is CHOICE + d."""
LEAST_REJECTION = 1e-6
"""A draft that is rejected more rarely than that is rejected by rounding alone."""


@dataclass(frozen=True, kw_only=True)
class Drafting:
    """How drafts are drawn and accepted."""

    settings: SamplingSettings
    acceptance_rule: AcceptanceRule
    draft_sampling: DraftSampling

    @property
    def is_greedy(self) -> bool:
        """Whether the draft proposes its argmax."""
        return self.draft_sampling == "greedy" or self.settings.temperature == 0.0

    @property
    def needs_target(self) -> bool:
        """Whether the target's distribution says which draft is rejected."""
        return not self.is_greedy and self.acceptance_rule == "ratio"


@dataclass(frozen=True, kw_only=True)
class _Start:
    """A chain before it is followed."""

    text: int
    position: int
    token: int
    """The draft that is rejected there."""
    steps: int
    """How far the chain may go inside the draft's context."""


def measure_rollouts(
    target: LoadedModel,
    draft: LoadedModel,
    texts: Sequence[Text],
    settings: SamplingSettings,
    *,
    starts_per_text: int,
    depth: int,
    seed: int,
    acceptance_rule: AcceptanceRule,
    draft_sampling: DraftSampling,
    batch_size: int,
    chunk: int = 128,
    progress: Callable[[float], object] | None = None,
) -> pd.DataFrame:
    """One row per step of every chain: prompt, repetition, start, depth, token, top_prob, entropy_nats.

    At ``depth`` 1 … D ``token`` is fed, the rejected draft first; ``top_prob`` and ``entropy_nats`` are those of the
    draft's own distribution after it, before any processor.  Starts are drawn without replacement from the positions of
    a text where a draft can be rejected; a text with fewer than ``starts_per_text`` gives all it has.  A chain ends
    where the draft's context does.  Everything is a function of (seed, prompt, repetition, start), whatever the batch.

    progress: told how many texts are done, parts of them included.

    Raises:
        ValueError: a text longer than the draft's context.
        NonFiniteLogitsError: either model's logits are not numbers.
    """
    drafting = Drafting(settings=settings, acceptance_rule=acceptance_rule, draft_sampling=draft_sampling)
    batches = text_batches(texts, batch_size)
    for text in (text for batch in batches for text in batch):
        check_room(draft, len(text.prompt_tokens), len(text.tokens), text.prompt)
    rows: list[tuple[int | float, ...]] = []
    done = 0
    for batch in batches:
        cache = text_cache(draft, batch)
        rejected = _rejected(target, draft, batch, drafting, cache, seed=seed, chunk=chunk)
        starts = [
            start
            for index, text in enumerate(batch)
            for start in _starts(draft, text, index, rejected[index], starts_per_text, depth, seed)
        ]
        for first in range(0, len(starts), batch_size):
            _follow(draft, batch, starts[first : first + batch_size], drafting, cache, seed, rows)
            if progress is not None:
                progress(done + len(batch) * min(1.0, (first + batch_size) / len(starts)))
        done += len(batch)
    frame = pd.DataFrame(rows, columns=[*_WHOLE, *_FLOAT])
    return sorted_frame(frame, _WHOLE, _FLOAT, ("prompt", "repetition", "start", "depth"))


def rejected_draft_masses(
    target_probs: Tensor | None, draft_probs: Tensor, tokens: Tensor, drafting: Drafting
) -> tuple[Tensor, Tensor]:
    """((..., V) masses of the draft that is rejected, (...) whether one can be, given the target's tokens (...)).

    draft_probs (..., V) is what drafts are drawn from, one-hot where the draft is greedy; target_probs (..., V) is only
    used by the ratio rule, where the draft is not greedy.
    """
    own = draft_probs.gather(-1, tokens[..., None])
    if drafting.needs_target:
        assert target_probs is not None
        wanted = target_probs.gather(-1, tokens[..., None])
        can_be = wanted - own > LEAST_REJECTION * wanted
        return (draft_probs.double() - target_probs.double()).clamp(min=0.0), can_be[..., 0]
    others = draft_probs.double().scatter(-1, tokens[..., None], 0.0)
    return others, others.sum(dim=-1) > LEAST_REJECTION


@torch.inference_mode()
def _rejected(
    target: LoadedModel,
    draft: LoadedModel,
    texts: Sequence[Text],
    drafting: Drafting,
    cache: RowCache,
    *,
    seed: int,
    chunk: int,
) -> list[list[int]]:
    """By text, the draft that is rejected at each position, -1 where none is; the cache then holds the texts."""
    device, settings = target.device, drafting.settings
    scored, valid = pad_right([text.tokens[1:] for text in texts], 0, device)
    histories = Histories(texts, settings, device)
    uniform = _uniforms(seed, texts, np.arange(scored.shape[1]), 1, device)
    of_target: Iterator[Tensor | None] = logit_chunks(target, texts, chunk) if drafting.needs_target else repeat(None)
    found, start = [], 0
    for draft_logits, target_logits in zip(logit_chunks(draft, texts, chunk, cache), of_target, strict=False):
        stop = start + draft_logits.shape[1]
        for model, logits in ((draft, draft_logits), (target, target_logits)):
            if logits is not None:
                broken = broken_logits(logits).to(device) & valid[:, start:stop]
                refuse_places(model.name, texts, broken, start)
        widths = [logits.shape[-1] for logits in (draft_logits, target_logits) if logits is not None]
        vocabulary = max(target.vocabulary_rows, *widths)
        seen = histories.along(start, stop, vocabulary)
        draft_probs = _proposals(widen(draft_logits.to(device), vocabulary), drafting, seen)
        target_probs = None
        if target_logits is not None:
            target_probs = probabilities(widen(target_logits.to(device), vocabulary), settings, seen)
        masses, can_be = rejected_draft_masses(target_probs, draft_probs, scored[:, start:stop], drafting)
        can_be &= valid[:, start:stop] & (histories.fed[:, start:stop] < draft.vocabulary_rows)
        can_be &= masses.sum(dim=-1) > 0
        found.append(draw(masses, uniform[:, start:stop]).masked_fill(~can_be, -1))
        start = stop
    return [row.tolist() for row in torch.cat(found, dim=1)]


def _proposals(logits: Tensor, drafting: Drafting, seen: Tensor | None) -> Tensor:
    """(..., V) what drafts are drawn from."""
    if not drafting.is_greedy:
        return probabilities(logits, drafting.settings, seen)
    argmax = lowest_argmax(processed_logits(logits, drafting.settings, seen)).clamp(max=logits.shape[-1] - 1)
    return torch.zeros_like(logits).scatter_(-1, argmax[..., None], 1.0)


def _starts(
    draft: LoadedModel, text: Text, index: int, rejected: Sequence[int], most: int, depth: int, seed: int
) -> list[_Start]:
    """The chains of one text, in the order of their positions."""
    steps = [depth] * len(rejected)
    if draft.max_context is not None:
        first_free = len(text.prompt_tokens) + 1
        steps = [min(depth, draft.max_context - first_free - position) for position in range(len(rejected))]
    usable = [position for position, token in enumerate(rejected) if token >= 0 and steps[position] > 0]
    keys = uniforms(seed, text.prompt, text.repetition, np.array(usable, dtype=np.int64), CHOICE)
    chosen = sorted(usable[i] for i in np.argsort(keys, kind="stable")[:most])
    return [_Start(text=index, position=p, token=rejected[p], steps=steps[p]) for p in chosen]


@torch.inference_mode()
def _follow(
    draft: LoadedModel,
    texts: Sequence[Text],
    starts: Sequence[_Start],
    drafting: Drafting,
    held: RowCache,
    seed: int,
    rows: list[tuple[int | float, ...]],
) -> None:
    """Feed each chain step by step from a copy of its text's cache; append the rows of the steps inside the context."""
    device, last = draft.device, max(start.steps for start in starts)
    prefixes = [len(texts[start.text].prompt_tokens) + start.position + 1 for start in starts]
    cache = held.copied_rows([start.text for start in starts], tokens=max(prefixes) + last)
    token = torch.tensor([start.token for start in starts], device=device)
    chains = [texts[start.text] for start in starts]
    seen = None
    if drafting.settings.repetition_penalty != 1.0:
        written = [c.prompt_tokens + c.tokens[: s.position + 1] for c, s in zip(chains, starts, strict=True)]
        seen = History(len(starts), draft.vocabulary_rows, device).update(written)
    positions = np.array([start.position for start in starts])[:, None]
    limits = [prefix + start.steps - 1 for prefix, start in zip(prefixes, starts, strict=True)]
    for depth in range(1, last + 1):  # a chain that has ended feeds its last place again
        cache.set_lengths([min(p + depth - 1, limit) for p, limit in zip(prefixes, limits, strict=True)])
        logits = forward(draft.model, cache, token[:, None], keep=1)[:, -1]
        tops, entropies = (values.tolist() for values in confidence(logits))
        fed = token.tolist()
        for row, start in enumerate(starts):
            if depth > start.steps:
                continue
            if tops[row] != tops[row]:
                raise NonFiniteLogitsError(draft.name, chains[row].prompt, start.position + depth)
            found = (start.position, depth, fed[row], tops[row], entropies[row])
            rows.append((chains[row].prompt, chains[row].repetition, *found))
        if depth == last:
            break
        if seen is not None:
            seen.scatter_(1, token[:, None], True)
        probs = _proposals(logits.float(), drafting, seen)
        token = draw(probs, _uniforms(seed, chains, positions, depth + 1, device)[:, 0])


def _uniforms(seed: int, texts: Sequence[Text], positions: Any, depth: int, device: torch.device) -> Tensor:
    """(rows, positions) uniforms of the tokens at a depth of chains that start there; positions (T,) or (rows, T)."""
    prompts = np.array([text.prompt for text in texts])[:, None]
    repetitions = np.array([text.repetition for text in texts])[:, None]
    values = uniforms(seed, prompts, repetitions, positions, CHOICE + depth)
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)
