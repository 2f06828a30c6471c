"""Counts against arithmetic by hand and published totals; every message names the field."""

from typing import Any

import pytest

from specgauge.configs.hardware import SHAPES, load_shape
from specgauge.model.roofline.architecture import architecture_from_config
from tests.model.roofline_cases import shape, tiny_config

PUBLISHED_PARAMETERS = {
    "deepseek-v3": 671_026_404_352,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "smollm2-135m": 134_515_008,
    "tinyllama-1.1b": 1_100_048_384,
}
"""Of the model cards and safetensors headers; Gemma 3 without its image tower, DeepSeek-V3 without its extra layer for
multi-token prediction, tied heads counted once."""
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
        (tiny4(model_type="deepseek_v3"), "kv_lora_rank"),
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


def test_deepseek_v3_caches_one_latent_vector_for_all_heads() -> None:
    """671 billion weights of which a token passes through 37 (arXiv 2412.19437), 576 numbers cached a layer."""
    model = shape("deepseek-v3")
    assert (model.latent_width, model.pair_width) == (512 + 64, 2 * 512 + 64)
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert model.attention_parameters == attention
    assert (model.dense_layers, model.sparse_layers, model.experts, model.experts_per_token) == (3, 58, 256, 8)
    assert model.shared_parameters == model.expert_parameters == 3 * 7168 * 2048
    assert round(model.matrix_parameters_per_token / 1e9, 1) == 36.6


def test_a_draft_head_reads_the_embedding_of_its_target_and_knows_a_part_of_the_vocabulary() -> None:
    config = tiny_config(num_hidden_layers=1, draft_vocab_size=5)
    model = architecture_from_config(config, name="head")
    attention = 2 * 8 * (8 + 2 * 4) + 8 * 8
    assert (model.attention_parameters, model.fusion_parameters) == (attention, 3 * 8 * 8)
    assert model.parameters == attention + 3 * 8 * 16 + 3 * 8 * 8 + 5 * 8 + 4 * 8
    assert (model.embedding_parameters, model.head_parameters) == (10 * 8, 5 * 8)
