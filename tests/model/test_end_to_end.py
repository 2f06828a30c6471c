from __future__ import annotations

import pytest

from specgauge.model.arms import Arm, adaptive_arm, end_to_end_arms, speculate_arm


def test_baselines_come_first() -> None:
    assert end_to_end_arms([1, 4]) == ("plain", "loop", "generate", "speculate:1", "speculate:4")


def test_gamma_of_an_arm() -> None:
    assert [Arm.parse(arm).gamma for arm in end_to_end_arms([7])] == [0, 0, 0, 7]
    assert Arm.parse(speculate_arm(12)).gamma == 12


def test_a_policy_has_no_gamma_of_its_own() -> None:
    arms = end_to_end_arms([4], ["svip", "heuristic"])
    assert arms[3:] == ("speculate:4", "adaptive:svip", "adaptive:heuristic")
    assert [Arm.parse(arm).policy for arm in arms] == [None, None, None, None, "svip", "heuristic"]
    assert Arm.parse(adaptive_arm("svip")).gamma is None


@pytest.mark.parametrize(
    "arm",
    ["", "speculate", "speculate:", "speculate:0", "speculate:-1", "speculate:²", "Plain", "adaptive:", "adaptive:A b"],
)
def test_what_is_no_arm(arm: str) -> None:
    with pytest.raises(ValueError, match=r"^arm: expected decode, .*adaptive:<policy>, got "):
        Arm.parse(arm)
