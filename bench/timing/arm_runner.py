"""What is timed in a cell: decode, the draft chain, its catch-up step, verify γ, and both prefills.

Every arm starts from the same state, a cache holding exactly ``context`` tokens a row (the parts of a round: in its
longest rows, as rounds leave a batch ragged), and is preceded by one untimed forward of whatever ran before it in a
real round, so that weights are as hot or as cold as they would be there:

    decode          after a target forward of 1 token      one mark: T_decode
    draft           after a target forward of 1 token      γ_max marks: C(1) … C(γ_max), no wait between steps
    draft_catch_up  after a target forward of 1 token      one mark: a first step fed two tokens
    transfer        each after draft steps                 γ_max marks: 1, 2, … γ_max drafts to the target's device
    verify:γ        after a draft step                     one mark: T_verify(γ), up to γ+1 rows of probabilities
    prefill_*       after nothing                          one mark: the whole context, up to the drawn token

There is a transfer only where the draft is on another device; drafts take their distributions with them where the
chain draws and the rule needs them.  Where lookups draft, nothing catches up (no such arm), and

    draft           each after a target forward of 1 token γ_max marks: a lookup of 1, of 2, … of γ_max drafts
    verify:γ        after a lookup                         as above
    prefill_draft   after nothing                          one mark: the index of the whole context

A round's lookup first learns what the last round committed, taken as 1 + γ/2 tokens, half of the most that it may be;
each timed lookup starts from that state again.  The target is always fed the text's own tokens, so its cache stays
valid for every context; the draft's slots are fed their own text again after each chain.

Shapes: B rows, L text tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from specgauge.bench.cache.cache import forward, prefill
from specgauge.bench.decoding.drafters import IndexState, NgramDrafter, Proposal
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


class Side:
    """One model at work: its text, its cache filled with it, and the uniforms of its draws."""

    def __init__(self, model: LoadedModel, text: Tensor, uniforms: Tensor) -> None:
        self.model, self.text = model, feedable(text.to(model.device), model)
        self.cache = model.new_cache(batch_size=text.shape[0], tokens=text.shape[1])
        self._uniforms = uniforms.to(model.device)
        self.fill(text.shape[1])

    def own(self, starts: Sequence[int], count: int) -> Tensor:
        """(B, count) tokens of each row's own text from its place on."""
        index = torch.tensor(starts, device=self.text.device)[:, None] + torch.arange(count, device=self.text.device)
        return self.text.gather(1, index)

    def feed(self, starts: int | Sequence[int], tokens: Tensor, keep: int = 0) -> Tensor:
        """Logits of (B, N) tokens fed at each row's own place, as a round does."""
        self.cache.set_lengths(starts)
        return forward(self.model.model, self.cache, tokens, keep=keep)

    def fill(self, length: int) -> Tensor:
        """Prefill ``length`` tokens, in chunks that bound memory; logits of the last position (B, 1, V)."""
        chunk = max(1, PREFILL_TOKENS // self.cache.batch_size)
        for start in range(0, length, chunk):
            self.cache.set_lengths(start)
            fed = self.text[:, start : min(start + chunk, length)]
            logits = prefill(self.model.model, self.cache, fed, keep=1)
        return logits

    def seen(self, starts: Sequence[int], settings: SamplingSettings) -> Tensor | None:
        """(B, V) history of each row including the token fed at its place, where the chain needs one."""
        if settings.repetition_penalty == 1.0:
            return None
        text = self.text[:, : max(starts) + 1]
        place = torch.arange(text.shape[1], device=text.device)
        inside = place <= torch.tensor(starts, device=text.device)[:, None]
        return seen_tokens(text, inside, self.model.vocabulary_rows)

    def draw(self, logits: Tensor, settings: SamplingSettings, step: int, seen: Tensor | None) -> Tensor:
        """(B,) tokens from the last of (B, N, V) logits."""
        return next_tokens(logits[:, -1], settings, self._uniforms[step], seen)


class ArmRunner:
    """Both models' sides for one batch size, filled once to the largest context, and the arms that run on them.

    Where lookups draft there is no draft model, and ``lookups`` stands in its place.
    """

    draft: Side

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
        sends_distributions: bool = True,
    ) -> None:
        self.gamma_max, self.sends_distributions = gamma_max, sends_distributions
        text = timing_rows(prompts, batch_size, max_context + gamma_max + 1)
        generator = torch.Generator().manual_seed(seed)
        self.uniforms = torch.rand(gamma_max + 1, batch_size, dtype=torch.float64, generator=generator)
        self.target = Side(pair.target, text, self.uniforms)
        self.lookups: TimedLookups | None = None
        if pair.ngram is not None:
            self.lookups = TimedLookups(pair.ngram, text.tolist(), gamma_max, pair.target.device)
        else:
            self.draft = Side(pair.draft_model, text, self.uniforms)

    @property
    def capacities(self) -> dict[str, int | None]:
        """Places of each cache, as a block notes them; None where no model drafts."""
        draft = None if self.lookups is not None else self.draft.cache.capacity
        return {"capacity_target": self.target.cache.capacity, "capacity_draft": draft}

    def _ragged(self, context: int) -> list[int]:
        """Tokens each row holds when a round starts: the longest the context, the others less, as rounds leave them.

        Rows that accepted different numbers of drafts need a mask and scattered writes, which a round then pays for.
        """
        return [max(1, context - row % RAGGED_OVER) for row in range(self.target.cache.batch_size)]

    @torch.inference_mode()
    def sample(self, arm: str, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        """One sample of an arm: cumulative seconds at each of its marks."""
        for side in [self.target] if self.lookups is not None else [self.target, self.draft]:
            side.cache.reserve(context + self.gamma_max + 1)
        if arm == "decode":
            return self._sample_decode(context, settings, clock)
        if arm == "draft":
            if self.lookups is not None:
                return self._sample_lookups(self.lookups, context, clock)
            return self._sample_chain(context, settings, clock)
        if arm == "draft_catch_up":
            assert self.lookups is None, "lookups have nothing to catch up with"
            return self._sample_catch_up(context, settings, clock)
        if arm == "transfer":
            return self._sample_transfers(context, settings, clock)
        gamma = Arm.parse(arm).gamma
        if gamma:
            return self._sample_verify(gamma, context, settings, clock)
        assert arm in ("prefill_target", "prefill_draft"), arm
        if arm == "prefill_draft" and self.lookups is not None:
            lookups = self.lookups
            return timed_marks(clock, [lambda: lookups.index(context)])
        side = self.target if arm == "prefill_target" else self.draft
        seen = side.seen([context - 1] * len(side.text), settings)
        return timed_marks(clock, [lambda: side.draw(side.fill(context), settings, 0, seen)])

    def _sample_decode(self, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        side, text = self.target, self.target.text
        seen = side.seen([context] * len(text), settings)
        side.feed(context - 1, text[:, context - 1 : context])

        def decode() -> Tensor:
            return side.draw(side.feed(context, text[:, context : context + 1]), settings, 0, seen)

        return timed_marks(clock, [decode])

    def _sample_chain(self, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        starts, side = self._ragged(context), self.draft
        seen = side.seen(starts, settings)
        current, rest = side.own(starts, 1), side.own(starts, self.gamma_max)

        def step(index: int) -> Callable[[], None]:
            def run() -> None:
                nonlocal current
                logits = forward(side.model.model, side.cache, current, keep=1)
                drawn = side.draw(logits, settings, index, seen).clamp(min=0)  # as a drafter keeps it feedable
                if seen is not None:
                    seen.scatter_(1, drawn[:, None], True)
                current = drawn[:, None]

            return run

        self.target.feed(starts, self.target.own(starts, 1))
        side.cache.set_lengths(starts)
        marks = timed_marks(clock, [step(index) for index in range(self.gamma_max)])
        side.cache.set_lengths(starts)
        prefill(side.model.model, side.cache, rest, keep=1)
        return marks

    def _sample_lookups(self, lookups: TimedLookups, context: int, clock: Clock) -> list[float]:
        marks = []
        for gamma in range(1, self.gamma_max + 1):
            look = lookups.round(context, gamma)
            self.target.feed(context, self.target.text[:, context : context + 1])
            marks += timed_marks(clock, [look])
        return marks

    def _sample_catch_up(self, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        starts, side = self._ragged(context), self.draft
        seen = side.seen(starts, settings)
        before = [start - 1 for start in starts]
        both = side.own(before, 2)
        self.target.feed(starts, self.target.own(starts, 1))
        return timed_marks(clock, [lambda: side.draw(side.feed(before, both, keep=1), settings, 0, seen)])

    def _sample_transfers(self, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        starts, side, device = self._ragged(context), self.draft, self.target.model.device
        before, marks = [start - 1 for start in starts], []
        for gamma in range(1, self.gamma_max + 1):
            logits = side.feed(before, side.own(before, 1), keep=1)
            drawn = None
            if self.sends_distributions and settings.temperature != 0.0:
                row = probabilities(logits[:, -1], settings, side.seen(before, settings))
                drawn = torch.stack([row] * gamma, dim=1)
            drafts = side.own(starts, gamma)
            proposal = Proposal(tokens=drafts, drafted=[gamma] * len(starts), probs=drawn, faults=drafts < 0)
            marks += timed_marks(clock, [partial(proposal.on, device, distributions=drawn is not None)])
        return marks

    def _sample_verify(self, gamma: int, context: int, settings: SamplingSettings, clock: Clock) -> list[float]:
        starts, side = self._ragged(context), self.target
        seen = side.seen(starts, settings)
        fed = side.own(starts, gamma + 1)

        def verify() -> Tensor:
            logits = side.feed(starts, fed)
            history = None if seen is None else seen_along(seen, fed)
            if settings.temperature == 0.0:
                return lowest_argmax(processed_logits(logits, settings, history))
            return probabilities(logits, settings, history)

        if self.lookups is not None:
            self.lookups.round(context, gamma)()
        else:
            before = [start - 1 for start in starts]
            self.draft.feed(before, self.draft.own(before, 1), keep=1)
        return timed_marks(clock, [verify])
