"""How large models are by their files, what a sweep takes of memory and time by hand, and what `check` says of it."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.pairs import ModelConfig
from specgauge.configs.schema import Config
from specgauge.sweeps import estimate, model_sizes
from specgauge.sweeps.describe import describe
from specgauge.sweeps.estimate import AssumedMachine, check_contexts, time_estimate
from specgauge.sweeps.memory import kv_bytes, memory_bytes, over_memory
from specgauge.sweeps.model_sizes import ModelSize, PairSizes, read_model_size, read_sizes
from specgauge.sweeps.plan import plan_cells
from tests.bench.tiny_checkpoints import word_tokenizer
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
        parameters=4224,
        dtype="float32",
        layers=2,
        kv_heads=2,
        head_dim=8,
        width=32,
        heads=4,
        vocabulary=100,
        max_context=128,
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
        parameters=4,
        dtype="bfloat16",
        layers=3,
        kv_heads=2,
        head_dim=4,
        width=8,
        heads=2,
        vocabulary=10,
        max_context=64,
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


LAUNCHES = AssumedMachine(name="m", bytes_per_s=1e30, flops_per_s=1e30, launch_s=1.0)
"""Every forward of a model of one layer takes a second."""
ONE = ModelSize(parameters=1, dtype="float32", layers=1)


def with_models(folder: Path, draft: object = None, **changes: Any) -> Config:
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    pair = {"name": "p", "target": str(folder), "draft": draft or str(folder)}
    return made.config(**{"pairs": [pair], "workload": {"prompts": str(prompts)}, **changes})


def test_memory_by_part(folder: Path) -> None:
    size = read_model_size(ModelConfig(model=str(folder)), role="target")
    config = with_models(
        folder,
        grid={"batch_size": [1, 4], "context": [16, 64], "gamma": "1:3"},
        acceptance={"batch_size": 2, "chunk": 5},
    )
    assert memory_bytes(config, PairSizes(target=size, draft=size), plan_cells(config)) == {
        "weights": 2 * 4 * 4224,
        "keys and values": 2 * (2 * 2 * 2 * 8 * 128 * 4 * 4),
        "activations and logits": 4 * (64 + 3 + 1) * (3 * 32 + 8 * (4 * 4 + 3 * 2)) * 4,
        "buffers of libraries": 32 * 2**20,
    }
    assert memory_bytes(config, PairSizes(target=size, draft=None), plan_cells(config)) == {
        "weights": None,
        "keys and values": None,
        "activations and logits": 4 * (64 + 3 + 1) * (3 * 32 + 8 * (4 * 4 + 3 * 2)) * 4,
        "buffers of libraries": 32 * 2**20,
    }


def test_time_is_counted_in_forwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "assumed_machine", lambda spec, threads: LAUNCHES)
    config = with_models(
        folder,
        precision={"block_samples": 2, "min_blocks": 3, "max_blocks": 10, "max_seconds": None},
        workload={"prompts": "embedded", "max_new_tokens": 10, "repetitions": 3},
        acceptance={"batch_size": 8},
    )
    found = known(time_estimate(config, config.pairs[0], PairSizes(target=ONE, draft=ONE), prompts=20))
    # decode 2, draft 1 + 3 + 1, catch-up 2, three verifies of 2: 15 forwards a sample; prefills 2 a block
    assert found.timing_s[0] == pytest.approx(3 * (2 * 15 + 2), rel=1e-12)
    assert found.timing_s[1] == pytest.approx(10 * 2 * 15 + 5 * 2, rel=1e-12)
    # 3 batches × 3 texts: a prefill, 10 tokens, two passes
    assert found.acceptance_s == pytest.approx(9 * 13, rel=1e-12)
    assert time_estimate(config, config.pairs[0], PairSizes(target=ONE, draft=None), prompts=20) is None


def test_decoding_end_to_end_is_counted_in_forwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block at γ = 2: three baselines of 11 forwards; two prefills, 10 / 2 rounds of 3, and a pass of each model."""
    monkeypatch.setattr(estimate, "assumed_machine", lambda spec, threads: LAUNCHES)

    def found(**verify: Any) -> float:
        config = with_models(
            folder,
            grid={"batch_size": [1, 4], "context": [16, 64], "gamma": "1:3"},
            validate={"gamma": 2, "context": 16, "max_new_tokens": 10, "max_seconds": None, **verify},
        )
        seconds = known(time_estimate(config, config.pairs[0], PairSizes(target=ONE, draft=ONE), prompts=20))
        return seconds.validation_s

    block = 3 * 11 + 2 + 5 * 3 + 2
    assert found(prompts=6) == pytest.approx((6 + 2) * block, rel=1e-12)
    assert found(prompts=None, repetitions=2) == pytest.approx(2 * (20 + 5) * block, rel=1e-12)
    assert found(max_seconds=300) == pytest.approx(300, rel=1e-12)
    assert found(max_seconds=1) == pytest.approx(2 * block, rel=1e-12)
    few = block - 2 * 11  # without generate and the bare loop
    assert found(prompts=6, baseline_blocks=1) == pytest.approx(8 * few + 2 * 22, rel=1e-12)
    assert found(prompts=6, baseline_blocks=4) == pytest.approx(8 * few + 6 * 22, rel=1e-12)
    arm = 2 + 5 * 3 + 2  # a policy drafts about as γ = 2 does
    found_with = found(prompts=6, policies=["svip", "renewal"])
    assert found_with == pytest.approx((6 + 2) * (block + 2 * arm), rel=1e-12)


def test_a_forward_is_bound_by_memory_or_by_arithmetic() -> None:
    machine = AssumedMachine(name="m", bytes_per_s=8.0, flops_per_s=4.0, launch_s=0.5)
    size = ModelSize(parameters=4, dtype="float32", layers=2)
    assert machine.forward_s(size, 1) == 2 * 0.5 + 16 / 8
    assert machine.forward_s(size, 10) == 2 * 0.5 + 2 * 4 * 10 / 4


@pytest.mark.parametrize(("section", "most"), [(None, 124), ({"max_new_tokens": 29}, 99)])
def test_a_context_without_room_is_refused_before_anything_is_measured(folder: Path, section: Any, most: int) -> None:
    """128 positions take a round of γ = 3 after 124, and a text of 29 tokens after 99."""

    def check(context: int, **rules: Any) -> None:
        config = with_models(folder, grid={"context": [64, context], "gamma": "1:3", **rules}, validate=section)
        check_contexts(config, read_sizes(config))

    check(most)
    check(most + 1, exclude=[{"context": most + 1}])
    with pytest.raises(ValueError, match=str(most)):
        check(most + 1)


def test_a_cell_over_the_limit_is_told_with_the_figures(folder: Path) -> None:
    """Weights 2 · 40 bytes; keys and values 2 models · 2 · 64 slots · B · 4 bytes: 1024 at (1, 56), 128 slots at 64."""
    size = ModelSize(parameters=10, dtype="float32", layers=1, kv_heads=1, head_dim=1, vocabulary=5, max_context=128)
    sizes, grid = PairSizes(target=size, draft=size), {"batch_size": [1, 2], "context": [56, 64], "gamma": "1:3"}
    config = with_models(folder, grid=grid, limits={"memory": 80 + 2048})
    *fitting, largest = plan_cells(config)
    assert [over_memory(config, sizes, cell) for cell in fitting] == [None] * 3
    assert str(over_memory(config, sizes, largest)).startswith("needs 0.00398 MiB by estimate (weights 7.63e-05 MiB, ")
    assert over_memory(config, PairSizes(target=size, draft=None), largest) is None
    assert over_memory(with_models(folder, grid=grid), sizes, largest) is None
    assert [kv_bytes(config, sizes, cell) for cell in fitting] == [1024, 2048, 2048]
    ruled = with_models(folder, grid={**grid, "exclude": [{"batch_size": 2, "context": 64}]})
    expected = time_estimate(ruled, ruled.pairs[0], sizes, prompts=2)
    assert time_estimate(config, config.pairs[0], sizes, prompts=2) == expected
    too_large = with_models(folder, limits={"memory": 79})
    assert str(over_memory(too_large, sizes, largest)).endswith("raise it, or load the models in a smaller dtype")


def test_a_search_is_estimated_between_its_fewest_gammas_and_all_of_them() -> None:
    """The seconds of a cell bound the most."""

    def timing_s(gamma: object, **precision: Any) -> tuple[float, float]:
        grid = {"batch_size": 1, "context": 64, "gamma": gamma}
        config = made.config(grid=grid, **({"precision": precision} if precision else {}))
        found = known(time_estimate(config, config.pairs[0], read_sizes(config)["p"], 10))
        return found.timing_s

    searched, every, fewest = timing_s({"max": 12, "search": "adaptive"}), timing_s("1:12"), timing_s("1:4")
    assert searched[1] == every[1]
    assert fewest[0] < searched[0] < every[0]
    bounded = timing_s("1:12", max_seconds=100, max_cell_seconds=1e-9)
    assert bounded == (every[0], every[0])


GRID: dict[str, Any] = {"batch_size": [1, 2], "context": [16, 64], "gamma": "1:3"}
SEARCHED: dict[str, Any] = {"batch_size": 1, "context": [16, 32, 64], "gamma": {"max": 12, "search": "adaptive"}}
PAIR = {"name": "p", "target": "MODEL", "draft": "MODEL", "mode": ["eager", "compile"], "threads": 1}
PAIRS = [
    PAIR,
    {"name": "q", "target": "MODEL", "draft": "ngram"},
    {"name": "r", "target": "MODEL", "draft": {"layers": 1}},
]
MACHINE = AssumedMachine(name="2 CPU cores", bytes_per_s=10e9, flops_per_s=40e9, launch_s=1e-3)
AWAY = "some-organisation/not-in-the-cache"
# arms but generate · models · numbers a token · tokens · rows · bytes
CACHES, WEIGHTS = 5 * 2 * (2 * 2 * 2 * 8) * (64 + 10) * 2 * 4, 2 * 4 * 4224
DECODED = {"gamma": [1, 3], "policies": ["svip"], "context": 64, "max_new_tokens": 10}

CASES: dict[str, dict[str, Any]] = {
    "plain": {"grid": GRID},
    "many cells": {"grid": {"batch_size": "1:100", "context": 16, "gamma": 1}},
    "validation": {"grid": GRID, "validate": {"max_new_tokens": 9, "acceptance": 0.5}},
    "baselines in the first block": {"grid": GRID, "validate": {"gamma": 2, "baseline_blocks": 1}},
    "baselines in some blocks": {"grid": GRID, "validate": {"gamma": 2, "baseline_blocks": 4}},
    "caches that fit": {"grid": GRID, "validate": DECODED, "limits": {"memory": WEIGHTS + CACHES}},
    "caches over the limit": {"grid": GRID, "validate": DECODED, "limits": {"memory": WEIGHTS + CACHES - 1}},
    "variants and rules": {
        "pairs": PAIRS, "validate": {}, "grid": {**GRID, "exclude": [{"batch_size": 2, "context": 64}]},
    },
    "a pair that rules leave out": {
        "pairs": PAIRS, "validate": {},
        "grid": {**GRID, "exclude": [{"pair": "q"}, {"mode": "compile", "batch_size": 2}]},
    },
    "models that are not here": {"draft": AWAY},
    "at a revision": {"draft": {"model": AWAY, "revision": "v2"}},
    "packed": {"draft": {"model": AWAY, "gguf_file": "q4.gguf"}},
    "limits": {
        "grid": {"batch_size": [1, 64], "context": 64, "gamma": "1:3"},
        "limits": {"memory": "1MiB", "run_seconds": 90},
        "precision": {"max_seconds": 100, "max_cell_seconds": 1e-9},
    },
    "nothing fits": {"limits": {"memory": 1}},
    "search": {"grid": SEARCHED},
    "search of two contexts": {"grid": {**SEARCHED, "context": [16, 64]}},
}  # fmt: skip


def test_descriptions(folder: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Callable[[str, str], None]) -> None:
    monkeypatch.setattr(estimate, "assumed_machine", lambda spec, threads: MACHINE)
    texts = []
    for name, changes in CASES.items():
        own = json.loads(json.dumps(changes).replace("MODEL", str(folder)))
        texts.append(f"--- {name}\n{describe(with_models(folder, **own)).replace(str(folder), 'MODEL')}\n")
    snapshot("describe", "\n".join(texts))


def test_conversations_that_are_passed_over_are_told_and_an_empty_file_is_refused(folder: Path) -> None:
    config = with_models(folder)
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    (folder.parent / "prompts.jsonl").write_text(json.dumps([{"conversations": turns}, {"conversations": turns[1:]}]))
    text = describe(config)
    assert "acceptance: 1 prompt ×" in text
    assert "skipped 1 of 2 conversations, which do not start with the user" in text
    (folder.parent / "prompts.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="the prompt file is empty"):
        describe(config)


def test_rows_too_long_for_the_smaller_model_are_told_before_the_run(folder: Path, tmp_path: Path) -> None:
    draft = made.model_folder(tmp_path / "draft", {**SHAPE, "max_position_embeddings": 40}, TENSORS)
    word_tokenizer().save_pretrained(folder)
    workload = {"prompts": str(tmp_path / "rows.jsonl"), "max_new_tokens": 10}
    config = with_models(folder, draft=str(draft), workload=workload, grid={"context": 16, "gamma": 1})
    rows = [" ".join(["w1"] * length) for length in (5, 30, 31, 70)]

    def said(rows: list[str]) -> str:
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": row}) + "\n" for row in rows))
        return describe(config)

    line = "2 of 4 prompts leave no room for 10 tokens in the 40 that are taken, and are left out; the longest has 70"
    assert line in said(rows)
    assert "leave no room" not in said(rows[:2])
    with pytest.raises(ValueError, match=r"^pair 'p': workload\.prompts: 2 of 2 prompts .* the shortest has 31;"):
        said(rows[2:])


def test_prompts_are_not_brought_to_a_length_that_a_model_does_not_take(folder: Path) -> None:
    workload = {"prompt_tokens": [64, 119], "max_new_tokens": 10}
    expected = (
        r"^workload\.prompt_tokens: expected at most 118, since 10 tokens are .* pair 'p' target takes 128, got 119"
    )
    with pytest.raises(ValueError, match=expected):
        describe(with_models(folder, workload=workload))


@pytest.mark.parametrize(
    ("changes", "drivers", "told"),
    [
        ({}, [], ""),
        ({"mode": "cuda_graph"}, [], "mode cuda_graph"),
        ({"device": "cuda:1"}, [], "target: device cuda:1"),
        ({"device": "cuda:1", "mode": "cuda_graph"}, [], "target: device cuda:1, mode cuda_graph"),
        ({"device": "cuda:1", "mode": "cuda_graph"}, ["here"], ""),
    ],
)
def test_a_device_that_is_not_here_is_told_before_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], drivers: list[str], told: str
) -> None:
    for name in drivers:
        (folder / name).touch()
    monkeypatch.setattr(model_sizes, "DRIVERS", [str(folder / "here")])
    monkeypatch.setattr(sys, "platform", "linux")
    target = {"model": str(folder), "device": changes.get("device", "auto")}
    pair = {"name": "p", "target": target, "draft": str(folder)}
    text = describe(with_models(folder, pairs=[pair], mode=changes.get("mode", "eager")))
    said = [line.strip() for line in text.splitlines() if "CUDA" in line]
    refused = "but no CUDA device is seen here: a run here would refuse this pair"
    assert said == ([f"{told}, {refused}"] if told else [])


def test_the_whole_time_holds_loading_and_is_at_most_that_of_the_run(folder: Path) -> None:
    limited = with_models(folder, limits={"run_seconds": 4})
    estimate_s = known(time_estimate(limited, limited.pairs[0], read_sizes(limited)["p"], 2))
    assert estimate_s.loading_s == pytest.approx(5.0 + 2 * 4 * 4224 / 500e6)
    assert "  time (estimate): 4 s: timing" in describe(limited)
