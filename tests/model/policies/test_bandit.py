"""Bandits: rewards and bounds by hand, the law of what EXP3 draws."""

from __future__ import annotations

import numpy as np
import pytest

from specgauge.model.policies.feedback import Exp3Policy, UcbPolicy
from specgauge.model.policies.policy import RoundSeen

ROUNDS_S = (1.0, 1.2, 1.4)
MOST = 3 / 1.4
"""The largest reward before scaling: three tokens of a round of two drafts."""


def test_ucb_plays_every_arm_once_then_the_best_bound() -> None:
    choice = UcbPolicy(t_round_s=ROUNDS_S, width=1.0).begin()
    assert choice.gamma == 1
    choice.observe([1], [1])
    assert choice.gamma == 2
    choice.observe([2], [0])
    # means 2 / 1.2 / MOST = .78 and 1 / 1.4 / MOST = .33, as wide a bound each
    assert choice.gamma == 1
    choice.observe([1], [0])
    # arm 1: mean (.778 + .389) / 2 = .583 + sqrt(ln 3) = 1.63; arm 2: .333 + sqrt(2 ln 3) = 1.82
    assert choice.gamma == 2


def test_ucb_knows_what_plain_rounds_give() -> None:
    choice = UcbPolicy(t_round_s=ROUNDS_S, width=0.0).begin()
    for drafted in (1, 2):
        choice.observe([drafted], [0])
    assert choice.gamma == 0  # 1 / MOST is more than 1 / 1.2 / MOST and 1 / 1.4 / MOST


def test_ucb_comes_back_from_plain_rounds_as_time_passes() -> None:
    choice = UcbPolicy(t_round_s=ROUNDS_S, width=0.05).begin()
    for drafted in (1, 2):
        choice.observe([drafted], [0])
    waited = 0
    while choice.gamma == 0:
        choice.observe([0], [0])
        waited += 1
        assert waited < 500
    assert choice.gamma == 1


def test_ucb_in_a_batch_rewards_the_mean_row() -> None:
    alone, batch = (UcbPolicy(t_round_s=ROUNDS_S, width=0.0).begin() for _ in range(2))
    for arm in (1, 2):
        alone.observe([arm], [1])
        batch.observe([arm, arm], [arm, 2 - arm])
    assert alone.gamma == batch.gamma == 1


def test_exp3_draws_by_its_weights() -> None:
    calls = 30_000
    choices = Exp3Policy(t_round_s=ROUNDS_S, seed=3).begin_many(calls)
    first = choices.gammas.copy()
    counts = np.bincount(first, minlength=3)
    assert np.abs(counts - calls / 3).max() < 4 * np.sqrt(calls * 2 / 9)
    rejected = np.zeros((calls, 1), dtype=np.int64)
    choices.observe(RoundSeen(drafted=first[:, None], accepted=rejected, active=np.ones((calls, 1), dtype=np.bool_)))
    reward = 1 / 1.4 / MOST
    losses = np.array([0.0, 0.0, (1 - reward) * 3])
    weights = np.exp(-np.sqrt(np.log(3) / (3 * 2)) * losses)
    wanted = weights / weights.sum()
    after = choices.gammas[first == 2]
    shares = np.bincount(after, minlength=3) / after.size
    assert (np.abs(shares - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / after.size)).all()


def test_exp3_repeats_itself() -> None:
    policy = Exp3Policy(t_round_s=ROUNDS_S, seed=5)
    assert policy.begin_many(20).gammas.tolist() == policy.begin_many(20).gammas.tolist()
    assert policy.begin().gamma == policy.begin_many(20).gammas[0]


@pytest.mark.parametrize("kind", [UcbPolicy, Exp3Policy])
def test_times_below_zero_are_refused(kind: type) -> None:
    with pytest.raises(ValueError, match="t_round_s"):
        kind(t_round_s=(1.0, 0.0))


def test_a_negative_width_is_refused() -> None:
    with pytest.raises(ValueError, match="ucb: found width -1; allowed is 0 or more"):
        UcbPolicy(t_round_s=ROUNDS_S, width=-1.0)
