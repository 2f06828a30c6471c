"""What transformers' own generation needs for the same prompts: plain, and assisted by the same draft at a fixed γ.

A user without specgauge would call `generate`; a loop of ours that is slower than that would flatter speculation.  So
the model is handed back for the call: transformers' own attention and cache, the model's generation settings put aside
for the sampling chain alone, and everything restored afterwards, whatever happened.

    plain = generate_with_transformers(target, prompts, settings, max_new_tokens=64, seed=0, prompt_numbers=[0, 1])
    assisted = assisted_with_transformers(target, draft, prompt, settings, gamma=4, max_new_tokens=64, seed=0, …)
    assisted.decode_tokens / assisted.decode_s          # tokens a second after the first step

Greedy texts are those of `specgauge.bench.decoding.plain`, but for ties within rounding.  Drawn texts have the same
law but other numbers: transformers draws from torch's generator, which is seeded for the call and put back after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from specgauge.bench.decoding.plain import Text, check_room
from specgauge.bench.models.load_errors import quiet_loading
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.models.transformers_settings import (
    as_transformers_has_it,
    fixed_gamma,
    generation_settings,
    processor_chain,
)
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
    steps: int
    """Steps after which the tokens were looked at: tokens of the longest row, or rounds where assisted."""
    decode_tokens: int
    """Tokens that all rows together emitted in ``decode_s``, filling after an end token left out."""


def generate_with_transformers(
    target: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    max_new_tokens: int,
    seed: int,
    prompt_numbers: Sequence[int],
    repetition: int = 0,
    clock: Clock | None = None,
) -> Generated:
    """`target.model.generate` over one batch of prompts of equal length.

    Raises ValueError for no prompt, an empty one, prompts of several lengths, or no room in the target's context.
    """
    return _generate(
        target,
        None,
        prompts,
        settings,
        gamma=0,
        max_new_tokens=max_new_tokens,
        seed=seed,
        prompt_numbers=prompt_numbers,
        repetition=repetition,
        clock=clock or clock_for(target.device),
    )


def assisted_with_transformers(
    target: LoadedModel,
    draft: LoadedModel,
    prompt: Sequence[int],
    settings: SamplingSettings,
    *,
    gamma: int,
    max_new_tokens: int,
    seed: int,
    prompt_number: int,
    repetition: int = 0,
    clock: Clock | None = None,
) -> Generated:
    """`target.model.generate` with the draft as its assistant: γ drafts in every round, and no early stop.

    One prompt at a time, as transformers assists no batch.
    Raises ValueError for γ below 1, an empty prompt, or no room in the target's context.
    """
    if gamma < 1:
        raise ValueError(f"gamma: found {gamma}; allowed is 1 or more where generation is assisted")
    return _generate(
        target,
        draft,
        [prompt],
        settings,
        gamma=gamma,
        max_new_tokens=max_new_tokens,
        seed=seed,
        prompt_numbers=[prompt_number],
        repetition=repetition,
        clock=clock or clock_for(target.device, draft.device),
    )


class _Marks:
    """A mark after every step, and how many tokens each row had then, the prompt included."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.marks: list[Any] = []
        self.lengths: list[int] = []

    def take(self, length: int) -> None:
        """One step has ended."""
        self.marks.append(self.clock.mark())
        self.lengths.append(length)


class _Steps(StoppingCriteria):
    """Told of every token of the plain loop; never stops, and does not wait for the device."""

    def __init__(self, marks: _Marks) -> None:
        self.marks = marks

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002
        self.marks.take(input_ids.shape[1])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class _Rounds(BaseStreamer):
    """Told of the prompt and then of what every round of assisted generation adds.

    Some releases ask the stopping criteria about drafts, too, so those cannot count rounds.
    """

    def __init__(self, marks: _Marks) -> None:
        self.marks = marks
        self.tokens = 0

    def put(self, value: Any) -> None:
        """(L,) or (1, L) tokens: the prompt, then a round's."""
        is_prompt = self.tokens == 0
        self.tokens += value.shape[-1]
        if not is_prompt:
            self.marks.take(self.tokens)

    def end(self) -> None:
        """Nothing is left to do."""


def _generate(
    target: LoadedModel,
    draft: LoadedModel | None,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    gamma: int,
    max_new_tokens: int,
    seed: int,
    prompt_numbers: Sequence[int],
    repetition: int,
    clock: Clock,
) -> Generated:
    _check(target, prompts, prompt_numbers, max_new_tokens)
    ids = torch.tensor([list(prompt) for prompt in prompts], device=target.device)
    marks, model = _Marks(clock), target.model
    options: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids),
        "logits_processor": processor_chain(settings),
    }
    if draft is None:
        options["stopping_criteria"] = StoppingCriteriaList([_Steps(marks)])
    else:
        options |= {"assistant_model": draft.model, "streamer": _Rounds(marks)}
    with ExitStack() as stack:
        stack.enter_context(quiet_loading())  # what generate advises is not for whoever reads a benchmark
        cuda = [target.device] if target.device.type == "cuda" else []
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        torch.manual_seed(seed)
        fixed = {} if draft is None else fixed_gamma(gamma)
        stack.enter_context(as_transformers_has_it(model, generation_settings(settings, target, max_new_tokens, fixed)))
        if draft is not None and draft.model is not model:
            stack.enter_context(as_transformers_has_it(draft.model, GenerationConfig(**fixed)))
        clock.synchronize()
        start = clock.mark()
        found: Any = model.generate(ids, **options)  # type: ignore[operator]
        clock.synchronize()
        end = clock.mark()
    texts = [
        _text(target, prompt, row, number, repetition)
        for prompt, row, number in zip(prompts, found[:, ids.shape[1] :].tolist(), prompt_numbers, strict=True)
    ]
    longest = ids.shape[1] + max(len(text.tokens) for text in texts)
    steps = 1 + next(i for i, length in enumerate(marks.lengths) if length >= longest)  # it may look beyond the end
    first = marks.lengths[0] - ids.shape[1]
    return Generated(
        texts=texts,
        total_s=clock.elapsed_s(start, end),
        first_step_s=clock.elapsed_s(start, marks.marks[0]),
        decode_s=clock.elapsed_s(marks.marks[0], marks.marks[steps - 1]),
        steps=steps,
        decode_tokens=sum(max(0, len(text.tokens) - first) for text in texts),
    )


def _check(
    target: LoadedModel, prompts: Sequence[Sequence[int]], prompt_numbers: Sequence[int], max_new_tokens: int
) -> None:
    if not prompts:
        raise ValueError("prompts: found none; give at least one to generate from")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: found {max_new_tokens}; allowed is 1 or more")
    for number, prompt in zip(prompt_numbers, prompts, strict=True):
        check_room(target, len(prompt), max_new_tokens, number)
        if not 0 <= min(prompt) <= max(prompt) < target.vocabulary_rows:
            raise ValueError(
                f"{target.name}: prompt {number} has ids from {min(prompt)} to {max(prompt)}; allowed are 0 to "
                f"{target.vocabulary_rows - 1}: encode it with the target's own tokenizer"
            )
    lengths = sorted({len(prompt) for prompt in prompts})
    if len(lengths) > 1:
        raise ValueError(
            f"{target.name}: found prompts of {', '.join(map(str, lengths))} tokens in one batch; transformers is "
            "timed on prompts of one length, without padding: batch those of equal length"
        )


def _text(target: LoadedModel, prompt: Sequence[int], row: list[int], number: int, repetition: int) -> Text:
    """A row up to and including its first end token."""
    ends = target.eos_token_ids
    count = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
    return Text(
        prompt=number,
        repetition=repetition,
        prompt_tokens=tuple(prompt),
        tokens=tuple(row[:count]),
        end_reason="eos" if row[count - 1] in ends else "length",
    )
