"""Loading: options, hashes, what is written out, and where files are found; any text loads or gives one line."""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.configs.canonical import canonical_json, short_hash, strict_loads
from specgauge.configs.errors import ConfigError
from specgauge.configs.loader import EFFORT, config_hash, config_to_yaml, load_config, shipped_configs, shipped_text
from specgauge.configs.schema import Config
from specgauge.configs.yaml_reader import Source, read_yaml
from tests.configs.texts import MINIMAL, TWO_PAIRS, VALIDATOR, error_of, write

NAMES = st.from_regex(r"\A[A-Za-z0-9_]([A-Za-z0-9._]{0,8}[A-Za-z0-9_])?\Z")
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
PLAIN = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS


def section(required: dict[str, Any], **optional: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required, optional=optional)


def named(of: Any) -> Any:
    return st.lists(of, min_size=1, max_size=3, unique_by=lambda fields: fields["name"].casefold())


MODELS = section(
    {"model": TEXTS.map("org-".__add__)},
    revision=TEXTS,
    device_map=st.dictionaries(TEXTS, st.integers(0, 7), min_size=1, max_size=2),
    quantization=st.dictionaries(TEXTS, PLAIN, min_size=1, max_size=3),
    attention=st.sampled_from(["sdpa", "eager"]),
)
SAMPLING = section(
    {"name": NAMES},
    temperature=st.just(0.0) | st.floats(1e-4, 100),
    top_k=st.integers(0, 50) | st.none(),
    top_p=st.floats(1e-9, 1) | st.none(),
)
CONFIGS = section(
    {"name": NAMES, "pairs": named(section({"name": NAMES, "target": MODELS | st.just("embedded"), "draft": MODELS}))},
    sampling=named(SAMPLING),
    precision=section({}, max_seconds=st.none() | st.floats(1e-6, 1e9)),
    seed=st.integers(0, (1 << 63) - 1),
    threads=st.none() | st.integers(1, 64) | st.lists(st.integers(1, 64), min_size=1, max_size=3),
    limits=section({}, memory=st.none() | st.integers(1, 1 << 60)),
)


@settings(max_examples=30)
@given(CONFIGS)
def test_a_configuration_written_out_loads_as_itself(tmp_path_factory: pytest.TempPathFactory, fields: Any) -> None:
    config = Config.model_validate(fields)
    path = write(tmp_path_factory.getbasetemp(), config_to_yaml(config), "round-trip.yaml")
    again = load_config(path)
    assert again == config
    assert config_hash(again) == config_hash(config)
    assert config_to_yaml(again) == config_to_yaml(config)


def test_the_hash_is_of_the_content_not_of_its_form_or_name(tmp_path: Path) -> None:
    first = load_config(write(tmp_path, MINIMAL + "grid: {gamma: 1:6, batch_size: 1}\nseed: 0\n"))
    same = load_config(write(tmp_path, MINIMAL.replace("name: x", "name: y", 1) + "# as default\n"))
    assert config_hash(first) == config_hash(same)
    assert re.fullmatch("[0-9a-f]{12}", config_hash(first))


def test_effort_does_not_change_the_hash() -> None:
    config = load_config("quickstart")
    more = {
        "precision.relative_ci": 0.001, "precision.max_blocks": 99, "precision.max_seconds": "null",
        "precision.max_cell_seconds": 1.0, "validate.max_seconds": "null", "validate.repetitions": 7,
        "limits.run_seconds": 1, "executor.kind": "ray", "executor.address": "head:6379",
        "executor.gpus_per_task": 2, "executor.cpus_per_task": 8, "executor.memory": "40GiB",
        "executor.accelerator_type": "H100", "executor.pack_weights": "true",
    }  # fmt: skip
    options = [f"{field}={value}" for field, value in more.items()]
    assert config_hash(load_config("quickstart", options)) == config_hash(config)
    assert set(more) == {f"{section}.{field}" for section, fields in EFFORT.items() for field in fields}


def test_every_field_but_the_name_changes_the_hash() -> None:
    changes = [
        *("workload.max_new_tokens=65", "sampling=[{name: t1, temperature: 1}]", "draft_sampling=greedy"),
        *("acceptance_rule=match", "grid.gamma=1", "grid.gamma={max: 6, search: adaptive}", "precision.confidence=0.8"),
        *("threads=2", "seed=1", "mode=compile", "acceptance.chunk=64", "limits.memory=1"),
        *("validate.prompts=5", "validate.baseline_blocks=7", "pairs[0].name=other", "pairs[0].draft=ngram"),
        *(f"pairs[0].draft={draft}" for draft in ("{ngram: {longest: 2}}", "{layers: 1}", "{layers: 2}")),
    ]
    hashes = {config_hash(load_config("quickstart", [change])) for change in changes}
    assert len(hashes | {config_hash(load_config("quickstart"))}) == len(changes) + 1
    sections = {re.split(r"[.\[=]", change)[0] for change in changes}
    assert sections | {"name", "executor"} == {field.alias or name for name, field in Config.model_fields.items()}


def test_the_section_that_decodes_end_to_end_is_written_as_validate() -> None:
    assert "\nvalidate: {gamma: recommended, " in config_to_yaml(load_config("quickstart"))
    content = load_config("gpu").model_dump(mode="json")
    assert "validation" not in content
    assert json.loads(json.dumps(content, allow_nan=False)) == content


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            b"\xef\xbb\xbf" + (MINIMAL + "grid:\n  gama: 1\n").replace("\n", "\r\n").encode(),
            "file.yaml:5: unknown key 'gama' in grid; did you mean 'gamma'?",
        ),
        (MINIMAL.encode() + b"# caf\xe9\n", "file.yaml:4: expected UTF-8 text, got other bytes"),
        (b"#" * ((1 << 20) + 1), "file.yaml: expected at most 1 MiB, got a larger file"),
    ],
    ids=["Windows line ends and a byte order mark", "not UTF-8", "huge"],
)
def test_files_of_other_forms(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    assert str(error_of(path)).startswith(f"{tmp_path}/{line}")


def with_files(folder: Path, prompts: str = "mine.jsonl", target: str = "big") -> Path:
    pair = f"pairs:\n  - name: a\n    draft: embedded\n    target: {target}\n"
    return write(folder, f"name: x\n{pair}workload:\n  prompts: {prompts}\n")


def found(config: Config) -> tuple[str, str]:
    return config.workload.prompts, config.pairs[0].target.model


def test_beside_the_file_comes_before_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, beside, empty = tmp_path / "here", tmp_path / "beside", tmp_path / "empty"
    empty.mkdir()
    for folder in (here, beside):
        (folder / "big").mkdir(parents=True)
        (folder / "mine.jsonl").touch()
    monkeypatch.chdir(here)
    config = load_config(with_files(beside))
    assert found(config) == (str(beside / "mine.jsonl"), str(beside / "big"))
    changed = load_config(with_files(beside), ["workload.prompts=mine.jsonl", "pairs[0].target=big"])
    assert found(changed) == (str(here / "mine.jsonl"), str(here / "big"))
    assert found(load_config(with_files(empty))) == (str(here / "mine.jsonl"), str(here / "big"))
    monkeypatch.chdir(empty)
    assert load_config(write(empty, config_to_yaml(config))) == config, "written out, it is found from anywhere"


def test_only_a_directory_that_is_there_is_a_path_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert found(load_config(with_files(tmp_path, target="./big"))) == ("mine.jsonl", "./big")
    expected = f"expected embedded or one that exists (looked in {tmp_path}), got './big' (and 1 more fault)"
    error = error_of(with_files(tmp_path, target="./big"), require_files=True)
    assert str(error) == f"{tmp_path}/file.yaml:5: pairs[0].target: {expected}"
    (tmp_path / "big").touch()
    (tmp_path / "mine.jsonl").touch()
    for target in ("big", "org/name"):
        config = load_config(with_files(tmp_path, target=target), require_files=True)
        assert found(config) == (str(tmp_path / "mine.jsonl"), target)


SPOILERS = st.sampled_from(
    ["", "\n", "\t", ": ", "- ", "[", "}", "'", "null", "1e999", "!!set ", "&a ", "*a", "x:\n", "é"]
)
QUICKSTART = shipped_text("quickstart")


SPOILT = st.builds(
    lambda start, length, spoiler: QUICKSTART[:start] + spoiler + QUICKSTART[start + length :],
    st.integers(0, len(QUICKSTART)),
    st.integers(0, 12),
    SPOILERS,
)


@settings(max_examples=200)
@given(SPOILT | st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text_loads_or_gives_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = write(tmp_path_factory.getbasetemp(), text, "spoilt.yaml")
    message = None
    try:
        load_config(path)
    except ConfigError as error:
        message = str(error)
    assert message is None or re.fullmatch(rf"{re.escape(str(path))}:\d+: [^\n]+", message)


SHIPPED = "gpu, proof, quickstart, wide"


def test_the_shipped_configurations() -> None:
    assert [load_config(name).name for name in shipped_configs()] == SHIPPED.split(", ")
    assert shipped_text("quickstart").startswith("# ")
    config = load_config("quickstart")
    assert config.precision.max_seconds is not None
    assert config.precision.max_seconds * len(config.grid.batch_size) <= 120, "small enough to try"
    assert config.validation is not None
    assert 0 < (config.validation.max_seconds or 0) <= 90


@pytest.mark.parametrize(
    ("source", "got"),
    [
        ("quikstart", "no such file; did you mean 'quickstart'?"),
        ("configs/quickstart.yaml", "no such file; did you mean 'quickstart'?"),
        ("zzz.yaml", "no such file"),
        ("mime.yaml", "no such file; did you mean 'mine.yaml'?"),
        ("empty", "a directory"),
        ("run", "a directory; did you mean 'run/config.yaml'?"),
    ],
)
def test_a_source_that_is_no_file(source: str, got: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, MINIMAL, "mine.yaml")
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", MINIMAL, "config.yaml")
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    expected = f"expected the path of a YAML file, or a shipped name: {SHIPPED}"
    assert str(caught.value) == f"{source}: {expected}, got {got}"


def test_a_directory_does_not_hide_a_shipped_name_but_a_file_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    assert load_config("quickstart").name == "quickstart"
    write(tmp_path, MINIMAL, "wide")
    assert load_config("wide").name == "x"


def test_an_unreadable_file_is_an_os_error(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 300)
    with pytest.raises(OSError, match="too long"):
        load_config(path)


@pytest.mark.parametrize("name", shipped_configs())
def test_what_ships_fits_the_schema_written_and_resolved_and_loads_again(name: str, tmp_path: Path) -> None:
    VALIDATOR.validate(read_yaml(shipped_text(name), Source(name)).value)
    config = load_config(name, require_files=True)
    VALIDATOR.validate(config.model_dump(mode="json"))
    assert load_config(write(tmp_path, config_to_yaml(config))) == config


SETTINGS = "sampling=[{name: t1}, {name: t2, temperature: 2}]"
LOOKUP = "pairs[0].draft=ngram"
FAULTY = "grid:\n  gamma: 0\nseed: 1\nseed: 2\n"


@pytest.mark.parametrize(
    ("options", "place", "value"),
    [
        (["grid.batch_size=[1, 2]"], "grid.batch_size", [1, 2]),
        (["precision.relative_ci=1e-3"], "precision.relative_ci", 0.001),
        (["precision.max_seconds=null"], "precision.max_seconds", None),
        ([SETTINGS, "sampling[1].top_k=5"], "sampling[1].top_k", 5),
        (["limits.run_seconds=90"], "limits.run_seconds", 90.0),
        (["seed = 7"], "seed", 7),
        (["seed=1", "seed=2"], "seed", 2),
        (["pairs[1].target.dtype=bfloat16"], "pairs[1].target.model", "org/big"),
        (["pairs[1].draft=org/tiny"], "pairs[1].draft.model", "org/tiny"),
        (["pairs[1].draft=org/tiny"], "pairs[1].draft.dtype", "auto"),
        (["pairs[1].draft.quantization.8=x"], "pairs[1].draft.quantization", {"8": "x"}),
        (["pairs[1].target.revision=a=b"], "pairs[1].target.revision", "a=b"),
        ([LOOKUP], "pairs[0].draft.ngram.longest", 3),
        ([LOOKUP, "pairs[0].draft.ngram.longest=5"], "pairs[0].draft.ngram.longest", 5),
        ([LOOKUP, "pairs[0].draft=org/small"], "pairs[0].draft.model", "org/small"),
        (["pairs[0].draft={layers: 2}", "pairs[0].draft.layers=3"], "pairs[0].draft", {"layers": 3}),
    ],
)
def test_a_value_is_yaml_and_goes_to_its_place(tmp_path: Path, options: list[str], place: str, value: object) -> None:
    found: Any = load_config(write(tmp_path, TWO_PAIRS), options).model_dump(mode="json")
    for index, key in re.findall(r"\[(\d+)\]|([^.\[\]]+)", place):
        found = found[int(index) if index else key]
    assert found == value
    assert type(found) is type(value)


def test_an_option_mends_a_faulty_file(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, MINIMAL + FAULTY), ["grid.gamma=3", "seed=5"])
    assert (config.grid.gamma, config.seed) == ((3,), 5)


def test_order_of_keys_does_not_matter() -> None:
    assert canonical_json({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}'
    assert short_hash({"b": 1, "a": 2}) == hashlib.sha256(b'{"a":2,"b":1}').hexdigest()[:12]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_form_for_what_json_has_no_form_for(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": value})


@pytest.mark.parametrize("text", ['{"x": NaN}', '{"x": Infinity}', '{"x": -Infinity}', '{"x": 1, "x": 2}'])
def test_strict_reading_refuses_constants_and_repeated_keys(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not JSON|'x' appears twice"):
        strict_loads(text)
