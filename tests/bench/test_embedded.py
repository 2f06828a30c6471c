"""The shipped pair keeps the promises of its card: size, shape, skill, and that drafting for it is worth something."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from specgauge.bench.embedded.measure_card import acceptance_and_repeats
from specgauge.bench.embedded.train import corpus_files, held_out_loss
from specgauge.bench.models.pair import EMBEDDED, LoadedPair, load_pair
from specgauge.bench.prompts import encode_prompts, read_prompts
from specgauge.configs.pairs import ModelConfig, PairConfig
from specgauge.configs.schema import WorkloadConfig
from specgauge.model.sampling import SamplingSettings
from tests.bench.decoded import DRAWN, GREEDY

PROMPTS = 12
NEW_TOKENS = 64


@pytest.fixture(scope="module")
def pair() -> LoadedPair:
    embedded = ModelConfig(model="embedded", device="cpu", dtype="float32")
    return load_pair(PairConfig(name="embedded", target=embedded, draft=embedded))


@pytest.fixture(scope="module")
def prompts(pair: LoadedPair) -> list[list[int]]:
    workload = WorkloadConfig()
    return encode_prompts(read_prompts(workload), pair.target.tokenizer, workload)


def test_the_weights_fit_into_twenty_five_megabytes_of_sixteen_bits() -> None:
    from safetensors import safe_open

    total = 0
    for role in ("target", "draft"):
        path = EMBEDDED / role / "model.safetensors"
        total += path.stat().st_size
        with safe_open(path, framework="pt") as weights:
            assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert total <= 25_000_000


def test_the_models_are_what_the_card_says(pair: LoadedPair) -> None:
    assert pair.target.model.config.num_hidden_layers == 16
    assert pair.draft_model.model.config.num_hidden_layers == 2
    vocabulary = pair.target.tokenizer.get_vocab()
    assert len(vocabulary) == 4096
    assert vocabulary == pair.draft_model.tokenizer.get_vocab()
    text = "def café(x):\n\treturn '\U0001f40d'  # any byte has a token\n"
    assert pair.target.tokenizer.decode(pair.target.tokenizer(text)["input_ids"]) == text


def test_the_shipped_prompts_are_enough_and_fit(pair: LoadedPair, prompts: list[list[int]]) -> None:
    assert len(prompts) >= 24
    assert pair.max_context is not None
    assert all(32 <= len(prompt) <= pair.max_context - NEW_TOKENS for prompt in prompts)
    assert len({tuple(prompt) for prompt in prompts}) == len(prompts)


def test_the_target_is_worth_drafting_for(pair: LoadedPair, prompts: list[list[int]]) -> None:
    """Mean nats a token over the prompts, which are text kept out of training."""
    target, draft = (
        np.mean([held_out_loss(network, torch.tensor(prompt), len(prompt) - 2) for prompt in prompts[::2]])
        for network in cast(Any, (pair.target.model, pair.draft_model.model))
    )
    assert target < 4.5  # a uniform guess is ln 4096 = 8.3
    assert target + 0.15 <= draft


@pytest.mark.parametrize(("settings", "new"), [(GREEDY, NEW_TOKENS // 2), (DRAWN, NEW_TOKENS)], ids=["greedy", "t1"])
def test_drafts_are_accepted_more_often_than_not_and_drawn_texts_do_not_loop(
    pair: LoadedPair, prompts: list[list[int]], settings: SamplingSettings, new: int
) -> None:
    frame, repeats = acceptance_and_repeats(pair, prompts[:PROMPTS], settings, new_tokens=new)
    assert frame["target_prob"].notna().all()
    assert float(np.mean(np.minimum(1.0, frame["draft_prob"] / frame["target_prob"]))) >= 0.55
    if settings == DRAWN:
        assert repeats < 0.30


def test_the_prompts_are_not_in_the_training_text() -> None:
    """The training script holds files out by a hash of their path, so this Python's library tells the same."""
    root = Path(sysconfig.get_paths()["stdlib"])
    training, _ = corpus_files()
    trained_on = {path.relative_to(root).as_posix() for path in training}
    rows = (EMBEDDED / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    sources = {json.loads(row)["source"] for row in rows}
    assert len(sources) >= 12
    assert not sources & trained_on
