"""The answers in sentences a person can act on, alike ones told once.

Places (batch size, context) of one strategy that share decision and gamma are merged into a group when they fill a
rectangle of the grid. Each group says what to do, what it gains with its interval, how sure that is, and what to do
next; `do not speculate` and `undecided` are answers like any other, and a place without a number says why.
Output: `AnswerGroup`s and a `Headline`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from specgauge.model.speedup import nearest_gamma
from specgauge.reports.formatting import (
    TIMES,
    count,
    interval,
    listed,
    percent,
    ranges,
    speedup,
    speedup_decimals,
)
from specgauge.reports.next_steps import following, shown_gamma
from specgauge.reports.records import (
    DO_NOT,
    NOTHING_MEASURED,
    SPECULATE,
    UNDECIDED,
    Answer,
    Curves,
    Measured,
    Strategy,
)

UNKNOWN_ANSWER = "no answer"
"""Stands where a decision would, at places without a number."""


@dataclass(frozen=True, kw_only=True)
class AnswerGroup:
    """Places of one strategy with one answer."""

    decision: str
    where: str
    """The places in words: `At batch 1 and 64–256 tokens of context`."""
    what: str
    """The answer itself: `speculate with γ = 3`."""
    gain: str
    """Its speed-up with the interval, as predicted."""
    measured: str
    """The speed-up measured where this gamma was decoded end to end, else, of a place alone, that of the nearest one
    that was; empty where there is none."""
    doubt: str
    """How sure it is; empty when nothing is known about that."""
    following: str
    """What to do next."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The run in one sentence."""

    tone: str
    """`speculate`, `do not speculate`, `undecided`, or `none` without any answer."""
    sentence: str
    detail: str
    counts: Mapping[str, int]
    """Number of settings by decision."""


def answer_groups(
    answers: Iterable[Answer],
    curves: Curves,
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
    confidence: float,
    measured: Measured = NOTHING_MEASURED,
) -> dict[Strategy, list[AnswerGroup]]:
    """The groups of every strategy, in order of batch size and context.

    `batch_sizes` and `contexts` are the grid asked for; `confidence` is that of the intervals (0.9).
    """
    by_strategy: dict[Strategy, list[Answer]] = {}
    for one in answers:
        by_strategy.setdefault(one.strategy, []).append(one)
    grid = (
        sorted({*batch_sizes, *(one.place.batch_size for ones in by_strategy.values() for one in ones)}),
        sorted({*contexts, *(one.place.context for ones in by_strategy.values() for one in ones)}),
    )
    return {
        strategy: [_group(members, curves, grid, confidence, measured) for members in merged(ones)]
        for strategy, ones in by_strategy.items()
    }


def merged(answers: Sequence[Answer]) -> list[list[Answer]]:
    """Answers of one strategy in rectangles of equal decision and gamma, by smallest batch size and context."""
    rows: dict[int, dict[tuple[object, ...], list[Answer]]] = {}
    for one in sorted(answers, key=lambda one: one.place):
        outcome: tuple[object, ...] = (one.decision, one.gamma) if one.is_known else (UNKNOWN_ANSWER, one.reason)
        rows.setdefault(one.place.batch_size, {}).setdefault(outcome, []).append(one)
    groups: dict[tuple[object, ...], list[Answer]] = {}
    for outcomes in rows.values():
        for outcome, members in outcomes.items():
            contexts = tuple(one.place.context for one in members)
            groups.setdefault((outcome, contexts), []).extend(members)
    return list(groups.values())


def headline(
    answers: Sequence[Answer],
    curves: Curves,
    unanswered: int,
    confidence: float,
    measured: Measured = NOTHING_MEASURED,
) -> Headline:
    """The whole run in one sentence; `unanswered` is the number of settings that have no answer."""
    answers = [one for one in answers if one.is_known]
    by_decision = {
        decision: [one for one in answers if one.decision == decision] for decision in (SPECULATE, DO_NOT, UNDECIDED)
    }
    counts = {decision: len(ones) for decision, ones in by_decision.items()}
    pays = by_decision[SPECULATE]
    if not answers:
        sentence = "No answer yet: no setting of this run has both timings and acceptance."
        return Headline(tone="none", sentence=sentence, detail="", counts=counts)
    total = "the one setting" if len(answers) == 1 else f"all {len(answers)} settings"
    predicted = f"{_values(pays)} plain decoding is predicted"
    if len(pays) == len(answers):
        gammas = sorted({one.gamma for one in pays if one.gamma is not None})
        which = f"γ = {ranges(gammas, gammas)}" if len(gammas) < 3 else f"γ from {gammas[0]} to {gammas[-1]}"
        sentence = f"Speculate with {which}: {predicted} in {total}."
    elif counts[DO_NOT] == len(answers):
        sentence = f"Do not speculate: plain decoding is as fast or faster in {total}."
    elif pays:
        sentence = f"Speculative decoding pays in {len(pays)} of {len(answers)} settings: {predicted} there."
    elif counts[DO_NOT]:
        sentence = f"Do not speculate in {counts[DO_NOT]} of {len(answers)} settings; the others are undecided."
    else:
        sentence = f"Undecided: the data do not say whether speculation pays in {total}."
    tone = SPECULATE if pays else DO_NOT if counts[DO_NOT] else UNDECIDED
    detail = " ".join(
        [_best(answers, curves, confidence, measured), *_remarks(counts, unanswered, _common_label(curves))]
    )
    return Headline(tone=tone, sentence=sentence, detail=detail, counts=counts)


def strategy_words(strategy: Strategy, among: Iterable[Strategy]) -> str:
    """The parts of a strategy that tell it from the others of the run, in words; its sampling always."""
    others = list(among)
    words = [f"sampling {strategy.sampling}"]
    if len({one.pair for one in others}) > 1:
        words.insert(0, f"pair {strategy.pair}")
    if len({one.draft_sampling for one in others}) > 1 or strategy.draft_sampling != "same":
        words.append("draft takes its argmax" if strategy.draft_sampling == "greedy" else "draft samples as the target")
    if len({one.acceptance_rule for one in others}) > 1 or strategy.acceptance_rule != "ratio":
        words.append(f"{strategy.acceptance_rule} rule")
    if len({one.mode for one in others}) > 1 or strategy.mode != "eager":
        words.append(f"mode {strategy.mode}")
    return ", ".join(words)


def _best(answers: Sequence[Answer], curves: Curves, confidence: float, measured: Measured) -> str:
    """The answer with the largest speed-up, and what was measured there."""
    top = max(answers, key=lambda one: one.speedup or 0.0)
    words = strategy_words(top.strategy, [one.strategy for one in answers])
    decoded = _measured([top], curves, confidence, measured)
    return (
        f"Best: {speedup(top.speedup)} ({percent(confidence)} interval "
        f"{interval(top.speedup_low, top.speedup_high)}) with {words}, γ = {shown_gamma(top, curves)}, "
        f"batch {top.place.batch_size}, {count(top.place.context, 'token')} of context"
        f"{decoded and f'; {decoded}'}."
    )


def _remarks(counts: Mapping[str, int], unanswered: int, label: str) -> Iterator[str]:
    """Sentences on the settings where speculation does not pay or nothing is known, and what every speed-up is."""
    if counts[SPECULATE] and counts[DO_NOT]:
        yield f"It does not pay in {counts[DO_NOT]}."
    if counts[SPECULATE] and counts[UNDECIDED]:
        yield f"{counts[UNDECIDED]} {'is' if counts[UNDECIDED] == 1 else 'are'} undecided."
    if unanswered:
        yield f"{count(unanswered, 'setting')} of the grid {'has' if unanswered == 1 else 'have'} no answer."
    if label:
        yield f"Every speed-up is {label}."


def _group(
    members: Sequence[Answer],
    curves: Curves,
    grid: tuple[list[int], list[int]],
    confidence: float,
    measured: Measured,
) -> AnswerGroup:
    first = members[0]
    batch_sizes = sorted({one.place.batch_size for one in members})
    contexts = sorted({one.place.context for one in members})
    where = _where(batch_sizes, contexts, grid)
    if not first.is_known:
        return AnswerGroup(
            decision=UNKNOWN_ANSWER,
            where=where,
            what=UNKNOWN_ANSWER,
            gain=first.reason,
            measured="",
            doubt="",
            following="",
        )
    what = {SPECULATE: f"speculate with γ = {first.gamma}", DO_NOT: DO_NOT, UNDECIDED: UNDECIDED}[first.decision]
    gain = f"{_values(members)} ({_intervals(members, confidence)})"
    if first.decision != SPECULATE:
        gammas = sorted({gamma for one in members if (gamma := shown_gamma(one, curves)) is not None})
        gain = f"γ = {listed([str(gamma) for gamma in gammas], 'or')} would give {gain}" if gammas else gain
    return AnswerGroup(
        decision=first.decision,
        where=where,
        what=what,
        gain=gain,
        measured=_measured(members, curves, confidence, measured),
        doubt="; ".join([*_doubt(members), *_labels(members, curves)]),
        following=following(members, curves),
    )


def _where(batch_sizes: Sequence[int], contexts: Sequence[int], grid: tuple[list[int], list[int]]) -> str:
    """`At batch 1 and 64 tokens of context`, `At batch 1 to 8, with 64 or 256 tokens of context`."""
    tokens = "token" if contexts == [1] else "tokens"
    joint = " and" if len(batch_sizes) == len(contexts) == 1 else ", with"
    return f"At batch {ranges(batch_sizes, grid[0])}{joint} {ranges(contexts, grid[1])} {tokens} of context"


def _values(answers: Sequence[Answer]) -> str:
    return _span(one.speedup for one in answers) or "an unknown speed-up"


def _span(speedups: Iterable[float | None]) -> str:
    """`1.42 ×`, or `1.10 to 1.42 ×`; empty where none is known."""
    known = sorted(value for value in speedups if value is not None)
    if not known:
        return ""
    low, high = speedup(known[0]), speedup(known[-1])
    return high if low == high else f"{low.removesuffix(TIMES)} to {high}"


def _measured(members: Sequence[Answer], curves: Curves, confidence: float, measured: Measured) -> str:
    """`measured end to end: 1.38 × (90 % interval 1.31–1.45)` of the places whose gamma was decoded; empty of none.

    Of a place alone whose gamma was not, the nearest one that was, by its name.
    """
    gammas = [(one, shown_gamma(one, curves)) for one in members]
    found = [
        measured[one.strategy, one.place, gamma]
        for one, gamma in gammas
        if gamma is not None and (one.strategy, one.place, gamma) in measured
    ]
    if not found:
        return _nearest_measured(members[0], gammas[0][1], measured) if len(members) == 1 else ""
    words = f"measured end to end: {_span(one.speedup_measured for one in found)}"
    first = found[0]
    if len(members) > 1:
        return words if len(found) == len(members) else f"{words} in {len(found)} of these {len(members)} places"
    if first.speedup_measured_low is None:
        return words
    ends = interval(first.speedup_measured_low, first.speedup_measured_high)
    return f"{words} ({percent(confidence)} interval {ends})"


def _intervals(answers: Sequence[Answer], confidence: float) -> str:
    lows = [one.speedup_low for one in answers if one.speedup_low is not None]
    highs = [one.speedup_high for one in answers if one.speedup_high is not None]
    if not lows or not highs:
        return "its interval is not known"
    words = "interval" if len(answers) == 1 else "intervals within"
    return f"{percent(confidence)} {words} {interval(min(lows), max(highs), speedup_decimals(max(highs)))}"


def _nearest_measured(member: Answer, gamma: int | None, measured: Measured) -> str:
    """`γ = 4 measured end to end: 1.27 ×` of the decoded gamma next to one that was not; empty of none."""
    here = [decoded for strategy, place, decoded in measured if (strategy, place) == (member.strategy, member.place)]
    if gamma is None or not here:
        return ""
    nearest = nearest_gamma(gamma, here)
    one = measured[member.strategy, member.place, nearest]
    return f"γ = {nearest} measured end to end: {speedup(one.speedup_measured)}"


def _labels(members: Sequence[Answer], curves: Curves) -> list[str]:
    """What the predictions behind the answers are labelled with, unless the headline says it of all of them."""
    rows = [one for member in members for one in curves.get(member.strategy, {}).get(member.place, ())]
    return sorted({one.label for one in rows if one.label} - {_common_label(curves)})


def _common_label(curves: Curves) -> str:
    """The label of every known speed-up, such as `optimistic: overhead not measured`; empty where they differ."""
    rows = [one for places in curves.values() for curve in places.values() for one in curve if one.speedup is not None]
    labels = {one.label for one in rows}
    return labels.pop() if len(labels) == 1 else ""


def _doubt(members: Sequence[Answer]) -> list[str]:
    """P(speculation pays), P(this gamma is best) and the expected loss; the least favourable of the group."""
    parts = []
    pays = [one.p_speculation_pays for one in members if one.p_speculation_pays is not None]
    if pays:
        span = percent(min(pays)) if min(pays) == max(pays) else f"{percent(min(pays))} to {percent(max(pays))}"
        parts.append(f"P(speculation pays) {span}")
    parts += sorted({one.reason for one in members if one.p_speculation_pays is None and one.reason})
    best = [one.p_gamma_best for one in members if one.p_gamma_best is not None]
    loss = [one.expected_loss for one in members if one.expected_loss is not None]
    if members[0].decision == SPECULATE and best:
        parts.append(f"P(this γ is the best) {'' if len(best) == 1 else 'at least '}{percent(min(best))}")
    if members[0].decision == SPECULATE and loss:
        parts.append(f"expected loss against the best {'' if len(loss) == 1 else 'at most '}{percent(max(loss), 1)}")
    return parts
