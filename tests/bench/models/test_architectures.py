"""The counts of every family and shipped shape against transformers' own model, to the last parameter."""

from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from specgauge.configs.hardware import SHAPES, load_shape
from specgauge.model.roofline.architecture import architecture_from_config
from specgauge.model.roofline.families import FAMILIES

COMMON = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "sliding_window": 16,
    "max_window_layers": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 20}
SHARED = {"shared_expert_intermediate_size": 24, "use_sliding_window": True}
OWN: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2": {"use_sliding_window": True},
    "qwen2_moe": {**MOE, **SHARED, "num_experts": 4, "mlp_only_layers": [1]},
    "qwen3": {"head_dim": 10},
    "qwen3_moe": {**MOE, "num_experts": 4, "decoder_sparse_step": 2, "head_dim": 10},
    "gemma": {"head_dim": 10},
    "gemma2": {"head_dim": 10},
    "gemma3_text": {"head_dim": 10, "sliding_window_pattern": 3},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 10},
    "deepseek_v3": {
        "num_key_value_heads": 6,
        "q_lora_rank": 12,
        "kv_lora_rank": 10,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 20,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
    "gpt2": {"n_layer": 3, "n_embd": 48, "n_head": 6, "n_positions": 64},
    "opt": {"ffn_dim": 80, "word_embed_proj_dim": 48},
}
DROPPED = {
    "gpt2": {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"},
    "gpt_neox": {"num_key_value_heads"},
    "opt": {"num_key_value_heads", "intermediate_size"},
}


def transformers_model(config: dict[str, Any]) -> Any:
    fields = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(CONFIG_MAPPING[config["model_type"]](**fields))
    model.tie_weights()  # the oldest supported release leaves it to whoever loads weights
    return model


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_counts_what_transformers_builds(family: str) -> None:
    common = {key: value for key, value in COMMON.items() if key not in DROPPED.get(family, set())}
    config = {"model_type": family, **common, **OWN.get(family, {})}
    model = transformers_model(config)
    ours = architecture_from_config(config, name=family)
    assert ours.parameters == model.num_parameters()
    kinds = getattr(model.config, "layer_types", None)
    if kinds is not None:
        expected = tuple(model.config.sliding_window if kind == "sliding_attention" else None for kind in kinds)
        assert ours.windows == expected


@pytest.mark.parametrize("name", SHAPES)
def test_every_shipped_shape_counts_what_transformers_builds(name: str) -> None:
    config = load_shape(name)
    assert architecture_from_config(config, name=name).parameters == transformers_model(config).num_parameters()
