from typing import Any

import pytest

from specgauge.reports.records import Place, Strategy, answer, best_of, curves, measured, prediction, verified
from tests.reports.synthetic import Shape, prediction_rows, recommendation_rows
from tests.reports.verified_rows import a_forced_row, a_record, a_row


def row(**changes: Any) -> dict[str, Any]:
    return prediction_rows(Shape())[0] | changes


def test_a_prediction_reads_text_and_numbers_alike() -> None:
    numbers = prediction(row())
    written = {name: "" if value is None else str(value) for name, value in row().items()}
    assert prediction(written) == numbers
    assert numbers.strategy == Strategy("embedded", "eager", "greedy", "same", "ratio")
    assert numbers.place == Place(1, 64)
    assert numbers.gamma == 1
    assert numbers.t_overhead_s is None


@pytest.mark.parametrize("nothing", [None, "", float("nan")])
def test_what_is_missing_is_none(nothing: object) -> None:
    assert prediction(row(speedup_low=nothing)).speedup_low is None


def test_flags_come_as_words_and_as_truth_values() -> None:
    assert [prediction(row(is_best=flag)).is_best for flag in (True, "True", "true", False, "False", "")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gamma": 1.5}, "gamma: found 1.5, allowed: a whole number"),
        ({"gamma": None}, "gamma: found nothing, allowed: a whole number"),
        ({"speedup": "fast"}, "speedup: found 'fast', allowed: a number, or nothing when unknown"),
        ({"is_best": "maybe"}, "is_best: found 'maybe', allowed: true or false"),
    ],
)
def test_a_bad_value_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        prediction(row(**change))


def test_a_missing_column_is_named() -> None:
    broken = row()
    del broken["p_best"]
    with pytest.raises(ValueError, match=r"^p_best: not there"):
        prediction(broken)


def test_an_answer_keeps_its_doubt() -> None:
    entry = recommendation_rows(Shape(), prediction_rows(Shape()))[0]
    made = answer(entry)
    assert (made.decision, made.gamma, made.expected_loss) == ("speculate", entry["gamma"], 0.004)
    assert (made.speedup_low, made.speedup_high) == (entry["speedup"]["low"], entry["speedup"]["high"])
    assert answer(entry | {"speedup": None}).speedup is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decision": "maybe"}, "decision: found 'maybe', allowed: speculate, do not speculate, undecided"),
        ({"speedup": 3}, "speedup: found 3, allowed: a mapping of value, low and high"),
    ],
)
def test_a_bad_answer_is_named(change: dict[str, Any], message: str) -> None:
    entry = recommendation_rows(Shape(), prediction_rows(Shape()))[0]
    with pytest.raises(ValueError, match=f"^{message}$"):
        answer(entry | change)


def test_curves_are_sorted_and_the_best_is_the_smallest_gamma_among_equals() -> None:
    rows = [prediction(one) for one in reversed(prediction_rows(Shape()))]
    grouped = curves(rows)
    assert [strategy.sampling for strategy in grouped] == ["t1", "greedy"]
    places = grouped[rows[0].strategy]
    assert list(places) == [Place(1, 64), Place(1, 256), Place(4, 64), Place(4, 256)]
    assert [one.gamma for one in places[Place(1, 64)]] == [1, 2, 3, 4, 5, 6]
    ties = [prediction(row(gamma=gamma, speedup=speedup)) for gamma, speedup in ((1, 1.1), (2, 1.2), (3, 1.2), (4, ""))]
    best = best_of(ties)
    assert best is not None
    assert best.gamma == 2
    assert best_of(ties[3:]) is None


def test_a_verified_row_reads_text_and_values_alike() -> None:
    made = a_record()
    written = {name: "" if value is None else str(value) for name, value in a_row().items()}
    assert verified(written) == made
    assert made.key == (Strategy("embedded", "eager", "greedy", "same", "ratio"), Place(1, 64), 2)
    assert (made.lossless, made.why_not_lossless, made.rounds_agree, made.overhead_from) == (
        True,
        "",
        True,
        "other contexts",
    )
    assert a_record(rounds_agree=None, error=None).rounds_agree is None
    with pytest.raises(ValueError, match=r"^cost_error: found 'x', allowed: a number"):
        a_record(cost_error="x")


def test_what_forced_or_unknown_is_no_measured_speedup() -> None:
    rows = [a_record(), verified(a_forced_row(gamma=3)), a_record(gamma=4, speedup_measured=None)]
    assert measured(rows) == {rows[0].key: rows[0]}
