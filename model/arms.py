"""The arms of a cell: the names of what is timed there, as bench measures, sweeps records and the model reads them.

decode, draft, draft_catch_up, verify:<gamma>      the parts of a round; a lookup has nothing to catch up with
prefill_target, prefill_draft                      timed beside them; no part of a round's speed-up

arm_names([1, 2])      # ("decode", "draft", "draft_catch_up", "verify:1", "verify:2", "prefill_target", …)
"""

from __future__ import annotations

from collections.abc import Iterable

DRAFT_ARMS = ("draft", "draft_catch_up", "prefill_draft")
"""Arms that run the draft; all others run the target."""
PREFILL_ARMS = ("prefill_target", "prefill_draft")
PREFILL_BLOCKS = 5
"""Blocks in which a prefill is timed at most, one sample each: it is long, and does not enter a round's speed-up."""


def verify_arm(gamma: int) -> str:
    """The arm that times a target forward of `gamma` + 1 tokens."""
    return f"verify:{gamma}"


def round_arms(gammas: Iterable[int], *, catches_up: bool = True) -> tuple[str, ...]:
    """The arms that a round of any of `gammas` is made of; `catches_up`: whether a draft model's cache lags."""
    drafting = ("draft", "draft_catch_up") if catches_up else ("draft",)
    return ("decode", *drafting, *(verify_arm(gamma) for gamma in gammas))


def arm_names(gammas: Iterable[int], *, catches_up: bool = True) -> tuple[str, ...]:
    """The arms of every cell: decode, the draft chain to the largest gamma, its catch-up step, verify γ, prefills."""
    return (*round_arms(gammas, catches_up=catches_up), *PREFILL_ARMS)


def is_prefill(arm: str) -> bool:
    """Whether an arm is one of the prefills."""
    return arm in PREFILL_ARMS
