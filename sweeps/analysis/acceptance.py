"""Recorded acceptance of one pair and sampling setting, taken through the renewal pass under every acceptance rule.

texts = recorded_texts(frame)                                        # padded once
rounds = texts.rounds(setting, gammas=(1, 2, 3), max_new_tokens=64)     # sums by prompt: Ω, A_γ, …
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specgauge.model.acceptance.recorded import (
    ChainCheck,
    PaddedTexts,
    chain_check,
    needed_columns,
    pad_texts,
    recorded_overlaps,
    recorded_rounds,
    repeated_ngram_share,
)
from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.checks import FloatArray
from specgauge.model.settings import Setting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class RecordedTexts:
    """The texts of one pair and sampling setting, one row per text, and what they say of themselves."""

    padded: PaddedTexts
    context_low: int
    """Smallest number of cached tokens at which acceptance was recorded."""
    context_high: int
    null_share: float
    """Share of positions whose token lies outside the recomputed support."""
    positions: int

    @property
    def prompts(self) -> int:
        """Distinct prompts: what a bootstrap draws from."""
        return int(np.unique(self.padded.prompts).size)

    def covers(self, context: int) -> bool:
        """Whether acceptance was recorded around this context."""
        return self.context_low <= context <= self.context_high

    def rounds(self, setting: Setting, *, gammas: Sequence[int], max_new_tokens: int) -> RenewalResult:
        """Expected rounds, tokens and survival for every gamma, as sums by prompt (P, G).

        Raises:
            ValueError: a recorded value is no probability, or a text is longer than `max_new_tokens` allows.
        """
        return recorded_rounds(
            self.padded,
            acceptance_rule=setting.acceptance_rule,
            draft_sampling=setting.draft_sampling,
            gammas=list(gammas),
            length_limits=max_new_tokens - 1,
        ).by_prompt(self.padded.prompts)

    def overlaps(self, setting: Setting) -> FloatArray:
        """o_t of every position where something is drafted, in one list."""
        rule, drafts = setting.acceptance_rule, setting.draft_sampling
        return recorded_overlaps(self.padded, acceptance_rule=rule, draft_sampling=drafts)

    def chain_check(self, rounds: RenewalResult, setting: Setting) -> ChainCheck:
        """Whether the texts come from the chain of `rounds`, by the largest gamma, which tests most positions."""
        index = int(np.argmax(rounds.gammas))
        means = self.overlaps(setting)
        return chain_check(
            rounds.accepted[:, index],
            rounds.tested_overlap[:, index],
            rounds.tested[:, index],
            largest_variance=float(np.sum(means * (1 - means))),
        )

    def repeated_share(self) -> float | None:
        """Mean share of 4-grams that occurred before in their text; None where every text is shorter than that."""
        shares = repeated_ngram_share(self.padded.columns["token"], self.padded.lengths)
        known = shares[~np.isnan(shares)]
        return float(known.mean()) if known.size else None


def padded_texts(frame: pd.DataFrame, more: Iterable[str] = ()) -> PaddedTexts:
    """Recorded positions as texts, with the columns that acceptance needs and `more`; raises as `recorded_texts`."""
    names = (*needed_columns(frame.columns), *more)
    values = {name: frame[name].to_numpy() for name in names}
    return pad_texts(frame["prompt"], frame["repetition"], frame["position"], frame["end_reason"], values)


def recorded_texts(frame: pd.DataFrame) -> RecordedTexts:
    """Sort recorded positions (one row each) into texts.

    Raises:
        ValueError: positions are missing or doubled, or a text's end reason is unknown.
    """
    return RecordedTexts(
        padded=padded_texts(frame),
        context_low=int(frame["context"].min()),
        context_high=int(frame["context"].max()),
        null_share=float(frame["target_prob"].isna().mean()),
        positions=len(frame),
    )
