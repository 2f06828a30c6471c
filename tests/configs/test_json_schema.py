from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from specgauge.configs.loader import config_to_yaml, json_schema, load_config, shipped_configs, shipped_text
from specgauge.configs.schema import Config
from specgauge.configs.yaml_reader import Source, read_yaml
from tests.configs.test_bad_configs import ALL, DRAFTS, KEYS, KINDS, SEARCHES, SIZES, VALUES
from tests.configs.texts import write

SCHEMA = json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
NEEDS_MORE_THAN_A_SCHEMA = {
    "descending range",
    "range without step",
    "range out of bounds",
    "range of too many",
    "blocks crossed by default",
    "texts shorter than a round",
    "same pair twice",
    "same sampling twice",
    "embedded from a gguf file",
    "two placements",
    "format of embedded prompts",
    "infinite",
    "not a number",
    "draft: {ngram: {longest: 2, shortest: 3}}",
    "grid: {gamma: {max: 6, search: adaptive}, gamma_search: all}",
    "draft: {}",
    "memory: 0.1B",
    "memory: 8e9",
}


def test_it_is_valid_2020_12() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    VALIDATOR.check_schema(SCHEMA)


@pytest.mark.parametrize("name", shipped_configs())
def test_it_accepts_what_ships_written_and_resolved_which_loads_again(name: str, tmp_path: Path) -> None:
    VALIDATOR.validate(read_yaml(shipped_text(name), Source(name)).value)
    config = load_config(name, require_files=True)
    VALIDATOR.validate(config.model_dump(mode="json"))
    assert load_config(write(tmp_path, config_to_yaml(config))) == config


@pytest.mark.parametrize("gamma", [4, [1, 2], "1:8:2", {"from": 1, "to": 5, "step": 2}])
def test_it_accepts_shorthands_as_the_loader_does(gamma: object, tmp_path: Path) -> None:
    written = {
        "name": "x",
        "pairs": [
            {"name": "a", "target": "org/name", "draft": {"model": "org/small", "quantization": {"bits": 4}}},
            {"name": "b", "target": {"model": "o/m", "dtype": ["float32", "float16"]}, "draft": "o/s"},
        ],
        "draft_sampling": "same",
        "acceptance_rule": ["ratio", "match"],
        "grid": {
            "gamma": gamma,
            "batch_size": [1, 2],
            "exclude": [{"pair": "a", "batch_size": 2}, {"mode": ["eager"], "batch_size": 2}],
        },
        "mode": ["eager", "compile"],
        "threads": [1, 2],
        "precision": {"max_seconds": None},
        "limits": {"memory": "8 GiB", "run_seconds": 60},
    }
    VALIDATOR.validate(written)
    config = Config.model_validate(written)
    assert load_config(write(tmp_path, config_to_yaml(config))) == config


CASES = [
    *KEYS, *KINDS, *VALUES, *(f"draft: {one}" for one in DRAFTS), *(f"grid: {one}" for one in SEARCHES),
    *(f"memory: {one}" for one in SIZES),
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_rejects_misspelt_keys_and_wrong_values(name: str) -> None:
    written = read_yaml(ALL[name][0], Source("file.yaml")).value
    assert VALIDATOR.is_valid(written) == (name in NEEDS_MORE_THAN_A_SCHEMA)


def test_every_field_has_a_title_and_a_description() -> None:
    sections = [SCHEMA, *(section for name, section in SCHEMA["$defs"].items() if name != "JsonValue")]
    assert len(sections) == 18
    for section in sections:
        assert section["description"]
        assert section["additionalProperties"] is False
        for name, field in section["properties"].items():
            assert field.get("title") or "$ref" in field or "anyOf" in field, name
            assert field["description"], name
