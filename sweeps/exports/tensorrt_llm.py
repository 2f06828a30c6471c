"""TensorRT-LLM: `speculative_config` in YAML, with `draft_len_schedule` in the meaning of the release.

Read in `tensorrt_llm/llmapi/llm_args.py` of 1.2.1 and of the line that follows 1.3.0rc8 (17 March 2026):

    1.3.0rc8 on    {4: 4, 8: 2, 32: 1}           up to 4 requests 4 drafts, up to 8 two, up to 32 one, beyond none
    before         {1: 4, 5: 2, 9: 1, 33: 0}     from that batch size on; it has an entry for 1

In both the smallest key has `max_draft_len`, and no entry is larger.  Speculation switches itself off for good once a
mean over a window falls below a threshold, whose names changed after 1.3.0rc8: accepted drafts a round
(`acceptance_window`, `acceptance_length_threshold`), later accepted over drafted (`acceptance_rate_window_size`,
`acceptance_rate_threshold`).  The thresholds written are those below which S is under 1 at every batch size.
"""

from __future__ import annotations

import json

from specgauge.model.schedule import ScheduleStep
from specgauge.sweeps.exports.answers import DraftSource, ServingAnswers
from specgauge.sweeps.exports.engine import (
    DRAFT,
    TARGET,
    DraftRules,
    Engine,
    Export,
    Request,
    expectation,
    from_on,
    placeholder_notes,
    refuse_batch_size,
    release_number,
)

UP_TO_SINCE = (1, 3, 0, 8)
"""The first release in which a key of the schedule means up to."""
OLD_NAMES_TO, NEW_NAMES_SINCE = (1, 3, 0, 8), (1, 3, 0, 24)
"""The last release that is known to have the old names of the thresholds, and the first known to have the new ones."""
WINDOW_REQUESTS, WINDOW_ITERATIONS = 100, 1000
NEWEST = (1, 3, 0, 1_000_000_000)


def speculative_config(answers: ServingAnswers, request: Request) -> Export:
    """The YAML of `speculative_config`.

    Raises:
        ValueError: nothing pays, only larger batch sizes do, a single one is asked for, or no such release.
    """
    refuse_batch_size(request)
    release = NEWEST if request.release is None else release_number(request.release, "TensorRT-LLM", "1.3.0rc8")
    steps, notes = _falling(answers)
    is_up_to = release >= UP_TO_SINCE
    schedule = up_to(steps) if is_up_to else from_on(steps, answers.largest_batch)
    switch_off = _switch_off(answers, release)
    lines = ["speculative_config:", *(f"  {line}" for line in _drafter(answers.draft))]
    lines += [f"  max_draft_len: {steps[0].gamma}", "  draft_len_schedule:"]
    lines += [f"    {size}: {gamma}" for size, gamma in schedule.items()]
    lines += [f"  {name}: {value}" for name, value in switch_off.items()]
    size, expected = expectation(answers, request)
    meaning = "up to that batch size" if is_up_to else "from that batch size on"
    bounds = "from 1.3.0rc8 on" if is_up_to else "before 1.3.0rc8"
    named = f"release {request.release}" if request.release else f"releases {bounds}"
    return Export(
        content="\n".join(lines) + "\n",
        release=f"{named}, where a key of draft_len_schedule means {meaning}",
        check=(
            f"`trtllm-bench --model {answers.target or TARGET} throughput --backend pytorch --dataset PROMPTS.jsonl "
            f"--extra_llm_api_options FILE --concurrency {size}`; {expected}"
        ),
        comment="#",
        is_schedule=True,
        notes=(*placeholder_notes(answers, "TensorRT-LLM"), *notes, *_notes(switch_off, request)),
    )


def up_to(steps: tuple[ScheduleStep, ...]) -> dict[int, int]:
    """The schedule whose keys are the last batch sizes; what is off at the end has none."""
    kept = steps[:-1] if steps[-1].gamma == 0 else steps
    return {step.last: step.gamma for step in kept}


def _falling(answers: ServingAnswers) -> tuple[tuple[ScheduleStep, ...], list[str]]:
    """The steps, none above the first, and a note for each that was cut to it."""
    first = answers.steps[0].gamma
    if first == 0:
        paying, is_open = answers.largest_gamma, answers.points[0].verdict == "undecided"
        raise ValueError(
            f"{answers.source}: γ {paying} pays at larger batch sizes alone, which draft_len_schedule cannot say: its "
            "smallest batch sizes have the most drafts"
            + ("; they are undecided here: --undecided gamma writes theirs" if is_open else "")
        )
    notes = [
        f"batch sizes {step.first} to {step.last} take {first} drafts instead of {step.gamma}: none may have more than "
        "the smallest"
        for step in answers.steps
        if step.gamma > first
    ]
    cut = [ScheduleStep(first=one.first, last=one.last, gamma=min(first, one.gamma)) for one in answers.steps]
    merged: list[ScheduleStep] = []
    for step in cut:
        if merged and merged[-1].gamma == step.gamma:
            step = ScheduleStep(first=merged.pop().first, last=step.last, gamma=step.gamma)
        merged.append(step)
    return tuple(merged), notes


def _drafter(draft: DraftSource) -> list[str]:
    if draft.kind == "ngram":
        return ["decoding_type: NGram", f"max_matching_ngram_size: {draft.longest}"]
    kind = "Eagle3" if draft.kind == "eagle3" else "Draft_Target"
    return [f"decoding_type: {kind}", f"speculative_model: {json.dumps(draft.model or DRAFT)}"]


def _switch_off(answers: ServingAnswers, release: tuple[int, ...]) -> dict[str, float]:
    """The thresholds that switch speculation off; none for releases whose names for them are not known here."""
    used = [(point.gamma, point.by_gamma[point.gamma]) for point in answers.points if point.gamma]
    if not used or OLD_NAMES_TO < release < NEW_NAMES_SINCE:
        return {}
    if release <= OLD_NAMES_TO:
        accepted = min(found.break_even_accepted for _, found in used)
        return {"acceptance_window": WINDOW_REQUESTS, "acceptance_length_threshold": _threshold(accepted)}
    rate = min(found.break_even_accepted / gamma for gamma, found in used)
    return {"acceptance_rate_window_size": WINDOW_ITERATIONS, "acceptance_rate_threshold": _threshold(rate)}


def _threshold(value: float) -> float:
    return round(max(0.0, value), 3)


def _notes(switch_off: dict[str, float], request: Request) -> list[str]:
    notes = []
    if switch_off:
        notes.append("under the threshold S is below 1 everywhere; speculation then stays off until a restart")
    else:
        notes.append("the names of the thresholds that switch speculation off changed about this release: none is set")
    if request.release is None:
        notes.append("before 1.3.0rc8 the schedule means something else: name an older release with --release")
    return notes


ENGINE = Engine(
    title="TensorRT-LLM",
    rules=DraftRules(draft_sampling="greedy", acceptance_rule="match"),
    other_rules="use_rejection_sampling, a prototype, compares probabilities",
    forms={"config": speculative_config},
)
