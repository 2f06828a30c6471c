"""What a device holds, what fits in its memory, and what is unknown."""

from dataclasses import replace
from typing import Any

import pytest

from specgauge.model.roofline.deployment import Hardware, Precision, largest_batch, precision_of
from specgauge.model.roofline.quantization import quantization_from_config, quantized
from tests.model.roofline_cases import HALF, deployed, round_machine, tiny


def test_weights_held_by_one_device_and_by_each_of_two() -> None:
    model = tiny()
    one = deployed(model, round_machine())
    two = deployed(model, round_machine(), tensor_parallel=2)
    matrices = 2 * (192 + 384) + 2 * 80
    assert one.weight_bytes_held == 2 * (matrices + 40)
    assert two.weight_bytes_held == 2 * (matrices / 2 + 40)


def test_a_windowed_layer_keeps_its_window() -> None:
    deployment = deployed(tiny(model_type="gemma2", head_dim=2, sliding_window=4), round_machine())
    assert deployment.kv_bytes_held([0, 3, 10]).tolist() == [0, 16 * (3 + 3), 16 * (4 + 10)]


def test_largest_batch_by_hand() -> None:
    """Memory for 40 sequences of 12 tokens (2 layers of 16 bytes) and 31 bytes over."""
    weights = 2 * (2 * (192 + 384) + 2 * 80 + 40)
    card = round_machine(memory_bytes=weights + 40 * 12 * 32 + 31)
    target = deployed(tiny(), card)
    assert int(largest_batch(target, context=11, memory_fraction=1.0)) == 40
    assert largest_batch(target, context=[11, 12], memory_fraction=1.0).tolist() == [40, 36]
    # gamma = 3: 15 tokens of the target and 14 of the draft; its weights take the rest
    assert int(largest_batch(target, context=11, gamma=3, memory_fraction=1.0)) == 40 * 12 * 32 // (15 * 32)
    room = 40 * 12 * 32 + 31 - weights
    assert int(largest_batch(target, draft=target, context=11, gamma=3, memory_fraction=1.0)) == room // (29 * 32)


def test_nothing_fits_where_the_weights_do_not() -> None:
    assert int(largest_batch(deployed("llama-3.1-70b"), context=1)) == 0
    assert int(largest_batch(deployed("llama-3.1-70b", tensor_parallel=4), context=1)) > 0


@pytest.mark.parametrize("fraction", [0.0, 1.5, float("nan")])
def test_memory_fraction_is_a_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"^memory_fraction: expected a number above 0 and at most 1, got "):
        largest_batch(deployed("smollm2-135m"), context=1, memory_fraction=fraction)


def test_what_is_unknown_is_an_error_only_where_it_is_needed() -> None:
    card = Hardware(name="mystery", peak_flops_per_s={"float32": 1.0, "float16": None})
    for name, ask in (
        ("memory_bytes", card.memory),
        ("memory_bandwidth_bytes_per_s", card.bandwidth),
        ("link_bandwidth_bytes_per_s", card.link),
    ):
        with pytest.raises(ValueError, match=rf"^hardware 'mystery': {name} is unknown \(null\); add the number .*$"):
            ask()
    for dtype in ("float16", "int8"):
        with pytest.raises(ValueError, match=f"^hardware 'mystery': .* for {dtype} is unknown, known: float32; .*$"):
            card.peak(dtype)
    assert card.peak("float32") == 1.0


@pytest.mark.parametrize(("heads", "tensor_parallel"), [(4, 0), (4, 3), (4, 8), (6, 3)])
def test_heads_must_divide_over_the_devices(heads: int, tensor_parallel: int) -> None:
    """Query heads and the 2 key-value heads both, or key-value heads are copied whole times."""
    model = tiny(num_attention_heads=heads, head_dim=2)
    expected = (
        rf"^tiny: tensor parallel: expected a divisor of the {heads} .* the 2 key-value .*, got {tensor_parallel}$"
    )
    with pytest.raises(ValueError, match=expected):
        deployed(model, round_machine(), tensor_parallel=tensor_parallel)


def test_the_dtype_is_the_configs_where_none_is_asked_for() -> None:
    card = round_machine()
    with pytest.raises(ValueError, match=r"^kv_cache: expected one of float64, .*, got 'bf16'$"):
        Precision(weights="bfloat16", kv_cache="bf16", compute="bfloat16")
    assert precision_of(tiny(dtype="bfloat16"), card) == HALF
    assert precision_of(tiny(torch_dtype="torch.bfloat16"), card) == HALF
    assert precision_of(tiny(), card, dtype="float16", kv_cache="float8") == Precision(
        weights="float16", kv_cache="float8", compute="float16"
    )
    with pytest.raises(ValueError, match=r"^tiny: weight dtype: expected one of .*, got nothing; "):
        precision_of(tiny(), card)
    with pytest.raises(
        ValueError,
        match=r"^tiny: field 'quantization_config': expected weights of 4 or 8 bits by .*, got 'awq' without; ",
    ):
        precision_of(tiny(dtype="bfloat16", quantization_config={"quant_method": "awq"}), card)


@pytest.mark.parametrize(
    ("config", "dtype", "bytes_per_weight"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 0.5 + 2.5 / 128),
        ({"quant_method": "awq", "w_bit": 4}, "int4", 0.5),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "float8", 1 + 4 / 128**2),
        ({"quant_method": "fp8"}, "float8", 1.0),
        ({"quant_method": "mxfp4"}, "int4", 0.5 + 1 / 32),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "int4", 0.5 + 2.5 / 64),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 1.0),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "group_size": None}}},
            },
            "float8",
            1.0,
        ),
    ],
)
def test_what_a_config_says_of_its_weights(config: dict[str, Any], dtype: str, bytes_per_weight: float) -> None:
    stored = quantization_from_config(config)
    assert (stored.method, stored.dtype) == (config["quant_method"], dtype)
    assert stored.bytes_per_weight == bytes_per_weight


def test_a_dtype_that_is_asked_for_means_plain_weights_whatever_the_config_says() -> None:
    model = tiny(dtype="bfloat16", quantization_config={"quant_method": "fp8"})
    eight = round_machine(peak_flops_per_s={"bfloat16": 1.0, "float8": 2.0})
    assert precision_of(model, eight, dtype="bfloat16") == HALF
    assert precision_of(model, eight).compute == "float8"
    assert precision_of(model, round_machine()).compute == "bfloat16"  # no peak: multiplied in the plain dtype


@pytest.mark.parametrize(("dtype", "group", "found"), [("int3", None, "'int3'"), ("int4", 0, "0")])
def test_only_known_quantisations_can_be_asked_for(dtype: str, group: int | None, found: str) -> None:
    with pytest.raises(ValueError, match=rf"^weights: expected .*, got {found}$"):
        quantized(dtype, group)


def test_weights_of_a_draft_that_is_part_of_its_target_take_no_room() -> None:
    card = round_machine(memory_bytes=1e6)
    target = deployed(tiny(), card)
    own, part = (replace(target, shares_weights=shares) for shares in (False, True))
    difference = int(largest_batch(target, draft=part, context=9)) - int(largest_batch(target, draft=own, context=9))
    assert difference == pytest.approx(target.weight_bytes_held / (19 * 32), abs=1)
