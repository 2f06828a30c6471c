"""Where greedy speculative text leaves greedy plain text, and whether rounding explains it.

At float64 both are equal, token for token.  In a lower precision a block of γ + 1 tokens and one token at a time
round differently, so two nearly equal logits may change places.  The first divergence of every text is listed with its
margin:

    margin = largest logit − smaller logit of the two tokens        numeric tie: margin <= threshold · max |logit|

Thresholds by dtype are in `TIE_THRESHOLDS`; a larger margin is a failure, not a tie.

    for found in divergences(target, plain, speculative, settings): ...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from specgauge.bench.cache.cache import forward, new_cache
from specgauge.bench.decoding.draws import History
from specgauge.bench.decoding.plain import Text, feedable
from specgauge.bench.decoding.sampling import processed_logits
from specgauge.bench.models.pair import LoadedModel
from specgauge.model.sampling import SamplingSettings

TIE_THRESHOLDS: Mapping[torch.dtype, float] = MappingProxyType(
    {torch.float64: 0.0, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
)
"""Margin over the largest absolute logit that rounding explains: a few roundings of the dtype, through all layers."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first place where two greedy texts of one prompt differ."""

    prompt: int
    repetition: int
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
    """The first difference of every pair of texts that differs; texts are paired by (prompt, repetition).

    Raises ValueError unless the chain is greedy and both sides have the same texts.
    """
    if settings.temperature != 0.0:
        raise ValueError(
            f"divergences: found temperature {settings.temperature}; allowed is 0, texts are not drawn then"
        )
    others = {(text.prompt, text.repetition): text for text in speculative}
    if sorted(others) != sorted((text.prompt, text.repetition) for text in plain):
        raise ValueError(
            "divergences: found texts of other prompts; give the same prompts and repetitions to both sides"
        )
    found = []
    for text in plain:
        other = others[text.prompt, text.repetition]
        if text.tokens != other.tokens:
            found.append(_first_difference(target, text, other, settings))
    return found


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
        repetition=plain.repetition,
        position=position,
        plain_token=tokens[0],
        speculative_token=tokens[1],
        margin=margin,
        threshold=TIE_THRESHOLDS.get(target.dtype, 0.0) * float(finite.abs().amax()),
    )
