"""What a round costs, as an adaptive policy and its replay see it: seconds by drafts, for one batch size.

T_round(g)      C(g) + T_verify(g) + ε,    T_round(0) a plain step inside the speculative loop
Δ₂              added when the draft has two tokens to catch up: after a fully accepted round or a plain one
looks           the host asks after a draft's confidence; only policies that stop while drafting do

costs = RoundCosts(t_decode_s=0.020, t_round_s=(0.020, 0.025, 0.029, 0.033))      # γ up to 3
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specgauge.model.checks import FloatArray, IntArray, positive_times_s, times_s, whole_numbers


@dataclass(frozen=True, kw_only=True)
class RoundCosts:
    """Seconds of one batch size, plain data."""

    t_decode_s: float
    """One step of the plain loop, without speculation loaded: what every speed is compared with."""
    t_round_s: tuple[float, ...]
    """(γ_max + 1,) a round of 0, 1, … γ_max drafts in the speculative loop."""
    t_draft_catch_up_s: float = 0.0
    """Δ₂."""
    t_look_s: float = 0.0
    """What one look at a draft's confidence adds to a round, for the host then waits for it."""
    batch_size: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0 (Δ₂ and looks: below 0) and without a plain round."""
        positive_times_s("t_decode_s", self.t_decode_s)
        if positive_times_s("t_round_s", self.t_round_s).ndim != 1 or not self.t_round_s:
            raise ValueError(f"t_round_s: found {self.t_round_s!r}; allowed is one time for each of 0 … γ_max drafts")
        times_s("t_draft_catch_up_s", self.t_draft_catch_up_s)
        times_s("t_look_s", self.t_look_s)
        whole_numbers("batch_size", self.batch_size, minimum=1)

    @property
    def gamma_max(self) -> int:
        """The most drafts of a round whose cost is known; no policy may ask for more."""
        return len(self.t_round_s) - 1

    @property
    def rounds_s(self) -> FloatArray:
        """`t_round_s` as an array."""
        return np.array(self.t_round_s, dtype=np.float64)

    def tokens_per_s(self, tokens: FloatArray, gammas: IntArray) -> FloatArray:
        """Tokens of one row over the time of its round: (…) tokens, (…) drafts -> (…)."""
        return np.asarray(tokens / self.rounds_s[gammas], dtype=np.float64)
