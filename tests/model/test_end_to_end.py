from __future__ import annotations

import pytest

from specgauge.model.end_to_end import arm_gamma, end_to_end_arms, speculate_arm


def test_baselines_come_first() -> None:
    assert end_to_end_arms([1, 4]) == ("plain", "loop", "generate", "speculate:1", "speculate:4")


def test_gamma_of_an_arm() -> None:
    assert [arm_gamma(arm) for arm in end_to_end_arms([7])] == [0, 0, 0, 7]
    assert arm_gamma(speculate_arm(12)) == 12


@pytest.mark.parametrize("arm", ["", "speculate", "speculate:", "speculate:0", "speculate:-1", "speculate:²", "Plain"])
def test_what_is_no_arm(arm: str) -> None:
    with pytest.raises(ValueError, match="allowed: plain, loop, generate, speculate:<gamma>"):
        arm_gamma(arm)
