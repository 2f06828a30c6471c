"""The cache with a length per row: what it returns must be what a forward over the whole text returns."""

from __future__ import annotations

from types import SimpleNamespace
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

from specgauge.bench.cache.attention import ATTENTION_NAMES
from specgauge.bench.cache.cache import capacity_bucket, forward, new_cache, refuse_cache_that_cannot_roll_back

VOCABULARY = 50
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
WINDOW = 6
FAMILIES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, SHAPE),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, SHAPE),
    "mistral, sliding window": (MistralConfig, MistralForCausalLM, {**SHAPE, "sliding_window": WINDOW}),
    "gemma2, capped scores": (Gemma2Config, Gemma2ForCausalLM, {**SHAPE, "head_dim": 8, "sliding_window": WINDOW}),
    "gemma3, full and sliding": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            **SHAPE,
            "head_dim": 8,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gpt2": (
        GPT2Config,
        GPT2LMHeadModel,
        {
            "vocab_size": VOCABULARY,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "bos_token_id": None,
            "eos_token_id": None,
        },
    ),
}
TOLERANCE = 2e-6
"""Models compute rotary angles and norms partly in float32, whatever the weights' type."""


@pytest.fixture(params=FAMILIES, scope="module")
def model(request: pytest.FixtureRequest) -> Any:
    config_class, model_class, settings = FAMILIES[request.param]
    torch.manual_seed(1)
    return model_class(config_class(**settings)).double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (3, 24), generator=torch.Generator().manual_seed(2))


def reference(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of one forward over the whole text, by transformers' own attention and no cache."""
    model.set_attn_implementation("eager")
    logits: torch.Tensor = model(tokens, use_cache=False).logits
    return logits


@pytest.mark.parametrize("attention", ATTENTION_NAMES.values())
def test_blocks_of_any_size_equal_one_forward(model: Any, tokens: torch.Tensor, attention: str) -> None:
    expected = reference(model, tokens)
    model.set_attn_implementation(attention)
    cache = new_cache(model, batch_size=3, tokens=24)
    parts, start = [], 0
    for size in (7, 1, 4, 1, 11):
        parts.append(forward(model, cache, tokens[:, start : start + size]))
        start += size
    assert cache.lengths == [24, 24, 24]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("attention", ATTENTION_NAMES.values())
def test_rows_of_different_length_equal_their_own_texts(model: Any, tokens: torch.Tensor, attention: str) -> None:
    expected = reference(model, tokens)
    model.set_attn_implementation(attention)
    cache = new_cache(model, batch_size=3, tokens=30)
    forward(model, cache, tokens[:, :17])
    lengths = [3, 9, 17]
    for new in (1, 4):
        cache.set_lengths(lengths)
        fed = torch.stack([tokens[row, length : length + new] for row, length in enumerate(lengths)])
        wanted = torch.stack([expected[row, length : length + new] for row, length in enumerate(lengths)])
        torch.testing.assert_close(forward(model, cache, fed), wanted, rtol=0, atol=TOLERANCE)
    assert cache.lengths == [7, 13, 21]


def test_rolled_back_tokens_leave_no_trace(model: Any, tokens: torch.Tensor) -> None:
    expected = reference(model, tokens)
    model.set_attn_implementation(ATTENTION_NAMES["sdpa"])
    cache = new_cache(model, batch_size=3, tokens=24)
    forward(model, cache, tokens[:, :10])
    forward(model, cache, (tokens[:, 10:15] + 1) % VOCABULARY)
    cache.set_lengths(10)
    torch.testing.assert_close(forward(model, cache, tokens[:, 10:14]), expected[:, 10:14], rtol=0, atol=TOLERANCE)
    cache.set_lengths(0)
    torch.testing.assert_close(forward(model, cache, tokens[:, :6]), expected[:, :6], rtol=0, atol=TOLERANCE)


def test_copied_rows_go_on_apart_from_their_originals(model: Any, tokens: torch.Tensor) -> None:
    model.set_attn_implementation(ATTENTION_NAMES["sdpa"])
    cache = new_cache(model, batch_size=2, tokens=64)
    forward(model, cache, tokens[:2, :8])
    cache.set_lengths([8, 5])
    copied = cache.copied_rows([1, 0, 1], tokens=100)
    assert (copied.capacity, copied.lengths) == (128, [5, 8, 5])
    nexts = torch.stack([tokens[1, 5:7], tokens[0, 8:10], tokens[0, :2]])
    found = forward(model, copied, nexts)[:, -1]
    for row, text in enumerate((tokens[1, :7], tokens[0, :10], torch.cat([tokens[1, :5], tokens[0, :2]]))):
        alone = forward(model, new_cache(model, batch_size=1, tokens=64), text[None])
        torch.testing.assert_close(found[row], alone[0, -1])
    assert cache.lengths == [8, 5]
    expected = forward(model, new_cache(model, batch_size=1, tokens=64), tokens[:1, :9])
    torch.testing.assert_close(forward(model, cache, tokens[:2, 8:9])[0, -1], expected[0, -1])


def test_keeping_the_last_logits_only(model: Any, tokens: torch.Tensor) -> None:
    model.set_attn_implementation(ATTENTION_NAMES["sdpa"])
    cache = new_cache(model, batch_size=3, tokens=24)
    every = forward(model, cache, tokens[:, :8])
    cache.set_lengths(0)
    torch.testing.assert_close(forward(model, cache, tokens[:, :8], keep=1), every[:, -1:], rtol=0, atol=1e-12)


def test_a_cache_that_would_overflow_says_so(model: Any, tokens: torch.Tensor) -> None:
    cache = new_cache(model, batch_size=3, tokens=10)
    assert cache.capacity == 64
    cache.set_lengths(63)
    with pytest.raises(ValueError, match="63 tokens and 2 more do not fit into a capacity of 64"):
        forward(model, cache, tokens[:, :2])


@pytest.mark.parametrize(("tokens", "capacity"), [(1, 64), (64, 64), (65, 128), (1000, 1024)])
def test_capacity_follows_the_context(tokens: int, capacity: int) -> None:
    assert capacity_bucket(tokens) == capacity


@pytest.mark.parametrize(
    ("config", "stateful", "words"),
    [
        ({"is_encoder_decoder": True}, False, "encoder-decoder"),
        ({"layer_types": ["full_attention", "linear_attention"]}, False, "linear_attention"),
        ({}, True, "cannot be rolled back"),
    ],
)
def test_state_that_cannot_roll_back_is_refused(config: dict[str, Any], stateful: bool, words: str) -> None:
    settings = SimpleNamespace(is_encoder_decoder=False, **{k: v for k, v in config.items() if k == "layer_types"})
    settings.is_encoder_decoder = config.get("is_encoder_decoder", False)
    settings.get_text_config = lambda: settings
    model: Any = SimpleNamespace(config=settings, _is_stateful=stateful)
    with pytest.raises(ValueError, match=words):
        refuse_cache_that_cannot_roll_back(model, "pair 'x' target")


def test_attention_layers_are_accepted(model: Any) -> None:
    refuse_cache_that_cannot_roll_back(model, "pair 'x' target")
