"""Policies tuned on some prompts, to be judged on others: one maker per policy, from recorded texts to plain data.

    fixed        the best γ                          gammatune, heuristic   as published, under the cap
    svip         h from a grid                       adaedl                 where λ starts, from a grid
    ucb          the width of its bounds             exp3                   as published
    goodput      the rate its shares begin at        renewal                the forecast, and what a token is worth

What is chosen is what takes the least time on the tuning texts, replayed with the same coins for every candidate, the
earlier of equals. The worth of a token is Dinkelbach's fixed point, v ← seconds / tokens of the policy at v, and shares
of it: in a batch that waits for its last row, tokens of the rows ahead are worth less.

    tuning = Tuning.on(texts, costs, replicates=16, seed=0)
    policy = MAKERS["renewal"](tuning)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from specgauge.model.acceptance_forecast import fit_forecast
from specgauge.model.checks import FloatArray, IntArray
from specgauge.model.lookup_forecast import fit_lookup_forecast
from specgauge.model.policies import FixedPolicy, HeuristicPolicy, RoundPolicy
from specgauge.model.policies_bandit import Exp3Policy, UcbPolicy
from specgauge.model.policies_entropy import AdaEdlPolicy, SvipPolicy
from specgauge.model.policies_renewal import RenewalStoppingPolicy
from specgauge.model.policies_running import GammaTunePolicy, GoodputPolicy
from specgauge.model.policy_costs import RoundCosts
from specgauge.model.replay_rounds import Lanes, Played, batches, play, rejections, time_by_text
from specgauge.model.replay_texts import ReplayTexts
from specgauge.model.texts import sum_by_prompt
from specgauge.model.uncertainty import PAYS_AT_LEAST

SVIP_THRESHOLDS = (0.3, 0.6, 1.0, 1.3, 1.6, 2.0)
ADAEDL_STARTS = (0.2, 0.4, 0.6)
UCB_WIDTHS = (0.05, 0.2, 1.0)
WORTH_SHARES = (1.0, 0.8, 1.25)
BATCH_WORTH_SHARES = (1.0, 0.8, 0.65, 0.5)
_CLOSE = 1e-3
_START = 5
"""Drafts that a schedule begins with, where its cap allows as many."""
_MOST_STEPS = 4
"""Dinkelbach's steps at most; each costs a replay, and they double the digits."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Texts to tune on, with their coins."""

    texts: ReplayTexts
    costs: RoundCosts
    seed: int
    calls: Lanes
    first_rejected: IntArray

    @classmethod
    def on(cls, texts: ReplayTexts, costs: RoundCosts, *, replicates: int, seed: int) -> Tuning:
        """Throw the coins of `replicates` replays of all texts."""
        calls = batches(texts, costs.batch_size, replicates, seed)
        coins = rejections(texts, int(calls.replicates.max()) + 1, seed)
        return cls(texts=texts, costs=costs, seed=seed, calls=calls, first_rejected=coins)

    def played(self, policy: RoundPolicy) -> Played:
        """Every call of the tuning texts."""
        return play(policy, self.texts, self.calls, self.first_rejected, self.costs)

    def time_s(self, policy: RoundPolicy) -> float:
        """Seconds of all calls together."""
        return float(self.played(policy).time_s.sum())

    def by_prompt_s(self, policy: RoundPolicy) -> FloatArray:
        """(P,) the same seconds by prompt, a batch's shared alike by its rows."""
        time_s = self.played(policy).time_s
        return sum_by_prompt(time_by_text(time_s, self.calls, self.texts), self.texts.prompts)

    def fastest(self, policies: Iterable[RoundPolicy]) -> RoundPolicy:
        """The policy of the least time, the first of equals."""
        return min(policies, key=self.time_s)


PolicyMaker = Callable[[Tuning], RoundPolicy]
"""A policy tuned on the texts and costs of a `Tuning`."""


def tune_fixed(tuning: Tuning) -> FixedPolicy:
    """The fastest γ, plain decoding included."""
    found = tuning.fastest(FixedPolicy(gamma=gamma) for gamma in range(tuning.costs.gamma_max + 1))
    assert isinstance(found, FixedPolicy)
    return found


def tune_goodput(tuning: Tuning) -> RoundPolicy:
    """Shares begin at what the tuning texts accept of judged drafts, at the most drafts."""
    widest = FixedPolicy(gamma=tuning.costs.gamma_max)
    played = tuning.played(widest)
    judged = played.judged.sum()
    rate = float(played.accepted.sum() / judged) if judged else 0.0
    return GoodputPolicy(t_round_s=tuning.costs.t_round_s, prior_rate=rate)


def tune_renewal(tuning: Tuning) -> RoundPolicy:
    """The forecast of the tuning texts, v at its fixed point and around it, with 0, 1 or γ drafts in every round.

    γ is the best fixed one. It is returned itself where it is faster than the rule with P >= .95 over prompts (by
    Student's t); and plain decoding where what would be returned is not faster than it with as much certainty. So the
    rule need not win: without signals worth reading it is fixed γ, without acceptance worth having plain decoding.
    """
    costs, plain = tuning.costs, FixedPolicy(gamma=0)
    if costs.gamma_max == 0:
        return plain
    fixed = tune_fixed(tuning)
    start = RenewalStoppingPolicy(
        forecast=fit_lookup_forecast(tuning.texts, costs.gamma_max)
        if tuning.texts.lookups is not None
        else fit_forecast(tuning.texts, seed=tuning.seed),
        t_round_s=costs.t_round_s,
        token_worth_s=costs.t_decode_s,
        t_look_s=costs.t_look_s,
    )
    shares = WORTH_SHARES if costs.batch_size == 1 else BATCH_WORTH_SHARES
    candidates: list[RoundPolicy] = []
    for fewest in sorted({0, 1, fixed.gamma}):
        settled = _settled(tuning, replace(start, fewest=fewest))
        candidates += [replace(settled, token_worth_s=settled.token_worth_s * share) for share in shares]
    rule = tuning.fastest(candidates)
    best = fixed if _surely_faster(tuning, fixed, rule) else rule
    return best if _surely_faster(tuning, best, plain) else plain


def _surely_faster(tuning: Tuning, one: RoundPolicy, other: RoundPolicy) -> bool:
    """Whether `one` takes less time, with P >= `PAYS_AT_LEAST` over prompts; unknown with one prompt, so no."""
    from scipy.special import stdtrit

    gains_s = tuning.by_prompt_s(other) - tuning.by_prompt_s(one)
    if gains_s.size < 2:
        return False
    error_s = float(gains_s.std(ddof=1)) / math.sqrt(gains_s.size)
    return float(gains_s.mean()) > float(stdtrit(gains_s.size - 1, PAYS_AT_LEAST)) * error_s


def _settled(tuning: Tuning, policy: RenewalStoppingPolicy) -> RenewalStoppingPolicy:
    """The policy whose token is worth the seconds per token that it takes itself."""
    for _ in range(_MOST_STEPS):
        played = tuning.played(policy)
        worth_s = float(played.time_s.sum() / played.progress.sum())
        if abs(worth_s - policy.token_worth_s) <= _CLOSE * policy.token_worth_s:
            break
        policy = replace(policy, token_worth_s=worth_s)
    return policy


def _heuristic(cap: int) -> RoundPolicy:
    return HeuristicPolicy(start=min(_START, cap), cap=cap)


def _gammatune(cap: int) -> RoundPolicy:
    return GammaTunePolicy(start=min(_START, cap), cap=cap)


def _svip(tuning: Tuning) -> RoundPolicy:
    cap = tuning.costs.gamma_max
    return tuning.fastest(SvipPolicy(threshold=threshold, cap=cap) for threshold in SVIP_THRESHOLDS)


def _adaedl(tuning: Tuning) -> RoundPolicy:
    cap = tuning.costs.gamma_max
    return tuning.fastest(AdaEdlPolicy(start=start, cap=cap) for start in ADAEDL_STARTS)


def _ucb(tuning: Tuning) -> RoundPolicy:
    return tuning.fastest(UcbPolicy(t_round_s=tuning.costs.t_round_s, width=width) for width in UCB_WIDTHS)


def _exp3(tuning: Tuning) -> RoundPolicy:
    return Exp3Policy(t_round_s=tuning.costs.t_round_s, seed=tuning.seed)


UNTUNED: Mapping[str, Callable[[int], RoundPolicy]] = MappingProxyType(
    {"heuristic": _heuristic, "gammatune": _gammatune}
)
"""Policies that need no text to be tuned on, from the most drafts they may make, at least 1."""
MAKERS: Mapping[str, PolicyMaker] = MappingProxyType(
    {
        "fixed": tune_fixed,
        "heuristic": lambda tuning: _heuristic(tuning.costs.gamma_max),
        "gammatune": lambda tuning: _gammatune(tuning.costs.gamma_max),
        "svip": _svip,
        "adaedl": _adaedl,
        "ucb": _ucb,
        "exp3": _exp3,
        "goodput": tune_goodput,
        "renewal": tune_renewal,
    }
)
"""Every policy by its name in tables."""
