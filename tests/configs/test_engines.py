"""Engines of a pair: what is kept, what follows from them, and what is refused."""

from pathlib import Path

import pytest

from specgauge.configs.engines import UNKNOWN, EngineConfig
from specgauge.configs.errors import ConfigError
from specgauge.configs.loader import config_to_yaml, load_config
from specgauge.configs.pairs import ModelConfig, NgramDraft
from specgauge.configs.yaml_reader import Source, read_yaml
from tests.configs.texts import VALIDATOR, write

SERVED = """\
name: served
pairs:
  - name: a
    engine:
      - {base_url: "http://127.0.0.1:8000/v1/", gamma: 0}
      - {base_url: "http://127.0.0.1:8001", gamma: 3, model: target, draft: org/small}
      - {base_url: "http://127.0.0.1:8002", gamma: 1}
"""
LAUNCHED = "name: one\npairs: [{name: a, engine: {%s}}]\ngrid: {gamma: [1, 4]}\n"
VLLM = "kind: vllm, target: org/big, draft: org/small, launch: {}"
ARMED = "{launch: {}, kind: vllm, target: t, draft: d, arms: [%s]}"


def test_servers_that_run_tell_the_gammas_and_the_models(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, SERVED))
    assert config.is_served
    assert config.grid.gamma == (1, 3)
    assert config.draft_sampling == ("greedy",)
    assert (config.pairs[0].target, config.pairs[0].draft) == (
        ModelConfig(model="target"), ModelConfig(model="org/small"),
    )  # fmt: skip
    assert [(one.base_url, one.gamma) for one in config.pairs[0].engines] == [
        ("http://127.0.0.1:8000", 0), ("http://127.0.0.1:8001", 3), ("http://127.0.0.1:8002", 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        SERVED,
        LAUNCHED % VLLM,
        LAUNCHED
        % f"{VLLM}, arms: [{{name: own, speculative: {{num_speculative_tokens: 4, more: [[1, 2], {{a: no}}]}}}}]",
        SERVED + '      - {base_url: "http://127.0.0.1:8003", arm: adaptive}\n',
    ],
)
def test_the_full_form_comes_back_and_the_schema_takes_both(tmp_path: Path, text: str) -> None:
    config = load_config(write(tmp_path, text))
    assert load_config(write(tmp_path, config_to_yaml(config))) == config
    VALIDATOR.validate(read_yaml(text, Source("x")).value)
    VALIDATOR.validate(config.model_dump(mode="json"))


def test_what_is_not_told_is_unknown_and_lookups_are_no_model(tmp_path: Path) -> None:
    named = load_config(
        write(tmp_path, LAUNCHED % "launch: {command: 'serve --port {port} --gamma {gamma}'}, method: ngram")
    ).pairs[0]
    assert named.target == ModelConfig(model=UNKNOWN)
    assert named.draft == NgramDraft()


def test_a_command_is_split_into_words_as_a_shell_does() -> None:
    written = {"launch": {"command": "serve 'a b' --port {port} --spec {speculative}"}}
    launch = EngineConfig.model_validate(written).launch
    assert launch is not None
    assert launch.command == ("serve", "a b", "--port", "{port}", "--spec", "{speculative}")


@pytest.mark.parametrize(
    ("engine", "place"),
    [
        ("{launch: {}, kind: vllm, target: t}", ("draft",)),
        ("{launch: {}, kind: vllm, draft: t}", ("target",)),
        ("{launch: {}, target: t, draft: d}", ("kind",)),
        ("{launch: {}, kind: vllm, target: t, draft: d, gamma: 2}", ("gamma",)),
        ("{launch: {command: serve}}", ("launch", "command")),
        ("{launch: {command: 'serve {port} {gama}'}}", ("launch", "command")),
        ("{launch: {command: 'serve {port}', options: [--x]}}", ("launch", "options")),
        ('{launch: {command: "serve \'x"}}', ("launch", "command")),
        ("{gamma: 1}", ("base_url",)),
        ("{base_url: 'http://h:1'}", ("gamma",)),
        ("{base_url: 'h:1', gamma: 1}", ("base_url",)),
        ("{base_url: 'http://me:word@h:1', gamma: 1}", ("base_url",)),
        ("{base_url: 'http://h:1', gamma: 1, api_key_env: 'sk-1'}", ("api_key_env",)),
        ("{base_url: 'http://h:1', gamma: 2}", ("gamma",)),
        ("[{base_url: 'http://h:1', gamma: 1}, {base_url: 'http://h:2', gamma: 1}]", (1, "gamma")),
        ("[{base_url: 'http://h:1', gamma: 1}, {launch: {command: 'x {port}'}}]", ()),
        ("[]", ()),
        ("{base_url: 'http://h:1', gamma: 1, arm: own}", ("arm",)),
        ("{base_url: 'http://h:1', arm: '2'}", ("arm",)),
        ("[{base_url: 'http://h:1', arm: own}, {base_url: 'http://h:2', arm: Own}]", (1, "arm")),
        ("{base_url: 'http://h:1', gamma: 1, arms: [{name: own, speculative: {x: 1}}]}", ("arms",)),
        (ARMED % "{name: '4', speculative: {x: 1}}", ("arms", 0, "name")),
        (ARMED % "{name: exported, speculative: {x: 1}}", ("arms", 0, "name")),
        (ARMED % "{name: a, speculative: {x: 1}}, {name: A, speculative: {x: 1}}", ("arms", 1, "name")),
        (ARMED % "{name: a, speculative: {x: 1}, gama: 2}", ("arms", 0, "gama")),
        (ARMED % "{name: a}", ("arms", 0)),
        (ARMED % "{name: a, speculative: {}}", ("arms", 0, "speculative")),
        (ARMED % "{name: a, speculative: {num_speculative_tokens: 0}}", ("arms", 0, "speculative")),
        ("{launch: {}, kind: vllm, target: t, draft: d, arm: own}", ("arm",)),
        (
            "{launch: {}, kind: sglang, target: t, draft: d, arms: [{name: a, speculative: {num-steps: 3}}]}",
            ("arms", 0, "speculative"),
        ),
        (
            "{launch: {command: 'x {port} {gamma}'}, arms: [{name: a, speculative: {x: 1}}]}",
            ("launch", "command"),
        ),
    ],
)
def test_each_fault_has_its_place(tmp_path: Path, engine: str, place: tuple[str | int, ...]) -> None:
    text = f"name: one\npairs:\n  - name: a\n    engine: {engine}\ngrid: {{gamma: [1, 4]}}\n"
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, text))
    assert [fault.keys for fault in caught.value.faults] == [("pairs", 0, "engine", *place)]


def test_an_unknown_key_of_an_arm_is_told_with_the_nearest(tmp_path: Path) -> None:
    engine = ARMED % "{name: own, speculativ: {x: 1}}"
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, f"name: one\npairs: [{{name: a, engine: {engine}}}]\ngrid: {{gamma: 2}}\n"))
    (fault,) = caught.value.faults
    assert fault.words.endswith(
        "unknown key 'speculativ' in pairs[0].engine.arms[0]; did you mean 'speculative'? expected one of: name, "
        "speculative"
    )


FORCED = "%s\nvalidate: {acceptance: .8}\n"


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("kind: vllm, target: t, draft: d, launch: {}", None),
        ("kind: llama_cpp, target: t, draft: d, launch: {}", None),
        ("kind: vllm, draft: d, launch: {command: 's {port} {speculative}'}", None),
        (
            "kind: sglang, target: t, draft: d, launch: {}",
            "only vllm, llama_cpp can be made to accept drafts, not sglang",
        ),
        ("kind: vllm, launch: {command: 's {port} {gamma}'}", "or {speculative} in launch.command"),
        ("kind: vllm, base_url: 'http://h:1', gamma: 1", "a server that runs accepts by its models"),
    ],
)
def test_acceptance_is_forced_where_the_engine_can(tmp_path: Path, engine: str, words: str | None) -> None:
    path = write(tmp_path, FORCED % (LAUNCHED % engine))
    if words is None:
        assert load_config(path).validation is not None
        return
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    (fault,) = caught.value.faults
    assert fault.keys == ("validate", "acceptance")
    assert words in fault.words


@pytest.mark.parametrize("validate", ["policies: goodput", "acceptance: .5"])
def test_what_servers_cannot_do_is_refused(tmp_path: Path, validate: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, f"{SERVED}validate: {{{validate}}}\n"))
    assert [fault.keys[0] for fault in caught.value.faults] == ["validate"]


def test_a_run_has_one_source_of_its_times(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            write(tmp_path, f"{SERVED}  - {{name: b, target: embedded, draft: ngram}}\ngrid: {{gamma: [1, 3]}}\n")
        )
    assert [fault.keys for fault in caught.value.faults] == [("pairs", 1, "engine")]


def test_an_address_with_a_password_is_not_shown(tmp_path: Path) -> None:
    engine = "{base_url: 'http://me:word@h:1', gamma: 1}"
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, f"name: one\npairs:\n  - name: a\n    engine: {engine}\n"))
    assert "word" not in str(caught.value).replace("password", "")
