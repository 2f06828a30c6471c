"""Sections: shorthands of fields, defaults, γ as a search, what is decoded end to end, contexts; the JSON schema."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specgauge.configs.errors import ConfigError
from specgauge.configs.fields import LARGEST_GAMMA, is_name
from specgauge.configs.loader import config_to_yaml, load_config
from specgauge.configs.pairs import ModelConfig
from specgauge.configs.schema import (
    Config,
    GridConfig,
    LimitsConfig,
    SamplingConfig,
    ValidateConfig,
    WorkloadConfig,
    check_context,
)
from specgauge.configs.variants import part_of_name
from specgauge.model.policies.tuning import MAKERS
from tests.configs.texts import MINIMAL, SCHEMA, VALIDATOR, write

PAIR = {"name": "a", "target": "embedded", "draft": {"model": "org/name"}}


def config(**fields: object) -> Config:
    return Config.model_validate({"name": "x", "pairs": [PAIR], **fields})


def test_defaults_are_filled_in_and_shorthands_resolved() -> None:
    made = config(grid={"gamma": "1:3"}, draft_sampling="greedy")
    assert made.pairs[0].target == ModelConfig(model="embedded")
    assert made.pairs[0].draft == ModelConfig(model="org/name", dtype="auto")
    assert (made.grid.gamma, made.grid.batch_size) == ((1, 2, 3), (1,))
    assert (made.draft_sampling, made.acceptance_rule) == (("greedy",), ("ratio",))
    assert made.sampling == (SamplingConfig(name="greedy", temperature=0.0),)
    assert (made.mode, made.validation, made.precision.max_seconds) == ("eager", None, 120.0)
    assert (made.limits.run_seconds, made.limits.memory) == (None, None)
    assert WorkloadConfig(prompts="mine.json", format="sharegpt").format == "sharegpt"


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().seed = 1


@pytest.mark.parametrize(
    ("grid", "overrides", "gammas", "how"),
    [
        ("gamma: {max: 16, search: adaptive}", (), tuple(range(1, 17)), "adaptive"),
        ("gamma: {search: adaptive, max: 1}", (), (1,), "adaptive"),
        ("gamma: 1:3", (), (1, 2, 3), "all"),
        ("gamma_search: adaptive", (), (1, 2, 3, 4, 5, 6), "adaptive"),
        ("{gamma: [2, 4, 8], gamma_search: adaptive}", (), (2, 4, 8), "adaptive"),
        ("{gamma: {max: 3, search: adaptive}, gamma_search: adaptive}", (), (1, 2, 3), "adaptive"),
        ("gamma: {max: 16, search: adaptive}", ("grid.gamma=1:2",), (1, 2), "all"),
        ("gamma: {max: 16, search: adaptive}", ("grid.gamma.max=2",), (1, 2), "adaptive"),
        ("gamma: 1:3", ("grid.gamma={max: 2, search: adaptive}",), (1, 2), "adaptive"),
    ],
)
def test_each_way_to_write_a_search(
    tmp_path: Path, grid: str, overrides: tuple[str, ...], gammas: tuple[int, ...], how: str
) -> None:
    found = load_config(write(tmp_path, f"{MINIMAL}grid:\n  {grid}\n"), overrides)
    assert (found.grid.gamma, found.grid.gamma_search) == (gammas, how)
    assert load_config(write(tmp_path, config_to_yaml(found), "config.yaml")) == found


SERVED = "name: s\npairs: [{name: a, engine: {base_url: 'http://h:1', gamma: 0}}]\n"


@pytest.mark.parametrize(
    ("grid", "sizes", "how"),
    [
        ("batch_size: {max: 16, search: adaptive}", tuple(range(1, 17)), "adaptive"),
        ("{batch_size: [4, 1, 3], batch_size_search: adaptive}", (1, 3, 4), "adaptive"),
        ("batch_size: 1:3", (1, 2, 3), "all"),
    ],
)
def test_each_way_to_write_a_search_for_batch_sizes(
    tmp_path: Path, grid: str, sizes: tuple[int, ...], how: str
) -> None:
    found = load_config(write(tmp_path, f"{SERVED}grid:\n  {grid}\n"))
    assert (found.grid.batch_size, found.grid.batch_size_search, found.grid.gamma_search) == (sizes, how, "all")
    assert load_config(write(tmp_path, config_to_yaml(found), "config.yaml")) == found


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        ({}, "gamma", "recommended"),
        ({"gamma": "1:3"}, "gamma", (1, 2, 3)),
        ({"gamma": [4, 2]}, "gamma", (2, 4)),
        ({"context": 128}, "context", (128,)),
        ({"batch_size": None}, "batch_size", None),
        ({"acceptance": 1}, "acceptance", 1.0),
        ({"gamma": 2, "acceptance": [0.9, 0]}, "acceptance", (0.9, 0.0)),
        ({"policies": ["renewal", "heuristic", "renewal"]}, "policies", ("heuristic", "renewal")),
        ({"policies": "svip"}, "policies", ("svip",)),
        ({"policies": None}, "policies", None),
    ],
)
def test_what_is_decoded_end_to_end(written: dict[str, Any], field: str, value: object) -> None:
    assert getattr(config(validate=written, grid={"context": 128}).validation, field) == value


def test_nothing_is_decoded_unless_asked() -> None:
    assert load_config("quickstart", ["validate=null"]).validation is None
    assert load_config("quickstart", ["validate={}"]).validation == ValidateConfig()


def test_every_policy_that_is_tuned_may_be_asked_for() -> None:
    made = config(validate={"policies": list(MAKERS.keys() - {"fixed"})})
    assert made.validation is not None
    assert made.validation.policies == tuple(name for name in MAKERS if name != "fixed")
    assert "\n  policies: [heuristic, gammatune, svip, adaedl, ucb, exp3, goodput, renewal]\n" in config_to_yaml(made)


def test_what_follows_a_context_fits_exactly_and_not_with_one_token_more() -> None:
    check_context("m", context=93, tokens=7, max_context=100)
    check_context("m", context=10**9, tokens=65, max_context=None)
    with pytest.raises(ValueError, match=r"^grid\.context: expected at most 93, since 7 .* and m takes 100, got 94;"):
        check_context("m", context=94, tokens=7, max_context=100)
    with pytest.raises(ValueError, match=r"^validate\.context: .* lower it or validate\.max_new_tokens$"):
        check_context("m", context=37, tokens=64, max_context=100, section="validate")


MANY: dict[str, dict[str, Any]] = {
    "pairs: expected at most 1000, variants counted, got 10000": {
        "pairs": [{"name": f"p{number}", "target": "embedded", "draft": "embedded"} for number in range(10_000)]
    },
    "sampling: expected at most 100, got 20000": {
        "sampling": [{"name": f"s{number}", "temperature": 0} for number in range(20_000)]
    },
    "grid: expected at most 100000 points: pairs × batch sizes × contexts, got 400000000": {
        "grid": {"batch_size": [*range(1, 20_001)], "context": [*range(1, 20_001)]}
    },
}


@pytest.mark.parametrize("line", MANY)
def test_counts_have_bounds_that_are_told_at_once(line: str, tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    plain = {"name": "x", "pairs": [{"name": "p", "target": "embedded", "draft": "embedded"}]}
    path.write_text(json.dumps(plain | MANY[line]), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(line)):
        load_config(path)


def gamma(written: Any) -> tuple[int, ...]:
    return GridConfig(gamma=written).gamma


@pytest.mark.parametrize(
    ("written", "values"),
    [
        (4, (4,)),
        ([4, 1, 4, 2], (1, 2, 4)),
        ("1:8:2", (1, 3, 5, 7)),
        ("5:5", (5,)),
        (" 2:3 ", (2, 3)),
        ({"from": 1, "to": 8, "step": 3}, (1, 4, 7)),
        ({"from": 2, "to": 4}, (2, 3, 4)),
        ((3, 2), (2, 3)),
    ],
)
def test_each_way_to_write_an_axis(written: Any, values: tuple[int, ...]) -> None:
    assert gamma(written) == values


def test_the_largest_range_is_a_thousand_values() -> None:
    assert GridConfig.model_validate({"context": "1:1000"}).context == tuple(range(1, 1001))
    with pytest.raises(ValidationError, match="refused"):
        GridConfig.model_validate({"context": "1:1001"})


@given(st.tuples(st.integers(1, 64), st.integers(1, 64), st.integers(1, 70)))
def test_text_and_mapping_mean_the_same_range(bounds: tuple[int, int, int]) -> None:
    first, last, step = bounds
    for written in (f"{first}:{last}:{step}", {"from": first, "to": last, "step": step}):
        if first <= last:
            assert gamma(written) == tuple(range(first, last + 1, step))
        else:
            with pytest.raises(ValidationError, match="refused"):
                gamma(written)


@given(st.text("0123456789:-+ ._ex٣", max_size=12))
def test_any_text_is_a_range_or_refused(text: str) -> None:
    values: tuple[int, ...] | None = None
    places = set()
    try:
        values = gamma(text)
    except ValidationError as error:
        places = {detail["loc"][0] for detail in error.errors()}
    assert places == (set() if values else {"gamma"})
    assert all(1 <= value <= LARGEST_GAMMA for value in values or ())
    assert ":" in text or not values


@pytest.mark.parametrize(
    ("written", "size"),
    [
        ("8GiB", 8 * 2**30), ("8 GiB", 8 * 2**30), ("0.5MiB", 2**19), ("4.1kB", 4100), ("80GB", 80 * 10**9), ("7B", 7),
        (123, 123), (None, None), (f"{1 << 60}B", 1 << 60),
    ],
)  # fmt: skip
def test_memory_is_bytes_or_text_with_a_unit(written: object, size: int | None) -> None:
    assert LimitsConfig.model_validate({"memory": written}).memory == size


@pytest.mark.parametrize("name", ["a", "A_b-1.5", "_x", "a" * 100, "qwen2.5-7b-with-0.5b"])
def test_names_fit_for_files(name: str) -> None:
    assert is_name(name)
    assert SamplingConfig(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-a", "a-", "a.", "a b", "a/b", "a\\b", "a\n", "ä", "a--b", "a" * 101]
)
def test_names_unfit_for_files(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(ValidationError, match=r"name\n.*(string_pattern_mismatch|unprintable)"):
        SamplingConfig(name=name)


@given(st.text("aZ9é /:.-_\n", min_size=1, max_size=30))
def test_any_value_is_a_part_of_a_name(value: str) -> None:
    assert is_name(f"p-{part_of_name(value)}") or part_of_name(value) == "_"


def test_whole_numbers_become_floats_where_a_number_is_meant() -> None:
    setting = SamplingConfig.model_validate({"name": "t", "temperature": 1, "top_p": 1, "top_k": 0})
    assert (setting.temperature, setting.top_p, setting.top_k) == (1.0, 1.0, 0)
    assert isinstance(setting.temperature, float)
    assert str(SamplingConfig(name="t", temperature=-0.0).temperature) == "0.0"


@pytest.mark.parametrize("gamma", [4, [1, 2], "1:8:2", {"from": 1, "to": 5, "step": 2}])
def test_the_schema_accepts_shorthands_as_the_loader_does(gamma: object, tmp_path: Path) -> None:
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


def test_the_schema_is_valid_2020_12_with_a_title_and_a_description_of_every_field() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    VALIDATOR.check_schema(SCHEMA)
    sections = [SCHEMA, *(section for name, section in SCHEMA["$defs"].items() if name != "JsonValue")]
    assert len(sections) == 24
    for section in sections:
        assert section["description"]
        assert section["additionalProperties"] is False
        for name, field in section["properties"].items():
            assert field.get("title") or "$ref" in field or "anyOf" in field, name
            assert field["description"], name


@pytest.mark.parametrize(
    ("confidence", "written", "drawn"), [(0.9, 10, 200), (0.9, 200, 200), (0.95, 1000, 1000), (0.99, 1000, 2000)]
)
def test_ten_replicates_lie_beyond_each_end_of_an_interval(confidence: float, written: int, drawn: int) -> None:
    found = config(precision={"confidence": confidence, "bootstrap_replicates": written})
    assert found.precision.replicates == drawn
