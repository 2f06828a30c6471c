"""What a device holds, what fits in its memory, and what is unknown."""

import pytest

from specgauge.model.roofline.deployment import Hardware, Precision, largest_batch, native_precision
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


def test_native_precision_is_the_configs_dtype() -> None:
    with pytest.raises(ValueError, match=r"^kv_cache: expected one of float64, .*, got 'bf16'$"):
        Precision(weights="bfloat16", kv_cache="bf16", compute="bfloat16")
    assert native_precision(tiny(dtype="bfloat16")) == HALF
    assert native_precision(tiny(torch_dtype="torch.bfloat16")) == HALF
    with pytest.raises(ValueError, match=r"^tiny: weight dtype: expected one of .*, got nothing; "):
        native_precision(tiny())
    with pytest.raises(ValueError, match=r"^tiny: weight dtype: expected one of .*, got awq; "):
        native_precision(tiny(dtype="bfloat16", quantization_config={"quant_method": "awq"}))
