"""From recorded texts to their expected rounds, whatever drafted: the one place that knows which columns mean what.

draft models     a_t at every position, by rule and draft sampling          `specgauge.model.acceptance.estimate`
lookups          proposed and matching lengths at every start               `specgauge.model.acceptance.lookups`

result = recorded_rounds(texts, acceptance_rule="ratio", draft_sampling="same", gammas=[1, 2], length_limits=63)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.acceptance.estimate import (
    RecordedColumns,
    acceptance_probability,
    fill_nulls,
    overlap,
    recorded_columns,
)
from specgauge.model.acceptance.lookups import RecordedLookups, recorded_lookups
from specgauge.model.acceptance.renewal import RenewalResult, renewal
from specgauge.model.acceptance.renewal_starts import renewal_by_start
from specgauge.model.acceptance.texts import PaddedTexts
from specgauge.model.checks import FloatArray

_POSITIONS = tuple(field.name for field in fields(RecordedColumns))
_STARTS = ("token", *(field.name for field in fields(RecordedLookups)))


def are_lookups(columns: Iterable[str]) -> bool:
    """Whether these columns were recorded of lookups."""
    return "proposed_length" in columns


def needed_columns(columns: Iterable[str]) -> tuple[str, ...]:
    """The columns that rounds are made of, among those of a recorded table."""
    return _STARTS if are_lookups(columns) else _POSITIONS


def recorded_rounds(
    texts: PaddedTexts,
    *,
    acceptance_rule: str,
    draft_sampling: str,
    gammas: Sequence[int],
    gamma_max: int | None = None,
    length_limits: ArrayLike | None = None,
) -> RenewalResult:
    """Expected rounds of N texts for every γ, sums by text; γ_max is the largest of them unless given.

    Lookups give the same under every rule and draft sampling. Raises ValueError as `renewal` and `renewal_by_start`
    do, and for recorded values that are no probabilities.
    """
    depth = max(1, *gammas) if gamma_max is None else gamma_max
    if are_lookups(texts.columns):
        lookups = recorded_lookups(texts.columns)
        survival, ahead = lookups.by_start(texts.lengths, depth)
        return renewal_by_start(
            survival,
            ahead,
            np.minimum(lookups.proposed_length, depth),
            texts.lengths,
            texts.ended_by_eos,
            gammas,
            depth,
            length_limits=length_limits,
        )
    recorded = recorded_columns(texts.columns)
    means = overlap(recorded, acceptance_rule=acceptance_rule, draft_sampling=draft_sampling)
    accepted = acceptance_probability(recorded, acceptance_rule=acceptance_rule, draft_sampling=draft_sampling)
    return renewal(
        fill_nulls(accepted, means),
        means,
        texts.lengths,
        texts.ended_by_eos,
        gammas,
        depth,
        length_limits=length_limits,
    )


def recorded_overlaps(texts: PaddedTexts, *, acceptance_rule: str, draft_sampling: str) -> FloatArray:
    """o_t of every position of every text, in one list; of lookups at the starts where something is proposed."""
    inside = np.arange(next(iter(texts.columns.values())).shape[1]) < texts.lengths[:, None]
    if are_lookups(texts.columns):
        means = recorded_lookups(texts.columns).overlap
        return np.asarray(means[inside & np.isfinite(means)], dtype=np.float64)
    recorded = recorded_columns(texts.columns)
    return overlap(recorded, acceptance_rule=acceptance_rule, draft_sampling=draft_sampling)[inside]
