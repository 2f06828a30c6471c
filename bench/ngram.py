"""Prompt lookup: drafts copied from where the text's last tokens occurred before.

    drafter = NgramDrafter(longest=3, shortest=1)

A proposal is certain (one-hot), so a draft y is accepted with the target's own probability of y.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specgauge.bench.drafters import NO_LIMIT, Proposal


class NgramDrafter:
    """Prompt lookup: go on as the text did after the latest earlier occurrence of its last tokens.

    The longest match of ``longest`` down to ``shortest`` tokens counts.  A continuation that reaches the text's end
    goes on with what it has copied, so that a text that repeats itself is repeated.  Every proposal is certain.
    Each row's n-grams are kept in an index that grows with the text: a round costs what it committed, not the whole
    text.
    """

    name = "ngram"
    vocabulary_rows = 0

    def __init__(self, *, longest: int = 3, shortest: int = 1) -> None:
        """Raise ValueError unless 1 <= shortest <= longest."""
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"ngram: found shortest {shortest} and longest {longest}; allowed is 1 <= shortest <= longest"
            )
        self.longest, self.shortest = longest, shortest
        self._ends: list[dict[tuple[int, ...], int]] = []
        self._indexed: list[int] = []

    def start(self, committed: Sequence[Sequence[int]], max_new_tokens: int) -> None:  # noqa: ARG002
        """Index the prompts."""
        self._ends = [{} for _ in committed]
        self._indexed = [0] * len(committed)
        for row, tokens in enumerate(committed):
            self._index(row, tokens)

    def _index(self, row: int, tokens: Sequence[int]) -> None:
        """Learn where every n-gram ended last, those that end with the text itself left out."""
        ends = self._ends[row]
        for end in range(self._indexed[row] + 1, len(tokens)):
            for size in range(self.shortest, min(self.longest, end) + 1):
                ends[tuple(tokens[end - size : end])] = end
        self._indexed[row] = len(tokens) - 1

    def lookup(self, row: int, tokens: Sequence[int], gamma: int) -> tuple[list[int], int]:
        """(γ proposals after a row's tokens, tokens that matched); nothing found gives no proposal and 0."""
        self._index(row, tokens)
        for size in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            end = self._ends[row].get(tuple(tokens[-size:]))
            if end is not None:
                period = len(tokens) - end
                return [tokens[end + step % period] for step in range(gamma)], size
        return [], 0

    def propose(
        self,
        committed: Sequence[Sequence[int]],
        gammas: Sequence[int],
        uniforms: Tensor | None,  # noqa: ARG002
    ) -> Proposal:
        """Look every row up that has a γ; rows without a match draft nothing."""
        found = [
            self.lookup(row, tokens, gamma) if gamma else ([], 0)
            for row, (tokens, gamma) in enumerate(zip(committed, gammas, strict=True))
        ]
        width = max(len(tokens) for tokens, _ in found)
        return Proposal(
            tokens=torch.tensor([tokens + [0] * (width - len(tokens)) for tokens, _ in found], dtype=torch.long),
            drafted=[len(tokens) for tokens, _ in found],
            match_lengths=[size for _, size in found],
        )

    def keep(self, committed: Sequence[Sequence[int]], accepted: Sequence[int]) -> None:
        """Nothing to roll back: the next lookup indexes what was committed."""

    def room(self, context: int) -> int:  # noqa: ARG002
        """No limit of its own."""
        return NO_LIMIT
