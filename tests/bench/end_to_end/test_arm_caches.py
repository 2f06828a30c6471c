"""Bytes of caches by hand, and what is done where they do not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from specgauge.bench.cache.cache import RowLayer, forward
from specgauge.bench.end_to_end import arm_runs as arm_caches
from specgauge.bench.end_to_end.arm_runs import cache_bytes, caches_fit, free_bytes, weight_bytes
from specgauge.bench.models.pair import LoadedModel, LoadedPair


def test_bytes_are_those_of_a_cache_that_was_written(tiny_model: Callable[..., LoadedModel]) -> None:
    model = tiny_model()
    cache = model.new_cache(batch_size=3, tokens=100)
    with torch.inference_mode():
        forward(model.model, cache, torch.ones(3, 2, dtype=torch.long))
    layers = [layer for layer in cache.layers if isinstance(layer, RowLayer)]
    written = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
    wanted = sum(tensor.numel() * tensor.element_size() for tensor in written if tensor is not None)
    assert wanted > 0
    assert cache_bytes(model, batch_size=3, tokens=100) == wanted


@pytest.mark.parametrize(("free", "fits"), [(None, True), (2.0, True), (1.99, False)])
def test_caches_may_take_half_of_what_is_free(
    tiny_model: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch, free: float | None, fits: bool
) -> None:
    pair = LoadedPair(name="tiny", target=tiny_model(), draft=tiny_model(layers=1))
    sizes = [cache_bytes(model, batch_size=2, tokens=64) for model in (pair.target, pair.draft_model)]
    needed = 5 * sum(size for size in sizes if size is not None)
    monkeypatch.setattr(arm_caches, "free_bytes", lambda device: None if free is None else int(free * needed))
    assert caches_fit(pair, arms=5, batch_size=2, tokens=64) is fits


def test_weights_count_once_where_both_models_share_them(tiny_model: Callable[..., LoadedModel]) -> None:
    target, draft = tiny_model(), tiny_model(layers=1)
    own = [
        sum(weight.numel() * weight.element_size() for weight in model.model.parameters()) for model in (target, draft)
    ]
    assert weight_bytes(LoadedPair(name="tiny", target=target, draft=draft)) == sum(own)
    assert weight_bytes(LoadedPair(name="tiny", target=target, draft=target)) == own[0]


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
def test_weights_and_caches_may_take_what_the_run_may(
    tiny_model: Callable[..., LoadedModel], monkeypatch: pytest.MonkeyPatch, spare: int, fits: bool
) -> None:
    pair = LoadedPair(name="tiny", target=tiny_model(), draft=tiny_model(layers=1))
    sizes = [cache_bytes(model, batch_size=2, tokens=64) for model in pair.models]
    needed = weight_bytes(pair) + 5 * sum(size for size in sizes if size is not None)
    monkeypatch.setattr(arm_caches, "free_bytes", lambda device: None)
    assert caches_fit(pair, arms=5, batch_size=2, tokens=64, limit=needed + spare) is fits


def test_this_host_has_memory() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is None or free > 1 << 20
    assert free_bytes(torch.device("meta")) is None
