"""The names of what is timed and decoded: text and `Arm` both ways, and which arms a cell has."""

import pytest

from specgauge.model.arms import DRAFT_ARMS, Arm, arm_names, end_to_end_arms, is_prefill, round_arms, verify_gammas


def test_the_arms_of_a_cell() -> None:
    assert arm_names([1, 3]) == (
        "decode", "draft", "draft_catch_up", "verify:1", "verify:3", "prefill_target", "prefill_draft",
    )  # fmt: skip
    assert set(arm_names([1, 3])) - set(arm_names([1, 3], catches_up=False)) == {"draft_catch_up"}
    assert set(arm_names([1, 3], transfers=True)) - set(arm_names([1, 3])) == {"transfer"}
    assert round_arms([2]) == tuple(arm for arm in arm_names([2]) if not is_prefill(arm))
    assert set(DRAFT_ARMS) < set(arm_names([2], transfers=True))
    assert verify_gammas(arm_names([10, 9])) == (9, 10)


def test_baselines_of_what_is_decoded_come_first() -> None:
    assert end_to_end_arms([1, 4], ["svip"]) == (
        "plain", "loop", "generate", "speculate:1", "speculate:4", "adaptive:svip",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "arm"),
    [
        *((name, Arm(kind=name)) for name in ("decode", "draft", "draft_catch_up", "prefill_target", "prefill_draft")),
        *((name, Arm(kind=name, gamma=0)) for name in ("plain", "loop", "generate")),
        ("verify:3", Arm(kind="verify", gamma=3)),
        ("speculate:12", Arm(kind="speculate", gamma=12)),
        ("adaptive:svip_2", Arm(kind="adaptive", policy="svip_2")),
        ("engine:Own_2", Arm(kind="engine", policy="Own_2")),
    ],
)
def test_an_arm_is_its_text(text: str, arm: Arm) -> None:
    assert Arm.parse(text) == arm
    assert str(arm) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "speculate",
        "speculate:",
        "speculate:0",
        "verify:-1",
        "verify:\u00b2",
        "Plain",
        "adaptive:",
        "adaptive:A b",
        "engine:2",
    ],
)
def test_what_is_no_arm(text: str) -> None:
    with pytest.raises(ValueError, match=r"^arm: expected decode, .*adaptive:<policy>, got "):
        Arm.parse(text)
