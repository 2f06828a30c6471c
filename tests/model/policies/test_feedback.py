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
from specgauge.model.policies.policy import GammaChoice
from tests.model.policy_cases import seen

ROUNDS_S = (1.0, 1.2, 1.4)
MOST = 3 / 1.4
"""The largest reward before scaling: three tokens of a round of two drafts."""


def asked(choice: GammaChoice, rounds: list[tuple[list[int], list[int]]]) -> list[int]:
    """γ before each round of (drafted, accepted), and after the last."""
    found = [choice.gamma]
    for drafted, accepted in rounds:
        choice.observe(drafted, accepted)
        found.append(choice.gamma)
    return found


def test_ucb_plays_every_arm_once_then_the_best_bound() -> None:
    # arms 1 and 2: means 2 / 1.2 / MOST = .78 and 1 / 1.4 / MOST = .33, as wide a bound each; then
    # arm 1: mean (.778 + .389) / 2 = .583 + sqrt(ln 3) = 1.63; arm 2: .333 + sqrt(2 ln 3) = 1.82
    rounds = [([1], [1]), ([2], [0]), ([1], [0])]
    assert asked(UcbPolicy(t_round_s=ROUNDS_S, width=1.0).begin(), rounds) == [1, 2, 1, 2]
    # 1 / MOST of plain rounds is more than 1 / 1.2 / MOST and 1 / 1.4 / MOST
    assert asked(UcbPolicy(t_round_s=ROUNDS_S, width=0.0).begin(), [([1], [0]), ([2], [0])])[-1] == 0
    # the mean row of a batch: 1 and 2 accepted by one row, 1 each by two
    alone = asked(UcbPolicy(t_round_s=ROUNDS_S, width=0.0).begin(), [([1], [1]), ([2], [1])])
    batch = asked(UcbPolicy(t_round_s=ROUNDS_S, width=0.0).begin(), [([1, 1], [1, 1]), ([2, 2], [2, 0])])
    assert alone[-1] == batch[-1] == 1


def test_ucb_comes_back_from_plain_rounds_as_time_passes() -> None:
    choice = UcbPolicy(t_round_s=ROUNDS_S, width=0.05).begin()
    later = asked(choice, [([1], [0]), ([2], [0]), *[([0], [0])] * 500])[2:]
    assert later[0] == 0
    assert 1 in later


def test_exp3_draws_by_its_weights() -> None:
    calls = 30_000
    choices = Exp3Policy(t_round_s=ROUNDS_S, seed=3).begin_many(calls)
    first = choices.gammas.copy()
    counts = np.bincount(first, minlength=3)
    assert np.abs(counts - calls / 3).max() < 4 * np.sqrt(calls * 2 / 9)
    choices.observe(seen(first[:, None], np.zeros((calls, 1), dtype=np.int64)))
    reward = 1 / 1.4 / MOST
    losses = np.array([0.0, 0.0, (1 - reward) * 3])
    weights = np.exp(-np.sqrt(np.log(3) / (3 * 2)) * losses)
    wanted = weights / weights.sum()
    after = choices.gammas[first == 2]
    shares = np.bincount(after, minlength=3) / after.size
    assert (np.abs(shares - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / after.size)).all()


def test_the_heuristic_rises_by_two_falls_by_one_and_starts_anew() -> None:
    policy = HeuristicPolicy(start=5, cap=16)
    full = [([gamma], [gamma]) for gamma in (5, 7, 9, 11, 13, 15, 16, 16)]
    assert asked(policy.begin(), full) == [5, 7, 9, 11, 13, 15, 16, 16, 16]
    assert policy.begin().gamma == 5
    assert asked(HeuristicPolicy(start=3).begin(), [([3], [0]), ([2], [0]), ([1], [0])]) == [3, 2, 1, 1]
    # a batch rises only when every row kept all its drafts
    rounds = [([5, 5], [5, 4]), ([4, 0], [4, 0]), ([0, 0], [0, 0])]
    assert asked(HeuristicPolicy().begin(), rounds) == [5, 4, 6, 6]


def test_gammatune_by_hand() -> None:
    rounds = [([5], [5]), ([7], [2]), ([5], [0]), ([3], [3]), ([5], [5]), ([7], [7]), ([8], [8])]
    # full: +2.  .7*5 + .3*2 = 4.1 -> 5.  .7*4.1 + .3*0 = 2.87 -> 3.  full: +2, +2, and the cap.
    assert asked(GammaTunePolicy(start=5, cap=8).begin(), rounds) == [5, 7, 5, 3, 5, 7, 8, 8]
    policy = GammaTunePolicy(start=2, cap=4)
    assert asked(policy.begin(), [([1], [0])] * 9)[-1] == 1
    assert policy.begin().gamma == 2
    # a batch takes the mean of rows with drafts: .7*5 + .3*2.5 = 4.25
    rounds = [([5, 5, 0], [5, 0, 0]), ([5, 3], [5, 3])]
    assert asked(GammaTunePolicy(start=5, cap=8).begin(), rounds) == [5, 5, 7]


def test_goodput_by_hand() -> None:
    choices = GoodputPolicy(t_round_s=ROUNDS_S, prior_rate=0.7, prior_weight=4).begin_many(1)
    assert isinstance(choices, GoodputChoices)
    assert choices.goodputs()[0] == pytest.approx([1.0, 1.7 / 1.2, (1.7 + 0.49) / 1.4])
    assert choices.gammas[0] == 2
    choices.observe(seen([[2]], [[1]]))
    # draft 1 tested and accepted, draft 2 tested and not: pooled (1 + 4 * .7) / (2 + 4) = 3.8 / 6
    pooled = 3.8 / 6
    first, second = (1 + 4 * pooled) / 5, 4 * pooled / 5
    assert choices.goodputs()[0] == pytest.approx([1.0, (1 + first) / 1.2, (1 + first + first * second) / 1.4])


def test_goodput_falls_to_plain_rounds_probes_and_comes_back() -> None:
    policy = GoodputPolicy(t_round_s=(1.0, 1.5), prior_rate=0.6, prior_weight=2, memory=0.5, probe_every=4)
    choice, gammas = policy.begin(), []
    for _ in range(20):
        gammas.append(choice.gamma)
        choice.observe([choice.gamma], [0])
    fell = gammas.index(0)
    assert gammas[:fell] == [1] * fell != []
    assert gammas[fell : fell + 10] == [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    for _ in range(20):
        choice.observe([choice.gamma], [choice.gamma])
    assert choice.gamma == 1
    never = GoodputPolicy(t_round_s=(1.0, 1.5), prior_rate=0.1, probe_every=0).begin()
    assert asked(never, [([0], [0])] * 50) == [0] * 51
