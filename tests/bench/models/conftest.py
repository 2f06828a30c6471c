"""A good model directory, a copy of it to spoil, and the one line that the spoilt copy is refused with."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from specgauge.bench.models.pair import LoadedModel, load_model
from specgauge.configs.pairs import ModelConfig
from tests.bench.tiny_checkpoints import llama, save, word_tokenizer

NAME = "pair 'x' target"
"""Who the loaded model is, in messages."""


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good model directory, for reading only."""
    return save(tmp_path_factory.mktemp("models") / "good", llama(), word_tokenizer())


@pytest.fixture
def copied(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copy"))


def load(folder: Path | str, *, name: str = NAME, reach: int | None = None, **settings: Any) -> LoadedModel:
    return load_model(ModelConfig(model=str(folder), **settings), role="target", name=name, reach=reach)


def refusal(folder: Path | str, **settings: Any) -> str:
    """The line that a model is refused with."""
    return refused_line(load, folder, **settings)


def refused_line(work: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The message of a refusal, which is one line that begins with the pair and the role."""
    with pytest.raises(ValueError, match=f"^{re.escape(NAME)}: ") as caught:
        work(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{NAME}: ")


def change_json(path: Path, **values: Any) -> None:
    """Set values in a JSON file; `...` takes a key away."""
    content = json.loads(path.read_text())
    content.update(values)
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a directory's safetensors file in place."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
