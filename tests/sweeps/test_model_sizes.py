"""How large models are, by their files."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.pairs import ModelConfig
from specgauge.sweeps.model_sizes import ModelSize, read_model_size, read_sizes
from tests.sweeps import made
from tests.sweeps.made import known

SHAPE = {
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "vocab_size": 100,
    "max_position_embeddings": 128, "dtype": "float32",
}  # fmt: skip
TENSORS = {"embed": [100, 32], "model.layers.0.mlp": [16, 32], "model.layers.1.mlp": [16, 32]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made.model_folder(tmp_path / "model", SHAPE, TENSORS)


def size_of(folder: Path | str, **spec: Any) -> ModelSize | None:
    return read_model_size(ModelConfig(model=str(folder), **spec), role="target")


def test_sizes_come_from_config_and_safetensors_headers(folder: Path) -> None:
    size = size_of(folder)
    assert size == ModelSize(
        parameters=4224, dtype="float32", layers=2, kv_heads=2, head_dim=8, vocabulary=100, max_context=128
    )
    assert size.weight_bytes == 4 * 4224
    assert read_model_size(ModelConfig(model=str(folder)), role="target", layers=1) == replace(
        size, parameters=100 * 32 + 16 * 32, layers=1
    )
    assert size.kv_cache_bytes(batch_size=3, tokens=10) == 2 * 2 * 2 * 8 * 10 * 3 * 4


def test_the_dtype_asked_for_wins_and_the_stored_one_is_last(folder: Path) -> None:
    asked = size_of(folder, dtype="float16")
    (folder / "config.json").write_text(json.dumps({k: v for k, v in SHAPE.items() if k != "dtype"}))
    assert [size and size.dtype for size in (asked, size_of(folder))] == ["float16", "bfloat16"]


def test_names_of_older_configs_and_nested_ones(tmp_path: Path) -> None:
    older = {"n_layer": 3, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 10}
    assert size_of(made.model_folder(tmp_path / "old", older, {"w": [2, 2]})) == ModelSize(
        parameters=4, dtype="bfloat16", layers=3, kv_heads=2, head_dim=4, vocabulary=10, max_context=64
    )
    nested = known(size_of(made.model_folder(tmp_path / "nested", {"text_config": SHAPE}, {"w": [2, 2]})))
    assert (nested.layers, nested.max_context) == (2, 128)


def test_shards_are_added_up(tmp_path: Path) -> None:
    folder = made.model_folder(tmp_path / "sharded", SHAPE, {"a": [3, 5]})
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    other = made.model_folder(tmp_path / "other", SHAPE, {"b": [7]})
    (other / "model.safetensors").rename(folder / "model-2.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    size = known(size_of(folder))
    assert size.parameters == 22


def test_what_files_do_not_say_is_unknown(tmp_path: Path) -> None:
    folder = made.model_folder(tmp_path / "model", {}, {})
    (folder / "model.safetensors").unlink()
    size = size_of(folder)
    assert size == ModelSize()
    assert size.weight_bytes is None
    assert size.kv_cache_bytes(1, 1) is None
    assert size_of("some-organisation/not-in-the-cache") is None
    assert size_of(folder, gguf_file="x.gguf") is None


HEADER = b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("config.json", b"{", "config.json: damaged"),
        ("config.json", b"[]", "config.json: damaged"),
        ("model.safetensors", b"", "model.safetensors: truncated"),
        ("model.safetensors", struct.pack("<Q", 1 << 40) + b"{}", "model.safetensors: truncated"),
        ("model.safetensors", struct.pack("<Q", len(HEADER)) + HEADER + b"abc", "model.safetensors: truncated"),
    ],
)
def test_damaged_models_are_one_line(folder: Path, name: str, content: bytes, found: str) -> None:
    (folder / name).write_bytes(content)
    config = made.config(pairs=[{"name": "p", "target": str(folder), "draft": str(folder)}])
    with pytest.raises(ValueError, match=found) as error:
        read_sizes(config)
    assert str(error.value).startswith("pair 'p': ")
    assert "\n" not in str(error.value)


def test_missing_directories_are_told_from_hub_ids(folder: Path) -> None:
    empty = folder / "empty"
    empty.mkdir()
    for place, found in (("/no/where", "no such"), (folder / "config.json", "got a file"), (empty, "it has no config")):
        with pytest.raises(ValueError, match=found):
            size_of(place)
