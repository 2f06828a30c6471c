"""Model families: which weights a layer of each transformers `model_type` has, and which layers see a window only.

A family is data: whether the feed-forward is gated, where the biases and norms are, how query and key are normalised,
what an absent `tie_word_embeddings` means, and the rule that gives each layer its sliding window.  The rules are those
of the model classes of transformers 5; tests build every family and compare the number of parameters, to the last one.
`specgauge.model.roofline.architecture` reads a config.json through this table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

WindowRule = Literal["none", "all", "all_when_used", "from_layer_when_used", "even_below_when_used", "even", "pattern"]
"""How layers get `sliding_window` when the config has no `layer_types`: never; all layers; all layers, layers from
`max_window_layers` on, or even layers below it (these three only with `use_sliding_window: true`); layers 0, 2, 4 …;
all but every `sliding_window_pattern`-th layer."""


@dataclass(frozen=True, kw_only=True)
class Switch:
    """A yes or no that a config key may decide."""

    key: str | None = None
    """Config key that decides; None where the family fixes it."""
    default: bool = False
    """What holds without the key."""


NO = Switch(default=False)
YES = Switch(default=True)


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Where a mixture-of-experts family keeps its numbers."""

    count_keys: tuple[str, ...]
    """Config keys for the number of experts, the first one present counts."""
    width_key: str
    """Config key for the width of one expert."""
    shared_width_key: str | None = None
    """Config key for the width of the expert every token passes through, with its one-row gate."""
    shared_count_key: str | None = None
    """Config key for the number of experts every token passes through, each as wide as a routed one."""
    first_dense_key: str | None = None
    """Config key for the number of layers, from the first, that have no experts."""
    biases: bool = False
    """Whether experts and router have biases."""
    sparse_step: bool = False
    """Whether `decoder_sparse_step` and `mlp_only_layers` leave some layers dense."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What a `model_type` means for the weights."""

    keys: dict[str, str] = field(default_factory=dict)
    """Config keys that differ from the common ones, by the common name."""
    gated_mlp: bool = True
    """Three feed-forward matrices (gate, up, down) instead of two."""
    mlp_width_factor: int | None = None
    """Width of the feed-forward over the hidden size where the config may leave it out (null)."""
    qkv_bias: Switch = NO
    output_bias: Switch = NO
    mlp_bias: Switch = NO
    norms_per_layer: int = 2
    layer_norm: bool = False
    """LayerNorm (weight and bias) instead of RMSNorm (weight)."""
    qk_norm: Literal["none", "head", "width"] = "none"
    """Norms of query and key: none, one vector per head dimension, or one over the whole projection."""
    latent: bool = False
    """Keys and values are cached as one latent vector for all heads (multi-head latent attention)."""
    sinks: bool = False
    """One learned attention sink for each head."""
    position_rows: int | None = None
    """Learned position embedding: rows beyond the context limit (None: no such table)."""
    tied_by_default: bool = False
    kv_heads_optional: bool = False
    """An absent `num_key_value_heads` means as many as query heads."""
    head_dim_optional: bool = True
    """An absent `head_dim` means hidden size over heads."""
    windows: WindowRule = "none"
    experts: Experts | None = None
    must_be: dict[str, object] = field(default_factory=dict)
    """Config keys with the only value this table describes (other values are refused)."""


_ATTENTION_BIAS = Switch(key="attention_bias")
_with_attention_bias = partial(Family, qkv_bias=_ATTENTION_BIAS, output_bias=_ATTENTION_BIAS)
_sparse_qwen = partial(
    Experts, count_keys=("num_experts", "num_local_experts"), width_key="moe_intermediate_size", sparse_step=True
)


def _two_matrices(bias: Switch, **rules: Any) -> Family:
    """LayerNorm, a feed-forward without a gate, and one switch for the biases of it and of attention."""
    biases = {"qkv_bias": bias, "output_bias": bias, "mlp_bias": bias}
    return Family(gated_mlp=False, layer_norm=True, **{**biases, **rules})


FAMILIES: dict[str, Family] = {
    "llama": _with_attention_bias(mlp_bias=Switch(key="mlp_bias"), kv_heads_optional=True),
    "mistral": Family(windows="all"),
    "mixtral": Family(windows="all", experts=Experts(count_keys=("num_local_experts",), width_key="intermediate_size")),
    "qwen2": Family(qkv_bias=YES, windows="from_layer_when_used"),
    "qwen2_moe": Family(
        qkv_bias=Switch(key="qkv_bias", default=True),
        windows="even_below_when_used",
        experts=_sparse_qwen(shared_width_key="shared_expert_intermediate_size"),
    ),
    "qwen3": _with_attention_bias(qk_norm="head", head_dim_optional=False, windows="from_layer_when_used"),
    "qwen3_moe": _with_attention_bias(qk_norm="head", windows="all_when_used", experts=_sparse_qwen()),
    "gemma": _with_attention_bias(tied_by_default=True, head_dim_optional=False),
    "gemma2": _with_attention_bias(norms_per_layer=4, tied_by_default=True, head_dim_optional=False, windows="even"),
    "gemma3_text": _with_attention_bias(
        norms_per_layer=4, qk_norm="head", tied_by_default=True, head_dim_optional=False, windows="pattern"
    ),
    "phi3": Family(kv_heads_optional=True, windows="all"),
    "smollm3": _with_attention_bias(
        mlp_bias=Switch(key="mlp_bias"), tied_by_default=True, must_be={"use_sliding_window": False}
    ),
    "granite": _with_attention_bias(mlp_bias=Switch(key="mlp_bias"), kv_heads_optional=True),
    "olmo2": _with_attention_bias(qk_norm="width", kv_heads_optional=True),
    "olmoe": _with_attention_bias(
        qk_norm="width",
        kv_heads_optional=True,
        experts=Experts(count_keys=("num_experts", "num_local_experts"), width_key="intermediate_size"),
    ),
    "starcoder2": _two_matrices(Switch(key="use_bias", default=True), tied_by_default=True, windows="all"),
    "gpt_oss": Family(
        qkv_bias=Switch(key="attention_bias", default=True),
        output_bias=Switch(key="attention_bias", default=True),
        sinks=True,
        head_dim_optional=False,
        windows="even",
        experts=Experts(count_keys=("num_local_experts", "num_experts"), width_key="intermediate_size", biases=True),
    ),
    "deepseek_v3": Family(
        latent=True,
        head_dim_optional=True,
        experts=Experts(
            count_keys=("n_routed_experts", "num_local_experts"),
            width_key="moe_intermediate_size",
            shared_count_key="n_shared_experts",
            first_dense_key="first_k_dense_replace",
        ),
        must_be={"attention_bias": False, "moe_layer_freq": 1},
    ),
    "gpt2": _two_matrices(
        YES,
        keys={
            "num_hidden_layers": "n_layer",
            "hidden_size": "n_embd",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "max_position_embeddings": "n_positions",
        },
        mlp_width_factor=4,
        position_rows=0,
        tied_by_default=True,
        kv_heads_optional=True,
    ),
    "gpt_neox": _two_matrices(Switch(key="attention_bias", default=True), mlp_bias=YES, kv_heads_optional=True),
    "opt": _two_matrices(
        Switch(key="enable_bias", default=True),
        keys={"intermediate_size": "ffn_dim"},
        position_rows=2,
        tied_by_default=True,
        kv_heads_optional=True,
        must_be={"do_layer_norm_before": True, "_remove_final_layer_norm": False},
    ),
}
"""The families the roofline knows, by transformers' `model_type`."""

REFUSED = {
    "kv_lora_rank": "a compressed (latent) KV cache",
    "ssm_state_size": "recurrent state",
    "linear_num_key_heads": "linear attention",
    "mamba_d_state": "recurrent state",
}
"""Config keys of architectures whose bytes this model does not count, and why."""
