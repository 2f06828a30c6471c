"""Variants of pairs that lists make, and rules that take cells out of the grid."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specgauge.configs.fields import is_name
from specgauge.configs.loader import load_config
from specgauge.configs.pairs import ModelConfig, NgramDraft, PairConfig
from specgauge.configs.schema import Config
from specgauge.configs.variants import CellRule, GridPoint, is_measured, spread
from tests.configs.texts import RULED, VARIANTS, write

TWO = VARIANTS + "  - {name: e, target: embedded, draft: ngram}\n"


def pairs(folder: Path, text: str, *options: str) -> list[tuple[str, str, int | None, str]]:
    config = load_config(write(folder, text), options)
    return [(pair.name, config.mode_of(pair), config.threads_of(pair), pair.target.dtype) for pair in config.pairs]


def test_several_dtypes_are_several_pairs(tmp_path: Path) -> None:
    assert pairs(tmp_path, TWO) == [
        ("qwen-bfloat16", "eager", None, "bfloat16"),
        ("qwen-float32", "eager", None, "float32"),
        ("e", "eager", None, "auto"),
    ]


def test_lists_multiply_and_only_what_varies_is_named(tmp_path: Path) -> None:
    assert pairs(tmp_path, TWO, "mode=[compile, eager]", "threads=[2]") == [
        ("qwen-bfloat16-compile", "compile", 2, "bfloat16"),
        ("qwen-bfloat16-eager", "eager", 2, "bfloat16"),
        ("qwen-float32-compile", "compile", 2, "float32"),
        ("qwen-float32-eager", "eager", 2, "float32"),
        ("e-compile", "compile", 2, "auto"),
        ("e-eager", "eager", 2, "auto"),
    ]


def test_a_pair_may_have_a_mode_and_threads_of_its_own(tmp_path: Path) -> None:
    options = ["threads=[1, 4]", "mode=compile", "pairs[0].target=o/m", "pairs[0].threads=3", "pairs[1].mode=eager"]
    assert pairs(tmp_path, TWO, *options) == [
        ("qwen", "compile", 3, "auto"),
        ("e-threads-1", "eager", 1, "auto"),
        ("e-threads-4", "eager", 4, "auto"),
    ]


def test_a_pairs_own_list_takes_the_place_of_the_configurations(tmp_path: Path) -> None:
    options = [
        "mode=[eager, compile]",
        "pairs[0].target=o/m",
        "pairs[0].mode=[eager, cuda_graph]",
        "pairs[1].mode=null",
    ]
    assert [name for name, *_ in pairs(tmp_path, TWO, *options)] == [
        "qwen-eager", "qwen-cuda_graph", "e-eager", "e-compile",
    ]  # fmt: skip


def test_what_is_the_drafts_own_is_marked(tmp_path: Path) -> None:
    options = [
        "pairs[0].target.attention=[sdpa, org/fa3]", "pairs[0].target.dtype=float32",
        "pairs[0].draft={model: o/s, dtype: [float32, float16]}",
    ]  # fmt: skip
    config = load_config(write(tmp_path, VARIANTS), options)
    found = [(p.name, p.target.attention, p.draft.dtype) for p in config.pairs if isinstance(p.draft, ModelConfig)]
    assert found == [
        ("qwen-sdpa-draft-float32", "sdpa", "float32"),
        ("qwen-sdpa-draft-float16", "sdpa", "float16"),
        ("qwen-org_fa3-draft-float32", "org/fa3", "float32"),
        ("qwen-org_fa3-draft-float16", "org/fa3", "float16"),
    ]


def test_a_list_of_one_value_is_that_value(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, VARIANTS), ["pairs[0].target.dtype=[float32, float32]", "mode=[compile]"])
    assert (config.pairs[0].name, config.pairs[0].target.dtype, config.mode) == ("qwen", "float32", "compile")
    assert config.pairs[0].mode is None


def test_rules_that_name_a_pair_mean_all_its_variants(tmp_path: Path) -> None:
    options = ["grid.exclude=[{pair: qwen, batch_size: 2}, {pair: [e, qwen-float32]}]", "grid.batch_size=[1, 2]"]
    exclude = load_config(write(tmp_path, TWO), options).grid.exclude
    assert [rule.pair for rule in exclude] == [("qwen-bfloat16", "qwen-float32"), ("e", "qwen-float32")]


def test_pairs_made_in_python_have_variants_too() -> None:
    pair = PairConfig(name="p", target=ModelConfig(model="embedded"), draft=NgramDraft())
    config = Config.model_validate({"name": "x", "pairs": [pair], "mode": ["eager", "compile"]})
    assert [(one.name, one.mode, one.target, one.draft) for one in config.pairs] == [
        ("p-eager", "eager", pair.target, pair.draft),
        ("p-compile", "compile", pair.target, pair.draft),
    ]
    with pytest.raises(ValidationError, match="two would be p-a_b"):
        Config.model_validate(
            {"name": "x", "pairs": [{"name": "p", "target": {"model": "m", "attention": ["a:b", "a|b"]}, "draft": "m"}]}
        )


def test_a_model_alone_has_no_variants() -> None:
    assert ModelConfig.model_validate({"model": "m", "dtype": ["float32"]}).dtype == "float32"
    with pytest.raises(
        ValidationError, match="expected one value, where no pair of a configuration has its variants, got a list"
    ):
        ModelConfig.model_validate({"model": "m", "dtype": ["float32", "float16"]})


AXES = st.lists(st.integers(1, 30), min_size=1, max_size=4)


def _only(value: Any) -> Any:
    """The value that a field resolves to: of a list that made no variants, its one value."""
    return value[0] if isinstance(value, list) else value


@given(AXES, AXES.map(lambda values: [f"a{value}" for value in values]))
def test_every_combination_once_under_a_name_of_its_own(threads: list[int], attentions: list[str]) -> None:
    written: dict[str, Any] = {
        "pairs": [{"name": "p", "target": {"model": "m", "attention": attentions}, "draft": "d"}],
        "threads": threads,
    }
    found = spread(written)
    combinations = [
        (_only(pair["target"]["attention"]), _only(pair.get("threads", found.value["threads"])))
        for pair in found.value["pairs"]
    ]
    assert sorted(combinations) == sorted(product(set(attentions), set(threads)))
    names = [pair["name"] for pair in found.value["pairs"]]
    assert len(set(names)) == len(names)
    assert all(is_name(name) for name in names)
    assert not found.errors
    assert spread(found.value).value == found.value


def measured(folder: Path, rules: str) -> set[tuple[str, int, int]]:
    config = load_config(write(folder, RULED + rules))
    return {(p.pair, p.batch_size, p.context) for p in config.places() if config.is_measured(p)}


GRID = {(pair, b, s) for pair in ("qwen-bfloat16", "qwen-float32", "small") for b in (1, 4, 8) for s in (64, 128)}


def test_without_rules_every_combination_is_measured(tmp_path: Path) -> None:
    assert measured(tmp_path, "") == GRID


def test_a_cell_matches_some_rule_of_include_and_none_of_exclude(tmp_path: Path) -> None:
    rules = "  include: [{batch_size: 1}, {mode: compile, context: 64}]\n  exclude: [{pair: qwen-float32}]\n"
    assert measured(tmp_path, rules) == {
        ("qwen-bfloat16", 1, 64), ("qwen-bfloat16", 1, 128), ("small", 1, 64), ("small", 1, 128), ("small", 4, 64),
        ("small", 8, 64),
    }  # fmt: skip


def test_values_are_one_several_or_a_range_and_a_pair_is_all_its_variants(tmp_path: Path) -> None:
    rules = "  exclude: [{pair: [qwen, small], batch_size: [4, 8], context: '64:128:64'}]\n"
    assert measured(tmp_path, rules) == {place for place in GRID if place[1] == 1}


PLACES = st.builds(
    GridPoint,
    pair=st.sampled_from("ab"),
    mode=st.sampled_from(["eager", "compile"]),
    batch_size=st.integers(1, 3),
    context=st.integers(1, 3),
)
RULES = st.lists(
    st.builds(
        CellRule,
        pair=st.sampled_from(["a", ["a", "b"]]),
        batch_size=st.none() | st.integers(1, 3),
        context=st.none() | st.lists(st.integers(1, 3), min_size=1),
    ),
    max_size=3,
)


@given(PLACES, RULES, RULES)
def test_exclusion_wins_and_inclusion_only_narrows(
    place: GridPoint, include: list[CellRule], exclude: list[CellRule]
) -> None:
    kept = is_measured(place, include, exclude)
    assert is_measured(place, [], [])
    assert kept == (is_measured(place, include, []) and is_measured(place, [], exclude))
    if any(rule.matches(place) for rule in exclude):
        assert not kept
