"""The names of what is timed, shared by what measures, what records and what reads."""

from specgauge.model.arms import DRAFT_ARMS, arm_names, is_prefill, round_arms, verify_arm


def test_the_names() -> None:
    assert arm_names([1, 3]) == (
        "decode",
        "draft",
        "draft_catch_up",
        "verify:1",
        "verify:3",
        "prefill_target",
        "prefill_draft",
    )
    assert verify_arm(12) == "verify:12"


def test_a_round_is_every_arm_but_the_prefills() -> None:
    assert set(arm_names([1, 3])) - set(arm_names([1, 3], catches_up=False)) == {"draft_catch_up"}
    assert round_arms([2], catches_up=False) == ("decode", "draft", "verify:2")
    assert round_arms([2]) == tuple(arm for arm in arm_names([2]) if not is_prefill(arm))
    assert set(DRAFT_ARMS) < set(arm_names([2]))
