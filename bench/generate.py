"""Plain decoding in batches: the texts that acceptance is judged on, and the loop speculation is compared with.

Rows of different prompts decode together in one cache with a length per row; every draw is a function of (seed, prompt,
repetition, token index), so that a row's text is the same alone and in any batch.

    texts = generate_plain(target, prompts, settings, max_new_tokens=64, seed=0, prompt_numbers=[0, 1, 2])

Shapes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from specgauge.bench.cache import RowCache, forward, new_cache
from specgauge.bench.models import LoadedModel
from specgauge.bench.sampling import next_tokens, seen_tokens
from specgauge.model.sampling import SamplingSettings
from specgauge.model.uniforms import uniforms

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
        forward(model.model, cache, tokens[:, start : start + chunk], keep=1)
    cache.set_lengths([len(prompt) for prompt in prompts])


def token_uniforms(
    seed: int, prompts: Sequence[int], repetitions: Sequence[int], positions: Sequence[int] | int, device: torch.device
) -> Tensor:
    """(B,) uniforms for the plain draw of each row at its token index."""
    values = uniforms(seed, np.asarray(prompts), np.asarray(repetitions), np.asarray(positions), "token")
    return torch.from_numpy(np.ascontiguousarray(values)).to(device)


@torch.inference_mode()
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
    """Decode one static batch until every row ended by an end-of-text token or at ``max_new_tokens``.

    Raises ValueError for an empty prompt, or a prompt that leaves no room in the model's context.
    """
    rows = len(prompts)
    for number, prompt in zip(prompt_numbers, prompts, strict=True):
        check_room(model, len(prompt), max_new_tokens, number)
        if max(prompt) >= model.vocabulary_rows:
            raise ValueError(
                f"{model.name}: prompt {number} holds id {max(prompt)}, but the model has {model.vocabulary_rows} "
                "embedding rows; encode the prompt with the model's own tokenizer"
            )
    cache = new_cache(model.model, batch_size=rows, tokens=max(len(p) for p in prompts) + max_new_tokens)
    tokens, valid = pad_right(prompts, 0, model.device)
    vocabulary = model.vocabulary_rows
    seen = seen_tokens(tokens, valid, vocabulary) if settings.repetition_penalty != 1.0 else None
    head = [prompt[:-1] for prompt in prompts]
    if any(head):
        prefill_rows(model, cache, head)
    current = torch.tensor([prompt[-1] for prompt in prompts], device=model.device)
    emitted: list[list[int]] = [[] for _ in range(rows)]
    ended: list[EndReason | None] = [None] * rows
    for index in range(max_new_tokens):
        lengths = cache.lengths
        logits = forward(model.model, cache, current[:, None], keep=1)[:, -1]
        draws = None
        if settings.temperature != 0.0:
            draws = token_uniforms(seed, prompt_numbers, [repetition] * rows, index, model.device)
        current = next_tokens(logits, settings, draws, seen[:, : logits.shape[-1]] if seen is not None else None)
        if seen is not None:
            seen.scatter_(1, current[:, None], True)
        for row, token in enumerate(current.tolist()):
            if ended[row] is not None:
                continue
            emitted[row].append(token)
            if token in model.eos_token_ids:
                ended[row] = "eos"
            elif len(emitted[row]) == max_new_tokens:
                ended[row] = "length"
        if all(ended):
            break
        if any(ended):
            cache.set_lengths([before if ended[r] else before + 1 for r, before in enumerate(lengths)])
    return [
        Text(
            prompt=number,
            repetition=repetition,
            prompt_tokens=tuple(prompt),
            tokens=tuple(emitted[row]),
            end_reason=ended[row] or "length",
        )
        for row, (number, prompt) in enumerate(zip(prompt_numbers, prompts, strict=True))
    ]


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
