"""Logits that are not numbers: the error that says whose and where, and the texts in which they are looked for.

A token drawn from NaN or infinite logits is not the model's, and acceptance read from them spreads NaN into all that is
made of it: whatever draws or judges looks first.

    refuse_places(target.name, texts, broken_logits(logits) & valid, start)

Shapes: B texts, N positions of a chunk, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from specgauge.bench.decoding.decoded import Decoded
    from specgauge.bench.decoding.plain import Text


class NonFiniteLogitsError(RuntimeError):
    """A model's logits are not numbers; the message names the model, the prompt and the place in one line."""

    def __init__(self, model: str, prompt: int, position: int) -> None:
        super().__init__(
            f"{model}: prompt {prompt}: the logits of token {position} of its text are NaN or infinite; its weights "
            "are corrupt, or need a wider dtype, such as bfloat16 or float32"
        )
        self.model, self.prompt, self.position = model, prompt, position
        self.decoded: Decoded | None = None
        """What the speculative decoder wrote before: texts that had ended, and every finished round."""


def broken_logits(logits: Tensor) -> Tensor:
    """(...) whether (..., V) logits hold NaN or infinity, or give no token any mass; one of minus infinity is none."""
    return ~(logits.amax(dim=-1).abs() < torch.inf)


def refuse_places(model: str, texts: Sequence[Text], broken: Tensor, start: int) -> None:
    """Raise NonFiniteLogitsError for the first text with a broken place.

    broken: (B, N) places start … start + N − 1 of the texts, filling beyond their ends left out; place t is the
    distribution of token t + 1.
    """
    places = broken.cpu().nonzero().tolist()
    if places:
        row, place = places[0]
        raise NonFiniteLogitsError(model, texts[row].prompt, start + place + 1)
