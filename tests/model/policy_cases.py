"""One policy of each kind, all under a cap of 6 drafts, a forecast that reads confidence as it stands, and rounds."""

from __future__ import annotations

import numpy as np

from specgauge.model.policies.feedback import Exp3Policy, GammaTunePolicy, GoodputPolicy, HeuristicPolicy, UcbPolicy
from specgauge.model.policies.forecast import AcceptanceForecast
from specgauge.model.policies.policy import FixedPolicy, GammaPolicy, RoundSeen
from specgauge.model.policies.stopping import AdaEdlPolicy, RenewalStoppingPolicy, SvipPolicy

CAP = 6
ROUNDS_S = tuple(1.0 + 0.1 * drafts for drafts in range(CAP + 1))

PLAIN_FORECAST = AcceptanceForecast(
    top_probs=(0.0, 1.0),
    acceptance=(0.0, 1.0),
    mean=0.5,
    this_weights=(0.0, 1.0, 0.0, 0.0),
    next_weights=(0.5, 0.0, 0.0, 0.0),
    first_weights=(0.8, 0.0, 0.0),
)
"""This draft: its top probability. The next one: .5. The first one: .8."""

POLICIES: dict[str, GammaPolicy] = {
    "fixed": FixedPolicy(gamma=4),
    "heuristic": HeuristicPolicy(cap=CAP),
    "gammatune": GammaTunePolicy(cap=CAP),
    "goodput": GoodputPolicy(t_round_s=ROUNDS_S),
    "svip": SvipPolicy(cap=CAP),
    "adaedl": AdaEdlPolicy(cap=CAP),
    "ucb": UcbPolicy(t_round_s=ROUNDS_S),
    "exp3": Exp3Policy(t_round_s=ROUNDS_S),
    "renewal": RenewalStoppingPolicy(forecast=PLAIN_FORECAST, t_round_s=ROUNDS_S, seconds_saved_per_token=0.5),
}


def seen(drafted: list[list[int]], accepted: list[list[int]]) -> RoundSeen:
    """A round of calls whose rows are all active."""
    made = np.array(drafted)
    return RoundSeen(drafted=made, accepted=np.array(accepted), active=np.ones(made.shape, dtype=np.bool_))
