"""Attention over a cache whose rows have their own lengths, registered with transformers.

transformers' own scaled-dot-product path builds its masks from one cache length and copies grouped key/value heads
whenever a mask is present.  Here the mask arrives ready-made (one row of it per sequence) and grouped heads are folded
into the query length, so that verifying γ+1 tokens reads the key/value cache once.

Shapes: B batch, H query heads, K key/value heads, N new tokens, S cached tokens, D head size.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

ATTENTION_NAMES = {"sdpa": "specgauge_rows", "eager": "specgauge_rows_written_out"}
"""What a configuration's ``attention`` may name, and the implementation registered for it."""
_FOLD_BELOW_TOKENS = 64
_PREPARED = "_specgauge_prepared"


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
    dropout: float = 0.0,
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
    if dropout != 0.0:
        raise ValueError("attention dropout is for training; call model.eval() before measuring")
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
