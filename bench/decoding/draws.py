"""What a batch needs besides its models while it is decoded: uniform numbers by place, and the history of each row.

Every uniform is a function of (seed, prompt, repetition, token index, purpose), so a row draws the same numbers alone
and in any batch; what was drawn for a place that a rejection cut off decided nothing and may be drawn again.  Not so
where a policy reads the drafts' signals: a draft that is cut off then has a say in how many are made later, and its
uniform must not come back as that of another draft.  There the drafts of a round have uniforms of their own, by the
round's first token index and the draft's place in the round.

Shapes: B rows, T token indices, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specgauge.model.sampling import PURPOSES, uniforms

ROUND_DRAFT = 1 << 22
"""The purpose of the uniform of a round's first draft, where rounds have their own; those of later drafts follow it."""


class Draws:
    """The uniforms of a batch by purpose, computed before the first round."""

    def __init__(
        self,
        purposes: Sequence[str],
        *,
        seed: int,
        prompts: Sequence[int],
        repetition: int,
        tokens: int,
        device: torch.device,
        round_drafts: int | None = None,
    ) -> None:
        """Compute the uniforms of ``tokens`` token indices.

        round_drafts: where no two rounds may share a draft's uniform, for how many drafts a round to begin with.
        """
        rows, indices = np.asarray(prompts, dtype=np.int64)[:, None], np.arange(tokens, dtype=np.int64)
        self._given = (seed, rows, repetition, indices)
        self._last, self._device = tokens - 1, device
        own = self._uniforms([PURPOSES[purpose] for purpose in purposes])
        self._tables: dict[str, Tensor] = dict(zip(purposes, own, strict=True))
        self._of_rounds: Tensor | None = None
        if round_drafts is not None and "draft" in purposes:
            self._of_rounds = self._uniforms([ROUND_DRAFT + place for place in range(round_drafts)])
        self._index: Tensor | None = None

    def _uniforms(self, purposes: Sequence[int]) -> Tensor:
        """(P, B, T) uniforms of every purpose, row and token index."""
        values = uniforms(*self._given, np.array(purposes, dtype=np.int64)[:, None, None])
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def move(self, positions: Sequence[int], count: int) -> None:
        """Look at ``count`` token indices of each row, from its position on; beyond the text the last one repeats."""
        if not self._tables:  # greedy: nothing is drawn
            return
        first = torch.tensor(positions, device=self._device)[:, None]
        self._index = (first + torch.arange(count, device=self._device)).clamp(max=self._last)

    def at(self, purpose: str, count: int) -> Tensor:
        """(B, count) uniforms of a purpose, the first of those that are looked at."""
        assert self._index is not None, "move first"
        if purpose == "draft" and self._of_rounds is not None:
            return self._of_round(self._of_rounds, self._index[:, 0], count)
        return self._tables[purpose].gather(1, self._index[:, :count])

    def _of_round(self, known: Tensor, first: Tensor, count: int) -> Tensor:
        """(B, count) uniforms of the drafts of the round that starts at each row's ``first`` (B,) token index."""
        if len(known) < count:
            more = self._uniforms([ROUND_DRAFT + place for place in range(len(known), count)])
            self._of_rounds = known = torch.cat([known, more])
        return known[:count, torch.arange(len(first), device=first.device), first].T

    def column(self, purpose: str, index: int) -> Tensor:
        """(B,) uniforms of a purpose at one token index of every row."""
        return self._tables[purpose][:, index]


class History:
    """Which tokens occur in each row's text, brought up to date with what was committed since."""

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.seen = torch.zeros(rows, vocabulary, dtype=torch.bool, device=device)
        self._counted = [0] * rows

    def update(self, committed: Sequence[Sequence[int]]) -> Tensor:
        """(B, V) tokens that occur in the committed texts; ids beyond the vocabulary are left out."""
        rows, ids = [], []
        for row, tokens in enumerate(committed):
            new = [token for token in tokens[self._counted[row] :] if token < self.seen.shape[1]]
            self._counted[row] = len(tokens)
            rows += [row] * len(new)
            ids += new
        if ids:
            self.seen[torch.tensor(rows, device=self.seen.device), torch.tensor(ids, device=self.seen.device)] = True
        return self.seen
