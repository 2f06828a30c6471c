"""The names of what is timed, shared by what measures, what records and what reads."""

import pytest

from specgauge.model.arms import (
    DRAFT_ARMS,
    Arm,
    adaptive_arm,
    arm_names,
    end_to_end_arms,
    is_prefill,
    round_arms,
    speculate_arm,
    verify_arm,
)


def test_the_names_of_a_cell() -> None:
    names = arm_names([1, 3])
    base = ("decode", "draft", "draft_catch_up", "verify:1", "verify:3")
    assert names == (*base, "prefill_target", "prefill_draft")
    assert verify_arm(12) == "verify:12"
    assert set(names) - set(arm_names([1, 3], catches_up=False)) == {"draft_catch_up"}
    assert round_arms([2], catches_up=False) == ("decode", "draft", "verify:2")
    assert round_arms([2]) == tuple(arm for arm in arm_names([2]) if not is_prefill(arm))
    assert set(DRAFT_ARMS) < set(arm_names([2]))


def test_the_names_of_end_to_end_runs_tell_gamma_or_policy() -> None:
    arms = end_to_end_arms([1, 4], ["svip", "heuristic"])
    baselines = ("plain", "loop", "generate", "speculate:1", "speculate:4")
    assert arms == (*baselines, "adaptive:svip", "adaptive:heuristic")
    assert [Arm.parse(arm).gamma for arm in arms] == [0, 0, 0, 1, 4, None, None]
    assert [Arm.parse(arm).policy for arm in arms] == [None] * 5 + ["svip", "heuristic"]
    assert Arm.parse(speculate_arm(12)).gamma == 12
    assert Arm.parse(adaptive_arm("svip")).policy == "svip"


@pytest.mark.parametrize(
    "arm",
    ["", "speculate", "speculate:", "speculate:0", "speculate:-1", "speculate:²", "Plain", "adaptive:", "adaptive:A b"],
)
def test_what_is_no_arm(arm: str) -> None:
    with pytest.raises(ValueError, match=r"^arm: expected decode, .*adaptive:<policy>, got "):
        Arm.parse(arm)
