"""Plain decoding in batches: the texts that acceptance is judged on, and the loop speculation is compared with.

Rows of different prompts decode together in one cache with a length per row; every draw is a function of (seed, prompt,
repetition, token index), so that a row's text is the same alone and in any batch.

    texts = generate_plain(target, prompts, settings, max_new_tokens=64, seed=0, prompt_numbers=[0, 1, 2])

Shapes: B rows, V vocabulary.

Several decodings side by side, a round of one and then of another, so that a machine that drifts hits all alike.

A decoding that can be interrupted is a generator: after every round it yields how far it is, in tokens of a text, and
it returns what it found.  It is sent whether time was spent elsewhere meanwhile, so that its clock leaves that out.

    found = take_turns({"plain": plain_turns(…), "speculate:3": decoder.turns(…)})
    alone = finish(decoder.turns(…))
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor

from specgauge.bench.cache.cache import RowCache, forward, prefill
from specgauge.bench.decoding.draws import Draws
from specgauge.bench.decoding.nonfinite import NonFiniteLogitsError
from specgauge.bench.decoding.sampling import NO_TOKEN, next_tokens, seen_tokens
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.timing.clock import Clock, clock_for
from specgauge.model.sampling import SamplingSettings

Result = TypeVar("Result")
Turns = Generator[float, bool, Result]
"""Yields mean tokens of the rows that go on; is sent whether something else ran since; returns its result."""


def finish(turns: Turns[Result]) -> Result:
    """Run one decoding to its end without a break."""
    try:
        next(turns)
        while True:
            turns.send(False)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def take_turns(decodings: Mapping[str, Turns[Result]]) -> dict[str, Result]:
    """Run all to their ends; the next round is always that of the shortest text, the first named where equal.

    All are thus at the same place of their texts at any time, whatever a round of each commits.  Each first step, up to
    the first yield, runs in the order given.  An exception of one ends all.
    """
    reached: dict[str, float] = {}
    found: dict[str, Result] = {}
    try:
        for name, turns in decodings.items():
            try:
                reached[name] = next(turns)
            except StopIteration as end:
                found[name] = end.value
        while reached:
            name = min(reached, key=lambda one: reached[one])
            try:
                reached[name] = decodings[name].send(True)
            except StopIteration as end:
                found[name] = end.value
                del reached[name]
    finally:
        for turns in decodings.values():
            turns.close()
    return {name: found[name] for name in decodings}


EndReason = Literal["eos", "length"]


@dataclass(frozen=True, kw_only=True)
class Text:
    """One text the target wrote."""

    prompt: int
    """Number of the prompt in the workload."""
    repetition: int
    prompt_tokens: tuple[int, ...]
    tokens: tuple[int, ...]
    """What was emitted, the first token sampled from the prefill included, an end-of-text token included."""
    end_reason: EndReason


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
    tokens, _ = pad_right(prompts, 0, model.device)
    tokens = feedable(tokens, model)
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
    fed = torch.tensor([list(prompt) for prompt in prompts], device=model.device) if len(set(lengths)) == 1 else None
    if fed is None or lengths[0] == 1:
        if max(lengths) > 1:
            prefill_rows(model, cache, [prompt[:-1] for prompt in prompts], chunk)
        last = torch.tensor([[prompt[-1]] for prompt in prompts], device=model.device)
        return forward(model.model, cache, last, keep=1)[:, -1]
    cache.set_lengths(0)
    for start in range(0, lengths[0], chunk):
        logits = prefill(model.model, cache, fed[:, start : start + chunk], keep=1)
    return logits[:, -1]


@dataclass(frozen=True, kw_only=True)
class PlainStep:
    """One step of the plain loop: a token for every active row."""

    position: int
    """Index of the step's token in every row's text; the prefill's token is index 0."""
    active_rows: int
    t_step_s: float
    """From the end of the step before: forward, draw, read-back and bookkeeping."""


@dataclass(frozen=True, kw_only=True)
class PlainDecoded:
    """A batch that was decoded plainly, timed step by step."""

    texts: list[Text]
    prefill_s: float
    """Up to and including the first token."""
    steps: list[PlainStep]

    @property
    def decode_s(self) -> float:
        """From the first token to the end of the last row."""
        return sum(step.t_step_s for step in self.steps)


def generate_plain(
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    max_new_tokens: int,
    seed: int,
    prompt_numbers: Sequence[int],
    repetition: int = 0,
) -> list[Text]:
    """The texts of `plain_turns`, decoded without a break; raises as that does."""
    turns = plain_turns(
        model,
        prompts,
        settings,
        max_new_tokens=max_new_tokens,
        seed=seed,
        prompt_numbers=prompt_numbers,
        repetition=repetition,
    )
    return finish(turns).texts


def _refuse_no_token(
    model: LoadedModel, tokens: Sequence[int], ended: Sequence[EndReason | None], numbers: Sequence[int], index: int
) -> None:
    """Raise NonFiniteLogitsError for the first row that goes on and has no token at a place of its text."""
    for number, token, end in zip(numbers, tokens, ended, strict=True):
        if token == NO_TOKEN and end is None:
            raise NonFiniteLogitsError(model.name, number, index)


@torch.inference_mode()
def plain_turns(
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: SamplingSettings,
    *,
    max_new_tokens: int,
    seed: int,
    prompt_numbers: Sequence[int],
    repetition: int = 0,
    clock: Clock | None = None,
) -> Turns[PlainDecoded]:
    """Decode one static batch until every row ended by an end-of-text token or at ``max_new_tokens``, step by step.

    The first turn goes up to the first token.
    Raises ValueError for an empty prompt, or a prompt that leaves no room in the model's context, and
    NonFiniteLogitsError where a row that goes on has logits that are not numbers.
    """
    rows = len(prompts)
    for number, prompt in zip(prompt_numbers, prompts, strict=True):
        check_room(model, len(prompt), max_new_tokens, number)
        _check_ids(model, prompt, number)
    clock = clock_for(model.device) if clock is None else clock
    cache = model.new_cache(batch_size=rows, tokens=max(len(p) for p in prompts) + max_new_tokens)
    seen = None
    if settings.repetition_penalty != 1.0:
        seen = seen_tokens(*pad_right(prompts, 0, model.device), model.vocabulary_rows)
    draws = None
    if settings.temperature != 0.0:
        draws = Draws(
            ["token"],
            seed=seed,
            prompts=prompt_numbers,
            repetition=repetition,
            tokens=max_new_tokens,
            device=model.device,
        )
    emitted: list[list[int]] = [[] for _ in range(rows)]
    ended: list[EndReason | None] = [None] * rows
    clock.synchronize()
    edge, stamps, active = clock.mark(), [], []
    logits = first_logits(model, cache, prompts)
    for index in range(max_new_tokens):
        active.append(ended.count(None))
        uniforms = None if draws is None else draws.column("token", index)
        current = next_tokens(logits, settings, uniforms, seen[:, : logits.shape[-1]] if seen is not None else None)
        tokens = current.tolist()
        if NO_TOKEN in tokens:
            _refuse_no_token(model, tokens, ended, prompt_numbers, index)
            current = current.clamp(min=0)  # what a row that has ended moves along with is nobody's
        if seen is not None:
            seen.scatter_(1, current[:, None], True)
        for row, token in enumerate(tokens):
            if ended[row] is None:
                emitted[row].append(token)
                ended[row] = _end(model, emitted[row], max_new_tokens)
        stamps.append((edge, clock.mark()))
        edge = stamps[-1][1]
        if all(ended):
            break
        if (yield float(index + 1)):
            clock.synchronize()
            edge = clock.mark()
        lengths = cache.lengths
        logits = forward(model.model, cache, current[:, None], keep=1)[:, -1]
        if any(ended):
            cache.set_lengths([before if ended[r] else before + 1 for r, before in enumerate(lengths)])
    clock.synchronize()
    seconds = [clock.elapsed_s(before, after) for before, after in stamps]
    return PlainDecoded(
        texts=[
            Text(
                prompt=number,
                repetition=repetition,
                prompt_tokens=tuple(prompt),
                tokens=tuple(emitted[row]),
                end_reason=ended[row] or "length",
            )
            for row, (number, prompt) in enumerate(zip(prompt_numbers, prompts, strict=True))
        ],
        prefill_s=seconds[0],
        steps=[
            PlainStep(position=index, active_rows=active[index], t_step_s=t)
            for index, t in enumerate(seconds)
            if index > 0
        ],
    )


def _end(model: LoadedModel, tokens: Sequence[int], max_new_tokens: int) -> EndReason | None:
    """Why a text ends with its last token; None where it goes on."""
    if tokens[-1] in model.eos_token_ids:
        return "eos"
    return "length" if len(tokens) == max_new_tokens else None


def _check_ids(model: LoadedModel, prompt: Sequence[int], number: int) -> None:
    """Raise ValueError for an id that the model has no embedding row for."""
    if max(prompt) >= model.vocabulary_rows:
        raise ValueError(
            f"{model.name}: prompt {number} holds id {max(prompt)}, but the model has {model.vocabulary_rows} "
            "embedding rows; encode the prompt with the model's own tokenizer"
        )


def check_room(model: LoadedModel, prompt_tokens: int, new_tokens: int, number: int) -> None:
    """Raise ValueError when a prompt is empty or prompt and new tokens exceed the model's context."""
    if prompt_tokens == 0:
        raise ValueError(f"{model.name}: prompt {number} has no token; give every prompt at least one")
    limit = model.max_context
    if limit is not None and prompt_tokens + new_tokens > limit:
        raise ValueError(
            f"{model.name}: prompt {number} has {prompt_tokens} tokens and {new_tokens} more are asked for, "
            f"but the model takes {limit}; shorten the prompt or lower workload.max_new_tokens"
        )
