"""What transformers' own generation needs for the same prompts: plain, and assisted by the same draft at a fixed γ.

A user without specgauge would call `generate`; a loop of ours that is slower than that would flatter speculation.  For
the call the model has transformers' own attention and cache, and the sampling chain as its only generation settings.

    plain = generate_with_transformers(target, batch, settings, seed=0)
    assisted = generate_with_transformers(target, batch_of_one, settings, seed=0, draft=draft, gamma=4)
    assisted.total_s, assisted.decode_s          # of the whole call, and after its first step

Greedy texts are those of `specgauge.bench.decoding.plain`, but for ties within rounding.  Drawn texts have the same
distribution but other numbers: transformers draws from torch's generator, which is seeded for the call and put back
after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from specgauge.bench.cache.adapter import ATTENTION_NAMES
from specgauge.bench.cache.cache import FOLLOWED
from specgauge.bench.decoding.plain import new_rows
from specgauge.bench.decoding.records import PromptBatch, Text
from specgauge.bench.models.load_errors import quiet_loading
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.ranks import GENERATE, current_ranks
from specgauge.bench.timing.clock import Clock, clock_for
from specgauge.model.sampling import SamplingSettings


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The texts of one call of `generate`, and its seconds."""

    texts: list[Text]
    total_s: float
    """From the call to its return, prompts on the device already: prefills, all steps, and generate's own set-up."""
    first_step_s: float
    """From the call to the end of the first step.  Plain: prefill and first token.  Assisted: the whole first round,
    that is the draft's prefill and its drafts, then the target's prefill over prompt and drafts at once."""
    decode_s: float
    """From the end of the first step to the end of the last: 0 where one step was all."""


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


Marks = list[tuple[int, Any]]
"""After every step: tokens that each row had then, the prompt included, and a mark of the clock."""


class _Steps(StoppingCriteria):
    """Told of every token of the plain loop; never stops, and does not wait for the device."""

    def __init__(self, marks: Marks, clock: Clock) -> None:
        self.marks, self.clock = marks, clock

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002
        self.marks.append((input_ids.shape[1], self.clock.mark()))
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class _Rounds(BaseStreamer):
    """Told of the prompt and then of what every round of assisted generation adds.

    Some releases ask the stopping criteria about drafts, too, so those cannot count rounds.
    """

    def __init__(self, marks: Marks, clock: Clock) -> None:
        self.marks, self.clock, self.tokens = marks, clock, 0

    def put(self, value: Any) -> None:
        """(L,) or (1, L) tokens: the prompt, then a round's."""
        is_prompt = self.tokens == 0
        self.tokens += value.shape[-1]
        if not is_prompt:
            self.marks.append((self.tokens, self.clock.mark()))

    def end(self) -> None:
        """Nothing is left to do."""


def generate_with_transformers(
    target: LoadedModel,
    batch: PromptBatch,
    settings: SamplingSettings,
    *,
    seed: int,
    draft: LoadedModel | None = None,
    gamma: int = 0,
    clock: Clock | None = None,
) -> Generated:
    """`target.model.generate` over one batch of prompts of equal length.

    With a draft as its assistant: γ drafts in every round, and no early stop, over one prompt, as transformers assists
    no batch.

    Raises:
        ValueError: no prompt, an empty one, prompts of several lengths, no room in the target's context, or γ below 1
            where generation is assisted.
    """
    if draft is not None and gamma < 1:
        raise ValueError(f"gamma: expected 1 or more where generation is assisted, got {gamma}")
    rows = new_rows(target, batch)
    lengths = sorted({row.prompt_tokens for row in rows})
    if len(lengths) > 1:
        raise ValueError(
            f"{target.name}: expected prompts of one length, got {', '.join(map(str, lengths))} tokens; transformers "
            "is timed without padding: batch those of equal length"
        )
    clock = clock or clock_for(target.device, *([] if draft is None else [draft.device]))
    ids = torch.tensor([row.committed for row in rows], device=target.device)
    marks: Marks = []
    model, ends = target.model, list(target.eos_token_ids)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "logits_processor": processor_chain(settings)}
    assistant: dict[str, Any] = {}
    if draft is None:
        options["stopping_criteria"] = StoppingCriteriaList([_Steps(marks, clock)])
    else:
        options |= {"assistant_model": draft.model, "streamer": _Rounds(marks, clock)}
        assistant = {  # γ drafts in every round, however sure it is
            "num_assistant_tokens": gamma,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        }
    generation = GenerationConfig(
        max_new_tokens=batch.max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=ends[0] if ends else 0,
        do_sample=settings.temperature != 0.0,
        top_k=0 if settings.temperature != 0.0 else None,  # None in a drawn chain would be transformers' default, 50
        **assistant,
    )
    with ExitStack() as stack:
        stack.enter_context(quiet_loading())  # what generate advises is not for whoever reads a benchmark
        cuda = [target.device] if target.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        torch.manual_seed(seed)
        stack.enter_context(as_transformers_has_it(model, generation))
        if draft is not None and draft.model is not model:
            stack.enter_context(as_transformers_has_it(draft.model, GenerationConfig(**assistant)))
        clock.synchronize()
        start = clock.mark()
        if (ranks := current_ranks()) is not None and ranks.is_leader and model in FOLLOWED:
            ranks.tell(GENERATE)
            ranks.share({"batch": batch, "settings": settings, "seed": seed})
        found: Any = model.generate(ids, **options)  # type: ignore[operator]
        clock.synchronize()
        end = clock.mark()
    for row, tokens in zip(rows, found[:, ids.shape[1] :].tolist(), strict=True):
        row.commit(tokens, ends, len(tokens))
    longest = ids.shape[1] + max(row.emitted for row in rows)
    last = next(mark for length, mark in marks if length >= longest)  # it may look beyond the end
    return Generated(
        texts=[row.text(batch.repetition) for row in rows],
        total_s=clock.elapsed_s(start, end),
        first_step_s=clock.elapsed_s(start, marks[0][1]),
        decode_s=clock.elapsed_s(marks[0][1], last),
    )
