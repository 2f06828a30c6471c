"""Draft shapes that follow from a target's, against counts by hand."""

from typing import Any

import pytest

from specgauge.configs.hardware import load_shape
from specgauge.model.roofline.architecture import architecture_from_config
from specgauge.model.roofline.drafts import eagle3_head, first_layers
from tests.model.roofline_cases import tiny_config


def test_an_eagle3_head_of_llama_3_1_8b() -> None:
    """The published head's file has 0.85 GB of 2-byte weights, its embedding left out."""
    head = architecture_from_config(eagle3_head(load_shape("llama-3.1-8b")), name="head")
    width, kv = 4096, 1024
    attention = 2 * width * (width + 2 * kv) + width * width
    assert head.parameters == attention + 3 * width * 14336 + 3 * width * width + 32_000 * width + 4 * width
    assert (head.layers, head.vocab_size, head.output_rows, head.dtype) == (1, 128_256, 32_000, "bfloat16")


def test_a_head_of_a_small_vocabulary_knows_all_of_it() -> None:
    config = eagle3_head(tiny_config())
    assert (config["draft_vocab_size"], config["num_key_value_heads"]) == (10, 2)


@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"])
def test_a_head_needs_the_sizes_of_its_target(key: str) -> None:
    config = {name: value for name, value in tiny_config().items() if name != key}
    with pytest.raises(
        ValueError, match=rf"^draft eagle3: field '{key}': expected it in the target's config, got nothing$"
    ):
        eagle3_head(config)


def test_the_first_layers_keep_head_and_kinds_of_layer() -> None:
    kinds = ["sliding_attention", "full_attention"]
    config = first_layers(tiny_config(layer_types=kinds, sliding_window=4, num_hidden_layers=2), 1)
    model = architecture_from_config(config, name="m")
    assert (model.layers, model.windows) == (1, (4,))
    assert model.parameters == 192 + 384 + 2 * 80 + 3 * 8
    inner = first_layers({"text_config": tiny_config(model_type="llama"), "dtype": "bfloat16"}, 1)
    assert architecture_from_config(inner, name="m").dtype == "bfloat16"


@pytest.mark.parametrize(("layers", "config", "found"), [(2, tiny_config(), "2"), (0, tiny_config(), "0")])
def test_fewer_layers_than_the_target_has(layers: int, config: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=rf"^draft layers: expected 1 to 1 of the target's 2, got {found}$"):
        first_layers(config, layers)
    with pytest.raises(ValueError, match=r"^draft layers: field 'num_hidden_layers': expected it .*, got None$"):
        first_layers({}, 1)
