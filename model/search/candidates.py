"""The candidates of a search for γ under one question: S by γ, how far apart two of them are, and what could still win.

    log S(γ) = log Ω(γ) + log T_decode − log R(γ),    R(γ) = C(γ) + π Δ₂ + V(γ),    V(γ) = Σ_k w[γ, k] T_verify(k)

w is 1 at k = γ where a model drafts; lookups may verify fewer. γ = 0 is plain decoding, T_verify(0) = T_decode. Where
T_verify(k) was not measured, the largest measured g < k bounds it from below, and S(γ) is an upper bound. The
difference of two log S is a contrast of arm levels (`specgauge.model.search.levels`): the machine's pace cancels.

    could win      log S(γ) − log S(leader) may reach log(1 − 1 %), the uncertainty of timings and prompts allowed for
    rival          the one that, by the timings, may be furthest ahead of the leader, by over 1 %: −log(1 − 1 %)
    decided        no rival, and nothing untimed could win

Where T_verify was seen to fall with γ, one that was not timed could always win.

    bound_candidates(settings, question, levels, is_rising=True).verdict()

G gammas, J = 1 + G candidates with plain decoding first, A arms, D gamma_max.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.acceptance.lookups import max_drafts_distribution
from specgauge.model.arms import round_arms, verify_arm
from specgauge.model.checks import BoolArray, FloatArray, IntArray
from specgauge.model.costs import RoundCosts
from specgauge.model.search.levels import ArmLevels
from specgauge.model.settings import Provenance
from specgauge.model.speedup import catch_up_probability, round_times_s, speedups

CONFIDENCE = 0.95
"""That no γ is better than the one found by more than the margin."""
EQUIVALENCE_MARGIN = 0.01
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
    transfers: bool = False
    """Whether a model drafts, whose cache may lag."""
    relative_ci: float = 0.02
    """What S of the leader is to be known to, as far as timings go: half its interval over itself."""
    interval_confidence: float = 0.9
    """Of that interval."""
    min_blocks: int = 3
    max_blocks: int = 20
    """Blocks of an arm at most."""
    confidence: float = CONFIDENCE
    equivalence_margin: float = EQUIVALENCE_MARGIN

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
        return round_arms((), catches_up=self.catches_up, transfers=self.transfers)


@dataclass(frozen=True, kw_only=True)
class SearchObjective:
    """What one sampling and acceptance rule asks of a cell: its acceptance, which no timing changes."""

    acceptance: Acceptance
    """Of the candidates, Ω with replicates (1 + R, G) or without (G,); where Ω is NaN, γ takes no part."""
    label: str = ""
    """Names the question, where there are several."""

    @cached_property
    def estimate(self) -> Acceptance:
        """The acceptance without its replicates, (G,)."""
        own = self.acceptance.estimate
        return replace(own, full_acceptance=np.nan_to_num(own.full_acceptance))

    @cached_property
    def log_tokens(self) -> FloatArray:
        """(1 + R, J) logarithms of Ω, plain decoding first; −∞ where it is not known."""
        omega = self.acceptance.tokens_per_round.reshape(-1, self.acceptance.gammas.size)
        omega = np.clip(omega, 1.0, self.acceptance.gammas + 1.0)
        logs = np.where(np.isfinite(omega), np.log(np.where(np.isfinite(omega), omega, 1.0)), -np.inf)
        return np.concatenate([np.zeros((logs.shape[0], 1)), logs], axis=1)

    def drafts_verified(self, batch_size: int) -> FloatArray:
        """(G, D + 1) P(a round of the batch verifies k drafts)."""
        gammas, shares = self.acceptance.gammas, self.estimate.draft_count_distribution
        if shares is None:
            return np.asarray(np.eye(gammas.max() + 1)[gammas], dtype=np.float64)
        return max_drafts_distribution(np.nan_to_num(shares), batch_size)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a search has found under one question."""

    gamma: int
    """The leader; 0 is plain decoding."""
    speedup: float
    decided: bool
    """Whether no candidate can be better by more than the equivalence margin."""
    bounds: Mapping[int, float]
    """The most that S of each γ can be; infinite where nothing bounds it, 0 where its tokens per round are unknown."""
    could_win: Mapping[int, bool]
    """Whether each γ may be the best or within the zone of it."""
    expected: Mapping[int, float] = field(default_factory=dict)
    """S of each γ as a model expects it, where the cell keeps to that."""
    label: str = ""
    """Names the question, where there are several."""

    def why_left_out(self, gamma: int) -> str:
        """Why a γ was not timed, or in too few blocks to be weighed, in one line."""
        best, most = f"best is {self.speedup:.3g}", self.bounds[gamma]
        at = f" ({self.label})" if self.label else ""
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
class CandidateBounds:
    """Every candidate under one question."""

    settings: SearchSettings
    question: SearchObjective
    levels: ArmLevels
    is_rising: bool
    """Whether T_verify was seen to fall nowhere."""
    log_speedup: FloatArray
    """(J,) estimates where measured, upper bounds elsewhere; −∞ where Ω is unknown."""
    predicted: FloatArray
    """(J,) log S with T_verify on lines through what was measured: a guess to choose the next γ by."""
    measured: BoolArray
    """(J,) whether every part of the round was."""
    gradient: FloatArray
    """(J, A) of log R by the levels of the arms; rows add up to 1."""
    mark_gradient: FloatArray
    """(J, D) of log R by the logarithms of the shares of the draft chain."""

    @property
    def candidates(self) -> IntArray:
        """(J,) 0 and the gammas."""
        return np.array([0, *self.settings.gammas])

    def standard_errors(self, other: int) -> FloatArray:
        """(J,) of log S over that at place `other`, by the timings; infinite where the blocks do not tell."""
        timing = self.levels.variance(self.gradient - self.gradient[other])
        marks = self.mark_gradient - self.mark_gradient[other]
        shape = np.einsum("jd,de,je->j", marks, self.levels.share_covariance["draft"], marks)
        return np.asarray(np.sqrt(timing + np.maximum(shape, 0.0)), dtype=np.float64)

    @cached_property
    def leader(self) -> int:
        """Place of the largest S among what was timed."""
        return int(np.argmax(np.where(self.measured, self.log_speedup, -np.inf)))

    @cached_property
    def best_gamma(self) -> int:
        """Place of the largest S among the γ that were timed: the leader, unless that is plain decoding."""
        return 1 + int(np.argmax(np.where(self.measured, self.log_speedup, -np.inf)[1:]))

    @cached_property
    def gaps(self) -> FloatArray:
        """(J,) log S of every candidate over the leader's."""
        return np.asarray(self.log_speedup - self.log_speedup[self.leader], dtype=np.float64)

    @cached_property
    def timing_margin(self) -> FloatArray:
        """(J,) how much larger than estimated log S over the leader's may be, by the timings."""
        return np.asarray(self.settings.deviations * self.standard_errors(self.leader), dtype=np.float64)

    @cached_property
    def acceptance_margin(self) -> FloatArray:
        """(J,) the same of log Ω, by the prompts; 0 without replicates."""
        with np.errstate(invalid="ignore"):  # a draw of prompts without a start, under both
            ratios = self.question.log_tokens - self.question.log_tokens[:, [self.leader]]
        if ratios.shape[0] < 3 or not np.isfinite(ratios[:, 1:]).any():
            return np.zeros(ratios.shape[1])
        finite = np.isfinite(ratios).all(axis=0)
        high = np.quantile(ratios[1:][:, finite], self.settings.confidence, axis=0)
        margin = np.zeros(ratios.shape[1])
        margin[finite] = np.maximum(high - ratios[0, finite], 0.0)
        return margin

    @cached_property
    def has_tokens(self) -> BoolArray:
        """(J,) whether Ω is known."""
        return np.asarray(np.isfinite(self.question.log_tokens[0]), dtype=np.bool_)

    @cached_property
    def high(self) -> FloatArray:
        """(J,) upper end of log S over the leader's, by timings and prompts."""
        high = self.gaps + np.hypot(self.timing_margin, self.acceptance_margin)
        if not self.is_rising:
            high[~self.measured & self.has_tokens] = np.inf
        return np.asarray(np.where(self.has_tokens, high, -np.inf), dtype=np.float64)

    @cached_property
    def could_win(self) -> BoolArray:
        """(J,) whether S may be the best or within the zone of it."""
        return np.asarray(self.high >= np.log1p(-self.settings.equivalence_margin), dtype=np.bool_)

    @cached_property
    def rival(self) -> int | None:
        """Place of the strongest challenger; None where none may be beyond the zone."""
        ahead = np.where(self.measured, self.gaps + self.timing_margin, -np.inf)
        ahead[self.leader] = -np.inf
        strongest = int(np.argmax(ahead))
        return strongest if ahead[strongest] > -np.log1p(-self.settings.equivalence_margin) else None

    @property
    def is_imprecise(self) -> bool:
        """Whether the timings leave S of the leader too wide an interval; plain decoding has none."""
        half = self.settings.interval_deviations * float(self.standard_errors(self.leader)[0])
        return self.leader > 0 and half > self.settings.relative_ci

    @property
    def decided(self) -> bool:
        """Whether nothing may be better than the leader by more than the zone."""
        return self.rival is None and not bool((self.could_win & ~self.measured).any())

    def verdict(self) -> Verdict:
        """As plain data."""
        gammas, found = self.settings.gammas, float(np.exp(self.log_speedup[self.leader]))
        return Verdict(
            gamma=int(self.candidates[self.leader]),
            speedup=found,
            decided=self.decided,
            bounds=dict(zip(gammas, (np.exp(self.high[1:]) * found).tolist(), strict=True)),
            could_win=dict(zip(gammas, self.could_win[1:].tolist(), strict=True)),
            label=self.question.label,
        )


def bound_candidates(
    settings: SearchSettings, question: SearchObjective, levels: ArmLevels, *, is_rising: bool
) -> CandidateBounds:
    """Bound S of every candidate; `levels` has the base arms."""
    gammas, estimate = np.asarray(settings.gammas), question.estimate
    arms = ["decode", *(verify_arm(gamma) for gamma in settings.gammas)]
    timed = np.array([arm in levels.index for arm in arms])
    columns = [levels.index[arm] for arm, is_timed in zip(arms, timed, strict=True) if is_timed]
    times_s, measured = np.exp(levels.log_s[columns]), np.array([0, *settings.gammas])[timed]
    widths = question.drafts_verified(settings.batch_size)
    width = widths.shape[1]
    verified = np.where(timed[1:, None], widths @ _on_lines(measured, width), widths @ _from_below(measured, width))
    chain_s = levels.marks_s("draft")[gammas - 1]
    catch_up_s = levels.catch_up_s() if settings.catches_up else 0.0
    transfer_s = levels.marks_s("transfer")[gammas - 1] if settings.transfers else None
    costs = RoundCosts(
        gammas=gammas,
        t_decode_s=np.array(times_s[0]),
        t_draft_total_s=chain_s,
        t_verify_s=verified @ times_s,
        t_draft_catch_up_s=np.array(catch_up_s) if catch_up_s > 0 else None,
        t_transfer_s=transfer_s,
        provenance=np.where(timed[1:], int(Provenance.MEASURED), int(Provenance.EXTRAPOLATED)),
    )
    guessed = replace(costs, t_verify_s=widths @ _extended(measured, times_s, width))
    gradient = np.zeros((gammas.size, len(levels.arms)))
    mark_gradient = np.zeros((gammas.size, levels.shares["draft"].size))
    gradient[:, columns] = verified * times_s
    mark_gradient[np.arange(gammas.size), gammas - 1] = chain_s
    if catch_up_s > 0:
        follows = catch_up_probability(np.clip(estimate.full_acceptance, 0.0, 1.0), settings.batch_size)
        gradient[:, levels.index["draft_catch_up"]] = follows * levels.seconds("draft_catch_up")
        mark_gradient[:, 0] -= follows * levels.marks_s("draft")[0]
    if transfer_s is not None:  # the shares of its marks are taken as known: they are a small part of a round
        gradient[:, levels.index["transfer"]] = transfer_s
    gradient[:, levels.index["draft"]] = mark_gradient.sum(axis=1)
    round_s = round_times_s(costs, estimate, batch_size=settings.batch_size)[:, None]
    plain = np.eye(len(levels.arms))[[levels.index["decode"]]]
    return CandidateBounds(
        settings=settings,
        question=question,
        levels=levels,
        is_rising=is_rising,
        log_speedup=_log_speedups(costs, estimate, settings.batch_size),
        predicted=_log_speedups(guessed, estimate, settings.batch_size),
        measured=timed & np.concatenate([[True], estimate.is_known]),
        gradient=np.concatenate([plain, gradient / round_s]),
        mark_gradient=np.concatenate([np.zeros((1, mark_gradient.shape[1])), mark_gradient / round_s]),
    )


def _log_speedups(costs: RoundCosts, acceptance: Acceptance, batch_size: int) -> FloatArray:
    """(J,) log S, 0 of plain decoding; −∞ where Ω is unknown."""
    logs = np.log(speedups(costs, acceptance, batch_size=batch_size))
    return np.concatenate([[0.0], np.where(np.isnan(logs), -np.inf, logs)])


def _from_below(measured: IntArray, width: int) -> FloatArray:
    """(width, M) which measured time bounds that of k drafts from below: its own, or the next smaller one's."""
    return np.eye(measured.size)[np.searchsorted(measured, np.arange(width), side="right") - 1]


def _on_lines(measured: IntArray, width: int) -> FloatArray:
    """(width, M) shares of the measured times on whose line that of k drafts lies; the last one's beyond it."""
    if measured.size == 1:
        return np.ones((width, 1))
    drafts, each = np.arange(width), np.eye(measured.size)
    above = np.clip(np.searchsorted(measured, drafts), 1, measured.size - 1)
    share = np.clip((drafts - measured[above - 1]) / (measured[above] - measured[above - 1]), 0.0, 1.0)[:, None]
    return np.asarray(each[above - 1] * (1 - share) + each[above] * share, dtype=np.float64)


def _extended(measured: IntArray, times_s: FloatArray, width: int) -> FloatArray:
    """(width,) seconds on the lines through the measured times, the last line going on beyond them, never downwards."""
    seconds = _on_lines(measured, width) @ times_s
    if measured.size > 1:
        slope = max(0.0, (times_s[-1] - times_s[-2]) / (measured[-1] - measured[-2]))
        seconds = seconds + slope * np.maximum(np.arange(width) - measured[-1], 0)
    return np.asarray(seconds, dtype=np.float64)


def falls_nowhere(settings: SearchSettings, levels: ArmLevels, places: Sequence[int]) -> bool:
    """Whether T_verify, at places in the order of γ, falls nowhere with the intervals of both apart."""
    pairs = [(a, b) for at, a in enumerate(places) for b in places[at + 1 :]]
    if not pairs:
        return True
    contrasts = np.zeros((len(pairs), len(levels.arms)))
    contrasts[np.arange(len(pairs)), [a for a, _ in pairs]] = 1.0
    contrasts[np.arange(len(pairs)), [b for _, b in pairs]] = -1.0
    apart = np.sqrt(2.0) * NormalDist().inv_cdf(0.5 + settings.confidence / 2)
    return not bool((contrasts @ levels.log_s > apart * np.sqrt(levels.variance(contrasts))).any())
