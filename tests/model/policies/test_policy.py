"""What every policy keeps to: bounds, resets, and what a round without drafts says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.checks import IntArray
from specgauge.model.policies.policy import FixedPolicy, GammaChoices, GammaPolicy, RoundSeen, Signals
from tests.model.policy_cases import CAP, POLICIES, seen


def test_a_fixed_gamma_stays_and_is_no_negative_number() -> None:
    choice = FixedPolicy(gamma=3).begin()
    choice.observe([3], [0])
    assert choice.gamma == 3
    with pytest.raises(ValueError, match=r"gamma: expected .*got -1"):
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
        shown = replace(signals, top_probs=tops, entropies_nats=entropies)
        goes_on = choices.goes_on(depth, shown)
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
    for _ in range(rounds):
        tops = generator.random((calls, CAP))
        entropies, ones = -np.log(np.maximum(tops, 0.01)), np.ones(calls, dtype=np.int64)
        signals = Signals(top_probs=tops, entropies_nats=entropies, active_rows=ones)
        runs = generator.integers(0, CAP + 1, calls)
        assert ((together.gammas >= 0) & (together.gammas <= CAP)).all()
        drafted = played_round(together, signals, runs)
        for index, choices in enumerate(alone):  # the other calls see other rounds
            others = generator.permutation(calls)
            others[index] = index
            mixed = replace(signals, top_probs=tops[others], entropies_nats=entropies[others])
            assert played_round(choices, mixed, runs[others])[index] == drafted[index]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_round_that_could_not_draft_teaches_nothing(name: str) -> None:
    policy: GammaPolicy = POLICIES[name]
    choices, untouched = policy.begin_many(50), policy.begin_many(50)
    for _ in range(3):
        choices.observe(seen([[0]] * 50, [[0]] * 50))
    if name == "exp3":
        draws = untouched.gammas > 0  # arm 0 drafts nothing by choice: that is a round of the arm
        np.testing.assert_array_equal(choices.gammas[draws], untouched.gammas[draws])
    else:
        np.testing.assert_array_equal(choices.gammas, untouched.gammas)
