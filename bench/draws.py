"""What a batch needs besides its models while it is decoded: uniform numbers by place, and the history of each row.

Every uniform is a function of (seed, prompt, repetition, token index, purpose), so a row draws the same numbers alone
and in any batch; what was drawn for a place that a rejection cut off decided nothing and may be drawn again.

Shapes: B rows, T token indices, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specgauge.model.uniforms import PURPOSES, uniforms


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
    ) -> None:
        values = uniforms(
            seed,
            np.asarray(prompts, dtype=np.int64)[:, None],
            repetition,
            np.arange(tokens, dtype=np.int64),
            np.array([PURPOSES[purpose] for purpose in purposes], dtype=np.int64)[:, None, None],
        )
        self._tables: dict[str, Tensor] = dict(
            zip(purposes, torch.from_numpy(np.ascontiguousarray(values)).to(device), strict=True)
        )
        self._last, self._device = tokens - 1, device
        self._index: Tensor | None = None

    def move(self, positions: Sequence[int], count: int) -> None:
        """Look at ``count`` token indices of each row, from its position on; beyond the text the last one repeats."""
        if not self._tables:  # greedy: nothing is drawn
            return
        first = torch.tensor(positions, device=self._device)[:, None]
        self._index = (first + torch.arange(count, device=self._device)).clamp(max=self._last)

    def at(self, purpose: str, count: int) -> Tensor:
        """(B, count) uniforms of a purpose, the first of those that are looked at."""
        assert self._index is not None, "move first"
        return self._tables[purpose].gather(1, self._index[:, :count])

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
