"""What `check` says of servers: addresses, or the commands that would be started, and the time."""

from collections.abc import Callable
from typing import Any

import pytest

from specgauge.sweeps.describe import describe
from tests.sweeps.served.simulated import served_config

LAUNCHED: dict[str, dict[str, Any]] = {
    "vllm": {
        "kind": "vllm",
        "target": "org/big",
        "draft": "org/small",
        "launch": {"options": ["--max-model-len", "64"]},
    },
    "sglang": {"kind": "sglang", "target": "org/big", "draft": "org/head", "method": "eagle3", "launch": {}},
    "llama": {"kind": "llama_cpp", "target": "big.gguf", "method": "ngram", "launch": {}},
    "own": {"launch": {"command": "serve --port {port} --drafts {gamma}"}},
}
ARMS: dict[str, dict[str, Any]] = {
    "vllm": {"name": "schedule", "speculative": {"num_speculative_tokens_per_batch_size": [[1, 8, 4], [9, 64, 0]]}},
    "sglang": {"name": "adaptive", "speculative": {"speculative-adaptive": True, "speculative-num-steps": 3}},
}


def test_what_it_says(snapshot: Callable[[str, str], None]) -> None:
    pairs = [{"name": name, "engine": engine} for name, engine in LAUNCHED.items()]
    grid = {"batch_size": [1, 8], "context": 512, "gamma": [2, 4]}
    texts = [
        describe(served_config((0, 1, 3), precision={})),
        describe(served_config(pairs=pairs, grid=grid, precision={"max_seconds": None})),
    ]
    armed = {name: {**LAUNCHED[name], "arms": [ARMS[name]]} for name in ARMS}
    pairs = [{"name": name, "engine": engine} for name, engine in armed.items()]
    forced = [pair for pair in pairs if pair["name"] == "vllm"]
    running = [{"base_url": "http://h:1", "gamma": 0}, {"base_url": "http://h:2", "arm": "own"}]
    texts += [
        describe(served_config(pairs=pairs, grid=grid, validate={"gamma": [2]})),
        describe(served_config(pairs=forced, grid=grid, validate={"acceptance": 0.8, "max_seconds": None})),
        describe(served_config(pairs=[{"name": "running", "engine": running}], grid=grid, validate={})),
        describe(served_config(pairs=pairs, grid=grid | {"batch_size": {"max": 16, "search": "adaptive"}})),
    ]
    snapshot("describe_served", "\n---\n".join(texts) + "\n")


def test_a_command_without_gamma_is_refused() -> None:
    config = served_config(
        pairs=[{"name": "a", "engine": {"launch": {"command": "serve --port {port}"}}}],
        grid={"batch_size": 1, "context": 64, "gamma": [2]},
    )
    with pytest.raises(ValueError, match=r"launch\.command"):
        describe(config)


def test_a_key_that_is_nearly_a_known_one_is_told_and_another_is_left_alone() -> None:
    own = {"num_speculative_token": 3, "num-speculative-tokens": 4, "next_year": True}
    engine = {**LAUNCHED["vllm"], "arms": [{"name": "own", "speculative": own}]}
    grid = {"batch_size": [1], "context": 512, "gamma": [2, 4]}
    found = describe(served_config(pairs=[{"name": "a", "engine": engine}], grid=grid)).splitlines()
    assert [line.strip() for line in found if "warning" in line] == [
        "warning: arm own: vllm is not known to have 'num_speculative_token'; did you mean 'num_speculative_tokens'?"
    ]
