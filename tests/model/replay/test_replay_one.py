from __future__ import annotations

import numpy as np
import pytest

from specgauge.model.policies.entropy import SvipPolicy
from specgauge.model.policies.policy import FixedPolicy
from specgauge.model.replay.replay import replayed_seconds
from specgauge.model.replay.rounds import ReplayCosts
from tests.model.replay_cases import linear_costs, made_texts


def test_by_hand() -> None:
    """12 positions, all accepted: three rounds of 3 and a bonus, the last two after a catch-up of 1/4 s."""
    texts = made_texts(np.ones((2, 12)))
    costs = linear_costs(4, 0.5, catch_up=0.25)
    found = replayed_seconds(FixedPolicy(gamma=3), texts, [[1], [0], [1]], costs, replicates=3, seed=0)
    assert found.plain_s.tolist() == [12.0] * 3
    assert found.policy_s.tolist() == [3 * 2.5 + 2 * 0.25] * 3
    assert found.speedup == 1.5


def test_a_batch_costs_what_its_longest_row_does() -> None:
    texts = made_texts(np.ones((3, 12)), lengths=[12, 4, 2])
    batches = [[0, 1], [2, 1]]
    costs = linear_costs(4, 0.5, batch_size=2)
    found = replayed_seconds(FixedPolicy(gamma=0), texts, batches, costs, replicates=2, seed=0)
    assert (found.plain_s.tolist(), found.policy_s.tolist()) == ([12.0, 4.0], [12.0, 4.0])


def test_texts_of_a_prompt_take_turns() -> None:
    texts = made_texts(np.ones((3, 12)), lengths=[12, 2, 4], prompts=[5, 2, 5])
    batches, costs = [[5], [2]], linear_costs(4, 0.5)
    assert [
        replayed_seconds(FixedPolicy(gamma=0), texts, batches, costs, replicates=count, seed=0).plain_s.tolist()
        for count in (1, 2, 4)
    ] == [[12.0, 2.0], [8.0, 2.0], [8.0, 2.0]]


def test_a_prompt_twice_in_a_batch_has_two_of_its_texts() -> None:
    """Both texts of prompt 5 in every replay: 12 tokens are the longer one's."""
    texts = made_texts(np.ones((2, 12)), lengths=[12, 4], prompts=[5, 5])
    costs = linear_costs(4, 0.5, batch_size=2)
    found = replayed_seconds(FixedPolicy(gamma=0), texts, [[5, 5]], costs, replicates=3, seed=0)
    assert found.plain_s.tolist() == [12.0]


def test_looks_are_paid_for() -> None:
    """Entropy 0 never stops it: three looks for four drafts; 10 positions are two rounds."""
    costs = ReplayCosts(t_decode_s=1.0, t_round_s=(1.0,) * 5, t_look_s=0.125)
    found = replayed_seconds(SvipPolicy(cap=4), made_texts(np.ones((1, 10))), [[0]], costs, replicates=1, seed=0)
    assert found.policy_s.tolist() == [2 * (1 + 3 * 0.125)]


def test_a_batch_takes_the_same_whatever_is_decoded_beside_it() -> None:
    texts, costs = made_texts(np.full((3, 12), 0.6)), linear_costs(4, 0.5)
    alone, beside = (
        replayed_seconds(FixedPolicy(gamma=3), texts, batches, costs, replicates=5, seed=0)
        for batches in ([[1]], [[0], [1], [2]])
    )
    assert alone.policy_s[0] == beside.policy_s[1]
    assert len(set(beside.policy_s.tolist())) == 3


def test_nothing_decoded_takes_nothing() -> None:
    nothing = np.zeros((0, 1))
    found = replayed_seconds(
        FixedPolicy(gamma=3), made_texts(np.ones((1, 9))), nothing, linear_costs(4, 0.1), replicates=2, seed=0
    )
    assert (found.plain_s.size, found.policy_s.size) == (0, 0)


@pytest.mark.parametrize(
    ("gamma", "prompts", "found"),
    [
        (5, [[0]], "found gamma 5; allowed is 0 to 4"),
        (3, [[0, 0]], "found shape \\(1, 2\\); allowed is \\(L, 1\\)"),
        (3, [[0], [7]], "found 7, of which no text was recorded"),
    ],
)
def test_what_cannot_be_played_is_refused(gamma: int, prompts: list[list[int]], found: str) -> None:
    texts, costs = made_texts(np.ones((1, 9))), linear_costs(4, 0.1)
    with pytest.raises(ValueError, match=found):
        replayed_seconds(FixedPolicy(gamma=gamma), texts, prompts, costs, replicates=1, seed=0)
