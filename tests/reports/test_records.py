from typing import Any

import pytest

from specgauge.model.settings import Point, Setting
from specgauge.reports.records import (
    PredictionRow,
    RecommendationRow,
    ValidationRow,
    best_of,
    curves,
    flat_recommendation,
    record,
    validated,
)
from tests.reports.synthetic import Shape, prediction_rows, recommendation_rows
from tests.reports.validation_rows import a_forced_row, a_record, a_row


def row(**changes: Any) -> dict[str, Any]:
    return prediction_rows(Shape())[0] | changes


def entry(**changes: Any) -> dict[str, Any]:
    return flat_recommendation(recommendation_rows(Shape(), prediction_rows(Shape()))[0]) | changes


def as_text(row: dict[str, Any]) -> dict[str, str]:
    return {name: "" if value is None else str(value) for name, value in row.items()}


def test_text_and_values_are_read_alike() -> None:
    numbers = record(PredictionRow, row())
    assert record(PredictionRow, as_text(row())) == numbers
    assert numbers.setting == Setting(
        pair="embedded", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio"
    )
    assert (numbers.point, numbers.gamma, numbers.t_overhead_s) == (Point(batch_size=1, context=64), 1, None)
    assert record(ValidationRow, as_text(a_row())) == a_record()


@pytest.mark.parametrize("nothing", [None, "", float("nan")])
def test_what_is_missing_is_none(nothing: object) -> None:
    assert record(PredictionRow, row(speedup_low=nothing)).speedup_low is None
    assert a_record(rounds_agree=nothing).rounds_agree is None


@pytest.mark.parametrize(("flag", "expected"), [(True, True), ("True", True), ("false", False), (False, False)])
def test_flags_come_as_words_and_as_truth_values(flag: object, expected: bool) -> None:
    assert record(PredictionRow, row(is_best=flag)).is_best is expected


@pytest.mark.parametrize(
    ("change", "name", "expected", "got"),
    [
        ({"gamma": 1.5}, "gamma", "a whole number", "1.5"),
        ({"gamma": None}, "gamma", "a value", "nothing"),
        ({"speedup": "fast"}, "speedup", "a number", "'fast'"),
        ({"is_best": "maybe"}, "is_best", "true or false", "'maybe'"),
        ({"batch_size": "x"}, "batch_size", "a whole number", "'x'"),
    ],
)
def test_a_bad_value_is_named(change: dict[str, Any], name: str, expected: str, got: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected {expected}, got {got}$"):
        record(PredictionRow, row(**change))


def test_a_missing_column_and_a_decision_that_is_none_are_named() -> None:
    broken = row()
    del broken["p_best"]
    with pytest.raises(ValueError, match=r"^p_best: "):
        record(PredictionRow, broken)
    with pytest.raises(ValueError, match=r"^decision: expected one of speculate, .*, got 'maybe'$"):
        record(RecommendationRow, entry(decision="maybe"))


def test_a_recommendation_keeps_its_interval() -> None:
    rows = recommendation_rows(Shape(), prediction_rows(Shape()))
    made = record(RecommendationRow, flat_recommendation(rows[0]))
    assert (made.decision, made.gamma, made.expected_loss) == ("speculate", rows[0]["gamma"], 0.004)
    assert {"value": made.speedup, "low": made.speedup_low, "high": made.speedup_high} == rows[0]["speedup"]


def test_curves_are_sorted_and_the_best_is_the_smallest_gamma_among_equals() -> None:
    rows = [record(PredictionRow, one) for one in reversed(prediction_rows(Shape()))]
    grouped = curves(rows)
    assert [setting.sampling for setting in grouped] == ["t1", "greedy"]
    points = grouped[rows[0].setting]
    assert list(points) == [
        Point(batch_size=1, context=64),
        Point(batch_size=1, context=256),
        Point(batch_size=4, context=64),
        Point(batch_size=4, context=256),
    ]
    assert [one.gamma for one in points[Point(batch_size=1, context=64)]] == [1, 2, 3, 4, 5, 6]
    gains = ((1, 1.1), (2, 1.2), (3, 1.2), (4, ""))
    ties = [record(PredictionRow, row(gamma=gamma, speedup=speedup)) for gamma, speedup in gains]
    best = best_of(ties)
    assert best is not None
    assert best.gamma == 2
    assert best_of(ties[3:]) is None


def test_forced_or_unknown_is_no_measured_speedup() -> None:
    rows = [a_record(), record(ValidationRow, a_forced_row(gamma=3)), a_record(gamma=4, speedup_measured=None)]
    assert validated(rows) == {(rows[0].setting, Point(batch_size=1, context=64), 2): rows[0]}
