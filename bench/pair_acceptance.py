"""Acceptance of a loaded pair over the target's own texts, whatever drafts in it.

    frame = pair_acceptance(pair, texts, settings, gamma_max=6, batch_size=8, chunk=128)

A draft model (or the target's first layers) is judged position by position, for every γ at once; lookups by where a
round starts, up to γ_max drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specgauge.bench.acceptance import measure_acceptance
from specgauge.bench.generate import Text
from specgauge.bench.lookup_acceptance import measure_lookups
from specgauge.bench.models import LoadedPair
from specgauge.model.sampling import SamplingSettings

if TYPE_CHECKING:
    import pandas as pd


def pair_acceptance(
    pair: LoadedPair,
    texts: Sequence[Text],
    settings: SamplingSettings,
    *,
    gamma_max: int,
    batch_size: int,
    chunk: int,
    progress: Callable[[int, int], None] | None = None,
) -> pd.DataFrame:
    """One row per position of the texts, with the columns of `measure_acceptance` or of `measure_lookups`.

    Raises ValueError for a text longer than a draft model's context, and NonFiniteLogitsError where logits are not
    numbers.
    """
    if pair.ngram is not None:
        return measure_lookups(
            pair.target,
            pair.ngram,
            texts,
            settings,
            gamma_max=gamma_max,
            batch_size=batch_size,
            chunk=chunk,
            progress=progress,
        )
    return measure_acceptance(
        pair.target,
        pair.draft_model,
        texts,
        settings,
        batch_size=batch_size,
        chunk=chunk,
        progress=progress,
    )
