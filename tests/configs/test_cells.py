from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.configs.variants import CellRule, Place, is_measured
from specgauge.configs.loader import load_config
from tests.configs.texts import error_of, write

TEXT = """\
name: x
pairs:
  - {name: qwen, target: {model: o/m, dtype: [bfloat16, float32]}, draft: o/s}
  - {name: small, target: embedded, draft: ngram, mode: compile}
grid:
  batch_size: [1, 4, 8]
  context: [64, 128]
"""


def measured(folder: Path, rules: str) -> set[tuple[str, int, int]]:
    config = load_config(write(folder, TEXT + rules))
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
    Place,
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
    place: Place, include: list[CellRule], exclude: list[CellRule]
) -> None:
    kept = is_measured(place, include, exclude)
    assert is_measured(place, [], [])
    assert kept == (is_measured(place, include, []) and is_measured(place, [], exclude))
    if any(rule.matches(place) for rule in exclude):
        assert not kept


@pytest.mark.parametrize(
    ("rules", "line"),
    [
        ("  exclude:\n    - {batch_size: 3}\n", "file.yaml:9: grid.exclude[0].batch_size: found 3, allowed: values of"
         " grid.batch_size, which are 1, 4, 8; the nearest is 4"),
        ("  include: [{context: [64, 100]}]\n", "file.yaml:8: grid.include[0].context: found 100, allowed: values of"
         " grid.context, which are 64, 128; the nearest is 128"),
        ("  exclude: [{pair: qwem}]\n", "file.yaml:8: grid.exclude[0].pair: found 'qwem', allowed: pairs of this"
         " configuration, which are qwen-bfloat16, qwen-float32, small; the nearest is qwen-float32"),
        ("  exclude: [{mode: cuda_graph}]\n", "file.yaml:8: grid.exclude[0].mode: found 'cuda_graph', allowed: modes of"
         " this configuration, which are eager, compile; the nearest is eager"),
        ("  exclude:\n    - {context: 64}\n    - {pair: small, mode: eager}\n", "file.yaml:10: grid.exclude[1]: found"
         " pair small, mode eager, allowed: a rule that some cell matches; qwen-bfloat16 runs in mode eager,"
         " qwen-float32 runs in mode eager, small runs in mode compile"),
        ("  exclude: [{batch_size: 1}, {batch_size: [4, 8]}]\n", "file.yaml:8: grid.exclude: found rules that leave no"
         " cell, allowed: rules that leave at least one"),
        ("  include: [{}]\n", "file.yaml:8: grid.include[0]: found no value, allowed: one for at least one of pair,"
         " mode, batch_size, context"),
        ("  include: [{contex: 64}]\n", "file.yaml:8: unknown key 'contex' in grid.include[0]; did you mean 'context'?"
         " allowed: pair, mode, batch_size, context"),
        ("  include: {context: 64}\n", "file.yaml:8: grid.include: found a mapping, allowed: a list, each a mapping"
         " with the keys pair, mode, batch_size, context"),
        ("  include: [{pair: []}]\n", "file.yaml:8: grid.include[0].pair: found an empty list, allowed: at least one"
         " value: a name for files: up to 100 of A-Z a-z 0-9 . _ - with no -- in it and no . or - at an end, a list of"
         " these, or null (any)"),
        ("  include: [{context: 64}]\nverify: {context: 128}\n", "file.yaml:9: verify: found 'no cell to decode',"
         " allowed: batch sizes and contexts of which grid.include and grid.exclude leave a cell"),
    ],
)  # fmt: skip
def test_rules_that_match_nothing_are_named(rules: str, line: str, tmp_path: Path) -> None:
    assert error_of(write(tmp_path, TEXT + rules)) == line
