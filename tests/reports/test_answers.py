from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specgauge.model.settings import Setting
from specgauge.reports.answers import AnswerGroup, Answers, merged, setting_words
from specgauge.reports.records import Curves, Validated, curves, validated
from specgauge.sweeps.store.schema import Interval, RecommendationRow
from tests.reports.synthetic import Shape, predicted, recommended
from tests.reports.validation_rows import a_record

GREEDY = Setting(pair="embedded", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")
NO_CURVES: Curves = {}
ENDS = ("value", "low", "high")


def an_answer(
    batch_size: int, context: int, decision: str = "speculate", gamma: int | None = 3, **more: Any
) -> RecommendationRow:
    values: dict[str, Any] = {
        "best_gamma": gamma,
        "recommended_gamma": gamma or 1,
        "p_gamma_best": 0.8,
        "expected_loss": 0.004,
        "p_speculation_pays": 1.0,
        "reason": "",
    }
    found = {"value": 1.42, "low": 1.38, "high": 1.46} | {end: more.pop(end) for end in ENDS if end in more}
    where = vars(GREEDY) | {"batch_size": batch_size, "context": context, "decision": decision, "gamma": gamma}
    return RecommendationRow(**where, speedup=Interval(**found), **(values | more))


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


def shape_groups(shape: Shape, **changes: Any) -> list[AnswerGroup]:
    found = shape_answers(shape, **changes).groups(shape.batch_sizes, shape.contexts)
    return [group for own in found.values() for group in own]


def test_a_single_answer_is_one_sentence() -> None:
    (group,) = groups(an_answer(1, 64))
    assert (group.where, group.what) == ("At batch 1 and 64 tokens of context", "speculate with γ = 3")
    assert group.gain == "1.42\u202f× (90\u202f% interval 1.38–1.46)"
    assert group.following.endswith(" tokens to 3.")
    assert [words.rpartition(" ")[2] for words in group.uncertainty.split("; ")] == [
        "100\u202f%", "80\u202f%", "0.4\u202f%",
    ]  # fmt: skip


def test_points_with_one_answer_are_told_once() -> None:
    rows = [an_answer(b, c, value=1 + b / 10, low=1.0 + b / 20) for b in (1, 4) for c in (64, 256, 1024)]
    (group,) = groups(*rows)
    assert group.where == "At batch 1 or 4, with 64 to 1024 tokens of context"
    assert group.gain == "1.10 to 1.40\u202f× (90\u202f% intervals within 1.05–1.46)"
    assert groups(an_answer(1, 1))[0].where == "At batch 1 and 1 token of context"


def test_merged_groups_are_rectangles_and_lose_nothing() -> None:
    rows = [
        an_answer(1, 64),
        an_answer(1, 256),
        an_answer(4, 64),
        an_answer(4, 256, "undecided", None),
        an_answer(8, 64, gamma=2),
        an_answer(8, 256, gamma=2),
    ]
    assert [[(one.point.batch_size, one.point.context) for one in group] for group in merged(rows)] == [
        [(1, 64), (1, 256)],
        [(4, 64)],
        [(4, 256)],
        [(8, 64), (8, 256)],
    ]


def test_a_smaller_gamma_within_one_per_cent_says_so() -> None:
    (group,) = groups(an_answer(1, 64, gamma=2, best_gamma=3))
    assert "γ = 3 has the largest S; γ = 2 is within 1\u202f% of it" in group.following


def test_do_not_speculate_says_what_is_missing() -> None:
    shape = Shape(alphas={"t1": 0.4}, draft_share=0.4, batch_sizes=(1,), contexts=(64,), gammas=(1, 2))
    (group,) = shape_groups(shape)
    # γ = 1: drafts 0.4, verification 1.06, catch-up 0.4 · 0.04 = 0.016 of T_decode; Ω = 1.4; S = 1.4 / 1.476
    assert group.what == "do not speculate"
    assert group.gain == "γ = 1 would give 0.95\u202f× (90\u202f% interval 0.92–0.98)"
    assert "(batch 1, context 64, γ = 1): a round costs 1.48 plain steps and commits 1.40 tokens." in group.following
    assert group.uncertainty.endswith(" 0\u202f%")


def test_a_round_that_can_never_pay_says_so() -> None:
    # a round costs 1.2 + 1.06 + 0.9 · 0.12 = 2.37 plain steps and commits 2 tokens at most
    shape = Shape(alphas={"t1": 0.9}, draft_share=1.2, batch_sizes=(1,), contexts=(64,), gammas=(1,))
    assert "Even perfect acceptance" in shape_groups(shape)[0].following


@pytest.mark.parametrize(
    ("changes", "remedy", "share"),
    [
        # the fixture's Ω is known half as widely as S: a quarter of the variance is acceptance's
        ({}, "precision.max_blocks", "75\u202f% of the variance comes from the timings."),
        (
            {"tokens_per_round_low": 1.2, "tokens_per_round_high": 1.9},
            "workload.prompts",
            "100\u202f% of the variance comes from acceptance.",
        ),
    ],
)
def test_undecided_says_where_the_uncertainty_comes_from(changes: Mapping[str, Any], remedy: str, share: str) -> None:
    shape = Shape(alphas={"t1": 0.55}, uncertainty=0.15, batch_sizes=(4,), contexts=(64,), gammas=(1,))
    (group,) = shape_groups(shape, **changes)
    assert group.what == "undecided"
    assert remedy in group.following
    assert group.following.endswith(share)


NOTHING = dict.fromkeys((*ENDS, "p_speculation_pays", "best_gamma"))


def test_a_point_without_a_number_says_why() -> None:
    rows = [an_answer(b, 64, "undecided", None, reason=f"oom: {b} GiB", **NOTHING) for b in (4, 16)]
    first, second = groups(an_answer(1, 64), *rows)[1:]
    assert (first.what, first.gain, first.uncertainty, first.following) == ("no answer", "oom: 4 GiB", "", "")
    assert second.where == "At batch 16 and 64 tokens of context"


def test_an_answer_without_an_interval_says_so() -> None:
    nothing = dict.fromkeys(("low", "high", "p_speculation_pays"))
    (group,) = groups(an_answer(1, 64, "undecided", None, reason="one block only", **nothing))
    assert group.gain == "γ = 1 would give 1.42\u202f× (its interval is not known)"
    assert group.uncertainty == "one block only"
    assert "workload.prompts" in group.following
    assert "precision.max_blocks" in group.following


def test_where_plain_decoding_is_best_the_largest_speedup_is_the_one_shown() -> None:
    shape = Shape(alphas={"greedy": 0.3}, batch_sizes=(1,), contexts=(64,))
    one = an_answer(1, 64, "do not speculate", None, best_gamma=None, recommended_gamma=None)
    (group,) = groups(one, curves=curves(predicted(shape)))
    assert group.gain.startswith("γ = 1 would give 1.42")


PAYS, NOT, OPEN = "speculate", "do not speculate", "undecided"


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
    found = answers_of([an_answer(1, 64), an_answer(4, 64, "undecided", None, value=1.01)]).headline(2)
    assert found.detail == (
        "Best: 1.42\u202f× (90\u202f% interval 1.38–1.46) with sampling greedy, γ = 3, batch 1, 64 tokens of context. "
        "1 is undecided. 2 cells of the grid have no answer."
    )


def test_a_label_of_every_speedup_is_said_once() -> None:
    shape = Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(64, 256))
    alike = shape_answers(shape)
    label = "optimistic: overhead not measured"
    assert label in alike.headline(0).detail
    assert all(label not in group.uncertainty for group in shape_groups(shape))
    rows = [replace(row, label="") if row.context == 64 else row for row in predicted(shape)]
    mixed = replace(alike, curves=curves(rows))
    assert label not in mixed.headline(0).detail
    ((group,),) = mixed.groups([1], [64, 256]).values()
    assert group.uncertainty.endswith(f"; {label}")


def test_a_setting_is_named_by_what_tells_it_apart() -> None:
    match = replace(GREEDY, acceptance_rule="match")
    assert setting_words(GREEDY, [GREEDY]) == "sampling greedy"
    assert setting_words(GREEDY, [GREEDY, match]) == "sampling greedy, ratio rule"
    assert setting_words(match, [match]) == "sampling greedy, match rule"
    other = replace(GREEDY, pair="b", draft_sampling="greedy", mode="compile")
    assert setting_words(other, [GREEDY, other]) == "pair b, sampling greedy, draft takes its argmax, mode compile"


def test_what_was_measured_stands_beside_what_was_predicted() -> None:
    found = validated([a_record(gamma=3)])
    (group,) = groups(an_answer(1, 64), measured=found)
    words = "measured end to end: 1.50\u202f× (90\u202f% interval 1.40–1.60)"
    assert group.measured == words
    assert answers_of([an_answer(1, 64)], {}, found).headline(0).detail.endswith(f"; {words}.")
    (other,) = groups(an_answer(1, 64, gamma=2), measured=found)
    assert other.measured == "γ = 3 measured end to end: 1.50\u202f×", "another γ was decoded"
    (both,) = groups(*(an_answer(1, context, gamma=2) for context in (64, 256)), measured=found)
    assert both.measured == ""


def test_measured_points_of_a_group_are_told_together() -> None:
    rows = [an_answer(1, context) for context in (64, 256, 1024)]
    two = validated([a_record(gamma=3), a_record(gamma=3, context=256, speedup_measured=1.31)])
    (group,) = groups(*rows, measured=two)
    assert group.measured == "measured end to end: 1.31 to 1.50\u202f× in 2 of these 3 points"
    (both,) = groups(*rows[:2], measured=two)
    assert both.measured == "measured end to end: 1.31 to 1.50\u202f×"


def test_a_measured_speedup_without_an_interval_stands_alone() -> None:
    found = validated([a_record(gamma=1, speedup_measured_low=None, speedup_measured_high=None)])
    (group,) = groups(an_answer(1, 64, "do not speculate", None), measured=found)
    assert group.measured == "measured end to end: 1.50\u202f×"
