"""Where drafts come from: the interface of every drafter, the draft model, and prompt lookup.

A drafter proposes up to γ tokens for every row and is told afterwards what was accepted.  A draft model keeps its own
cache.  Its last draft of a round is never fed, so after a fully accepted round it lags by two tokens, else by one; its
first step then feeds two.  Rows that lag less are fed one token they already hold again, which rewrites the same keys
and values: no mask, no special case.  Rows that do not draft follow along and keep what they hold.

    drafter = ModelDrafter(draft, settings)        # or NgramDrafter(longest=3, shortest=1)

Prompt lookup copies from where the text's last tokens occurred before.  Its proposals are certain (one-hot), so a draft
y is accepted with the target's own probability of y.

A policy that reads signals is asked after every draft of a round but the last that may be made (`EarlyStopChecks`).
Its answer depends on what the draft says of its own tokens, never on the target, so that stopping leaves the texts'
distribution as it is.  Each check waits for the device; policies that fix γ beforehand are not asked.

Shapes: B rows, G drafts, V vocabulary of the draft.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from specgauge.bench.cache.cache import RowCache, forward, prefill
from specgauge.bench.decoding.plain import feedable, prefill_rows
from specgauge.bench.decoding.sampling import (
    History,
    are_no_numbers,
    draw,
    lowest_argmax,
    probabilities,
    processed_logits,
)
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.acceptance import lookups
from specgauge.model.exact import DraftSampling
from specgauge.model.policies.policy import GammaChoice
from specgauge.model.sampling import SamplingSettings

EarlyStopCheck = Callable[[int, Sequence[float], Sequence[float]], bool]
"""Whether to draft once more after so many drafts, whose last had these largest probabilities and entropies, (B,) each.

NaN stands for a row that may draft no more.  Asked after drafts 1, 2, …, until the answer is no or no row is left.
"""
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

    def on(self, device: torch.device, *, distributions: bool) -> Proposal:
        """The same on another device, whose distributions are left out where they are not asked for."""
        return replace(
            self,
            tokens=self.tokens.to(device),
            probs=None if self.probs is None or not distributions else self.probs.to(device),
            faults=None if self.faults is None else self.faults.to(device),
        )

    def signals(self) -> tuple[list[list[float]], list[list[float]]]:
        """(largest probabilities, entropies) by row; empty lists where none were kept."""
        if self.top_probs is None or self.entropies_nats is None:
            return [[] for _ in self.drafted], [[] for _ in self.drafted]
        return self.top_probs.tolist(), self.entropies_nats.tolist()

    @staticmethod
    def of_none(rows: int, device: torch.device) -> Proposal:
        """No draft in any row."""
        return Proposal(tokens=torch.zeros(rows, 0, dtype=torch.long, device=device), drafted=[0] * rows)


class EarlyStopChecks:
    """A policy's choice as a drafter asks it: rows that have ended are left out."""

    def __init__(self, choice: GammaChoice, active: Sequence[bool]) -> None:
        self._choice = choice
        self._rows = [row for row, is_active in enumerate(active) if is_active]
        self.stopped_at: int | None = None
        """Drafts after which the policy said no; None where it was not asked or never did."""

    def __call__(self, depth: int, top_probs: Sequence[float], entropies_nats: Sequence[float]) -> bool:
        """As `EarlyStopCheck`."""
        rows = self._rows
        if self._choice.goes_on(depth, [top_probs[row] for row in rows], [entropies_nats[row] for row in rows]):
            return True
        self.stopped_at = depth
        return False


def of_drafting_rows(values: Sequence[float], drafted: Sequence[int], depth: int) -> list[float]:
    """(B,) values, NaN in rows that draft no more than ``depth``; drafted: the most drafts of each row."""
    return [value if most > depth else math.nan for value, most in zip(values, drafted, strict=True)]


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
        check: EarlyStopCheck | None = None,
    ) -> Proposal:
        """Draft up to ``gammas[b]`` tokens after each row's committed tokens, one of them above 0.

        uniforms: (B, G) on any device, G the largest γ; None where everything is greedy.  check: asked after every
        draft, which then waits for the device where a model drafts.
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
    ) -> None:
        """Take a draft and the sampling chain.

        draft_sampling: ``greedy`` proposes the argmax, whatever the temperature.  signals: keep those of every step.
        """
        self.draft, self.settings, self.signals = draft, settings, signals
        self.name, self.vocabulary_rows = draft.name, draft.vocabulary_rows
        self.certain = draft_sampling == "greedy" or settings.temperature == 0.0
        self.cache: RowCache
        self._places = 0
        self._history: History | None = None
        self._fed: list[bool] = []
        self._reach: list[int] = []
        self._steps = 0

    def compile(self, *, batch_size: int, prompt_tokens: int, max_new_tokens: int) -> None:
        """Compile or capture the forwards of such a batch, the longest prompt being of so many tokens."""
        tokens = prompt_tokens + 1 + max_new_tokens  # as `start` counts: the target's first token is there already
        self.draft.compile(batch_size=batch_size, tokens=tokens, new_tokens=range(1, _ROUND_TOKENS + 1), keep=1)

    def room(self, context: int) -> int:
        """Positions left in the draft's context: its last draft is never fed."""
        limit = self.draft.max_context
        return NO_LIMIT if limit is None else max(limit - context, 0)

    def start(self, committed: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        """Prefill the prompts; the target's first token is fed with the first draft."""
        tokens = max(len(row) for row in committed) + max_new_tokens
        vars(self).pop("cache", None)  # its buffers, and graphs on them, are for the next one
        self.cache = self.draft.new_cache(batch_size=len(committed), tokens=tokens)
        limit = self.draft.max_context
        self._places = self.cache.capacity if limit is None else min(limit, self.cache.capacity)
        if self.settings.repetition_penalty != 1.0:
            self._history = History(len(committed), self.vocabulary_rows, self.draft.device)
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
        lags = [size - length for size, length in zip(sizes, self.cache.lengths, strict=True)]
        behind = max(lag for lag, need in zip(lags, needed, strict=True) if need)
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
        check: EarlyStopCheck | None = None,
    ) -> Proposal:
        """A chain of max(gammas) steps, or fewer; a row whose last token the draft does not know drafts nothing."""
        drafted = [
            0 if row[-1] >= self.vocabulary_rows else gamma for row, gamma in zip(committed, gammas, strict=True)
        ]
        self._steps = max(drafted)
        if self._steps == 0:
            return Proposal.of_none(len(committed), self.draft.device)
        if uniforms is not None:
            uniforms = uniforms.to(self.draft.device)
        seen = None if self._history is None else self._history.update(committed).clone()
        tokens: list[Tensor] = []
        probs: list[Tensor] = []
        faults: list[Tensor] = []
        signals: list[tuple[Tensor, Tensor]] = []
        logits = self._feed(committed, [gamma > 0 for gamma in gammas])
        for step in range(self._steps):
            if step:
                logits = self._next_step(tokens[-1])
            asked = None if step + 1 == self._steps else check
            if self.signals or asked is not None:
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
            tokens.append(token)
            if asked is not None:  # waits for the device
                read = torch.stack(signals[-1]).tolist()
                if not asked(step + 1, *(of_drafting_rows(values, drafted, step + 1) for values in read)):
                    break
        self._steps = len(tokens)
        return Proposal(
            tokens=torch.stack(tokens, dim=1),
            drafted=[min(count, self._steps) for count in drafted],
            probs=torch.stack(probs, dim=1) if probs else None,
            faults=torch.stack(faults, dim=1),
            top_probs=torch.stack([top for top, _ in signals], dim=1) if signals else None,
            entropies_nats=torch.stack([entropy for _, entropy in signals], dim=1) if signals else None,
        )

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


IndexState = tuple[int, dict[tuple[int, ...], int | None]]
"""What an index holds before it learns more: how much it learnt, and what stands where more will be (or None)."""


class NgramIndex:
    """Where each n-gram of one text ended last; it grows with the text, at the cost of what was added."""

    def __init__(self, *, longest: int, shortest: int) -> None:
        self.longest, self.shortest = longest, shortest
        self.ends: dict[tuple[int, ...], int] = {}
        self.learnt = 0
        """Ends up to here are known."""

    def learn(self, tokens: Sequence[int]) -> None:
        """Learn where every n-gram ended, those that end with the text itself left out."""
        for ngram, end in self._new(tokens):
            self.ends[ngram] = end
        self.learnt = max(self.learnt, len(tokens) - 1)

    def _new(self, tokens: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
        """(n-gram, its end) of all that is not learnt yet."""
        for end in range(self.learnt + 1, len(tokens)):
            for size in range(self.shortest, min(self.longest, end) + 1):
                yield tuple(tokens[end - size : end]), end

    def lookup(self, tokens: Sequence[int], gamma: int) -> tuple[list[int], int]:
        """(γ proposals after the text, tokens that matched); nothing found gives no proposal and 0."""
        self.learn(tokens)
        for size in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            end = self.ends.get(tuple(tokens[-size:]))
            if end is not None:
                period = len(tokens) - end
                return [tokens[end + step % period] for step in range(gamma)], size
        return [], 0

    def state_before(self, tokens: Sequence[int]) -> IndexState:
        """What learning all of these tokens would overwrite."""
        return self.learnt, {ngram: self.ends.get(ngram) for ngram, _ in self._new(tokens)}

    def back_to(self, state: IndexState) -> None:
        """Forget what was learnt since, which must lie within the tokens the state was taken for."""
        self.learnt, entries = state
        for ngram, end in entries.items():
            if end is None:
                self.ends.pop(ngram, None)
            else:
                self.ends[ngram] = end


def _wanted(offered: Sequence[int], matched: Sequence[int], check: EarlyStopCheck) -> tuple[int, list[list[float]]]:
    """(drafts wanted of the widest row, (checks, B) confidence that was shown); a one-hot draft's entropy is 0.

    offered, matched: (B,) drafts of each row, and the tokens that were found.
    """
    widest, shown = max(offered), []
    for depth in range(1, widest):
        agreeing = lookups.confidence([size + depth - 1 for size in matched]).tolist()
        shown.append(agreeing)
        certain = [0.0] * len(agreeing)
        if not check(depth, *(of_drafting_rows(values, offered, depth) for values in (agreeing, certain))):
            return depth, shown
    return widest, shown


class NgramDrafter:
    """Prompt lookup: go on as the text did after the latest earlier occurrence of its last tokens.

    The longest match counts.  A continuation that reaches the text's end goes on with what it has copied, so that a
    text that repeats itself is repeated.  Each row has an index, so that a round costs what it committed.
    """

    name = "ngram"
    vocabulary_rows = 0

    def __init__(self, *, longest: int = 3, shortest: int = 1) -> None:
        """Match ``longest`` down to ``shortest`` tokens, 1 or more."""
        self.longest, self.shortest = longest, shortest
        self.rows: list[NgramIndex] = []

    def start(self, committed: Sequence[Sequence[int]], max_new_tokens: int) -> None:  # noqa: ARG002
        """Index the prompts."""
        self.rows = [NgramIndex(longest=self.longest, shortest=self.shortest) for _ in committed]
        for row, tokens in zip(self.rows, committed, strict=True):
            row.learn(tokens)

    def propose(
        self,
        committed: Sequence[Sequence[int]],
        gammas: Sequence[int],
        uniforms: Tensor | None,  # noqa: ARG002
        check: EarlyStopCheck | None = None,
    ) -> Proposal:
        """Look every row up that has a γ; rows without a match have no draft.

        Drafts come all at once; who asks between them is shown how many tokens agreed before each
        (`specgauge.model.acceptance.lookups.confidence`), and what is not wanted is dropped.
        """
        found = [
            row.lookup(tokens, gamma) if gamma else ([], 0)
            for row, tokens, gamma in zip(self.rows, committed, gammas, strict=True)
        ]
        width = max(len(tokens) for tokens, _ in found)
        tops: list[list[float]] = []
        if check is not None:
            width, tops = _wanted([len(tokens) for tokens, _ in found], [size for _, size in found], check)
        rows = [tokens[:width] for tokens, _ in found]
        signals = torch.tensor(tops, dtype=torch.float64).T if tops else None
        return Proposal(
            tokens=torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in rows], dtype=torch.long),
            drafted=[len(tokens) for tokens in rows],
            top_probs=signals,
            entropies_nats=None if signals is None else torch.zeros_like(signals),
            match_lengths=[size for _, size in found],
        )

    def keep(self, committed: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        """Nothing to roll back: the next lookup indexes what was committed."""

    def room(self, context: int) -> int:  # noqa: ARG002
        """No limit of its own."""
        return NO_LIMIT
