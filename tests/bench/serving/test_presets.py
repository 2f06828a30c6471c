import json
import re
from pathlib import Path
from typing import Any

import pytest

from specgauge.bench.serving.presets import METHODS, Command, Served, filled, preset, speculation

FOLDER = Path("server")
VLLM = Served(kind="vllm", target="org/model", draft="org/small")


def words_of(served: Served, gamma: int) -> list[str]:
    return list(preset(served, gamma=gamma, port=8001, folder=FOLDER).words)


def test_vllm() -> None:
    start = ["vllm", "serve", "org/model", "--host", "127.0.0.1", "--port", "8001"]
    assert words_of(VLLM, 0) == start
    *same, option, config = words_of(VLLM, 3)
    assert [*same, option] == [*start, *TOLD]
    assert json.loads(config) == {"method": "draft_model", "model": "org/small", "num_speculative_tokens": 3}


@pytest.mark.parametrize(
    ("served", "config"),
    [
        (
            Served(kind="vllm", target="t", method="ngram", draft="ngram", longest=4, shortest=2),
            {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2, "num_speculative_tokens": 2},
        ),
        (Served(kind="vllm", target="t", method="mtp"), {"method": "mtp", "num_speculative_tokens": 2}),
        (
            Served(kind="vllm", target="t", method="eagle3", draft="e"),
            {"method": "eagle3", "model": "e", "num_speculative_tokens": 2},
        ),
    ],
)
def test_methods_of_vllm(served: Served, config: dict[str, object]) -> None:
    assert json.loads(words_of(served, 2)[-1]) == config


def test_sglang_has_one_draft_token_more_than_steps() -> None:
    served = Served(kind="sglang", target="t", draft="d", options=("--mem-fraction-static", "0.8"))
    start = "python3 -m sglang.launch_server --model-path t --host 127.0.0.1 --port 8001 --enable-metrics"
    assert words_of(served, 0) == f"{start} --mem-fraction-static 0.8".split()
    assert (
        words_of(served, 3)
        == (
            f"{start} --speculative-algorithm STANDALONE --speculative-draft-model-path d --speculative-num-steps 3 "
            "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --mem-fraction-static 0.8"
        ).split()
    )
    assert (
        words_of(Served(kind="sglang", target="t", method="ngram"), 2)
        == (
            f"{start} --speculative-algorithm NGRAM --speculative-num-steps 2 --speculative-eagle-topk 1 "
            "--speculative-num-draft-tokens 3 --speculative-ngram-max-bfs-breadth 1"
        ).split()
    )


def test_llama_server() -> None:
    start = "llama-server --model t.gguf --host 127.0.0.1 --port 8001 --parallel 4 --metrics"
    served = Served(kind="llama_cpp", target="t.gguf", draft="d.gguf", slots=4)
    assert words_of(served, 0) == start.split()
    assert (
        words_of(served, 2)
        == (f"{start} --spec-draft-model d.gguf --spec-draft-n-max 2 --spec-draft-n-min 0 --spec-draft-p-min 0").split()
    )
    lookup = Served(kind="llama_cpp", target="t.gguf", method="ngram", slots=4)
    assert (
        words_of(lookup, 2)
        == (f"{start} --spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 2").split()
    )


def test_tensorrt_llm_reads_a_file(tmp_path: Path) -> None:
    served = Served(kind="tensorrt_llm", target="t", draft="d")
    start = ["trtllm-serve", "t", "--host", "127.0.0.1", "--port", "8001"]
    assert preset(served, gamma=0, port=8001, folder=tmp_path) == Command(words=tuple(start))
    made = preset(served, gamma=2, port=8001, folder=tmp_path / "new")
    made.write_files()
    path = tmp_path / "new" / "speculative-2.yaml"
    assert list(made.words) == [*start, "--extra_llm_api_options", str(path)]
    assert path.read_text(encoding="utf-8") == (
        'speculative_config:\n  decoding_type: Draft_Target\n  max_draft_len: 2\n  speculative_model: "d"\n'
    )


@pytest.mark.parametrize("kind", METHODS)
def test_every_method_of_every_kind_drafts_and_the_plain_server_says_nothing_of_it(kind: str) -> None:
    for method in METHODS[kind]:
        served = Served(kind=kind, target="t", draft="d", method=method)
        assert len(words_of(served, 1)) > len(words_of(served, 0))
        assert not [word for word in words_of(served, 0) if re.search(r"speculative|spec-", word)]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "ollama"}, "engine.kind: expected one of vllm, sglang, llama_cpp, tensorrt_llm, got 'ollama'"),
        (
            {"kind": "llama_cpp", "method": "mtp"},
            "engine.method: expected one of draft_model, ngram for llama_cpp, got 'mtp'; for another write the command "
            "yourself (launch.command)",
        ),
        (
            {"kind": "sglang", "method": "ngram", "alpha": 0.8},
            "validate.acceptance: expected an engine that can be made to accept drafts (vllm, llama_cpp), got sglang",
        ),
        ({"kind": "vllm", "draft": "d", "alpha": 1.5}, "validate.acceptance: expected 0 to 1, got 1.5"),
        ({"kind": "vllm"}, "engine.draft: expected the draft model, since method is draft_model, got null"),
    ],
)
def test_what_is_not_known_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        Served(target="t", **fields)


TOLD = ["--enable-per-request-metrics", "--per-request-spec-decode-metrics", "detailed", "--speculative-config"]
CONFIG = '{"method": "draft_model", "model": "org/small", "num_speculative_tokens": 2}'


@pytest.mark.parametrize(
    ("command", "gamma", "words"),
    [
        (["serve", "-p", "{port}", "{speculative}"], 2, ["serve", "-p", "8001", *TOLD, CONFIG]),
        (["serve", "-p", "{port}", "{speculative}"], 0, ["serve", "-p", "8001"]),
        (["serve", "--speculative-config", "{speculative}", "-x"], 2, ["serve", *TOLD, CONFIG, "-x"]),
        (["serve", "--speculative-config", "{speculative}", "-x"], 0, ["serve", "-x"]),
        (
            ["serve", "--speculative-config={speculative}", "-x"],
            2,
            ["serve", *TOLD[:-1], f"--speculative-config={CONFIG}", "-x"],
        ),
        (["serve", "--speculative-config={speculative}", "-x"], 0, ["serve", "-x"]),
        (["serve", "--enforce-eager", "{speculative}"], 0, ["serve", "--enforce-eager"]),
        (["start.sh", "{gamma}", '{"a": {"n": {gamma}}}'], 2, ["start.sh", "2", '{"a": {"n": 2}}']),
        (["start.sh", "{gamma}"], 0, ["start.sh", "0"]),
    ],
)
def test_a_users_command_is_filled_in(command: list[str], gamma: int, words: list[str]) -> None:
    assert filled(command, gamma=gamma, port=8001, folder=FOLDER, served=VLLM).words == tuple(words)


def test_the_file_of_a_users_command(tmp_path: Path) -> None:
    served = Served(kind="tensorrt_llm", target="t", method="ngram")
    made = filled(["s", "--config", "{speculative}"], gamma=4, port=1, folder=tmp_path, served=served)
    path = tmp_path / "speculative-4.yaml"
    assert made.words == ("s", "--config", str(path))
    assert made.files == {
        path: "speculative_config:\n  decoding_type: NGram\n  max_draft_len: 4\n  max_matching_ngram_size: 3\n"
    }


@pytest.mark.parametrize(
    ("command", "served", "words"),
    [
        (["serve", "{port}"], VLLM, "expected {gamma} or {speculative} in it, since γ 2 is to be started, got neither"),
        (["serve", "{speculative}"], None, "{speculative} needs engine.kind (vllm, sglang, llama_cpp, tensorrt_llm)"),
        (["serve", "x{speculative}"], VLLM, "expected {speculative} as a word of its own or --speculative-config="),
        (
            ["serve", "--a={speculative}"],
            Served(kind="llama_cpp", target="t", draft="d"),
            "expected {speculative} as a word of its own, got '--a={speculative}'",
        ),
    ],
)
def test_commands_that_cannot_be_filled_in(command: list[str], served: Served | None, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"launch.command: {words}")):
        filled(command, gamma=2, port=8001, folder=FOLDER, served=served)


def test_the_line_is_what_one_types() -> None:
    command = Command(words=("serve", '{"a": 1}'), env={"NAME": "a b"})
    assert command.line == "NAME='a b' serve '{\"a\": 1}'"


def test_drafts_accepted_at_a_rate_that_is_given() -> None:
    served = Served(kind="vllm", target="t", draft="d", alpha=0.8)
    config = json.loads(words_of(served, 3)[-1])
    assert config["rejection_sample_method"] == "synthetic"
    assert config["synthetic_acceptance_rates"] == [0.8, 0.64, 0.512]
    llama = Served(kind="llama_cpp", target="t", draft="d", alpha=0.8)
    assert words_of(llama, 2)[-2:] == ["--spec-synth-rates", "0.8,0.64"]
    assert words_of(llama, 0) == words_of(Served(kind="llama_cpp", target="t", draft="d"), 0)


def test_drafts_accepted_at_a_rate_for_each_position() -> None:
    served = Served(kind="vllm", target="t", draft="d", alpha=(0.9, 0.5, 0.1))
    assert json.loads(words_of(served, 2)[-1])["synthetic_acceptance_rates"] == [0.9, 0.45]
    with pytest.raises(ValueError, match=r"^validate\.acceptance: expected 0 to 1, got 2$"):
        Served(kind="vllm", target="t", draft="d", alpha=(0.9, 2.0))


def test_an_engines_own_settings_stand_beside_ours_or_in_their_place() -> None:
    schedule = [[1, 8, 3], [9, 64, 0]]
    own = {"num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": schedule}
    assert json.loads(words_of(Served(kind="vllm", target="t", draft="d", own=own), 5)[-1]) == {
        "method": "draft_model", "model": "d", **own,
    }  # fmt: skip
    own = {"speculative-num-steps": 3, "speculative_adaptive": True, "speculative-num-draft-tokens": False}
    adaptive = {"speculative-adaptive-config": {"1": [3], "8": [0]}}
    words, files = speculation(Served(kind="sglang", target="t", draft="d", own=own | adaptive), 5, FOLDER)
    path = FOLDER / "speculative-adaptive-config.json"
    assert words[4:] == (
        "--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-adaptive",
        "--speculative-adaptive-config", str(path),
    )  # fmt: skip
    assert json.loads(files[path]) == adaptive["speculative-adaptive-config"]
    served = Served(kind="tensorrt_llm", target="t", draft="d/e", own={"draft_len_schedule": {4: 4, 8: 2}})
    _, files = speculation(served, 4, FOLDER)
    assert next(iter(files.values())) == (
        'speculative_config:\n  decoding_type: Draft_Target\n  max_draft_len: 4\n  speculative_model: "d/e"\n'
        "  draft_len_schedule: {4: 4, 8: 2}\n"
    )
