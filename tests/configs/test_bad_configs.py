"""Configurations that are refused: what each is, where its faults are and of which kind; the words are a snapshot."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from specgauge.configs.errors import ConfigError, explain, nearest, place_name, shown
from specgauge.configs.hardware import Peaks
from specgauge.configs.yaml_reader import Source, read_yaml
from tests.configs.texts import DRAFT, MINIMAL, PAIRS, RULED, TWO_PAIRS, VALIDATOR, VARIANTS, error_of, write

Cases = dict[str, tuple[str, str]]
"""By name: the file, and its faults in their order, "line place code | …"; the line alone where it is not YAML."""

FLOW = "name: x\npairs:\n  - {name: a, "
TARGET = FLOW + "target: {model: o/m, %s}, draft: embedded}\n"
BLOCK = "name: x\npairs:\n  - name: a\n    target: "
FORM: Cases = {
    "empty": ("", "1"),
    "null": ("# first\nnull\n", "2"),
    "list": ("- name: x\n", "1"),
    "tab": ("name: x\ngrid:\n\tgamma: 4\n", "3"),
    "open bracket": ("name: x\ngrid:\n  gamma: [1, 2\nseed: 0\n", "4"),
    "open quote": ("name: 'x\n", "2"),
    "list among keys": ("name: x\npairs:\n- 1\ngrid: {}\n- 2\n", "5"),
    "two documents": ("name: x\n---\nname: y\n", "2"),
    "unknown alias": ("name: *nowhere\n", "1"),
    "own anchor": ("name: x\npairs: &a\n  - *a\n", "2"),
    "control character": ("name: x\nseed: \x07\n", "2"),
    "repeated key": (MINIMAL + "grid:\n  gamma: 4\n  context: 8\n  gamma: 5\n", "7 grid.gamma repeated_key"),
    "repeated section": (MINIMAL + "seed: 1\n" + PAIRS, "5 pairs repeated_key"),
    "number as key": (MINIMAL + "grid:\n  4: 5\n", "5 grid unreadable"),
    "python tag": (MINIMAL + "seed: !!python/object:os.system 'x'\n", "4 seed unreadable"),
    "wrong tag": (MINIMAL + "seed: !!int x\n", "4 seed unreadable"),
    "merge without mapping": (MINIMAL + "grid:\n  <<: 4\n", "5 grid unreadable"),
}
KEYS: Cases = {
    "misspelt section": ("name: x\n" + PAIRS.replace("pairs", "pair"), "2 pair extra_forbidden"),
    "misspelt field": ("grid:\n  batch_size: 1\n  gama: 4\n", "6 grid.gama extra_forbidden"),
    "upper case": ("Seed: 4\n", "4 Seed extra_forbidden"),
    "in a pair": (BLOCK.replace("target", "targt") + "m\n    draft: m\n", "4 pairs[0].targt extra_forbidden"),
    "in a range": ("grid:\n  gamma: {from: 1, too: 4}\n", "5 grid.gamma.too extra_forbidden"),
    "no name": (PAIRS, "1 . missing"),
    "no pairs": ("name: x\nseed: 1\n", "1 . missing"),
    "no model": (BLOCK + "embedded\n    draft: {dtype: float32}\n", "5 pairs[0].draft missing"),
    "sampling without name": ("sampling:\n  - temperature: 1\n", "5 sampling[0] missing"),
}
KINDS: Cases = {
    "list for mapping": ("grid:\n  - gamma: 4\n", "4 grid model_type"),
    "nothing for mapping": ("precision:\n", "4 precision model_type"),
    "mapping for list": ("name: x\npairs: {name: a, target: embedded, draft: embedded}\n", "2 pairs tuple_type"),
    "empty model": (FLOW + "target: ' ', draft: embedded}\n", "3 pairs[0].target string_pattern_mismatch"),
    "empty list of pairs": ("name: x\npairs: []\n", "2 pairs too_short"),
    "text for integer": ("seed: '4'\n", "4 seed int_type"),
    "fraction for integer": ("acceptance:\n  chunk: 1.5\n", "5 acceptance.chunk int_type"),
    "boolean for integer": ("workload:\n  repetitions: true\n", "5 workload.repetitions int_type"),
    "number for boolean": ("acceptance:\n  sequential: 1\n", "5 acceptance.sequential bool_type"),
    "boolean for number": ("precision: {relative_ci: false}\n", "4 precision.relative_ci float_type"),
    "unknown word": ("acceptance_rule: ration\n", "4 acceptance_rule literal_error"),
    "unknown word in list": ("draft_sampling:\n  - same\n  - gredy\n", "6 draft_sampling[1] literal_error"),
    "quantization as text": (TARGET % "quantization: int8", "3 pairs[0].target.quantization dict_type"),
}
VALUES: Cases = {
    "zero in a list": ("grid:\n  batch_size:\n    - 1\n    - 0\n", "7 grid.batch_size[1] greater_than_equal"),
    "empty axis": ("grid: {context: []}\n", "4 grid.context too_short"),
    "descending range": ("grid:\n  gamma: 6:1\n", "5 grid.gamma refused"),
    "range without step": ("grid:\n  gamma: '1:6:0'\n", "5 grid.gamma greater_than_equal"),
    "range out of bounds": ("grid:\n  gamma: 1:99\n", "5 grid.gamma less_than_equal"),
    "range of too many": ("grid:\n  context: 1:4096\n", "5 grid.context refused"),
    "half a range": ("grid:\n  gamma: '1:'\n", "5 grid.gamma tuple_type"),
    "range in a list": ("grid:\n  gamma: [1, 4:6]\n", "5 grid.gamma[1] int_type"),
    "range mapping step": (
        "grid:\n  gamma:\n    from: 1\n    to: 6\n    step: 0\n",
        "8 grid.gamma.step greater_than_equal",
    ),
    "infinite": ("precision: {max_seconds: .inf}\n", "4 precision.max_seconds finite_number"),
    "tiny temperature": ("sampling:\n  - name: a\n    temperature: 1.0e-38\n", "6 sampling[0].temperature refused"),
    "not a number": ("sampling:\n  - name: a\n    temperature: .nan\n", "6 sampling[0].temperature finite_number"),
    "top_p over 1": ("sampling:\n  - {name: a, top_p: 90}\n", "5 sampling[0].top_p less_than_equal"),
    "replicates that make no interval": (
        "precision:\n  bootstrap_replicates: 9\n",
        "5 precision.bootstrap_replicates greater_than_equal",
    ),
    "blocks crossed by default": ("precision:\n  min_blocks: 30\n", "4 precision.max_blocks refused"),
    "texts shorter than a round": ("workload:\n  max_new_tokens: 6\n", "5 workload.max_new_tokens refused"),
    "name with the separator": ("sampling:\n  - {name: a--b}\n", "5 sampling[0].name string_pattern_mismatch"),
    "same pair twice": ("name: x\n" + PAIRS + PAIRS.removeprefix("pairs:\n"), "4 pairs[1].name refused"),
    "same sampling twice": (
        "sampling:\n  - {name: t1}\n  - {name: t2}\n  - {name: T1}\n",
        "7 sampling[2].name refused",
    ),
    "no such device": (TARGET % "device: gpu", "3 pairs[0].target.device string_pattern_mismatch"),
    "no such dtype": (TARGET % "dtype: fp16", "3 pairs[0].target.dtype literal_error"),
    "embedded from a gguf file": (
        BLOCK + "\n      model: embedded\n      gguf_file: w.gguf\n    draft: m\n",
        "6 pairs[0].target.gguf_file refused",
    ),
    "two placements": (TARGET % "device: cpu, device_map: auto", "3 pairs[0].target.device refused"),
    "ranks and a map": (
        TARGET % "parallel: {tensor: 2}, device_map: auto",
        "3 pairs[0].target.device_map refused",
    ),
    "one rank": (TARGET % "parallel: {tensor: 1}", "3 pairs[0].target.parallel.tensor greater_than_equal"),
    "ranks of a draft": (
        BLOCK + "m\n    draft: {model: o/m, parallel: {tensor: 2}}\n",
        "5 pairs[0].draft.parallel refused",
    ),
    "a split target's layers": (
        BLOCK + "{model: o/m, parallel: {tensor: 2}}\n    draft: {layers: 2}\n",
        "5 pairs[0].draft refused",
    ),
    "ranks that compile": (
        TARGET % "parallel: {tensor: 2}" + "mode: compile\n",
        "3 pairs[0].target.parallel refused",
    ),
    "ranks on a cluster": (
        TARGET % "parallel: {tensor: 2}" + "executor: {kind: ray}\n",
        "3 pairs[0].target.parallel refused",
    ),
    "chains without both models": (
        "acceptance:\n  sequential: true\n  rollouts: 2\n",
        "6 acceptance.rollouts refused",
    ),
    "format of embedded prompts": ("workload:\n  format: sharegpt\n", "5 workload.format refused"),
    "unknown executor": ("executor:\n  kind: rya\n", "5 executor.kind literal_error"),
    "address without port": ("executor:\n  address: head\n", "5 executor.address refused"),
    "port out of range": ("executor:\n  address: head:70000\n", "5 executor.address refused"),
    "half a GPU": ("executor:\n  gpus_per_task: 0.5\n", "5 executor.gpus_per_task int_type"),
    "no CPU": ("executor:\n  cpus_per_task: 0\n", "5 executor.cpus_per_task greater_than_equal"),
    "number of many digits": ("seed: " + "9" * 5000 + "\n", "4 seed unreadable"),
}
SEVERAL: Cases = {
    "first by line": (
        "name: x\nsed: 1\n" + PAIRS + "grid:\n  gamma: 0\nmode: graph\n",
        "2 sed extra_forbidden | 6 grid.gamma greater_than_equal | 7 mode literal_error",
    ),
    "form and value": ("seed: -1\nseed: 2\n", "4 seed greater_than_equal | 5 seed repeated_key"),
    "each item": (
        "grid:\n  gamma: [true, 1, 0, 1.5]\n",
        "5 grid.gamma[0] int_type | 5 grid.gamma[2] greater_than_equal | 5 grid.gamma[3] int_type",
    ),
    "names beside other faults": (
        "sampling:\n  - {name: a}\n  - {name: a}\nthreads: 0\n",
        "6 sampling[1].name refused | 7 threads greater_than_equal",
    ),
    "an alias is followed to its anchor": (
        BLOCK + "&m\n      model: o/m\n      dtype: fp8\n    draft: *m\n",
        "6 pairs[0].target.dtype literal_error | 6 pairs[0].draft.dtype literal_error",
    ),
}
OPTIONS = {
    "grid.gamma": "set",
    "grid..gamma=4": "set",
    "pairs[x]=4": "set",
    "grid.gama=4": "set grid.gama extra_forbidden",
    "gird.gamma=4": "set gird extra_forbidden",
    "grid.gamma=[1, 0]": "set grid.gamma[1] greater_than_equal",
    "pairs[2].name=z": "set",
    "name[0]=z": "set",
    "pairs[0].target.dtyp=float32": "set pairs[0].target.dtyp extra_forbidden",
    "grid={gamma: 1, gamma: 2}": "set grid.gamma repeated_key",
    "grid.gamma=[1": "set",
    "limits.run_seconds=0": "set limits.run_seconds greater_than",
}
DRAFTS = {
    "{layer: 8}": "5 pairs[0].draft.layer extra_forbidden",
    "{ngrams: {}}": "5 pairs[0].draft.ngrams extra_forbidden",
    "{layers: 0}": "5 pairs[0].draft.layers greater_than_equal",
    "{layers: 8, model: embedded}": "5 pairs[0].draft refused",
    "{ngram: {}, layers: 8}": "5 pairs[0].draft refused",
    "{ngram: 3}": "5 pairs[0].draft.ngram model_type",
    "{ngram: {longest: 0}}": "5 pairs[0].draft.ngram.longest greater_than_equal",
    "{ngram: {longest: 2, shortest: 3}}": "5 pairs[0].draft.ngram.shortest refused",
    "{}": "5 pairs[0].draft missing",
}
RULES = {
    "exclude:\n    - {batch_size: 3}": "9 grid.exclude[0].batch_size refused",
    "include: [{context: [64, 100]}]": "8 grid.include[0].context refused",
    "exclude: [{mode: cuda_graph}]": "8 grid.exclude[0].mode refused",
    "exclude:\n    - {context: 64}\n    - {pair: small, mode: eager}": "10 grid.exclude[1] refused",
    "exclude: [{batch_size: 1}, {batch_size: [4, 8]}]": "8 grid.exclude refused",
    "include: [{}]": "8 grid.include[0] refused",
    "include: {context: 64}": "8 grid.include tuple_type",
    "include: [{pair: []}]": "8 grid.include[0].pair too_short",
    "include: [{context: 64}]\nvalidate: {context: 128}": "9 validate refused",
}
SEARCHES = {
    "gamma: {max: 16, search: adaptve}": "5 grid.gamma.search literal_error",
    "gamma: {max: 100, search: adaptive}": "5 grid.gamma.max less_than_equal",
    "gamma: {search: adaptive}": "5 grid.gamma missing",
    "gamma: {max: 16, search: adaptive, step: 2}": "5 grid.gamma.step extra_forbidden",
    "{gamma: {max: 6, search: adaptive}, gamma_search: all}": "5 grid.gamma_search refused",
    "gamma: six": "5 grid.gamma tuple_type",
    "batch_size: {max: 2000, search: adaptive}": "5 grid.batch_size.max less_than_equal",
    "{batch_size: {max: 6, search: adaptive}, batch_size_search: all}": "5 grid.batch_size_search refused",
    "batch_size_search: adaptive": "5 grid.batch_size_search refused",
}
SIZES = {
    "8Gib": "5 limits.memory refused",
    "a lot": "5 limits.memory int_type",
    "0.1B": "5 limits.memory greater_than_equal",
    "8e9": "5 limits.memory int_type",
    "0": "5 limits.memory greater_than_equal",
}
VALIDATIONS = {
    "{gamma: 9}": "set validate.gamma refused",
    "{context: [128, 77]}": "set validate.context refused",
    "{batch_size: 2}": "set validate.batch_size refused",
    "{acceptance: [0.5, -1]}": "set validate.acceptance[1] greater_than_equal",
    "{acceptance: [0.9, 0.8]}": "set validate.acceptance refused",
    "{policies: [svip, ours]}": "set validate.policies[1] literal_error",
    "{policies: [svip, ucb], acceptance: 0.5}": "set validate.policies refused",
    "{max_new_tokens: 1}": "set validate.max_new_tokens greater_than_equal",
}
OTHER = "  - {name: %s, target: embedded, draft: ngram}\n"
DTYPES = "dtype: [bfloat16, float32]"
LONG = VARIANTS.replace("qwen", "q" * 90)
MANY = f"threads=[{', '.join(map(str, range(1, 1002)))}]"
NOT_THERE = VARIANTS.replace("o/s", "./no").replace("o/m", "./no")
TWICE = ["mode=[eager, compile]"]
WITH_OPTIONS = {
    "variant of no mode": (VARIANTS, ["mode=[eager, compil]"], "set mode[1] literal_error"),
    "variants of nothing": (VARIANTS, ["mode=[]"], "set mode too_short"),
    "variant of null": (VARIANTS, ["threads=[1, null]"], "set threads[1] int_type"),
    "variant of no dtype": (VARIANTS.replace("float32", "fp8"), TWICE, "4 pairs[0].target.dtype[1] literal_error"),
    "key in variants": (VARIANTS.replace("]", "], revison: a"), TWICE, "4 pairs[0].target.revison extra_forbidden"),
    "placed twice in variants": (
        VARIANTS.replace("]", "], device: cpu, device_map: auto"),
        [],
        "4 pairs[0].target.device refused",
    ),
    "name of an earlier variant": (VARIANTS + OTHER % "Qwen-float32", [], "6 pairs[1].name refused"),
    "variant with an earlier name": (
        VARIANTS.replace("  - name: qwen", OTHER % "q-bfloat16" + "  - name: q"),
        [],
        "4 pairs[1].name refused",
    ),
    "name of an earlier pair with variants": (VARIANTS + OTHER % "qwen", [], "6 pairs[1].name refused"),
    "CUDA graphs on a CPU": (
        VARIANTS.replace(DTYPES, "device: cpu"),
        ["mode=cuda_graph"],
        "4 pairs[0].target.device refused",
    ),
    "attention that cannot mask rows": (
        VARIANTS.replace(DTYPES, "attention: flash_attention_2"),
        [],
        "4 pairs[0].target.attention literal_error",
    ),
    "unfit name with variants": (VARIANTS.replace("qwen", "q--"), [], "3 pairs[0].name string_pattern_mismatch"),
    "long name with variants": (LONG, TWICE, "3 pairs[0].name refused"),
    "too many variants": (VARIANTS, [MANY], "3 pairs[0] refused"),
    "no such folders": (NOT_THERE, TWICE, "4 pairs[0].target.model no_file | 5 pairs[0].draft no_file"),
    "layers for a target": (
        DRAFT % "{layers: 8}",
        ["pairs[0].target={layers: 8}"],
        "set pairs[0].target missing | set pairs[0].target.layers extra_forbidden",
    ),
    "layers beside a model": (DRAFT % "embedded", ["pairs[0].draft.layers=2"], "5 pairs[0].draft refused"),
    "the file before the options": (
        MINIMAL + "sed: 1\n",
        ["grid.gama=4"],
        "4 sed extra_forbidden | set grid.gama extra_forbidden",
    ),
    "index of an empty list": (MINIMAL + "sampling: []\n", ["sampling[0].name=a"], "set"),
    "the section's former name": (MINIMAL + "verify: {gamma: 2}\n", [], "4 verify extra_forbidden"),
}

FIELDS = KEYS | KINDS | VALUES | SEVERAL


def whole(text: str) -> str:
    """A text that does not begin with a name or pairs goes on after those of the least configuration."""
    return text if text.startswith(("name:", "pair")) else MINIMAL + text


ALL: dict[str, tuple[str, list[str], str]] = {
    **{name: (text, [], found) for name, (text, found) in FORM.items()},
    **{name: (whole(text), [], found) for name, (text, found) in FIELDS.items()},
    **{f"--set {option}": (TWO_PAIRS, [option], found) for option, found in OPTIONS.items()},
    **{f"draft: {draft}": (DRAFT % draft, [], found) for draft, found in DRAFTS.items()},
    **{f"grid: {rules}": (RULED + f"  {rules}\n", [], found) for rules, found in RULES.items()},
    **{f"grid: {grid}": (MINIMAL + f"grid:\n  {grid}\n", [], found) for grid, found in SEARCHES.items()},
    **{f"memory: {size}": (MINIMAL + f"limits:\n  memory: {size}\n", [], found) for size, found in SIZES.items()},
    **{f"--set validate={one}": (RULED, [f"validate={one}"], found) for one, found in VALIDATIONS.items()},
    **WITH_OPTIONS,
}


def error_in(name: str, folder: Path) -> ConfigError:
    text, options, _ = ALL[name]
    return error_of(write(folder, text), options, require_files="no such" in name)


@pytest.mark.parametrize("name", ALL)
def test_every_fault_is_found_at_its_line_and_field(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    error = error_in(name, tmp_path)
    line = str(error)
    found = [f"{one.line or 'set'} {place_name(one.keys) or '.'} {one.code}" for one in error.faults]
    where = "set" if line.startswith("--set") else line.removeprefix(f"{tmp_path}/file.yaml:").partition(":")[0]
    assert (where, " | ".join(found) or where) == (ALL[name][2].partition(" ")[0], ALL[name][2])


def test_the_words(snapshot: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{name!r}\n    {error_in(name, tmp_path)}\n" for name in ALL if name != "too many variants"]
    snapshot("config_errors", "".join(lines).replace(f"{tmp_path}/", "").replace(str(tmp_path), "FOLDER"))


NEEDS_MORE_THAN_A_SCHEMA = {
    *(name for name, (_, found) in VALUES.items() if found.endswith(" refused")),
    "range without step",
    "range out of bounds",
    "infinite",
    "not a number",
    "tiny temperature",
    "draft: {ngram: {longest: 2, shortest: 3}}",
    "grid: {gamma: {max: 6, search: adaptive}, gamma_search: all}",
    "grid: {batch_size: {max: 6, search: adaptive}, batch_size_search: all}",
    "grid: batch_size_search: adaptive",
    "draft: {}",
    "memory: 0.1B",
    "memory: 8e9",
}
WITHOUT_OPTIONS = [
    *KEYS, *KINDS, *VALUES, *(f"draft: {one}" for one in DRAFTS), *(f"grid: {one}" for one in SEARCHES),
    *(f"memory: {one}" for one in SIZES),
]  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_OPTIONS)
def test_the_schema_rejects_misspelt_keys_and_wrong_values(name: str) -> None:
    written = read_yaml(ALL[name][0], Source("file.yaml")).value
    assert VALIDATOR.is_valid(written) == (name in NEEDS_MORE_THAN_A_SCHEMA)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ((None, True, 0, 1.5, math.nan, -math.inf), ["nothing", "true", "0", "1.5", ".nan", "-.inf"]),
        (("a", "a\nb", "x" * 61, b"x"), ["'a'", r"'a\nb'", f"'{'x' * 60}…'", "a value of type bytes"]),
        (({}, {"a": 1}, [], (1,)), ["an empty mapping", "a mapping", "an empty list", "a list"]),
    ],
)
def test_values_are_shown_as_a_person_wrote_them(values: tuple[object, ...], texts: list[str]) -> None:
    assert [shown(value) for value in values] == texts


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("GAMA", ["gamma", "context"], "gamma"),
        ("quikstart", ["gpu", "quickstart", "wide"], "quickstart"),
        ("temp", ["temperature", "top_k"], "temperature"),
        ("verify", ["validate", "seed"], "validate"),
        ("to", ["top_k_limit", "top_p_limit"], None),
        ("", ["gamma"], None),
        ("zzz", ["gamma", "context"], None),
    ],
)
def test_the_nearest_name(name: str, known: list[str], found: str | None) -> None:
    assert nearest(name, known) == found


def test_thousands_of_faults_are_told_in_a_moment() -> None:
    """Every fault asks which section is meant, by the keys of the whole mapping."""
    written = {"float32": 1e12, **{f"float{n}": 1 for n in range(100, 2100)}}
    with pytest.raises(ValidationError) as error:
        Peaks.model_validate(written)
    faults = explain(error.value, Peaks, written)
    assert [fault.code for fault in faults] == ["model_type", *["extra_forbidden"] * 2000]
    assert faults[-1].words.startswith("unknown key 'float2099'")
