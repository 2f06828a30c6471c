from typing import Any

import pytest

from specgauge.reports.answers import AnswerGroup, answer_groups, headline, merged, strategy_words
from specgauge.reports.records import Answer, Place, Strategy, answer, curves, measured, prediction
from tests.reports.synthetic import Shape, prediction_rows, recommendation_rows
from tests.reports.verified_rows import a_record

GREEDY = Strategy("embedded", "eager", "greedy", "same", "ratio")


def an_answer(batch_size: int, context: int, decision: str = "speculate", gamma: int | None = 3, **more: Any) -> Answer:
    values: dict[str, Any] = {
        "strategy": GREEDY,
        "best_gamma": gamma,
        "recommended_gamma": gamma or 1,
        "speedup": 1.42,
        "speedup_low": 1.38,
        "speedup_high": 1.46,
        "p_gamma_best": 0.8,
        "expected_loss": 0.004,
        "p_speculation_pays": 1.0,
        "reason": "",
    }
    return Answer(place=Place(batch_size, context), decision=decision, gamma=gamma, **(values | more))


def groups_of(shape: Shape) -> list[AnswerGroup]:
    rows = prediction_rows(shape)
    answers = [answer(entry) for entry in recommendation_rows(shape, rows)]
    found = answer_groups(
        answers, curves(prediction(row) for row in rows), shape.batch_sizes, shape.contexts, confidence=0.9
    )
    return [group for groups in found.values() for group in groups]


def test_a_single_answer_is_one_sentence() -> None:
    (group,) = answer_groups([an_answer(1, 64)], {}, [1], [64], 0.9)[GREEDY]
    assert f"{group.where}: {group.what}: {group.gain}." == (
        "At batch 1 and 64 tokens of context: speculate with γ = 3: 1.42\u202f× (90\u202f% interval 1.38–1.46)."
    )
    assert group.following == "Set the engine's number of speculative tokens to 3."
    assert group.doubt == (
        "P(speculation pays) 100\u202f%; P(this γ is the best) 80\u202f%; expected loss against the best 0.4\u202f%"
    )


def test_places_with_one_answer_are_told_once() -> None:
    answers = [an_answer(b, c, speedup=1 + b / 10, speedup_low=1.0 + b / 20) for b in (1, 4) for c in (64, 256, 1024)]
    (group,) = answer_groups(answers, {}, [1, 4], [64, 256, 1024], 0.9)[GREEDY]
    assert group.where == "At batch 1 or 4, with 64 to 1024 tokens of context"
    assert group.gain == "1.10 to 1.40\u202f× (90\u202f% intervals within 1.05–1.46)"


def test_merged_groups_are_rectangles_and_lose_nothing() -> None:
    answers = [
        an_answer(1, 64),
        an_answer(1, 256),
        an_answer(4, 64),
        an_answer(4, 256, "undecided", None),
        an_answer(8, 64, gamma=2),
        an_answer(8, 256, gamma=2),
    ]
    groups = merged(answers)
    assert [[tuple(one.place) for one in group] for group in groups] == [
        [(1, 64), (1, 256)],
        [(4, 64)],
        [(4, 256)],
        [(8, 64), (8, 256)],
    ]


def test_one_token_of_context_is_singular() -> None:
    (group,) = answer_groups([an_answer(1, 1)], {}, [1], [1], 0.9)[GREEDY]
    assert group.where == "At batch 1 and 1 token of context"


def test_a_smaller_gamma_within_one_per_cent_says_so() -> None:
    (group,) = answer_groups([an_answer(1, 64, gamma=2, best_gamma=3)], {}, [1], [64], 0.9)[GREEDY]
    assert group.following.endswith("γ = 3 has the largest S; γ = 2 is within 1\u202f% of it and drafts less.")


def test_do_not_speculate_says_what_is_missing() -> None:
    shape = Shape(alphas={"t1": 0.4}, draft_share=0.4, batch_sizes=(1,), contexts=(64,), gammas=(1, 2))
    (group,) = groups_of(shape)
    # γ = 1: drafts 0.4, verification 1.06, catch-up 0.4 · 0.04 = 0.016 of T_decode; Ω = 1.4; S = 1.4 / 1.476
    assert group.what == "do not speculate"
    assert group.gain == "γ = 1 would give 0.95\u202f× (90\u202f% interval 0.92–0.98)"
    assert "(batch 1, context 64, γ = 1): a round costs 1.48 plain steps and commits 1.40 tokens." in group.following
    assert group.following.startswith("Decode plainly here.")
    assert group.doubt == "P(speculation pays) 0\u202f%"


def test_a_round_that_can_never_pay_says_so() -> None:
    shape = Shape(alphas={"t1": 0.9}, draft_share=1.2, batch_sizes=(1,), contexts=(64,), gammas=(1,))
    (group,) = groups_of(shape)
    # a round costs 1.2 + 1.06 + 0.9 · 0.12 = 2.37 plain steps and commits 2 tokens at most
    assert group.following.endswith(
        "Even perfect acceptance would not pay for that: only a cheaper draft or a smaller batch can."
    )


def test_undecided_says_where_the_doubt_comes_from() -> None:
    shape = Shape(alphas={"t1": 0.55}, doubt=0.15, batch_sizes=(4,), contexts=(64,), gammas=(1,))
    (group,) = groups_of(shape)
    # the fixture's Ω is known half as widely as S: a quarter of the variance is acceptance's
    assert group.what == "undecided"
    assert group.following == (
        "Decode plainly until more is measured: run the same command again with larger precision.max_blocks and "
        "precision.max_seconds, since 75\u202f% of the variance comes from the timings."
    )


def test_undecided_by_acceptance_asks_for_prompts() -> None:
    shape = Shape(alphas={"t1": 0.55}, doubt=0.15, batch_sizes=(4,), contexts=(64,), gammas=(1,))
    rows = prediction_rows(shape)
    for row in rows:
        row["tokens_per_round_low"], row["tokens_per_round_high"] = 1.2, 1.9
    answers = [answer(entry) for entry in recommendation_rows(shape, rows)]
    (group,) = next(iter(answer_groups(answers, curves(prediction(row) for row in rows), [4], [64], 0.9).values()))
    assert "start a new run with more prompts (workload.prompts" in group.following
    assert group.following.endswith("since 100\u202f% of the variance comes from acceptance.")


def test_undecided_without_intervals_names_both_remedies() -> None:
    (group,) = answer_groups([an_answer(1, 64, "undecided", None)], {}, [1], [64], 0.9)[GREEDY]
    assert "more prompts" in group.following
    assert "larger precision.max_blocks" in group.following


NOTHING = {"speedup": None, "speedup_low": None, "speedup_high": None, "p_speculation_pays": None, "best_gamma": None}


def test_a_place_without_a_number_says_why() -> None:
    answers = [an_answer(b, 64, "undecided", None, reason=f"oom: {b} GiB", **NOTHING) for b in (4, 16)]
    first, second = answer_groups([an_answer(1, 64), *answers], {}, [1, 4, 16], [64], 0.9)[GREEDY][1:]
    assert (first.what, first.gain, first.doubt, first.following) == ("no answer", "oom: 4 GiB", "", "")
    assert second.where == "At batch 16 and 64 tokens of context"


def test_an_answer_without_an_interval_says_so() -> None:
    one = an_answer(
        1, 64, "undecided", None, speedup_low=None, speedup_high=None, p_speculation_pays=None, reason="one block only"
    )
    (group,) = answer_groups([one], {}, [1], [64], 0.9)[GREEDY]
    assert group.gain == "γ = 1 would give 1.42\u202f× (its interval is not known)"
    assert group.doubt == "one block only"


def test_where_plain_decoding_is_best_the_largest_speedup_is_the_one_shown() -> None:
    rows = prediction_rows(Shape(alphas={"greedy": 0.3}, batch_sizes=(1,), contexts=(64,)))
    one = an_answer(1, 64, "do not speculate", None, best_gamma=None, recommended_gamma=None)
    (group,) = answer_groups([one], curves(prediction(row) for row in rows), [1], [64], 0.9)[GREEDY]
    assert group.gain.startswith("γ = 1 would give 1.42")


@pytest.mark.parametrize(
    ("answers", "tone", "sentence"),
    [
        (
            [an_answer(1, 64), an_answer(4, 64, "undecided", None, **NOTHING)],
            "speculate",
            "Speculate with γ = 3: 1.42\u202f× plain decoding is predicted in the one setting.",
        ),
        ([], "none", "No answer yet: no setting of this run has both timings and acceptance."),
        (
            [an_answer(1, 64)],
            "speculate",
            "Speculate with γ = 3: 1.42\u202f× plain decoding is predicted in the one setting.",
        ),
        (
            [an_answer(1, 64), an_answer(4, 64, gamma=2, speedup=1.1)],
            "speculate",
            "Speculate with γ = 2 or 3: 1.10 to 1.42\u202f× plain decoding is predicted in all 2 settings.",
        ),
        (
            [an_answer(b, 64, gamma=b) for b in (1, 2, 4)],
            "speculate",
            "Speculate with γ from 1 to 4: 1.42\u202f× plain decoding is predicted in all 3 settings.",
        ),
        (
            [an_answer(1, 64), an_answer(4, 64, "do not speculate", None)],
            "speculate",
            "Speculative decoding pays in 1 of 2 settings: 1.42\u202f× plain decoding is predicted there.",
        ),
        (
            [an_answer(1, 64, "do not speculate", None)],
            "do not speculate",
            "Do not speculate: plain decoding is as fast or faster in the one setting.",
        ),
        (
            [an_answer(1, 64, "do not speculate", None), an_answer(4, 64, "undecided", None)],
            "do not speculate",
            "Do not speculate in 1 of 2 settings; the others are undecided.",
        ),
        (
            [an_answer(1, 64, "undecided", None)],
            "undecided",
            "Undecided: the data do not say whether speculation pays in the one setting.",
        ),
    ],
)
def test_the_headline_is_the_run_in_one_sentence(answers: list[Answer], tone: str, sentence: str) -> None:
    found = headline(answers, {}, 0, 0.9)
    assert (found.tone, found.sentence) == (tone, sentence)
    assert sum(found.counts.values()) == len([one for one in answers if one.is_known])


def test_the_headline_tells_the_best_and_what_is_left_out() -> None:
    found = headline([an_answer(1, 64), an_answer(4, 64, "undecided", None, speedup=1.01)], {}, 2, 0.9)
    assert found.detail == (
        "Best: 1.42\u202f× (90\u202f% interval 1.38–1.46) with sampling greedy, γ = 3, batch 1, 64 tokens of context. "
        "1 is undecided. 2 settings of the grid have no answer."
    )


def test_a_label_of_every_speedup_is_said_once() -> None:
    shape = Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(64, 256))
    rows = prediction_rows(shape)
    answers = [answer(entry) for entry in recommendation_rows(shape, rows)]
    alike = curves(prediction(row) for row in rows)
    assert headline(answers, alike, 0, 0.9).detail.endswith("Every speed-up is optimistic: overhead not measured.")
    assert all("optimistic" not in group.doubt for group in groups_of(shape))
    mixed = curves(prediction(row | ({"label": ""} if row["context"] == 64 else {})) for row in rows)
    assert "optimistic" not in headline(answers, mixed, 0, 0.9).detail
    (group,) = next(iter(answer_groups(answers, mixed, [1], [64, 256], 0.9).values()))
    assert group.doubt.endswith("; optimistic: overhead not measured")


def test_a_strategy_is_named_by_what_tells_it_apart() -> None:
    match = GREEDY._replace(acceptance_rule="match")
    assert strategy_words(GREEDY, [GREEDY]) == "sampling greedy"
    assert strategy_words(GREEDY, [GREEDY, match]) == "sampling greedy, ratio rule"
    assert strategy_words(match, [match]) == "sampling greedy, match rule"
    other = GREEDY._replace(pair="b", draft_sampling="greedy", mode="compile")
    assert strategy_words(other, [GREEDY, other]) == ("pair b, sampling greedy, draft takes its argmax, mode compile")


def test_what_was_measured_stands_beside_what_was_predicted() -> None:
    found = measured([a_record(gamma=3)])
    (group,) = answer_groups([an_answer(1, 64)], {}, [1], [64], 0.9, found)[GREEDY]
    words = "measured end to end: 1.50\u202f× (90\u202f% interval 1.40–1.60)"
    assert group.measured == words
    assert headline([an_answer(1, 64)], {}, 0, 0.9, found).detail == (
        "Best: 1.42\u202f× (90\u202f% interval 1.38–1.46) with sampling greedy, γ = 3, batch 1, 64 tokens of context; "
        f"{words}."
    )
    (other,) = answer_groups([an_answer(1, 64, gamma=2)], {}, [1], [64], 0.9, found)[GREEDY]
    assert other.measured == "γ = 3 measured end to end: 1.50\u202f×", "another γ was decoded"
    answers = [an_answer(1, context, gamma=2) for context in (64, 256)]
    (both,) = answer_groups(answers, {}, [1], [64, 256], 0.9, found)[GREEDY]
    assert both.measured == ""


def test_measured_places_of_a_group_are_told_together() -> None:
    answers = [an_answer(1, context) for context in (64, 256, 1024)]
    two = [a_record(gamma=3), a_record(gamma=3, context=256, speedup_measured=1.31)]
    (group,) = answer_groups(answers, {}, [1], [64, 256, 1024], 0.9, measured(two))[GREEDY]
    assert group.measured == "measured end to end: 1.31 to 1.50\u202f× in 2 of these 3 places"
    (both,) = answer_groups(answers[:2], {}, [1], [64, 256], 0.9, measured(two))[GREEDY]
    assert both.measured == "measured end to end: 1.31 to 1.50\u202f×"


def test_a_measured_speedup_without_an_interval_stands_alone() -> None:
    found = measured([a_record(gamma=1, speedup_measured_low=None, speedup_measured_high=None)])
    one = an_answer(1, 64, "do not speculate", None)
    (group,) = answer_groups([one], {}, [1], [64], 0.9, found)[GREEDY]
    assert group.measured == "measured end to end: 1.50\u202f×"
