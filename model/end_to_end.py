"""Names of the arms that are decoded end to end, and what they have in common.

plain, loop, generate     baselines: our plain loop, the speculative loop at γ = 0, transformers' generate
speculate:γ               the decoder at γ

>>> end_to_end_arms([2, 3])
('plain', 'loop', 'generate', 'speculate:2', 'speculate:3')
"""

from __future__ import annotations

from collections.abc import Iterable

PLAIN, LOOP, GENERATE = "plain", "loop", "generate"
BASELINES = (PLAIN, LOOP, GENERATE)
_SPECULATE = "speculate:"


def speculate_arm(gamma: int) -> str:
    """The arm that decodes with `gamma` drafts a round."""
    return f"{_SPECULATE}{gamma}"


def end_to_end_arms(gammas: Iterable[int]) -> tuple[str, ...]:
    """All baselines, then one arm for every gamma."""
    return (*BASELINES, *(speculate_arm(gamma) for gamma in gammas))


def arm_gamma(arm: str) -> int:
    """γ asked for under an arm: 0 for baselines; ValueError for a name that is no arm."""
    if arm in BASELINES:
        return 0
    number = arm.removeprefix(_SPECULATE)
    if number == arm or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise ValueError(f"arm {arm!r}: allowed: {', '.join(BASELINES)}, {_SPECULATE}<gamma>")
    return int(number)
