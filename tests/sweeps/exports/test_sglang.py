"""SGLang's flags and files, held against what SGLang 0.5.23 takes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from specgauge.sweeps.exports.answers import DraftSource, ServingAnswers
from specgauge.sweeps.exports.engine import Export, Request
from specgauge.sweeps.exports.sglang import adaptive, dspark_table, flags
from tests.sweeps.exports.made_answers import EAGLE, LAYERS, NGRAM, answers, single

OPTIONS = {
    "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps", "--speculative-eagle-topk",
    "--speculative-num-draft-tokens", "--speculative-use-rejection-sampling", "--speculative-ngram-max-bfs-breadth",
}  # fmt: skip
"""Of `srt/arg_groups/fields/spec.py`, dashes for underscores."""
ALGORITHMS = {"EAGLE", "EAGLE3", "STANDALONE", "NGRAM"}
SLOT = {"candidate_steps", "up_hysteresis", "down_hysteresis", "ceiling_coeff"}
SERVER = {"ema_alpha": 0.2, "update_interval": 5, "warmup_batches": 10}
"""The defaults of `AdaptiveStepSlot`, which entries of a batch size inherit."""


def options(export: Export) -> dict[str, str]:
    words = shlex.split(export.content)
    found = {word: after for word, after in pairwise([*words, "--"]) if word.startswith("--")}
    assert set(found) <= OPTIONS
    assert found["--speculative-algorithm"] in ALGORITHMS
    return found


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_a_chain_is_as_many_steps_and_a_token_more(gamma: int) -> None:
    found = options(flags(single(gamma), Request()))
    assert found["--speculative-num-steps"] == str(gamma)
    assert found["--speculative-num-draft-tokens"] == str(gamma + 1)
    assert found["--speculative-eagle-topk"] == "1"


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (DraftSource(kind="model", model="org/draft"), "STANDALONE --speculative-draft-model-path org/draft"),
        (EAGLE, "EAGLE3 --speculative-draft-model-path org/eagle"),
        (LAYERS, "STANDALONE --speculative-draft-model-path DRAFT"),
        (NGRAM, "NGRAM"),
    ],
)
def test_the_algorithm_is_that_of_the_draft(draft: DraftSource, words: str) -> None:
    content = flags(single(draft=draft), Request()).content
    chain = "--speculative-num-steps 4 --speculative-eagle-topk 1 --speculative-num-draft-tokens 5"
    end = " --speculative-ngram-max-bfs-breadth 1" if draft is NGRAM else ""
    assert content == f"--speculative-algorithm {words} {chain}{end}\n"


@pytest.mark.parametrize("form", [flags, adaptive])
def test_drawn_drafts_are_for_eagle_alone(form: Callable[[ServingAnswers, Request], Export]) -> None:
    given: dict[str, Any] = {"draft_sampling": "same"}
    told = [
        "--speculative-use-rejection-sampling" in " ".join([export.content, *export.notes])
        for export in (form(single(draft=EAGLE, **given), Request()), form(single(**given), Request()))
    ]
    assert told == [True, False]


def test_other_batch_sizes_are_named_or_chosen() -> None:
    assert "γ is that of batch size 4; --form adaptive has all" in flags(answers(), Request()).notes
    assert options(flags(answers(), Request(batch_size=32)))["--speculative-num-steps"] == "1"


def test_adaptive_entries_hold_from_their_batch_size_on() -> None:
    content = json.loads(adaptive(answers(draft=EAGLE), Request()).content)
    slots = {key: slot for key, slot in content.items() if key.isdigit()}
    assert {key: slot["candidate_steps"] for key, slot in slots.items()} == {"1": [4], "5": [2], "9": [1], "33": [0]}
    assert all(set(slot) == SLOT for slot in slots.values())
    assert {key: value for key, value in content.items() if not key.isdigit()} == SERVER


def test_adaptive_steps_that_are_off_at_the_end_stay_off() -> None:
    content = json.loads(adaptive(answers([(1, 4, 2), (5, 9, 0)]), Request()).content)
    assert [key for key in content if key.isdigit()] == ["1", "5"]


def test_the_server_starts_at_a_candidate_and_has_whole_ones_alone() -> None:
    """SGLang refuses to start with steps that are in no entry, and entries whose candidates are no whole numbers."""
    export = adaptive(answers([(1, 4, 0), (5, 8, 2), (9, 32, 4)], draft=EAGLE), Request())
    entries = [entry for key, entry in json.loads(export.content).items() if key.isdigit()]
    candidates = [steps for entry in entries for steps in entry["candidate_steps"]]
    words = shlex.split(export.notes[0])
    assert int(words[words.index("--speculative-num-steps") + 1]) in candidates
    assert all(type(steps) is int and steps >= 0 for steps in candidates)


def test_adaptive_says_which_drafts_it_is_for() -> None:
    told = "SGLang adapts for EAGLE and EAGLE3 drafts alone, without attention data parallelism"
    assert told in adaptive(answers(), Request()).notes
    eagle = adaptive(answers(draft=EAGLE), Request())
    assert told not in eagle.notes
    assert (
        "--speculative-num-draft-tokens 5 --speculative-adaptive --speculative-adaptive-config FILE" in eagle.notes[0]
    )


def test_a_cost_table_has_rounds_a_second_by_tokens_verified() -> None:
    """At γ 4 a round takes 2 plain steps of 10 ms; 4, 8 and 32 rows verify 5 tokens each."""
    content = json.loads(dspark_table(answers(), Request()).content)
    assert content == {
        "sample_batch_tokens": [20, 40, 160],
        "sample_steps_per_sec": [50.0, 50.0, 50.0],
        "max_batch_tokens": 160,
    }
    tokens, rates = content["sample_batch_tokens"], content["sample_steps_per_sec"]
    assert tokens == sorted(set(tokens))  # as SpsCostTable asks: rising, as many rates, and a limit that holds them
    assert (len(rates), content["max_batch_tokens"] >= tokens[-1]) == (len(tokens), True)


def test_a_cost_table_of_one_batch_size_is_refused() -> None:
    with pytest.raises(ValueError, match="runs/a: a cost table needs rounds of γ 4 at two batch sizes or more, got 1"):
        dspark_table(single(), Request())
