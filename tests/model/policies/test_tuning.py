"""Tuning: what is chosen is the fastest on the tuning texts; and policies as records."""

from __future__ import annotations

import json

import numpy as np
import pytest

from specgauge.model.policies.feedback import GoodputPolicy
from specgauge.model.policies.policy import FixedPolicy
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
from tests.model.policy_cases import POLICIES
from tests.model.replay_cases import linear_costs, made_texts, regions

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
        (policy_record(POLICIES["renewal"]) | {"forecast": 1}, "expected a mapping, got forecast 1"),
        (policy_record(POLICIES["renewal"]) | {"forecast": {}}, "of AcceptanceForecast is missing"),
    ],
)
def test_what_is_no_policy(record: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        policy_of(record)
    assert "\n" not in str(caught.value)
