"""Running means and goodput: exact values, and that neither switches with every round."""

from __future__ import annotations

from itertools import pairwise

import pytest

from specgauge.model.policies.feedback import GammaTunePolicy, GoodputChoices, GoodputPolicy
from tests.model.policy_cases import seen


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


def test_alternating_acceptance_does_not_switch_goodput_every_round() -> None:
    choice = GoodputPolicy(t_round_s=tuple(1 + 0.15 * drafts for drafts in range(7))).begin()
    asked = []
    for index in range(60):
        asked.append(choice.gamma)
        choice.observe([choice.gamma], [choice.gamma if index % 2 else 0])
    switches = sum(before != after for before, after in pairwise(asked))
    assert switches <= 6
    assert len(set(asked[20:])) <= 2


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (GammaTunePolicy, {"start": 0}, "lowest 1, start 0, cap 16"),
        (GammaTunePolicy, {"weight": 1.5}, "gammatune: weight: found 1.5"),
        (GoodputPolicy, {"t_round_s": (1.0, -1.0)}, "t_round_s"),
        (GoodputPolicy, {"t_round_s": (1.0, 1.0), "prior_weight": 0}, "found prior_weight 0"),
        (GoodputPolicy, {"t_round_s": (1.0, 1.0), "prior_rate": 2.0}, "goodput: prior_rate: found 2"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: type, values: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**values)
