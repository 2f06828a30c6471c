from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.policies.stopping import SvipPolicy
from specgauge.model.policies.tuning import KINDS, MAKERS, policy_of, policy_record
from tests.model.policy_cases import POLICIES


def test_every_policy_that_can_be_tuned_can_be_written_down() -> None:
    assert KINDS.keys() == MAKERS.keys() == POLICIES.keys()


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_comes_back_from_json_as_it_was(name: str) -> None:
    record = policy_record(POLICIES[name])
    assert record["kind"] == name
    assert policy_of(json.loads(json.dumps(record, allow_nan=False))) == POLICIES[name]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_every_digit(threshold: float) -> None:
    policy = SvipPolicy(threshold=threshold)
    assert policy_of(json.loads(json.dumps(policy_record(policy)))) == policy


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"kind": "magic"}, "found kind 'magic'; allowed are fixed, heuristic"),
        ({}, "found kind None"),
        ({"kind": "fixed"}, "field 'gamma' of FixedPolicy is missing"),
        ({"kind": "fixed", "gamma": 2, "delta": 1}, "field 'delta' of FixedPolicy is unknown"),
        ({"kind": "fixed", "gamma": "two"}, "a field of FixedPolicy holds another type"),
        ({"kind": "fixed", "gamma": -1}, "gamma: found -1"),
        (policy_record(POLICIES["renewal"]) | {"forecast": 1}, "found forecast 1; allowed is a mapping"),
        (policy_record(POLICIES["renewal"]) | {"forecast": {}}, "of AcceptanceForecast is missing"),
    ],
)
def test_what_is_no_policy(record: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        policy_of(record)
    assert "\n" not in str(caught.value)
