"""The contest of the candidates of a search under one question: who leads, who could still win, and by how much.

    could win      log S(γ) − log S(leader) may reach log(1 − 1 %), the doubt of timings and of prompts allowed for
    rival          the one that, by the timings, may be furthest ahead of the leader, by over 1 %: −log(1 − 1 %)
    decided        no rival, and nothing untimed could win

γ that was not timed has an upper bound while T_verify rises with γ; where it was seen to fall, such a γ could always
win. J candidates, plain decoding first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist

import numpy as np

from specgauge.model.arms import round_arms
from specgauge.model.checks import BoolArray, FloatArray
from specgauge.model.search.candidate_bounds import Standing

CONFIDENCE = 0.95
"""That no γ is better than the one found by more than the indifference zone."""
INDIFFERENCE = 0.01
"""Speed-ups closer than this are as good as each other."""
LEFT_OUT = "left out"
"""What the reason begins with where a γ could have won."""


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """What a search looks for and how far it may go."""

    gammas: tuple[int, ...]
    """The candidates, rising; plain decoding is one besides."""
    batch_size: int
    catches_up: bool = True
    """Whether a model drafts, whose cache may lag."""
    relative_ci: float = 0.02
    """What S of the leader is to be known to, as far as timings go: half its interval over itself."""
    interval_confidence: float = 0.9
    """Of that interval."""
    min_blocks: int = 3
    max_blocks: int = 20
    """Blocks of an arm at most."""
    confidence: float = CONFIDENCE
    indifference: float = INDIFFERENCE

    @property
    def deviations(self) -> float:
        """Standard errors that one comparison allows for: the candidates share the confidence."""
        return NormalDist().inv_cdf(1 - (1 - self.confidence) / len(self.gammas))

    @property
    def interval_deviations(self) -> float:
        """Standard errors at the ends of an interval."""
        return NormalDist().inv_cdf(0.5 + self.interval_confidence / 2)

    @property
    def base_arms(self) -> tuple[str, ...]:
        """The arms that every round needs."""
        return round_arms((), catches_up=self.catches_up)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a search has found under one question."""

    gamma: int
    """The leader; 0 is plain decoding."""
    speedup: float
    decided: bool
    """Whether no candidate can be better by more than the indifference zone."""
    bounds: Mapping[int, float]
    """The most that S of each γ can be; infinite where nothing bounds it, 0 where its tokens per round are unknown."""
    could_win: Mapping[int, bool]
    """Whether each γ may be the best or within the zone of it."""
    expected: Mapping[int, float] = field(default_factory=dict)
    """S of each γ as a model expects it, where the cell keeps to that."""
    words: str = ""
    """Names the question, where there are several."""

    def why_left_out(self, gamma: int) -> str:
        """Why a γ was not timed, or in too few blocks to be weighed, in one line."""
        best, most = f"best is {self.speedup:.3g}", self.bounds[gamma]
        at = f" ({self.words})" if self.words else ""
        if most == 0:
            return f"not timed: its tokens per round are not known{at}"
        if gamma in self.expected:
            return (
                f"not timed: S about {self.expected[gamma]:.3g} by the costs of cells around, which this one keeps to; "
                f"{best}{at}"
            )
        if not self.could_win[gamma]:
            return f"cannot be best: S at most {most:.3g}, {best}{at}"
        bound = f"S at most {most:.3g}" if np.isfinite(most) else "nothing bounds its S"
        return f"{LEFT_OUT}: time or blocks are spent; {bound}, {best} so far{at}"


@dataclass(frozen=True, kw_only=True)
class Race:
    """One question's contest as it stands."""

    settings: SearchSettings
    standing: Standing
    is_rising: bool
    """Whether T_verify was seen to fall nowhere."""
    words: str = ""
    """Names the question, where there are several."""

    @cached_property
    def leader(self) -> int:
        """Place of the largest S among what was timed."""
        return int(np.argmax(np.where(self.standing.measured, self.standing.log_speedup, -np.inf)))

    @cached_property
    def best_gamma(self) -> int:
        """Place of the largest S among the γ that were timed: the leader, unless that is plain decoding."""
        return 1 + int(np.argmax(np.where(self.standing.measured, self.standing.log_speedup, -np.inf)[1:]))

    @cached_property
    def doubt(self) -> FloatArray:
        """(J,) how much larger than estimated log S over the leader's may be, by the timings."""
        return np.asarray(self.settings.deviations * self.standing.standard_errors(self.leader), dtype=np.float64)

    @cached_property
    def is_known(self) -> BoolArray:
        """(J,) whether Ω is known."""
        return np.asarray(np.isfinite(self.standing.log_tokens[0]), dtype=np.bool_)

    @cached_property
    def high(self) -> FloatArray:
        """(J,) upper end of log S over the leader's, by timings and prompts."""
        excess = self.standing.acceptance_excess(self.leader, self.settings.confidence)
        high = self.standing.gaps(self.leader) + np.hypot(self.doubt, excess)
        if not self.is_rising:
            high[~self.standing.measured & self.is_known] = np.inf
        return np.asarray(np.where(self.is_known, high, -np.inf), dtype=np.float64)

    @cached_property
    def could_win(self) -> BoolArray:
        """(J,) whether S may be the best or within the zone of it."""
        return np.asarray(self.high >= np.log1p(-self.settings.indifference), dtype=np.bool_)

    @cached_property
    def rival(self) -> int | None:
        """Place of the strongest challenger; None where none may be beyond the zone."""
        ahead = np.where(self.standing.measured, self.standing.gaps(self.leader) + self.doubt, -np.inf)
        ahead[self.leader] = -np.inf
        strongest = int(np.argmax(ahead))
        return strongest if ahead[strongest] > -np.log1p(-self.settings.indifference) else None

    @property
    def is_imprecise(self) -> bool:
        """Whether the timings leave S of the leader too wide an interval; plain decoding has none."""
        half = self.settings.interval_deviations * float(self.standing.standard_errors(self.leader)[0])
        return self.leader > 0 and half > self.settings.relative_ci

    @property
    def decided(self) -> bool:
        """Whether nothing may be better than the leader by more than the zone."""
        return self.rival is None and not bool((self.could_win & ~self.standing.measured).any())

    def verdict(self) -> Verdict:
        """The contest as plain data."""
        candidates = self.standing.candidates[1:].tolist()
        speedup = float(np.exp(self.standing.log_speedup[self.leader]))
        return Verdict(
            gamma=int(self.standing.candidates[self.leader]),
            speedup=speedup,
            decided=self.decided,
            bounds=dict(zip(candidates, (np.exp(self.high[1:]) * speedup).tolist(), strict=True)),
            could_win=dict(zip(candidates, self.could_win[1:].tolist(), strict=True)),
            words=self.words,
        )
