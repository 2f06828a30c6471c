"""The key/value cache with a length per row.

Keys and values live in buffers of a fixed capacity; a forward writes its tokens at each row's own positions, and
rolling back moves a length, never data.  Whatever lies past a row's length is hidden by the mask and overwritten later.
The mask and the position of every new token are computed once a forward, from the lengths, and shared by all layers.

    cache = new_cache(model, batch_size=2, tokens=200)
    logits = forward(model, cache, tokens)            # writes, then moves every row's length by tokens.shape[1]
    cache.set_lengths(lengths)                        # roll back

A forward here is eager, over the narrowest views that hold the rows.  Caches of a model in another mode run theirs over
static shapes (`specgauge.bench.models.static_graphs`); prompts are `prefill`ed eagerly in every mode.

Shapes: B batch, N new tokens, S cached tokens (view), K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specgauge.bench.cache.adapter import (
    BufferLayer,
    Masks,
    cache_of,
    for_all_layers,
    layer_count,
    layer_masks,
    run_model,
    sliding_window,
)

CAPACITY_STEP = 64
Led = Callable[["RowCache", Tensor, int, Callable[[], Tensor]], Tensor]
"""Runs a forward (cache, tokens, keep, what runs it) of which others are told before."""
FOLLOWED: weakref.WeakKeyDictionary[PreTrainedModel, Led] = weakref.WeakKeyDictionary()
"""Models that are split over processes, which all run their forwards (`specgauge.bench.ranks`)."""


def capacity_bucket(tokens: int) -> int:
    """The capacity used for a cache that must hold ``tokens``: the next multiple of 64.

    Buckets keep shapes few while cost follows the context: a row never carries more than 63 unused slots.
    """
    return -(-tokens // CAPACITY_STEP) * CAPACITY_STEP


class RowLayer(BufferLayer):
    """One layer's buffers: keys and values of shape (B, K, capacity, D), allocated at the first write."""

    owner: RowCache
    """The cache it belongs to, held weakly, so that buffers are freed with their cache."""

    def size(self) -> tuple[int, int, int]:
        """(tokens of the longest row, the owner's view, its capacity)."""
        return max(self.owner.lengths), self.owner.view_length, self.owner.capacity

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate zeroed buffers of the owner's capacity, shaped and placed as the first keys and values."""

        def buffer(like: Tensor) -> Tensor:
            batch, heads, _, width = like.shape
            return torch.zeros(batch, heads, self.owner.capacity, width, dtype=like.dtype, device=like.device)

        self.keys, self.values = buffer(key_states), buffer(value_states)
        self.is_initialized = True

    def update(  # the names are transformers'
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Write (B, K, N, D) states at the rows' positions; return the views that the mask of this forward covers."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        owner, (keys, values) = self.owner, self.both
        if owner.uniform_start is not None:
            stop = owner.uniform_start + key_states.shape[2]
            keys[:, :, owner.uniform_start : stop] = key_states
            values[:, :, owner.uniform_start : stop] = value_states
        else:
            self.scatter(key_states, value_states, owner.positions.to(keys.device))
        return keys[:, :, : owner.view_length], values[:, :, : owner.view_length]


class RowCache:
    """Buffers for all layers of one model, and each row's length (tokens that count) on the host."""

    run_static: Callable[[PreTrainedModel, RowCache, Tensor, int], Tensor] | None = None
    """Runs a forward (model, cache, tokens, keep) over static shapes; None where forwards are eager."""

    def __init__(self, *, layers: Sequence[RowLayer], batch_size: int, capacity: int, window: int | None) -> None:
        """Take empty layers and the model's sliding window: a configuration is slow to ask at every forward."""
        self.capacity, self.window = capacity, window
        self.lengths = [0] * batch_size
        self.positions: Tensor = torch.empty(0, dtype=torch.long)
        self.uniform_start: int | None = 0
        self.view_length = 0
        for layer in layers:
            layer.owner = weakref.proxy(self)
        self.layers = list(layers)
        self.for_transformers = cache_of(layers)

    @property
    def batch_size(self) -> int:
        """Rows in the cache."""
        return len(self.lengths)

    def set_lengths(self, lengths: int | Sequence[int]) -> None:
        """Declare how many tokens of each row count; rolling back is nothing more than this."""
        rows = [lengths] * self.batch_size if isinstance(lengths, int) else list(lengths)
        assert len(rows) == self.batch_size
        assert all(0 <= length <= self.capacity for length in rows), (rows, self.capacity)
        self.lengths = rows

    def reserve(self, tokens: int) -> None:
        """Say that forwards reach ``tokens`` at most; only what runs over static shapes needs to know."""

    def copied_rows(self, rows: Sequence[int], *, tokens: int) -> RowCache:
        """A cache with room for ``tokens`` whose rows hold what these rows of this one do, and count as much of it.

        A row may be named more than once; what does not fit is left out, and does not count.
        """
        layers = [RowLayer() for _ in self.layers]
        capacity = capacity_bucket(tokens)
        copied = RowCache(layers=layers, batch_size=len(rows), capacity=capacity, window=self.window)
        kept = min(self.capacity, copied.capacity)
        for own, new in zip(self.layers, layers, strict=True):
            if not own.is_initialized:
                continue
            index = torch.tensor(list(rows), device=own.both[0].device)
            states = [held[index, :, :kept] for held in own.both]
            new.lazy_initialization(*states)
            for held, state in zip(new.both, states, strict=True):
                held[:, :, :kept] = state
        copied.set_lengths([min(self.lengths[row], kept) for row in rows])
        return copied

    def check_room(self, new_tokens: int) -> None:
        """Refuse new tokens that do not fit.

        Raises:
            ValueError: a row would not fit into the capacity.
        """
        longest = max(self.lengths)
        if longest + new_tokens > self.capacity:
            raise ValueError(
                f"cache: {longest} tokens and {new_tokens} more do not fit into a capacity of {self.capacity}; "
                "allocate a larger cache"
            )

    def begin(self, new_tokens: int, device: torch.device) -> Tensor | None:
        """Fix positions and mask for a forward of ``new_tokens`` per row; (B or 1, 1, N, S) boolean mask, or None.

        Raises as `check_room`.
        """
        self.check_room(new_tokens)
        longest = max(self.lengths)
        self.view_length = longest + new_tokens
        uniform = min(self.lengths) == longest
        self.uniform_start = longest if uniform else None
        if uniform:
            positions = torch.arange(longest, self.view_length, device=device)[None]
        else:
            starts = on_host(self.lengths, device).to(device, non_blocking=True)
            positions = starts[:, None] + torch.arange(new_tokens, device=device)
        self.positions = positions.expand(self.batch_size, -1)
        if uniform and (new_tokens == 1 or longest == 0):
            return None
        slots = torch.arange(self.view_length, device=device)
        return for_all_layers((slots <= positions[:, :, None])[:, None])

    def advance(self, new_tokens: int) -> None:
        """Count the tokens just written."""
        self.lengths = [length + new_tokens for length in self.lengths]


def on_host(lengths: Sequence[int], device: torch.device) -> Tensor:
    """Lengths ready to be copied to the device without waiting for it: in pinned memory where there is such."""
    return torch.tensor(list(lengths), dtype=torch.long, pin_memory=device.type == "cuda")


def new_cache(model: PreTrainedModel, *, batch_size: int, tokens: int) -> RowCache:
    """An empty cache for ``batch_size`` rows of up to ``tokens`` tokens each, in the smallest capacity bucket.

    Its forwards are eager; `LoadedModel.new_cache` gives one whose forwards run in the model's mode.
    """
    layers = [RowLayer() for _ in range(layer_count(model))]
    capacity, window = capacity_bucket(tokens), sliding_window(model)
    return RowCache(layers=layers, batch_size=batch_size, capacity=capacity, window=window)


def _masks(model: PreTrainedModel, cache: RowCache, mask: Tensor | None) -> Masks:
    """The mask in the form the model takes: one for all layers, or one for each kind of attention layer."""
    if cache.window is None:
        return mask
    if cache.view_length <= cache.window:
        sliding = mask
    else:
        slots = torch.arange(cache.view_length, device=cache.positions.device)
        reach = slots > cache.positions[:, :, None] - cache.window
        causal = (slots <= cache.positions[:, :, None]) if mask is None else mask[:, 0]
        sliding = for_all_layers((causal & reach)[:, None])
    return layer_masks(model, mask, sliding)


def forward(model: PreTrainedModel, cache: RowCache, tokens: Tensor, *, keep: int = 0) -> Tensor:
    """One forward of (B, N) tokens placed after each row's length, in the cache's mode; every length grows by N.

    ``keep`` limits the logits to the last ``keep`` positions (0 keeps all).  Returns (B, keep or N, V) logits in the
    model's dtype; raises as `RowCache.check_room`.
    """
    if cache.run_static is not None:
        return cache.run_static(model, cache, tokens, keep)
    return prefill(model, cache, tokens, keep=keep)


def prefill(model: PreTrainedModel, cache: RowCache, tokens: Tensor, *, keep: int = 0) -> Tensor:
    """As `forward`, eagerly whatever the mode: for prompts, whose lengths are too many to fix a shape for each."""
    mask = cache.begin(tokens.shape[1], tokens.device)

    def run() -> Tensor:
        return run_model(
            model,
            tokens,
            layers=cache.for_transformers,
            mask=_masks(model, cache, mask),
            positions=cache.positions,
            keep=keep,
        )

    led = FOLLOWED.get(model) if FOLLOWED else None
    logits = run() if led is None else led(cache, tokens, keep, run)
    cache.advance(tokens.shape[1])
    return logits
