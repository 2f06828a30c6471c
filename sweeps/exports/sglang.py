"""SGLang: flags for one γ, the JSON of `--speculative-adaptive-config`, and DSpark's cost table.

Read in SGLang 0.5.23 (`srt/arg_groups/fields/spec.py`, `srt/speculative/adaptive_spec_params.py`,
`srt/speculative/dspark_components/dspark_sps.py`, `benchmark/dspark_sps_profiler.py`):

- a chain of γ drafts is γ steps and γ + 1 draft tokens, the verified one before them included;
- an entry of the adaptive file holds from its batch size on (after padding to a captured one) until the next; 0 steps
  is no speculation; the server moves between the candidates of an entry by the drafts it sees accepted. One candidate
  each keeps it at the γ that costs and acceptance give;
- a step of the cost table is a round whose B requests verify γ + 1 tokens each.
"""

from __future__ import annotations

import shlex

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
    json_text,
    placeholder_notes,
    refuse_batch_size,
    release_words,
)


def flags(answers: ServingAnswers, request: Request) -> Export:
    """Options of `sglang.launch_server` for one γ; ValueError where it does not pay."""
    point = answers.fixed(request.batch_size)
    content = [*_algorithm(answers), *_chain(point.gamma)]
    if answers.draft.kind == "ngram":
        content += ["--speculative-ngram-max-bfs-breadth", "1"]
    others = [other for other in answers.points if other.batch_size != point.batch_size]
    notes = [f"γ is that of batch size {point.batch_size}; --form adaptive has all"] if others else []
    return _export(answers, request, shlex.join(content) + "\n", comment="#", notes=notes)


def adaptive(answers: ServingAnswers, request: Request) -> Export:
    """The JSON of `--speculative-adaptive-config`: γ by batch size.

    Raises:
        ValueError: nothing pays, or a single batch size is asked for.
    """
    refuse_batch_size(request)
    start = [*_algorithm(answers), *_chain(answers.largest_gamma)]
    steps = from_on(answers.steps, answers.largest_batch)
    entry = {"up_hysteresis": 0.0, "down_hysteresis": 0.0, "ceiling_coeff": 0}
    content = {
        "ema_alpha": 0.2,
        "update_interval": 5,
        "warmup_batches": 10,
        **{str(first): {"candidate_steps": [gamma], **entry} for first, gamma in steps.items()},
    }
    notes = [
        f"start with {shlex.join(start)} --speculative-adaptive --speculative-adaptive-config FILE",
        "with CUDA graphs the entry is that of the captured batch size to which a batch is padded",
    ]
    if answers.draft.kind != "eagle3":
        notes.append("SGLang adapts for EAGLE and EAGLE3 drafts alone, without attention data parallelism")
    return _export(answers, request, json_text(content), notes=notes, is_schedule=True)


def dspark_table(answers: ServingAnswers, request: Request) -> Export:
    """The JSON of `--speculative-dspark-sps-table-path`: rounds a second by tokens verified, at the largest γ.

    Raises:
        ValueError: nothing pays, a single batch size is asked for, or rounds of that γ are known at one alone.
    """
    refuse_batch_size(request)
    gamma = answers.largest_gamma
    rounds = {
        point.batch_size * (gamma + 1): 1.0 / point.by_gamma[gamma].t_round_s
        for point in answers.points
        if gamma in point.by_gamma
    }
    if len(rounds) < 2:
        raise ValueError(
            f"{answers.source}: a cost table needs rounds of γ {gamma} at two batch sizes or more, got {len(rounds)}; "
            "measure more of them (grid.batch_size)"
        )
    content = {
        "sample_batch_tokens": list(rounds),
        "sample_steps_per_sec": [float(f"{value:.6g}") for value in rounds.values()],
        "max_batch_tokens": max(rounds),
    }
    return _export(
        answers,
        request,
        json_text(content),
        notes=[
            f"start with --speculative-algorithm DSPARK --speculative-dspark-block-size {gamma} "
            "--speculative-dspark-sps-table-path FILE",
            f"a step is a round of γ {gamma} with the draft of this run: a DSpark draft's own time differs",
        ],
    )


def _algorithm(answers: ServingAnswers) -> list[str]:
    draft: DraftSource = answers.draft
    if draft.kind == "ngram":
        return ["--speculative-algorithm", "NGRAM"]
    name = "EAGLE3" if draft.kind == "eagle3" else "STANDALONE"
    found = ["--speculative-algorithm", name, "--speculative-draft-model-path", draft.model or DRAFT]
    drawn = answers.rules_differ and answers.draft_sampling == "same" and draft.kind == "eagle3"
    return [*found, "--speculative-use-rejection-sampling"] if drawn else found


def _chain(gamma: int) -> list[str]:
    steps = {"num-steps": gamma, "eagle-topk": 1, "num-draft-tokens": gamma + 1}
    return [part for name, value in steps.items() for part in (f"--speculative-{name}", str(value))]


def _export(
    answers: ServingAnswers,
    request: Request,
    content: str,
    *,
    notes: list[str],
    comment: str | None = None,
    is_schedule: bool = False,
) -> Export:
    size, expected = expectation(answers, request)
    return Export(
        content=content,
        release=release_words(request, "SGLang", "0.5.23"),
        check=(
            f"`python -m sglang.bench_serving --backend sglang --model {answers.target or TARGET} "
            f"--max-concurrency {size}`; {expected}"
        ),
        comment=comment,
        is_schedule=is_schedule,
        notes=(*placeholder_notes(answers, "SGLang"), *notes),
    )


ENGINE = Engine(
    title="SGLang",
    rules=DraftRules(draft_sampling="greedy", acceptance_rule="ratio"),
    other_rules="--speculative-use-rejection-sampling draws them, for EAGLE drafts alone",
    forms={"flags": flags, "adaptive": adaptive, "dspark": dspark_table},
)
