from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from specgauge.configs.pairs import NgramDraft
from specgauge.configs.loader import load_config
from specgauge.configs.names import NAME
from specgauge.configs.fields import part_of_name
from specgauge.configs.pairs import ModelConfig, PairConfig
from specgauge.configs.schema import Config
from specgauge.configs.variants import MOST_VARIANTS, spread
from tests.configs.texts import error_of, write

ONE = "name: x\npairs:\n  - name: qwen\n    target: {model: o/m, dtype: [bfloat16, float32]}\n    draft: o/s\n"
TWO = ONE + "  - {name: e, target: embedded, draft: ngram}\n"


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
    config = load_config(write(tmp_path, ONE), options)
    found = [(p.name, p.target.attention, p.draft.dtype) for p in config.pairs if isinstance(p.draft, ModelConfig)]
    assert found == [
        ("qwen-sdpa-draft-float32", "sdpa", "float32"),
        ("qwen-sdpa-draft-float16", "sdpa", "float16"),
        ("qwen-org_fa3-draft-float32", "org/fa3", "float32"),
        ("qwen-org_fa3-draft-float16", "org/fa3", "float16"),
    ]


def test_a_list_of_one_value_is_that_value(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, ONE), ["pairs[0].target.dtype=[float32, float32]", "mode=[compile]"])
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
    with pytest.raises(ValidationError, match="found a list, allowed: one value, where no pair"):
        ModelConfig.model_validate({"model": "m", "dtype": ["float32", "float16"]})


LONG = "q" * 90
MANY = "[" + ", ".join(map(str, range(1, MOST_VARIANTS + 2))) + "]"


@pytest.mark.parametrize(
    ("text", "options", "line"),
    [
        (ONE, ["mode=[eager, compil]"], "--set mode=[eager, compil]: mode[1]: found 'compil', allowed: eager | compile"
                                        " | cuda_graph"),
        (ONE, ["mode=[]"], "--set mode=[]: mode: found an empty list, allowed: at least one value: eager | compile |"
                           " cuda_graph, or a list of these"),
        (ONE, ["threads=[1, null]"], "--set threads=[1, null]: threads[1]: found nothing, allowed: an integer from 1 to"
                                     " 4096"),
        (ONE.replace("float32", "fp8"), ["mode=[eager, compile]"],
         "file.yaml:4: pairs[0].target.dtype[1]: found 'fp8', allowed: auto | float32 | bfloat16 | float16 | float64"),
        (ONE.replace("]", "], revison: a"), ["mode=[eager, compile]"],
         "file.yaml:4: unknown key 'revison' in pairs[0].target; did you mean 'revision'? allowed: model, revision,"
         " gguf_file, dtype, device, device_map, quantization, attention, trust_remote_code"),
        (ONE.replace("]", "], device: cpu, device_map: auto"), [],
         "file.yaml:4: pairs[0].target.device: found 'cpu', allowed: auto, since device_map places the model"),
        (ONE + "  - {name: Qwen-float32, target: embedded, draft: ngram}\n", [],
         "file.yaml:6: pairs[1].name: found 'Qwen-float32', allowed: a name without the variant Qwen-float32, which"
         " pairs[0] has already"),
        (ONE.replace("  - name: qwen", "  - {name: q-bfloat16, target: embedded, draft: ngram}\n  - name: q"), [],
         "file.yaml:4: pairs[1].name: found 'q', allowed: a name without the variant q-bfloat16, which pairs[0] has"
         " already"),
        (ONE + "  - {name: qwen, target: embedded, draft: ngram}\n", [],
         "file.yaml:6: pairs[1].name: found 'qwen', allowed: a name that pairs[0] does not have already"),
        (TWO + "  - {name: e, target: embedded, draft: {layers: 2}}\n", [],
         "file.yaml:7: pairs[2].name: found 'e', allowed: a name that pairs[1] does not have already"),
        (ONE.replace("name: qwen", "name: q--"), [],
         "file.yaml:3: pairs[0].name: found 'q--', allowed: a name for files: up to 100 of A-Z a-z 0-9 . _ - with no --"
         " in it and no . or - at an end"),
        (ONE.replace("qwen", LONG), ["mode=[eager, compile]"],
         f"file.yaml:3: pairs[0].name: found '{LONG[:60]}…', allowed: a name whose variants, such as"
         f" {LONG}-bfloat16-eager, have at most 100 characters"),
        (ONE, [f"threads={MANY}"],
         "file.yaml:3: pairs[0]: found '2002 variants', allowed: at most 1000 of one pair"),
        (ONE.replace("o/s", "./no").replace("o/m", "./no"), ["mode=[eager, compile]"],
         "file.yaml:4: pairs[0].target.model: found './no', allowed: embedded or one that exists (looked in FOLDER)"
         " (and 1 more fault)"),
    ],
)  # fmt: skip
def test_faults_are_told_once_and_where_they_are_written(
    text: str, options: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, text)
    assert error_of(path, *options, require_files=True).replace(str(tmp_path), "FOLDER") == line


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
    assert all(NAME.accepts(name) for name in names)
    assert not found.faults
    assert spread(found.value).value == found.value


@given(st.text(min_size=1, max_size=30))
def test_any_value_is_a_part_of_a_name(value: str) -> None:
    assert NAME.accepts(f"p-{part_of_name(value)}") or part_of_name(value) == "_"
