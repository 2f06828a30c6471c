"""Acceptance of lookups over the target's own texts: what is proposed at every start, and how far the text agrees.

Recorded at each position of a text: what a round that starts there would be offered (up to γ_max tokens), how many of
them the text goes on with, and how many tokens of its end were matched, all certain given the text; and, from one
forward of the target, its probability of each token and of the first proposal that fails, from which the mean of every
run follows (`specgauge.model.acceptance.lookups`).

    frame = measure_lookups(target, NgramConfig(), texts, settings, gamma_max=6, batch_size=8, chunk=128)

Position t of a text is its token t + 1, written after the prompt and tokens 0 … t.  Columns of a draft model are null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from specgauge.bench.acceptance.teacher_forced import (
    FLOAT_COLUMNS,
    INTEGER_COLUMNS,
    Histories,
    logit_chunks,
    measure_acceptance,
    sorted_frame,
    text_batches,
)
from specgauge.bench.decoding.drafters import NgramIndex
from specgauge.bench.decoding.plain import pad_right
from specgauge.bench.decoding.records import Text, refuse_places
from specgauge.bench.decoding.sampling import are_no_numbers, probabilities
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.configs.pairs import NgramConfig
from specgauge.model.sampling import SamplingSettings

LOOKUP_COLUMNS = ("proposed_length", "match_length", "lookup_match", "rejected_target_prob")
_PROBABILITIES = ("target_prob", "rejected_target_prob")
_WHOLE = (*(name for name in INTEGER_COLUMNS if name != "draft_argmax"), *LOOKUP_COLUMNS[:3])
_FILLED = (*_WHOLE, *_PROBABILITIES, "end_reason")


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a round that starts at one position of a text is offered."""

    proposed: int
    """Tokens proposed."""
    matching: int
    """Of them, those from the first on that the text goes on with."""
    ngram: int
    """Tokens of the text's end that were found earlier; 0 where nothing was."""
    rejected: int | None
    """The first proposal that the text does not go on with; None where it goes on with all it has left."""


def starts_of(text: Text, ngram: NgramConfig, gamma_max: int) -> Iterator[Start]:
    """One for each position of a text."""
    index = NgramIndex(longest=ngram.longest, shortest=ngram.shortest)
    committed = [*text.prompt_tokens, text.tokens[0]]
    for position in range(len(text.tokens) - 1):
        proposals, size = index.lookup(committed, gamma_max)
        ahead = text.tokens[position + 1 :]
        pairs = zip(proposals, ahead, strict=False)
        run = next((at for at, (draft, token) in enumerate(pairs) if draft != token), min(len(proposals), len(ahead)))
        rejected = proposals[run] if run < min(len(proposals), len(ahead)) else None
        yield Start(proposed=len(proposals), matching=run, ngram=size, rejected=rejected)
        committed.append(ahead[0])


@torch.inference_mode()
def measure_lookups(
    target: LoadedModel,
    ngram: NgramConfig,
    texts: Sequence[Text],
    settings: SamplingSettings,
    *,
    gamma_max: int,
    batch_size: int,
    chunk: int,
    progress: Callable[[float], object] | None = None,
) -> pd.DataFrame:
    """One row per position of the texts: `INTEGER_COLUMNS`, `FLOAT_COLUMNS`, `LOOKUP_COLUMNS`, ``end_reason``.

    Texts of a single token have no position.  A token outside the recomputed support has a null probability.

    progress: told how many texts are done.

    Raises:
        NonFiniteLogitsError: the target's logits are not numbers.
    """
    batches = text_batches(texts, batch_size)
    rows: list[tuple[Any, ...]] = []
    done = 0
    for batch in batches:
        starts = [list(starts_of(text, ngram, gamma_max)) for text in batch]
        of_tokens, of_rejected = _target_probs(target, batch, starts, settings, chunk)
        for text, found, token_probs, rejected_probs in zip(batch, starts, of_tokens, of_rejected, strict=True):
            for position, start in enumerate(found):
                at = (text.prompt, text.repetition, position, len(text.prompt_tokens) + position)
                offered = (start.proposed, start.matching, start.ngram)
                probs = (token_probs[position], rejected_probs[position])
                rows.append((*at, text.tokens[position + 1], *offered, *probs, text.end_reason))
        done += len(batch)
        if progress is not None:
            progress(done)
    return _frame(pd.DataFrame(rows, columns=list(_FILLED)))


def _target_probs(
    target: LoadedModel,
    texts: Sequence[Text],
    starts: Sequence[Sequence[Start]],
    settings: SamplingSettings,
    chunk: int,
) -> tuple[list[list[float]], list[list[float]]]:
    """(probability of each token, of the first failing proposal of each start or NaN), by text and position.

    A proposal fails at the position of its start plus the run before it.
    """
    tokens: list[Tensor] = []
    rejected = [[math.nan] * len(found) for found in starts]
    failing = [
        (row, position, position + start.matching, start.rejected)
        for row, found in enumerate(starts)
        for position, start in enumerate(found)
        if start.rejected is not None
    ]
    histories = Histories(texts, settings, target.device)
    scored, valid = pad_right([text.tokens[1:] for text in texts], 0, target.device)
    first = 0
    for logits in logit_chunks(target, texts, chunk):
        stop = first + logits.shape[1]
        probs = probabilities(logits, settings, histories.along(first, stop, logits.shape[-1]))
        refuse_places(target.name, texts, are_no_numbers(probs) & valid[:, first:stop], first)
        tokens.append(probs.gather(2, scored[:, first:stop, None])[..., 0].double())
        here = [one for one in failing if first <= one[2] < stop]
        if here:
            rows, positions, places, ids = (list(column) for column in zip(*here, strict=True))
            values = probs[rows, [place - first for place in places], ids].tolist()
            for row, position, value in zip(rows, positions, values, strict=True):
                rejected[row][position] = value
        first = stop
    return torch.cat(tokens, dim=1).tolist(), rejected


def _frame(filled: pd.DataFrame) -> pd.DataFrame:
    """The rows sorted by prompt, repetition and position, with a draft model's columns null."""
    frame = sorted_frame(filled, _WHOLE, _PROBABILITIES, ("prompt", "repetition", "position"))
    frame.loc[frame["target_prob"] == 0.0, "target_prob"] = math.nan
    frame["draft_argmax"] = pd.array([None] * len(frame), dtype="Int32")
    for name in FLOAT_COLUMNS:
        if name not in frame:
            frame[name] = math.nan
    return frame[[*INTEGER_COLUMNS, *FLOAT_COLUMNS, *LOOKUP_COLUMNS, "end_reason"]]


def pair_acceptance(
    pair: LoadedPair,
    texts: Sequence[Text],
    settings: SamplingSettings,
    *,
    gamma_max: int,
    batch_size: int,
    chunk: int,
    progress: Callable[[float], object] | None = None,
) -> pd.DataFrame:
    """One row per position of the texts, by `measure_lookups` where lookups draft, else by `measure_acceptance`.

    Raises:
        ValueError: a text longer than a draft model's context.
        NonFiniteLogitsError: logits are not numbers.
    """
    given: dict[str, Any] = {"batch_size": batch_size, "chunk": chunk, "progress": progress}
    if pair.ngram is not None:
        return measure_lookups(pair.target, pair.ngram, texts, settings, gamma_max=gamma_max, **given)
    return measure_acceptance(pair.target, pair.draft_model, texts, settings, **given)
