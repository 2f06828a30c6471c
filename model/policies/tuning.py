"""Tuning adaptive policies on recorded rounds, and the records that keep tuned policies.

    fixed        the best γ                          gammatune, heuristic   as published, under the cap
    svip         h from a grid                       adaedl                 where λ starts, from a grid
    ucb          the width of its bounds             exp3                   as published
    goodput      the rate its shares begin at        renewal                the forecast, and what a token is worth

What is chosen is what takes the least time on the tuning texts, simulated with common random numbers for every
candidate, the earlier of equals. The worth of a token is Dinkelbach's fixed point (Management Science 13, 492, 1967),
v ← seconds / tokens of the policy at v, and shares of it: in a batch that waits for its last row, tokens of the rows
ahead are worth less.

    policy = MAKERS["renewal"](ReplayBatches.drawn(texts, costs, replicates=16, seed=0))
    policy_of(policy_record(policy)) == policy
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from types import MappingProxyType
from typing import Any

from specgauge.model.decision import PAYS_AT_LEAST
from specgauge.model.policies.feedback import Exp3Policy, GammaTunePolicy, GoodputPolicy, HeuristicPolicy, UcbPolicy
from specgauge.model.policies.forecast import AcceptanceForecast, fit_forecast, fit_lookup_forecast
from specgauge.model.policies.policy import FixedPolicy, GammaPolicy
from specgauge.model.policies.stopping import AdaEdlPolicy, RenewalStoppingPolicy, SvipPolicy
from specgauge.model.replay.rounds import ReplayBatches

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
_LARGEST = 2**53
"""Whole number of a record, so that every array holds it exactly."""


PolicyMaker = Callable[[ReplayBatches], GammaPolicy]
"""A policy tuned on batches of texts, with their random numbers and costs."""


def _fastest(tuning: ReplayBatches, policies: Iterable[GammaPolicy]) -> GammaPolicy:
    """The policy of the least time, the first of equals."""
    return min(policies, key=tuning.time_s)


def tune_fixed(tuning: ReplayBatches) -> FixedPolicy:
    """The fastest γ, plain decoding included."""
    found = _fastest(tuning, (FixedPolicy(gamma=gamma) for gamma in range(tuning.costs.gamma_max + 1)))
    assert isinstance(found, FixedPolicy)
    return found


def tune_goodput(tuning: ReplayBatches) -> GammaPolicy:
    """Shares begin at what the tuning texts accept of tested drafts, at the most drafts."""
    widest = FixedPolicy(gamma=tuning.costs.gamma_max)
    rounds = tuning.simulate(widest)
    tested = rounds.tested.sum()
    rate = float(rounds.accepted.sum() / tested) if tested else 0.0
    return GoodputPolicy(t_round_s=tuning.costs.t_round_s, prior_rate=rate)


def tune_renewal(tuning: ReplayBatches) -> GammaPolicy:
    """The forecast of the tuning texts, v at its fixed point and around it, with 0, 1 or γ drafts in every round.

    γ is the best fixed one. It is returned itself where it is faster than the rule with P >= .95 over prompts (by
    Student's t); and plain decoding where what would be returned is not faster than it with as much certainty.
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
        seconds_saved_per_token=costs.t_decode_s,
        t_early_stop_check_s=costs.t_early_stop_check_s,
    )
    shares = WORTH_SHARES if costs.batch_size == 1 else BATCH_WORTH_SHARES
    candidates: list[GammaPolicy] = []
    for fewest in sorted({0, 1, fixed.gamma}):
        settled = _settled(tuning, replace(start, fewest=fewest))
        candidates += [
            replace(settled, seconds_saved_per_token=settled.seconds_saved_per_token * share) for share in shares
        ]
    rule = _fastest(tuning, candidates)
    best = fixed if _surely_faster(tuning, fixed, rule) else rule
    return best if _surely_faster(tuning, best, plain) else plain


def _surely_faster(tuning: ReplayBatches, one: GammaPolicy, other: GammaPolicy) -> bool:
    """Whether `one` takes less time, with P >= `PAYS_AT_LEAST` over prompts; unknown with one prompt, so no."""
    from scipy.special import stdtrit

    gains_s = tuning.time_by_prompt_s(other) - tuning.time_by_prompt_s(one)
    if gains_s.size < 2:
        return False
    error_s = float(gains_s.std(ddof=1)) / math.sqrt(gains_s.size)
    return float(gains_s.mean()) > float(stdtrit(gains_s.size - 1, PAYS_AT_LEAST)) * error_s


def _settled(tuning: ReplayBatches, policy: RenewalStoppingPolicy) -> RenewalStoppingPolicy:
    """The policy whose token is worth the seconds per token that it takes itself."""
    for _ in range(_MOST_STEPS):
        rounds = tuning.simulate(policy)
        worth_s = float(rounds.time_s.sum() / rounds.progress.sum())
        if abs(worth_s - policy.seconds_saved_per_token) <= _CLOSE * policy.seconds_saved_per_token:
            break
        policy = replace(policy, seconds_saved_per_token=worth_s)
    return policy


UNTUNED: Mapping[str, Callable[[int], GammaPolicy]] = MappingProxyType(
    {
        "heuristic": lambda cap: HeuristicPolicy(start=min(_START, cap), cap=cap),
        "gammatune": lambda cap: GammaTunePolicy(start=min(_START, cap), cap=cap),
    }
)
"""Policies that need no text to be tuned on, from the most drafts they may make, at least 1."""
MAKERS: Mapping[str, PolicyMaker] = MappingProxyType(
    {
        "fixed": tune_fixed,
        "heuristic": lambda tuning: UNTUNED["heuristic"](tuning.costs.gamma_max),
        "gammatune": lambda tuning: UNTUNED["gammatune"](tuning.costs.gamma_max),
        "svip": lambda tuning: _fastest(
            tuning, (SvipPolicy(threshold=threshold, cap=tuning.costs.gamma_max) for threshold in SVIP_THRESHOLDS)
        ),
        "adaedl": lambda tuning: _fastest(
            tuning, (AdaEdlPolicy(start=start, cap=tuning.costs.gamma_max) for start in ADAEDL_STARTS)
        ),
        "ucb": lambda tuning: _fastest(
            tuning, (UcbPolicy(t_round_s=tuning.costs.t_round_s, width=width) for width in UCB_WIDTHS)
        ),
        "exp3": lambda tuning: Exp3Policy(t_round_s=tuning.costs.t_round_s, seed=tuning.seed),
        "goodput": tune_goodput,
        "renewal": tune_renewal,
    }
)
"""Every policy by its name in tables."""


KINDS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "fixed": FixedPolicy,
        "heuristic": HeuristicPolicy,
        "gammatune": GammaTunePolicy,
        "svip": SvipPolicy,
        "adaedl": AdaEdlPolicy,
        "ucb": UcbPolicy,
        "exp3": Exp3Policy,
        "goodput": GoodputPolicy,
        "renewal": RenewalStoppingPolicy,
    }
)
"""Every kind of policy by its name."""


def policy_record(policy: GammaPolicy) -> dict[str, Any]:
    """The kind and fields of a policy, as JSON takes them."""
    kind = next(name for name, made in KINDS.items() if made is type(policy))
    return {"kind": kind, **asdict(policy)}  # type: ignore[call-overload]


def policy_of(record: Mapping[str, Any]) -> GammaPolicy:
    """The policy of a record.

    Raises:
        ValueError: an unknown kind, or a field that is missing, unknown or out of bounds.
    """
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"policy: expected {', '.join(KINDS)}, got kind {kind!r}")
    found: GammaPolicy = _made(KINDS[kind], {name: value for name, value in record.items() if name != "kind"})
    return found


def _made(made: type[Any], values: Mapping[str, Any]) -> Any:
    wanted = {field.name for field in fields(made)}
    odd = sorted(wanted ^ values.keys())
    if odd:
        trouble = "missing" if odd[0] in wanted else "unknown"
        raise ValueError(f"policy: field {odd[0]!r} of {made.__name__} is {trouble}; allowed are exactly its fields")
    for name, value in values.items():
        if any(abs(one) > _LARGEST for one in _whole_numbers_in(value)):
            raise ValueError(f"policy: {name}: expected whole numbers of at most {_LARGEST}, got a larger one")
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if made is RenewalStoppingPolicy:
        if not isinstance(given["forecast"], Mapping):
            raise ValueError(f"policy: expected a mapping, got forecast {given['forecast']!r}")
        given["forecast"] = _made(AcceptanceForecast, given["forecast"])
    try:
        return made(**given)
    except TypeError as error:
        raise ValueError(f"policy: a field of {made.__name__} holds another type: {error}") from error


def _whole_numbers_in(value: Any) -> Iterator[int]:
    """Those of a field: alone, or in lists."""
    if isinstance(value, list):
        for one in value:
            yield from _whole_numbers_in(one)
    elif isinstance(value, int):
        yield value
