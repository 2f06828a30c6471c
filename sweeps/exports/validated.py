"""What a run of servers exports for its own engine, to be run there: γ by batch size, as the engine reads it.

    validated_export(run, pair, sampling="greedy", context=512, follows=True)

vLLM and TensorRT-LLM follow a schedule, SGLang one of candidates for EAGLE drafts; others take one γ, which is then
that of each batch size.
"""

from __future__ import annotations

import json
from typing import Any

from specgauge.configs.engines import EngineConfig
from specgauge.configs.pairs import PairConfig
from specgauge.sweeps.exports.registry import ENGINES, export_settings
from specgauge.sweeps.exports.run_answers import run_answers
from specgauge.sweeps.exports.schedule import OFF
from specgauge.sweeps.store.exported import ExportedRow
from specgauge.sweeps.store.rundir import Run

_NAMES = {"vllm": "vllm", "sglang": "sglang", "llama_cpp": "llama.cpp", "tensorrt_llm": "tensorrt-llm"}
"""Of the kinds of engine, as exports call them."""


def validated_export(run: Run, pair: PairConfig, *, sampling: str, context: int, follows: bool) -> ExportedRow:
    """The export of one sampling setting at one context.

    follows: whether a server can be started with a schedule.

    Raises:
        ValueError: nothing is known there.
    """
    engine = pair.engines[0]
    name = _NAMES.get(engine.kind, "vllm")
    answers = run_answers(run, ENGINES[name].rules, pair=pair.name, sampling=sampling, context=context, undecided=OFF)
    settings, reason = None, None
    if follows and any(step.gamma for step in answers.steps):
        try:
            settings = _schedule(run, pair, engine, sampling=sampling, context=context)
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


def _schedule(
    run: Run, pair: PairConfig, engine: EngineConfig, *, sampling: str, context: int
) -> dict[str, Any] | None:
    """What is exported, without the method and the models, which are the pair's; None where no schedule is followed."""
    form = "adaptive" if engine.kind == "sglang" else None
    if engine.kind not in ("vllm", "tensorrt_llm") and not (form and engine.drafts_by in ("eagle", "eagle3")):
        return None
    name = _NAMES[engine.kind]
    content = export_settings(run, name, form=form, pair=pair.name, sampling=sampling, context=context).content
    if engine.kind == "vllm":
        found = json.loads(content)
        return {key: value for key, value in found.items() if key.startswith("num_speculative_tokens")}
    if form is not None:
        return {"speculative-adaptive": True, "speculative-adaptive-config": json.loads(content)}
    import yaml

    found = yaml.safe_load(content)["speculative_config"]
    schedule = {str(size): gamma for size, gamma in found["draft_len_schedule"].items()}
    return {"max_draft_len": found["max_draft_len"], "draft_len_schedule": schedule}
