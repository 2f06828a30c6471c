"""Lookups as a round makes them, to be timed: an index that knows the text up to the round before, and then looks.

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

from specgauge.bench.ngram import IndexState, NgramDrafter
from specgauge.configs.pairs import NgramConfig


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
