"""The shipped pair keeps the promises of its card: size, shape, skill, and that drafting for it is worth something."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from specgauge.bench.acceptance.teacher_forced import measure_acceptance
from specgauge.bench.cache.cache import forward, new_cache
from specgauge.bench.decoding.plain import pad_right
from specgauge.bench.decoding.records import Text
from specgauge.bench.embedded.train import corpus_files
from specgauge.bench.models.pair import EMBEDDED, LoadedModel, LoadedPair, load_pair
from specgauge.bench.prompts import encode_prompts, read_prompts
from specgauge.configs.pairs import ModelConfig, PairConfig
from specgauge.configs.schema import WorkloadConfig
from specgauge.model.acceptance.recorded import repeated_ngram_share
from tests.bench.decoded import DRAWN, GREEDY, plain

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


@pytest.fixture(scope="module")
def texts(pair: LoadedPair, prompts: list[list[int]]) -> dict[str, list[Text]]:
    return {
        name: plain(pair.target, settings, prompts[:PROMPTS], new=new)
        for name, settings, new in (("greedy", GREEDY, NEW_TOKENS // 2), ("t1", DRAWN, NEW_TOKENS))
    }


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


@torch.inference_mode()
def prompt_loss(model: LoadedModel, prompts: list[list[int]]) -> float:
    """Mean nats a token over the prompts, which are text kept out of training."""
    losses = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        logits = forward(model.model, new_cache(model.model, batch_size=1, tokens=len(prompt)), ids)[0, :-1]
        losses.append(functional.cross_entropy(logits.float(), ids[0, 1:], reduction="none"))
    return float(torch.cat(losses).mean())


def test_the_target_is_worth_drafting_for(pair: LoadedPair, prompts: list[list[int]]) -> None:
    target, draft = (prompt_loss(model, prompts[::2]) for model in (pair.target, pair.draft_model))
    assert target < 4.5  # a uniform guess is ln 4096 = 8.3
    assert target + 0.15 <= draft


@pytest.mark.parametrize("name", ["greedy", "t1"])
def test_drafts_are_accepted_more_often_than_not(pair: LoadedPair, texts: dict[str, list[Text]], name: str) -> None:
    settings = GREEDY if name == "greedy" else DRAWN
    frame = measure_acceptance(pair.target, pair.draft_model, texts[name], settings, batch_size=8, chunk=64)
    assert frame["target_prob"].notna().all()
    accepted = np.minimum(1.0, frame["draft_prob"] / frame["target_prob"])
    assert float(np.mean(accepted)) >= 0.55


def test_texts_at_temperature_one_do_not_loop(texts: dict[str, list[Text]]) -> None:
    tokens, valid = pad_right([text.tokens for text in texts["t1"]], 0, torch.device("cpu"))
    shares = repeated_ngram_share(tokens.numpy(), valid.sum(dim=1).numpy(), n=4)
    assert float(np.nanmean(shares)) < 0.30


def test_the_prompts_are_not_in_the_training_text() -> None:
    """The training script holds files out by a hash of their path, so this Python's library tells the same."""
    root = Path(sysconfig.get_paths()["stdlib"])
    training, _ = corpus_files()
    trained_on = {path.relative_to(root).as_posix() for path in training}
    rows = (EMBEDDED / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    sources = {json.loads(row)["source"] for row in rows}
    assert len(sources) >= 12
    assert not sources & trained_on
