"""Policies that stop drafting when the draft's own signals say so; the draft that made them stop is verified too.

svip       arXiv 2411.18462: stops where √H > h, H the entropy of the draft in nats.

adaedl     arXiv 2410.18351: bounds acceptance from below by 1 - √(.2 H) and stops where that is under λ, which follows
           the share of drafts accepted as the threshold of Draft & Verify (arXiv 2309.08168) does:
               share ← β₁ share + (1 - β₁) accepted / drafted                        starts at the goal
               λ     ← β₂ λ + (1 - β₂) (λ + ε if share <= goal else λ - ε)           goal .9, β₁ .5, β₂ .9, ε .01

renewal    maximises E[tokens] / E[seconds] over rounds: drafts while another draft is worth its time, a token being
           worth v seconds, the policy's own seconds per token (`specgauge.model.policies.tuning`). After d drafts,
           with S = Π P(draft i accepted) by the draft's confidence in each, it drafts on if for some m
               v mean_rows S p_1 (1 + p + … + p^{m-1}) > T_round(d + m) - T_round(d), early-stop checks added
           with p_1 the forecast for the next draft and p the one for any draft of this text as it goes. Before the
           first draft the same rule, with p alone, decides between drafting and a plain round. In plain rounds what
           was learnt fades, so a text that went badly is tried again, if texts in general pay.

    SvipPolicy(threshold=0.6, cap=8).begin().goes_on(1, top_probs=[0.9], entropies_nats=[0.25])      # √.25 <= .6: True

L calls side by side, B rows of each, which go by their mean.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from specgauge.model.checks import BoolArray, FloatArray, IntArray, numbers, positive_times_s, probabilities, times_s
from specgauge.model.policies.forecast import AcceptanceForecast
from specgauge.model.policies.policy import GammaChoices, GammaPolicy, RoundSeen, Signals, check_cap, check_rounds


class _SvipChoices(GammaChoices):
    def __init__(self, policy: SvipPolicy, calls: int) -> None:
        super().__init__(np.full(calls, policy.cap))
        self._threshold = policy.threshold

    def goes_on(self, depth: int, signals: Signals) -> BoolArray:
        return (depth < self.gammas) & (_row_mean(np.sqrt(signals.entropies_nats)) <= self._threshold)


@dataclass(frozen=True, kw_only=True)
class SvipPolicy(GammaPolicy):
    """Stop where the root of the draft's entropy exceeds a threshold."""

    reads_signals = True
    choices = _SvipChoices

    threshold: float = 0.6
    """h, in √nats."""
    cap: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError for a threshold that is no number and a cap below 1."""
        numbers("svip: threshold", self.threshold)
        check_cap("svip", self.cap, lowest=1)


class AdaEdlChoices(GammaChoices):
    """Calls of AdaEDL."""

    def __init__(self, policy: AdaEdlPolicy, calls: int) -> None:
        super().__init__(np.full(calls, policy.cap))
        self._policy = policy
        self.thresholds = np.full(calls, policy.start)
        """(L,) λ."""
        self._shares = np.full(calls, policy.goal)

    def goes_on(self, depth: int, signals: Signals) -> BoolArray:
        """Where the mean of the bounds is not under λ."""
        bounds = _row_mean(1.0 - np.sqrt(self._policy.entropy_weight * signals.entropies_nats))
        return (depth < self.gammas) & (bounds >= self.thresholds)

    def observe(self, seen: RoundSeen) -> None:
        """Move λ by the share accepted of all rows' drafts."""
        policy, made = self._policy, seen.drafted.sum(axis=1)
        share = seen.accepted.sum(axis=1) / np.maximum(made, 1)
        smoothed = policy.share_memory * self._shares + (1 - policy.share_memory) * share
        self._shares = np.where(made > 0, smoothed, self._shares)
        towards = self.thresholds + np.where(self._shares <= policy.goal, policy.step, -policy.step)
        moved = policy.threshold_memory * self.thresholds + (1 - policy.threshold_memory) * towards
        self.thresholds = np.where(made > 0, moved, self.thresholds)


@dataclass(frozen=True, kw_only=True)
class AdaEdlPolicy(GammaPolicy):
    """Stop where a lower bound of acceptance by entropy falls under a threshold that follows the share accepted."""

    reads_signals = True
    choices = AdaEdlChoices

    start: float = 0.4
    """λ at the start of a call."""
    goal: float = 0.9
    share_memory: float = 0.5
    """β₁."""
    threshold_memory: float = 0.9
    """β₂."""
    step: float = 0.01
    """ε."""
    entropy_weight: float = 0.2
    cap: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError for shares outside [0, 1], a step or weight below 0 and a cap below 1."""
        for name in ("start", "goal", "share_memory", "threshold_memory"):
            probabilities(f"adaedl: {name}", getattr(self, name))
        if self.step < 0 or self.entropy_weight < 0:
            raise ValueError(
                f"adaedl: expected 0 or more, got step {self.step:g}, entropy_weight {self.entropy_weight:g}"
            )
        check_cap("adaedl", self.cap, lowest=1)


def _row_mean(values: FloatArray) -> FloatArray:
    """(L, B) -> (L,) mean over rows that still draft, NaN (which compares as false) where none does."""
    if values.shape[1] == 1:
        return values[:, 0]
    drafting = ~np.isnan(values)
    rows = drafting.sum(axis=1)
    total = np.where(drafting, values, 0.0).sum(axis=1)
    return np.where(rows > 0, total / np.maximum(rows, 1), np.nan)


class _RenewalChoices(GammaChoices):
    """Calls of the rule; what was learnt of texts is pooled over the rows of a batch."""

    def __init__(self, policy: RenewalStoppingPolicy, calls: int) -> None:
        super().__init__(np.zeros(calls, dtype=np.int64))
        self._policy, self._forecast = policy, policy.forecast
        self._cap = len(policy.t_round_s) - 1
        self._prices = [policy.extra_draft_costs_s(depth) for depth in range(self._cap)]
        self._history = policy.forecast.start(calls)
        self._survival = np.ones((calls, 1))
        self._start_round()

    def goes_on(self, depth: int, signals: Signals) -> BoolArray:
        """Where some number of further drafts is worth more than it costs."""
        confidence = self._forecast.confidence(signals.top_probs)
        self._seen.append(confidence)
        self._survival = self._survival * self._forecast.this_draft(confidence, self._means)
        hopes = self._survival * self._forecast.next_draft(confidence, self._means)
        known = ~np.isnan(hopes)
        tokens = np.where(known, hopes, 0.0).sum(axis=1) / np.maximum(signals.active_rows, 1)
        within = known.any(axis=1) & (depth < self.gammas)
        return np.asarray(within & (self._pays(depth, tokens) | (depth < self._policy.fewest)), dtype=np.bool_)

    def observe(self, seen: RoundSeen) -> None:
        """Take in the tested drafts, r for z where nobody asked; and plain rounds, in which nothing was seen."""
        tested = np.minimum(seen.accepted + 1, seen.drafted)
        count = int(tested.max(initial=0))
        if count:
            places = np.arange(count)[:, None, None]
            rows = tested > places
            confidence = np.full((count, *tested.shape), np.nan)
            if self._seen:
                asked = min(count, len(self._seen))
                confidence[:asked] = self._seen[:asked]
            confidence = np.where(np.isnan(confidence), self._means.confidence[:, None], confidence)
            self._history = self._forecast.after(
                self._history,
                np.where(rows, confidence, 0.0).sum(axis=2),
                (rows & (seen.accepted > places)).sum(axis=2).astype(np.float64),
                rows.sum(axis=2).astype(np.float64),
            )
        plain: IntArray = (seen.active.any(axis=1) & ~seen.drafts).astype(np.int64)
        if plain.any():
            self._history = self._forecast.faded(self._history, plain)
        self._start_round()

    def _start_round(self) -> None:
        self._means = self._forecast.means(self._history)
        self._seen: list[FloatArray] = []
        self._survival = np.ones((self.gammas.size, 1))
        steady = self._forecast.first_draft(self._means)
        self._further = np.cumsum(steady[:, None] ** np.arange(max(self._cap, 1)), axis=1)
        pays = self._pays(0, steady) | (self._policy.fewest > 0)
        self.gammas = np.where(pays, self._cap, 0)

    def _pays(self, depth: int, tokens: FloatArray) -> BoolArray:
        """(L,) whether some m further drafts pay: the first brings the mean row `tokens` (L,), each next p of that."""
        if depth >= self._cap:
            return np.zeros(tokens.shape, dtype=np.bool_)
        prices_s = self._prices[depth]
        worth_s = self._policy.seconds_saved_per_token * tokens[:, None] * self._further[:, : prices_s.size]
        return np.asarray((worth_s > prices_s).any(axis=1), dtype=np.bool_)


@dataclass(frozen=True, kw_only=True)
class RenewalStoppingPolicy(GammaPolicy):
    """Draft on while the expected tokens of more drafts are worth more than their time."""

    reads_signals = True
    choices = _RenewalChoices

    forecast: AcceptanceForecast
    t_round_s: tuple[float, ...]
    """Seconds of a round of 0 … γ_max drafts."""
    seconds_saved_per_token: float
    """v: seconds that one more token of every row saves."""
    fewest: int = 0
    """Drafts made whatever the signals say; 1 keeps learning where a plain round would not."""
    t_early_stop_check_s: float = 0.0
    """What one early-stop check adds to a round."""

    def __post_init__(self) -> None:
        """Raise ValueError for times that are not above 0 and more drafts at least than at most."""
        check_rounds("renewal", self.t_round_s)
        positive_times_s("seconds_saved_per_token", self.seconds_saved_per_token)
        times_s("t_early_stop_check_s", self.t_early_stop_check_s)
        if not 0 <= self.fewest < len(self.t_round_s):
            raise ValueError(f"renewal: expected 0 to {len(self.t_round_s) - 1}, got fewest {self.fewest}")

    def extra_draft_costs_s(self, depth: int) -> FloatArray:
        """Seconds of 1, 2, … further drafts after `depth`, the checks after each of them but the last of all."""
        rounds_s = np.array(self.t_round_s)
        more = np.arange(1, rounds_s.size - depth)
        return np.asarray(
            rounds_s[depth + more] - rounds_s[depth] + self.t_early_stop_check_s * np.minimum(more, more.size - 1)
        )

    def begin(self) -> RenewalCall:
        """One call, as cheap to ask as it can be."""
        return RenewalCall(self)


class RenewalCall:
    """One call of the rule in plain numbers, a tenth of numpy's time on few rows.

    A decoder asks after every draft, and what the answer costs is added to every round.
    """

    def __init__(self, policy: RenewalStoppingPolicy) -> None:
        self._policy, self._forecast = policy, policy.forecast
        self._cap = len(policy.t_round_s) - 1
        self._prices_s = [policy.extra_draft_costs_s(depth).tolist() for depth in range(self._cap)]
        self._tested = self._confidence = self._accepted = 0.0
        self._survival: list[float] = []
        self.gamma = 0
        """The most drafts of the next round."""
        self._start_round()

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
        if not known or depth >= self.gamma:
            return False
        return depth < self._policy.fewest or self._pays(depth, hopes / len(confidence))

    def observe(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        """Take in the tested drafts, r for z where nobody asked; and a plain round, in which nothing was seen."""
        memory = self._forecast.memory
        tested = [min(kept + 1, made) for made, kept in zip(drafted, accepted, strict=True)]
        for place in range(max(tested, default=0)):
            asked = self._seen[place] if place < len(self._seen) else None
            confidence = hits = rows = 0.0
            for row, (count, kept) in enumerate(zip(tested, accepted, strict=True)):
                if count > place:
                    z = self._r if asked is None or math.isnan(asked[row]) else asked[row]
                    confidence, hits, rows = confidence + z, hits + (kept > place), rows + 1
            if rows:
                self._tested = memory * self._tested + rows
                self._confidence = memory * self._confidence + confidence
                self._accepted = memory * self._accepted + hits
        if tested and not any(drafted):
            self._tested, self._confidence = memory * self._tested, memory * self._confidence
            self._accepted *= memory
        self._start_round()

    def _start_round(self) -> None:
        forecast = self._forecast
        total, lean = forecast.prior_weight + self._tested, forecast.prior_weight * forecast.mean
        self._r, self._e = (lean + self._confidence) / total, (lean + self._accepted) / total
        self._seen: list[list[float]] = []
        self._survival = []
        one, r, e = forecast.first_weights
        steady = _cut(one + r * self._r + e * self._e)
        self._further = list(accumulate(steady**power for power in range(self._cap)))
        pays = self._policy.fewest > 0 or self._pays(0, steady)
        self.gamma = self._cap if pays else 0

    def _probability(self, weights: tuple[float, ...], z: float) -> float:
        one, of_z, r, e = weights
        return _cut((one + r * self._r + e * self._e) + of_z * z)

    def _pays(self, depth: int, tokens: float) -> bool:
        """Whether some m further drafts pay: the first brings the mean row so many tokens, each next p of that."""
        if depth >= self._cap:
            return False
        worth_s = self._policy.seconds_saved_per_token * tokens
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
