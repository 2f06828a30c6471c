"""The answers in sentences a person can act on, alike ones told once.

Points (batch size, context) of one setting that share decision and γ are merged into a group when they fill a rectangle
of the grid. Each group says what to do, what it gains with its interval, how sure that is, and what to do next;
`do not speculate` and `undecided` are answers like any other, and a point without a number says why.
Output: `AnswerGroup`s and a `Headline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specgauge.model.settings import Setting
from specgauge.model.speedup import RECOMMENDED_TOLERANCE, nearest_gamma
from specgauge.reports.formatting import (
    count,
    duration,
    interval,
    listed,
    number,
    percent,
    point_words,
    probability,
    ranges,
    speedup,
    speedup_decimals,
    speedup_span,
)
from specgauge.reports.records import DO_NOT, SPECULATE, UNDECIDED, Curve, Curves, Validated, best_of, known_rows
from specgauge.sweeps.store.schema import PredictionRow, RecommendationRow

NO_ANSWER = "no answer"
"""Stands where a decision would, at points without a number."""
_MORE_PROMPTS = "start a new run with more prompts (workload.prompts, workload.limit, workload.repetitions)"
_MORE_TIMINGS = "run the same command again with larger precision.max_blocks and precision.max_seconds"


@dataclass(frozen=True, kw_only=True)
class AnswerGroup:
    """Points of one setting with one answer."""

    decision: str
    where: str
    """The points in words: `At batch 1 and 64–256 tokens of context`."""
    what: str
    """The answer itself: `speculate with γ = 3`."""
    gain: str
    """Its speed-up with the interval, from prediction and measurement."""
    measured: str = ""
    """The speed-up measured where this γ was decoded end to end, else, of a point alone, that of the nearest one that
    was; empty where there is none."""
    uncertainty: str = ""
    """How sure it is; empty when nothing is known about that."""
    following: str = ""
    """What to do next."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The run in one sentence."""

    tone: str
    """`speculate`, `do not speculate`, `undecided`, or `none` without any answer."""
    sentence: str
    detail: str
    counts: Mapping[str, int]
    """Number of cells (a setting at a point each) by decision."""


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The recommendations of a run with what they rest on."""

    recommendations: Sequence[RecommendationRow]
    curves: Curves
    validated: Validated
    confidence: float
    """That of the intervals (0.9)."""
    lookups: frozenset[str] = frozenset()
    """Pairs whose drafts are looked up."""
    more_time: str = ""
    """How what there was no time for is measured, which comes before all else that could decide what is open."""

    def groups(self, batch_sizes: Iterable[int], contexts: Iterable[int]) -> dict[Setting, list[AnswerGroup]]:
        """The groups of every setting, in order of batch size and context; these two are the grid asked for."""
        by_setting: dict[Setting, list[RecommendationRow]] = {}
        for one in self.recommendations:
            by_setting.setdefault(one.setting, []).append(one)
        grid = (
            sorted({*batch_sizes, *(one.batch_size for one in self.recommendations)}),
            sorted({*contexts, *(one.context for one in self.recommendations)}),
        )
        return {
            setting: [self._group(members, grid) for members in merged(rows)] for setting, rows in by_setting.items()
        }

    def headline(self, unanswered: int) -> Headline:
        """The whole run in one sentence; `unanswered` is the number of cells that have no answer."""
        answers = [one for one in self.recommendations if one.speedup.value is not None]
        counts = {
            decision: sum(one.decision == decision for one in answers) for decision in (SPECULATE, DO_NOT, UNDECIDED)
        }
        if not answers:
            sentence = "No answer yet: no cell of this run has both timings and acceptance."
            return Headline(tone="none", sentence=sentence, detail="", counts=counts)
        tone = SPECULATE if counts[SPECULATE] else DO_NOT if counts[DO_NOT] else UNDECIDED
        detail = [self._best(answers), *_remarks(counts, unanswered, _common_label(self.curves))]
        return Headline(tone=tone, sentence=_headline(answers, counts), detail=" ".join(detail), counts=counts)

    def _rows(self, one: RecommendationRow) -> Curve:
        return self.curves.get(one.setting, {}).get(one.point, ())

    def _shown_gamma(self, one: RecommendationRow) -> int | None:
        """The γ that an answer's speed-up belongs to: the one recommended, else the one of the largest speed-up."""
        for gamma in (one.gamma, one.recommended_gamma, one.best_gamma):
            if gamma:
                return gamma
        best = best_of(self._rows(one))
        return None if best is None else best.gamma

    def _shown_rows(self, members: Iterable[RecommendationRow]) -> list[PredictionRow]:
        return [row for one in members for row in self._rows(one) if row.gamma == self._shown_gamma(one)]

    def _best(self, answers: Sequence[RecommendationRow]) -> str:
        """The answer of the largest S: where something pays or may the best, else what is nearest to paying."""
        top = max(answers, key=lambda one: one.speedup.value or 0.0)
        pays = [one for one in answers if one.decision == SPECULATE]
        if pays:
            top = max(pays, key=lambda one: one.speedup.value or 0.0)
        measured = self._measured([top])
        what = {SPECULATE: "Best", UNDECIDED: "Largest, undecided", DO_NOT: "Nearest to paying"}[top.decision]
        return (
            f"{what}: {speedup(top.speedup.value)} ({self._intervals([top])}) with "
            f"{setting_words(top.setting, [one.setting for one in answers])}, γ = {self._shown_gamma(top)}, "
            f"{point_words(top.point)}{_rates(top)}{measured and f'; {measured}'}."
        )

    def _group(self, members: Sequence[RecommendationRow], grid: tuple[list[int], list[int]]) -> AnswerGroup:
        first = members[0]
        where = _where(members, grid)
        if first.speedup.value is None:
            return AnswerGroup(decision=NO_ANSWER, where=where, what=NO_ANSWER, gain=first.reason)
        gain = f"{speedup_span(one.speedup.value for one in members)} ({self._intervals(members)})"
        gammas = sorted({gamma for one in members if (gamma := self._shown_gamma(one)) is not None})
        if first.decision != SPECULATE and gammas:
            gain = f"γ = {listed([str(gamma) for gamma in gammas], 'or')} would give {gain}"
        following = {SPECULATE: _when_it_pays, DO_NOT: self._when_it_does_not, UNDECIDED: self._when_undecided}
        return AnswerGroup(
            decision=first.decision,
            where=where,
            what=f"speculate with γ = {first.gamma}" if first.decision == SPECULATE else first.decision,
            gain=gain,
            measured=self._measured(members),
            uncertainty="; ".join([*_uncertainty(members), *self._wider_measurements(members), *self._labels(members)]),
            following=following[first.decision](members),
        )

    def _labels(self, members: Sequence[RecommendationRow]) -> Iterator[str]:
        """The labels of these speed-ups that those of the whole run do not share, with how many have each."""
        own = [{row.label for row in self._rows(one) if row.label} - {_common_label(self.curves)} for one in members]
        for label in sorted(set().union(*own)):
            labelled = sum(label in labels for labels in own)
            yield label if labelled == len(members) else f"{label} in {labelled} of these {len(members)} points"

    def _measured(self, members: Sequence[RecommendationRow]) -> str:
        """`measured end to end: 1.38 × (90 % interval 1.31–1.45)` of the points whose γ was decoded; empty of none.

        Of a point alone whose γ was not, the nearest one that was, by its name.
        """
        keys = [(one.setting, one.point, self._shown_gamma(one) or 0) for one in members]
        found = [self.validated[key] for key in keys if key in self.validated]
        if not found:
            return self._nearest_measured(*keys[0]) if len(members) == 1 else ""
        words = f"measured end to end: {speedup_span(one.speedup_measured for one in found)}"
        first = found[0]
        if len(members) > 1:
            return words if len(found) == len(members) else f"{words} in {len(found)} of these {len(members)} points"
        if first.speedup_measured_low is None:
            return words
        ends = interval(first.speedup_measured_low, first.speedup_measured_high)
        return f"{words} ({percent(self.confidence)} interval {ends})"

    def _wider_measurements(self, members: Sequence[RecommendationRow]) -> Iterator[str]:
        """Where the interval of what was measured does not tell that it pays, though all evidence together does."""
        keys = [(one.setting, one.point, one.gamma) for one in members if one.decision == SPECULATE and one.gamma]
        found = [self.validated[key] for key in keys if key in self.validated]
        lows = [row.speedup_measured_low for row in found if row.speedup_measured_low is not None]
        wide = [low for low in lows if float(f"{low:.2f}") <= 1]
        if wide:
            where = "" if len(members) == 1 else f" in {len(wide)} of these {len(members)} points"
            yield (
                f"that is prediction and measurement together: the measurement alone "
                f"leaves open whether it pays{where}, as its interval begins at {speedup(min(wide))}"
            )

    def _nearest_measured(self, setting: Setting, point: object, gamma: int) -> str:
        """`γ = 4 measured end to end: 1.27 ×` of the decoded γ next to one that was not; empty of none."""
        here = {at: row for (other, where, at), row in self.validated.items() if (other, where) == (setting, point)}
        if not gamma or not here:
            return ""
        nearest = nearest_gamma(gamma, here)
        return f"γ = {nearest} measured end to end: {speedup(here[nearest].speedup_measured)}"

    def _intervals(self, members: Sequence[RecommendationRow]) -> str:
        lows = [one.speedup.low for one in members if one.speedup.low is not None]
        highs = [one.speedup.high for one in members if one.speedup.high is not None]
        if not lows or not highs:
            return "its interval is not known"
        words = "interval" if len(members) == 1 else "intervals within"
        ends = interval(min(lows), max(highs), speedup_decimals(max(highs)))
        return f"{percent(self.confidence)} {words} {ends}"

    def _when_it_does_not(self, members: Sequence[RecommendationRow]) -> str:
        """How far the nearest point is from paying: a round's cost in plain steps against Ω."""
        rounds = [
            (row.t_round_s / row.t_decode_s, row.tokens_per_round, row)
            for row in self._shown_rows(members)
            if row.t_round_s and row.t_decode_s and row.tokens_per_round
        ]
        nearest = min(rounds, key=lambda one: one[0] / one[1], default=None)
        words = "Decode plainly here."
        if nearest is not None and nearest[0] > nearest[1]:
            needed, commits, row = nearest
            words += (
                f" Nearest to paying (batch {row.batch_size}, context {row.context}, γ = {row.gamma}): "
                f"a round costs {number(needed)} plain steps and commits {number(commits)} tokens."
            )
            if needed > row.gamma + 1:
                options = self._what_would_pay(members, acceptance_helps=False)
                only = f": only {listed(options, 'or')} can" if options else ""
                return f"{words} Even perfect acceptance would not pay for that{only}."
        changes = listed(self._what_would_pay(members, acceptance_helps=True), "or")
        return f"{words} {changes[0].upper()}{changes[1:]} would change that."

    def _what_would_pay(self, members: Sequence[RecommendationRow], *, acceptance_helps: bool) -> list[str]:
        """What could make speculation pay: lookups cost nothing already, and a batch of 1 has no smaller one."""
        is_lookup = members[0].pair in self.lookups
        found = [] if is_lookup else ["a faster draft"]
        if acceptance_helps:
            found.append("a draft model in place of lookups" if is_lookup else "one closer to the target")
        if all(self._smaller_batch_is_better(one) for one in members):
            found.append("a smaller batch")
        return found

    def _smaller_batch_is_better(self, one: RecommendationRow) -> bool:
        """Not at a batch of 1, nor where this run found S smaller at a smaller batch."""
        here = best_of(self._rows(one))
        smaller = [
            best.speedup or 0.0
            for point, curve in self.curves.get(one.setting, {}).items()
            if point.context == one.context
            and point.batch_size < one.batch_size
            and (best := best_of(curve)) is not None
        ]
        return one.batch_size > 1 and (not smaller or here is None or max(smaller) > (here.speedup or 0.0))

    def _when_undecided(self, members: Sequence[RecommendationRow]) -> str:
        """Where the uncertainty comes from: acceptance, the timings, or one here and the other there."""
        words, shares = "Decode plainly until more is measured:", [self._acceptance_share(one) for one in members]
        known = [share for share in shares if share is not None]
        if self.more_time:
            return f"{words} {self.more_time}."
        if len(known) < len(members):
            return f"{words} {_MORE_TIMINGS}, or {_MORE_PROMPTS}."
        low, high = min(known), max(known)
        if low >= 0.5:
            return f"{words} {_MORE_PROMPTS}, since {_at_least(low, high)} of the variance comes from acceptance."
        if high < 0.5:
            least, most = 1 - high, 1 - low
            return f"{words} {_MORE_TIMINGS}, since {_at_least(least, most)} of the variance comes from the timings."
        by_prompts = sum(share >= 0.5 for share in known)
        return (
            f"{words} in {by_prompts} of these {len(members)} points most of the variance comes from acceptance, in "
            f"the others from the timings; {_MORE_PROMPTS} and larger precision.max_blocks and precision.max_seconds."
        )

    def _acceptance_share(self, one: RecommendationRow) -> float | None:
        """Of the squared relative half-width of S, what acceptance has; None where it is not known."""
        rows = self._shown_rows([one])
        total = sum(_variance(row.speedup_low, row.speedup, row.speedup_high) for row in rows)
        own = sum(_variance(row.tokens_per_round_low, row.tokens_per_round, row.tokens_per_round_high) for row in rows)
        return min(1.0, own / total) if total > 0 else None


def merged(answers: Sequence[RecommendationRow]) -> list[list[RecommendationRow]]:
    """Answers of one setting in rectangles of equal decision and γ, by smallest batch size and context."""
    rows: dict[int, dict[tuple[object, ...], list[RecommendationRow]]] = {}
    for one in sorted(answers, key=lambda one: one.point):
        is_known = one.speedup.value is not None
        outcome: tuple[object, ...] = (one.decision, one.gamma) if is_known else (NO_ANSWER, one.reason)
        rows.setdefault(one.batch_size, {}).setdefault(outcome, []).append(one)
    groups: dict[tuple[object, ...], list[RecommendationRow]] = {}
    for outcomes in rows.values():
        for outcome, members in outcomes.items():
            contexts = tuple(one.context for one in members)
            groups.setdefault((outcome, contexts), []).extend(members)
    return list(groups.values())


def setting_words(setting: Setting, among: Iterable[Setting]) -> str:
    """What tells a setting from the others of the run, in words; its sampling always."""
    others = list(among)
    words = [f"sampling {setting.sampling}"]
    if len({one.pair for one in others}) > 1:
        words.insert(0, f"pair {setting.pair}")
    if len({one.draft_sampling for one in others}) > 1 or setting.draft_sampling != "same":
        words.append("draft takes its argmax" if setting.draft_sampling == "greedy" else "draft samples as the target")
    if len({one.acceptance_rule for one in others}) > 1 or setting.acceptance_rule != "ratio":
        words.append(f"{setting.acceptance_rule} rule")
    if len({one.mode for one in others}) > 1 or setting.mode != "eager":
        words.append(f"mode {setting.mode}")
    return ", ".join(words)


def _headline(answers: Sequence[RecommendationRow], counts: Mapping[str, int]) -> str:
    pays = [one for one in answers if one.decision == SPECULATE]
    total = "the one cell" if len(answers) == 1 else f"all {len(answers)} cells"
    anywhere = "the one cell" if len(answers) == 1 else f"any of the {len(answers)} cells"
    expected = f"{speedup_span(one.speedup.value for one in pays)} plain decoding is expected"
    if len(pays) == len(answers):
        gammas = sorted({one.gamma for one in pays if one.gamma is not None})
        which = f"γ = {ranges(gammas, gammas)}" if len(gammas) < 3 else f"γ from {gammas[0]} to {gammas[-1]}"
        return f"Speculate with {which}: {expected} in {total}."
    if counts[DO_NOT] == len(answers):
        return f"Do not speculate: plain decoding is as fast or faster in {total}."
    if pays:
        return f"Speculative decoding pays in {len(pays)} of {len(answers)} cells: {expected} there."
    if counts[DO_NOT]:
        return f"Do not speculate in {counts[DO_NOT]} of {len(answers)} cells; the others are undecided."
    return f"Undecided: the data do not say whether speculation pays in {anywhere}."


def _rates(one: RecommendationRow) -> str:
    """`: 92 tokens/s instead of 72, 31.7 ms a round`; empty where times are not known."""
    if not one.t_decode_s or not one.t_round_s or one.speedup.value is None:
        return ""
    plain = one.batch_size / one.t_decode_s
    return f": {plain * one.speedup.value:.0f} tokens/s instead of {plain:.0f}, {duration(one.t_round_s)} a round"


def _remarks(counts: Mapping[str, int], unanswered: int, label: str) -> Iterator[str]:
    if counts[SPECULATE] and counts[DO_NOT]:
        yield f"It does not pay in {counts[DO_NOT]}."
    if counts[SPECULATE] and counts[UNDECIDED]:
        yield f"{counts[UNDECIDED]} {'is' if counts[UNDECIDED] == 1 else 'are'} undecided."
    if unanswered:
        yield f"{count(unanswered, 'cell')} of the grid {'has' if unanswered == 1 else 'have'} no answer."
    if label:
        yield f"Every speed-up is {label}."


def _where(members: Sequence[RecommendationRow], grid: tuple[list[int], list[int]]) -> str:
    """`At batch 1 and 64 tokens of context`, `At batch 1 to 8, with 64 or 256 tokens of context`."""
    batch_sizes = sorted({one.batch_size for one in members})
    contexts = sorted({one.context for one in members})
    tokens = "token" if contexts == [1] else "tokens"
    joint = " and" if len(batch_sizes) == len(contexts) == 1 else ", with"
    return f"At batch {ranges(batch_sizes, grid[0])}{joint} {ranges(contexts, grid[1])} {tokens} of context"


def _common_label(curves: Curves) -> str:
    """The label of every known speed-up, such as `optimistic: overhead not measured`; empty where they differ."""
    labels = {row.label for row in known_rows(curves)}
    return labels.pop() if len(labels) == 1 else ""


def _uncertainty(members: Sequence[RecommendationRow]) -> Iterator[str]:
    """P(speculation pays), P(this γ is best) and the expected loss; the least favourable of the group."""
    pays = [one.p_speculation_pays for one in members if one.p_speculation_pays is not None]
    if pays:
        low, high = probability(min(pays)), probability(max(pays))
        yield f"P(speculation pays) {low if low == high else f'{low} to {high}'}"
    yield from sorted({one.reason for one in members if one.p_speculation_pays is None and one.reason})
    if members[0].decision == SPECULATE:
        best = [one.p_gamma_best for one in members if one.p_gamma_best is not None]
        loss = [one.expected_loss for one in members if one.expected_loss is not None]
        if best:
            yield f"P(this γ is the best) {'' if len(best) == 1 else 'at least '}{probability(min(best))}"
        if loss:
            yield f"expected loss against the best {'' if len(loss) == 1 else 'at most '}{percent(max(loss), 1)}"


def _when_it_pays(members: Sequence[RecommendationRow]) -> str:
    """What to set, and which γ has the largest S where that is another one."""
    gamma = members[0].gamma
    words = f"Set the engine's number of speculative tokens to {gamma}."
    faster: dict[int, list[RecommendationRow]] = {}
    for one in members:
        if one.best_gamma not in (None, gamma):
            faster.setdefault(one.best_gamma, []).append(one)
    if not faster:
        return words
    told = [f"γ = {best}{_some_of(own, members)}" for best, own in sorted(faster.items())]
    within = f"γ = {gamma} is within {percent(RECOMMENDED_TOLERANCE)} of {'it' if len(told) == 1 else 'each'}"
    verb = "has" if len(told) == 1 else "have"
    return f"{words} {listed(told)} {verb} the largest S by all evidence; {within} and drafts less."


def _some_of(own: Sequence[RecommendationRow], members: Sequence[RecommendationRow]) -> str:
    """` (batch 1, 256 tokens of context)` or ` (in 3 of these 8 points)`; empty for all of them."""
    if len(own) == len(members):
        return ""
    where = point_words(own[0].point) if len(own) == 1 else f"in {len(own)} of these {len(members)} points"
    return f" ({where})"


def _at_least(low: float, high: float) -> str:
    """One share, or the smaller of two that print apart."""
    return percent(low) if percent(low) == percent(high) else f"at least {percent(low)}"


def _variance(low: float | None, value: float | None, high: float | None) -> float:
    """The squared half-width of an interval, relative; 0 where it is not known."""
    return ((high - low) / (2 * value)) ** 2 if low is not None and high is not None and value else 0.0
