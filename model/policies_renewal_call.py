"""The stopping rule of `specgauge.model.policies_renewal` in one call, in plain numbers.

A decoder asks after every draft, and what the answer costs is added to every round.  On arrays of one call and few rows
numpy spends more on itself than on the rule; here is the same arithmetic without it, a tenth of the time.

    call = RenewalCall(policy)
    call.gamma, call.goes_on(1, [0.8], [0.4])

B rows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specgauge.model.acceptance_forecast import AcceptanceForecast
    from specgauge.model.policies_renewal import RenewalStoppingPolicy


class RenewalCall:
    """One call of the rule (`specgauge.model.policies.GammaChoice`)."""

    def __init__(self, policy: RenewalStoppingPolicy) -> None:
        self._policy, self._forecast = policy, policy.forecast
        self._cap = len(policy.t_round_s) - 1
        self._prices_s = [policy.further_prices_s(depth).tolist() for depth in range(self._cap)]
        self._judged = self._confidence = self._accepted = 0.0
        self._seen: list[list[float]] = []
        self._survival: list[float] = []
        self._further: list[float] = []
        self._gamma = 0
        self._start_round()

    @property
    def gamma(self) -> int:
        """The most drafts of the next round."""
        return self._gamma

    def goes_on(self, depth: int, top_probs: Sequence[float], entropies_nats: Sequence[float]) -> bool:  # noqa: ARG002
        """Where some number of further drafts is worth more than it costs."""
        confidence = [math.nan if math.isnan(top) else _at(self._forecast, top) for top in top_probs]
        self._seen.append(confidence)
        if not self._survival:
            self._survival = [1.0] * len(confidence)
        hopes, known = 0.0, False
        for row, z in enumerate(confidence):
            if math.isnan(z):
                self._survival[row] = math.nan
                continue
            self._survival[row] *= self._probability(self._forecast.this_weights, z)
            hope = self._survival[row] * self._probability(self._forecast.next_weights, z)
            if not math.isnan(hope):
                hopes, known = hopes + hope, True
        if not known or depth >= self._gamma:
            return False
        return depth < self._policy.fewest or self._pays(depth, hopes / len(confidence))

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Take in the judged drafts, r for z where nobody looked; and a plain round, in which nothing was seen."""
        memory = self._forecast.memory
        judged = [min(kept + 1, made) for made, kept in zip(drafted, accepted, strict=True)]
        for place in range(max(judged, default=0)):
            looked = self._seen[place] if place < len(self._seen) else None
            confidence = hits = rows = 0.0
            for row, (count, kept) in enumerate(zip(judged, accepted, strict=True)):
                if count > place:
                    z = self._r if looked is None or math.isnan(looked[row]) else looked[row]
                    confidence, hits, rows = confidence + z, hits + (kept > place), rows + 1
            if rows:
                self._judged = memory * self._judged + rows
                self._confidence = memory * self._confidence + confidence
                self._accepted = memory * self._accepted + hits
        if judged and not any(drafted):
            self._judged, self._confidence = memory * self._judged, memory * self._confidence
            self._accepted *= memory
        self._start_round()

    def _start_round(self) -> None:
        forecast = self._forecast
        total, lean = forecast.prior_weight + self._judged, forecast.prior_weight * forecast.mean
        self._r, self._e = (lean + self._confidence) / total, (lean + self._accepted) / total
        self._seen, self._survival = [], []
        one, r, e = forecast.first_weights
        steady = _cut(one + r * self._r + e * self._e)
        self._further = list(accumulate(steady**power for power in range(self._cap)))
        pays = self._policy.fewest > 0 or self._pays(0, steady)
        self._gamma = self._cap if pays else 0

    def _probability(self, weights: tuple[float, float, float, float], z: float) -> float:
        one, of_z, r, e = weights
        return _cut((one + r * self._r + e * self._e) + of_z * z)

    def _pays(self, depth: int, tokens: float) -> bool:
        """Whether some m further drafts pay: the first brings the mean row so many tokens, each next p of that."""
        if depth >= self._cap:
            return False
        worth_s = self._policy.token_worth_s * tokens
        further_and_price = zip(self._further, self._prices_s[depth], strict=False)  # fewer remain, the deeper
        return any(worth_s * further > price for further, price in further_and_price)


def _at(forecast: AcceptanceForecast, top: float) -> float:
    """Acceptance at a largest probability: straight between the steps, flat beyond them."""
    places, values = forecast.top_probs, forecast.acceptance
    after = bisect_right(places, top)
    if after == 0:
        return values[0]
    if after == len(places):
        return values[-1]
    before = after - 1
    slope = (values[after] - values[before]) / (places[after] - places[before])
    return slope * (top - places[before]) + values[before]


def _cut(value: float) -> float:
    return min(max(value, 0.0), 1.0)
