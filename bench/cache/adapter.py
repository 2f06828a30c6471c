"""transformers' interfaces, from 5.0 on: a layer's cache, a forward's arguments, a configuration's answers, attention.

No other module knows the cache interface.  `BufferLayer` stores what a layer computes in buffers of ours, `run_model`
is the forward over them, and the questions to a configuration are here as well.

The attention registered here takes rows of their own lengths: the mask arrives ready-made, and grouped heads are folded
into the query length, so that verifying γ+1 tokens reads the key/value cache once, where transformers copies them.

Shapes: B batch, H query heads, K key/value heads, N new tokens, S slots, D head size, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface, Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

ATTENTION_NAMES = {"sdpa": "specgauge_rows", "eager": "specgauge_rows_written_out"}
"""What a configuration's ``attention`` may name, and the implementation registered for it."""
_FOLD_BELOW_TOKENS = 64
_PREPARED = "_specgauge_prepared"
_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}

Masks = Tensor | dict[str, Tensor | None] | None


class BufferLayer(CacheLayerMixin):
    """One layer's keys and values, (B, K, S, D) each; what a forward may see of them is up to the subclass."""

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def size(self) -> tuple[int, int, int]:
        """(tokens held before this forward, slots that its mask covers, slots in all)."""
        raise NotImplementedError

    @property
    def both(self) -> tuple[Tensor, Tensor]:
        """(keys, values), once they are allocated."""
        assert self.keys is not None
        assert self.values is not None
        return self.keys, self.values

    def scatter(self, key_states: Tensor, value_states: Tensor, positions: Tensor) -> None:
        """Write (B, K, N, D) states at (B, N) positions."""
        keys, values = self.both
        rows = torch.arange(positions.shape[0], device=keys.device)[:, None]
        keys[rows, :, positions] = key_states.transpose(1, 2)
        values[rows, :, positions] = value_states.transpose(1, 2)

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:  # noqa: ARG002
        """Tokens held (only read by models that ignore position ids)."""
        return self.size()[0]

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:  # noqa: ARG002
        """(slots, offset 0); masks are made by us, so transformers never needs more."""
        return self.size()[1], 0

    def get_max_length(self) -> int:
        """The capacity in tokens."""
        return self.size()[2]

    get_max_cache_shape = get_max_length  # as older releases call it


class TracedLayer(BufferLayer):
    """Buffers as a traced forward sees them: written at the rows' positions, read as a whole."""

    def __init__(self, keys: Tensor, values: Tensor, positions: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True
        self._positions = positions.to(keys.device)

    def size(self) -> tuple[int, int, int]:
        """As if the buffers were full after this forward."""
        slots = self.both[0].shape[2]
        return slots - self._positions.shape[1], slots, slots

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the buffers are there."""

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Write the states; return the whole buffers."""
        self.scatter(key_states, value_states, self._positions)
        return self.both


def cache_of(layers: Sequence[BufferLayer]) -> Cache:
    """The layers as a forward takes them."""
    return Cache(layers=list(layers))


def run_model(
    model: PreTrainedModel, tokens: Tensor, *, layers: Cache, mask: Masks, positions: Tensor, keep: int
) -> Tensor:
    """(B, keep or N, V) logits of (B, N) tokens at (B, N) positions; keep 0 keeps all."""
    output = model(
        input_ids=tokens,
        attention_mask=mask,
        position_ids=positions,
        use_cache=True,
        logits_to_keep=keep,
        **{_cache_argument(model): layers},
    )
    logits: Tensor = output.logits
    return logits


def _cache_argument(model: PreTrainedModel) -> str:
    """The forward's name for the cache: ``cache`` in newer transformers releases, ``past_key_values`` in older ones."""
    name: str | None = getattr(model, "_specgauge_cache_argument", None)
    if name is None:
        name = "cache" if "cache" in inspect.signature(type(model).forward).parameters else "past_key_values"
        model._specgauge_cache_argument = name  # type: ignore[assignment]
    return name


def layer_masks(model: PreTrainedModel, full: Tensor | None, sliding: Tensor | None) -> Masks:
    """What a model with a sliding window takes: the window's mask, or one mask for each kind of attention layer."""
    if "full_attention" in (getattr(model.config.get_text_config(), "layer_types", None) or ()):
        return {"full_attention": full, "sliding_attention": sliding}
    return sliding


def layer_count(model: PreTrainedModel) -> int:
    """Layers that keep keys and values."""
    return int(model.config.get_text_config().num_hidden_layers)


def sliding_window(model: PreTrainedModel) -> int | None:
    """The window in tokens of the layers that have one; None where no layer has."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if window is None or getattr(config, "use_sliding_window", True) is False:
        return None
    return int(window) if kinds is None or "sliding_attention" in kinds else None


@contextmanager
def window_of(model: PreTrainedModel, tokens: int) -> Iterator[None]:
    """The model with another sliding window, where it has one."""
    config = model.config.get_text_config()
    own = config.sliding_window
    config.sliding_window = tokens
    try:
        yield
    finally:
        config.sliding_window = own


def drop_window(model: PreTrainedModel) -> None:
    """Take the sliding window out of a configuration whose model applies none, so that nobody else believes it."""
    config = model.config.get_text_config()
    config.sliding_window = None
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * len(config.layer_types)


def refuse_cache_that_cannot_roll_back(config: Any, name: str, model: PreTrainedModel | None = None) -> None:
    """Refuse a configuration, or a model of it, whose state cannot be rolled back by moving a length.

    Raises:
        ValueError: an encoder-decoder model, or one with a recurrent state.
    """
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name}: encoder-decoder models are not supported; use a decoder-only model")
    kinds = set(getattr(config.get_text_config(), "layer_types", None) or ())
    found = sorted(kinds - _ATTENTION_LAYERS)
    if not found and getattr(model, "_is_stateful", False):
        found = [type(model).__name__]
    if found:
        raise ValueError(
            f"{name}: its state ({', '.join(found)}) cannot be rolled back after a rejected draft, so it cannot decode "
            f"speculatively; use a model with attention layers only ({', '.join(sorted(_ATTENTION_LAYERS))})"
        )


def _eager(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, softcap: float | None
) -> Tensor:
    """Attention written out, for models that cap their scores; scores are softmaxed in float32 or wider."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.matmul(
        torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype), value
    )


def for_all_layers(mask: Tensor) -> Tensor:
    """Let every layer of one forward share what is made of its mask; only for a mask that is never written to again."""
    setattr(mask, _PREPARED, {})
    return mask


def _prepared(mask: Tensor, groups: int, dtype: torch.dtype) -> Tensor:
    """The boolean mask once for every group of heads, boolean or added to scores of ``dtype``.

    torch would turn a boolean mask into one that is added in every layer anew, which costs as much as a small block's
    attention.
    """
    made: dict[tuple[int, torch.dtype], Tensor] | None = getattr(mask, _PREPARED, None)
    if made is None:
        return mask.repeat(1, 1, groups, 1) if groups > 1 else mask
    if (groups, dtype) not in made:
        folded = mask.repeat(1, 1, groups, 1) if groups > 1 else mask
        if dtype != torch.bool:
            folded = torch.zeros_like(folded, dtype=dtype).masked_fill_(~folded, -torch.inf)
        made[groups, dtype] = folded
    return made[groups, dtype]


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    *,
    written_out: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend (B, H, N, D) queries to (B, K, S, D) keys under a boolean (B or 1, 1, N, S) mask.

    No mask means a single new token that sees the whole cache, or a first block (N = S) under the causal triangle.
    ``written_out`` computes scores and softmax step by step. Returns (B, N, H, D), as transformers expects.

    Raises:
        ValueError: an attention feature it does not implement.
    """
    unsupported = [name for name in ("s_aux", "position_bias") if kwargs.get(name) is not None]
    if unsupported:
        raise ValueError(
            f"{type(module).__name__} needs {', '.join(unsupported)}, which attention over per-row caches "
            "does not implement; choose another model"
        )
    batch, heads, new, width = query.shape
    groups = heads // key.shape[1]
    scale = width**-0.5 if scaling is None else scaling
    triangle = attention_mask is None and new > 1
    fold = groups > 1 and not triangle and new <= _FOLD_BELOW_TOKENS
    if fold:
        query = query.reshape(batch, key.shape[1], groups * new, width)
    is_fused = softcap is None and not written_out
    if attention_mask is not None:
        attention_mask = _prepared(attention_mask, groups if fold else 1, query.dtype if is_fused else torch.bool)
    if not is_fused:
        if triangle:
            attention_mask = torch.ones(new, new, dtype=torch.bool, device=query.device).tril()[None, None]
        if groups > 1 and not fold:
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        output = _eager(query, key, value, attention_mask, scale, softcap)
    else:
        output = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            scale=scale,
            is_causal=triangle,
            enable_gqa=groups > 1 and not fold,
        )
    if fold:
        output = output.reshape(batch, heads, new, value.shape[-1])
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION_NAMES["sdpa"], attention_forward)
AttentionInterface.register(ATTENTION_NAMES["eager"], partial(attention_forward, written_out=True))
