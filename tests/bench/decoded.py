"""Decoding in one call: what the speculative decoder and the plain loop make of a few ragged prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specgauge.bench.decoding.decoder import SpeculativeDecoder
from specgauge.bench.decoding.drafters import Drafter, ModelDrafter
from specgauge.bench.decoding.plain import decode_plain
from specgauge.bench.decoding.records import Decoded, PromptBatch, Text
from specgauge.bench.decoding.sampling import History, probabilities
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.sampling import SamplingSettings

Make = Callable[..., LoadedModel]
GREEDY = SamplingSettings(temperature=0.0)
DRAWN = SamplingSettings()
FILTERED = SamplingSettings(temperature=0.8, top_p=0.9, repetition_penalty=1.2)
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 1, 2, 3], [5] * 17]
NEW = 14


def batch_of(
    prompts: Sequence[Sequence[int]], new: int, numbers: Sequence[int] | None = None, repetition: int = 0
) -> PromptBatch:
    """Prompts numbered from 0 on unless told otherwise."""
    numbers = range(len(prompts)) if numbers is None else numbers
    return PromptBatch(prompts=prompts, numbers=numbers, max_new_tokens=new, repetition=repetition)


def decoder_of(
    target: LoadedModel,
    draft: Drafter | LoadedModel,
    settings: SamplingSettings = GREEDY,
    *,
    seed: int = 0,
    **options: Any,
) -> SpeculativeDecoder:
    """A decoder; a model drafts as `ModelDrafter` has it."""
    drafter = ModelDrafter(draft, settings) if isinstance(draft, LoadedModel) else draft
    return SpeculativeDecoder(target, drafter, settings, seed=seed, **options)


def decode(
    target: LoadedModel,
    draft: Drafter | LoadedModel,
    settings: SamplingSettings = GREEDY,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    gamma: Any = 4,
    new: int = NEW,
    numbers: Sequence[int] | None = None,
    **options: Any,
) -> Decoded:
    """One batch, speculatively."""
    return decoder_of(target, draft, settings, **options).run(batch_of(prompts, new, numbers), gamma=gamma)


def plain(
    target: LoadedModel,
    settings: SamplingSettings = GREEDY,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    *,
    new: int = NEW,
    seed: int = 0,
    **numbered: Any,
) -> list[Text]:
    """The same batch by the plain loop."""
    return decode_plain(target, batch_of(prompts, new, **numbered), settings, seed=seed).texts


def next_probs(
    model: LoadedModel, history: list[int], settings: SamplingSettings, vocabulary: int = 11
) -> torch.Tensor:
    """(V,) the chain's distribution after a history, from one forward without a cache."""
    network = model.model
    ids = torch.tensor([history])
    logits = torch.full((vocabulary,), -torch.inf, dtype=torch.float64)
    found = network(ids.clamp(max=model.vocabulary_rows - 1), use_cache=False).logits[0, -1]
    logits[: found.shape[0]] = found
    return probabilities(logits, settings, History(1, vocabulary, logits.device).update([history])[0])
