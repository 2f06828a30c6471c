"""What an export is made from, whether a run measured it or a plan foretold it, and the lines that say so.

answers = run_answers(Run.open(path), …)        # or plan_answers(path, …)
answers.steps, answers.largest_gamma            # γ by batch size, from 1 to the largest known
answers.fixed(None)                             # the answer for an engine that takes one γ
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

from specgauge.model.decision import Verdict, ratio_text
from specgauge.model.schedule import ScheduleStep
from specgauge.sweeps.exports.schedule import DecidedRange, Gap
from specgauge.sweeps.foretell.machine import DraftKind


@dataclass(frozen=True, kw_only=True)
class DraftSource:
    """What proposes tokens, as far as an engine must know."""

    kind: DraftKind
    model: str | None = None
    """A hub id or directory; None where there is none that an engine can load."""
    longest: int = 3
    shortest: int = 1
    """Tokens that a lookup matches."""
    layers: int | None = None
    """Of the target, where its first ones draft."""


@dataclass(frozen=True, kw_only=True)
class GammaFigures:
    """One γ at one batch size."""

    tokens_per_round: float
    t_round_s: float
    speedup: float
    low: float | None
    high: float | None

    @property
    def break_even_accepted(self) -> float:
        """Drafts accepted in a round at which S is 1: Ω / S - 1."""
        return self.tokens_per_round / self.speedup - 1


@dataclass(frozen=True, kw_only=True)
class PointAnswer:
    """The answer at a batch size that was measured, or asked of a plan."""

    batch_size: int
    gamma: int
    """What is exported; 0 is plain decoding."""
    verdict: Verdict
    reason: str
    by_gamma: Mapping[int, GammaFigures]

    @property
    def label(self) -> str:
        """One line: γ with S and its interval, or why there is none."""
        if self.gamma == 0:
            return f"batch {self.batch_size}: γ 0, {self.verdict}: {self.reason}"
        found = self.by_gamma[self.gamma]
        ends = (
            "" if found.low is None or found.high is None else f" ({ratio_text(found.low)} to {ratio_text(found.high)})"
        )
        open_ = f", {self.verdict}: {self.reason}" if self.verdict == "undecided" else ""
        words = f"S {found.speedup:.2f}{ends}, {found.tokens_per_round:.2f} tokens a round"
        return f"batch {self.batch_size}: γ {self.gamma}, {words}{open_}"


@dataclass(frozen=True, kw_only=True)
class ServingAnswers:
    """γ by batch size of one setting at one context, with what it rests on."""

    source: str
    """The run directory or the file of the plan."""
    origin: str
    """When and on what it was measured, or that it is predicted."""
    target: str | None
    draft: DraftSource
    pair: str
    sampling: str | None
    draft_sampling: str | None
    acceptance_rule: str | None
    """None where nothing tells them: the last two of an imported run, all three of a plan that was given acceptance."""
    rules_differ: bool
    """Whether it matters how drafts are drawn and accepted: not to a greedy target, and not to lookups."""
    context: int
    confidence: float
    """Of the intervals."""
    ranges: tuple[DecidedRange, ...]
    """From batch size 1 to the largest known, without gaps."""
    points: tuple[PointAnswer, ...]
    """Rising in batch size, at least one."""
    gaps: tuple[Gap, ...] = ()
    """What was measured leaves between; of a plan none: it foretells every batch size."""
    reach: str
    """How far the batch sizes known reach, and what is written beyond: of schedules alone."""
    notes: tuple[str, ...] = ()
    """What else the numbers rest on."""
    warnings: tuple[str, ...] = ()
    """What was chosen for the reader, or left out."""

    @property
    def steps(self) -> tuple[ScheduleStep, ...]:
        """The ranges by γ alone."""
        groups = [list(group) for _, group in groupby(self.ranges, key=lambda one: one.gamma)]
        return tuple(ScheduleStep(first=one[0].first, last=one[-1].last, gamma=one[0].gamma) for one in groups)

    @property
    def open_ranges(self) -> tuple[DecidedRange, ...]:
        """Batch sizes between those known at which the decision is open."""
        known = [point.batch_size for point in self.points]
        return tuple(
            one
            for one in self.ranges
            if one.verdict == "undecided" and not any(one.first <= size <= one.last for size in known)
        )

    @property
    def largest_batch(self) -> int:
        """The largest batch size that something is known of."""
        return self.ranges[-1].last

    @property
    def largest_gamma(self) -> int:
        """The largest γ of all batch sizes.

        Raises:
            ValueError: there is nothing to export, since speculation pays at no batch size.
        """
        largest = max(one.gamma for one in self.ranges)
        if largest == 0:
            raise ValueError(self._nothing(self.points[0], "speculation is known to pay at no batch size; "))
        return largest

    def fixed(self, batch_size: int | None) -> PointAnswer:
        """The answer for an engine that takes one γ: of a batch size, the smallest known by default.

        Raises:
            ValueError: a batch size that is not known, or at which speculation does not pay.
        """
        known = {point.batch_size: point for point in self.points}
        size = min(known) if batch_size is None else batch_size
        if size not in known:
            listed = ", ".join(map(str, known))
            raise ValueError(f"batch size: expected one that {self.source} knows, {listed}, got {size}")
        if known[size].gamma == 0:
            others = ", ".join(str(point.batch_size) for point in self.points if point.gamma)
            raise ValueError(self._nothing(known[size]) + (f"; it pays at {others}: --batch-size" if others else ""))
        return known[size]

    def _nothing(self, point: PointAnswer, where: str = "") -> str:
        remedy = "; --undecided gamma exports what is open" if point.verdict == "undecided" else ""
        return f"{self.source}: nothing to export, {where}{point.label}{remedy}"
