from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.run.prompts import PairPrompts
from tests.sweeps import made
from tests.sweeps.fake_bench import FakeBench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The fake bench's module of prompts: the n-th is [n], and is brought to a length by repeating it."""
    module = FakeBench().modules()["specgauge.bench.prompts"]

    def of_length(prompts: Sequence[Sequence[int]], length: int) -> list[list[int]]:
        return [list(prompt) * length for prompt in prompts]

    monkeypatch.setattr(module, "encode_prompts", lambda prompts, *_: [[number] for number in range(len(prompts))])
    monkeypatch.setattr(module, "prompts_of_length", of_length)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_prompts_of_several_lengths_are_numbered_one_length_after_the_other(tmp_path: Path, bench: Any) -> None:
    config = made.config(workload={"prompt_tokens": [2, 3], "max_new_tokens": 16})
    with made.begin(tmp_path, config) as run:
        prompts = PairPrompts(run, "p", bench.read_prompts(None)[:2])
        encoded = prompts.encoded(None)
        assert encoded == [[0, 0], [1, 1], [0, 0, 0], [1, 1, 1]]
        assert prompts.at(3) == ([2, 3], [[0, 0, 0], [1, 1, 1]])
        assert prompts.at(4) == ([0, 1], [[0] * 4, [1] * 4])
        assert prompts.encoded(None) is encoded
        assert len(prompts) == 2
    lines = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["prompt"], line["text"], line["tokens"]) for line in lines] == [
        (number, f"text {number % 2}", tokens) for number, tokens in enumerate(encoded)
    ]
