"""Shapes of drafts that follow from their target's: a one-layer head like EAGLE-3's, and the target's first layers.

Both are read as any config.json is, by `specgauge.model.roofline.architecture.architecture_from_config`:

    eagle3_head(config)["draft_vocab_size"]
    first_layers(config, 8)["num_hidden_layers"]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specgauge.model.roofline.architecture import text_config

EAGLE3_VOCABULARY = 32_000
"""Tokens that EAGLE-3 heads draft from, where their target has more (`draft_vocab_size` of the published heads)."""
_COPIED = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")


def eagle3_head(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a head as EAGLE-3's are built (Li et al., arXiv 2503.01840): one llama layer as wide as the target.

    Its attention reads the token's embedding beside a hidden state, one matrix fuses three hidden states of the target,
    and the embedding is the target's own.  Latent attention becomes plain, experts one feed-forward.

    Raises:
        ValueError: the target's config has no hidden size, heads, vocabulary or feed-forward width.
    """
    whole = text_config(config)
    width = whole.get("intermediate_size")
    missing = [key for key in ("hidden_size", "num_attention_heads", "vocab_size") if whole.get(key) is None]
    if missing or width is None:
        key = missing[0] if missing else "intermediate_size"
        raise ValueError(f"draft eagle3: field {key!r}: expected it in the target's config, got nothing")
    vocabulary = whole["vocab_size"]
    draft = EAGLE3_VOCABULARY if not isinstance(vocabulary, int) else min(EAGLE3_VOCABULARY, vocabulary)
    return {
        **{key: whole[key] for key in _COPIED if whole.get(key) is not None},
        "model_type": "llama",
        "num_hidden_layers": 1,
        "intermediate_size": width,
        "draft_vocab_size": draft,
        "max_position_embeddings": whole.get("max_position_embeddings"),
        "torch_dtype": whole.get("dtype") or whole.get("torch_dtype"),
    }


def first_layers(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """The config of a target's first layers with its final norm and head.

    Raises:
        ValueError: no layer, or not fewer than the target has.
    """
    whole = text_config(config)
    key = "n_layer" if whole.get("model_type") == "gpt2" else "num_hidden_layers"
    every = whole.get(key)
    if not isinstance(every, int):
        raise ValueError(f"draft layers: field {key!r}: expected it in the target's config, got {every!r}")
    if not 1 <= layers < every:
        raise ValueError(f"draft layers: expected 1 to {every - 1} of the target's {every}, got {layers}")
    kinds = whole.get("layer_types")
    first = {"layer_types": kinds[:layers]} if isinstance(kinds, list) else {}
    return {**whole, **first, key: layers}
