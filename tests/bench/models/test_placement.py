"""Where models lie: devices asked for, maps that are refused, and the same texts from a model that a map has spread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import dispatch_model

from specgauge.bench.models import placement
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.bench.models.placement import check_device_map, device_map_of, devices_of, layout, refuse_offloaded
from tests.bench.decoded import DRAWN, GREEDY, decode
from tests.bench.models.conftest import load

PARTS = ("model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.1", "model.norm", "lm_head")
HERE: dict[str, int | str] = dict.fromkeys(PARTS, "cpu")


@pytest.mark.parametrize("device_map", [HERE, {"": "cpu"}, "auto"], ids=["by module", "whole", "auto"])
def test_a_mapped_model_is_the_model(checkpoint: Path, device_map: Any) -> None:
    whole, mapped = load(checkpoint, device="cpu"), load(checkpoint, device_map=device_map)
    if torch.cuda.is_available() and device_map == "auto":
        mapped = replace(mapped, model=mapped.model.cpu(), device=torch.device("cpu"))
    for settings in (GREEDY, DRAWN):
        assert decode(mapped, whole, settings).texts == decode(whole, whole, settings).texts


def test_hooks_that_hand_activations_on_change_no_text(checkpoint: Path) -> None:
    whole, spread = load(checkpoint, device="cpu"), load(checkpoint, device="cpu")
    model: Any = dispatch_model(spread.model, HERE, main_device="cpu", force_hooks=True)
    assert "forward" in vars(model.model.layers[1])
    for settings in (GREEDY, DRAWN):
        assert decode(replace(spread, model=model), whole, settings).texts == decode(whole, whole, settings).texts


@pytest.mark.parametrize(
    ("device_map", "found"),
    [
        ({"model": "cpu", "lm_head": "disk"}, "2 of 2 offloaded, first 'model' on cpu"),
        ({"model": 0, "lm_head": "cpu"}, "1 of 2 offloaded, first 'lm_head' on cpu"),
        ({"a": "cuda:0", "b": 1, "c": "disk"}, "1 of 3 offloaded, first 'c' on disk"),
        ({"": "disk"}, "1 of 1 offloaded, first '' on disk"),
    ],
)
def test_offloaded_modules_are_refused(device_map: Mapping[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=rf"^m: device_map: expected every .*, got {found}; .* or device: cpu$"):
        refuse_offloaded(device_map, "m")


@pytest.mark.parametrize("device_map", [{}, HERE, {"": 0}, {"model": 0, "lm_head": 1}, {"": torch.device("cuda", 1)}])
def test_maps_that_leave_nothing_behind(device_map: Mapping[str, Any]) -> None:
    refuse_offloaded(device_map, "m")


def test_what_shows_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device_map({"model": 0, "lm_head": "cuda:1"}, "m")
    with pytest.raises(ValueError, match=r"^m: device_map of 'lm_head': device 'cuda:2' was asked for, .*cuda:1$"):
        check_device_map({"model": 0, "lm_head": 2}, "m")
    monkeypatch.setattr(placement, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^m: device_map needs the package accelerate, .*specgauge\[multi-gpu\]"):
        check_device_map("auto", "m")


def test_how_a_model_lies_in_words_and_devices() -> None:
    cpu, first, second = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)
    spread = SimpleNamespace(dtype=torch.bfloat16, hf_device_map={"a": 0, "b": "cuda:1", "c": 1})
    assert device_map_of(spread) == {"a": first, "b": second, "c": second}
    assert devices_of(spread, torch.device("cuda")) == (torch.device("cuda"), second)
    assert layout(spread, first) == "bfloat16 on cuda:0 (1 module), cuda:1 (2 modules)"
    whole = SimpleNamespace(dtype=torch.float32)
    assert (device_map_of(whole), devices_of(whole, cpu), layout(whole, cpu)) == ({}, (cpu,), "float32 on cpu")


def test_the_clock_of_a_pair_waits_for_every_device_of_a_map(tiny_model: Any) -> None:
    target: LoadedModel = tiny_model()
    object.__setattr__(target.model, "hf_device_map", {"model": 0, "lm_head": 1})
    pair = LoadedPair(name="p", target=replace(target, device=torch.device("cuda", 0)), draft=tiny_model())
    assert [str(device) for device in pair.devices] == ["cuda:0", "cuda:1", "cpu"]
