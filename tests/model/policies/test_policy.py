"""γ from round to round: bounds, resets, and what a round without drafts says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.checks import IntArray
from specgauge.model.policies.feedback import HeuristicPolicy
from specgauge.model.policies.policy import FixedPolicy, GammaChoices, RoundPolicy, RoundSeen, Signals
from tests.model.policy_cases import CAP, POLICIES, seen


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


def test_a_fixed_gamma_stays() -> None:
    choice = FixedPolicy(gamma=3).begin()
    choice.observe([3], [0])
    assert choice.gamma == 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"start": 0}, "lowest 1, start 0, cap 16"),
        ({"start": 17}, "lowest 1, start 17, cap 16"),
        ({"rise": -1}, "rise -1, fall 1"),
    ],
)
def test_bounds_that_do_not_hold_are_refused(values: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HeuristicPolicy(**values)


def test_a_negative_gamma_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma: found -1; allowed is 0"):
        FixedPolicy(gamma=-1)


@pytest.mark.parametrize("name", ["fixed", "heuristic", "gammatune", "goodput", "ucb", "exp3"])
def test_who_fixes_gamma_before_the_round_goes_on_until_it_is_reached(name: str) -> None:
    policy = POLICIES[name]
    assert not policy.reads_signals
    choice = policy.begin()
    for depth in range(1, CAP + 1):
        assert choice.goes_on(depth, [0.0], [9.0]) == (depth < choice.gamma)


def played_round(choices: GammaChoices, signals: Signals, runs: IntArray) -> IntArray:
    """Draft as long as each call wants, accept up to its run; the drafts made (L, 1)."""
    drafted = np.minimum(choices.gammas, 1)
    for depth in range(1, CAP):
        asked = (drafted == depth) & (depth < choices.gammas)
        tops = np.where(asked[:, None], signals.top_probs[:, depth, None], np.nan)
        entropies = np.where(asked[:, None], signals.entropies_nats[:, depth, None], np.nan)
        ones = np.ones(drafted.size, dtype=np.int64)
        goes_on = choices.goes_on(depth, Signals(top_probs=tops, entropies_nats=entropies, active_rows=ones))
        drafted = np.where(asked & goes_on, depth + 1, drafted)
    kept = np.minimum(runs, drafted)[:, None]
    choices.observe(RoundSeen(drafted=drafted[:, None], accepted=kept, active=np.ones(kept.shape, dtype=np.bool_)))
    return drafted


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(POLICIES)), st.integers(0, 2**32 - 1))
def test_calls_side_by_side_are_calls_alone_and_never_ask_beyond_the_cap(name: str, seed: int) -> None:
    policy, generator = POLICIES[name], np.random.default_rng(seed)
    calls, rounds = 3, 12
    together, alone = policy.begin_many(calls), [policy.begin_many(calls) for _ in range(calls)]
    one = policy.begin()
    for _ in range(rounds):
        tops = generator.random((calls, CAP))
        entropies, ones = -np.log(np.maximum(tops, 0.01)), np.ones(calls, dtype=np.int64)
        signals = Signals(top_probs=tops, entropies_nats=entropies, active_rows=ones)
        runs = generator.integers(0, CAP + 1, calls)
        assert one.gamma == together.gammas[0]
        assert ((together.gammas >= 0) & (together.gammas <= CAP)).all()
        drafted = played_round(together, signals, runs)
        for index, choices in enumerate(alone):  # the other calls see other rounds
            others = generator.permutation(calls)
            others[index] = index
            mixed = Signals(top_probs=tops[others], entropies_nats=entropies[others], active_rows=ones)
            assert played_round(choices, mixed, runs[others])[index] == drafted[index]
        for depth in range(1, int(drafted[0]) + 1):
            wants = depth < one.gamma and one.goes_on(depth, [tops[0, depth]], [signals.entropies_nats[0, depth]])
            assert wants == (depth < drafted[0])
        one.observe([int(drafted[0])], [int(min(runs[0], drafted[0]))])


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_round_that_could_not_draft_teaches_nothing(name: str) -> None:
    policy: RoundPolicy = POLICIES[name]
    choices, untouched = policy.begin_many(50), policy.begin_many(50)
    for _ in range(3):
        choices.observe(seen([[0]] * 50, [[0]] * 50))
    if name == "exp3":
        draws = untouched.gammas > 0  # arm 0 drafts nothing by choice: that is a round of the arm
        np.testing.assert_array_equal(choices.gammas[draws], untouched.gammas[draws])
    else:
        np.testing.assert_array_equal(choices.gammas, untouched.gammas)
