"""Where drafts come from, behind one small interface: a draft model, or a lookup in the text itself.

A drafter proposes up to γ tokens for every row and is told afterwards what was committed.  After a fully accepted round
a draft model lags by two tokens (its last draft was never fed); its first step then feeds both.  Rows that lag less are
fed one token they already hold again, which rewrites the same keys and values: no mask, no special case.

Shapes: B rows, G drafts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specgauge.bench.cache import RowCache, forward, new_cache
from specgauge.bench.generate import feedable, prefill_rows
from specgauge.bench.models import LoadedModel
from specgauge.bench.sampling import (
    draw,
    lowest_argmax,
    probabilities,
    processed_logits,
    seen_tokens,
)
from specgauge.model.exact import DraftSampling
from specgauge.model.sampling import SamplingSettings


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """The drafts of one round."""

    tokens: Tensor
    """(B, G) drafts; beyond a row's count they are meaningless."""
    probs: Tensor | None
    """(B, G, V) what they were drawn from; None where each was certain."""
    drafted: list[int]
    """Drafts of each row, at most the γ it was asked for."""
    top_probs: Tensor | None
    """(B, G) the draft's own largest probability at each step, where signals are kept."""
    entropies_nats: Tensor | None
    """(B, G) the entropy of the draft's own distribution, where signals are kept."""


class Drafter(Protocol):
    """Proposes tokens for the rows of one batch."""

    def start(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        """Begin a batch: whatever can be done with the prompts is done here."""

    def propose(self, committed: Sequence[Sequence[int]], gammas: Sequence[int], uniforms: Tensor) -> Proposal:
        """Draft up to ``gammas[b]`` tokens after each row's committed tokens; uniforms are (B, G)."""

    def keep(self, committed: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        """Learn what a round committed, and how many of each row's drafts were accepted."""

    def room(self, tokens: int) -> int:
        """How many drafts fit after ``tokens`` tokens of context."""


class ModelDrafter:
    """Drafts from a causal language model with its own cache."""

    def __init__(
        self,
        draft: LoadedModel,
        settings: SamplingSettings,
        *,
        draft_sampling: DraftSampling = "same",
        signals: bool = False,
        prefill_takes_first_token: bool = False,
    ) -> None:
        self.draft, self.settings, self.signals = draft, settings, signals
        self.certain = draft_sampling == "greedy" or settings.temperature == 0.0
        self.prefill_takes_first_token = prefill_takes_first_token
        self.cache: RowCache | None = None
        self._before: list[int] = []
        self._steps = 0

    def start(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        """Prefill the prompts, or leave them to the first step together with the target's first token."""
        longest = max(len(prompt) for prompt in prompts)
        self.cache = new_cache(self.draft.model, batch_size=len(prompts), tokens=longest + max_new_tokens + 1)
        if not self.prefill_takes_first_token:
            prefill_rows(self.draft, self.cache, prompts)

    def room(self, tokens: int) -> int:
        """Positions left in the draft's context."""
        limit = self.draft.max_context
        return 1 << 30 if limit is None else max(limit - tokens, 0)

    def _catch_up(self, committed: Sequence[Sequence[int]], active: Sequence[int], steps: int) -> Tensor:
        """Feed what the draft has not seen of each active row's committed tokens; (B, V) logits after the last."""
        assert self.cache is not None
        lengths = self.cache.lengths
        count = max(len(committed[row]) - lengths[row] for row in active)
        shortest = min(len(committed[row]) for row in active)
        if count > shortest:  # a row shorter than what another lags by: bring the laggards up to it first
            prefill_rows(self.draft, self.cache, [tokens[:-1] for tokens in committed])
            count = 1
        last = self.cache.capacity - count - steps + 1  # binds only for rows that ended: active ones have room
        starts = [min(max(len(tokens) - count, 0), last) for tokens in committed]
        self.cache.set_lengths(starts)
        fed = torch.tensor(
            [list(tokens[start : start + count]) for tokens, start in zip(committed, starts, strict=True)],
            device=self.draft.device,
        )
        return forward(self.draft.model, self.cache, feedable(fed, self.draft), keep=1)[:, -1]

    def propose(self, committed: Sequence[Sequence[int]], gammas: Sequence[int], uniforms: Tensor) -> Proposal:
        """A chain of max(gammas) steps; a row whose last token the draft does not know drafts nothing."""
        assert self.cache is not None
        drafted = [
            0 if tokens[-1] >= self.draft.vocabulary_rows else gamma
            for tokens, gamma in zip(committed, gammas, strict=True)
        ]
        steps = max(drafted)
        self._before, self._steps = [len(row) for row in committed], steps
        device = self.draft.device
        seen = self._history(committed)
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        tops: list[Tensor] = []
        entropies: list[Tensor] = []
        logits = (
            self._catch_up(committed, [row for row, count in enumerate(drafted) if count], steps) if steps else None
        )
        for step in range(steps):
            assert logits is not None
            if step:
                logits = forward(self.draft.model, self.cache, tokens[-1][:, None], keep=1)[:, -1]
            if self.signals:
                own = logits.float().log_softmax(dim=-1)
                tops.append(own.amax(dim=-1).exp())
                entropies.append(-(own.exp() * own.clamp(min=-1e4)).sum(dim=-1))
            if self.certain:
                token = lowest_argmax(processed_logits(logits, self.settings, seen))
            else:
                distribution = probabilities(logits, self.settings, seen)
                token = draw(distribution, uniforms[:, step])
                probs.append(distribution)
            if seen is not None:
                seen.scatter_(1, token[:, None], True)
            tokens.append(token)
        empty = torch.zeros(len(committed), 0, dtype=torch.long, device=device)
        return Proposal(
            tokens=torch.stack(tokens, dim=1) if tokens else empty,
            probs=torch.stack(probs, dim=1) if probs else None,
            drafted=drafted,
            top_probs=torch.stack(tops, dim=1) if tops else None,
            entropies_nats=torch.stack(entropies, dim=1) if entropies else None,
        )

    def _history(self, committed: Sequence[Sequence[int]]) -> Tensor | None:
        if self.settings.repetition_penalty == 1.0:
            return None
        return history_of(committed, self.draft.vocabulary_rows, self.draft.device)

    def keep(self, committed: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        """Roll every row back to its last committed token that was fed; a row's last draft never was."""
        assert self.cache is not None
        if self._steps == 0:
            return
        self.cache.set_lengths(
            [
                min(before + min(run, self._steps - 1), len(tokens) - 1)
                for before, run, tokens in zip(self._before, accepted, committed, strict=True)
            ]
        )


class NgramDrafter:
    """Prompt lookup: continue the latest earlier occurrence of the text's last few tokens; every proposal is certain."""

    def __init__(self, *, longest: int = 3, shortest: int = 1, device: torch.device | None = None) -> None:
        self.longest, self.shortest = longest, shortest
        self.device = device or torch.device("cpu")

    def start(self, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        """Nothing to prepare: the text is looked up as it stands."""

    def room(self, tokens: int) -> int:  # noqa: ARG002
        """No limit of its own."""
        return 1 << 30

    def lookup(self, tokens: Sequence[int], gamma: int) -> tuple[list[int], int]:
        """(continuation of at most γ tokens, length of the match); nothing found gives an empty continuation."""
        for size in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            tail = list(tokens[-size:])
            for start in range(len(tokens) - size - 1, -1, -1):
                if list(tokens[start : start + size]) == tail:
                    return list(tokens[start + size : start + size + gamma]), size
        return [], 0

    def propose(
        self,
        committed: Sequence[Sequence[int]],
        gammas: Sequence[int],
        uniforms: Tensor,  # noqa: ARG002
    ) -> Proposal:
        """Look every row up; rows without a match draft nothing."""
        found = [self.lookup(tokens, gamma)[0] for tokens, gamma in zip(committed, gammas, strict=True)]
        width = max(len(row) for row in found)
        tokens = torch.zeros(len(found), width, dtype=torch.long)
        for index, row in enumerate(found):
            tokens[index, : len(row)] = torch.tensor(row, dtype=torch.long)
        return Proposal(
            tokens=tokens.to(self.device),
            probs=None,
            drafted=[len(row) for row in found],
            top_probs=None,
            entropies_nats=None,
        )

    def keep(self, committed: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        """Nothing to roll back."""


def history_of(committed: Sequence[Sequence[int]], vocabulary: int, device: torch.device) -> Tensor:
    """(B, V) tokens that occur in each row's committed text; ids beyond the vocabulary are left out."""
    width = max(len(tokens) for tokens in committed)
    rows = torch.zeros(len(committed), width, dtype=torch.long)
    valid = torch.zeros(len(committed), width, dtype=torch.bool)
    for row, tokens in enumerate(committed):
        rows[row, : len(tokens)] = torch.tensor(list(tokens), dtype=torch.long)
        valid[row, : len(tokens)] = True
    valid &= rows < vocabulary
    return seen_tokens(rows.to(device), valid.to(device), vocabulary)
