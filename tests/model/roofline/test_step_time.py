"""Bytes, FLOPs and seconds of a step against arithmetic by hand, and the roofline as a source of costs."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.costs import CostSource
from specgauge.model.roofline.costs import RooflineCosts
from specgauge.model.roofline.deployment import precision_of
from specgauge.model.roofline.quantization import quantized
from specgauge.model.roofline.step_time import (
    Efficiency,
    attention_imbalance,
    experts_touched,
    step_parts_s,
    step_time_s,
    step_work,
)
from specgauge.model.settings import Provenance
from tests.model.roofline_cases import HALF, deployed, round_machine, tiny

# tiny: attention 2·8·(8+4) = 192 and feed-forward 3·8·16 = 384 a layer, head 80, norms 2·2·8 + 8 = 40
TINY_MATRICES = 2 * (192 + 384) + 80
TINY_VECTORS = 40


@pytest.mark.parametrize(
    ("experts", "per_token", "tokens", "expected"),
    [
        (8, 2, 5, 8 * (1 - 0.75**5)),
        (512, 10, 4, 512 * (1 - (502 / 512) ** 4)),
        (8, 2, 1, 2.0),
        (8, 2, 0, 0.0),
        (4, 4, 0, 0.0),
        (4, 4, 9, 4.0),
    ],
)
def test_experts_touched(experts: int, per_token: int, tokens: int, expected: float) -> None:
    assert float(experts_touched(experts, per_token, tokens)) == pytest.approx(expected, rel=1e-14)
    with pytest.raises(ValueError, match=rf"^per_token: expected 1 to the {experts} experts, got {experts + 1}$"):
        experts_touched(experts, experts + 1, tokens)


def test_one_step_of_a_tiny_model_by_hand() -> None:
    deployment = deployed(tiny(), round_machine())
    work = step_work(deployment, batch_size=3, context=10, tokens=2)
    assert float(work.tokens) == 6
    assert float(work.weight_bytes) == 2 * (TINY_MATRICES + TINY_VECTORS + 6 * 8)
    # 2 layers, keys and values of 2 heads of 2 numbers: 8 numbers, 16 bytes a token and layer; 10 read and 2 written
    assert float(work.kv_bytes) == 3 * 2 * 16 * (10 + 2)
    assert float(work.matrix_flops) == 2 * 6 * TINY_MATRICES
    # the two tokens see 11 and 12 tokens; 4 heads of 2 numbers, 4 FLOPs a number and pair
    assert float(work.attention_flops) == 3 * 2 * (11 + 12) * 4 * 4 * 2
    assert float(work.sent_bytes) == 0
    assert float(work.attention_blocks) == 6
    total = float(work.weight_bytes) + float(work.kv_bytes)
    assert float(step_time_s(work, deployment)) == max(total / 1e3, float(work.flops) / 1e4)


def test_two_devices_split_matrices_and_heads_and_send_a_ring() -> None:
    deployment = deployed(tiny(), round_machine(), tensor_parallel=2)
    work = step_work(deployment, batch_size=3, context=10, tokens=2)
    assert float(work.weight_bytes) == 2 * (TINY_MATRICES / 2 + TINY_VECTORS + 6 * 8)
    assert float(work.kv_bytes) == 3 * 2 * 8 * 12
    assert float(work.matrix_flops) == 6 * TINY_MATRICES
    # two all-reduces a layer, each sends 2·(2 − 1)/2 = 1 time the 6·8 numbers of 2 bytes
    assert float(work.sent_bytes) == 2 * 2 * 6 * 8 * 2
    assert {name: float(seconds) for name, seconds in step_parts_s(work, deployment).items()} == {
        "weights": float(work.weight_bytes) / 1e3,
        "kv": float(work.kv_bytes) / 1e3,
        "flops": float(work.matrix_flops) / 1e4 + float(work.attention_flops) / 1e4,
        "launch": 0.0,
        "all_reduce": float(work.sent_bytes) / 1e2,
    }


def test_fitted_parts_add_up_to_the_step() -> None:
    deployment = deployed("llama-3.1-8b", tensor_parallel=2)
    fitted = Efficiency(bandwidth_fraction=0.9, flops_fraction=0.4, launch_s=1e-4, token_s=1e-6)
    work = step_work(deployment, batch_size=[1, 300], context=1000, tokens=4)
    parts = step_parts_s(work, deployment, fitted)
    assert sum(parts.values()) == pytest.approx(step_time_s(work, deployment, fitted), rel=1e-12)
    assert parts["launch"].tolist() == pytest.approx([32e-4 + 4e-6, 32e-4 + 1200e-6], rel=1e-12)


def test_quantised_matrices_weigh_less_and_the_rest_stays_plain() -> None:
    """Four bits and a share of a 2-byte scale for each weight of the layers; the head and vectors keep two bytes."""
    machine = round_machine(peak_flops_per_s={"bfloat16": 1e4, "float8": 2e4})
    plain = deployed(tiny(), machine)
    four = replace(plain, precision=precision_of(tiny(), machine, dtype="bfloat16", quantization=quantized("int4", 32)))
    matrices, rest = 2 * (192 + 384), 80 + 40 + 8
    assert float(step_work(plain, batch_size=1, context=0).weight_bytes) == 2 * (matrices + rest)
    assert float(step_work(four, batch_size=1, context=0).weight_bytes) == matrices * (0.5 + 2 / 32) + 2 * rest
    eight = replace(plain, precision=precision_of(tiny(), machine, dtype="bfloat16", quantization=quantized("float8")))
    parts = step_parts_s(step_work(eight, batch_size=1, context=4), eight)
    work = step_work(plain, batch_size=1, context=4)
    assert float(parts["flops"]) == float(work.matrix_flops) / 2e4 + float(work.attention_flops) / 1e4


def test_only_experts_are_quantised_where_the_config_says_so() -> None:
    oss = deployed("gpt-oss-20b", "h100-sxm")
    stored = replace(oss, precision=precision_of(oss.architecture, oss.hardware))
    experts = 24 * 32 * 3 * 2880 * 2880
    assert oss.weight_bytes_held - stored.weight_bytes_held == experts * (2 - (0.5 + 1 / 32))
    assert stored.precision.label == "int4 in groups of 32, experts only"
    assert stored.precision.compute == "bfloat16"


def test_latent_attention_reads_one_vector_for_all_heads() -> None:
    model = deployed("deepseek-v3", "h200-sxm", tensor_parallel=8)
    work = step_work(model, batch_size=2, context=99)
    assert float(work.kv_bytes) == 2 * 100 * 61 * 576 * 2
    assert float(work.attention_flops) == 2 * 100 * 61 * 2 * 16 * 1088
    assert float(model.kv_bytes_held(100)) == 100 * 61 * 576 * 2


def test_a_small_cache_dtype_halves_the_cache_alone() -> None:
    machine = round_machine()
    small = replace(deployed(tiny(), machine), precision=replace(HALF, kv_cache="float8"))
    works = [step_work(each, batch_size=3, context=10) for each in (small, deployed(tiny(), machine))]
    assert 2 * float(works[0].kv_bytes) == float(works[1].kv_bytes)
    assert float(works[0].weight_bytes) == float(works[1].weight_bytes)


def test_more_devices_than_key_value_heads_hold_copies() -> None:
    deployment = deployed(tiny(), round_machine(), tensor_parallel=4)
    assert deployment.kv_heads_per_device == 1
    assert float(step_work(deployment, batch_size=1, context=10).kv_bytes) == 2 * 8 * 11


def test_a_window_bounds_what_is_read_and_multiplied() -> None:
    deployment = deployed(tiny(model_type="gemma2", head_dim=2, sliding_window=4), round_machine())
    work = step_work(deployment, batch_size=1, context=[1, 3, 10], tokens=2)
    # layer 0 has the window: 1, 3 and then no more than 3 cached tokens are read; layer 1 sees all
    assert work.kv_bytes.tolist() == [16 * (1 + 1 + 4), 16 * (3 + 3 + 4), 16 * (3 + 10 + 4)]
    # tokens of layer 0 see (2, 3), (4, 4) and (4, 4); those of layer 1 see s + 1 and s + 2
    pairs = np.array([5 + 5, 8 + 9, 8 + 23])
    assert work.attention_flops.tolist() == (pairs * 4 * 4 * 2).tolist()


def test_tied_embeddings_are_held_once_and_read_all_the_same() -> None:
    models = tiny(tie_word_embeddings=True), tiny()
    tied, untied = (deployed(each, round_machine()) for each in models)
    assert untied.architecture.parameters - tied.architecture.parameters == 80
    read = [step_work(each, batch_size=1, context=0).weight_bytes for each in (tied, untied)]
    assert read[0] == read[1]


def test_a_mixture_reads_the_experts_its_tokens_touch() -> None:
    one = step_work(deployed("mixtral-8x7b"), batch_size=1, context=0, tokens=1)
    five = step_work(deployed("mixtral-8x7b"), batch_size=1, context=0, tokens=5)
    more_experts = 32 * (8 * (1 - 0.75**5) - 2) * 3 * 4096 * 14336
    assert float(five.weight_bytes - one.weight_bytes) == pytest.approx(2 * (more_experts + 4 * 4096), rel=1e-12)
    assert float(five.matrix_flops) == 5 * float(one.matrix_flops)


def test_verifying_reads_hardly_more_and_computes_more() -> None:
    """One token of a dense 16-bit model is about one FLOP a byte; gamma + 1 tokens are gamma + 1."""
    work = step_work(deployed("llama-2-7b"), batch_size=1, context=0, tokens=[1, 5])
    assert work.flops / work.memory_bytes == pytest.approx([1.0, 5.0], rel=1e-3)


def test_fitted_efficiencies_enter_where_the_equation_says() -> None:
    deployment = deployed(tiny(), round_machine(), tensor_parallel=2)
    work = step_work(deployment, batch_size=3, context=10, tokens=2)
    efficiency = Efficiency(bandwidth_fraction=0.5, flops_fraction=0.25, launch_s=7.0, token_s=11.0)
    expected = (
        2 * 7.0
        + 6 * 11.0
        + float(work.sent_bytes) / 1e2
        + float(work.memory_bytes) / (0.5 * 1e3)
        + float(work.flops) / (0.25 * 1e4)
    )
    assert float(step_time_s(work, deployment, efficiency)) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(("exponent", "combined"), [(1.0, 7.0), (2.0, 5.0), (float("inf"), 4.0)])
def test_memory_and_arithmetic_combine_by_the_exponent(exponent: float, combined: float) -> None:
    """Weights 3 s and matrices 4 s; the cache and attention are next to nothing."""
    deployment = deployed(tiny(), round_machine())
    work = step_work(deployment, batch_size=1, context=0)
    card = round_machine(
        memory_bandwidth_bytes_per_s=float(work.weight_bytes) / 3,
        peak_flops_per_s={"bfloat16": float(work.matrix_flops) / 4},
    )
    deployment = deployed(tiny(), card)
    attention_s = float(
        step_time_s(work, deployment, Efficiency(overlap_exponent=float("inf")))
        - np.maximum(work.weight_bytes / card.bandwidth(), work.matrix_flops / card.peak("bfloat16"))
    )
    total = float(step_time_s(work, deployment, Efficiency(overlap_exponent=exponent)))
    assert combined <= total <= combined + 2 * attention_s + 1e-12


def test_attention_waves_of_an_a100() -> None:
    factors = {1: 1.0, 107: 1.0, 108: 1.0, 128: 1.0, 216: 1.0, 217: 324 / 217, 256: 324 / 256, 512: 540 / 512}
    assert attention_imbalance(list(factors), 108, 2).tolist() == list(factors.values())
    assert (
        attention_imbalance([1, 256], None, 2).tolist() == attention_imbalance([1, 256], 108, None).tolist() == [1, 1]
    )


@given(blocks=st.integers(1, 5000), multiprocessors=st.integers(1, 300), resident=st.integers(1, 8))
def test_imbalance_never_speeds_up_and_never_doubles(blocks: int, multiprocessors: int, resident: int) -> None:
    factor = float(attention_imbalance(blocks, multiprocessors, resident))
    assert 1.0 <= factor < 2.0


@given(
    batch=st.integers(1, 64), context=st.integers(0, 5000), tokens=st.integers(1, 9), devices=st.sampled_from([1, 2, 4])
)
def test_no_efficiency_up_to_one_beats_the_bound(batch: int, context: int, tokens: int, devices: int) -> None:
    deployment = deployed("llama-3.2-1b", tensor_parallel=devices)
    work = step_work(deployment, batch_size=batch, context=context, tokens=tokens)
    bound = float(step_time_s(work, deployment))
    assert float(step_time_s(work, deployment, Efficiency())) >= bound * (1 - 1e-12)
    more = step_work(deployment, batch_size=batch + 1, context=context + 1, tokens=tokens + 1)
    assert float(step_time_s(more, deployment)) > bound


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("context", -1), ("tokens", 0)])
def test_steps_that_cannot_be(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        step_work(deployed("smollm2-135m"), **{"batch_size": 1, "context": 1, "tokens": 1, name: value})


TARGET, DRAFT = deployed("llama-2-7b"), deployed("tinyllama-1.1b")
SOURCE: CostSource = RooflineCosts(target=TARGET, draft=DRAFT)


def test_a_decode_step_is_its_bytes_over_the_bandwidth() -> None:
    costs = SOURCE.costs(1, 1000, [4])
    assert float(costs.t_decode_s) == float(step_work(TARGET, batch_size=1, context=1000).memory_bytes) / 2.039e12
    assert costs.provenance.tolist() == [int(Provenance.PREDICTED)]
    assert costs.t_overhead_s is None


def test_a_large_verification_is_bound_by_arithmetic() -> None:
    work = step_work(TARGET, batch_size=64, context=0, tokens=9)
    assert SOURCE.costs(64, 0, [8]).t_verify_s.tolist() == [float(work.flops) / 312e12]


def test_a_draft_chain_is_the_sum_of_its_steps_while_the_context_grows() -> None:
    costs = SOURCE.costs([[1], [8]], [100, 900], [1, 3])
    assert costs.t_decode_s.shape == (2, 2)
    assert costs.t_draft_total_s.shape == costs.t_verify_s.shape == (2, 2, 2)
    own = RooflineCosts(target=DRAFT)
    steps = [own.costs([[1], [8]], np.array([100, 900]) + step, [1]).t_decode_s for step in range(3)]
    assert costs.t_draft_total_s == pytest.approx(np.stack([steps[0], sum(steps)], axis=-1), rel=1e-15)


def test_the_catch_up_is_what_a_second_token_adds_and_nothing_costs_nothing() -> None:
    work = [step_work(DRAFT, batch_size=8, context=100, tokens=tokens) for tokens in (1, 2)]
    one, two = (float(step_time_s(each, DRAFT)) for each in work)
    assert SOURCE.costs(8, 100, [1]).t_draft_catch_up_s == pytest.approx(two - one, rel=1e-9)
    free = RooflineCosts(target=TARGET).costs(8, 100, [1, 2])
    assert (free.t_draft_total_s.tolist(), free.t_draft_catch_up_s) == ([0.0, 0.0], None)


def test_fitted_efficiencies_make_every_part_longer() -> None:
    fitted = RooflineCosts(target=TARGET, draft=DRAFT, efficiency=Efficiency(bandwidth_fraction=0.5, launch_s=1e-4))
    costs, bounds = fitted.costs(1, 1000, [1, 4]), SOURCE.costs(1, 1000, [1, 4])
    assert float(costs.t_decode_s) > 2 * float(bounds.t_decode_s) + 32e-4
    assert np.all(costs.t_draft_total_s > 2 * bounds.t_draft_total_s)
