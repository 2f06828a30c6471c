"""Sections and what holds between them: defaults, γ written as a search, what is decoded end to end, contexts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specgauge.configs.errors import ConfigError
from specgauge.configs.loader import config_to_yaml, load_config
from specgauge.configs.pairs import ModelConfig
from specgauge.configs.schema import Config, SamplingConfig, ValidateConfig, WorkloadConfig, check_context
from specgauge.model.policies.tuning import MAKERS
from tests.configs.texts import MINIMAL, write

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
