from dataclasses import replace
from pathlib import Path

import pytest

from specgauge.model.decision import OPTIMISTIC
from specgauge.model.settings import Point
from specgauge.reports.records import ReportData, best_of, curves, findings, read_report_data, validated
from specgauge.sweeps.store.schema import WarningRow
from tests.reports.synthetic import Shape, a_record, build_run, predicted
from tests.sweeps.made import known
from tests.sweeps.validation_rows import forced_row

STOPPED = Shape(with_predictions=False)


def found_in(data: ReportData) -> dict[str, WarningRow]:
    return {one.code: one for one in findings(data, curves(data.predictions))}


def test_a_measured_overhead_leaves_the_edge_of_the_grid_to_be_told(tmp_path: Path) -> None:
    data = read_report_data(build_run(tmp_path / "run", Shape(overhead_s=0.0005, gammas=(1, 2))))
    assert set(found_in(data)) == {"gamma_edge"}
    mixed = replace(data, predictions=[replace(data.predictions[0], label=OPTIMISTIC), *data.predictions[1:]])
    assert found_in(mixed)["optimistic"].message.startswith("1 of 16 ")


def test_what_the_run_warned_of_is_said_once_as_a_sentence(tmp_path: Path) -> None:
    told = {"code": "optimistic", "message": "too good", "remedy": "wait!"}
    run = build_run(tmp_path / "run", None, told, dict(told), {"code": "x", "message": "y", "remedy": ""})
    assert list(found_in(read_report_data(run)).values()) == [
        WarningRow(code="optimistic", message="Too good.", remedy="Wait!"),
        WarningRow(code="x", message="Y.", remedy=""),
    ]


def test_a_run_that_stopped_before_predicting_warns_of_what_it_has(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(STOPPED, verify_slope={1: 0.01, 4: 0.2}, prompts=3))
    found = found_in(read_report_data(run))
    # T_verify(4) is 1.04 T_decode at batch 1; the recorded contexts are 32 to 71, 256 is not among them
    assert {"stopped", "light_machine", "few_prompts", "acceptance_extrapolated"} <= set(found)
    assert "1.04 ×" in found["light_machine"].message
    assert "specgauge run" in found["stopped"].remedy
    assert not (run / "predictions.csv").exists(), "a report writes nothing but itself"


def test_a_missing_acceptance_is_named_once(tmp_path: Path) -> None:
    told = {"code": "acceptance_missing", "message": "no acceptance: no room", "remedy": "make room"}
    expected = (["p and sampling greedy.", "p and sampling t1."], ["No acceptance: no room."])
    for warnings, messages in zip(([], [told]), expected, strict=True):
        run = build_run(tmp_path / str(len(warnings)), Shape(with_acceptance=False), *warnings)
        missing = [one.message for one in findings(read_report_data(run), {}) if one.code == "acceptance_missing"]
        assert [message.rpartition("pair ")[2] for message in missing] == messages


@pytest.mark.parametrize("left", ["", None])
def test_a_journal_without_a_block_gives_no_warning_but_that(left: str | None, tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", replace(STOPPED, with_acceptance=False))
    (run / "cells.jsonl").unlink()
    if left is not None:
        (run / "cells.jsonl").write_text(left, encoding="utf-8")
    assert {one.code for one in findings(read_report_data(run), {})} == {"unmeasured", "acceptance_missing"}


def test_curves_are_sorted_and_the_best_is_the_smallest_gamma_among_equals() -> None:
    rows = predicted(Shape())[::-1]
    grouped = curves(rows)
    assert [setting.sampling for setting in grouped] == ["t1", "greedy"]
    points = grouped[rows[0].setting]
    assert list(points) == [Point(batch_size=size, context=context) for size in (1, 4) for context in (64, 256)]
    assert [one.gamma for one in points[Point(batch_size=1, context=64)]] == [1, 2, 3, 4, 5, 6]
    gains = ((1, 1.1), (2, 1.2), (3, 1.2), (4, None))
    ties = [replace(rows[0], gamma=gamma, speedup=speedup) for gamma, speedup in gains]
    assert known(best_of(ties)).gamma == 2
    assert best_of(ties[3:]) is None


def test_forced_or_unknown_is_no_measured_speedup() -> None:
    rows = [a_record(), a_record(**forced_row(gamma=3)), a_record(gamma=4, speedup_measured=None)]
    assert validated(rows) == {(rows[0].setting, Point(batch_size=1, context=64), 2): rows[0]}
