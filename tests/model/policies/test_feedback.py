"""γ from what rounds accepted: schedules, running means, goodput and bandits, by hand and by law."""

from __future__ import annotations

import numpy as np
import pytest

from specgauge.model.policies.feedback import (
    Exp3Policy,
    GammaTunePolicy,
    GoodputChoices,
    GoodputPolicy,
    HeuristicPolicy,
    UcbPolicy,
)
from specgauge.model.policies.policy import RoundSeen
from tests.model.policy_cases import seen

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


def test_fifty_full_rounds_reach_the_cap_and_the_next_call_starts_anew() -> None:
    policy = HeuristicPolicy(start=5, cap=16)
    choice, asked = policy.begin(), []
    for _ in range(50):
        asked.append(choice.gamma)
        choice.observe([choice.gamma], [choice.gamma])
    assert asked[:7] == [5, 7, 9, 11, 13, 15, 16]
    assert choice.gamma == 16
    assert policy.begin().gamma == 5


def test_rejections_shrink_to_one_and_no_further() -> None:
    choice = HeuristicPolicy(start=3).begin()
    for expected in (2, 1, 1):
        choice.observe([choice.gamma], [0])
        assert choice.gamma == expected


def test_a_batch_rises_only_when_every_row_kept_all_its_drafts() -> None:
    choice = HeuristicPolicy().begin()
    choice.observe([5, 5], [5, 4])
    assert choice.gamma == 4
    choice.observe([4, 0], [4, 0])
    assert choice.gamma == 6
    choice.observe([0, 0], [0, 0])
    assert choice.gamma == 6


def test_gammatune_by_hand() -> None:
    choice = GammaTunePolicy(start=5, cap=8).begin()
    asked = []
    for drafted, accepted in [(5, 5), (7, 2), (5, 0), (3, 3), (5, 5), (7, 7), (8, 8)]:
        assert choice.gamma == drafted
        choice.observe([drafted], [accepted])
        asked.append(choice.gamma)
    # full: +2.  .7*5 + .3*2 = 4.1 -> 5.  .7*4.1 + .3*0 = 2.87 -> 3.  full: +2, +2, and the cap.
    assert asked == [7, 5, 3, 5, 7, 8, 8]


def test_gammatune_stays_within_bounds_and_forgets() -> None:
    policy = GammaTunePolicy(start=2, cap=4)
    choice = policy.begin()
    for _ in range(9):
        choice.observe([choice.gamma], [0])
    assert choice.gamma == 1
    assert policy.begin().gamma == 2


def test_gammatune_in_a_batch_takes_the_mean_of_rows_with_drafts() -> None:
    choice = GammaTunePolicy(start=5, cap=8).begin()
    choice.observe([5, 5, 0], [5, 0, 0])
    assert choice.gamma == 5  # .7*5 + .3*2.5 = 4.25
    choice.observe([5, 3], [5, 3])
    assert choice.gamma == 7


def test_goodput_by_hand() -> None:
    choices = GoodputPolicy(t_round_s=(1.0, 1.2, 1.4), prior_rate=0.7, prior_weight=4, memory=0.95).begin_many(1)
    assert isinstance(choices, GoodputChoices)
    assert choices.goodputs()[0] == pytest.approx([1.0, 1.7 / 1.2, (1.7 + 0.49) / 1.4])
    assert choices.gammas[0] == 2


def test_goodput_leans_a_place_on_the_pooled_share() -> None:
    policy = GoodputPolicy(t_round_s=(1.0, 1.2, 1.4), prior_rate=0.7, prior_weight=4)
    choices = policy.begin_many(1)
    one = policy.begin()
    one.observe([2], [1])
    assert isinstance(choices, GoodputChoices)
    choices.observe(seen([[2]], [[1]]))
    # place 1 judged and passed, place 2 judged and not: pooled (1 + 4 * .7) / (2 + 4) = 3.8 / 6
    pooled = 3.8 / 6
    first, second = (1 + 4 * pooled) / 5, 4 * pooled / 5
    assert choices.goodputs()[0] == pytest.approx([1.0, (1 + first) / 1.2, (1 + first + first * second) / 1.4])
    assert one.gamma == choices.gammas[0]


def test_goodput_falls_to_plain_rounds_probes_and_comes_back() -> None:
    policy = GoodputPolicy(t_round_s=(1.0, 1.5), prior_rate=0.6, prior_weight=2, memory=0.5, probe_every=4)
    choice = policy.begin()
    assert choice.gamma == 1
    asked = [choice.gamma]
    while asked[-1]:
        choice.observe([1], [0])
        asked.append(choice.gamma)
    asked = []
    for _ in range(10):
        asked.append(choice.gamma)
        choice.observe([choice.gamma], [0])
    assert asked == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    for _ in range(20):
        choice.observe([choice.gamma], [choice.gamma])
    assert choice.gamma == 1


def test_goodput_without_probes_stays_plain() -> None:
    choice = GoodputPolicy(t_round_s=(1.0, 1.5), prior_rate=0.1, probe_every=0).begin()
    for _ in range(50):
        assert choice.gamma == 0
        choice.observe([0], [0])


@pytest.mark.parametrize(
    ("kind", "values", "place"),
    [
        (HeuristicPolicy, {"start": 0}, "lowest 1, start 0, cap 16"),
        (HeuristicPolicy, {"start": 17}, "lowest 1, start 17, cap 16"),
        (HeuristicPolicy, {"rise": -1}, "heuristic: expected steps of 0 or more, got -1"),
        (GammaTunePolicy, {"start": 0}, "lowest 1, start 0, cap 16"),
        (GammaTunePolicy, {"weight": 1.5}, "gammatune: weight: found 1.5"),
        (GoodputPolicy, {"t_round_s": (1.0, -1.0)}, "t_round_s"),
        (GoodputPolicy, {"t_round_s": (1.0, 1.0), "prior_weight": 0}, "found prior_weight 0"),
        (GoodputPolicy, {"t_round_s": (1.0, 1.0), "prior_rate": 2.0}, "goodput: prior_rate: found 2"),
        (UcbPolicy, {"t_round_s": (1.0, 0.0)}, "t_round_s"),
        (UcbPolicy, {"t_round_s": (1.0, 1.0), "width": -1.0}, "ucb: found width -1"),
        (Exp3Policy, {"t_round_s": (1.0, 0.0)}, "t_round_s"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: type, values: dict[str, float], place: str) -> None:
    with pytest.raises(ValueError, match=place):
        kind(**values)
