"""TensorRT-LLM's YAML, held against `DecodingBaseConfig` of both lines of releases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from specgauge.sweeps.exports.answers import DraftSource, ServingAnswers
from specgauge.sweeps.exports.engine import Request
from specgauge.sweeps.exports.tensorrt_llm import speculative_config
from tests.sweeps.exports.made_answers import EAGLE, LAYERS, NGRAM, answers

COMMON = {"decoding_type", "max_draft_len", "draft_len_schedule", "speculative_model", "max_matching_ngram_size"}
OLD = COMMON | {"acceptance_window", "acceptance_length_threshold"}
NEW = COMMON | {"acceptance_rate_window_size", "acceptance_rate_threshold"}
"""Some fields of the configuration, which forbids others (`StrictBaseModel`)."""
DECODING_TYPES = {"Draft_Target", "Eagle3", "NGram"}
OLD_RELEASES, NEW_RELEASES = ("1.2.1", "1.3.0rc7"), ("1.3.0rc24", "1.3.0", "1.4", None)


def config_of(given: ServingAnswers, release: str | None) -> dict[str, Any]:
    """The section, checked as the validators of the releases do."""
    export = speculative_config(given, Request(release=release))
    assert all(line.isascii() for line in export.content)
    (section,) = yaml.safe_load(export.content).values()
    assert set(section) <= (OLD if release in (*OLD_RELEASES, "1.3.0rc8") else NEW)
    assert section["decoding_type"] in DECODING_TYPES
    schedule = section["draft_len_schedule"]
    assert list(schedule) == sorted(schedule)
    assert schedule[min(schedule)] == section["max_draft_len"] == max(schedule.values()) > 0
    if release in OLD_RELEASES:
        assert min(schedule) == 1
    assert 0 <= section.get("acceptance_rate_threshold", 0) <= 1
    found: dict[str, Any] = section
    return found


@pytest.mark.parametrize("release", NEW_RELEASES)
def test_now_a_key_means_up_to(release: str | None) -> None:
    """1 + γ / 4 plain steps break even at γ / 4 drafts accepted, a quarter of those drafted."""
    assert config_of(answers(), release) == {
        "decoding_type": "Draft_Target",
        "speculative_model": "org/draft",
        "max_draft_len": 4,
        "draft_len_schedule": {4: 4, 8: 2, 32: 1},
        "acceptance_rate_window_size": 1000,
        "acceptance_rate_threshold": 0.25,
    }


@pytest.mark.parametrize("release", OLD_RELEASES)
def test_before_a_key_meant_from_on(release: str) -> None:
    """At γ 1, the smallest used, a quarter of a draft has to be accepted."""
    assert config_of(answers(), release) == {
        "decoding_type": "Draft_Target",
        "speculative_model": "org/draft",
        "max_draft_len": 4,
        "draft_len_schedule": {1: 4, 5: 2, 9: 1, 33: 0},
        "acceptance_window": 100,
        "acceptance_length_threshold": 0.25,
    }


def test_where_the_names_of_the_thresholds_are_not_known_there_are_none() -> None:
    found = config_of(answers(), "1.3.0rc14")
    assert found["draft_len_schedule"] == {4: 4, 8: 2, 32: 1}
    assert not [name for name in found if name.startswith("acceptance")]
    first = config_of(answers(), "1.3.0rc8")  # the schedule of now, the thresholds of before
    assert (first["draft_len_schedule"], first["acceptance_length_threshold"]) == ({4: 4, 8: 2, 32: 1}, 0.25)


@pytest.mark.parametrize(
    ("release", "meaning"), [("1.2.1", "from that batch size on"), (None, "up to that batch size")]
)
def test_it_names_the_release_it_is_for(release: str | None, meaning: str) -> None:
    export = speculative_config(answers(), Request(release=release))
    assert f"a key of draft_len_schedule means {meaning}" in export.release
    assert any("--release" in note for note in export.notes) is (release is None)


def test_what_is_off_in_between_and_at_the_end() -> None:
    given = answers([(1, 4, 4), (5, 8, 0), (9, 16, 2), (17, 32, 0)])
    assert config_of(given, None)["draft_len_schedule"] == {4: 4, 8: 0, 16: 2}
    assert config_of(given, "1.2.1")["draft_len_schedule"] == {1: 4, 5: 0, 9: 2, 17: 0}


def test_no_batch_size_has_more_drafts_than_the_smallest() -> None:
    given = answers([(1, 4, 2), (5, 8, 4), (9, 32, 1)])
    assert config_of(given, None)["draft_len_schedule"] == {8: 2, 32: 1}
    told = "batch sizes 5 to 8 take 2 drafts instead of 4: none may have more than the smallest"
    assert told in speculative_config(given, Request()).notes
    told = "γ 4 pays at larger batch sizes alone, .* its smallest batch sizes have the most drafts"
    rising = answers([(1, 4, 0), (5, 8, 4)])
    with pytest.raises(ValueError, match=f"{told}$"):
        speculative_config(rising, Request())
    first, *others = rising.points
    with pytest.raises(ValueError, match=f"{told}; they are undecided here: --undecided gamma writes theirs$"):
        speculative_config(replace(rising, points=(replace(first, verdict="undecided"), *others)), Request())


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (EAGLE, {"decoding_type": "Eagle3", "speculative_model": "org/eagle"}),
        (NGRAM, {"decoding_type": "NGram", "max_matching_ngram_size": 4}),
        (LAYERS, {"decoding_type": "Draft_Target", "speculative_model": "DRAFT"}),
        (DraftSource(kind="model", model="a: b\n"), {"decoding_type": "Draft_Target", "speculative_model": "a: b\n"}),
    ],
)
def test_the_decoding_type_is_that_of_the_draft(draft: DraftSource, words: dict[str, Any]) -> None:
    found = config_of(answers(draft=draft), None)
    assert {name: found[name] for name in COMMON - {"max_draft_len", "draft_len_schedule"} if name in found} == words
