"""Stopping by entropy: thresholds, the way λ moves, and batches."""

from __future__ import annotations

from math import nan

import pytest

from specgauge.model.policies.stopping import AdaEdlChoices, AdaEdlPolicy, SvipPolicy
from tests.model.policy_cases import seen


def test_svip_stops_above_its_threshold_and_at_its_cap() -> None:
    choice = SvipPolicy(threshold=0.6, cap=4).begin()
    assert choice.gamma == 4
    assert choice.goes_on(1, [0.5], [0.25])
    assert not choice.goes_on(2, [0.5], [0.37])
    assert not choice.goes_on(4, [1.0], [0.0])


def test_svip_in_a_batch_goes_by_the_mean_of_rows_that_still_draft() -> None:
    choice = SvipPolicy(threshold=0.6, cap=4).begin()
    assert choice.goes_on(1, [0.5, 0.5], [0.25, 0.48])  # roots .5 and .693
    assert not choice.goes_on(1, [0.5, 0.5], [0.25, 0.64])
    assert choice.goes_on(1, [0.5, nan], [0.25, nan])
    assert not choice.goes_on(1, [nan, nan], [nan, nan])


def test_adaedl_stops_where_its_bound_is_under_the_threshold() -> None:
    choice = AdaEdlPolicy(start=0.4, cap=4).begin()
    assert choice.goes_on(1, [0.5], [1.7])  # 1 - sqrt(.34) = .417
    assert not choice.goes_on(1, [0.5], [1.9])  # 1 - sqrt(.38) = .384
    assert not choice.goes_on(4, [1.0], [0.0])
    assert choice.goes_on(1, [0.5, 0.5], [1.9, 1.7])
    assert not choice.goes_on(1, [0.5, 0.5], [1.9, nan])


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


@pytest.mark.parametrize(
    ("kind", "values", "words"),
    [
        (SvipPolicy, {"cap": 0}, "svip: found a largest gamma of 0; allowed is 1"),
        (SvipPolicy, {"threshold": nan}, "svip: threshold: found nan"),
        (AdaEdlPolicy, {"goal": 1.2}, "adaedl: goal: found 1.2"),
        (AdaEdlPolicy, {"step": -0.1}, "adaedl: found step -0.1"),
    ],
)
def test_what_makes_no_sense_is_refused(kind: type, values: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**values)
