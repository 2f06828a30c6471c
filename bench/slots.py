"""The buffers of forwards over fixed shapes: keys and values, lengths, tokens, positions, masks; none of them moves.

Every (new tokens, kept logits, bucket) has its own tokens, positions and masks, and looks at the first slots of the
same keys and values.

Shapes: B batch, N new tokens, S slots of a bucket, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specgauge.bench.cache import RowLayer


@dataclass(kw_only=True)
class Shape:
    """One forward's buffers, none of which ever moves."""

    tokens: Tensor
    """(B, N), copied in before the call."""
    lengths: Tensor
    """(B,), copied in before the call, shared by all shapes of a cache."""
    positions: Tensor
    """(B, N), computed inside."""
    full: Tensor
    """(B, 1, N, S), computed inside."""
    sliding: Tensor
    """The same for layers with a window; ``full`` itself where there are none."""
    keys: tuple[Tensor, ...]
    """(B, K, S, D) of each layer, a view of the cache's."""
    values: tuple[Tensor, ...]
    keep: int
    """Last positions whose logits are wanted; 0 for all."""
    is_built: bool = False
    graph: Any = None
    logits: Tensor | None = None
    """What the captured graph writes."""

    def arguments(self) -> tuple[Any, ...]:
        """What `specgauge.bench.fixed_step.fixed_step` takes."""
        return (
            self.tokens,
            self.lengths,
            self.positions,
            self.full,
            self.sliding,
            self.keys,
            self.values,
            self.keep,
        )


class Slots:
    """The buffers of one cache: every layer's keys and values, the lengths, and each shape that ran on them."""

    def __init__(self, *, layers: int, batch_size: int, capacity: int, device: torch.device) -> None:
        self.layers = [SlotLayer() for _ in range(layers)]
        self.batch_size, self.capacity = batch_size, capacity
        with torch.inference_mode(False):
            self.lengths = torch.zeros(batch_size, dtype=torch.long, device=device)
        self.shapes: dict[tuple[int, int, int], Shape] = {}

    def clear(self) -> None:
        """Zero the keys and values: what a broken model left behind, NaN say, would reach through the mask."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.both[0].zero_()
                layer.both[1].zero_()

    def shape(self, new_tokens: int, keep: int, bucket: int, *, has_window: bool) -> Shape:
        """The buffers of a forward of ``new_tokens`` over the first ``bucket`` slots; the same ones every time."""
        key = new_tokens, keep, bucket
        if key not in self.shapes:
            device = self.lengths.device
            with torch.inference_mode(False):
                tokens = torch.zeros(self.batch_size, new_tokens, dtype=torch.long, device=device)
                full = torch.zeros(self.batch_size, 1, new_tokens, bucket, dtype=torch.bool, device=device)
                self.shapes[key] = Shape(
                    tokens=tokens,
                    lengths=self.lengths,
                    positions=torch.zeros_like(tokens),
                    full=full,
                    sliding=torch.zeros_like(full) if has_window else full,
                    keys=tuple(layer.both[0][:, :, :bucket] for layer in self.layers),
                    values=tuple(layer.both[1][:, :, :bucket] for layer in self.layers),
                    keep=keep,
                )
        return self.shapes[key]


class SlotLayer(RowLayer):
    """A layer whose buffers outlive their cache."""

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """(keys, values), once they are allocated."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """As ever, but as tensors that compiled code may write to in and out of inference mode alike."""
        with torch.inference_mode(False):
            super().lazy_initialization(key_states, value_states)
