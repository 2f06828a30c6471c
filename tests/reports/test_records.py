from dataclasses import replace

from specgauge.model.settings import Point, Setting
from specgauge.reports.records import best_of, curves, validated
from tests.reports.synthetic import Shape, predicted
from tests.reports.validation_rows import a_forced_record, a_record


def test_curves_are_sorted_and_the_best_is_the_smallest_gamma_among_equals() -> None:
    rows = predicted(Shape())[::-1]
    grouped = curves(rows)
    assert list(grouped) == [
        Setting(pair="embedded", mode="eager", sampling=sampling, draft_sampling="same", acceptance_rule="ratio")
        for sampling in ("t1", "greedy")
    ]
    points = grouped[rows[0].setting]
    assert list(points) == [Point(batch_size=size, context=context) for size in (1, 4) for context in (64, 256)]
    assert [one.gamma for one in points[Point(batch_size=1, context=64)]] == [1, 2, 3, 4, 5, 6]
    gains = ((1, 1.1), (2, 1.2), (3, 1.2), (4, None))
    ties = [replace(rows[0], gamma=gamma, speedup=speedup) for gamma, speedup in gains]
    best = best_of(ties)
    assert best is not None
    assert best.gamma == 2
    assert best_of(ties[3:]) is None


def test_forced_or_unknown_is_no_measured_speedup() -> None:
    rows = [a_record(), a_forced_record(gamma=3), a_record(gamma=4, speedup_measured=None)]
    assert validated(rows) == {(rows[0].setting, Point(batch_size=1, context=64), 2): rows[0]}
