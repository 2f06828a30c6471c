"""A loaded model as transformers has it for a while: its attention, its cache, the sampling chain in its words.

with as_transformers_has_it(target.model, generation_settings(settings, target, 64, fixed_gamma(4))):
    target.model.generate(ids, logits_processor=processor_chain(settings))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specgauge.bench.cache.attention import ATTENTION_NAMES
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.sampling import SamplingSettings


@contextmanager
def as_transformers_has_it(model: PreTrainedModel, generation: GenerationConfig) -> Iterator[None]:
    """The model with transformers' own attention of the same kind, and ``generation`` as its only settings.

    Where it had `sdpa` through us, it gets transformers' sdpa, or eager where the architecture has no sdpa.
    """
    ours, settings = model.config._attn_implementation, model.generation_config
    own = {name: kind for kind, name in ATTENTION_NAMES.items()}.get(ours, ours)
    if own == "sdpa" and not getattr(model, "_supports_sdpa", True):
        own = "eager"
    try:
        model.set_attn_implementation(own)
        model.generation_config = generation
        yield
    finally:
        model.generation_config = settings
        model.set_attn_implementation(ours)


def fixed_gamma(gamma: int) -> dict[str, Any]:
    """The settings of an assistant that drafts γ tokens every round, however sure it is."""
    return {
        "num_assistant_tokens": gamma,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }


def generation_settings(
    settings: SamplingSettings, target: LoadedModel, max_new_tokens: int, fixed: dict[str, Any]
) -> GenerationConfig:
    """Greedy or drawn, and where a text ends; the chain's filters are switched off here, `processor_chain` has them."""
    ends = list(target.eos_token_ids)
    is_drawn = settings.temperature != 0.0
    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        do_sample=is_drawn,
        top_k=0 if is_drawn else None,  # None in a drawn chain would be transformers' default, 50
        **fixed,
    )


def processor_chain(settings: SamplingSettings) -> LogitsProcessorList:
    """transformers' own processors of the sampling chain, in its order.

    Given as processors, target and draft both apply each once.  Given as generation settings, the assistant would apply
    temperature and filters twice (its own, and those it is handed by the target), and draft from another distribution.
    """
    chain, keep = LogitsProcessorList(), settings.min_tokens_to_keep
    if settings.repetition_penalty != 1.0:
        chain.append(RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.temperature == 0.0:
        return chain
    if settings.temperature != 1.0:
        chain.append(TemperatureLogitsWarper(float(settings.temperature)))
    if settings.top_k:
        chain.append(TopKLogitsWarper(settings.top_k, min_tokens_to_keep=keep))
    if settings.top_p is not None and settings.top_p < 1.0:
        chain.append(TopPLogitsWarper(settings.top_p, min_tokens_to_keep=keep))
    if settings.min_p:
        chain.append(MinPLogitsWarper(settings.min_p, min_tokens_to_keep=keep))
    return chain
