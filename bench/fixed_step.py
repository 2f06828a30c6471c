"""The forward that is compiled or captured: a function of tensors, which computes positions and masks by itself.

    positions = length of the row + 0 … N−1        mask[b, n, s] = s ≤ positions[b, n]
    keys[b, :, positions[b, n]] = the new keys     attention reads the whole bucket under the mask

Nothing in it depends on a value, so nothing is read back to the host.

Shapes: B batch, N new tokens, S slots of a bucket, K key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from specgauge.bench.cache import cache_argument, mask_argument, sliding_window


class _TracedLayer(CacheLayerMixin):
    """A layer's buffers as the model sees them inside a step: written at the rows' positions, read as a whole."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys, self.values, self.is_initialized = keys, values, True
        self.index = positions.to(keys.device)
        self.rows = torch.arange(positions.shape[0], device=keys.device)[:, None]
        self.slots, self.new = keys.shape[2], positions.shape[1]

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the buffers are there."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Scatter (B, K, N, D) states to the rows' positions; return the whole bucket."""
        assert self.keys is not None
        assert self.values is not None
        self.keys[self.rows, :, self.index] = key_states.transpose(1, 2)
        self.values[self.rows, :, self.index] = value_states.transpose(1, 2)
        return self.keys, self.values

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:  # noqa: ARG002
        """As if the bucket were full after this forward (only read by models that ignore position ids)."""
        return self.slots - self.new

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:  # noqa: ARG002
        """(slots, offset 0)."""
        return self.slots, 0

    def get_max_length(self) -> int:
        """The bucket in tokens (name used by newer releases)."""
        return self.slots

    def get_max_cache_shape(self) -> int:
        """The bucket in tokens (name used by older releases)."""
        return self.slots


def fixed_step(model: PreTrainedModel) -> Callable[..., Tensor]:
    """A model's step, from `specgauge.bench.slots.Shape.arguments` to (B, keep or N, V) logits.

    Positions and masks are written into the buffers given.
    """
    argument, window = cache_argument(model), sliding_window(model)

    def step(
        tokens: Tensor,
        lengths: Tensor,
        positions: Tensor,
        full: Tensor,
        sliding: Tensor,
        keys: tuple[Tensor, ...],
        values: tuple[Tensor, ...],
        keep: int,
    ) -> Tensor:
        positions.copy_(lengths[:, None] + torch.arange(tokens.shape[1], device=tokens.device))
        slots = torch.arange(full.shape[-1], device=tokens.device)
        full.copy_((slots <= positions[:, :, None])[:, None])
        mask: Any = full
        if window is not None:
            sliding.copy_(full & (slots > positions[:, :, None] - window)[:, None])
            mask = mask_argument(model, full, sliding)
        layers: list[Any] = [_TracedLayer(k, v, positions) for k, v in zip(keys, values, strict=True)]
        output = model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=keep,
            **{argument: Cache(layers=layers)},
        )
        logits: Tensor = output.logits
        return logits

    return step
