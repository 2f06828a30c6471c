from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.configs.canonical import short_hash
from specgauge.configs.errors import ConfigError
from specgauge.configs.loader import (
    EFFORT,
    config_hash,
    config_to_yaml,
    load_config,
    shipped_configs,
    shipped_text,

)
from specgauge.configs.schema import Config, LimitsConfig, ValidateConfig
from tests.configs.texts import MINIMAL, error_of, write

NAMES = st.from_regex(r"\A[A-Za-z0-9_]([A-Za-z0-9._]{0,8}[A-Za-z0-9_])?\Z")
TEXTS = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
Fields = dict[str, Any]


def _folded_name(fields: Fields) -> str:
    return str(fields["name"]).casefold()


AXES = st.lists(st.integers(1, 60), min_size=1, max_size=5)
MODELS: st.SearchStrategy[Fields] = st.fixed_dictionaries(
    {"model": TEXTS.map("org-".__add__)},
    optional={
        "revision": TEXTS,
        "gguf_file": TEXTS,
        "dtype": st.sampled_from(["auto", "bfloat16", "float64", ["float32"], ["float16", "auto"]]),
        "device_map": st.just("auto") | st.dictionaries(TEXTS, st.integers(0, 7), min_size=1, max_size=2),
        "quantization": st.dictionaries(
            TEXTS,
            st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
            min_size=1,
            max_size=3,
        ),
        "attention": st.sampled_from(["sdpa", "kernels-community/flash-attn3", "1e3"]),
        "trust_remote_code": st.booleans(),
    },
)
PAIR_FIELDS: st.SearchStrategy[Fields] = st.fixed_dictionaries(
    {"name": NAMES, "target": MODELS | st.just("embedded"), "draft": MODELS}
)
SAMPLING_FIELDS: st.SearchStrategy[Fields] = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "temperature": st.floats(0, 100),
        "top_k": st.integers(0, 50) | st.none(),
        "top_p": st.floats(1e-9, 1) | st.none(),
    },
)
CONFIGS: st.SearchStrategy[Fields] = st.fixed_dictionaries(
    {
        "name": NAMES,
        "pairs": st.lists(PAIR_FIELDS, min_size=1, max_size=3, unique_by=_folded_name),
    },
    optional={
        "sampling": st.lists(SAMPLING_FIELDS, min_size=1, max_size=3, unique_by=_folded_name),
        "grid": st.fixed_dictionaries({}, optional={"batch_size": AXES, "context": AXES, "gamma": AXES}),
        "precision": st.fixed_dictionaries({}, optional={"max_seconds": st.none() | st.floats(1e-6, 1e9)}),
        "draft_sampling": st.sampled_from(["same", ["greedy"], ["same", "greedy"]]),
        "seed": st.integers(0, (1 << 63) - 1),
        "threads": st.none() | st.integers(1, 64) | st.lists(st.integers(1, 64), min_size=1, max_size=3),
        "mode": st.sampled_from(["compile", ["eager"], ["cuda_graph", "eager"]]),
        "limits": st.fixed_dictionaries({}, optional={"memory": st.none() | st.integers(1, 1 << 60)}),
    },
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


@pytest.mark.parametrize("name", shipped_configs())
def test_shipped_configurations_survive_the_round_trip(name: str, tmp_path: Path) -> None:
    config = load_config(name, require_files=True)
    assert load_config(write(tmp_path, config_to_yaml(config))) == config


def test_the_hash_is_of_the_content_not_of_its_form_or_name(tmp_path: Path) -> None:
    first = load_config(write(tmp_path, MINIMAL + "grid: {gamma: 1:6, batch_size: 1}\nseed: 0\n"))
    same = load_config(write(tmp_path, MINIMAL.replace("name: x", "name: y", 1) + "# as default\n"))
    other = load_config(write(tmp_path, MINIMAL + "seed: 1\n"))
    assert config_hash(first) == config_hash(same)
    assert config_hash(other) != config_hash(first)
    assert len(config_hash(first)) == 12
    assert int(config_hash(first), 16) >= 0


def test_effort_does_not_change_the_hash() -> None:
    config = load_config("quickstart")
    assert config.validation is not None
    more = {
        "precision": config.precision.model_copy(
            update={"relative_ci": 0.001, "max_blocks": 99, "max_seconds": None, "max_cell_seconds": 1.0}
        ),
        "validation": config.validation.model_copy(update={"max_seconds": None, "repetitions": 7}),
        "limits": LimitsConfig(run_seconds=1),
    }
    for field, value in more.items():
        assert config_hash(config.model_copy(update={field: value})) == config_hash(config)
    assert {f"{section}.{field}" for section, fields in EFFORT.items() for field in fields} == {
        "precision.relative_ci", "precision.max_blocks", "precision.max_seconds", "precision.max_cell_seconds",
        "validate.max_seconds", "validate.repetitions", "limits.run_seconds",
    }  # fmt: skip


def test_a_field_of_a_later_release_changes_the_hash_only_where_it_says_something() -> None:
    """`validate.baseline_blocks`: null is what runs had before there was such a field."""
    config = load_config("quickstart")
    one, none = (
        config.model_copy(update={"validation": ValidateConfig(prompts=3, baseline_blocks=blocks)})
        for blocks in (1, None)
    )
    assert config_hash(one) != config_hash(none)
    fields = none.model_dump(mode="json", exclude={"name"})
    fields = {section: _without(EFFORT.get(section, set()), value) for section, value in fields.items()}
    assert fields["validate"].pop("baseline_blocks") is None
    assert config_hash(none) == short_hash(fields)
    assert without_later({"validate": None, "seed": 1}) == {"validate": None, "seed": 1}
    assert without_later({"validate": {"baseline_blocks": 2}}) == {"validate": {"baseline_blocks": 2}}


def _without(names: set[str], section: Any) -> Any:
    return {name: value for name, value in section.items() if name not in names} if names else section


def test_every_field_but_the_name_changes_the_hash() -> None:
    config = load_config("quickstart")
    changes: dict[str, Any] = {
        "workload": config.workload.model_copy(update={"max_new_tokens": 65}),
        "sampling": config.sampling[:1],
        "draft_sampling": ("greedy",),
        "acceptance_rule": ("match",),
        "grid": config.grid.model_copy(update={"gamma": (1,)}),
        "precision": config.precision.model_copy(update={"confidence": 0.8}),
        "threads": 2,
        "seed": 1,
        "mode": "compile",
        "acceptance": config.acceptance.model_copy(update={"chunk": 64}),
        "validation": ValidateConfig(prompts=3),
        "pairs": (config.pairs[0].model_copy(update={"name": "other"}),),
        "limits": LimitsConfig(memory=1),
    }
    hashes = {config_hash(config.model_copy(update={field: value})) for field, value in changes.items()}
    assert len(hashes | {config_hash(config)}) == len(changes) + 1
    assert set(changes) | {"name"} == set(Config.model_fields)


def test_the_section_that_decodes_end_to_end_is_written_as_validate(tmp_path: Path) -> None:
    config = load_config("quickstart")
    assert "\nvalidate: {gamma: recommended, " in config_to_yaml(config)
    assert Config.model_validate(config.model_dump()) == config
    content = load_config("gpu").model_dump(mode="json")
    assert "validation" not in content
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + (MINIMAL + "grid:\n  gama: 1\n").replace("\n", "\r\n").encode())
    assert error_of(path).startswith("file.yaml:5: unknown key 'gama' in grid; did you mean 'gamma'?")


def test_bytes_that_are_not_utf8_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(MINIMAL.encode() + b"# caf\xe9\n")
    assert error_of(path) == "file.yaml:4: expected a UTF-8 text file, got bytes that are not UTF-8"


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"#" * ((1 << 20) + 1))
    assert error_of(path) == "weights.safetensors: expected a YAML config, got a file of over 1 MiB"


class TestPaths:
    def config(self, folder: Path, prompts: str = "mine.jsonl", target: str = "big") -> Path:
        pair = f"pairs:\n  - name: a\n    draft: embedded\n    target: {target}\n"
        return write(folder, f"name: x\n{pair}workload:\n  prompts: {prompts}\n")

    def test_beside_the_file_comes_before_the_working_directory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        here, beside = tmp_path / "here", tmp_path / "beside"
        for folder in (here, beside):
            (folder / "big").mkdir(parents=True)
            (folder / "mine.jsonl").touch()
        monkeypatch.chdir(here)
        config = load_config(self.config(beside))
        assert config.workload.prompts == str(beside / "mine.jsonl")
        assert config.pairs[0].target.model == str(beside / "big")
        changed = load_config(self.config(beside), ["workload.prompts=mine.jsonl", "pairs[0].target=big"])
        assert changed.workload.prompts == str(here / "mine.jsonl")
        assert changed.pairs[0].target.model == str(here / "big")

    def test_the_working_directory_comes_second(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "sub").mkdir()
        (tmp_path / "mine.jsonl").touch()
        monkeypatch.chdir(tmp_path)
        config = load_config(self.config(tmp_path / "sub"))
        assert config.workload.prompts == str(tmp_path / "mine.jsonl")
        assert config.pairs[0].target.model == "big"

    def test_a_file_is_no_model_directory(self, tmp_path: Path) -> None:
        (tmp_path / "big").touch()
        assert load_config(self.config(tmp_path)).pairs[0].target.model == "big"

    def test_missing_files_are_faults_only_where_they_are_needed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = self.config(tmp_path, target="./big")
        assert load_config(path).workload.prompts == "mine.jsonl"
        assert error_of(path, require_files=True) == (
            f"file.yaml:5: pairs[0].target: expected embedded or one that exists (looked in {tmp_path}), got './big'"
            " (and 1 more fault)"
        )

    def test_hub_ids_need_not_exist(self, tmp_path: Path) -> None:
        (tmp_path / "mine.jsonl").touch()
        path = self.config(tmp_path, target="org/name")
        assert load_config(path, require_files=True).pairs[0].target.model == "org/name"

    def test_a_written_out_configuration_finds_its_files_from_anywhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "big").mkdir()
        (tmp_path / "mine.jsonl").touch()
        config = load_config(self.config(tmp_path))
        (tmp_path / "runs").mkdir()
        monkeypatch.chdir(tmp_path / "runs")
        assert load_config(write(tmp_path / "runs", config_to_yaml(config))) == config


SPOILERS = st.sampled_from(
    ["", "\n", "\t", ": ", "- ", "[", "}", "'", "null", "1e999", "!!set ", "&a ", "*a", "x:\n", "é"]
)
QUICKSTART = shipped_text("quickstart")


@settings(max_examples=100)
@given(st.integers(0, len(QUICKSTART)), st.integers(0, 12), SPOILERS)
def test_a_spoilt_file_loads_or_gives_one_line(
    tmp_path_factory: pytest.TempPathFactory, start: int, length: int, spoiler: str
) -> None:
    text = QUICKSTART[:start] + spoiler + QUICKSTART[start + length :]
    path = write(tmp_path_factory.getbasetemp(), text, "spoilt.yaml")
    message = None
    try:
        load_config(path)
    except ConfigError as error:
        message = str(error)
    assert message is None or re.fullmatch(rf"{re.escape(str(path))}:\d+: [^\n]+", message)


SHIPPED = "gpu, proof, quickstart, wide"
EXPECTED = f"expected the path of a YAML file, or a shipped name: {SHIPPED}"


def error(source: str | Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(source)
    return str(caught.value)


def test_the_shipped_names() -> None:
    assert shipped_configs() == ["gpu", "proof", "quickstart", "wide"]
    assert [load_config(name).name for name in shipped_configs()] == ["gpu", "proof", "quickstart", "wide"]


def test_shipped_text_keeps_its_comments() -> None:
    assert shipped_text("quickstart").startswith("# ")
    with pytest.raises(ConfigError) as caught:
        shipped_text("quick")
    assert str(caught.value) == f"no shipped config 'quick'; did you mean 'quickstart'? shipped: {SHIPPED}"


def test_the_quickstart_is_small_enough_to_try() -> None:
    config = load_config("quickstart")
    assert [pair.target.model for pair in config.pairs] == ["embedded"]
    assert [(one.name, one.temperature) for one in config.sampling] == [("greedy", 0.0), ("t1", 1.0)]
    assert config.grid.batch_size == (1, 4)
    assert config.grid.context == (128, 256)
    assert config.grid.gamma == (1, 2, 3, 4, 5, 6)
    assert config.precision.max_seconds is not None
    assert config.precision.max_seconds * len(config.grid.batch_size) <= 120


def test_a_missing_file_names_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert error("quikstart") == f"quikstart: no such file; did you mean 'quickstart'? {EXPECTED}"
    assert error("configs/quickstart.yaml") == (
        f"configs/quickstart.yaml: no such file; did you mean 'quickstart'? {EXPECTED}"
    )
    assert error("zzz.yaml") == f"zzz.yaml: no such file, {EXPECTED}"
    write(tmp_path, MINIMAL, "mine.yaml")
    assert error("mime.yaml") == f"mime.yaml: no such file; did you mean 'mine.yaml'? {EXPECTED}"


def test_a_directory_is_told_apart(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert error(run) == f"{run}: is a directory, {EXPECTED}"
    write(run, MINIMAL, "config.yaml")
    assert error(run) == f"{run}: is a directory; did you mean '{run}/config.yaml'? {EXPECTED}"


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
