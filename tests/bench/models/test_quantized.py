"""Quantised models: read by their libraries they write transformers' own texts, and lie as the estimate says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from specgauge.bench.decoding.plain import generate_plain
from specgauge.bench.end_to_end.generate_check import generate_notes
from specgauge.bench.end_to_end.text_checks import divergences
from specgauge.bench.models import quantized
from specgauge.bench.models.pair import LoadedModel, load_model
from specgauge.bench.models.quantized import fault, method_of
from specgauge.bench.models.weights import how_it_lies, weight_bytes
from specgauge.configs.pairs import ModelConfig
from specgauge.model.sampling import SamplingSettings
from specgauge.sweeps.model_sizes import read_model_size
from tests.bench import quantized_checkpoints as checkpoints
from tests.bench.decoded import GREEDY, decode
from tests.bench.decoded import plain as decoded_plainly
from tests.bench.models.conftest import NAME, refusal
from tests.bench.tiny_checkpoints import llama, save, word_tokenizer
from tests.sweeps.made import known

PROMPT = [3, 4, 5, 6, 7, 8, 9]
GPTQ = {"quant_method": "gptq", "bits": 4}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("plain") / "m", llama(**checkpoints.SHAPE), word_tokenizer())


def check(spec: ModelConfig, lies: str, notes: list[str]) -> LoadedModel:
    """Load it; it lies as said and as estimated, and writes what generate writes."""
    size = known(read_model_size(spec, role="target"))
    loaded = load_model(spec, role="target", name=NAME)
    assert generate_notes(loaded, [PROMPT], context=20, new_tokens=16) == []
    speculated = decode(loaded, loaded, prompts=[PROMPT, PROMPT[2:]]).texts
    apart = divergences(loaded, decoded_plainly(loaded, prompts=[PROMPT, PROMPT[2:]]), speculated, GREEDY)
    assert all(one.is_tie for one in apart)
    assert str(how_it_lies(loaded.model)).startswith(lies)
    assert [note.code for note in loaded.notes] == notes
    assert size.weight_bytes == pytest.approx(weight_bytes(loaded.model), rel=0.03)
    assert size.parameters == sum(one.numel() for one in llama(**checkpoints.SHAPE).parameters())
    return loaded


@pytest.mark.parametrize(
    ("asked", "lies"),
    [
        ({"load_in_4bit": True}, "bitsandbytes, 4 bits, "),
        ({"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "bitsandbytes, 4 bits, "),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes, 8 bits, "),
    ],
)
def test_bitsandbytes_quantizes_as_it_loads(plain: Path, asked: dict[str, Any], lies: str) -> None:
    pytest.importorskip("bitsandbytes")
    check(ModelConfig(model=str(plain), quantization=asked), lies, [])


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes_reads_what_it_wrote(plain: Path, tmp_path: Path, bits: int) -> None:
    pytest.importorskip("bitsandbytes")
    made = load_model(
        ModelConfig(model=str(plain), quantization={f"load_in_{bits}bit": True}), role="target", name=NAME
    )
    made.model.set_attn_implementation("sdpa")
    save(tmp_path / "made", made.model, made.tokenizer)
    check(ModelConfig(model=str(tmp_path / "made")), f"bitsandbytes, {bits} bits, ", [])


@pytest.mark.parametrize("make", [checkpoints.gptq, checkpoints.awq])
@pytest.mark.filterwarnings("default")
def test_gptqmodel_reads_gptq_and_awq(plain: Path, tmp_path: Path, make: Callable[[Path, Path], Path]) -> None:
    pytest.importorskip("gptqmodel")
    check(ModelConfig(model=str(make(plain, tmp_path / "q"))), f"{make.__name__}, 4 bits, ", [])


@pytest.mark.parametrize(("make", "bits"), [(checkpoints.compressed_int8, 8), (checkpoints.compressed_int4, 4)])
def test_compressed_tensors_are_unpacked(
    plain: Path, tmp_path: Path, make: Callable[[Path, Path], Path], bits: int
) -> None:
    pytest.importorskip("compressed_tensors")
    lies = f"compressed-tensors, {bits} bits, dequantised to float32, "
    check(ModelConfig(model=str(make(plain, tmp_path / "q"))), lies, ["dequantised"])


def test_fp8_is_unpacked_on_a_cpu(plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    found = check(
        ModelConfig(model=str(checkpoints.fp8(plain, tmp_path / "q")), device="cpu"),
        "fp8, 8 bits, dequantised to float32, ",
        ["dequantised"],
    )
    assert "its weights are quantised (fp8, 8 bits) and lie in float32 here" in found.notes[0].message
    assert found.placement == "float32 on cpu (fp8, 8 bits, dequantised to float32, 1.225 MiB)"


def test_gguf_is_unpacked(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    checkpoints.gguf_q8(tmp_path / "q8.gguf")
    spec = ModelConfig(model=str(tmp_path), gguf_file="q8.gguf")
    check(spec, "gguf, mostly Q8_0, dequantised to float32, ", ["dequantised"])
    size = known(read_model_size(spec, role="target"))
    assert (size.dtype, size.layers, size.kv_heads, size.head_dim, size.vocabulary) == ("float32", 2, 2, 32, 100)
    assert read_model_size(spec, role="target", layers=1) is not None
    assert known(read_model_size(spec, role="target", layers=1)).kv_cache_bytes(1, 1) == 2 * 2 * 32 * 4
    (tmp_path / "q8.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"q8\.gguf: truncated or not a GGUF file: .*; download it again$"):
        read_model_size(spec, role="target")


def test_a_row_is_written_alike_alone_and_beside_others(plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    spec = ModelConfig(model=str(plain), quantization={"load_in_4bit": True})
    loaded = load_model(spec, role="target", name=NAME)
    prompts = [PROMPT, PROMPT[:3], PROMPT[2:]]

    def written(rows: list[list[int]]) -> list[list[int]]:
        numbers = list(range(len(rows)))
        greedy = SamplingSettings(temperature=0.0)
        found = generate_plain(loaded, rows, greedy, max_new_tokens=12, seed=0, prompt_numbers=numbers)
        return [list(text.tokens) for text in found]

    assert written(prompts) == [written([one])[0] for one in prompts]


@pytest.mark.parametrize(
    ("settings", "method"),
    [
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "bitsandbytes_4bit"}, "bitsandbytes"),
        (GPTQ, "gptq"),
        ({"bits": 4}, None),
        ({"quant_method": 8}, None),
    ],
)
def test_the_method_that_settings_name(settings: dict[str, Any], method: str | None) -> None:
    assert method_of(settings) == method


@pytest.mark.parametrize(
    ("asked", "stored", "absent", "found"),
    [
        (None, None, (), None),
        (None, GPTQ, (), None),
        (None, {"quant_method": "aqlm"}, (), None),
        ({"load_in_4bit": True}, None, (), None),
        (
            None,
            GPTQ,
            ("gptqmodel", "optimum"),
            "'m' is quantised by gptq, and gptqmodel and optimum are not installed: pip install \"specgauge[gptq]\"",
        ),
        (
            {"load_in_8bit": True},
            None,
            ("bitsandbytes",),
            'quantization: bitsandbytes, and bitsandbytes is not installed: pip install "specgauge[bitsandbytes]"',
        ),
        (
            {"quant_method": "awq", "bits": 4},
            None,
            (),
            "quantization: awq reads weights that were quantised before, and those of 'm' were not; name a model that "
            "is, or quantise it as it is loaded (bitsandbytes, fp8, torchao)",
        ),
        (
            {"quant_method": "fp8"},
            None,
            (),
            "quantization: fp8 quantises on a CUDA device, and the model is on the CPU; use device: cuda, or "
            "bitsandbytes",
        ),
        (None, {"quant_method": "fp8"}, (), None),
    ],
)
def test_what_shows_before_loading(
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any] | None,
    stored: dict[str, Any] | None,
    absent: tuple[str, ...],
    found: str | None,
) -> None:
    monkeypatch.setattr(quantized, "find_spec", lambda name: None if name in absent else object())
    assert fault(asked, stored, model="m", is_on_cpu=True) == found


def test_loading_and_the_estimate_refuse_alike(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    settings: Any = {"quant_method": "fp8"}
    line = refusal(plain, quantization=settings, device="cpu")
    with pytest.raises(ValueError, match=r"^target: quantization: fp8 quantises on a CUDA device") as caught:
        read_model_size(ModelConfig(model=str(plain), quantization=settings, device="cpu"), role="target")
    assert str(caught.value) == f"target: {line}"
