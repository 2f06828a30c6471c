import json
import struct
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.pairs import ModelConfig
from specgauge.configs.schema import Config
from specgauge.sweeps import estimate
from specgauge.sweeps.describe import describe, read_sizes
from specgauge.sweeps.estimate import (
    AssumedMachine,
    PairSizes,
    is_over_memory,
    kv_bytes,
    memory_bytes,
    over_memory,
    time_estimate,
)
from specgauge.sweeps.model_sizes import ModelSize, read_model_size
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run.progress import duration_text, size_text
from tests.sweeps import made

SHAPE = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "vocab_size": 100,
    "max_position_embeddings": 128,
    "dtype": "float32",
}
TENSORS = {"embed": [100, 32], "layer": [32, 32]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made.model_folder(tmp_path / "model", SHAPE, TENSORS)


def with_models(folder: Path, draft: object = None, **changes: Any) -> Config:
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    pair = {"name": "p", "target": str(folder), "draft": draft or str(folder)}
    return made.config(**{"pairs": [pair], "workload": {"prompts": str(prompts)}, **changes})


def test_sizes_come_from_config_and_safetensors_headers(folder: Path) -> None:
    size = read_model_size(ModelConfig(model=str(folder)), role="target")
    assert size == ModelSize(
        parameters=100 * 32 + 32 * 32,
        dtype="float32",
        layers=2,
        kv_heads=2,
        head_dim=8,
        vocabulary=100,
        max_context=128,
    )
    assert size.weight_bytes == 4 * 4224
    assert size.kv_cache_bytes(batch_size=3, tokens=10) == 2 * 2 * 2 * 8 * 10 * 3 * 4


def test_the_dtype_asked_for_wins_and_the_stored_one_is_last(folder: Path) -> None:
    asked = read_model_size(ModelConfig(model=str(folder), dtype="float16"), role="target")
    assert asked is not None
    assert asked.weight_bytes == 2 * 4224
    (folder / "config.json").write_text(json.dumps({k: v for k, v in SHAPE.items() if k != "dtype"}))
    stored = read_model_size(ModelConfig(model=str(folder)), role="target")
    assert stored is not None
    assert stored.dtype == "bfloat16"


def test_names_of_older_configs_and_nested_ones(tmp_path: Path) -> None:
    older = {"n_layer": 3, "n_head": 2, "n_embd": 8, "n_positions": 64, "vocab_size": 10}
    folder = made.model_folder(tmp_path / "old", older, {"w": [2, 2]})
    size = read_model_size(ModelConfig(model=str(folder)), role="draft")
    assert size == ModelSize(
        parameters=4, dtype="bfloat16", layers=3, kv_heads=2, head_dim=4, vocabulary=10, max_context=64
    )
    nested = made.model_folder(tmp_path / "nested", {"text_config": SHAPE}, {"w": [2, 2]})
    size = read_model_size(ModelConfig(model=str(nested)), role="draft")
    assert size is not None
    assert (size.layers, size.max_context) == (2, 128)


def test_shards_are_added_up(tmp_path: Path) -> None:
    folder = made.model_folder(tmp_path / "sharded", SHAPE, {"a": [3, 5]})
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    other = made.model_folder(tmp_path / "other", SHAPE, {"b": [7]})
    (other / "model.safetensors").rename(folder / "model-2.safetensors")
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    size = read_model_size(ModelConfig(model=str(folder)), role="target")
    assert size is not None
    assert size.parameters == 22


def test_what_files_do_not_say_is_unknown(tmp_path: Path) -> None:
    folder = made.model_folder(tmp_path / "model", {}, {})
    (folder / "model.safetensors").unlink()
    size = read_model_size(ModelConfig(model=str(folder)), role="target")
    assert size == ModelSize()
    assert size.weight_bytes is None
    assert size.kv_cache_bytes(1, 1) is None
    assert read_model_size(ModelConfig(model="some-organisation/not-in-the-cache"), role="target") is None
    assert read_model_size(ModelConfig(model=str(folder), gguf_file="x.gguf"), role="target") is None


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("config.json", b"{", "config.json: damaged, not JSON"),
        ("config.json", b"[]", "config.json: damaged, a JSON object is expected"),
        ("model.safetensors", b"", "model.safetensors: truncated or not a safetensors file"),
        ("model.safetensors", struct.pack("<Q", 1 << 40) + b"{}", "the header is longer than the file"),
        ("model.safetensors", struct.pack("<Q", 2) + b"[]", "truncated or not a safetensors file"),
        (
            "model.safetensors",
            struct.pack("<Q", 53) + b'{"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'[:53],
            "truncated or not",
        ),
    ],
)
def test_damaged_models_are_one_line(folder: Path, name: str, content: bytes, found: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=found) as error:
        describe(with_models(folder))
    assert str(error.value).startswith("pair 'p': ")
    assert "\n" not in str(error.value)


def test_a_safetensors_file_shorter_than_its_tensors(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="shorter than its tensors; download the model again"):
        read_model_size(ModelConfig(model=str(folder)), role="target")


def test_missing_directories_are_told_from_hub_ids(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"pair 'p': draft '/no/where': no such directory; check the path"):
        describe(with_models(folder, draft="/no/where"))
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"is not a model directory: it has no config\.json"):
        describe(with_models(folder))


def test_memory_by_part(folder: Path) -> None:
    size = read_model_size(ModelConfig(model=str(folder)), role="target")
    config = with_models(
        folder,
        grid={"batch_size": [1, 4], "context": [16, 64], "gamma": "1:3"},
        acceptance={"batch_size": 2, "chunk": 5},
    )
    assert memory_bytes(config, PairSizes(target=size, draft=size), plan_cells(config)) == {
        "weights": 2 * 4 * 4224,
        "keys and values": 2 * (2 * 2 * 2 * 8 * (64 + 3 + 1) * 4 * 4),
        "logits": max(4 * (3 + 1), 2 * 5) * 100 * 4 * 4,
    }
    assert memory_bytes(config, PairSizes(target=size, draft=None), plan_cells(config)) == {
        "weights": None,
        "keys and values": None,
        "logits": 16 * 100 * 4 * 4,
    }


def test_time_is_counted_in_forwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which every forward takes a second: launches only, one layer."""
    machine = AssumedMachine(name="m", bytes_per_s=1e30, flops_per_s=1e30, launch_s=1.0)
    monkeypatch.setattr(estimate, "assumed_machine", lambda spec, threads: machine)
    one = ModelSize(parameters=1, dtype="float32", layers=1)
    config = with_models(
        folder,
        precision={"block_samples": 2, "min_blocks": 3, "max_blocks": 10, "max_seconds": None},
        workload={"prompts": "embedded", "max_new_tokens": 10, "repetitions": 3},
        acceptance={"batch_size": 8},
    )
    found = time_estimate(config, config.pairs[0], PairSizes(target=one, draft=one), prompts=20)
    assert found is not None
    # decode 2, draft 1 + 3 + 1, catch-up 2, three verifies of 2: 15 forwards a sample; prefills 2 a block
    assert found.timing_least_s == pytest.approx(3 * (2 * 15 + 2), rel=1e-12)
    assert found.timing_most_s == pytest.approx(10 * 2 * 15 + 5 * 2, rel=1e-12)
    # 3 batches × 3 texts: a prefill, 10 tokens, two passes
    assert found.acceptance_s == pytest.approx(9 * 13, rel=1e-12)
    assert time_estimate(config, config.pairs[0], PairSizes(target=one, draft=None), prompts=20) is None


def test_decoding_end_to_end_is_counted_in_forwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block at γ = 2: three baselines of 11 forwards; two prefills, 10 / 2 rounds of 3, and a pass of each model."""
    machine = AssumedMachine(name="m", bytes_per_s=1e30, flops_per_s=1e30, launch_s=1.0)
    monkeypatch.setattr(estimate, "assumed_machine", lambda spec, threads: machine)
    one = ModelSize(parameters=1, dtype="float32", layers=1)

    def found(**verify: Any) -> float:
        config = with_models(
            folder,
            grid={"batch_size": [1, 4], "context": [16, 64], "gamma": "1:3"},
            validate={"gamma": 2, "context": 16, "max_new_tokens": 10, "max_seconds": None, **verify},
        )
        seconds = time_estimate(config, config.pairs[0], PairSizes(target=one, draft=one), prompts=20)
        assert seconds is not None
        return seconds.verify_s

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


def test_what_would_be_decoded_is_told(folder: Path) -> None:
    config = with_models(folder, grid={"batch_size": [1, 2], "context": [16, 64], "gamma": "1:3"})
    assert "end to end: nothing is decoded; validate: {} checks the prediction" in describe(config)
    grid = {"batch_size": [1, 2], "context": [16, 32], "gamma": "1:3"}
    text = describe(with_models(folder, grid=grid, validate={"max_new_tokens": 9, "acceptance": 0.5}))
    assert (
        "end to end: 4 cells of each pair (batch size 1, 2, context 16, 32), the recommended γ and its neighbours "
        "beside plain, loop, generate\n"
        "  2 prompts × 1 text of up to 9 tokens, 300 s for a pair; acceptance forced by coin: the texts are not the "
        "target's" in text
    )
    text = describe(with_models(folder, grid=grid, validate={"gamma": 2, "policies": ["renewal", "svip"]}))
    assert "γ = 2 and policies (svip, renewal) beside plain, loop, generate\n" in text
    for blocks, words in ((1, "block"), (4, "4 blocks")):
        text = describe(with_models(folder, grid=grid, validate={"gamma": 2, "baseline_blocks": blocks}))
        assert f"γ = 2 beside plain, in the first {words} of a cell also loop, generate\n" in text


def test_a_text_without_room_is_refused_before_anything_is_measured(folder: Path) -> None:
    config = with_models(folder, grid={"context": [100], "gamma": 2}, validate={"max_new_tokens": 29})
    with pytest.raises(ValueError, match=r"^validate: expected contexts of at most 99, since texts of 29 .* got 100;"):
        describe(config)


def test_a_forward_is_bound_by_memory_or_by_arithmetic() -> None:
    machine = AssumedMachine(name="m", bytes_per_s=8.0, flops_per_s=4.0, launch_s=0.5)
    size = ModelSize(parameters=4, dtype="float32", layers=2)
    assert machine.forward_s(size, 1) == 2 * 0.5 + 16 / 8
    assert machine.forward_s(size, 10) == 2 * 0.5 + 2 * 4 * 10 / 4


def test_description_lists_cells_arms_memory_and_time(folder: Path) -> None:
    text = describe(with_models(folder, grid={"batch_size": [1, 2], "context": [16, 64], "gamma": "1:3"}))
    lines = text.splitlines()
    assert lines[0] == "made: 4 cells"
    assert lines[1].split() == ["pair", "mode", "chain", "batch", "size", "context", "keys", "and", "values"]
    assert [line.split()[:5] for line in lines[2:6]] == [
        ["p", "eager", "argmax", batch_size, context] for batch_size in ("1", "2") for context in ("16", "64")
    ]
    assert "8 arms: decode; draft, 3 steps; draft_catch_up; verify γ = 1, 2, 3; prefill of both models" in text
    assert "acceptance: 2 prompts × 1 text of up to 64 tokens under greedy (1 chain)" in text
    assert "  target " in text
    assert "0.004224 M parameters, float32, 2 layers, contexts up to 128" in text
    assert "memory at the largest cell (estimate): " in text
    assert "time (estimate): " in text
    assert "assumed: " in text


def test_arms_in_turn_have_a_cache_each_and_limits_memory_may_forbid_it(folder: Path) -> None:
    changes: dict[str, Any] = {
        "grid": {"batch_size": [1, 2], "context": [16, 64], "gamma": "1:3"},
        "validate": {"gamma": [1, 3], "policies": ["svip"], "context": 64, "max_new_tokens": 10},
    }
    caches = 5 * 2 * (2 * 2 * 2 * 8) * (64 + 10) * 2 * 4  # arms but generate, models, numbers a token, …
    weights = 2 * 4 * 4224
    text = "  caches of all arms that are decoded in turn, at the largest cell (estimate): "
    assert f"{text}{size_text(caches)}\n" in describe(with_models(folder, **changes))
    enough, less = ({"memory": weights + caches + spare} for spare in (0, -1))
    assert f"{text}{size_text(caches)}\n" in describe(with_models(folder, **changes, limits=enough))
    assert (
        f"{text}would be {size_text(caches)}: over limits.memory, so its arms are decoded one after another\n"
    ) in describe(with_models(folder, **changes, limits=less))
    for other in ({"validate": None}, {"mode": "compile"}):
        assert text not in describe(with_models(folder, **(changes | other)))


def test_models_that_are_not_here_are_unknown_until_downloaded(folder: Path) -> None:
    text = describe(with_models(folder, draft="some-organisation/not-in-the-cache"))
    assert "draft some-organisation/not-in-the-cache: size unknown until downloaded" in text
    assert "memory at the largest cell (estimate): unknown until downloaded" in text
    assert "time: unknown until downloaded" in text
    fetch = "to know it before the run: hf download some-organisation/not-in-the-cache; then check again"
    assert fetch in text
    revised = {"model": "some-organisation/not-in-the-cache", "revision": "v2"}
    assert f"{fetch.partition(';')[0]} --revision v2; " in describe(with_models(folder, draft=revised))
    packed = {"model": "some-organisation/not-in-the-cache", "gguf_file": "q4.gguf"}
    assert "hf download" not in describe(with_models(folder, draft=packed))


def test_many_cells_are_cut_short(folder: Path) -> None:
    text = describe(with_models(folder, grid={"batch_size": "1:100", "context": 16, "gamma": 1}))
    assert "  … and 40 more" in text.splitlines()


def test_a_context_without_room_for_a_round_names_the_largest_allowed(folder: Path) -> None:
    config = with_models(folder, grid={"batch_size": 1, "context": 125, "gamma": "1:3"})
    with pytest.raises(
        ValueError,
        match=r"pair 'p' target: grid\.context 125 and a round of gamma 3 need 129 positions, the model takes 128; "
        "the largest context allowed is 124",
    ):
        describe(config)
    describe(with_models(folder, grid={"batch_size": 1, "context": 124, "gamma": "1:3"}))


def test_an_empty_prompt_file_is_refused(folder: Path) -> None:
    config = with_models(folder)
    (folder.parent / "prompts.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="the prompt file is empty"):
        describe(config)


def test_conversations_that_are_passed_over_are_told(folder: Path) -> None:
    config = with_models(folder)
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    (folder.parent / "prompts.jsonl").write_text(json.dumps([{"conversations": turns}, {"conversations": turns[1:]}]))
    text = describe(config)
    assert "acceptance: 1 prompt ×" in text
    assert "skipped 1 of 2 conversations, which do not start with the user" in text


def test_figures_are_short() -> None:
    assert [size_text(size) for size in (None, 2**19, 3 * 2**30)] == ["unknown", "0.5 MiB", "3 GiB"]
    assert [duration_text(s) for s in (0.1, 59.4, 90, 5400)] == ["1 s", "59 s", "1.5 min", "1.5 h"]


def test_rules_and_variants_are_told_with_what_they_leave_out(folder: Path) -> None:
    grid = {"batch_size": [1, 2], "context": [16, 64], "gamma": "1:3", "exclude": [{"batch_size": 2, "context": 64}]}
    pair = {"name": "p", "target": str(folder), "draft": str(folder), "mode": ["eager", "compile"], "threads": 1}
    other = {"name": "q", "target": str(folder), "draft": "ngram"}
    config = with_models(folder, pairs=[pair, other], grid=grid, validate={})
    lines = describe(config).splitlines()
    assert lines[0] == "made: 9 cells, 3 of 12 left out by rules of the grid"
    assert [line.split()[:2] for line in lines[2:11:3]] == [
        ["p-eager", "eager"],
        ["p-compile", "compile"],
        ["q", "eager"],
    ]
    assert "pair p-compile (mode compile, 1 thread)" in lines
    assert any(line.startswith("end to end: 3 cells of each pair (") for line in lines)
    rules = {**grid, "exclude": [{"pair": "q"}, {"mode": "compile", "batch_size": 2}]}
    text = describe(with_models(folder, pairs=[pair, other], grid=rules, validate={}))
    assert "made: 6 cells, 6 of 12 left out by rules of the grid" in text
    assert "pair q: not measured, the rules of the grid leave no cell of it" in text
    assert "end to end: 6 cells of all pairs (" in text
    assert "arms of each cell: 8 arms" in text


def test_a_long_context_that_a_rule_leaves_out_needs_no_room(folder: Path) -> None:
    grid = {"context": [100, 125], "gamma": "1:3"}
    describe(with_models(folder, grid={**grid, "exclude": [{"context": 125}]}))
    with pytest.raises(ValueError, match=r"grid\.context 125 and a round of gamma 3 need 129 positions"):
        describe(with_models(folder, grid=grid))


def test_a_cell_over_the_limit_is_told_with_the_figures(folder: Path) -> None:
    size = ModelSize(parameters=10, dtype="float32", layers=1, kv_heads=1, head_dim=1, vocabulary=5, max_context=128)
    sizes = PairSizes(target=size, draft=size)
    # weights 2 · 40; keys and values 2 models · 2 · (s + 4) tokens · B · 4 bytes: 320 at (1, 16), 960 at (1, 56),
    # 640 at (2, 16), 1920 at (2, 56)
    grid = {"batch_size": [1, 2], "context": [16, 56], "gamma": "1:3"}
    config = with_models(folder, grid=grid, limits={"memory": 80 + 960})
    cells = plan_cells(config)
    assert [over_memory(config, sizes, cell) for cell in cells[:3]] == [None, None, None]
    assert over_memory(config, sizes, cells[3]) == (
        "needs 0.00191 MiB by estimate (weights 7.63e-05 MiB, keys and values 0.00183 MiB), limits.memory is 0.000992"
        " MiB; raise it, or lower grid.batch_size or grid.context"
    )
    assert not is_over_memory(config, PairSizes(target=size, draft=None), cells[3])
    assert not is_over_memory(with_models(folder, grid=grid), sizes, cells[3])
    assert kv_bytes(config, sizes, cells[1]) == 960
    ruled = with_models(folder, grid={**grid, "exclude": [{"batch_size": 2, "context": 56}]})
    expected = time_estimate(ruled, ruled.pairs[0], sizes, prompts=2)
    assert time_estimate(config, config.pairs[0], sizes, prompts=2) == expected
    too_large = with_models(folder, limits={"memory": 79})
    assert str(over_memory(too_large, sizes, cells[0])).endswith("raise it, or load the models in a smaller dtype")


def test_what_is_over_the_limit_is_marked(folder: Path) -> None:
    grid = {"batch_size": [1, 64], "context": 64, "gamma": "1:3"}
    text = describe(with_models(folder, grid=grid, limits={"memory": "1MiB", "run_seconds": 90}))
    assert [line.endswith("over limits.memory, skipped") for line in text.splitlines()[2:4]] == [False, True]
    assert "limits: 1.5 min of this run, 1 MiB of memory by estimate" in text
    nothing = describe(with_models(folder, grid=grid, limits={"memory": 1}))
    assert "  not measured: every cell is over limits.memory" in nothing


def test_a_search_says_what_it_would_time() -> None:
    grid: dict[str, Any] = {"batch_size": 1, "context": [64, 128, 256], "gamma": {"max": 12, "search": "adaptive"}}
    every = describe(made.config(grid={**grid, "gamma": "1:12"}))
    text = describe(made.config(grid=grid))
    assert "arms of each cell: up to 17 arms: decode; draft, 12 steps; draft_catch_up; verify some γ of 1, 2," in text
    assert "until ±0.02 of the best S at 0.9" in text
    assert "search, after acceptance: γ = 1; γ that could be best" in text
    assert "until none can be over 1% better at 0.95" in text
    assert "cells between the smallest and largest are only checked" in text
    assert "search" not in every
    two = describe(made.config(grid={**grid, "context": [64, 128]}))
    assert "only checked" not in two


def test_a_search_is_estimated_between_its_fewest_gammas_and_all_of_them() -> None:
    grid: dict[str, Any] = {"batch_size": 1, "context": 64, "gamma": {"max": 12, "search": "adaptive"}}
    found = {}
    for name, gamma in (("searched", grid["gamma"]), ("every", "1:12"), ("fewest", "1:4")):
        config = made.config(grid={**grid, "gamma": gamma})
        estimate = time_estimate(config, config.pairs[0], read_sizes(config)["p"], 10)
        assert estimate is not None
        found[name] = estimate
    assert found["searched"].timing_most_s == found["every"].timing_most_s
    assert found["fewest"].timing_least_s < found["searched"].timing_least_s < found["every"].timing_least_s


def test_the_seconds_of_a_cell_are_told_and_bound_the_estimate(folder: Path) -> None:
    grid = {"batch_size": [1, 2], "context": [16, 64], "gamma": "1:3"}
    precision = {"max_seconds": 100, "max_cell_seconds": 1e-9}
    config = with_models(folder, grid=grid, precision=precision)
    assert ", 100 s for a pair and batch size, 1e-09 s for a cell" in describe(config)
    size = read_model_size(config.pairs[0].target, role="target")
    found = time_estimate(config, config.pairs[0], PairSizes(target=size, draft=size), prompts=2)
    assert found is not None
    assert found.timing_most_s == found.timing_least_s
