"""Drafts other than a model: lookups and the target's first layers, as written, kept, set and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specgauge.configs.pairs import LayersDraft, NgramConfig, NgramDraft
from specgauge.configs.loader import config_hash, config_to_yaml, json_schema, load_config
from specgauge.configs.pairs import ModelConfig, PairConfig
from specgauge.configs.yaml_reader import Source, read_yaml
from tests.configs.texts import MODEL_KEYS, error_of, write

VALIDATOR = jsonschema.Draft202012Validator(json_schema())
EVERY_KEY = f"{MODEL_KEYS}, ngram, layers"


def text(draft: str) -> str:
    return f"name: x\npairs:\n  - name: a\n    target: embedded\n    draft: {draft}\n"


@pytest.mark.parametrize(
    ("draft", "kept"),
    [
        ("ngram", NgramDraft()),
        ("{ngram: {}}", NgramDraft()),
        ("{ngram: {longest: 4}}", NgramDraft(ngram=NgramConfig(longest=4, shortest=1))),
        ("{ngram: {longest: 5, shortest: 2}}", NgramDraft(ngram=NgramConfig(longest=5, shortest=2))),
        ("{layers: 8}", LayersDraft(layers=8)),
        ("ngrm", ModelConfig(model="ngrm")),
        ("NGRAM", ModelConfig(model="NGRAM")),
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


def test_drafts_change_the_hash(tmp_path: Path) -> None:
    drafts = ["embedded", "ngram", "{ngram: {longest: 2}}", "{layers: 1}", "{layers: 2}"]
    assert len({config_hash(load_config(write(tmp_path, text(draft)))) for draft in drafts}) == len(drafts)


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ("{layer: 8}", f"unknown key 'layer' in pairs[0].draft; did you mean 'layers'? allowed: {EVERY_KEY}"),
        ("{ngrams: {}}", f"unknown key 'ngrams' in pairs[0].draft; did you mean 'ngram'? allowed: {EVERY_KEY}"),
        (
            "{layer: 8, dtype: float32}",
            f"unknown key 'layer' in pairs[0].draft; did you mean 'layers'? allowed: {EVERY_KEY}",
        ),
        ("{layers: 0}", "pairs[0].draft.layers: found 0, allowed: an integer from 1 to 4096"),
        ("{layers: '8'}", "pairs[0].draft.layers: found '8', allowed: an integer from 1 to 4096"),
        ("{layers: 8, depth: 2}", "unknown key 'depth' in pairs[0].draft, allowed: layers"),
        ("{layers: 8, model: embedded}", "pairs[0].draft: found a mapping, allowed: layers alone, without model"),
        ("{ngram: {}, layers: 8}", "pairs[0].draft: found a mapping, allowed: ngram alone, without layers"),
        ("{ngram: 3}", "pairs[0].draft.ngram: found 3, allowed: a mapping with the keys longest, shortest"),
        (
            "{ngram: {longer: 3}}",
            "unknown key 'longer' in pairs[0].draft.ngram; did you mean 'longest'? allowed: longest, shortest",
        ),
        ("{ngram: {longest: 0}}", "pairs[0].draft.ngram.longest: found 0, allowed: an integer from 1 to 64"),
        (
            "{ngram: {longest: 2, shortest: 3}}",
            "pairs[0].draft.ngram.shortest: found 3, allowed: at most longest, which is 2",
        ),
        ("{}", "missing key 'model' in pairs[0].draft; it takes embedded, a hub id or a local directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, draft: str, words: str) -> None:
    assert error_of(write(tmp_path, text(draft))) == f"file.yaml:5: {words}"


def test_a_target_is_a_model(tmp_path: Path) -> None:
    path = write(tmp_path, "name: x\npairs:\n  - name: a\n    draft: embedded\n    target: {layers: 8}\n")
    missing = "missing key 'model' in pairs[0].target; it takes embedded, a hub id or a local directory"
    assert error_of(path) == f"file.yaml:5: {missing} (and 1 more fault)"


def test_a_draft_is_set_on_the_command_line(tmp_path: Path) -> None:
    def draft(written: str, option: str) -> Any:
        return load_config(write(tmp_path, text(written)), [option]).pairs[0].draft

    assert draft("embedded", "pairs[0].draft=ngram") == NgramDraft()
    assert draft("embedded", "pairs[0].draft={layers: 2}") == LayersDraft(layers=2)
    assert draft("ngram", "pairs[0].draft.ngram.longest=5") == NgramDraft(ngram=NgramConfig(longest=5))
    assert draft("{layers: 2}", "pairs[0].draft.layers=3") == LayersDraft(layers=3)
    assert draft("ngram", "pairs[0].draft=org/small") == ModelConfig(model="org/small")
    found = error_of(write(tmp_path, text("embedded")), "pairs[0].draft.layers=2")
    assert found == "file.yaml:5: pairs[0].draft: found a mapping, allowed: layers alone, without model"


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (ModelConfig(model="org/small"), "org/small"),
        (NgramDraft(), "lookups of 3 down to 1 tokens"),
        (LayersDraft(layers=1), "the target's first 1 layer"),
        (LayersDraft(layers=8), "the target's first 8 layers"),
    ],
)
def test_every_draft_has_words(draft: Any, words: str) -> None:
    assert draft.label == words


@pytest.mark.parametrize(
    "draft", [{"layer": 8}, {"layers": 0}, {"ngram": {"longest": 0}}, {"layers": 1, "model": "x"}, []]
)
def test_the_json_schema_refuses_what_the_loader_does(draft: Any) -> None:
    assert not VALIDATOR.is_valid({"name": "x", "pairs": [{"name": "a", "target": "embedded", "draft": draft}]})
