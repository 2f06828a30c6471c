"""The lines above an export, where an engine's rules differ, and releases as numbers."""

from __future__ import annotations

from typing import Any

import pytest

from specgauge.sweeps.exports import vllm
from specgauge.sweeps.exports.answers import ServingAnswers
from specgauge.sweeps.exports.engine import Engine, Request, header_lines, json_text, release_number, warnings_of
from specgauge.sweeps.exports.registry import ENGINES, undecided_of
from specgauge.sweeps.exports.schedule import DecidedRange
from tests.sweeps.exports.made_answers import STEPS, answers, gamma_range


@pytest.mark.parametrize(
    ("engine", "given", "warning"),
    [
        ("vllm", {"draft_sampling": "greedy"}, None),
        ("vllm", {"draft_sampling": "same", "rules_differ": False}, None),
        (
            "vllm",
            {"draft_sampling": "same"},
            "the default of vLLM is greedy drafts; draft_sample_method: probabilistic",
        ),
        ("sglang", {"draft_sampling": "same"}, "--draft-sampling greedy answers for the default"),
        ("tensorrt-llm", {"draft_sampling": "same"}, "use_rejection_sampling, a prototype"),
        ("llama.cpp", {"draft_sampling": "same"}, "--spec-draft-sampling probabilistic draws them, from b11368 on"),
        ("transformers", {"draft_sampling": "same"}, None),
        ("transformers", {"draft_sampling": "same", "acceptance_rule": "match"}, "accepts by the ratio rule"),
        (
            "transformers",
            {"draft_sampling": "greedy"},
            "the default of transformers is drafts drawn as the target draws",
        ),
        ("vllm", {"draft_sampling": None, "acceptance_rule": None}, "γ holds where the acceptance was taken so"),
    ],
)
def test_a_rule_that_the_engine_does_not_use_is_a_warning(
    engine: str, given: dict[str, Any], warning: str | None
) -> None:
    found = warnings_of(answers(**given), ENGINES[engine])
    assert len(found) == (warning is not None)
    assert warning is None or warning in found[0]


def header(given: ServingAnswers, engine: Engine = vllm.ENGINE, **request: Any) -> list[str]:
    (make,) = engine.forms.values()
    return list(header_lines(given, engine, make(given, Request(**request))))


def test_the_header_says_what_it_holds_for_and_how_to_check_it() -> None:
    lines = header(answers(draft_sampling="same", notes=("a note",), warnings=("a warning",)))
    assert lines == [
        "for vLLM, releases from 0.28 on; by specgauge export",
        "from runs/a, measured 2026-01-02 on cpu: pair p, sampling t1, context 64",
        "holds for drafts drawn as the target draws (same), accepted by the ratio rule; intervals are 90 %",
        "batch 4: γ 4, S 1.40 (1.30 to 1.50), 2.80 tokens a round",
        "batch 8: γ 2, S 1.47 (1.37 to 1.57), 2.20 tokens a round",
        "batch 32: γ 1, S 1.28 (1.18 to 1.38), 1.60 tokens a round",
        "beyond it nothing was measured: γ is 0",
        "vLLM drops the schedule under data parallelism over 1, and then always drafts num_speculative_tokens",
        "a note",
        "the default of vLLM is greedy drafts; draft_sample_method: probabilistic is set, which holds the drafts' "
        "logits in memory; --draft-sampling greedy answers for the default",
        "a warning",
        "costs are those of runs/a; vLLM has its own, so check: `vllm bench serve --model org/target --dataset-name "
        "custom --dataset-path PROMPTS.jsonl --max-concurrency 4`; expect an acceptance length of 2.80 (bonus "
        "included), and 1.40 × the tokens a second of the same server without drafts",
    ]


def test_open_decisions_between_batch_sizes_are_told_in_schedules() -> None:
    ranges = [gamma_range(*step) for step in STEPS]
    open_ = [
        DecidedRange(first=first, last=last, gamma=0, verdict="undecided", reason="who knows")
        for first, last in ((33, 40), (41, 41))
    ]
    given = answers(ranges=(*ranges, *open_))
    assert "batch 33 to 40: γ 0, undecided: who knows" in header(given)
    assert "batch 41: γ 0, undecided: who knows" in header(given)
    assert "batch 33 to 40: γ 0, undecided: who knows" not in header(given, batch_size=8)


def test_a_greedy_target_says_that_other_rules_are_alike() -> None:
    (_, _, rules, *_) = header(answers(rules_differ=False))
    assert rules.startswith("holds for every draft sampling and acceptance rule: a greedy target and lookups accept ")


def test_releases_are_in_order() -> None:
    ordered = ["0.9", "0.28.0rc1", "v0.28", "1.2.1", "1.3.0rc7", "1.3.0rc8", "1.3.0rc24", "1.3.0", "1.3.1.dev3", "2"]
    numbers = [release_number(release, "x", "1") for release in ordered]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers)
    assert release_number("1.2.0.post1", "x", "1") == release_number("1.2", "x", "1")


@pytest.mark.parametrize(
    ("written", "found"), [(None, "off"), ("off", "off"), ("gamma", "gamma"), ("γ", "gamma"), ("3", 3), (2, 2)]
)
def test_what_open_decisions_export(written: str | int | None, found: str | int) -> None:
    assert undecided_of(written) == found


@pytest.mark.parametrize("written", ["on", "0", "-1", "1.5", ""])
def test_other_words_for_open_decisions_are_refused(written: str) -> None:
    with pytest.raises(ValueError, match="undecided: expected off, gamma or a gamma such as 2, got "):
        undecided_of(written)


def test_json_is_strict_and_has_a_line_for_each_key() -> None:
    assert json_text({"a": [[1, 2]], "γ": "é"}) == '{\n  "a": [[1, 2]],\n  "\\u03b3": "\\u00e9"\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": float("nan")})
