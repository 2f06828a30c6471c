"""γ by batch size: the decision at every measured batch size, and between them from the costs interpolated.

    decided_schedule({1: known, 4: other}, undecided=OFF, confidence=.9)    # ranges from 1 to the largest, without gaps

Between two measured batch sizes every cost of a round lies on a line over the batch size, as weights plus cache do.
What decoding end to end found S to be over its prediction goes geometrically from one to the other, and so does what
each replicate has S over the estimate: the r-th best of one with the r-th best of the other, as if both erred together,
or two noisy batch sizes would leave less doubt between them than at either. The decision is then taken as everywhere
(`specgauge.model.decision`), but that nothing is decided between two batch sizes which is decided at neither. At both
ends the answer is exactly the run's. Below the smallest measured batch size its γ goes on; beyond the largest nothing
is known and nothing is said. Rounds may also rise otherwise than on a line, with steps that nothing tells of: `gaps`
says what S then is at worst and at best.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby, pairwise
from typing import Any, Final, Literal

import numpy as np

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import FloatArray
from specgauge.model.costs import RoundCosts
from specgauge.model.decision import Decision, SpeedupEstimate, Verdict, ratio_text, summarise
from specgauge.model.schedule import equal_ranges
from specgauge.model.settings import Provenance
from specgauge.model.speedup import round_times_s, speedups
from specgauge.model.stats.bootstrap import percentile_interval

OFF: Final = "off"
RECOMMENDED: Final = "gamma"
Undecided = Literal["off", "gamma"] | int
"""What is written where the decision is open: no drafts, the recommended γ where its S is over 1, or one's own γ."""
RISE = 2.0
"""Concentration of the Dirichlet process that rounds rise by between two measured batch sizes: infinite is the line."""
SHOWN = 8
"""Batch sizes between two measured ones whose intervals are looked at."""
_CHANCE = 17
_STEPS = 24
"""Of a path; the last one takes what the others leave, (2/3)^23 on average."""
EVALUATED = 64
"""Batch sizes between two measured ones at which the decision is taken; where it changes, at those between too."""


@dataclass(frozen=True, kw_only=True)
class DecidedRange:
    """Batch sizes, both ends included, that take one γ; 0 is plain decoding."""

    first: int
    last: int
    gamma: int
    verdict: Verdict
    reason: str
    """Of the decision at one of them, a measured one where there is any."""


@dataclass(frozen=True, kw_only=True)
class KnownPoint:
    """A batch size whose costs were measured: they and the acceptance, (1 + R, G), and S from all evidence."""

    costs: RoundCosts
    acceptance: Acceptance
    estimate: SpeedupEstimate


@dataclass(frozen=True, kw_only=True)
class Gap:
    """Batch sizes between two that were measured, both ends included, and S of the γ that are written there."""

    first: int
    last: int
    low: float | None
    """Of the interval at the batch size where it is lowest; None where all is off, or S has no interval."""
    high: float | None

    @property
    def words(self) -> str:
        """One line: where it is, and how far S may lie off."""
        sizes = str(self.first) if self.first == self.last else f"{self.first} to {self.last}"
        found = f"batch {sizes}: interpolated"
        if self.low is None or self.high is None:
            return found
        return f"{found}; S {ratio_text(self.low)} to {ratio_text(self.high)} where rounds may rise in steps"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What is written at a batch size."""

    gamma: int
    verdict: Verdict
    reason: str
    is_known: bool
    """Whether it was measured, or asked of a plan, and does not lie between two that were."""

    @property
    def key(self) -> tuple[int, Verdict]:
        """What batch sizes of one range have in common."""
        return self.gamma, self.verdict


def decided_schedule(
    points: Mapping[int, KnownPoint], *, undecided: Undecided, confidence: float
) -> tuple[DecidedRange, ...]:
    """Ranges of batch sizes from 1 to the largest of `points`, without gaps.

    Args:
        points: by batch size, at least one.
        undecided: what is written where the decision is open.
        confidence: of the intervals.

    Raises:
        ValueError: a γ for undecided batch sizes that was not measured.
    """
    check_undecided(undecided, {gamma for point in points.values() for gamma in point.estimate.gammas.tolist()})
    sizes = sorted(points)
    answers = {size: answer(points[size].estimate, undecided) for size in sizes}
    for low, high in pairwise(sizes):
        answers |= _answers_between(points, low, high, answers, undecided=undecided, confidence=confidence)
    answers.setdefault(1, replace(answers[sizes[0]], is_known=False))
    return answer_ranges(answers)


def gaps(points: Mapping[int, KnownPoint], ranges: Sequence[DecidedRange], *, confidence: float) -> tuple[Gap, ...]:
    """What lies between the batch sizes of `points`, with S of what the ranges have there however rounds rise."""
    found = []
    for low, high in pairwise(sorted(points)):
        shared = np.intersect1d(points[low].estimate.gammas, points[high].estimate.gammas).tolist()
        if high - low < 2:
            continue
        intervals = []
        if shared:
            first, second = (_End.of(points[size], size, shared) for size in (low, high))
            rises = Rises.drawn(first.drawn.shape[0], len(shared))
            for size in np.unique(
                np.linspace(low + 1, high - 1, min(high - low - 1, SHOWN)).round().astype(int)
            ).tolist():
                gamma = next(one.gamma for one in ranges if one.first <= size <= one.last)
                if gamma in shared and first.drawn.size:
                    share = (size - low) / (high - low)
                    times = rises.off_the_line(first.times_s, second.times_s, share)
                    drawn = first.drawn ** (1 - share) * second.drawn**share * times[:, :1] / times[:, 1:]
                    own = (_estimate_between(first, second, size, share) * drawn)[:, shared.index(gamma)]
                    intervals.append(percentile_interval(own, confidence))
        found.append(
            Gap(
                first=low + 1,
                last=high - 1,
                low=min((float(one[0]) for one in intervals), default=None),
                high=max((float(one[1]) for one in intervals), default=None),
            )
        )
    return tuple(found)


def paying_sizes(points: Mapping[int, KnownPoint], *, confidence: float) -> tuple[list[tuple[int, int]], int | None]:
    """Where the schedule that takes undecided γ has drafts, and its first batch size after those without.

    Ranges with both ends, from the smallest to the largest of `points`; None where it has drafts up to the largest, or
    nowhere. Arguments as `decided_schedule`.
    """
    ranges = decided_schedule(points, undecided=RECOMMENDED, confidence=confidence)
    found = []
    for has_drafts, group in groupby(ranges, key=lambda one: one.gamma > 0):
        own = list(group)
        if has_drafts and own[-1].last >= min(points):
            found.append((max(own[0].first, min(points)), own[-1].last))
    return found, found[0][1] + 1 if found and found[0][1] < max(points) else None


def check_undecided(undecided: Undecided, gammas: Collection[int], known: str = "measured") -> None:
    """Raise ValueError where a γ for undecided batch sizes is none of those known, whether or not it is needed."""
    if isinstance(undecided, int) and undecided not in gammas:
        listed = ", ".join(map(str, sorted(gammas)))
        raise ValueError(
            f"undecided: expected {OFF}, {RECOMMENDED} or a gamma that was {known}, {listed}, got {undecided}"
        )


def answer(estimate: SpeedupEstimate, undecided: Undecided, *, beside: tuple[Verdict, Verdict] | None = None) -> Answer:
    """The γ of one batch size, of one between two measured ones with their verdicts; errors as `decided_schedule`."""
    decision = estimate.decision
    if beside is not None and decision.verdict not in beside:
        decision = Decision(verdict="undecided", reason=f"not decided at the batch sizes beside it; {decision.reason}")
    gamma = estimate.recommended_gamma if decision.verdict == "speculate" else 0
    if decision.verdict == "undecided" and undecided == RECOMMENDED:
        gamma = estimate.recommended_gamma if estimate.speedup.max() > 1 else 0
    elif decision.verdict == "undecided" and undecided != OFF:
        check_undecided(undecided, estimate.gammas.tolist())
        gamma = int(undecided)
    return Answer(gamma=gamma, verdict=decision.verdict, reason=decision.reason, is_known=beside is None)


def _answers_between(
    points: Mapping[int, KnownPoint],
    low: int,
    high: int,
    ends: Mapping[int, Answer],
    *,
    undecided: Undecided,
    confidence: float,
) -> dict[int, Answer]:
    """The answers at enough batch sizes between two measured ones to know where they change."""
    shared = np.intersect1d(points[low].estimate.gammas, points[high].estimate.gammas).tolist()
    if high - low < 2 or not shared:  # what lies between is then as the lower one
        return {}
    between = _interpolation(points[low], points[high], low, high, shared, confidence)
    found, beside = {low: ends[low], high: ends[high]}, (ends[low].verdict, ends[high].verdict)

    def take(size: int) -> Answer:
        if size not in found:
            found[size] = answer(between(size), undecided, beside=beside)
        return found[size]

    grid = np.unique(np.linspace(low, high, min(high - low, EVALUATED) + 1).round().astype(int)).tolist()
    for first, last in pairwise(grid):
        before, after = first, last
        if take(first).key != take(last).key:
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (middle, after) if take(middle).key == take(before).key else (before, middle)
    return found


def _interpolation(
    first: KnownPoint, second: KnownPoint, low: int, high: int, gammas: list[int], confidence: float
) -> Callable[[int], SpeedupEstimate]:
    """S and the decision at a batch size between two measured ones, at the γ that both know."""
    ends = [_End.of(point, size, gammas) for point, size in ((first, low), (second, high))]

    def between(size: int) -> SpeedupEstimate:
        share = (size - low) / (high - low)
        estimate = _estimate_between(ends[0], ends[1], size, share)
        drawn = ends[0].drawn ** (1 - share) * ends[1].drawn ** share
        return summarise(np.concatenate([estimate[None], estimate * drawn]), gammas, confidence=confidence)

    return between


@dataclass(frozen=True, kw_only=True)
class _End:
    """A measured batch size, at the γ that it shares with another one."""

    costs: RoundCosts
    """(G,) estimates, and so is the acceptance."""
    acceptance: Acceptance
    times_s: FloatArray
    """(1 + G,) T_decode and T_round."""
    moved: FloatArray
    """(G,) S from all evidence over S predicted."""
    drawn: FloatArray
    """(R, G) S of the replicates over the estimate, the replicates rising in their best S."""

    @classmethod
    def of(cls, point: KnownPoint, batch_size: int, gammas: list[int]) -> _End:
        columns = [point.estimate.gammas.tolist().index(gamma) for gamma in gammas]
        costs, acceptance = point.costs.only(gammas).row(0), point.acceptance.only(gammas).estimate
        estimate, replicates = point.estimate.speedup[columns], point.estimate.replicates[:, columns]
        return cls(
            costs=costs,
            acceptance=acceptance,
            times_s=np.append(costs.t_decode_s, round_times_s(costs, acceptance, batch_size=batch_size)),
            moved=estimate / speedups(costs, acceptance, batch_size=batch_size),
            drawn=replicates[np.argsort(replicates.max(axis=1), kind="stable")] / estimate,
        )


@dataclass(frozen=True, kw_only=True)
class Rises:
    """By what share of the whole T_decode and T_round have risen between two batch sizes, path by path.

    A path is a distribution function drawn from a Dirichlet process whose mean is the line (Sethuraman, Statistica
    Sinica 4 (1994), 639), each γ for itself: an engine has steps there, of graphs or of tiles, which nothing tells of.
    """

    steps: FloatArray
    """(R, 1 + G, K) by how much each step rises; plain decoding first."""
    places: FloatArray
    """(R, 1 + G, K) where, from 0 to 1."""

    @classmethod
    def drawn(cls, replicates: int, gammas: int) -> Rises:
        """R paths of plain decoding and G gammas, the same whatever they are of."""
        generator = np.random.default_rng(_CHANCE)
        shape = replicates, 1 + gammas, _STEPS
        broken = generator.beta(1.0, RISE, shape)
        broken[..., -1] = 1.0  # what is left
        left = np.cumprod(1.0 - broken, axis=-1)
        steps = broken * np.concatenate([np.ones((*shape[:2], 1)), left[..., :-1]], axis=-1)
        return cls(steps=steps, places=generator.random(shape))

    def off_the_line(self, low_s: FloatArray, high_s: FloatArray, share: float) -> FloatArray:
        """(R, 1 + G) T over that on the line, from (1 + G,) T at both ends, plain decoding first."""
        risen = np.where(self.places <= share, self.steps, 0.0).sum(axis=-1)
        found = (low_s + risen * (high_s - low_s)) / (low_s + share * (high_s - low_s))
        return np.asarray(found, dtype=np.float64)


def _estimate_between(first: _End, second: _End, size: int, share: float) -> FloatArray:
    """(G,) S from all evidence at a batch size between two measured ones."""
    costs = interpolated(first.costs, second.costs, share)
    moved = first.moved ** (1 - share) * second.moved**share
    return np.asarray(speedups(costs, first.acceptance, batch_size=size) * moved, dtype=np.float64)


def interpolated(first: RoundCosts, second: RoundCosts, share: float) -> RoundCosts:
    """Costs on the line from one batch size to another, all fields alike; a field that one lacks stays unknown."""
    values: dict[str, Any] = {}
    for field in fields(RoundCosts):
        one, other = getattr(first, field.name), getattr(second, field.name)
        if field.name not in ("gammas", "provenance"):
            values[field.name] = None if one is None or other is None else (1 - share) * one + share * other
    weakest = np.maximum(np.maximum(first.provenance, second.provenance), int(Provenance.INTERPOLATED))
    return replace(first, provenance=weakest, **values)


def answer_ranges(answers: Mapping[int, Answer]) -> tuple[DecidedRange, ...]:
    """Neighbours with the same answer as one range; what lies between two that were asked is as the lower one."""
    found = []
    for run, last in equal_ranges({size: one.key for size, one in answers.items()}):
        told = next((answers[size] for size in run if answers[size].is_known), answers[run[0]])
        found.append(DecidedRange(first=run[0], last=last, gamma=told.gamma, verdict=told.verdict, reason=told.reason))
    return tuple(found)
