from __future__ import annotations

import numpy as np
import pytest

from specgauge.model.policies import FixedPolicy
from specgauge.model.policies_entropy import SvipPolicy
from specgauge.model.policy_costs import RoundCosts
from specgauge.model.replay_one import replayed_seconds
from tests.model.replay_cases import linear_costs, made_texts


def test_by_hand() -> None:
    """12 positions, all accepted: three rounds of 3 and a bonus, the last two after a catch-up of 1/4 s."""
    texts = made_texts(np.ones((2, 12)))
    costs = linear_costs(4, 0.5, catch_up=0.25)
    found = replayed_seconds(FixedPolicy(gamma=3), texts, costs, replicates=3, seed=0)
    assert found.prompts.tolist() == [0, 1]
    assert found.plain_s.tolist() == [12.0, 12.0]
    assert found.policy_s.tolist() == [3 * 2.5 + 2 * 0.25] * 2
    assert found.speedup == 1.5


def test_a_batch_costs_what_its_longest_row_does() -> None:
    texts = made_texts(np.ones((2, 12)), lengths=[12, 4])
    found = replayed_seconds(FixedPolicy(gamma=0), texts, linear_costs(4, 0.5, batch_size=2), replicates=2, seed=0)
    assert (found.plain_s.tolist(), found.policy_s.tolist()) == ([6.0, 6.0], [6.0, 6.0])


def test_a_text_that_fills_up_a_batch_counts_once() -> None:
    """Three texts in batches of two: one has two turns, and a row's seconds are half of its batch's."""
    texts = made_texts(np.ones((3, 12)))
    found = replayed_seconds(FixedPolicy(gamma=0), texts, linear_costs(4, 0.5, batch_size=2), replicates=3, seed=0)
    assert (found.plain_s.tolist(), found.policy_s.tolist()) == ([6.0] * 3, [6.0] * 3)


def test_texts_of_a_prompt_are_averaged() -> None:
    texts = made_texts(np.ones((3, 12)), lengths=[12, 8, 4], prompts=[5, 5, 2])
    found = replayed_seconds(FixedPolicy(gamma=0), texts, linear_costs(4, 0.5), replicates=1, seed=0)
    assert (found.prompts.tolist(), found.plain_s.tolist()) == ([2, 5], [4.0, 10.0])
    assert found.of_prompts([5, 2, 5]) == (24.0, 24.0)
    assert found.of_prompts([]) == (0.0, 0.0)
    assert found.of_prompts([5, 3]) is None


def test_looks_are_paid_for() -> None:
    """Entropy 0 never stops it: three looks for four drafts; 10 positions are two rounds."""
    costs = RoundCosts(t_decode_s=1.0, t_round_s=(1.0,) * 5, t_look_s=0.125)
    found = replayed_seconds(SvipPolicy(cap=4), made_texts(np.ones((1, 10))), costs, replicates=1, seed=0)
    assert found.policy_s.tolist() == [2 * (1 + 3 * 0.125)]


def test_pieces_are_joined() -> None:
    texts, costs = made_texts(np.ones((2, 12))), linear_costs(4, 0.5)
    one, other = (
        replayed_seconds(FixedPolicy(gamma=3), texts.of_prompts([prompt]), costs, replicates=1, seed=0)
        for prompt in (0, 1)
    )
    whole = replayed_seconds(FixedPolicy(gamma=3), texts, costs, replicates=1, seed=0)
    joined = one.joined(other)
    assert (joined.prompts.tolist(), joined.speedup) == ([0, 1], whole.speedup)
    assert joined.policy_s.tolist() == whole.policy_s.tolist()


def test_a_gamma_without_a_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="found gamma 5; allowed is 0 to 4"):
        replayed_seconds(FixedPolicy(gamma=5), made_texts(np.ones((1, 9))), linear_costs(4, 0.1), replicates=1, seed=0)
