"""γ written as a search: 1 to max with a field that says so, in the file, in config.yaml and in the JSON Schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from specgauge.configs.schema import GridConfig
from specgauge.configs.errors import ConfigError
from specgauge.configs.loader import config_hash, config_to_yaml, json_schema, load_config
from specgauge.configs.schema import Config

HEAD = "name: x\npairs: [{name: p, target: embedded, draft: embedded}]\ngrid:\n"


def written(tmp_path: Path, grid: str) -> Path:
    path = tmp_path / "x.yaml"
    path.write_text(f"{HEAD}  {grid}\n")
    return path


@pytest.mark.parametrize(
    ("grid", "overrides", "gammas", "how"),
    [
        ("gamma: {max: 16, search: adaptive}", (), tuple(range(1, 17)), "adaptive"),
        ("gamma: {search: adaptive, max: 1}", (), (1,), "adaptive"),
        ("gamma: 1:3", (), (1, 2, 3), "all"),
        ("gamma: {from: 1, to: 3}", (), (1, 2, 3), "all"),
        ("gamma_search: adaptive", (), (1, 2, 3, 4, 5, 6), "adaptive"),
        ("{gamma: [2, 4, 8], gamma_search: adaptive}", (), (2, 4, 8), "adaptive"),
        ("{gamma: {max: 3, search: adaptive}, gamma_search: adaptive}", (), (1, 2, 3), "adaptive"),
        ("gamma: {max: 16, search: adaptive}", ("grid.gamma=1:2",), (1, 2), "all"),
        ("gamma: {max: 16, search: adaptive}", ("grid.gamma.max=2",), (1, 2), "adaptive"),
        ("gamma: 1:3", ("grid.gamma={max: 2, search: adaptive}",), (1, 2), "adaptive"),
    ],
)
def test_each_way_to_write_it(
    tmp_path: Path, grid: str, overrides: tuple[str, ...], gammas: tuple[int, ...], how: str
) -> None:
    config = load_config(written(tmp_path, grid), overrides)
    assert (config.grid.gamma, config.grid.gamma_search) == (gammas, how)
    again = tmp_path / "config.yaml"
    again.write_text(config_to_yaml(config))
    assert load_config(again) == config


def test_a_search_is_another_configuration_than_every_gamma(tmp_path: Path) -> None:
    searched, every = (
        load_config(written(tmp_path, f"gamma: {gamma}")) for gamma in ("{max: 6, search: adaptive}", "1:6")
    )
    assert searched != every
    assert config_hash(searched) != config_hash(every)


@pytest.mark.parametrize(
    ("grid", "line"),
    [
        (
            "gamma: {max: 16, search: adaptve}",
            "grid.gamma.search: found 'adaptve', allowed: adaptive (a list or a range has every value measured)",
        ),
        ("gamma: {max: 100, search: adaptive}", "grid.gamma.max: found 100, allowed: an integer from 1 to 64"),
        ("gamma: {max: true, search: adaptive}", "grid.gamma.max: found true, allowed: an integer from 1 to 64"),
        (
            "gamma: {max: 16}",
            "missing key 'search' in grid.gamma; it takes adaptive (a list or a range has every value measured)",
        ),
        ("gamma: {search: adaptive}", "missing key 'max' in grid.gamma; it takes an integer from 1 to 64"),
        (
            "gamma: {max: 16, serch: adaptive}",
            "unknown key 'serch' in grid.gamma; did you mean 'search'? allowed: max, search",
        ),
        (
            "gamma: {max: 16, search: adaptive, step: 2}",
            "unknown key 'step' in grid.gamma, allowed: max, search",
        ),
        (
            "{gamma: {max: 6, search: adaptive}, gamma_search: all}",
            "grid.gamma_search: found 'all', allowed: adaptive, since gamma is written as a search",
        ),
        ("gamma_search: some", "grid.gamma_search: found 'some', allowed: all | adaptive"),
        (
            "gamma: six",
            "grid.gamma: found 'six', allowed: an integer from 1 to 64, a list of these, or a range such as 1:8 or "
            "1:8:2, or {max: 16, search: adaptive}",
        ),
    ],
)
def test_each_mistake_is_one_line(tmp_path: Path, grid: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, grid))
    assert str(caught.value) == f"{tmp_path / 'x.yaml'}:4: {line}"


@pytest.mark.parametrize(
    ("gamma", "valid"),
    [
        ({"max": 16, "search": "adaptive"}, True),
        ({"max": 16, "search": "all"}, False),
        ({"max": 0, "search": "adaptive"}, False),
        ({"max": 16}, False),
        ({"from": 1, "to": 6, "search": "adaptive"}, False),
        ({"from": 1, "to": 6}, True),
    ],
)
def test_the_json_schema_knows_it(gamma: dict[str, Any], valid: bool) -> None:
    config: dict[str, Any] = {"name": "x", "pairs": [{"name": "p", "target": "embedded", "draft": "embedded"}]}
    config |= {"grid": {"gamma": gamma}}
    assert jsonschema.Draft202012Validator(json_schema()).is_valid(config) is valid
    if valid:
        Config.model_validate(config)


def test_a_grid_that_is_no_mapping_is_left_to_others() -> None:
    with pytest.raises(ValueError, match="valid dictionary or instance of GridConfig"):
        GridConfig.model_validate([1])
