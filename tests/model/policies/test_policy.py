"""What every policy keeps to: bounds, resets, and what a round without drafts says."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.checks import IntArray
from specgauge.model.policies.policy import GammaChoices, GammaPolicy, RoundSeen, Signals
from tests.model.policy_cases import CAP, PLAIN_FORECAST, POLICIES, seen


@pytest.mark.parametrize("name", ["fixed", "heuristic", "gammatune", "goodput", "ucb", "exp3"])
def test_who_fixes_gamma_before_the_round_goes_on_until_it_is_reached(name: str) -> None:
    policy = POLICIES[name]
    assert not policy.reads_signals
    choice = policy.begin()
    for depth in range(1, CAP + 1):
        assert choice.goes_on(depth, [0.0], [9.0]) == (depth < choice.gamma)
    if name == "fixed":
        choice.observe([4], [0])
        assert choice.gamma == 4


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


@pytest.mark.parametrize(
    ("made", "changes", "place"),
    [
        ("heuristic", {"start": 0}, "lowest 1, start 0, cap 6"),
        ("heuristic", {"rise": -1}, "heuristic: expected steps of 0 or more, got -1"),
        ("gammatune", {"start": 17}, "lowest 1, start 17, cap 6"),
        ("gammatune", {"weight": 1.5}, "gammatune: weight: expected .*got 1.5"),
        ("goodput", {"t_round_s": (1.0, -1.0)}, "t_round_s"),
        ("goodput", {"prior_weight": 0}, "expected .*got prior_weight 0"),
        ("goodput", {"prior_rate": 2.0}, "goodput: prior_rate: expected .*got 2"),
        ("ucb", {"width": -1.0}, "ucb: expected .*got width -1"),
        ("exp3", {"t_round_s": (1.0, 0.0)}, "t_round_s"),
        ("svip", {"cap": 0}, "svip: expected .*got a largest gamma of 0"),
        ("svip", {"threshold": nan}, "svip: threshold: expected .*got nan"),
        ("adaedl", {"goal": 1.2}, "adaedl: goal: expected .*got 1.2"),
        ("adaedl", {"step": -0.1}, "adaedl: expected .*got step -0.1"),
        ("renewal", {"seconds_saved_per_token": 0.0}, "seconds_saved_per_token: expected .*got 0"),
        ("renewal", {"fewest": 7}, "renewal: expected 0 to 6, got fewest 7"),
        ("renewal", {"t_early_stop_check_s": -1.0}, "t_early_stop_check_s: expected .*got -1"),
        ("forecast", {"top_probs": (0.5, 0.5)}, "steps out of order"),
        ("forecast", {"acceptance": (0.5, 0.4)}, "steps out of order"),
        ("forecast", {"acceptance": (0.5,)}, "expected .*got 2 top_probs, 1 acceptance"),
        ("forecast", {"mean": 1.5}, "forecast: mean: expected .*got 1.5"),
        ("forecast", {"prior_weight": 0.0}, "forecast: expected .*got prior_weight 0"),
    ],
)
def test_what_makes_no_sense_is_refused(made: str, changes: dict[str, Any], place: str) -> None:
    good: Any = PLAIN_FORECAST if made == "forecast" else POLICIES[made]
    with pytest.raises(ValueError, match=place):
        replace(good, **changes)
