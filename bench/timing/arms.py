"""What is timed in a cell: decode, the draft chain, its catch-up step, verify γ, and both prefills.

Every arm starts from the same state, a cache holding exactly ``context`` tokens a row (the parts of a round: in its
longest rows, as rounds leave a batch ragged), and is preceded by one untimed forward of whatever ran before it in a
real round, so that weights are as hot or as cold as they would be there:

    decode          after a target forward of 1 token      one mark: T_decode
    draft           after a target forward of 1 token      γ_max marks: C(1) … C(γ_max), no wait between steps
    draft_catch_up  after a target forward of 1 token      one mark: a first step fed two tokens
    verify:γ        after a draft step                     one mark: T_verify(γ), up to γ+1 rows of probabilities
    prefill_*       after nothing                          one mark: the whole context, up to the drawn token

Where lookups draft, nothing catches up (no such arm), and

    draft           each after a target forward of 1 token γ_max marks: a lookup of 1, of 2, … of γ_max drafts
    verify:γ        after a lookup                         as above
    prefill_draft   after nothing                          one mark: the index of the whole context

The target is always fed the text's own tokens, so its cache stays valid for every context; the draft's slots are fed
their own text again after each chain.

Shapes: B rows, L text tokens, V vocabulary.

Lookups as a round makes them, to be timed: an index that knows the text up to the round before, and then looks.

A real round's lookup first learns what the last round committed, taken as 1 + γ/2 tokens, half of the most that it may
be, and then looks and hands the drafts to the target's device. Each timed lookup starts from that state again.

    lookups = TimedLookups(NgramConfig(), rows, device)
    lookups.index(256)                         # what prefilling is to a draft model
    step = lookups.round(256, gamma=4)         # untimed: back to the state before the round
    step()                                     # timed

B rows of text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specgauge.bench.cache.cache import RowCache, forward, prefill
from specgauge.bench.decoding.ngram import IndexState, NgramDrafter
from specgauge.bench.decoding.plain import feedable
from specgauge.bench.decoding.sampling import (
    lowest_argmax,
    next_tokens,
    probabilities,
    processed_logits,
    seen_along,
    seen_tokens,
)
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.bench.timing.clock import Clock, timed_marks
from specgauge.configs.pairs import NgramConfig
from specgauge.model.arms import Arm
from specgauge.model.sampling import SamplingSettings


def committed_by_a_round(gamma: int) -> int:
    """Tokens that the round before a timed lookup of γ drafts is taken to have committed."""
    return 1 + gamma // 2


class TimedLookups:
    """The lookups of one batch of rows, at one context at a time."""

    def __init__(self, ngram: NgramConfig, rows: Sequence[Sequence[int]], gamma_max: int, device: torch.device) -> None:
        """Take (B, L) tokens; a lookup's drafts go to ``device``."""
        self._rows, self._device, self._gamma_max = rows, device, gamma_max
        self._drafter = NgramDrafter(longest=ngram.longest, shortest=ngram.shortest)
        self._context: int | None = None
        self._states: list[IndexState] = []

    def index(self, context: int) -> None:
        """Index the first ``context`` tokens of every row and the one after them, from nothing."""
        self._context = None
        self._drafter.start(self._texts(context + 1), self._gamma_max)

    def _texts(self, length: int) -> list[Sequence[int]]:
        return [row[:length] for row in self._rows]

    def round(self, context: int, gamma: int) -> Callable[[], None]:
        """A lookup of γ drafts for every row after ``context`` cached tokens and one more, to be called once."""
        texts = self._texts(context + 1)
        if self._context != context:
            known = max(1, context + 1 - committed_by_a_round(self._gamma_max))
            self.index(known - 1)
            self._states = [index.state_before(text) for index, text in zip(self._drafter.rows, texts, strict=True)]
            self._context = context
        for index, state, text in zip(self._drafter.rows, self._states, texts, strict=True):
            index.back_to(state)
            index.learn(text[: max(1, context + 1 - committed_by_a_round(gamma))])

        def look() -> None:
            self._drafter.propose(texts, [gamma] * len(texts), None).tokens.to(self._device)

        return look


PREFILL_TOKENS = 16384
"""Tokens of all rows together that one prefill forward takes at most."""
RAGGED_OVER = 3
"""Places over which the rows of a batch are spread when a round is timed."""


def timing_rows(prompts: Sequence[Sequence[int]], batch_size: int, length: int) -> Tensor:
    """(B, L) tokens: the prompts one after the other, each row starting at another prompt, cycled where they run out.

    For timing only; a text put together like this is never used for acceptance.
    """
    rows = []
    for row in range(batch_size):
        order = [*prompts[row % len(prompts) :], *prompts[: row % len(prompts)]]
        stream = [token for prompt in order for token in prompt]
        rows.append((stream * (-(-length // len(stream))))[:length])
    return torch.tensor(rows, dtype=torch.long)


class Workbench:
    """Both models' caches for one batch size, filled once to the largest context, and the arms that run on them.

    Where lookups draft there is no draft model, and ``lookups`` stands in its place.
    """

    draft: LoadedModel
    draft_text: Tensor
    draft_cache: RowCache

    @torch.inference_mode()
    def __init__(
        self,
        pair: LoadedPair,
        prompts: Sequence[Sequence[int]],
        *,
        batch_size: int,
        max_context: int,
        gamma_max: int,
        seed: int,
    ) -> None:
        self.target, self.gamma_max = pair.target, gamma_max
        length = max_context + gamma_max + 1
        text = timing_rows(prompts, batch_size, length)
        self.target_text = feedable(text.to(self.target.device), self.target)
        self.target_cache = self.target.new_cache(batch_size=batch_size, tokens=length)
        generator = torch.Generator().manual_seed(seed)
        self.uniforms = torch.rand(gamma_max + 1, batch_size, dtype=torch.float64, generator=generator)
        self._target_uniforms = self.uniforms.to(self.target.device)
        self._fill(True, length)
        self.lookups: TimedLookups | None = None
        if pair.ngram is not None:
            self.lookups = TimedLookups(pair.ngram, text.tolist(), gamma_max, self.target.device)
        else:
            self.draft = pair.draft_model
            self.draft_text = feedable(text.to(self.draft.device), self.draft)
            self.draft_cache = self.draft.new_cache(batch_size=batch_size, tokens=length)
            self._draft_uniforms = self.uniforms.to(self.draft.device)
            self._fill(False, length)

    @property
    def _caches(self) -> list[RowCache]:
        return [self.target_cache] if self.lookups is not None else [self.target_cache, self.draft_cache]

    @property
    def draft_capacity(self) -> int | None:
        """Places of the draft's cache; None where no model drafts."""
        return None if self.lookups is not None else self.draft_cache.capacity

    def _stand(self, context: int) -> list[int]:
        """Tokens each row holds when a round starts: the longest the context, the others less, as rounds leave them.

        Rows that accepted different numbers of drafts need a mask and scattered writes, which a round then pays for.
        """
        return [max(1, context - row % RAGGED_OVER) for row in range(self.target_cache.batch_size)]

    def _own(self, is_target: bool, starts: Sequence[int], count: int) -> Tensor:
        """(B, count) tokens of each row's own text from its place on."""
        text = self.target_text if is_target else self.draft_text
        index = torch.tensor(starts, device=text.device)[:, None] + torch.arange(count, device=text.device)
        return text.gather(1, index)

    def _forward(
        self, is_target: bool, starts: int | Sequence[int], tokens: Tensor, keep: int = 0, *, in_round: bool = True
    ) -> Tensor:
        """Feed (B, N) tokens at each row's own place, as a round or a prefill does."""
        model = self.target if is_target else self.draft
        cache = self.target_cache if is_target else self.draft_cache
        cache.set_lengths(starts)
        run = forward if in_round else prefill
        return run(model.model, cache, tokens, keep=keep)

    def _feed(self, is_target: bool, start: int, stop: int, keep: int = 0, *, in_round: bool = True) -> Tensor:
        """Feed the text's tokens start … stop−1 on top of a cache of ``start`` tokens."""
        text = self.target_text if is_target else self.draft_text
        return self._forward(is_target, start, text[:, start:stop], keep, in_round=in_round)

    def _fill(self, is_target: bool, length: int) -> Tensor:
        """Prefill ``length`` tokens, in chunks that bound memory; logits of the last position (B, 1, V)."""
        chunk = max(1, PREFILL_TOKENS // self.target_cache.batch_size)
        for start in range(0, length, chunk):
            logits = self._feed(is_target, start, min(start + chunk, length), keep=1, in_round=False)
        return logits

    def _seen(self, is_target: bool, starts: Sequence[int], settings: SamplingSettings) -> Tensor | None:
        """(B, V) history of each row including the token fed at its place, where the chain needs one."""
        if settings.repetition_penalty == 1.0:
            return None
        text = (self.target_text if is_target else self.draft_text)[:, : max(starts) + 1]
        model = self.target if is_target else self.draft
        place = torch.arange(text.shape[1], device=text.device)
        inside = place <= torch.tensor(starts, device=text.device)[:, None]
        return seen_tokens(text, inside, model.vocabulary_rows)

    def _draw(
        self, logits: Tensor, settings: SamplingSettings, step: int, is_target: bool, seen: Tensor | None
    ) -> Tensor:
        uniforms = (self._target_uniforms if is_target else self._draft_uniforms)[step]
        return next_tokens(logits[:, -1], settings, uniforms, seen)

    @torch.inference_mode()
    def sample(self, arm: str, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        """One sample of an arm: cumulative seconds at each of its marks."""
        for cache in self._caches:
            cache.reserve(context + self.gamma_max + 1)
        if arm == "decode":
            return self._sample_decode(context, settings, clock)
        if arm == "draft":
            if self.lookups is not None:
                return self._sample_lookups(self.lookups, context, clock)
            return self._sample_chain(context, settings, clock)
        if arm == "draft_catch_up":
            assert self.lookups is None, "lookups have nothing to catch up with"
            return self._sample_catch_up(context, settings, clock)
        gamma = Arm.parse(arm).gamma
        if gamma:
            return self._sample_verify(gamma, context, settings, clock)
        assert arm in ("prefill_target", "prefill_draft"), arm
        if arm == "prefill_draft" and self.lookups is not None:
            lookups = self.lookups
            return timed_marks(clock, [lambda: lookups.index(context)])
        return self._sample_prefill(arm == "prefill_target", context, settings, clock)

    def _sample_decode(self, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        seen = self._seen(True, [context] * len(self.target_text), settings)
        self._feed(True, context - 1, context)
        return timed_marks(clock, [lambda: self._draw(self._feed(True, context, context + 1), settings, 0, True, seen)])

    def _sample_chain(self, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        starts = self._stand(context)
        seen = self._seen(False, starts, settings)
        current, rest = self._own(False, starts, 1), self._own(False, starts, self.gamma_max)

        def step(index: int) -> Callable[[], None]:
            def run() -> None:
                nonlocal current
                logits = forward(self.draft.model, self.draft_cache, current, keep=1)
                drawn = self._draw(logits, settings, index, False, seen).clamp(min=0)  # as a drafter keeps it feedable
                if seen is not None:
                    seen.scatter_(1, drawn[:, None], True)
                current = drawn[:, None]

            return run

        self._forward(True, starts, self._own(True, starts, 1))
        self.draft_cache.set_lengths(starts)
        marks = timed_marks(clock, [step(index) for index in range(self.gamma_max)])
        self._forward(False, starts, rest, keep=1, in_round=False)
        return marks

    def _sample_lookups(self, lookups: TimedLookups, context: int, clock: Clock) -> list[float]:
        marks = []
        for gamma in range(1, self.gamma_max + 1):
            look = lookups.round(context, gamma)
            self._feed(True, context, context + 1)
            marks += timed_marks(clock, [look])
        return marks

    def _sample_catch_up(self, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        starts = self._stand(context)
        seen = self._seen(False, starts, settings)
        before = [start - 1 for start in starts]
        both = self._own(False, before, 2)
        self._forward(True, starts, self._own(True, starts, 1))
        return timed_marks(
            clock, [lambda: self._draw(self._forward(False, before, both, keep=1), settings, 0, False, seen)]
        )

    def _sample_verify(self, gamma: int, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        starts = self._stand(context)
        seen = self._seen(True, starts, settings)
        fed = self._own(True, starts, gamma + 1)

        def verify() -> Tensor:
            logits = self._forward(True, starts, fed)
            history = None if seen is None else seen_along(seen, fed)
            if settings.temperature == 0.0:
                return lowest_argmax(processed_logits(logits, settings, history))
            return probabilities(logits, settings, history)

        if self.lookups is not None:
            self.lookups.round(context, gamma)()
        else:
            before = [start - 1 for start in starts]
            self._forward(False, before, self._own(False, before, 1), keep=1)
        return timed_marks(clock, [verify])

    def _sample_prefill(self, is_target: bool, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        seen = self._seen(is_target, [context - 1] * len(self.target_text), settings)
        return timed_marks(clock, [lambda: self._draw(self._fill(is_target, context), settings, 0, is_target, seen)])
