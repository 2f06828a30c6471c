"""What decoding leaves behind: the texts, one record for every row and round, the seconds of every phase.

    emitted = accepted + 1, the replacement or bonus; = accepted where a round ended on an accepted end token
    tokens per round = Σ emitted / rounds          bonus included
    accepted drafts per round = Σ accepted / rounds          bonus excluded
    ε = Σ (t_accept_s + t_rest_s) / rounds

Accepted over drafted is not the acceptance rate: drafts after a rejection were never judged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from specgauge.bench.decoding.plain import Text

GammaLimit = Literal["asked", "tokens_left", "target_context", "draft_context"]
"""What set γ in force: what was asked for, or the limit that allowed less."""


@dataclass(frozen=True, kw_only=True)
class RowRound:
    """One row's part in one round."""

    round: int
    prompt: int
    repetition: int
    position: int
    """Index of the round's first token in the row's text; the prefill's token is index 0."""
    context: int
    """Tokens in the target's cache when the round started."""
    gamma_asked: int
    """γ that was asked for: drafts after which a policy that reads signals stopped, where it did."""
    gamma: int
    """γ in force: never more than the tokens left and both contexts allow."""
    gamma_limit: GammaLimit
    drafted: int
    """Drafts that were proposed: γ in force, or fewer where the drafter had none."""
    accepted: int
    """Drafts that were accepted and emitted; a replacement or bonus is not among them."""
    emitted: int
    """Tokens committed, the replacement or bonus included, nothing after an end token."""
    top_probs: tuple[float, ...]
    """The draft's own largest probability at each of its steps; empty where signals are neither kept nor read, and
    without that of a last step that no other could follow where they are only read."""
    entropies_nats: tuple[float, ...]
    match_length: int | None
    """Tokens that a lookup matched where the round started, 0 for no match; None for other drafters."""


@dataclass(frozen=True, kw_only=True)
class RoundTimes:
    """Seconds of one round of the whole batch, by phase; rounds follow each other without a gap."""

    round: int
    t_draft_s: float
    t_verify_s: float
    t_accept_s: float
    """Accept or replace, and the read-back that tells the host."""
    t_rest_s: float
    """Bookkeeping on the host and rolling back, until the next round starts."""
    active_rows: int

    @property
    def t_round_s(self) -> float:
        """The whole round."""
        return self.t_draft_s + self.t_verify_s + self.t_accept_s + self.t_rest_s


@dataclass(frozen=True, kw_only=True)
class Decoded:
    """A decoded batch."""

    texts: list[Text]
    rows: list[RowRound]
    times: list[RoundTimes]
    prefill_target_s: float
    """Up to and including the first token, which the target samples."""
    prefill_draft_s: float
    """Whatever the drafter does before the first round."""
    decode_s: float
    """From there to the end of the last row: the sum of all rounds."""
    lossless: bool
    """Whether the texts have exactly the target's law, but for ties within rounding."""
    why_not_lossless: str | None

    @property
    def prefill_s(self) -> float:
        """Both prefills."""
        return self.prefill_target_s + self.prefill_draft_s

    def plain_rounds(self) -> dict[GammaLimit, int]:
        """How many rows' rounds had γ = 0 in force, by what set it: those were decoded plainly."""
        return dict(Counter(row.gamma_limit for row in self.rows if row.gamma == 0))
