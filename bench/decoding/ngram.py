"""Prompt lookup: drafts copied from where the text's last tokens occurred before.

    drafter = NgramDrafter(longest=3, shortest=1)

A proposal is certain (one-hot), so a draft y is accepted with the target's own probability of y.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specgauge.bench.decoding.drafters import NO_LIMIT, EarlyStopCheck, Proposal, of_drafting_rows
from specgauge.model.acceptance.lookups import confidence


@dataclass(frozen=True, kw_only=True)
class IndexState:
    """What an index held before it learnt more of its text."""

    learnt: int
    entries: dict[tuple[int, ...], int | None]
    """What stood where more was learnt; None where nothing did."""


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
        return IndexState(learnt=self.learnt, entries={ngram: self.ends.get(ngram) for ngram, _ in self._new(tokens)})

    def back_to(self, state: IndexState) -> None:
        """Forget what was learnt since, which must lie within the tokens the state was taken for."""
        for ngram, end in state.entries.items():
            if end is None:
                self.ends.pop(ngram, None)
            else:
                self.ends[ngram] = end
        self.learnt = state.learnt


def _wanted(offered: Sequence[int], matched: Sequence[int], check: EarlyStopCheck) -> tuple[int, list[list[float]]]:
    """(drafts wanted of the widest row, (checks, B) confidence that was shown); a one-hot draft's entropy is 0.

    offered, matched: (B,) drafts of each row, and the tokens that were found.
    """
    widest, shown = max(offered), []
    for depth in range(1, widest):
        agreeing = confidence([size + depth - 1 for size in matched]).tolist()
        shown.append(agreeing)
        certain = [0.0] * len(agreeing)
        if not check(depth, *(of_drafting_rows(values, offered, depth) for values in (agreeing, certain))):
            return depth, shown
    return widest, shown


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
        """Take the sizes.

        Raises:
            ValueError: not 1 <= shortest <= longest.
        """
        if not 1 <= shortest <= longest:
            raise ValueError(f"ngram: expected 1 <= shortest <= longest, got shortest {shortest} and longest {longest}")
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
