"""Drafting for as long as another draft is worth its time: stopping by renewal reward.

Over rounds, tokens per second is E[tokens] / E[seconds]; who maximises it stops each round where more drafts are not
worth what they cost, a token being worth v seconds, the policy's own seconds per token (Dinkelbach's fixed point, found
on other prompts by `specgauge.model.policy_tuning`). A batch counts the tokens of its mean row. After d drafts, with
S = Π P(draft i accepted) by the draft's confidence in each, it drafts on if for some m

    v mean_rows S p_1 (1 + p + … + p^{m-1}) > T_round(d + m) - T_round(d), looks added

with p_1 the forecast for the next draft and p the one for any draft of this text as it goes; m > 1 looks over a dear
step to cheap ones behind it. Before the first draft the same rule, with p alone, decides between drafting and a plain
round. In plain rounds what was learnt fades, so a text that went badly is tried again, if texts in general pay.

    policy = RenewalStoppingPolicy(forecast=forecast, t_round_s=(1.0, 1.1, 1.2), token_worth_s=0.6)

L calls, B rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from specgauge.model.acceptance_forecast import AcceptanceForecast
from specgauge.model.checks import BoolArray, FloatArray, IntArray, positive_times_s, times_s
from specgauge.model.policies import GammaChoices, RoundPolicy, RoundSeen, Signals, check_cap


@dataclass(frozen=True, kw_only=True)
class RenewalStoppingPolicy(RoundPolicy):
    """Draft on while the expected tokens of more drafts are worth more than their time."""

    reads_signals: ClassVar[bool] = True

    forecast: AcceptanceForecast
    t_round_s: tuple[float, ...]
    """Seconds of a round of 0 … γ_max drafts."""
    token_worth_s: float
    """v: seconds that one more token of every row saves."""
    fewest: int = 0
    """Drafts made whatever the signals say; 1 keeps learning where a plain round would not."""
    t_look_s: float = 0.0
    """What one look at a draft's confidence adds to a round."""

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0 and more drafts at least than at most."""
        check_cap("renewal", len(self.t_round_s) - 1)
        positive_times_s("t_round_s", self.t_round_s)
        positive_times_s("token_worth_s", self.token_worth_s)
        times_s("t_look_s", self.t_look_s)
        if not 0 <= self.fewest < len(self.t_round_s):
            raise ValueError(f"renewal: found fewest {self.fewest}; allowed is 0 to {len(self.t_round_s) - 1}")

    def begin_many(self, calls: int) -> RenewalChoices:
        """Knowing of texts in general only."""
        return RenewalChoices(self, calls)


class RenewalChoices(GammaChoices):
    """Calls of the rule; what was learnt of texts is pooled over the rows of a batch."""

    def __init__(self, policy: RenewalStoppingPolicy, calls: int) -> None:
        self._policy, self._forecast = policy, policy.forecast
        self._rounds_s = np.array(policy.t_round_s)
        self._history = policy.forecast.start(calls)
        self._seen: list[FloatArray] = []
        self._survival = np.ones((calls, 1))
        self._rows = np.ones(calls, dtype=np.int64)
        self._start_round()

    def goes_on(self, depth: int, signals: Signals) -> BoolArray:
        """Where some number of further drafts is worth more than it costs."""
        confidence = self._forecast.confidence(signals.top_probs)
        self._seen.append(confidence)
        this = self._forecast.this_draft(confidence, self._history)
        self._survival = self._survival * this
        hopes = self._survival * self._forecast.next_draft(confidence, self._history)
        asked = (~np.isnan(hopes)).sum(axis=1)
        if len(self._seen) == 1:
            self._rows = np.maximum(asked, 1)
        tokens = np.where(np.isnan(hopes), 0.0, hopes).sum(axis=1) / self._rows
        within = (asked > 0) & (depth < self.gammas)
        return np.asarray(within & (self._pays(depth, tokens) | (depth < self._policy.fewest)), dtype=np.bool_)

    def observe(self, seen: RoundSeen) -> None:
        """Take in every judged draft whose confidence was seen, and that nothing was where there were no drafts."""
        judged = np.minimum(seen.accepted + 1, seen.drafted)
        for index in range(int(judged.max(initial=0))):
            rows = judged > index
            confidence = self._seen[index] if index < len(self._seen) else np.full(rows.shape, np.nan)
            steady = np.where(np.isnan(confidence), self._steady[:, None], confidence)
            self._history = self._forecast.judged(
                self._history,
                np.where(rows, steady, 0.0).sum(axis=1),
                (rows & (seen.accepted > index)).sum(axis=1).astype(np.float64),
                rows.sum(axis=1).astype(np.float64),
            )
        plain: IntArray = (seen.active.any(axis=1) & ~seen.drafts).astype(np.int64)
        self._history = self._forecast.faded(self._history, plain)
        self._start_round()

    def _start_round(self) -> None:
        self._seen, self._survival = [], np.ones((self._rows.size, 1))
        self._steady = self._forecast.first_draft(self._history)
        cap = self._rounds_s.size - 1
        pays = self._pays(0, self._steady) | (self._policy.fewest > 0)
        self.gammas = np.where(pays, cap, 0)

    def _pays(self, depth: int, tokens: FloatArray) -> BoolArray:
        """(L,) whether some m further drafts pay: the first brings the mean row `tokens` (L,), each next p of that."""
        costs_s = self._rounds_s[depth + 1 :] - self._rounds_s[depth]
        looks = np.minimum(np.arange(costs_s.size) + 1, costs_s.size - 1)  # nobody looks after the last draft of all
        costs_s = costs_s + self._policy.t_look_s * looks
        if costs_s.size == 0:
            return np.zeros(tokens.shape, dtype=np.bool_)
        further = np.cumsum(self._steady[:, None] ** np.arange(costs_s.size), axis=1)
        worth_s = self._policy.token_worth_s * tokens[:, None] * further
        return np.asarray((worth_s > costs_s).any(axis=1), dtype=np.bool_)
