from __future__ import annotations

import pytest
from pydantic import ValidationError

from specgauge.configs.pairs import ModelConfig


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:15"])
def test_devices(device: str) -> None:
    assert ModelConfig(model="o/m", device=device).device == device


@pytest.mark.parametrize("device_map", ["auto", {"": 0}, {"lm_head": "cpu", "model": 1}])
def test_device_maps_are_handed_on(device_map: str | dict[str, int | str]) -> None:
    assert ModelConfig(model="o/m", device_map=device_map).device_map == device_map


def test_quantization_is_handed_on() -> None:
    mapping = {"quant_method": "fp8", "skip": ["lm_head"], "threshold": 6.0, "nested": {"a": None}}
    assert ModelConfig.model_validate({"model": "o/m", "quantization": mapping}).quantization == mapping


@pytest.mark.parametrize("mapping", [{}, {"a": float("nan")}, {1: 2}, {"a": object()}, "int8", ["a"]])
def test_quantization_that_strict_json_cannot_hold_is_refused(mapping: object) -> None:
    with pytest.raises(ValidationError, match="allowed: a mapping as transformers'"):
        ModelConfig.model_validate({"model": "o/m", "quantization": mapping})


@pytest.mark.parametrize("field", ["revision", "gguf_file", "attention"])
def test_text_with_a_line_break_is_refused(field: str) -> None:
    with pytest.raises(ValidationError, match="allowed: "):
        ModelConfig.model_validate({"model": "o/m", field: "a\nb"})
