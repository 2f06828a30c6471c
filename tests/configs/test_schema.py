from __future__ import annotations

import pytest
from pydantic import ValidationError

from specgauge.configs.pairs import ModelConfig
from specgauge.configs.schema import SamplingConfig
from specgauge.configs.schema import Config

PAIR = {"name": "a", "target": "embedded", "draft": {"model": "org/name"}}


def config(**fields: object) -> Config:
    return Config.model_validate({"name": "x", "pairs": [PAIR], **fields})


def test_defaults_are_filled_in_and_shorthands_resolved() -> None:
    made = config(grid={"gamma": "1:3"}, draft_sampling="greedy")
    assert made.pairs[0].target == ModelConfig(model="embedded")
    assert made.pairs[0].draft == ModelConfig(model="org/name", dtype="auto")
    assert made.grid.gamma == (1, 2, 3)
    assert made.grid.batch_size == (1,)
    assert made.draft_sampling == ("greedy",)
    assert made.acceptance_rule == ("ratio",)
    assert made.sampling == (SamplingConfig(name="greedy", temperature=0.0),)
    assert made.precision.max_seconds == 120.0


def test_several_words_keep_the_rules_order_without_repeats() -> None:
    assert config(acceptance_rule=["match", "ratio", "match"]).acceptance_rule == ("ratio", "match")


@pytest.mark.parametrize("mode", ["eager", "compile", "cuda_graph"])
def test_execution_modes(mode: str) -> None:
    assert config().mode == "eager"
    assert config(mode=mode).mode == mode


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().seed = 1


@pytest.mark.parametrize("name", ["a", "A_b-1.5", "_x", "a" * 100, "qwen2.5-7b-with-0.5b"])
def test_names_fit_for_files(name: str) -> None:
    assert config(name=name).name == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-a", "a-", "a.", "a b", "a/b", "a\\b", "a\n", "ä", "a--b", "a" * 101]
)
def test_names_unfit_for_files(name: str) -> None:
    with pytest.raises(ValidationError, match="a name for files"):
        config(name=name)


def test_an_embedded_target_may_have_a_draft_from_elsewhere() -> None:
    assert config().pairs[0].draft == ModelConfig(model="org/name")


def test_messages_read_well_without_a_file() -> None:
    with pytest.raises(ValidationError) as caught:
        config(seed=-1)
    (detail,) = caught.value.errors()
    assert detail["msg"] == "found -1, allowed: an integer from 0 to 9223372036854775807"
