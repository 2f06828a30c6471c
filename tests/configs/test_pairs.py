"""Models, drafts, variants of pairs that lists make, and rules that take cells out of the grid."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specgauge.configs.errors import ConfigError
from specgauge.configs.fields import Dtype, is_name
from specgauge.configs.loader import config_to_yaml, load_config
from specgauge.configs.pairs import LayersDraft, ModelConfig, NgramConfig, NgramDraft, PairConfig, ParallelConfig
from specgauge.configs.schema import Config
from specgauge.configs.yaml_reader import Source, read_yaml
from tests.configs.texts import DRAFT, RULED, VALIDATOR, VARIANTS, write


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
    config = load_config(write(tmp_path, DRAFT % draft))
    assert config.pairs[0].draft == kept
    assert load_config(write(tmp_path, config_to_yaml(config))) == config
    VALIDATOR.validate(read_yaml(DRAFT % draft, Source("x")).value)
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
        ("parallel", ParallelConfig(tensor=4)),
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
        *((field, "a\nb") for field in ("revision", "gguf_file", "device_map")),
        ("device", "cuda:0\n"),
    ],
)
def test_what_strict_json_or_one_line_cannot_hold_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError) as caught:
        ModelConfig.model_validate({"model": "o/m", field: value})
    assert {detail["loc"][0] for detail in caught.value.errors()} == {field}


TWO = VARIANTS + "  - {name: e, target: embedded, draft: ngram}\n"


BOTH_MODES = "mode=[eager, compile]"
PLAIN = "pairs[0].target=o/m"
DTYPES: tuple[Dtype, ...] = ("float32", "float16")


@pytest.mark.parametrize(
    ("options", "made"),
    [
        ([], ["qwen-bfloat16 eager None bfloat16", "qwen-float32 eager None float32", "e eager None auto"]),
        (
            ["mode=[compile, eager]", "threads=[2]"],
            [
                "qwen-bfloat16-compile compile 2 bfloat16",
                "qwen-bfloat16-eager eager 2 bfloat16",
                "qwen-float32-compile compile 2 float32",
                "qwen-float32-eager eager 2 float32",
                "e-compile compile 2 auto",
                "e-eager eager 2 auto",
            ],
        ),
        (
            [PLAIN, "threads=[1, 4]", "mode=compile", "pairs[0].threads=3", "pairs[1].mode=eager"],
            ["qwen compile 3 auto", "e-threads-1 eager 1 auto", "e-threads-4 eager 4 auto"],
        ),
        (
            [PLAIN, BOTH_MODES, "pairs[0].mode=[eager, cuda_graph]", "pairs[1].mode=null"],
            [
                "qwen-eager eager None auto",
                "qwen-cuda_graph cuda_graph None auto",
                "e-eager eager None auto",
                "e-compile compile None auto",
            ],
        ),
        (
            ["pairs[0].target.dtype=[float32, float32]", "mode=[compile]"],
            ["qwen compile None float32", "e compile None auto"],
        ),
    ],
    ids=["dtypes", "lists multiply", "a pair's own values", "a pair's own list", "a list of one value"],
)
def test_lists_make_variants(tmp_path: Path, options: list[str], made: list[str]) -> None:
    config = load_config(write(tmp_path, TWO), options)
    found = [(pair.name, config.mode_of(pair), config.threads_of(pair), pair.target.dtype) for pair in config.pairs]
    assert [" ".join(map(str, one)) for one in found] == made


def test_what_is_the_drafts_own_is_marked(tmp_path: Path) -> None:
    options = ["pairs[0].target.attention=[sdpa, eager]", "pairs[0].draft={model: o/s, dtype: [float32, float16]}"]
    config = load_config(write(tmp_path, VARIANTS.replace("[bfloat16, float32]", "auto")), options)
    assert [f"{pair.name} {pair.target.attention} {pair.draft}" for pair in config.pairs] == [
        f"qwen-{attention}-draft-{dtype} {attention} {ModelConfig(model='o/s', dtype=dtype)}"
        for attention in ("sdpa", "eager")
        for dtype in DTYPES
    ]


def test_pairs_made_in_python_have_variants_too() -> None:
    pair = PairConfig(name="p", target=ModelConfig(model="embedded"), draft=NgramDraft())
    config = Config.model_validate({"name": "x", "pairs": [pair], "mode": ["eager", "compile"]})
    assert [(one.name, one.mode, one.target, one.draft) for one in config.pairs] == [
        ("p-eager", "eager", pair.target, pair.draft),
        ("p-compile", "compile", pair.target, pair.draft),
    ]


def test_accelerators_of_the_executor_make_variants(tmp_path: Path) -> None:
    """Each pair with its own; what is left of the executor's list is its first."""
    kinds = "executor={kind: ray, accelerator_type: [H100, L4]}"
    config = load_config(write(tmp_path, TWO), [PLAIN, kinds, "pairs[1].accelerator_type=A100"])
    assert [f"{pair.name} {pair.accelerator_type}" for pair in config.pairs] == [
        "qwen-H100 H100",
        "qwen-L4 L4",
        "e A100",
    ]
    assert config.executor.accelerator_type == "H100"
    again = load_config(write(tmp_path, config_to_yaml(config)))
    assert again == config
    one = load_config(write(tmp_path, TWO), [PLAIN, "executor={kind: ray, accelerator_type: [H100]}"])
    assert [pair.accelerator_type for pair in one.pairs] == [None, None]


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (["executor.kind=local"], r"pairs\[0\].accelerator_type: expected null, since executor.kind is local"),
        (
            ["executor.kind=ray"],
            r"pairs\[1\].accelerator_type: expected a name such as H100, since other pairs have one",
        ),
    ],
)
def test_pairs_name_their_accelerators_all_or_none_and_for_ray_alone(
    tmp_path: Path, options: list[str], where: str
) -> None:
    with pytest.raises(ConfigError, match=where):
        load_config(write(tmp_path, TWO), [PLAIN, "pairs[0].accelerator_type=H100", *options])


def test_a_model_alone_has_no_variants() -> None:
    assert ModelConfig.model_validate({"model": "m", "dtype": ["float32"]}).dtype == "float32"
    with pytest.raises(ValidationError, match="expected one value, where no pair of a configuration has its variants"):
        ModelConfig.model_validate({"model": "m", "dtype": ["float32", "float16"]})


AXES = st.lists(st.integers(1, 30), min_size=1, max_size=4)


@given(AXES, st.lists(st.sampled_from(["sdpa", "eager"]), min_size=1, max_size=4))
def test_every_combination_once_under_a_name_of_its_own(threads: list[int], attentions: list[str]) -> None:
    pair = {"name": "p", "target": {"model": "m", "attention": attentions}, "draft": "d"}
    config = Config.model_validate({"name": "x", "pairs": [pair], "threads": threads})
    made = [(pair.target.attention, config.threads_of(pair)) for pair in config.pairs]
    assert sorted(made) == sorted(product(set(attentions), set(threads)))
    names = {pair.name for pair in config.pairs}
    assert len(names) == len(made)
    assert all(map(is_name, names))
    assert Config.model_validate(config.model_dump()) == config


PAIRS = ("qwen-bfloat16", "qwen-float32", "small")


@pytest.mark.parametrize(
    ("rules", "cells"),
    [
        ("", [f"{pair} {b} {s}" for pair in PAIRS for b in (1, 4, 8) for s in (64, 128)]),
        (
            "include: [{batch_size: 1}, {mode: compile, context: 64}]\n  exclude: [{pair: qwen-float32}]",
            ["qwen-bfloat16 1 64", "qwen-bfloat16 1 128", "small 1 64", "small 1 128", "small 4 64", "small 8 64"],
        ),
        (
            "exclude: [{pair: [qwen, small, qwen-float32], batch_size: [4, 8], context: '64:128:64'}]",
            [f"{pair} 1 {s}" for pair in PAIRS for s in (64, 128)],
        ),
    ],
    ids=["no rules", "some of include and none of exclude", "values, lists, ranges and a pair's variants"],
)
def test_rules_leave_cells(tmp_path: Path, rules: str, cells: list[str]) -> None:
    config = load_config(write(tmp_path, f"{RULED}  {rules}\n"))
    assert [f"{p.pair} {p.batch_size} {p.context}" for p in config.points() if config.is_measured(p)] == cells
