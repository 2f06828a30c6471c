"""Cells whose every time is known, searched step by step; times are multiples of a decode step of one second."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.arms import Arm, verify_gammas
from specgauge.model.search.candidates import SearchObjective, SearchSettings
from specgauge.model.search.levels import BlockSummary, summarise_block
from specgauge.model.search.search import Step, next_step
from specgauge.model.speedup import survival_iid
from tests.model.made import made_acceptance

T_DRAFT_S = 0.1
STEPS = (-2, -1, 0, 1, 2)


def asked(tokens_per_round: ArrayLike, full_acceptance: ArrayLike, **changes: Any) -> SearchObjective:
    """A question from Ω (1 + R, G) and A_γ (G,), G every γ from 1."""
    return SearchObjective(acceptance=made_acceptance(tokens_per_round, full_acceptance, **changes))


def question(alpha: float, gamma_max: int, label: str = "") -> SearchObjective:
    """Every draft passes with probability alpha."""
    survival = survival_iid(alpha, gamma_max)
    return SearchObjective(acceptance=made_acceptance(1 + np.cumsum(survival)[None], survival), label=label)


@dataclass(kw_only=True)
class Cell:
    """One cell: T_verify(1), T_verify(2), … in seconds, an even chain, nothing to catch up with."""

    t_verify_s: Sequence[float]
    spread: float = 0.0
    """Distance of the logarithms of successive samples."""
    spreads: Mapping[str, float] = field(default_factory=dict)
    """Those of arms that differ."""
    pace: Callable[[int], float] = lambda _: 1.0
    """By block."""
    blocks: dict[str, dict[int, BlockSummary]] = field(default_factory=dict)
    log: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """Reason and arms of every step."""

    @property
    def gammas(self) -> tuple[int, ...]:
        return tuple(range(1, len(self.t_verify_s) + 1))

    def marks_s(self, arm: str) -> list[float]:
        if arm == "draft":
            return [T_DRAFT_S * gamma for gamma in self.gammas]
        if arm == "draft_catch_up":
            return [T_DRAFT_S]
        return [1.0 if arm == "decode" else self.t_verify_s[(Arm.parse(arm).gamma or 0) - 1]]

    def samples_s(self, arm: str, number: int) -> list[list[float]]:
        spread = self.spreads.get(arm, self.spread)
        factors = [self.pace(number) * math.exp(spread * step) for step in STEPS]
        return [[mark * factor for mark in self.marks_s(arm)] for factor in factors]

    def settings(self, **changes: Any) -> SearchSettings:
        wanted: dict[str, Any] = {"gammas": self.gammas, "batch_size": 1, "relative_ci": 0.9}
        return SearchSettings(**wanted | changes)

    def take(self, arms: Sequence[str], number: int) -> None:
        for arm in arms:
            self.blocks.setdefault(arm, {})[number] = summarise_block(self.samples_s(arm, number))

    def search(
        self, questions: Sequence[SearchObjective], settings: SearchSettings | None = None, **options: Any
    ) -> Step:
        """Search to the end."""
        wanted = settings or self.settings()
        while (step := next_step(wanted, questions, self.blocks, **options)).arms:
            assert len(self.log) < 500, self.log[-3:]
            self.take(step.arms, len(self.log))
            self.log.append((step.reason, step.arms))
        return step

    @property
    def timed(self) -> set[int]:
        """γ with a block."""
        return set(verify_gammas(self.blocks))

    def speedups(self, alpha: float) -> dict[int, float]:
        """S by γ, the truth."""
        return {
            gamma: (1 - alpha ** (gamma + 1)) / (1 - alpha) / (T_DRAFT_S * gamma + t)
            for gamma, t in zip(self.gammas, self.t_verify_s, strict=True)
        }
