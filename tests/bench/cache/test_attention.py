"""Attention over rows of their own length: equal to the formula, however heads are grouped or folded."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from specgauge.bench.cache.adapter import ATTENTION_NAMES, attention_forward, for_all_layers

MODULE = torch.nn.Identity()
BATCH, WIDTH = 3, 8


def states(new: int, cached: int, *, heads: int = 4, shared: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Random (B, H, N, D) queries and (B, K, S, D) keys and values, float64."""
    generator = torch.Generator().manual_seed(new + 100 * cached + heads)

    def normal(count: int, length: int) -> Tensor:
        return torch.randn(BATCH, count, length, WIDTH, dtype=torch.float64, generator=generator)

    return normal(heads, new), normal(shared, cached), normal(shared, cached)


def ragged_mask(new: int, cached: int) -> Tensor:
    """(B, 1, N, S): rows that hold 0, 5 and S − N tokens before the new ones."""
    starts = torch.tensor([0, min(5, cached - new), cached - new])
    positions = starts[:, None] + torch.arange(new)
    return (torch.arange(cached) <= positions[:, :, None])[:, None]


def formula(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, *, scale: float = WIDTH**-0.5, softcap: float | None = None
) -> Tensor:
    """(B, N, H, D) softmax(scale q·k) v, one head and position after the other, over the slots that are seen."""
    batch, heads, new, _ = query.shape
    output = torch.empty(batch, new, heads, value.shape[-1], dtype=query.dtype)
    for row in range(batch):
        for head in range(heads):
            shared = head * key.shape[1] // heads
            for position in range(new):
                seen = mask[row if mask.shape[0] > 1 else 0, 0, position]
                scores = scale * key[row, shared, seen] @ query[row, head, position]
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                weights = torch.exp(scores - scores.max())
                output[row, position, head] = weights @ value[row, shared, seen] / weights.sum()
    return output


def attend(*arguments: Any, **options: Any) -> Tensor:
    output, weights = attention_forward(MODULE, *arguments, **options)
    assert weights is None
    assert output.is_contiguous()
    return output


def assert_equal(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def masks(kind: str, new: int) -> tuple[int, Tensor | None, Tensor]:
    """(tokens cached, the mask given, the mask that is meant)."""
    if kind == "rows of their own length":
        return new + 9, ragged_mask(new, new + 9), ragged_mask(new, new + 9)
    if kind == "one mask for all rows":
        return new + 8, ragged_mask(new, new + 8)[1:2], ragged_mask(new, new + 8)[1:2]
    cached = new if kind == "a first block" else new + 12
    return cached, None, torch.ones(new, cached, dtype=torch.bool).tril(cached - new)[None, None]


@pytest.mark.parametrize(
    "options", [{}, {"written_out": True}, {"softcap": 0.7}], ids=["fused", "written out", "capped"]
)
@pytest.mark.parametrize(("heads", "shared"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(
    ("kind", "new"),
    [
        *(("rows of their own length", new) for new in (1, 4, 64, 65, 80)),
        ("one mask for all rows", 4),
        ("a single token over the whole cache", 1),
        *(("a first block", new) for new in (2, 5, 80)),
    ],
)
def test_it_is_the_formula(kind: str, new: int, heads: int, shared: int, options: dict[str, Any]) -> None:
    cached, given, meant = masks(kind, new)
    query, key, value = states(new, cached, heads=heads, shared=shared)
    expected = formula(query, key, value, meant, softcap=options.get("softcap"))
    assert_equal(attend(query, key, value, given, **options), expected)


@pytest.mark.parametrize("name", ATTENTION_NAMES.values())
def test_both_are_registered_with_transformers_and_take_the_scale_a_model_gives(name: str) -> None:
    query, key, value = states(4, 9)
    mask = ragged_mask(4, 9)
    for scale in (None, 0.125):
        found, _ = AttentionInterface()[name](MODULE, query, key, value, mask, scaling=scale)
        assert_equal(found, formula(query, key, value, mask, scale=scale or WIDTH**-0.5))


@pytest.mark.parametrize("written_out", [False, True])
@pytest.mark.parametrize("shared", [4, 2])
@pytest.mark.parametrize("new", [4, 80])
def test_layers_that_share_a_mask_attend_as_each_would_alone(new: int, shared: int, written_out: bool) -> None:
    query, key, value = states(new, new + 9, shared=shared)
    mask = ragged_mask(new, new + 9)
    expected = attend(query, key, value, mask, written_out=written_out)
    given = for_all_layers(mask.clone())
    for _ in range(2):
        assert torch.equal(attend(query, key, value, given, written_out=written_out), expected)
    assert torch.equal(given, mask)
    narrow = attend(query.float(), key.float(), value.float(), given, written_out=written_out)
    torch.testing.assert_close(narrow.double(), expected, rtol=0, atol=1e-5)


def test_a_mask_is_made_ready_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = states(4, 13, shared=2)
    mask = ragged_mask(4, 13)
    repeat = Mock(side_effect=torch.Tensor.repeat)
    monkeypatch.setattr(torch.Tensor, "repeat", lambda tensor, *sizes: repeat(tensor, *sizes))
    for each, count in ((mask, 3), (for_all_layers(mask.clone()), 4)):
        for _ in range(3):
            attend(query, key, value, each)
        assert repeat.call_count == count


@pytest.mark.parametrize(
    ("new", "queries", "grouped"), [(1, (3, 2, 2, 8), False), (64, (3, 2, 128, 8), False), (65, (3, 4, 65, 8), True)]
)
def test_grouped_heads_read_the_cache_once(
    new: int, queries: tuple[int, ...], grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few new tokens are folded into the query length; keys and values are passed on as they lie, never repeated."""
    query, key, value = states(new, new + 9)
    fused = Mock(side_effect=functional.scaled_dot_product_attention)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", fused)
    attend(query, key, value, ragged_mask(new, new + 9))
    ((found_query, found_key, found_value), options) = fused.call_args
    assert fused.call_count == 1
    assert tuple(found_query.shape) == queries
    assert found_key is key
    assert found_value is value
    assert (options["enable_gqa"], options["is_causal"]) == (grouped, False)


def test_low_precision_is_softmaxed_wide() -> None:
    query, key, value = (tensor.bfloat16() for tensor in states(4, 300))
    mask = ragged_mask(4, 300)
    found = attend(query, key, value, mask, written_out=True)
    assert found.dtype == torch.bfloat16
    expected = formula(query.double(), key.double(), value.double(), mask)
    torch.testing.assert_close(found.double(), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("feature", ["s_aux", "position_bias"])
def test_features_that_are_not_implemented_are_refused(feature: str) -> None:
    query, key, value = states(1, 5)
    with pytest.raises(ValueError, match=f"^Identity needs {feature}, "):
        attend(query, key, value, None, **{feature: torch.zeros(4)})
    attend(query, key, value, None, **{feature: None})
