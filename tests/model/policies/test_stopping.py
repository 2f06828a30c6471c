"""Stopping while drafting: by entropy, and by what another draft is worth."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from specgauge.model.policies.forecast import AcceptanceForecast
from specgauge.model.policies.policy import OneCall
from specgauge.model.policies.stopping import AdaEdlChoices, AdaEdlPolicy, RenewalStoppingPolicy, SvipPolicy
from tests.model.policy_cases import PLAIN_FORECAST, STOPPING, seen


def test_one_more_draft_by_hand_survival_starting_anew_with_every_round() -> None:
    choice = STOPPING.begin()
    assert choice.gamma == 6
    # S p_1 = .5 * .5; worth .125 against .1
    assert choice.goes_on(1, [0.5], [1.0])
    # S p_1 = .5 * .6 * .5 = .15, worth .075 against .1; with those behind it .135 against .2, … .252 against .4
    assert not choice.goes_on(2, [0.6], [1.0])
    choice.observe([2], [0])
    assert choice.goes_on(1, [0.5], [1.0])


@pytest.mark.parametrize(
    ("t_round_s", "t_early_stop_check_s", "top", "goes_on"),
    [
        # S p_1 = .2: worth .1 against .2, two .18 against .21, three .244 against .22; or .244 against .6
        ((1.0, 1.1, 1.3, 1.31, 1.32), 0.0, 0.4, True),
        ((1.0, 1.1, 1.3, 1.5, 1.7), 0.0, 0.4, False),
        # the second of two drafts: .125 against .1 + a check after it, unless it is the last one there can be
        ((1.0, 1.1, 1.2, 9.0), 0.03, 0.5, False),
        ((1.0, 1.1, 1.2), 0.03, 0.5, True),
    ],
)
def test_cheap_drafts_behind_a_dear_one_and_checks_are_part_of_the_price(
    t_round_s: tuple[float, ...], t_early_stop_check_s: float, top: float, goes_on: bool
) -> None:
    choice = replace(STOPPING, t_round_s=t_round_s, t_early_stop_check_s=t_early_stop_check_s).begin()
    assert choice.goes_on(1, [top], [1.0]) == goes_on


def test_a_batch_goes_by_its_mean_row_and_rows_at_their_limit_gain_nothing_more() -> None:
    assert STOPPING.begin().goes_on(1, [0.3, 0.6], [1.0, 1.0])  # .5 * .5 * (.3 + .6) / 2 = .1125 against .1
    assert not STOPPING.begin().goes_on(1, [0.1, 0.6], [1.0, 1.0])  # .0875, with those behind it .158, …
    assert not STOPPING.begin().goes_on(1, [nan, nan], [nan, nan])
    choice = STOPPING.begin()
    assert choice.goes_on(1, [1.0, 1.0], [0.0, 0.0])
    # two rows could draft at first: half of .5 * 1 * .5 is .125 against .1, half of .5 * .7 * .5 is .0875
    assert choice.goes_on(2, [1.0, nan], [0.0, nan])
    assert not choice.goes_on(3, [0.7, nan], [0.0, nan])


def test_where_no_number_of_drafts_pays_rounds_are_plain() -> None:
    poor = replace(PLAIN_FORECAST, first_weights=(0.1, 0.0, 0.0))
    assert replace(STOPPING, forecast=poor).begin().gamma == 0
    at_least_one = replace(STOPPING, forecast=poor, fewest=1).begin()
    assert at_least_one.gamma == 6
    assert not at_least_one.goes_on(1, [0.1], [1.0])


def test_a_text_that_goes_badly_is_decoded_plainly_and_tried_again() -> None:
    follows = replace(PLAIN_FORECAST, mean=0.4, first_weights=(0.0, 0.0, 1.0), memory=0.8, prior_weight=2.0)
    choice = replace(STOPPING, forecast=follows).begin()
    # e = .4 * 2 / (2 + judged), judged 0, 1, 1.8, 2.44: .4, .267, .2105, .18; one draft pays from .2 on
    for gamma in (6, 6, 6, 0):
        assert choice.gamma == gamma
        choice.observe([1 if gamma else 0], [0])
    assert choice.gamma == 6  # a plain round leaves 1.952 judged: .202


def random_policy(generator: np.random.Generator) -> RenewalStoppingPolicy:
    cap, places = int(generator.integers(0, 6)), np.unique(generator.random(6).round(1))
    this, following, first = (tuple(generator.uniform(-1, 1, size)) for size in (4, 4, 3))
    return RenewalStoppingPolicy(
        forecast=AcceptanceForecast(
            top_probs=tuple(places),
            acceptance=tuple(np.sort(generator.random(places.size))),
            mean=generator.random(),
            this_weights=this,
            next_weights=following,
            first_weights=first,
            memory=generator.random(),
            prior_weight=generator.uniform(0.1, 9.0),
        ),
        t_round_s=tuple(1.0 + np.cumsum(generator.uniform(0.0, 0.3, cap + 1))),
        seconds_saved_per_token=generator.uniform(0.1, 2.0),
        fewest=int(generator.integers(0, cap + 1)),
        t_early_stop_check_s=generator.uniform(0.0, 0.1),
    )


@given(st.integers(0, 2**32 - 1))
def test_one_call_in_plain_numbers_is_the_rule_of_many(seed: int) -> None:
    """Draft by draft and round by round, rows that may draft no more among them."""
    generator = np.random.default_rng(seed)
    policy, rows = random_policy(generator), int(generator.integers(1, 4))
    call, same = policy.begin(), OneCall(policy.begin_many(1))
    for _ in range(4):
        assert call.gamma == same.gamma
        offered, depth = generator.integers(0, 7, rows), 0
        while depth < min(call.gamma, offered.max()):
            tops = np.where(offered > depth, generator.random(rows).round(1), nan).tolist()
            depth += 1
            goes_on = call.goes_on(depth, tops, tops)
            event(f"goes on: {goes_on}")
            assert goes_on == same.goes_on(depth, tops, tops)
            if not goes_on:
                break
        drafted = np.minimum(depth, offered)
        accepted = np.minimum(generator.integers(0, 7, rows), drafted)
        for choice in (call, same):
            choice.observe(drafted.tolist(), accepted.tolist())
    assert call.gamma == same.gamma


@pytest.mark.parametrize(
    ("policy", "depth", "entropies", "goes_on"),
    [
        (SvipPolicy(threshold=0.6, cap=4), 1, [0.25], True),
        (SvipPolicy(threshold=0.6, cap=4), 2, [0.37], False),
        (SvipPolicy(threshold=0.6, cap=4), 4, [0.0], False),
        (SvipPolicy(threshold=0.6, cap=4), 1, [0.25, 0.48], True),  # roots .5 and .693
        (SvipPolicy(threshold=0.6, cap=4), 1, [0.25, 0.64], False),
        (SvipPolicy(threshold=0.6, cap=4), 1, [0.25, nan], True),
        (SvipPolicy(threshold=0.6, cap=4), 1, [nan, nan], False),
        (AdaEdlPolicy(start=0.4, cap=4), 1, [1.7], True),  # 1 - sqrt(.34) = .417
        (AdaEdlPolicy(start=0.4, cap=4), 1, [1.9], False),  # 1 - sqrt(.38) = .384
        (AdaEdlPolicy(start=0.4, cap=4), 4, [0.0], False),
        (AdaEdlPolicy(start=0.4, cap=4), 1, [1.9, 1.7], True),
        (AdaEdlPolicy(start=0.4, cap=4), 1, [1.9, nan], False),
    ],
)
def test_entropy_stops_beyond_a_threshold_and_at_the_cap_by_the_mean_of_rows_that_still_draft(
    policy: SvipPolicy | AdaEdlPolicy, depth: int, entropies: list[float], goes_on: bool
) -> None:
    choice = policy.begin()
    assert choice.gamma == 4
    assert choice.goes_on(depth, [0.5] * len(entropies), entropies) == goes_on


def test_the_threshold_rises_under_the_goal_and_falls_over_it() -> None:
    policy = AdaEdlPolicy(start=0.4)
    choices = policy.begin_many(1)
    assert isinstance(choices, AdaEdlChoices)
    thresholds = []
    for drafted, accepted in [(5, 5), (5, 0), (0, 0), (4, 4), (4, 4), (4, 4)]:
        choices.observe(seen([[drafted]], [[accepted]]))
        thresholds.append(float(choices.thresholds[0]))
    # shares .95, .475, no drafts, .7375, .86875, .934375 against .9; each step is (1 - .9) * .01
    assert thresholds == pytest.approx([0.399, 0.4, 0.4, 0.401, 0.402, 0.401])
    fresh = policy.begin_many(1)
    assert isinstance(fresh, AdaEdlChoices)
    assert fresh.thresholds[0] == 0.4
