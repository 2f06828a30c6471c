"""Names and folders that are told before anything is loaded, by `check` as by `run`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

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


def test_an_adapter_beside_weights_is_not_left_out_in_silence(adapted: Path) -> None:
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
