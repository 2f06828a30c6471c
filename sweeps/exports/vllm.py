"""vLLM: `--speculative-config`, with γ by batch size in ranges that start at 1 and leave no gap.

Read in vLLM 0.32 (`vllm/config/speculative.py`, `vllm/v1/spec_decode/dynamic/utils.py`): entries are
(first, last, tokens), both ends included, rising, from 1; tokens are cut to `num_speculative_tokens`, which is above 0;
past the last range its tokens go on, so the last one says 0. Data parallelism drops the schedule.
"""

from __future__ import annotations

from typing import Any

from specgauge.sweeps.exports.answers import DraftSource, ServingAnswers
from specgauge.sweeps.exports.engine import (
    DRAFT,
    TARGET,
    DraftRules,
    Engine,
    Export,
    Request,
    expectation,
    json_text,
    placeholder_notes,
    release_number,
)

SCHEDULE_SINCE = (0, 28)
"""The first release that is known here to take a schedule and `draft_sample_method`."""
LAST_BATCH_SIZE = 1024
"""Where the range that is off ends, unless more was measured; vLLM carries it on."""
_DROPPED = "vLLM drops the schedule under data parallelism over 1, and then always drafts num_speculative_tokens"
_NO_SCHEDULE = "this release is not known to take a schedule by batch size: one γ for all, --batch-size chooses"


def speculative_config(answers: ServingAnswers, request: Request) -> Export:
    """The JSON of `--speculative-config`; of releases before the schedule, one γ.

    Raises:
        ValueError: nothing pays, or no such release.
    """
    is_new = request.release is None or release_number(request.release, "vLLM", "0.32.0")[:2] >= SCHEDULE_SINCE
    is_schedule = is_new and request.batch_size is None
    content = _method(answers.draft)
    if is_schedule:
        content["num_speculative_tokens"] = answers.largest_gamma
        content["num_speculative_tokens_per_batch_size"] = ranges(answers)
    else:
        content["num_speculative_tokens"] = answers.fixed(request.batch_size).gamma
    if answers.rules_differ and answers.draft_sampling == "same" and is_new:
        content["draft_sample_method"] = "probabilistic"
    notes = [_DROPPED] if is_schedule else []
    if not is_new:
        notes.append(_NO_SCHEDULE)
    return Export(
        content=json_text(content),
        release=f"release {request.release}" if request.release else "releases from 0.28 on",
        check=_check(answers, request),
        is_schedule=is_schedule,
        notes=(*placeholder_notes(answers, "vLLM"), *notes),
    )


def ranges(answers: ServingAnswers) -> list[list[int]]:
    """[first, last, γ] from 1 on without gaps, off beyond the largest batch size known."""
    found = [[step.first, step.last, step.gamma] for step in answers.steps]
    last = max(LAST_BATCH_SIZE, 2 * answers.largest_batch)
    if found[-1][2] == 0:
        found[-1][1] = last
    else:
        found.append([answers.largest_batch + 1, last, 0])
    return found


def _method(draft: DraftSource) -> dict[str, Any]:
    match draft.kind:
        case "ngram":
            return {"method": "ngram", "prompt_lookup_max": draft.longest, "prompt_lookup_min": draft.shortest}
        case "eagle3":
            return {"method": "eagle3", "model": draft.model or DRAFT}
        case "model" | "layers":
            return {"method": "draft_model", "model": draft.model or DRAFT}


def _check(answers: ServingAnswers, request: Request) -> str:
    size, expected = expectation(answers, request)
    return (
        f"`vllm bench serve --model {answers.target or TARGET} --dataset-name custom --dataset-path PROMPTS.jsonl "
        f"--max-concurrency {size}`; {expected}"
    )


ENGINE = Engine(
    title="vLLM",
    rules=DraftRules(draft_sampling="greedy", acceptance_rule="ratio"),
    other_rules="draft_sample_method: probabilistic is set, which holds the drafts' logits in memory",
    forms={"config": speculative_config},
)
