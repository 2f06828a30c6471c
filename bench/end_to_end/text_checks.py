"""What decoded texts show: where greedy ones leave the plain loop's, and the rounds that each should have taken.

At float64 greedy speculative text equals plain text.  In a lower precision a block of γ + 1 tokens rounds differently
from one token at a time, so two nearly equal logits may change places.  A margin above the dtype's threshold
(`TIE_THRESHOLDS`) at a text's first divergence is a failure, not a tie:

    margin = largest logit − smaller logit of the two tokens        numeric tie: margin <= threshold · max |logit|
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from specgauge.bench.acceptance.lookups import pair_acceptance
from specgauge.bench.cache.cache import forward, new_cache
from specgauge.bench.decoding.plain import feedable
from specgauge.bench.decoding.records import NonFiniteLogitsError, Text
from specgauge.bench.decoding.sampling import History, processed_logits
from specgauge.bench.models.pair import LoadedModel, LoadedPair
from specgauge.bench.models.weights import rounding_dtype
from specgauge.model.acceptance.recorded import needed_columns, pad_texts, recorded_rounds
from specgauge.model.exact import AcceptanceRule, DraftSampling
from specgauge.model.sampling import SamplingSettings

TIE_THRESHOLDS = {torch.float64: 0.0, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Margin over the largest absolute logit that rounding explains: a few roundings of the dtype, through all layers."""
_SIGNALS = ("draft_top_prob", "draft_entropy_nats")


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first place where two greedy texts of one prompt differ."""

    prompt: int
    position: int
    """Token index in the text; 0 is the token sampled from the prefill."""
    plain_token: int | None
    """None where the plain text had ended."""
    speculative_token: int | None
    margin: float | None
    """How far the lower of the two tokens' logits lies under the largest one; None where one text had ended."""
    threshold: float
    """The largest margin that counts as a tie here."""

    @property
    def is_tie(self) -> bool:
        """Whether rounding explains it."""
        return self.margin is not None and self.margin <= self.threshold

    def line(self) -> str:
        """One line for a report."""
        kind = "numeric tie" if self.is_tie else "FAILURE"
        margin = "one text ended" if self.margin is None else f"top-2 margin {self.margin:.3g}"
        return (
            f"prompt {self.prompt}, token {self.position}: plain {self.plain_token}, speculative "
            f"{self.speculative_token}: {kind} ({margin}, threshold {self.threshold:.3g})"
        )


@torch.inference_mode()
def divergences(
    target: LoadedModel, plain: Sequence[Text], speculative: Sequence[Text], settings: SamplingSettings
) -> list[Divergence]:
    """The first difference of every pair of greedy texts that differs; both sides have a text of the same prompts."""
    assert settings.temperature == 0.0, "drawn texts differ anyway"
    others = {text.prompt: text for text in speculative}
    pairs = [(text, others[text.prompt]) for text in plain]
    return [_first_difference(target, text, other, settings) for text, other in pairs if text.tokens != other.tokens]


def _first_difference(target: LoadedModel, plain: Text, other: Text, settings: SamplingSettings) -> Divergence:
    shorter = min(len(plain.tokens), len(other.tokens))
    position = next((i for i in range(shorter) if plain.tokens[i] != other.tokens[i]), shorter)
    tokens = [text.tokens[position] if position < len(text.tokens) else None for text in (plain, other)]
    history = [*plain.prompt_tokens, *plain.tokens[:position]]
    cache = new_cache(target.model, batch_size=1, tokens=len(history))
    fed = feedable(torch.tensor([history], device=target.device), target)
    logits = forward(target.model, cache, fed, keep=1)[:, -1]
    seen = None
    if settings.repetition_penalty != 1.0:
        seen = History(1, logits.shape[-1], target.device).update([history])
    scores = processed_logits(logits, settings, seen)[0].double()
    margin = None
    if tokens[0] is not None and tokens[1] is not None:
        margin = float(scores.amax() - torch.minimum(scores[tokens[0]], scores[tokens[1]]))
    finite = scores[scores.isfinite()]
    return Divergence(
        prompt=plain.prompt,
        position=position,
        plain_token=tokens[0],
        speculative_token=tokens[1],
        margin=margin,
        threshold=TIE_THRESHOLDS.get(rounding_dtype(target.model), 0.0) * float(finite.abs().amax()),
    )


@dataclass(frozen=True, kw_only=True)
class ExpectedCounts:
    """What one text takes at each γ, in expectation over the uniforms given the text."""

    rounds: tuple[float, ...]
    """Σ v_t; 0 for a text of one token."""
    starts: tuple[float, ...]
    """Rounds that start with the window's positions left."""
    committed: tuple[float, ...]
    """Tokens that those commit."""
    top_probs: tuple[float, ...] = ()
    """The draft's largest probability where it drafts token 1, 2, … of the text; empty where no model drafts."""
    entropies_nats: tuple[float, ...] = ()


def expected_counts(
    pair: LoadedPair,
    texts: Sequence[Text],
    settings: SamplingSettings,
    *,
    gammas: Sequence[int],
    window: int,
    max_new_tokens: int,
    acceptance_rule: AcceptanceRule = "ratio",
    draft_sampling: DraftSampling = "same",
    batch_size: int = 8,
    chunk: int = 128,
) -> list[ExpectedCounts]:
    """The counts of each text at every γ, from one teacher-forced pass; equal texts are passed over once.

    window: positions left from which a round's start is counted, at least the largest γ.

    Raises:
        NonFiniteLogitsError: either model's logits are not numbers.
    """
    nothing = (0.0,) * len(gammas)
    found = [ExpectedCounts(rounds=nothing, starts=nothing, committed=nothing)] * len(texts)
    keys = [(text.prompt_tokens, text.tokens, text.end_reason) for text in texts]
    unique = dict(zip(keys, texts, strict=True))
    numbers = {key: number for number, key in enumerate(unique)}
    numbered = [replace(text, prompt=numbers[key], repetition=0) for key, text in unique.items()]
    try:
        frame = pair_acceptance(pair, numbered, settings, gamma_max=window, batch_size=batch_size, chunk=chunk)
    except NonFiniteLogitsError as error:
        first = next(text for text, key in zip(texts, keys, strict=True) if numbers[key] == error.prompt)
        raise NonFiniteLogitsError(error.model, first.prompt, error.position) from None
    if frame.empty:
        return found
    padded = pad_texts(
        frame["prompt"].to_numpy(),
        frame["repetition"].to_numpy(),
        frame["position"].to_numpy(),
        frame["end_reason"].to_numpy(dtype=str),
        {name: frame[name].to_numpy() for name in (*needed_columns(frame.columns), *_SIGNALS)},
    )
    result = recorded_rounds(
        padded,
        acceptance_rule=acceptance_rule,
        draft_sampling=draft_sampling,
        gammas=list(gammas),
        gamma_max=window,
        length_limits=max_new_tokens - 1,
    )
    rows = {int(number): row for row, number in enumerate(padded.prompts)}
    for index, key in enumerate(keys):
        row = rows.get(numbers[key])
        if row is not None:
            of_draft = np.arange(padded.lengths[row] if pair.drafts_with_model else 0)
            tops, entropies = (padded.columns[name][row, of_draft].tolist() for name in _SIGNALS)
            found[index] = ExpectedCounts(
                rounds=tuple(result.rounds[row].tolist()),
                starts=tuple(result.starts[row].tolist()),
                committed=tuple(result.committed[row].tolist()),
                top_probs=tuple(tops),
                entropies_nats=tuple(entropies),
            )
    return found
