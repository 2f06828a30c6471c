"""Models and drafts, as written, kept and set: names alone, mappings, lookups and the target's first layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specgauge.configs.loader import config_to_yaml, load_config
from specgauge.configs.pairs import LayersDraft, ModelConfig, NgramConfig, NgramDraft, PairConfig
from specgauge.configs.yaml_reader import Source, read_yaml
from tests.configs.test_json_schema import VALIDATOR
from tests.configs.texts import write


def text(draft: str) -> str:
    return f"name: x\npairs:\n  - name: a\n    target: embedded\n    draft: {draft}\n"


@pytest.mark.parametrize(
    ("draft", "kept"),
    [
        ("ngram", NgramDraft()),
        ("{ngram: {}}", NgramDraft()),
        ("{ngram: {longest: 5, shortest: 2}}", NgramDraft(ngram=NgramConfig(longest=5, shortest=2))),
        ("{layers: 8}", LayersDraft(layers=8)),
        ("ngrm", ModelConfig(model="ngrm")),
        ("./ngram", ModelConfig(model="./ngram")),
        ("{model: ngram}", ModelConfig(model="ngram")),
        ("{model: embedded, dtype: float32}", ModelConfig(model="embedded", dtype="float32")),
    ],
)
def test_every_form_is_kept_in_full_and_comes_back(tmp_path: Path, draft: str, kept: Any) -> None:
    config = load_config(write(tmp_path, text(draft)))
    assert config.pairs[0].draft == kept
    assert load_config(write(tmp_path, config_to_yaml(config))) == config
    VALIDATOR.validate(read_yaml(text(draft), Source("x")).value)
    VALIDATOR.validate(config.model_dump(mode="json"))
    assert config.pairs[0].draft == PairConfig(name="a", target=ModelConfig(model="embedded"), draft=kept).draft


def test_every_draft_has_a_label() -> None:
    lookup, layers = NgramDraft(), [LayersDraft(layers=count) for count in (1, 8)]
    assert [ModelConfig(model="org/small").label, lookup.label, *(draft.label for draft in layers)] == [
        "org/small", "lookups of 3 down to 1 tokens", "the target's first 1 layer", "the target's first 8 layers",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("device", device) for device in ("auto", "cpu", "cuda", "cuda:0", "cuda:15")),
        *(("device_map", one) for one in ("auto", {"": 0}, {"lm_head": "cpu", "model": 1})),
        ("quantization", {"quant_method": "fp8", "skip": ["lm_head"], "threshold": 6.0, "nested": {"a": None}}),
    ],
)
def test_placements_and_quantization_are_handed_on(field: str, value: object) -> None:
    assert getattr(ModelConfig.model_validate({"model": "o/m", field: value}), field) == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("quantization", one) for one in ({}, {"a": float("nan")}, {1: 2}, {"a": object()}, "int8", ["a"])),
        *(("device_map", one) for one in ("", {}, {"a": 0.5}, {"a": None}, {1: 0}, 0)),
        *((field, "a\nb") for field in ("revision", "gguf_file", "attention", "device_map")),
        ("device", "cuda:0\n"),
    ],
)
def test_what_strict_json_or_one_line_cannot_hold_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelConfig.model_validate({"model": "o/m", field: value})
    assert {detail["loc"][0] for detail in caught.value.errors()} == {field}
