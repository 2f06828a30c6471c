"""What `dtype: auto` is on a CPU: by its instructions, what torch may use of them, and what measured faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specgauge.bench import cpu_type, device
from specgauge.bench.cpu_type import bfloat16_instructions, fast_dtype, take_fast_dtype
from specgauge.bench.models.pair import load_model
from specgauge.configs.pairs import ModelConfig
from specgauge.sweeps.model_sizes import read_model_size
from tests.bench.tiny_checkpoints import llama, save, word_tokenizer

AVX2, AVX512, AMX, ARM = "fpu avx2", "fpu avx2 avx512_bf16", "avx2 amx_bf16 avx512_bf16", "fp asimd bf16"


@pytest.mark.parametrize(
    ("flags", "variables", "native"),
    [
        (AVX2, {}, None),
        (AVX512, {}, "avx512_bf16"),
        (AMX, {}, "amx_bf16"),
        (ARM, {}, "bf16"),
        ("", {}, None),
        (AMX, {"ATEN_CPU_CAPABILITY": "avx2"}, None),
        (AMX, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, None),
        (AMX, {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_AMX"}, "amx_bf16"),
    ],
)
@pytest.mark.parametrize(("half", "kept"), [(0.94, "bfloat16"), (0.96, "float32")])
def test_bfloat16_is_taken_where_it_is_native_and_measured_faster(
    monkeypatch: pytest.MonkeyPatch, flags: str, variables: dict[str, str], native: str | None, half: float, kept: str
) -> None:
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cpu_type, "cpu_flags", lambda: frozenset(flags.split()))
    timed: list[Any] = []

    def forwards_s(dtypes: tuple[str, ...]) -> dict[str, list[float]]:
        timed.append(dtypes)
        return {"float32": [1.0, 1.0, 2.0, 8.0], "bfloat16": [half, half / 2, 4 * half, 8 * half]}

    monkeypatch.setattr(cpu_type, "_forwards_s", forwards_s)
    found = fast_dtype()
    assert (bfloat16_instructions(), found["dtype"]) == (native, "float32" if native is None else kept)
    assert len(timed) == len(found["timed_s"]) / 2 == (native is not None)
    if native is None:
        assert found["why"] == "no bfloat16 instructions"
    else:
        assert found["why"].startswith(f"bfloat16 by {native} takes {half:.2f} × the time of float32")
        assert found["timed_s"]["bfloat16"] == {"1": half, "4": half / 2, "16": 4 * half, "64": 8 * half}


def test_forwards_are_timed_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    monkeypatch.setattr(cpu_type, "_WIDTH", 8)
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    found = cpu_type._forwards_s(("float32", "bfloat16"))
    assert threads == [1, torch.get_num_threads()]
    assert [len(times) for times in found.values()] == [len(cpu_type.TOKENS)] * 2
    assert min(map(min, found.values())) > 0.0


@pytest.mark.parametrize(
    ("stored", "asked", "fast", "taken"),
    [
        ("bfloat16", "auto", "float32", "float32"),
        ("bfloat16", "auto", "bfloat16", "bfloat16"),
        ("float16", "auto", "bfloat16", "float32"),
        ("float32", "auto", "bfloat16", "float32"),
        ("bfloat16", "auto", None, "bfloat16"),
        ("bfloat16", "bfloat16", "float32", "bfloat16"),
    ],
)
def test_a_model_is_loaded_in_no_fewer_digits_than_it_is_stored_in(
    tmp_path: Path, stored: str, asked: Any, fast: str | None, taken: str
) -> None:
    save(tmp_path / "m", llama().to(getattr(torch, stored)), word_tokenizer())
    spec = ModelConfig(model=str(tmp_path / "m"), dtype=asked, device="cpu")
    loaded = load_model(spec, role="target", name="m", cpu_dtype=fast)
    assert (str(loaded.model.dtype), str(loaded.model.config.dtype)) == (f"torch.{taken}",) * 2
    assert loaded.notes == ()


def test_a_model_stays_as_it_is_stored_where_memory_does_not_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model = llama().to(torch.bfloat16)
    monkeypatch.setattr(device, "free_bytes", lambda _: 1000)
    (note,) = take_fast_dtype(model, "float32", "m")
    assert (note.code, str(model.dtype)) == ("dtype_kept", "torch.bfloat16")
    monkeypatch.setattr(device, "free_bytes", lambda _: None)
    assert list(take_fast_dtype(model, "float32", "m")) == []
    assert str(model.dtype) == "torch.float32"


@pytest.mark.parametrize(
    ("flags", "stored", "spec", "size"),
    [
        (AVX2, "bfloat16", {}, "float32"),
        (AMX, "bfloat16", {}, "bfloat16"),
        (AMX, "float16", {}, "float32"),
        (AVX2, "bfloat16", {"dtype": "bfloat16"}, "bfloat16"),
        (AVX2, "bfloat16", {"device": "cuda"}, "bfloat16"),
    ],
)
def test_sizes_before_the_run_are_those_of_that_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, stored: str, spec: Any, size: str
) -> None:
    monkeypatch.setattr(cpu_type, "cpu_flags", lambda: frozenset(flags.split()))
    save(tmp_path / "m", llama().to(getattr(torch, stored)), word_tokenizer())
    found = read_model_size(ModelConfig(model=str(tmp_path / "m"), **{"device": "cpu", **spec}), role="target")
    assert found is not None
    assert found.dtype == size
