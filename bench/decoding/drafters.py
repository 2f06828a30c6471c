"""Where drafts come from: the interface of every drafter, and the draft model.

A drafter proposes up to γ tokens for every row and is told afterwards what was accepted.  A draft model keeps its own
cache.  Its last draft of a round is never fed, so after a fully accepted round it lags by two tokens, else by one; its
first step then feeds two.  Rows that lag less are fed one token they already hold again, which rewrites the same keys
and values: no mask, no special case.  Rows that do not draft follow along and keep what they hold.

    drafter = ModelDrafter(draft, settings)

Shapes: B rows, G drafts, V vocabulary of the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specgauge.bench.cache.cache import RowCache, forward, prefill
from specgauge.bench.decoding.draws import History
from specgauge.bench.decoding.early_stop import GoesOn, read_signals
from specgauge.bench.decoding.plain import feedable, prefill_rows
from specgauge.bench.decoding.sampling import are_no_numbers, draw, lowest_argmax, probabilities, processed_logits
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.exact import DraftSampling
from specgauge.model.sampling import SamplingSettings

NO_LIMIT = 1 << 40
"""Room where nothing bounds the context."""
_CHUNK_TOKENS = 2048
"""Tokens of each row that one forward takes at most."""
_ROUND_TOKENS = 2
"""Tokens that a round's first step feeds at most; a row that lags by more is brought up as a prompt is."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The drafts of one round."""

    tokens: Tensor
    """(B, G) drafts; beyond a row's count they are meaningless."""
    drafted: list[int]
    """Drafts of each row, at most the γ it was asked for."""
    probs: Tensor | None = None
    """(B, G, V) what they were drawn from; None where each was certain."""
    faults: Tensor | None = None
    """(B, G) true where the draft's logits were not numbers; None where there are no logits."""
    top_probs: Tensor | None = None
    """(B, G) the draft's own largest probability at each step, or a lookup's confidence, where signals are kept;
    (B, G or G - 1) where they are only read: nobody reads those of a last step that no other may follow."""
    entropies_nats: Tensor | None = None
    """The entropy of the draft's own distribution, in the same shape."""
    match_lengths: list[int] | None = None
    """Tokens of each row's end that a lookup found earlier in the text, 0 for none; None for other drafters."""


class Drafter(Protocol):
    """Proposes tokens for the rows of one batch."""

    name: str
    """Who it is in messages."""
    vocabulary_rows: int
    """Its proposals are below this; 0 where they come from the text itself."""

    def start(self, committed: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        """Begin a batch of prompts, each followed by the target's first token: whatever can be done beforehand."""

    def propose(
        self,
        committed: Sequence[Sequence[int]],
        gammas: Sequence[int],
        uniforms: Tensor | None,
        goes_on: GoesOn | None = None,
    ) -> Proposal:
        """Draft up to ``gammas[b]`` tokens after each row's committed tokens, one of them above 0.

        uniforms: (B, G) on any device, G the largest γ; None where everything is greedy.
        goes_on: asked after every draft, which then waits for the device where a model drafts.
        """

    def keep(self, committed: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        """Roll back to what the round committed; ``accepted`` (B,) are the drafts that were accepted."""

    def room(self, context: int) -> int:
        """How many drafts fit while the target holds ``context`` tokens."""


class ModelDrafter:
    """Drafts from a causal language model with its own cache, on its own device."""

    def __init__(
        self,
        draft: LoadedModel,
        settings: SamplingSettings,
        *,
        draft_sampling: DraftSampling = "same",
        signals: bool = False,
        prefill_takes_first_token: bool = False,
    ) -> None:
        """Take a draft.

        draft_sampling: ``greedy`` proposes the argmax, whatever the temperature.
        signals: keep confidence and entropy of every step.
        prefill_takes_first_token: the prefill takes the target's first token along, so that its last row gives the
            first draft, and the first round has one step less.
        """
        self.draft, self.settings, self.signals = draft, settings, signals
        self.name, self.vocabulary_rows = draft.name, draft.vocabulary_rows
        self.certain = draft_sampling == "greedy" or settings.temperature == 0.0
        self.prefill_takes_first_token = prefill_takes_first_token
        self.cache: RowCache
        self._places = 0
        self._history: History | None = None
        self._first_logits: Tensor | None = None
        self._fed: list[bool] = []
        self._reach: list[int] = []
        self._steps = 0

    def build(self, *, batch_size: int, prompt_tokens: int, max_new_tokens: int) -> None:
        """Compile or capture the forwards of such a batch, the longest prompt being of so many tokens."""
        tokens = prompt_tokens + 1 + max_new_tokens  # as `start` counts: the target's first token is there already
        self.draft.build(batch_size=batch_size, tokens=tokens, new_tokens=range(1, _ROUND_TOKENS + 1), keep=1)

    def room(self, context: int) -> int:
        """Positions left in the draft's context: its last draft is never fed."""
        limit = self.draft.max_context
        return NO_LIMIT if limit is None else max(limit - context, 0)

    def start(self, committed: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        """Prefill the prompts, with the target's first token where the option says so."""
        tokens = max(len(row) for row in committed) + max_new_tokens
        vars(self).pop("cache", None)  # its buffers, and graphs on them, are for the next one
        self.cache = self.draft.new_cache(batch_size=len(committed), tokens=tokens)
        limit = self.draft.max_context
        self._places = self.cache.capacity if limit is None else min(limit, self.cache.capacity)
        if self.settings.repetition_penalty != 1.0:
            self._history = History(len(committed), self.vocabulary_rows, self.draft.device)
        self._first_logits = None
        fits = [len(row) <= self._places for row in committed]
        if self.prefill_takes_first_token and any(fits):
            self._first_logits = self._feed(committed, fits)
        else:
            self._prefill([row[:-1] for row in committed])

    def _prefill(self, heads: Sequence[Sequence[int]]) -> None:
        """Fill the cache with each row's first tokens, as far as the context reaches."""
        rows = [list(head[: self._places]) for head in heads]
        if any(rows):
            prefill_rows(self.draft, self.cache, rows)

    def _feed(self, committed: Sequence[Sequence[int]], needed: Sequence[bool]) -> Tensor:
        """Feed what the draft has not seen of each needed row's committed tokens; (B, V) logits after the last one.

        Needed rows fit into the context.  The others move along, over places they keep nothing in afterwards.
        """
        sizes = [len(row) for row in committed]
        behind = max(
            size - length for size, length, need in zip(sizes, self.cache.lengths, needed, strict=True) if need
        )
        shortest = min(size for size, need in zip(sizes, needed, strict=True) if need)
        count = min(behind, shortest)
        if behind > shortest:  # a row lags by more than another's whole text: bring all up to a common block
            self._prefill([row[: max(0, len(row) - count)] for row in committed])
        furthest = max(size for size, need in zip(sizes, needed, strict=True) if need) - count
        starts = [size - count if need else furthest for size, need in zip(sizes, needed, strict=True)]
        self._fed = list(needed)
        self._reach = [
            size if need else min(length, start)
            for size, length, start, need in zip(sizes, self.cache.lengths, starts, needed, strict=True)
        ]
        block = [
            list(row[start : start + count]) if need else [0] * count
            for row, start, need in zip(committed, starts, needed, strict=True)
        ]
        fed = feedable(torch.tensor(block, device=self.draft.device), self.draft)
        self.cache.set_lengths(starts)
        for first in range(0, count, _CHUNK_TOKENS):
            run = forward if count <= _ROUND_TOKENS else prefill
            logits = run(self.draft.model, self.cache, fed[:, first : first + _CHUNK_TOKENS], keep=1)
        return logits[:, -1]

    def propose(
        self,
        committed: Sequence[Sequence[int]],
        gammas: Sequence[int],
        uniforms: Tensor | None,
        goes_on: GoesOn | None = None,
    ) -> Proposal:
        """A chain of max(gammas) steps, or fewer; a row whose last token the draft does not know drafts nothing."""
        drafted = [
            0 if row[-1] >= self.vocabulary_rows else gamma for row, gamma in zip(committed, gammas, strict=True)
        ]
        self._steps = max(drafted)
        if self._steps == 0:
            tokens = torch.zeros(len(committed), 0, dtype=torch.long, device=self.draft.device)
            return Proposal(tokens=tokens, drafted=drafted)
        if uniforms is not None:
            uniforms = uniforms.to(self.draft.device)
        seen = None if self._history is None else self._history.update(committed).clone()
        tokens_: list[Tensor] = []
        probs: list[Tensor] = []
        faults: list[Tensor] = []
        signals: list[tuple[Tensor, Tensor]] = []
        logits = self._first_step(committed, [gamma > 0 for gamma in gammas])
        for step in range(self._steps):
            if step:
                logits = self._next_step(tokens_[-1])
            looks = None if step + 1 == self._steps else goes_on
            if self.signals or looks is not None:
                signals.append(confidence(logits))
            if self.certain:
                token = lowest_argmax(processed_logits(logits, self.settings, seen))
                faults.append(token >= logits.shape[-1])
                token = token.clamp(max=logits.shape[-1] - 1)
            else:
                assert uniforms is not None, "drawing needs uniforms"
                probs.append(probabilities(logits, self.settings, seen))
                faults.append(are_no_numbers(probs[-1]))
                token = draw(probs[-1], uniforms[:, step])
            if seen is not None:
                seen.scatter_(1, token[:, None], True)
            tokens_.append(token)
            if looks is not None and not looks(step + 1, *read_signals(signals[-1], drafted, step + 1)):
                break
        self._steps = len(tokens_)
        return Proposal(
            tokens=torch.stack(tokens_, dim=1),
            drafted=[min(count, self._steps) for count in drafted],
            probs=torch.stack(probs, dim=1) if probs else None,
            faults=torch.stack(faults, dim=1),
            top_probs=torch.stack([top for top, _ in signals], dim=1) if signals else None,
            entropies_nats=torch.stack([entropy for _, entropy in signals], dim=1) if signals else None,
        )

    def _first_step(self, committed: Sequence[Sequence[int]], needed: Sequence[bool]) -> Tensor:
        """(B, V) logits after every needed row's committed tokens, from the prefill where it took them all."""
        ready, self._first_logits = self._first_logits, None
        if ready is not None and all(
            fed and len(row) == length
            for fed, row, length, need in zip(self._fed, committed, self.cache.lengths, needed, strict=True)
            if need
        ):
            return ready
        return self._feed(committed, needed)

    def _next_step(self, token: Tensor) -> Tensor:
        """(B, V) logits after one more draft each; rows that have theirs already stay inside the context."""
        if max(self.cache.lengths) >= self._places:
            self.cache.set_lengths([min(length, self._places - 1) for length in self.cache.lengths])
        return forward(self.draft.model, self.cache, token[:, None], keep=1)[:, -1]

    def keep(self, committed: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        """Roll every row back to its last committed token that was fed; the last draft of a chain never was."""
        if self._steps == 0:
            return
        self.cache.set_lengths(
            [
                min(reach + min(run, self._steps - 1), len(row) - 1, self._places) if fed else reach
                for fed, reach, run, row in zip(self._fed, self._reach, accepted, committed, strict=True)
            ]
        )


def confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(largest probability (B,), entropy in nats (B,)) of the (B, V) logits' own distribution, before any processor.

    With x = logits - max and Z = Σ e^x: 1 / Z, and ln Z - Σ e^x x / Z. Wide vocabularies are worth the few buffers.
    """
    shifted = logits.to(torch.float32, copy=True)
    shifted -= shifted.amax(dim=-1, keepdim=True)
    weights = shifted.exp()
    total = weights.sum(dim=-1)
    spread = torch.linalg.vecdot(weights, shifted.clamp_(min=-1e4))
    return total.reciprocal(), (total.log() - spread / total).clamp(min=0.0)
