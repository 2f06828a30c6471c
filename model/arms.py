"""The arms of a cell: what is timed (decode, draft, verify, …) and what is decoded end to end, text <-> `Arm`.

decode, draft, draft_catch_up, verify:γ    the costs of a round; a lookup has nothing to catch up with
transfer                                   of drafts to the target, where the draft is on another device
round:γ                                    a whole round, as a serving engine shows it; timed by nothing here
engine:policy                              a token of a serving engine under a policy of its own; no part of a round
prefill_target, prefill_draft              timed beside them; no part of a round's speed-up
plain, loop, generate                      baselines: our plain loop, the speculative loop at γ = 0, transformers'
speculate:γ                                the decoder at γ
adaptive:policy                            the decoder under a policy that chooses γ from round to round

>>> Arm.parse("verify:3"), str(Arm(kind="speculate", gamma=3))
(Arm(kind='verify', gamma=3, policy=None), 'speculate:3')
>>> end_to_end_arms([2, 3], ["svip"])
('plain', 'loop', 'generate', 'speculate:2', 'speculate:3', 'adaptive:svip')
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

DRAFT_ARMS = ("draft", "draft_catch_up", "transfer", "prefill_draft")
"""Timed arms that run the draft, or hand on what it wrote; all others run the target, those that speculate both."""
PREFILL_ARMS = ("prefill_target", "prefill_draft")
APART = "apart"
"""The note of a block that was timed apart from those of other arms, as one run of a serving engine is."""
PREFILL_BLOCKS = 5
"""Blocks in which a prefill is timed at most, one sample each: it is long, and does not enter a round's speed-up."""
PLAIN, LOOP, GENERATE = "plain", "loop", "generate"
OF_PLAIN = (LOOP, GENERATE)
"""What plain decoding itself is held against."""
BASELINES = (PLAIN, *OF_PLAIN)
SEVERAL_MARKS = ("draft", "transfer")
"""Timed arms whose samples have a mark for every number of drafts, 1 … γ_max."""
TIMED = {
    "decode": "",
    "draft": "",
    "draft_catch_up": "",
    "transfer": "",
    "verify": "gamma",
    "round": "gamma",
    "engine": "policy",
    **dict.fromkeys(PREFILL_ARMS, ""),
}
"""The kinds of arms that are timed, each with what follows its colon."""
DECODED = {**dict.fromkeys(BASELINES, ""), "speculate": "gamma", "adaptive": "policy"}
"""Those that are decoded end to end."""
_KINDS = TIMED | DECODED
POLICY = "[A-Za-z][A-Za-z0-9_]*"
"""The name of a policy: never a number, which is a γ."""
_CHOICES = {"": "", "gamma": ":([1-9][0-9]*)", "policy": f":({POLICY})"}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm; `str` gives the text of journals and tables, `parse` takes it."""

    kind: str
    """`decode`, `verify`, `speculate`, …: the text up to a colon."""
    gamma: int | None = None
    """γ of verify and speculate, 0 of baselines; None where there is none, or a policy chooses it."""
    policy: str | None = None
    """Of an adaptive arm, or an engine's own."""

    @classmethod
    @cache
    def parse(cls, text: str) -> Arm:
        """The arm that a text names.

        Raises:
            ValueError: it names none.
        """
        kind = text.partition(":")[0]
        takes = _KINDS.get(kind, "")
        match = re.fullmatch(kind + _CHOICES[takes], text) if kind in _KINDS else None
        if match is None:
            raise ValueError(f"arm: expected {arm_forms(_KINDS)}, got {text!r}")
        if takes == "gamma":
            return cls(kind=kind, gamma=int(match[1]))
        if takes == "policy":
            return cls(kind=kind, policy=match[1])
        return cls(kind=kind, gamma=0 if kind in BASELINES else None)

    def __str__(self) -> str:
        """Its text."""
        choice = self.policy if self.policy is not None else self.gamma or None
        return self.kind if choice is None else f"{self.kind}:{choice}"


def arm_forms(kinds: Mapping[str, str]) -> str:
    """The texts that arms of some kinds have, in words."""
    *forms, last = (f"{kind}:<{takes}>" if takes else kind for kind, takes in kinds.items())
    return f"{', '.join(forms)} or {last}"


def verify_arm(gamma: int) -> str:
    """The arm that times a target forward of `gamma` + 1 tokens."""
    return str(Arm(kind="verify", gamma=int(gamma)))


def arm_gammas(arms: Iterable[str], kind: str) -> tuple[int, ...]:
    """γ of those of some arms that are of a kind, `verify` or `round`, rising."""
    parsed = [Arm.parse(arm) for arm in arms]
    return tuple(sorted(arm.gamma for arm in parsed if arm.kind == kind and arm.gamma is not None))


def verify_gammas(arms: Iterable[str]) -> tuple[int, ...]:
    """γ of those of some arms that time a verification, rising."""
    return arm_gammas(arms, "verify")


def round_arm(gamma: int) -> str:
    """The arm of whole rounds of `gamma` drafts."""
    return str(Arm(kind="round", gamma=int(gamma)))


def engine_arm(policy: str) -> str:
    """The arm of a serving engine under a policy of its own."""
    return str(Arm(kind="engine", policy=policy))


def speculate_arm(gamma: int) -> str:
    """The arm that decodes with `gamma` drafts a round."""
    return str(Arm(kind="speculate", gamma=int(gamma)))


def adaptive_arm(policy: str) -> str:
    """The arm that decodes under a policy."""
    return str(Arm(kind="adaptive", policy=policy))


def round_arms(gammas: Iterable[int], *, catches_up: bool = True, transfers: bool = False) -> tuple[str, ...]:
    """The arms that a round of any of `gammas` is made of.

    catches_up: whether a draft model's cache lags. transfers: whether its drafts go to another device.
    """
    drafting = ("draft", *["draft_catch_up"] * catches_up, *["transfer"] * transfers)
    return ("decode", *drafting, *(verify_arm(gamma) for gamma in gammas))


def arm_names(gammas: Iterable[int], *, catches_up: bool = True, transfers: bool = False) -> tuple[str, ...]:
    """The arms of every cell: those of `round_arms`, the draft chain to the largest gamma, and prefills."""
    return (*round_arms(gammas, catches_up=catches_up, transfers=transfers), *PREFILL_ARMS)


def is_prefill(arm: str) -> bool:
    """Whether an arm is one of the prefills."""
    return arm in PREFILL_ARMS


SAME, TIE, DIFFERS = "same", "tie", "differs"
"""How a greedy text stands to the plain loop's: the same; leaves it where rounding decides; leaves it elsewhere."""


def end_to_end_arms(gammas: Iterable[int], policies: Iterable[str] = ()) -> tuple[str, ...]:
    """All baselines, then one arm for every gamma and every policy."""
    return (*BASELINES, *map(speculate_arm, gammas), *map(adaptive_arm, policies))
