"""What every policy keeps to, what tuning chooses, and policies as records."""

from __future__ import annotations

import json
from dataclasses import replace
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.model.checks import IntArray
from specgauge.model.policies.feedback import GoodputPolicy
from specgauge.model.policies.policy import FixedPolicy, GammaChoices, GammaPolicy, Signals
from specgauge.model.policies.stopping import RenewalStoppingPolicy, SvipPolicy
from specgauge.model.policies.tuning import (
    KINDS,
    MAKERS,
    SVIP_THRESHOLDS,
    WORTH_SHARES,
    policy_of,
    policy_record,
    tune_fixed,
    tune_renewal,
)
from specgauge.model.replay.rounds import ReplayBatches
from tests.model.policy_cases import CAP, PLAIN_FORECAST, POLICIES, linear_costs, made_texts, regions, seen


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
    choices.observe(seen(drafted[:, None], np.minimum(runs, drafted)[:, None]))
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


EASY_AND_HARD = made_texts(regions(6, 24, easy=0.95, hard=0.1, width=8))


def tuning(per_draft: float, *, batch_size: int = 1, gamma_max: int = 6) -> ReplayBatches:
    costs = linear_costs(gamma_max, per_draft, batch_size=batch_size)
    return ReplayBatches.drawn(EASY_AND_HARD, costs, replicates=4, seed=0)


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_every_policy_is_tuned_and_stays_within_the_costs(name: str) -> None:
    here = tuning(0.2)
    policy = MAKERS[name](here)
    assert policy.begin().gamma <= 6
    assert here.time_s(policy) > 0
    assert policy == MAKERS[name](here)


def test_the_fastest_fixed_gamma_is_found_and_plain_decoding_where_drafting_never_pays() -> None:
    assert tune_fixed(tuning(0.01)).gamma > tune_fixed(tuning(0.3)).gamma > 0
    plain = FixedPolicy(gamma=0)
    assert tune_fixed(tuning(3.0)) == tune_renewal(tuning(3.0)) == tune_renewal(tuning(0.1, gamma_max=0)) == plain


def test_a_threshold_is_the_best_of_its_grid() -> None:
    here = tuning(0.2)
    policy = MAKERS["svip"](here)
    assert isinstance(policy, SvipPolicy)
    times = {h: here.time_s(SvipPolicy(threshold=h, cap=6)) for h in SVIP_THRESHOLDS}
    assert times[policy.threshold] == min(times.values())


def test_goodput_begins_at_the_share_of_judged_drafts_accepted() -> None:
    texts = made_texts(np.full((4, 50), 0.7))
    policy = MAKERS["goodput"](ReplayBatches.drawn(texts, linear_costs(6, 0.1), replicates=20, seed=0))
    assert isinstance(policy, GoodputPolicy)
    assert policy.prior_rate == pytest.approx(0.7, abs=0.02)


def test_the_worth_of_a_token_settles_at_the_seconds_per_token() -> None:
    here = tuning(0.1)
    policy = tune_renewal(here)
    assert isinstance(policy, RenewalStoppingPolicy)
    share = policy.seconds_saved_per_token / (here.time_s(policy) / (24 * 6 * 4))
    assert min(abs(share / wanted - 1) for wanted in WORTH_SHARES) < 0.05


@pytest.mark.parametrize("per_draft", [0.1, 0.3])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_the_renewal_rule_beats_fixed_gamma_where_confidence_tells(per_draft: float, batch_size: int) -> None:
    here = tuning(per_draft, batch_size=batch_size)
    assert here.time_s(tune_renewal(here)) < here.time_s(tune_fixed(here))


def test_without_signals_worth_reading_the_renewal_rule_is_as_fast_as_fixed_gamma() -> None:
    texts = made_texts(np.full((6, 24), 0.7), np.random.default_rng(0).random((6, 24)), gamma_max=4)
    here = ReplayBatches.drawn(texts, linear_costs(4, 0.1), replicates=10, seed=0)
    assert here.time_s(tune_renewal(here)) < 1.02 * here.time_s(tune_fixed(here))


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_comes_back_from_json_as_it_was(name: str) -> None:
    assert KINDS.keys() == MAKERS.keys() == POLICIES.keys()
    record = policy_record(POLICIES[name])
    assert record["kind"] == name
    assert policy_of(json.loads(json.dumps(record, allow_nan=False))) == POLICIES[name]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"kind": "magic"}, "expected fixed, heuristic, .*got kind 'magic'"),
        ({}, "expected .*got kind None"),
        ({"kind": "fixed"}, "field 'gamma' of FixedPolicy is missing"),
        ({"kind": "fixed", "gamma": 2, "delta": 1}, "field 'delta' of FixedPolicy is unknown"),
        ({"kind": "fixed", "gamma": "two"}, "a field of FixedPolicy holds another type"),
        ({"kind": "fixed", "gamma": -1}, "gamma: expected .*got -1"),
        ({"kind": "fixed", "gamma": 10**30}, "gamma: expected whole numbers of at most 9007199254740992"),
        (policy_record(POLICIES["heuristic"]) | {"cap": [[-(10**30)]]}, "cap: expected whole numbers of at most 9007"),
        (policy_record(POLICIES["renewal"]) | {"forecast": 1}, "expected a mapping, got forecast 1"),
        (policy_record(POLICIES["renewal"]) | {"forecast": {}}, "of AcceptanceForecast is missing"),
    ],
)
def test_what_is_no_policy(record: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        policy_of(record)
    assert "\n" not in str(caught.value)
