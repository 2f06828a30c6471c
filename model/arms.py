"""The arms of a cell: what is timed (decode, draft, verify γ, …) and what is decoded end to end, by name.

decode, draft, draft_catch_up, verify:<gamma>      the parts of a round; a lookup has nothing to catch up with
prefill_target, prefill_draft                      timed beside them; no part of a round's speed-up

arm_names([1, 2])      # ("decode", "draft", "draft_catch_up", "verify:1", "verify:2", "prefill_target", …)

Names of the arms that are decoded end to end, and what they have in common.

plain, loop, generate     baselines: our plain loop, the speculative loop at γ = 0, transformers' generate
speculate:γ               the decoder at γ
adaptive:policy           the decoder under a policy that chooses γ from round to round

>>> end_to_end_arms([2, 3], ["svip"])
('plain', 'loop', 'generate', 'speculate:2', 'speculate:3', 'adaptive:svip')
"""

from __future__ import annotations

import re
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


PLAIN, LOOP, GENERATE = "plain", "loop", "generate"
OF_PLAIN = (LOOP, GENERATE)
"""What plain decoding itself is held against."""
BASELINES = (PLAIN, *OF_PLAIN)
SAME, TIE, DIFFERS = "same", "tie", "differs"
"""How a greedy text stands to the plain loop's: the same; leaves it where rounding decides; leaves it elsewhere."""
_SPECULATE, _ADAPTIVE = "speculate:", "adaptive:"
_POLICY = re.compile(rf"{_ADAPTIVE}([a-z][a-z0-9_]*)")


def speculate_arm(gamma: int) -> str:
    """The arm that decodes with `gamma` drafts a round."""
    return f"{_SPECULATE}{gamma}"


def adaptive_arm(policy: str) -> str:
    """The arm that decodes under a policy."""
    return f"{_ADAPTIVE}{policy}"


def end_to_end_arms(gammas: Iterable[int], policies: Iterable[str] = ()) -> tuple[str, ...]:
    """All baselines, then one arm for every gamma and every policy."""
    return (*BASELINES, *map(speculate_arm, gammas), *map(adaptive_arm, policies))


def arm_policy(arm: str) -> str | None:
    """The policy of an arm; None where γ is fixed."""
    match = _POLICY.fullmatch(arm)
    return None if match is None else match[1]


def arm_gamma(arm: str) -> int | None:
    """γ of an arm: 0 for baselines, None where a policy chooses it; ValueError for a name that is no arm."""
    if arm in BASELINES:
        return 0
    if arm_policy(arm) is not None:
        return None
    number = arm.removeprefix(_SPECULATE)
    if number == arm or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise ValueError(f"arm {arm!r}: allowed: {', '.join(BASELINES)}, {_SPECULATE}<gamma>, {_ADAPTIVE}<policy>")
    return int(number)
