"""What a run of servers exports for its own engine, to be run there: γ by batch size, as the engine reads it.

    validated_export(run, pair, sampling="greedy", context=512)

vLLM and TensorRT-LLM follow a schedule, SGLang one of candidates for EAGLE drafts; others take one γ, which is then
that of each batch size.
"""

from __future__ import annotations

import json
from typing import Any

from specgauge.configs.pairs import PairConfig
from specgauge.sweeps.exports.registry import ENGINES, export_settings
from specgauge.sweeps.exports.run_answers import run_answers
from specgauge.sweeps.exports.schedule import OFF
from specgauge.sweeps.store.exported import ExportedRow
from specgauge.sweeps.store.rundir import Run

_NAMES = {"vllm": "vllm", "sglang": "sglang", "llama_cpp": "llama.cpp", "tensorrt_llm": "tensorrt-llm"}
"""Of the kinds of engine, as exports call them."""


def validated_export(run: Run, pair: PairConfig, *, sampling: str, context: int) -> ExportedRow:
    """The export of one sampling setting at one context.

    Raises:
        ValueError: nothing is known there.
    """
    engine = pair.engines[0]
    rules = ENGINES[_NAMES.get(engine.kind, "vllm")].rules
    answers = run_answers(run, rules, pair=pair.name, sampling=sampling, context=context, undecided=OFF)
    settings, reason = None, None
    if engine.follows is not None and any(step.gamma for step in answers.steps):
        try:
            settings = _schedule(run, pair, sampling=sampling, context=context)
        except ValueError as error:
            reason = str(error)
    return ExportedRow(
        pair=pair.name,
        sampling=sampling,
        context=context,
        ranges=tuple((step.first, step.last, step.gamma) for step in answers.steps),
        settings=settings,
        reason=reason,
    )


def _schedule(run: Run, pair: PairConfig, *, sampling: str, context: int) -> dict[str, Any]:
    """What is exported, without the method and the models, which are the pair's."""
    kind = pair.engines[0].kind
    form = "adaptive" if kind == "sglang" else None
    found = export_settings(run, _NAMES[kind], form=form, pair=pair.name, sampling=sampling, context=context)
    if kind == "vllm":
        told = json.loads(found.content)
        return {key: value for key, value in told.items() if key.startswith("num_speculative_tokens")}
    if kind == "sglang":
        return {"speculative-adaptive": True, "speculative-adaptive-config": json.loads(found.content)}
    import yaml

    told = yaml.safe_load(found.content)["speculative_config"]
    schedule = {str(size): gamma for size, gamma in told["draft_len_schedule"].items()}
    return {"max_draft_len": told["max_draft_len"], "draft_len_schedule": schedule}
