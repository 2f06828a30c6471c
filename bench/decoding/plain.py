"""Plain decoding in batches, a step at a time: the texts acceptance is measured on, and the baseline of speculation.

Rows of different prompts decode together; a row's text is the same alone and in any batch.

    texts = generate_plain(target, prompts, settings, max_new_tokens=64, seed=0, prompt_numbers=[0, 1, 2])

Decodings can be interleaved, so that a machine that drifts hits all alike.  Such a decoding is a generator: after every
round it yields how far it is, in tokens of a text, is sent whether time was spent elsewhere, and returns what it found.

    found = interleave({"plain": plain_steps(…), "speculate:3": decoder.rounds(…)})

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from specgauge.bench.cache.cache import RowCache, forward, prefill
from specgauge.bench.decoding.records import (
    Decoded,
    NonFiniteLogitsError,
    PromptBatch,
    RoundTimes,
    Row,
    RowRound,
    Text,
)
from specgauge.bench.decoding.sampling import NO_TOKEN, Draws, next_tokens, seen_tokens
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.timing.clock import Clock, clock_for
from specgauge.model.sampling import SamplingSettings

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Interleavable = Generator[float, bool, Result]
"""Yields mean tokens of the active rows; is sent whether something else ran since; returns its result."""


def uninterrupted(decode: Callable[Arguments, Interleavable[Result]]) -> Callable[Arguments, Result]:
    """The same decoding run to its end without a break."""

    @wraps(decode)
    def run(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        steps = decode(*args, **options)
        try:
            next(steps)
            while True:
                steps.send(False)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    return run


def interleave(
    decodings: Mapping[str, Interleavable[Result]], progress: Callable[[float], object] | None = None
) -> dict[str, Result]:
    """Run all to their ends; the next round is always that of the shortest text, the first named where equal.

    Each first step, up to the first yield, runs in the order given.  An exception of one ends all.

    progress: told how far the shortest text is, in tokens, between two rounds.
    """
    reached: dict[str, float] = {}
    found: dict[str, Result] = {}
    try:
        for name, steps in decodings.items():
            try:
                reached[name] = next(steps)
            except StopIteration as end:
                found[name] = end.value
        while reached:
            name = min(reached, key=lambda one: reached[one])
            if progress is not None:
                progress(reached[name])
            try:
                reached[name] = decodings[name].send(True)
            except StopIteration as end:
                found[name] = end.value
                del reached[name]
    finally:
        for steps in decodings.values():
            steps.close()
    return {name: found[name] for name in decodings}


def pad_right(rows: Sequence[Sequence[int]], fill: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(B, N) tokens padded at the end, and the (B, N) mask of what is not padding."""
    width = max(len(row) for row in rows)
    tokens = torch.full((len(rows), width), fill, dtype=torch.long)
    valid = torch.zeros(len(rows), width, dtype=torch.bool)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row, dtype=torch.long)
        valid[index, : len(row)] = True
    return tokens.to(device), valid.to(device)


def feedable(tokens: Tensor, model: LoadedModel) -> Tensor:
    """Tokens with ids the model has no embedding row for replaced by id 0 (their own probability is 0 there)."""
    return torch.where(tokens < model.vocabulary_rows, tokens, 0)


def prefill_rows(model: LoadedModel, cache: RowCache, prompts: Sequence[Sequence[int]], chunk: int = 2048) -> None:
    """Fill the cache with ragged prompts: padded at the end, then every row's length set to its own.

    Padding is written past the rows' lengths, where no mask reaches it.
    """
    tokens = feedable(pad_right(prompts, 0, model.device)[0], model)
    cache.set_lengths(0)
    for start in range(0, tokens.shape[1], chunk):
        prefill(model.model, cache, tokens[:, start : start + chunk], keep=1)
    cache.set_lengths([len(prompt) for prompt in prompts])


def first_logits(model: LoadedModel, cache: RowCache, prompts: Sequence[Sequence[int]], chunk: int = 2048) -> Tensor:
    """(B, V) logits after every prompt's last token; the cache then holds the prompts.

    Prompts of one length are fed whole.  Ragged ones end at places of their own: all but their last tokens are fed
    first, then the last tokens of all rows together.
    """
    lengths = [len(prompt) for prompt in prompts]
    if len(set(lengths)) > 1 or lengths[0] == 1:
        if max(lengths) > 1:
            prefill_rows(model, cache, [prompt[:-1] for prompt in prompts], chunk)
        last = torch.tensor([[prompt[-1]] for prompt in prompts], device=model.device)
        return forward(model.model, cache, last, keep=1)[:, -1]
    fed = torch.tensor([list(prompt) for prompt in prompts], device=model.device)
    cache.set_lengths(0)
    for start in range(0, lengths[0], chunk):
        logits = prefill(model.model, cache, fed[:, start : start + chunk], keep=1)
    return logits[:, -1]


@torch.inference_mode()
def plain_steps(
    model: LoadedModel, batch: PromptBatch, settings: SamplingSettings, *, seed: int, clock: Clock | None = None
) -> Interleavable[Decoded]:
    """Decode one static batch until every row ended by an end-of-text token or at its length, step by step.

    The first step goes up to the first token.  A step lasts from the end of the one before: forward, draw, read-back
    and bookkeeping.

    Raises:
        ValueError: an empty prompt, one with an id the model does not have, or without room in the model's context.
        NonFiniteLogitsError: an active row has logits that are not numbers.
    """
    rows, prompts, max_new_tokens = new_rows(model, batch), batch.prompts, batch.max_new_tokens
    clock = clock_for(*model.devices) if clock is None else clock
    cache = model.new_cache(batch_size=len(rows), tokens=batch.longest + max_new_tokens)
    seen = None
    if settings.repetition_penalty != 1.0:
        seen = seen_tokens(*pad_right(prompts, 0, model.device), model.vocabulary_rows)
    draws = Draws([] if settings.temperature == 0.0 else ["token"], batch, seed=seed, device=model.device)
    clock.synchronize()
    edge, stamps, active = clock.mark(), [], []
    logits = first_logits(model, cache, prompts)
    for index in range(max_new_tokens):
        active.append(sum(row.ended is None for row in rows))
        uniforms = None if settings.temperature == 0.0 else draws.column("token", index)
        current = next_tokens(logits, settings, uniforms, seen[:, : logits.shape[-1]] if seen is not None else None)
        tokens = current.tolist()
        for row, token in zip(rows, tokens, strict=True):
            if row.ended is None:
                if token == NO_TOKEN:
                    raise NonFiniteLogitsError(model.name, row.prompt, index)
                row.commit([token], model.eos_token_ids, max_new_tokens)
        if NO_TOKEN in tokens:
            current = current.clamp(min=0)  # what a row that has ended moves along with is nobody's
        if seen is not None:
            seen.scatter_(1, current[:, None], True)
        stamps.append((edge, clock.mark()))
        edge = stamps[-1][1]
        if all(row.ended for row in rows):
            break
        if (yield float(index + 1)):
            clock.synchronize()
            edge = clock.mark()
        lengths = cache.lengths
        logits = forward(model.model, cache, current[:, None], keep=1)[:, -1]
        if any(row.ended for row in rows):
            cache.set_lengths([n if row.ended else n + 1 for row, n in zip(rows, lengths, strict=True)])
    clock.synchronize()
    prefill_s, *steps_s = (clock.elapsed_s(before, after) for before, after in stamps)
    rounds = [
        RowRound(
            round=number,
            prompt=row.prompt,
            repetition=batch.repetition,
            position=number + 1,
            context=row.prompt_tokens + number,
            gamma_asked=0,
            gamma=0,
            gamma_limit="asked",
            drafted=0,
            accepted=0,
            emitted=1,
        )
        for number in range(len(steps_s))
        for row in rows
        if number + 1 < row.emitted
    ]
    return Decoded(
        texts=[row.text(batch.repetition) for row in rows],
        rows=rounds,
        times=[RoundTimes(active_rows=n, t_round_s=s) for n, s in zip(active[1:], steps_s, strict=True)],
        prefill_target_s=prefill_s,
    )


decode_plain = uninterrupted(plain_steps)


def generate_plain(
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    max_new_tokens: int,
    seed: int,
    prompt_numbers: Sequence[int],
    repetition: int = 0,
    progress: Callable[[float], object] | None = None,
) -> list[Text]:
    """The texts of `plain_steps`; raises as that does.

    progress: told after every step how many tokens the texts have.
    """
    batch = PromptBatch(prompts=prompts, numbers=prompt_numbers, max_new_tokens=max_new_tokens, repetition=repetition)
    return interleave({"plain": plain_steps(model, batch, settings, seed=seed)}, progress)["plain"].texts


def new_rows(model: LoadedModel, batch: PromptBatch) -> list[Row]:
    """The rows of a batch before anything is written.

    Raises:
        ValueError: no prompt, no new token, or a prompt that `check_room` refuses or that has an id the model lacks.
    """
    if not batch.prompts:
        raise ValueError("prompts: expected one or more to decode, got none")
    if batch.max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: expected 1 or more, got {batch.max_new_tokens}")
    rows, count = [], model.vocabulary_rows
    for number, prompt in zip(batch.numbers, batch.prompts, strict=True):
        check_room(model, len(prompt), batch.max_new_tokens, number)
        lowest, highest = min(prompt), max(prompt)
        if lowest < 0 or highest >= count:
            raise ValueError(
                f"{model.name}: prompt {number}: expected ids from 0 to {count - 1}, got "
                f"{highest if highest >= count else lowest}; encode it with the model's own tokenizer"
            )
        rows.append(Row(prompt=number, committed=list(prompt), prompt_tokens=len(prompt)))
    return rows


def check_room(model: LoadedModel, prompt_tokens: int, new_tokens: int, number: int) -> None:
    """Refuse a prompt by its length.

    Raises:
        ValueError: it is empty, or prompt and new tokens exceed the model's context.
    """
    if prompt_tokens == 0:
        raise ValueError(f"{model.name}: prompt {number} has no token; give every prompt at least one")
    limit = model.max_context
    if limit is not None and prompt_tokens + new_tokens > limit:
        raise ValueError(
            f"{model.name}: prompt {number} has {prompt_tokens} tokens and {new_tokens} more are asked for, "
            f"but the model takes {limit}; shorten the prompt or lower workload.max_new_tokens"
        )
