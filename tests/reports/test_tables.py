from dataclasses import replace
from pathlib import Path

from specgauge.reports.records import curves, read_report_data
from specgauge.reports.tables import Table, broken_table, chosen_gammas, prediction_table, timing_table
from specgauge.sweeps.analysis.predictions import predict_run
from tests.reports.synthetic import Shape, build_run, predicted, prediction_rows
from tests.sweeps.run.test_searched_cells import BASE, searched_run

ONE = Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(64,))


def predictions(shape: Shape, chosen: bool = False) -> Table:
    rows = predicted(shape)
    keys = {(row.setting, row.point, row.gamma) for row in rows if row.is_recommended} if chosen else set()
    table = prediction_table(curves(rows), keys)
    assert table is not None
    assert all(len(row.cells) == len(table.columns) for group in table.groups for row in group.rows)
    return table


def test_every_prediction_is_a_row() -> None:
    table = predictions(Shape(), chosen=True)
    rows = [row for group in table.groups for row in group.rows]
    for found, row in zip(rows, prediction_rows(Shape()), strict=True):
        cells = list(found.cells)
        assert cells[:3] == [
            str(row["gamma"]), f"{row['speedup']:.2f}", f"{row['speedup_low']:.2f}–{row['speedup_high']:.2f}",
        ]  # fmt: skip
        assert cells[5] == f"{row['tokens_per_round']:.2f}"
        assert cells[8:10] == [f"{1e3 * row['t_decode_s']:.1f}", f"{1e3 * row['t_draft_total_s']:.2f}"]
        assert cells[12] == "–", "the overhead is unknown"
        assert ("recommended" in cells[4], "best" in cells[4]) == (row["is_recommended"], row["is_best"])
        assert found.chosen == row["is_recommended"]
    assert table.caption.endswith("; every time and acceptance: measured; every speed-up is optimistic: "
                                  "overhead not measured")  # fmt: skip


def test_provenance_and_label_have_columns_where_they_differ() -> None:
    table = predictions(Shape(contexts=(16, 64)))
    assert table.columns[-1] == "provenance"
    assert {row.cells[-1] for group in table.groups for row in group.rows} == {
        "measured", "cost measured, acceptance extrapolated",
    }  # fmt: skip
    rows = [replace(row, label="x" * (row.gamma == 1)) for row in predicted(ONE)]
    labelled = prediction_table(curves(rows), ())
    assert labelled is not None
    assert labelled.columns[-1] == "label"
    assert [row.cells[-1] for row in labelled.groups[0].rows][:2] == ["x", "–"]


def test_rows_without_a_number_say_why() -> None:
    table = predictions(Shape(alphas={"t1": 0.7}, contexts=(64,), broken={(4, 64): ("oom", "no room")}))
    assert [group.heading for group in table.groups] == [
        "t1 · batch 1, 64 tokens of context",
        "t1 · batch 4, 64 tokens of context",
    ]
    broken = table.groups[1].rows[0].cells
    assert list(broken) == ["1", "–", "–", "–", "oom", "1.70", "1.67–1.73", "0.70", "–", "–", "–", "–", "–", "–"]
    assert prediction_table({}, ()) is None


def test_a_measured_overhead_has_its_column() -> None:
    # γ = 2: 10.064 · (.3 + 1.12 + .49 · .015) + 1 = 15.4 ms
    row = predictions(Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(64,), overhead_s=0.001)).groups[0].rows[1]
    assert list(row.cells)[:3] == ["2", "1.43", "1.39–1.48"]
    assert list(row.cells)[12:] == ["1.00", "15.4"]


def test_timings_show_their_quality(tmp_path: Path) -> None:
    # three blocks of five samples at −1, −.5, 0, .5 and 1 %: the 90 % interval of the median of 15 reaches from the
    # 4th to the 12th, −.5 % to .5 %; the median of the first seven is −.5 %, of the last seven .5 %: drift 1.0 %;
    # first calls were made five times as slow
    table = timing_table(read_report_data(build_run(tmp_path / "run", ONE)).timings, 0.9)
    assert table is not None
    rows = {row.cells[0]: list(row.cells[1:]) for row in table.groups[0].rows}
    # the chain: γ_max = 6 drafts of 15 % of 10.064 ms
    assert list(rows)[:4] == ["T_decode", "C(γ_max), draft chain", "first draft step, two tokens", "T_verify(1)"]
    assert rows["C(γ_max), draft chain"][:4] == ["9.1", "±0.5\u202f%", "15", "3"]
    assert rows["T_decode"] == ["10.1", "±0.5\u202f%", "15", "3", "+1.0\u202f%", "50.3", "ok"]
    assert rows["T_verify(2)"][:4] == ["11.3", "±0.5\u202f%", "15", "3"]


def test_drift_is_that_of_what_was_taken(tmp_path: Path) -> None:
    """The later half of the blocks is half as slow again; taken at one pace, no arm would show it."""
    predict_run(searched_run(tmp_path, {arm: range(4) for arm in (*BASE, "verify:2")}, {}, {2: 1.5, 3: 1.5}))
    table = timing_table(read_report_data(tmp_path).timings, 0.9)
    assert table is not None
    assert table.groups[0].rows[0].cells[0::5] == ["T_decode", "+50.0\u202f%"]


def test_cells_share_a_row_when_every_arm_failed_alike(tmp_path: Path) -> None:
    shape = Shape(alphas={"t1": 0.7}, broken={(4, 256): ("oom", "no room")})
    data = read_report_data(build_run(tmp_path / "run", shape))
    table = broken_table(data.timings)
    assert table is not None
    assert [row.cells for group in table.groups for row in group.rows] == [
        ["chain draw · batch 4, 256 tokens of context", "oom", "every arm", "no room"]
    ]
    timed = timing_table(data.timings, 0.9)
    assert timed is not None
    assert len(timed.groups) == 3, "cells without a sample are not among the timings"
    assert broken_table(data.timings[:1]) is None
    assert timing_table([], 0.9) is None
    assert len(chosen_gammas(data.recommendations)) == 3
