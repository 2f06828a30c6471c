from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgauge.model.settings import Point
from specgauge.reports import formatting
from specgauge.reports.answers import AnswerGroup, Answers, merged, setting_words
from specgauge.reports.records import Curves, Validated, curves, validated
from specgauge.sweeps.store.schema import RecommendationRow
from tests.reports.synthetic import GREEDY, NOTHING, ONE, Shape, a_record, an_answer, curve, predicted, recommended

NO_CURVES: Curves = {}
PAYS, NOT, OPEN = "speculate", "do not speculate", "undecided"


def answers_of(
    rows: Sequence[RecommendationRow], curves: Curves = NO_CURVES, measured: Validated | None = None
) -> Answers:
    return Answers(recommendations=rows, curves=curves, validated=measured or {}, confidence=0.9)


def groups(
    *rows: RecommendationRow, curves: Curves = NO_CURVES, measured: Validated | None = None
) -> list[AnswerGroup]:
    return answers_of(rows, curves, measured).groups([], [])[GREEDY]


def shape_answers(shape: Shape, **changes: Any) -> Answers:
    """Of a made-up run, with `changes` in its predictions."""
    return answers_of(recommended(shape, **changes), curves(predicted(shape, **changes)))


def shape_groups(alpha: float, *, batch_size: int = 1, gamma: int = 1, changes: Any = None, **more: Any) -> Any:
    shape = Shape(alphas={"t1": alpha}, batch_sizes=(batch_size,), contexts=(64,), gammas=range(1, gamma + 1), **more)
    ((group,),) = shape_answers(shape, **(changes or {})).groups((batch_size,), (64,)).values()
    return [group]


NO_ENDS = dict.fromkeys(("low", "high", "p_speculation_pays"))
DECODED = validated([a_record(gamma=3)])
TWO = validated([a_record(gamma=3), a_record(gamma=3, context=256, speedup_measured=1.31)])
WIDE = validated([a_record(gamma=3, speedup_measured_low=1.004), a_record(gamma=3, context=256)])
ALONE = validated([a_record(gamma=1, speedup_measured_low=None, speedup_measured_high=None)])
SLOW = an_answer(1, 64, NOT, None, best_gamma=None, recommended_gamma=None)
GROUPS: dict[str, list[AnswerGroup]] = {
    "one": groups(an_answer(1, 64)),
    "one token": groups(an_answer(1, 1)),
    "points with one answer": groups(
        *(an_answer(b, c, value=1 + b / 10, low=1.0 + b / 20) for b in (1, 4) for c in (64, 256, 1024))
    ),
    "a smaller gamma within 1 %": groups(an_answer(1, 64, gamma=2, best_gamma=3)),
    "another best gamma in one of two": groups(an_answer(1, 64, gamma=2, best_gamma=3), an_answer(1, 256, gamma=2)),
    "another best gamma in two of three": groups(
        *(an_answer(1, context, gamma=2, best_gamma=3) for context in (64, 256)),
        an_answer(1, 1024, gamma=2, best_gamma=4),
    ),
    # γ = 1: drafts 0.4, verification 1.06, catch-up 0.4 · 0.04 = 0.016 of T_decode; Ω = 1.4; S = 1.4 / 1.476
    "slower": shape_groups(0.4, gamma=2, draft_share=0.4),
    # a round costs 1.2 + 1.06 + 0.9 · 0.12 = 2.37 plain steps and commits 2 tokens at most
    "can never pay": shape_groups(0.9, draft_share=1.2),
    # the fixture's Ω is known half as widely as S: a quarter of the variance is acceptance's
    "undecided, by the timings": shape_groups(0.55, batch_size=4, uncertainty=0.15),
    "undecided, by the acceptance": shape_groups(
        0.55, batch_size=4, uncertainty=0.15, changes={"tokens_per_round_low": 1.2, "tokens_per_round_high": 1.9}
    ),
    "without a number": groups(
        an_answer(1, 64), *(an_answer(b, 64, OPEN, None, reason=f"oom: {b} GiB", **NOTHING) for b in (4, 16))
    ),
    "without an interval": groups(an_answer(1, 64, OPEN, None, reason="one block only", **NO_ENDS)),
    "plain decoding is best": groups(SLOW, curves=curves(predicted(Shape(alphas={"greedy": 0.3})))),
    "measured": groups(an_answer(1, 64), measured=DECODED),
    "measured at another gamma": groups(an_answer(1, 64, gamma=2), measured=DECODED),
    "two points at another gamma": groups(*(an_answer(1, c, gamma=2) for c in (64, 256)), measured=DECODED),
    "measured in two of three": groups(*(an_answer(1, c) for c in (64, 256, 1024)), measured=TWO),
    "measured in both": groups(*(an_answer(1, c) for c in (64, 256)), measured=TWO),
    "measured, and open by that alone": groups(an_answer(1, 64), measured=WIDE),
    "measured, and open by that alone in one": groups(*(an_answer(1, c) for c in (64, 256)), measured=WIDE),
    "measured without an interval": groups(an_answer(1, 64, NOT, None), measured=ALONE),
}


def test_the_words_of_every_kind_of_answer(snapshot: Callable[[str, str], None]) -> None:
    told = [f"{name}\n" + "".join(map(text_of, found)) for name, found in GROUPS.items()]
    snapshot("answers", "\n".join(told))


def text_of(group: AnswerGroup) -> str:
    return "".join(f"    {name}: {words}\n" for name, words in vars(group).items() if words)


def test_merged_groups_are_rectangles_and_lose_nothing() -> None:
    rows = [
        *(an_answer(1, 64), an_answer(1, 256), an_answer(4, 64), an_answer(4, 256, OPEN, None)),
        *(an_answer(8, 64, gamma=2), an_answer(8, 256, gamma=2)),
    ]
    assert [[(one.point.batch_size, one.point.context) for one in group] for group in merged(rows)] == [
        [(1, 64), (1, 256)],
        [(4, 64)],
        [(4, 256)],
        [(8, 64), (8, 256)],
    ]


@pytest.mark.parametrize(
    ("answers", "tone", "start", "end"),
    [
        ([], "none", "No answer yet:", "."),
        ([(PAYS, 3, 1.42)], PAYS, "Speculate with γ = 3: 1.42\u202f× ", "in the one cell."),
        ([(PAYS, 3, 1.42), (OPEN, None, None)], PAYS, "Speculate with γ = 3: 1.42\u202f× ", "in the one cell."),
        ([(PAYS, 3, 1.42), (PAYS, 2, 1.1)], PAYS, "Speculate with γ = 2 or 3: 1.10 to 1.42\u202f×", "all 2 cells."),
        ([(PAYS, gamma, 1.42) for gamma in (1, 2, 4)], PAYS, "Speculate with γ from 1 to 4: 1.42", "all 3 cells."),
        ([(PAYS, 3, 1.42), (NOT, None, 0.9)], PAYS, "Speculative decoding pays in 1 of 2 cells: 1.42", "there."),
        ([(NOT, None, 0.9)], NOT, "Do not speculate: ", "in the one cell."),
        ([(NOT, None, 0.9), (OPEN, None, 1.0)], NOT, "Do not speculate in 1 of 2 cells;", "undecided."),
        ([(OPEN, None, 1.0)], OPEN, "Undecided: ", "in the one cell."),
    ],
)
def test_the_headline_is_the_run_in_one_sentence(
    answers: list[tuple[str, int | None, float | None]], tone: str, start: str, end: str
) -> None:
    rows = [an_answer(2**at, 64, *one[:2], value=one[2]) for at, one in enumerate(answers)]
    found = answers_of(rows).headline(0)
    assert found.tone == tone
    assert found.sentence.startswith(start)
    assert found.sentence.endswith(end)
    assert sum(found.counts.values()) == sum(one[2] is not None for one in answers)


def test_the_headline_tells_the_best_and_what_is_left_out() -> None:
    where = "with sampling greedy, γ = 3, batch 1, 64 tokens of context: 71 tokens/s instead of 50, 35.0 ms a round"
    best = f"Best: 1.42\u202f× (90\u202f% interval 1.38–1.46) {where}"
    found = answers_of([an_answer(1, 64), an_answer(4, 64, OPEN, None, value=1.01)]).headline(2)
    assert found.detail == f"{best}. 1 is undecided. 2 cells of the grid have no answer."
    measured = answers_of([an_answer(1, 64)], {}, DECODED).headline(0).detail
    assert measured == f"{best}; measured end to end: 1.50\u202f× (90\u202f% interval 1.40–1.60)."


@pytest.mark.parametrize(
    ("answers", "start"),
    [
        ([(NOT, None, 0.9), (NOT, None, 0.94)], "Nearest to paying: 0.94"),
        ([(OPEN, None, 1.02), (NOT, None, 0.94)], "Largest, undecided: 1.02"),
        ([(OPEN, None, 1.3), (PAYS, 3, 1.2)], "Best: 1.20"),
    ],
)
def test_what_loses_is_never_called_the_best(answers: list[tuple[str, int | None, float]], start: str) -> None:
    rows = [an_answer(2**at, 64, *one[:2], value=one[2]) for at, one in enumerate(answers)]
    assert answers_of(rows).headline(0).detail.startswith(start)


def test_a_label_of_every_speedup_is_said_once() -> None:
    shape = replace(ONE, contexts=(64, 256))
    alike = shape_answers(shape)
    label = "optimistic: overhead not measured"
    assert label in alike.headline(0).detail
    assert all(label not in group.uncertainty for own in alike.groups([1], [64, 256]).values() for group in own)
    rows = [replace(row, label="") if row.context == 64 else row for row in predicted(shape)]
    mixed = replace(alike, curves=curves(rows))
    assert label not in mixed.headline(0).detail
    ((group,),) = mixed.groups([1], [64, 256]).values()
    assert group.uncertainty.endswith(f"; {label} in 1 of these 2 points")


def test_what_leaves_points_undecided_is_said_of_those_it_is_true_of() -> None:
    """Acceptance makes most of the variance in one of two points, the timings in the other."""
    shape = Shape(alphas={"t1": 0.55}, batch_sizes=(4,), contexts=(64, 256), gammas=(1,), uncertainty=0.15)
    rows = [
        replace(row, tokens_per_round_low=1.2, tokens_per_round_high=1.9) if row.context == 64 else row
        for row in predicted(shape)
    ]
    ((group,),) = answers_of(recommended(shape), curves(rows)).groups([4], [64, 256]).values()
    assert "in 1 of these 2 points most of the variance comes from acceptance" in group.following
    ((alike,),) = shape_answers(shape).groups([4], [64, 256]).values()
    assert alike.following.endswith("since 75\u202f% of the variance comes from the timings.")


def test_an_interval_that_is_not_known_is_no_dash_in_the_headline() -> None:
    found = answers_of([an_answer(1, 64, OPEN, None, **NO_ENDS), an_answer(4, 64, OPEN, None, **NO_ENDS)]).headline(0)
    assert found.sentence == "Undecided: the data do not say whether speculation pays in any of the 2 cells."
    assert "1.42\u202f× (its interval is not known) with" in found.detail


def test_a_setting_is_named_by_what_tells_it_apart() -> None:
    match = replace(GREEDY, acceptance_rule="match")
    assert setting_words(GREEDY, [GREEDY]) == "sampling greedy"
    assert setting_words(GREEDY, [GREEDY, match]) == "sampling greedy, ratio rule"
    assert setting_words(match, [match]) == "sampling greedy, match rule"
    other = replace(GREEDY, pair="b", draft_sampling="greedy", mode="compile")
    assert setting_words(other, [GREEDY, other]) == "pair b, sampling greedy, draft takes its argmax, mode compile"


GRID = [1, 4, 16, 64, 256]


@pytest.mark.parametrize(
    ("write", "values", "text"),
    [
        (formatting.duration, (None,), "–"),
        (formatting.duration, (0.01234,), "12.3 ms"),
        (formatting.duration, (0.0009996,), "1000 µs"),
        (formatting.duration, (0.00000321,), "3.21 µs"),
        (formatting.duration, (59.94,), "59.9 s"),
        (formatting.duration, (190.0,), "3 min 10 s"),
        (formatting.duration, (3660.0,), "1 h 1 min"),
        (formatting.duration, (0.0,), "0.00 ms"),
        (formatting.percent, (0.123,), "12\u202f%"),
        (formatting.percent, (0.0,), "0\u202f%"),
        (formatting.percent, (1.0,), "100\u202f%"),
        (formatting.percent, (0.004,), "<1\u202f%"),
        (formatting.percent, (0.9991,), ">99\u202f%"),
        (formatting.percent, (0.0004, 1), "<0.1\u202f%"),
        (formatting.percent, (0.99996, 1), ">99.9\u202f%"),
        (formatting.percent, (None,), "–"),
        (formatting.probability, (1.0,), ">99\u202f%"),
        (formatting.probability, (0.0,), "<1\u202f%"),
        (formatting.probability, (0.8,), "80\u202f%"),
        (formatting.probability, (None,), "–"),
        (formatting.change, (0.034,), "+3.4\u202f%"),
        (formatting.change, (-0.0346,), "−3.5\u202f%"),
        (formatting.change, (None,), "–"),
        (formatting.change, (0.5, 0), "+50\u202f%"),
        (formatting.change_interval, (-0.072, 0.1336), "−7.2 to +13.4\u202f%"),
        (formatting.change_interval, (None, 0.1), "–"),
        (formatting.speedup, (1.4249,), "1.42\u202f×"),
        (formatting.speedup, (12.34,), "12.3\u202f×"),
        (formatting.speedup, (None,), "–"),
        (formatting.number, (2.345, 1), "2.3"),
        (formatting.interval, (1.376, 1.464), "1.38–1.46"),
        (formatting.interval, (None, 1.0), "–"),
        (formatting.with_interval, (1.424, 1.376, 1.464), "1.42 (1.38–1.46)"),
        (formatting.with_interval, (1.424, None, 1.464), "1.42"),
        (formatting.with_interval, (None, None, None), "–"),
        (formatting.count, (1, "token"), "1 token"),
        (formatting.count, (2, "token"), "2 tokens"),
        (formatting.listed, (["a"],), "a"),
        (formatting.listed, (["a", "b"],), "a and b"),
        (formatting.listed, (["a", "b", "c"], "or"), "a, b or c"),
        (formatting.sentence, ("a b",), "A b."),
        (formatting.sentence, ("A!",), "A!"),
        (formatting.sentence, ("",), ""),
        (formatting.printable, ("a\x00b\n\ud800é",), "a\ufffdb\n\ufffdé"),
        (formatting.point_words, (Point(batch_size=4, context=256),), "batch 4, 256 tokens of context"),
        (formatting.ranges, ([4], GRID), "4"),
        (formatting.ranges, ([1, 4, 16], GRID), "1 to 16"),
        (formatting.ranges, ([1, 16], GRID), "1 or 16"),
        (formatting.ranges, ([1, 4, 16, 256], GRID), "1 to 16 or 256"),
        (formatting.ranges, ([64, 16, 4, 1, 256], GRID), "1 to 256"),
    ],
)
def test_what_is_printed(write: Callable[..., str], values: tuple[Any, ...], text: str) -> None:
    assert write(*values) == text


def test_a_column_of_times_shares_the_unit_of_its_median() -> None:
    unit = formatting.time_unit([0.0101, 0.0007, None, 0.25])
    assert (unit.name, unit.decimals) == ("ms", 1)
    assert [unit.text(value) for value in (0.0101, 0.0007, None, 0.25)] == ["10.1", "0.7", "–", "250.0"]
    assert unit.fitted([0.00015, 0.0002]).text(0.00015) == "0.150"
    assert unit.fitted([None]).text(0.0101) == "10.1"
    assert formatting.time_unit([None, None]).text(None) == "–"
    assert unit.text(-0.00086) == "−0.9", "a minus, as long as a plus"


@given(st.lists(st.one_of(st.none(), st.floats(1e-9, 1e5)), min_size=1))
def test_every_known_time_prints_as_a_number(values_s: list[float | None]) -> None:
    unit = formatting.time_unit(values_s)
    for value_s in values_s:
        text = unit.text(value_s)
        if value_s is None:
            assert text == "–"
        else:
            assert abs(float(text) * unit.seconds - value_s) <= 0.51 * unit.seconds * 10**-unit.decimals


@pytest.mark.parametrize(
    ("batch_size", "lookups", "speedups", "advice"),
    [
        (1, (), {}, "A faster draft or one closer to the target would"),
        (4, (), {}, "A faster draft, one closer to the target or a smaller batch would"),
        (4, (), {1: 0.9}, "A faster draft, one closer to the target or a smaller batch would"),
        (4, (), {1: 0.7}, "A faster draft or one closer to the target would"),  # this run found it worse there
        (4, ("p",), {}, "A draft model in place of lookups or a smaller batch would"),
        (1, ("p",), {}, "A draft model in place of lookups would"),
    ],
)
def test_advice_fits_the_batch_and_the_draft(
    batch_size: int, lookups: tuple[str, ...], speedups: dict[int, float], advice: str
) -> None:
    found = {
        Point(batch_size=size, context=64): curve(context=64, batch_size=size, speedup=value)
        for size, value in {**speedups, batch_size: 0.8}.items()
    }
    row = an_answer(batch_size, 64, NOT, None, value=0.8, low=0.7, high=0.9)
    (group,) = replace(answers_of([row], {GREEDY: found}), lookups=frozenset(lookups)).groups([], [])[GREEDY]
    assert advice in group.following
