"""γ from round to round: bounds, resets, and what a round without drafts says."""

from __future__ import annotations

import pytest

from specgauge.model.policies import FixedPolicy, HeuristicPolicy


def test_fifty_full_rounds_reach_the_cap_and_the_next_call_starts_anew() -> None:
    policy = HeuristicPolicy(start=5, cap=16)
    choice, asked = policy.begin(), []
    for _ in range(50):
        asked.append(choice.gamma)
        choice.observe([choice.gamma], [choice.gamma])
    assert asked[:7] == [5, 7, 9, 11, 13, 15, 16]
    assert choice.gamma == 16
    assert policy.begin().gamma == 5


def test_rejections_shrink_to_one_and_no_further() -> None:
    choice = HeuristicPolicy(start=3).begin()
    for expected in (2, 1, 1):
        choice.observe([choice.gamma], [0])
        assert choice.gamma == expected


def test_a_batch_rises_only_when_every_row_kept_all_its_drafts() -> None:
    choice = HeuristicPolicy().begin()
    choice.observe([5, 5], [5, 4])
    assert choice.gamma == 4
    choice.observe([4, 0], [4, 0])
    assert choice.gamma == 6
    choice.observe([0, 0], [0, 0])
    assert choice.gamma == 6


def test_a_fixed_gamma_stays() -> None:
    choice = FixedPolicy(gamma=3).begin()
    choice.observe([3], [0])
    assert choice.gamma == 3


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"start": 0}, "lowest 1, start 0, cap 16"),
        ({"start": 17}, "lowest 1, start 17, cap 16"),
        ({"rise": -1}, "rise -1, fall 1"),
    ],
)
def test_bounds_that_do_not_hold_are_refused(values: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HeuristicPolicy(**values)


def test_a_negative_gamma_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma: found -1; allowed is 0"):
        FixedPolicy(gamma=-1)
