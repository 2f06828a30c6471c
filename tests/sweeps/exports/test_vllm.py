"""The JSON of vLLM's `--speculative-config`, held against what `vllm/config/speculative.py` (0.32) takes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specgauge.sweeps.exports.answers import DraftSource, ServingAnswers
from specgauge.sweeps.exports.engine import Request
from specgauge.sweeps.exports.vllm import speculative_config
from tests.sweeps.exports.made_answers import EAGLE, LAYERS, NGRAM, answers

FIELDS = {
    "method", "model", "num_speculative_tokens", "num_speculative_tokens_per_batch_size", "draft_sample_method",
    "prompt_lookup_max", "prompt_lookup_min",
}  # fmt: skip
"""Some of `SpeculativeConfig`, which forbids others (`extra="forbid"`)."""
METHODS = {"ngram", "draft_model", "eagle3"}
DRAFT_SAMPLE_METHODS = {"greedy", "probabilistic"}


def check(config: dict[str, Any]) -> None:
    """What vLLM's own validation asks for, in its words."""
    assert set(config) <= FIELDS
    assert config["method"] in METHODS
    assert config["num_speculative_tokens"] > 0
    assert config.get("draft_sample_method", "greedy") in DRAFT_SAMPLE_METHODS
    previous_end = 0
    for range_start, range_end, tokens in config.get("num_speculative_tokens_per_batch_size", ()):
        assert range_start == previous_end + 1  # starts at 1, "non-overlapping and sorted", and here without gaps
        assert range_start <= range_end
        assert 0 <= tokens <= config["num_speculative_tokens"]
        previous_end = range_end


def config_of(given: ServingAnswers, **request: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(speculative_config(given, Request(**request)).content)
    check(found)
    return found


def test_ranges_start_at_1_leave_no_gap_and_end_off() -> None:
    assert config_of(answers()) == {
        "method": "draft_model",
        "model": "org/draft",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 8, 2], [9, 32, 1], [33, 1024, 0]],
    }


def test_what_is_off_at_the_end_goes_on() -> None:
    found = config_of(answers([(1, 8, 2), (9, 600, 0)]))
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 8, 2], [9, 1200, 0]]


def test_the_largest_gamma_is_the_limit_wherever_it_stands() -> None:
    found = config_of(answers([(1, 2, 0), (3, 8, 4), (9, 16, 2)]))
    assert found["num_speculative_tokens"] == 4
    assert found["num_speculative_tokens_per_batch_size"] == [[1, 2, 0], [3, 8, 4], [9, 16, 2], [17, 1024, 0]]


@pytest.mark.parametrize(
    ("draft", "method"),
    [
        (NGRAM, {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}),
        (EAGLE, {"method": "eagle3", "model": "org/eagle"}),
        (LAYERS, {"method": "draft_model", "model": "DRAFT"}),
        (DraftSource(kind="model"), {"method": "draft_model", "model": "DRAFT"}),
    ],
)
def test_the_method_is_that_of_the_draft(draft: DraftSource, method: dict[str, Any]) -> None:
    found = config_of(answers(draft=draft))
    assert {name: found[name] for name in found if name in ("model", "method") or "lookup" in name} == method
    export = speculative_config(answers(draft=draft), Request())
    assert any("DRAFT" in note for note in export.notes) is (method.get("model") == "DRAFT")


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"draft_sampling": "same"}, "probabilistic"),
        ({"draft_sampling": "greedy"}, None),
        ({"draft_sampling": "same", "rules_differ": False}, None),
        ({"draft_sampling": None}, None),
    ],
)
def test_drawn_drafts_are_asked_for(given: dict[str, Any], method: str | None) -> None:
    assert config_of(answers(**given)).get("draft_sample_method") == method


def test_one_batch_size_or_a_release_before_the_schedule_takes_one_gamma() -> None:
    assert config_of(answers(), batch_size=8)["num_speculative_tokens"] == 2
    for found in (config_of(answers(), batch_size=8), config_of(answers(), release="0.19.1")):
        assert "num_speculative_tokens_per_batch_size" not in found
    assert config_of(answers(), release="0.19.1")["num_speculative_tokens"] == 4
    assert "num_speculative_tokens_per_batch_size" in config_of(answers(), release="v0.28.0rc1")
    drawn = config_of(answers(draft_sampling="same"), release="0.19.1")
    assert "draft_sample_method" not in drawn  # a field that such a release may refuse


def test_it_says_what_to_expect_of_which_command() -> None:
    assert speculative_config(answers(), Request()).check == (
        "`vllm bench serve --model org/target --dataset-name custom --dataset-path PROMPTS.jsonl --max-concurrency 4`; "
        "expect an acceptance length of 2.80 (bonus included), and 1.40 × the tokens a second of the same server "
        "without drafts"
    )


@pytest.mark.parametrize("release", ["newest", "0.3x", ""])
def test_other_releases_are_refused(release: str) -> None:
    with pytest.raises(ValueError, match=r"release: expected one of vLLM, such as 0\.32\.0, got "):
        speculative_config(answers(), Request(release=release))
