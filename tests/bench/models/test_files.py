"""Names and folders that are told before anything is loaded, by `check` as by `run`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from specgauge.bench.models import files
from specgauge.configs.pairs import ModelConfig
from specgauge.sweeps.model_sizes import read_model_size
from tests.bench.models.conftest import load, refusal


def told(model: str) -> str:
    """The one line of both commands."""
    with pytest.raises(ValueError, match=r"^target [^\n]*$") as caught:
        read_model_size(ModelConfig(model=model), role="target")
    line = str(caught.value).removeprefix("target ")
    assert refusal(model) == line
    return line


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (r"models\qwen", "write its path with /, not with backslashes"),
        (r"C:\models\qwen", "write its path with /, not with backslashes"),
        ("qwen2.5:7b", "has a tag, as Ollama's names do"),
        ("library/qwen2.5:7b-instruct-q4_K_M", "has a tag, as Ollama's names do"),
        ("gpt2", "is neither a directory nor a hub id"),
        ("a/b/c", "is neither a directory nor a hub id"),
        ("org/two--dashes", "is neither a directory nor a hub id"),
    ],
)
def test_names_that_are_no_models(model: str, words: str) -> None:
    assert words in told(model)


@pytest.fixture
def adapted(copied: Path) -> Path:
    """A checkpoint as trainers leave it: an adapter beside the base's weights."""
    (copied / files.ADAPTER).write_text(json.dumps({"base_model_name_or_path": "org/base", "peft_type": "LORA"}))
    return copied


def test_an_adapter_beside_weights_is_not_left_out_in_silence(adapted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: None)
    assert re.search(r"has an adapter beside its weights .* peft is not installed; merge it", told(str(adapted)))
    (adapted / files.ADAPTER).unlink()
    assert load(adapted).notes == ()


def test_an_adapter_without_its_base_is_told_with_the_base(adapted: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(adapted / files.ADAPTER, alone)
    assert "is an adapter of 'org/base', without the base's weights; merge it" in told(str(alone))


def test_where_peft_is_installed_an_adapter_is_no_fault(adapted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "find_spec", lambda name: name)
    assert files.adapter_fault(adapted) is None


def test_an_adapter_is_applied_and_told_where_peft_is_installed(copied: Path) -> None:
    """Every query projection W becomes W + 8/2 · B A, as a merged checkpoint has it."""
    pytest.importorskip("peft")
    base = load(copied)
    drawn = torch.Generator().manual_seed(0)
    adapter: dict[str, torch.Tensor] = {}
    merged = base.model.state_dict()
    for layer in range(base.model.config.num_hidden_layers):
        name = f"model.layers.{layer}.self_attn.q_proj"
        rows, columns = merged[f"{name}.weight"].shape
        a, b = torch.randn(2, columns, generator=drawn), torch.randn(rows, 2, generator=drawn)
        adapter |= {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}
        merged[f"{name}.weight"] += 8 / 2 * b @ a
    save_file(adapter, copied / "adapter_model.safetensors")
    settings: dict[str, object] = {"base_model_name_or_path": "org/base", "peft_type": "LORA", "task_type": "CAUSAL_LM"}
    settings |= {"r": 2, "lora_alpha": 8, "target_modules": ["q_proj"], "inference_mode": True}
    (copied / files.ADAPTER).write_text(json.dumps(settings))
    found = load(copied)
    tokens = torch.arange(3, 9)[None]
    with torch.inference_mode():
        torch.testing.assert_close(found.model(tokens).logits, base.model(tokens).logits, rtol=1e-4, atol=1e-5)
    assert [(note.code, "measured with the adapter beside its weights, of org/base" in note.message) for note in
            found.notes] == [("adapter_used", True)]  # fmt: skip
