"""Greedy text of the decoder against transformers' own generate, over families of models, and on the embedded pair."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from specgauge.bench.decoding.records import Text
from specgauge.bench.end_to_end.baselines import generate_with_transformers
from specgauge.bench.end_to_end.text_checks import divergences
from specgauge.bench.models.pair import EMBEDDED, LoadedModel, load_pair
from specgauge.bench.prompts import encode_prompts, read_prompts
from specgauge.configs.pairs import PairConfig
from specgauge.configs.schema import WorkloadConfig
from tests.bench.conftest import exact, loaded
from tests.bench.decoded import GREEDY, NEW, PROMPTS, batch_of, decode, plain

VOCABULARY, NEW_EMBEDDED = 40, 24
LIMIT = max(len(prompt) for prompt in PROMPTS) + NEW
"""The longest prompt and its text fill the context to the last place."""
NO_IDS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": LIMIT,
    "initializer_range": 0.5,
    **NO_IDS,
}
WINDOW = {"head_dim": 8, "sliding_window": 5, "tie_word_embeddings": False}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": LIMIT,
    "initializer_range": 0.5,
    **NO_IDS,
}
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, SHAPE),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, SHAPE),
    "mistral, sliding": (MistralConfig, MistralForCausalLM, {**SHAPE, "sliding_window": 5}),
    "gemma2, sliding and capped": (Gemma2Config, Gemma2ForCausalLM, {**SHAPE, **WINDOW}),
    "gemma3, sliding and full": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {**SHAPE, **WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": (GPT2Config, GPT2LMHeadModel, GPT2),
}


@cache
def network(family: str, seed: int, layers: int = 2) -> LoadedModel:
    config_class, model_class, settings = FAMILIES[family]
    depth = "n_layer" if "n_layer" in settings else "num_hidden_layers"
    torch.manual_seed(seed)
    model: Any = exact(model_class(config_class(**{**settings, depth: layers})))
    return loaded(model, max_context=LIMIT, name=family)


def nearly(target: LoadedModel, seed: int) -> LoadedModel:
    """A draft that often agrees: the target's weights, disturbed."""
    model = deepcopy(target.model)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        parameter.data += 0.15 * parameter.std() * noise
    return replace(target, model=model)


def generated(target: LoadedModel, prompts: Sequence[Sequence[int]], new: int) -> list[Text]:
    """What transformers' own greedy loop writes after each prompt alone, with its own attention and its own cache."""
    batches = [batch_of([prompt], new, [number]) for number, prompt in enumerate(prompts)]
    return [generate_with_transformers(target, batch, GREEDY, seed=0).texts[0] for batch in batches]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_what_transformers_generates(family: str) -> None:
    target = network(family, 1)
    draft = nearly(target, 2)
    expected = generated(target, PROMPTS, NEW)
    accepted: set[int] = set()
    for gamma in range(1, 9):
        ragged = decode(target, draft, gamma=gamma)
        assert ragged.texts == expected
        if gamma % 2:
            number = gamma % len(PROMPTS)
            alone = decode(target, draft, prompts=[PROMPTS[number]], gamma=gamma)
            assert alone.texts[0].tokens == expected[number].tokens
        accepted |= {row.accepted for row in ragged.rows if row.gamma}
    assert {0, 1} <= accepted, "drafts are both accepted and rejected"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_embedded_pair_writes_what_transformers_generates_but_for_ties_of_the_dtype(dtype: str) -> None:
    """In float64 there are none."""
    if not (EMBEDDED / "target" / "config.json").exists():
        pytest.skip("the embedded weights are not in this checkout")
    spec = {"model": "embedded", "dtype": dtype, "device": "cpu"}
    pair = load_pair(PairConfig.model_validate({"name": "embedded", "target": spec, "draft": spec}))
    workload = WorkloadConfig.model_validate({"prompts": "embedded", "limit": 3})
    whole = encode_prompts(read_prompts(workload), pair.target.tokenizer, workload)
    prompts = [prompt[:length] for prompt, length in zip(whole, (48, 32, 17), strict=True)]
    ours = plain(pair.target, prompts=prompts, new=NEW_EMBEDDED)
    theirs = generated(pair.target, prompts, NEW_EMBEDDED)
    for gamma in (1, 8):
        found = decode(pair.target, pair.draft_model, prompts=prompts, gamma=gamma, new=NEW_EMBEDDED)
        for texts in (ours, theirs):
            for place in divergences(pair.target, texts, found.texts, GREEDY):
                assert place.is_tie, place.line()
