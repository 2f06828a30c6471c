"""Counts against arithmetic by hand and published totals; every message names the field."""

from typing import Any

import pytest

from specgauge.configs.hardware import SHAPES, load_shape
from specgauge.model.roofline.architecture import architecture_from_config
from tests.model.roofline_cases import shape, tiny_config

PUBLISHED_PARAMETERS = {
    "gemma-2-9b": 9_241_705_984,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "smollm2-135m": 134_515_008,
    "tinyllama-1.1b": 1_100_048_384,
}
QWEN2 = {"model_type": "qwen2", "sliding_window": 3, "use_sliding_window": True}
OPT = {"model_type": "opt", "ffn_dim": 16, "max_position_embeddings": 9}


def tiny4(**changes: Any) -> dict[str, Any]:
    """Four layers; what is "absent" is left out."""
    config = tiny_config(**{"num_hidden_layers": 4, **changes})
    return {key: value for key, value in config.items() if value != "absent"}


def test_every_shipped_shape_has_its_published_number_of_parameters() -> None:
    assert {name: shape(name).parameters for name in SHAPES} == PUBLISHED_PARAMETERS


def test_llama_2_7b_by_hand() -> None:
    model = shape("llama-2-7b")
    attention, mlp = 4 * 4096 * 4096, 3 * 4096 * 11008
    assert model.matrix_parameters_per_token == 32 * (attention + mlp) + 32000 * 4096
    assert (model.dtype, model.context_limit, model.tied_embeddings) == ("float16", 4096, False)


def test_mixtral_holds_eight_experts_and_uses_two() -> None:
    model, expert, attention = shape("mixtral-8x7b"), 3 * 4096 * 14336, 2 * 4096 * (4096 + 1024)
    assert (model.experts, model.experts_per_token, model.sparse_layers, model.dense_layers) == (8, 2, 32, 0)
    assert model.matrix_parameters_per_token == 32 * (attention + 2 * expert + 4096 * 8) + 32000 * 4096


def test_gemma_2_alternates_windows_and_ties_its_embeddings_without_saying_so() -> None:
    model = shape("gemma-2-9b")
    assert model.windows == (4096, None) * 21
    assert model.window_groups() == [(4096, 21), (None, 21)]
    assert "tie_word_embeddings" not in load_shape("gemma-2-9b")
    assert model.tied_embeddings


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 3}, (3, 3, 3, 3)),
        ({"model_type": "mistral", "sliding_window": None}, (None,) * 4),
        ({"model_type": "qwen2", "sliding_window": 3, "max_window_layers": 1}, (None,) * 4),
        ({**QWEN2, "max_window_layers": 1}, (None, 3, 3, 3)),
        ({**QWEN2, "max_window_layers": 0}, (3, 3, 3, 3)),
        ({"model_type": "gemma3_text", "head_dim": 2, "sliding_window": 3, "sliding_window_pattern": 2}, (3, None) * 2),
        ({"model_type": "gemma3_text", "head_dim": 2, "sliding_window": 3}, (3, 3, 3, 3)),
        ({"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"] * 2}, (None, 5, None, 5)),
        ({"sliding_window": 5}, (None,) * 4),
    ],
)
def test_windows_by_family(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert architecture_from_config(tiny4(**changes), name="m").windows == windows


def test_some_layers_of_a_mixture_can_be_dense() -> None:
    sizes = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 5}
    config = tiny4(model_type="qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[3], **sizes)
    model = architecture_from_config(config, name="m")
    assert (model.dense_layers, model.sparse_layers) == (3, 1)
    assert model.expert_parameters == 3 * 8 * 5


def test_a_text_config_inside_an_image_model_is_read() -> None:
    inner = tiny4(model_type="gemma3_text", head_dim=2)
    model = architecture_from_config({"model_type": "gemma3", "dtype": "bfloat16", "text_config": inner}, name="m")
    assert (model.model_type, model.dtype) == ("gemma3_text", "bfloat16")


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (tiny4(model_type="lama"), "model_type"),
        (tiny4(model_type="absent"), "model_type"),
        (tiny4(model_type=["llama"]), "model_type"),
        (tiny4(num_hidden_layers="absent"), "num_hidden_layers"),
        (tiny4(num_hidden_layers=10_001), "num_hidden_layers"),
        (tiny4(hidden_size=10**400), "hidden_size"),
        (tiny4(vocab_size=10**30), "vocab_size"),
        (tiny4(quantization_config="fp8"), "quantization_config"),
        (
            tiny4(model_type="qwen3_moe", head_dim=2, num_experts=2, num_experts_per_tok=1, mlp_only_layers=3),
            "mlp_only_layers",
        ),
        ({"model_type": "gpt2", "n_layer": 2}, "n_embd"),
        (tiny4(hidden_size=0), "hidden_size"),
        (tiny4(hidden_size="8"), "hidden_size"),
        (tiny4(hidden_size=True), "hidden_size"),
        (tiny4(num_key_value_heads=3), "num_key_value_heads"),
        (tiny4(hidden_size=10), "num_attention_heads"),
        (tiny4(attention_bias="yes"), "attention_bias"),
        (tiny4(layer_types=["full_attention", "linear_attention", "full_attention", "full_attention"]), "layer_types"),
        (tiny4(layer_types=[]), "layer_types"),
        (tiny4(kv_lora_rank=512), "kv_lora_rank"),
        (tiny4(model_type="mixtral", num_local_experts=2, num_experts_per_tok=3), "num_experts_per_tok"),
        (tiny4(model_type="qwen3"), "head_dim"),
        (tiny4(**OPT, word_embed_proj_dim=4), "word_embed_proj_dim"),
        (tiny4(**OPT, do_layer_norm_before=False), "do_layer_norm_before"),
    ],
)
def test_errors_name_the_field(config: Any, field: str) -> None:
    with pytest.raises(ValueError, match=f"^m: field '{field}'") as caught:
        architecture_from_config(config, name="m")
    assert "\n" not in str(caught.value)


def test_a_misspelt_family_names_the_nearest_and_a_list_is_no_config() -> None:
    with pytest.raises(ValueError, match=r"got 'lama' \(nearest: 'llama'\)$"):
        architecture_from_config(tiny4(model_type="lama"), name="m")
    with pytest.raises(ValueError, match=r"^m: .* got list$"):
        architecture_from_config([1], name="m")  # type: ignore[arg-type]
