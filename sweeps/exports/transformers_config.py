"""transformers: what belongs into the generation_config.json of the assistant; without one, into the target's.

Read in transformers 5.24 (`generation/candidate_generator.py`, `generation/utils.py`): a constant schedule and a
confidence threshold of 0 keep γ as it is; assisted generation takes one row. The assistant draws as the target does.
Lookups (`prompt_lookup_num_tokens`) and the target's first layers (`assistant_early_exit`) are fields of the target.
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
    release_words,
)


def generation_config(answers: ServingAnswers, request: Request) -> Export:
    """The fields as JSON.

    Raises:
        ValueError: another batch size than 1 is asked for, 1 is not known, or it does not pay there.
    """
    if request.batch_size not in (None, 1):
        raise ValueError(f"batch size: expected 1, all that transformers speculates for, got {request.batch_size}")
    point = answers.fixed(1)
    _, expected = expectation(answers, Request(batch_size=1))
    whose = "the assistant's" if answers.draft.kind in ("model", "eagle3") else "the target's"
    return Export(
        content=json_text(_fields(answers.draft, point.gamma)),
        release=release_words(request, "transformers", "5.24.0"),
        check=f"`{_command(answers)}` prints seconds without and with drafts; {expected}",
        notes=(f"put these into {whose} generation_config.json", "transformers speculates for one row alone"),
    )


def _fields(draft: DraftSource, gamma: int) -> dict[str, Any]:
    if draft.kind == "ngram":
        return {"prompt_lookup_num_tokens": gamma, "max_matching_ngram_size": draft.longest}
    early = {"assistant_early_exit": draft.layers} if draft.kind == "layers" else {}
    constant = {"num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.0}
    return {**early, "num_assistant_tokens": gamma, **constant}


def _command(answers: ServingAnswers) -> str:
    """A line of Python that times a text under both."""
    target, draft = answers.target or TARGET, answers.draft
    load = "t.AutoModelForCausalLM.from_pretrained"
    drafted = f"{{'assistant_model': {load}('{draft.model or DRAFT}')}}"
    if draft.kind == "ngram":
        drafted = f"{{'prompt_lookup_num_tokens': {answers.fixed(1).gamma}}}"
    elif draft.kind == "layers":
        drafted = f"{{'assistant_early_exit': {draft.layers}}}"
    code = (
        f"import timeit, transformers as t; m = {load}('{target}'); "
        f"i = t.AutoTokenizer.from_pretrained('{target}')('PROMPT', return_tensors='pt'); "
        f"[print(timeit.timeit(lambda: m.generate(**i, max_new_tokens=256, **k), number=3)) for k in ({{}}, {drafted})]"
    )
    return f'python -c "{code}"'


ENGINE = Engine(
    title="transformers",
    rules=DraftRules(draft_sampling="same", acceptance_rule="ratio"),
    other_rules="greedy drafts cannot be had beside a target that draws",
    forms={"generation-config": generation_config},
)
