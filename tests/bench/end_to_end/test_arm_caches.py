"""Bytes of caches by hand, and what is done where they do not fit."""

from __future__ import annotations

import pytest
import torch

from specgauge.bench.cache.cache import RowLayer, forward
from specgauge.bench.end_to_end import arm_runs as arm_caches
from specgauge.bench.end_to_end.arm_runs import cache_bytes, caches_fit, free_bytes, weight_bytes
from specgauge.bench.models.pair import LoadedPair
from tests.bench.decoded import Make


def test_bytes_are_those_of_a_cache_that_was_written(tiny_model: Make) -> None:
    model = tiny_model()
    cache = model.new_cache(batch_size=3, tokens=100)
    with torch.inference_mode():
        forward(model.model, cache, torch.ones(3, 2, dtype=torch.long))
    layers = [layer for layer in cache.layers if isinstance(layer, RowLayer)]
    written = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
    wanted = sum(tensor.numel() * tensor.element_size() for tensor in written if tensor is not None)
    assert wanted > 0
    assert cache_bytes(model, batch_size=3, tokens=100) == wanted


@pytest.mark.parametrize(
    ("free", "spare", "fits"),
    [(None, None, True), (2.0, None, True), (1.99, None, False), (None, 0, True), (None, -1, False)],
)
def test_caches_may_take_half_of_what_is_free_and_with_the_weights_what_the_run_may(
    tiny_model: Make, monkeypatch: pytest.MonkeyPatch, free: float | None, spare: int | None, fits: bool
) -> None:
    pair = LoadedPair(name="tiny", target=tiny_model(), draft=tiny_model(layers=1))
    needed = 5 * sum(cache_bytes(model, batch_size=2, tokens=64) or 0 for model in pair.models)
    monkeypatch.setattr(arm_caches, "free_bytes", lambda device: None if free is None else int(free * needed))
    limit = None if spare is None else weight_bytes(pair) + needed + spare
    assert caches_fit(pair, arms=5, batch_size=2, tokens=64, limit=limit) is fits


def test_weights_count_once_where_both_models_share_them(tiny_model: Make) -> None:
    target, draft = tiny_model(), tiny_model(layers=1)
    own = [
        sum(weight.numel() * weight.element_size() for weight in model.model.parameters()) for model in (target, draft)
    ]
    assert weight_bytes(LoadedPair(name="tiny", target=target, draft=draft)) == sum(own)
    assert weight_bytes(LoadedPair(name="tiny", target=target, draft=target)) == own[0]


def test_this_host_has_memory() -> None:
    free = free_bytes(torch.device("cpu"))
    assert free is None or free > 1 << 20
    assert free_bytes(torch.device("meta")) is None
