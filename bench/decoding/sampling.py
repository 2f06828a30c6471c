"""The sampling chain, from logits of either model to tokens: processors, uniforms by place, and each row's history.

Order as in transformers: repetition penalty, temperature, top-k, top-p, min-p.  Both distributions of speculative
sampling come out of `probabilities`, in float32 or wider, so that a ratio never mixes two chains.  Temperature 0 is the
convention for greedy decoding: a one-hot distribution at the lowest index of the largest logit.

    probs = probabilities(logits, settings, seen)
    tokens = draw(probs, uniforms)

Every uniform is a function of (seed, prompt, repetition, token index, purpose), so a row draws the same numbers alone
and in any batch.  Where a policy reads the drafts' signals, a draft that a rejection cut off has a say in how many are
made later, and its uniform must not come back as that of another: there the drafts of a round have uniforms of their
own, by the round's first token index and the draft's place in the round.

Shapes: B rows, T token indices, V vocabulary; (..., V) logits and probabilities; ``seen`` marks the tokens of the
history, (..., V) boolean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specgauge.bench.decoding.records import PromptBatch
from specgauge.model.sampling import PURPOSES, SamplingSettings, uniforms

_NUCLEUS_TOKENS = 1024
"""Tokens among which a nucleus is looked for, an eighth of the vocabulary at most."""
_FEW_TOKENS = 32
"""A vocabulary of at most eight times as many is sorted sooner."""
_ROUNDING = 2e-6
"""Mass that summing float32 probabilities in another order can move."""

NO_TOKEN = -1
"""What is chosen where logits are not numbers."""


def lowest_argmax(values: Tensor) -> Tensor:
    """(...) index of the largest of (..., V) values; ties go to the lowest index on every device, NaN gives V."""
    first, largest = _first_of_largest(values)
    return first.masked_fill_(largest.isnan(), values.shape[-1]) if values.device.type == "cpu" else first


def _first_of_largest(values: Tensor) -> tuple[Tensor, Tensor]:
    """(lowest index of the largest of (..., V) values, that value); the index says nothing where the value is NaN."""
    if values.device.type == "cpu":  # torch looks for the first of the largest there, in one pass
        largest, first = values.max(dim=-1)
        return first, largest
    top = values.amax(dim=-1, keepdim=True)
    index = torch.arange(values.shape[-1], device=values.device)
    return torch.where(values == top, index, values.shape[-1]).amin(dim=-1), top[..., 0]


def widen(values: Tensor, vocabulary: int, *, absent: float = -torch.inf) -> Tensor:
    """(..., V) logits with ids the model does not have at minus infinity, or ``absent``: they are never drawn there."""
    missing = vocabulary - values.shape[-1]
    return values if missing == 0 else torch.nn.functional.pad(values, (0, missing), value=absent)


def penalise_repetition(logits: Tensor, penalty: float, seen: Tensor) -> Tensor:
    """Divide positive logits of seen tokens by the penalty, multiply negative ones (CTRL, arXiv 1909.05858)."""
    return torch.where(seen, torch.where(logits < 0, logits * penalty, logits / penalty), logits)


def keep_top_k(logits: Tensor, top_k: int, min_tokens_to_keep: int) -> Tensor:
    """Drop logits below the k-th largest; ties with the k-th stay, as in transformers."""
    count = min(max(top_k, min_tokens_to_keep), logits.shape[-1])
    boundary = logits.topk(count, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < boundary, -torch.inf)


def keep_top_p(logits: Tensor, top_p: float, min_tokens_to_keep: int) -> Tensor:
    """Keep the most probable tokens whose mass reaches ``top_p`` (nucleus sampling, arXiv 1904.09751)."""
    ranks = min(_NUCLEUS_TOKENS, logits.shape[-1] // 8)
    if logits.device.type == "cpu" and ranks > max(min_tokens_to_keep, _FEW_TOKENS):
        return _keep_nucleus(logits, top_p, min_tokens_to_keep, ranks)
    return _keep_top_p_sorted(logits, top_p, min_tokens_to_keep)


def _keep_top_p_sorted(logits: Tensor, top_p: float, min_tokens_to_keep: int) -> Tensor:
    """As transformers does it: the whole vocabulary sorted, and summed from the least probable token on."""
    ascending, order = torch.sort(logits, descending=False, dim=-1, stable=True)
    drop = ascending.softmax(dim=-1).cumsum(dim=-1) <= (1 - top_p)
    drop[..., -min_tokens_to_keep:] = False
    return logits.masked_fill(drop.scatter(-1, order, drop), -torch.inf)


def _keep_nucleus(logits: Tensor, top_p: float, min_tokens_to_keep: int, ranks: int) -> Tensor:
    """The same from the ``ranks`` most probable tokens alone, found ten times sooner than the order.

    A token stays while the mass from it down to the least probable is above 1 − top_p; of ties for the last place those
    of higher index stay.  Rows go through the whole order where the ranks do not reach, or rounding could decide.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    probs = rows.softmax(dim=-1)
    values, index = rows.topk(ranks, dim=-1)
    mass = probs.gather(-1, index).double()
    down = probs.sum(dim=-1, keepdim=True, dtype=torch.float64) - mass.cumsum(dim=-1) + mass
    kept = (down > 1 - top_p).sum(dim=-1, keepdim=True).clamp(min=min_tokens_to_keep)
    if not (kept < ranks).any():
        return _keep_top_p_sorted(logits, top_p, min_tokens_to_keep)
    last = values.gather(-1, kept - 1)
    found = rows.masked_fill(rows < last, -torch.inf)
    is_certain = (kept < ranks) & ((down - (1 - top_p)).abs() > _ROUNDING).all(dim=-1, keepdim=True)
    tied = (is_certain & (values.gather(-1, kept.clamp(max=ranks - 1)) == last))[:, 0]
    if tied.any():
        equal = rows[tied] == last[tied]
        too_many = equal.cumsum(dim=-1) <= (rows[tied] >= last[tied]).sum(dim=-1, keepdim=True) - kept[tied]
        found[tied] = found[tied].masked_fill(equal & too_many, -torch.inf)
    doubtful = ~is_certain[:, 0]
    if doubtful.any():
        found[doubtful] = _keep_top_p_sorted(rows[doubtful], top_p, min_tokens_to_keep)
    return found.reshape(logits.shape)


def keep_min_p(logits: Tensor, min_p: float, min_tokens_to_keep: int) -> Tensor:
    """Drop tokens less probable than ``min_p`` times the most probable one (arXiv 2407.01082)."""
    probs = logits.softmax(dim=-1)
    drop = probs < min_p * probs.amax(dim=-1, keepdim=True)
    keep = logits.topk(min(min_tokens_to_keep, logits.shape[-1]), dim=-1).indices
    return logits.masked_fill(drop.scatter(-1, keep, False), -torch.inf)


def processed_logits(logits: Tensor, settings: SamplingSettings, seen: Tensor | None = None) -> Tensor:
    """Logits after every active processor but without the temperature-0 convention; float32 or wider."""
    scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    if settings.repetition_penalty != 1.0:
        assert seen is not None, "a repetition penalty needs the history"
        scores = penalise_repetition(scores, settings.repetition_penalty, seen)
    if settings.temperature == 0.0:
        return scores
    if settings.temperature != 1.0:
        scores = scores / settings.temperature
    keep = settings.min_tokens_to_keep
    if settings.top_k:
        scores = keep_top_k(scores, settings.top_k, keep)
    if settings.top_p is not None and settings.top_p < 1.0:
        scores = keep_top_p(scores, settings.top_p, keep)
    if settings.min_p:
        scores = keep_min_p(scores, settings.min_p, keep)
    return scores


def probabilities(logits: Tensor, settings: SamplingSettings, seen: Tensor | None = None) -> Tensor:
    """(..., V) probabilities that the chain gives; one-hot at temperature 0. Float32 or wider.

    Where the logits are not numbers, and only there, the first probability is NaN: see `are_no_numbers`.
    """
    scores = processed_logits(logits, settings, seen)
    if settings.temperature == 0.0:
        first, largest = _first_of_largest(scores)
        are_numbers = largest.abs() < torch.inf
        mass = torch.where(are_numbers, torch.ones_like(largest), torch.nan)
        return torch.zeros_like(scores).scatter_(-1, torch.where(are_numbers, first, 0)[..., None], mass[..., None])
    return scores.softmax(dim=-1)


def are_no_numbers(probs: Tensor) -> Tensor:
    """(...) whether (..., V) `probabilities` came of logits that are not numbers, told by the first of each alone."""
    return probs[..., 0].isnan()


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """(...) tokens by inverse CDF: the lowest index whose cumulative mass exceeds u times the total.

    A token without mass is never drawn: the cumulative sum, in float64, does not rise there.
    """
    cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
    total = cumulative[..., -1:]
    level = uniforms.double()[..., None] * total
    if probs.device.type == "cpu":  # summed in order: what lies below the total is found before the mass ends
        level = torch.minimum(level, torch.nextafter(total, torch.zeros_like(total)))
        return torch.searchsorted(cumulative, level, right=True)[..., 0].clamp(max=probs.shape[-1] - 1)
    index = torch.searchsorted(cumulative, level, right=True)[..., 0]
    last = probs.shape[-1] - 1 - lowest_argmax((probs.flip(-1) > 0).to(torch.int8))
    return torch.minimum(index, last)


def next_tokens(
    logits: Tensor, settings: SamplingSettings, uniforms: Tensor | None, seen: Tensor | None = None
) -> Tensor:
    """(...) tokens chosen from (..., V) logits: the argmax at temperature 0, else a draw with the given uniforms.

    `NO_TOKEN` where the logits are not numbers, so that whoever reads the tokens has read that as well.
    """
    if settings.temperature == 0.0:
        first, largest = _first_of_largest(processed_logits(logits, settings, seen))
        return torch.where(largest.abs() < torch.inf, first, NO_TOKEN)
    assert uniforms is not None, "drawing needs uniforms"
    probs = probabilities(logits, settings, seen)
    return torch.where(are_no_numbers(probs), NO_TOKEN, draw(probs, uniforms))


def seen_tokens(tokens: Tensor, valid: Tensor, vocabulary: int) -> Tensor:
    """(B, V) which tokens occur in (B, L) ``tokens`` where ``valid`` is true (padding is not history)."""
    seen = torch.zeros(tokens.shape[0], vocabulary + 1, dtype=torch.bool, device=tokens.device)
    seen.scatter_(1, torch.where(valid, tokens, vocabulary), True)
    return seen[:, :vocabulary]


def seen_along(seen: Tensor, tokens: Tensor) -> Tensor:
    """(B, N, V) history at each of N positions: what was seen before, and the (B, N) tokens up to and including it."""
    steps = torch.zeros(*tokens.shape, seen.shape[-1], dtype=torch.bool, device=seen.device)
    steps.scatter_(2, tokens[..., None], True)
    return seen[:, None] | (steps.cumsum(dim=1) > 0)


ROUND_DRAFT = 1 << 22
"""The purpose of the uniform of a round's first draft, where rounds have their own; those of later drafts follow it."""


class Draws:
    """The uniforms of a batch by purpose, computed before the first round."""

    def __init__(
        self,
        purposes: Sequence[str],
        batch: PromptBatch,
        *,
        seed: int,
        device: torch.device,
        round_drafts: int | None = None,
    ) -> None:
        """Compute the uniforms of a batch's token indices.

        round_drafts: where no two rounds may share a draft's uniform, for how many drafts a round to begin with.
        """
        tokens = np.arange(batch.max_new_tokens, dtype=np.int64)
        self._given = (seed, np.asarray(batch.numbers, dtype=np.int64)[:, None], batch.repetition, tokens)
        self._last, self._device = batch.max_new_tokens - 1, device
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
