"""The cache with a length per row: what it returns must be what a forward over the whole text returns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from specgauge.bench.cache.adapter import ATTENTION_NAMES
from specgauge.bench.cache.cache import capacity_bucket, forward, new_cache
from tests.bench.decoding.test_decoder_families import FAMILIES, VOCABULARY, network

TOLERANCE = 1e-5
"""Models compute rotary angles and norms partly in float32, whatever the weights' type."""


@pytest.fixture(params=FAMILIES, scope="module")
def model(request: pytest.FixtureRequest) -> Iterator[Any]:
    model = network(request.param, 1).model
    yield model
    model.set_attn_implementation(ATTENTION_NAMES["sdpa"])


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
    cache.set_lengths(0)
    last = forward(model, cache, tokens[:, :7], keep=1)
    torch.testing.assert_close(last, parts[0][:, -1:], rtol=0, atol=1e-12)


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


def test_a_cache_that_would_overflow_says_so(model: Any, tokens: torch.Tensor) -> None:
    cache = new_cache(model, batch_size=3, tokens=10)
    assert cache.capacity == 64
    cache.set_lengths(63)
    with pytest.raises(ValueError, match="63 tokens and 2 more do not fit into a capacity of 64"):
        forward(model, cache, tokens[:, :2])


@pytest.mark.parametrize(("tokens", "capacity"), [(1, 64), (64, 64), (65, 128), (1000, 1024)])
def test_capacity_follows_the_context(tokens: int, capacity: int) -> None:
    assert capacity_bucket(tokens) == capacity
