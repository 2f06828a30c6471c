from pathlib import Path

from specgauge.reports.data import read_report_data
from specgauge.reports.records import Place, curves, prediction
from specgauge.reports.tables import broken_table, prediction_table, timing_table
from specgauge.reports.timings import arm_words, part_timings
from tests.reports.synthetic import Shape, build_run, prediction_rows


def test_parts_are_those_of_the_plan_in_the_order_of_a_round(tmp_path: Path) -> None:
    data = read_report_data(build_run(tmp_path / "run", Shape(alphas={"t1": 0.7}, batch_sizes=(1,), contexts=(64,))))
    parts = part_timings(data.timings, 0.9)
    assert [one.arm for one in parts][:4] == ["decode", "draft", "draft_catch_up", "verify:1"]
    chain = parts[1]
    # γ_max = 6 drafts of 15 % of 10.064 ms
    assert chain.median_s is not None
    assert abs(chain.median_s - 6 * 0.15 * 0.010064) < 1e-12
    assert (chain.place, chain.samples, chain.blocks, chain.status) == (Place(1, 64), 15, 3, "ok")
    assert [one.is_prefill for one in parts[-2:]] == [True, True]


def test_arms_are_named_by_the_reports_symbols() -> None:
    names = ["decode", "draft", "draft_catch_up", "verify:3", "prefill_target", "prefill_draft"]
    assert [arm_words(name) for name in names] == [
        "T_decode",
        "C(γ_max), draft chain",
        "first draft step, two tokens",
        "T_verify(3)",
        "prefill, target",
        "prefill, draft",
    ]


def test_cells_share_a_row_when_every_part_failed_alike(tmp_path: Path) -> None:
    shape = Shape(alphas={"t1": 0.7}, broken={(4, 256): ("oom", "no room")})
    parts = part_timings(read_report_data(build_run(tmp_path / "run", shape)).timings, 0.9)
    table = broken_table(parts)
    assert table is not None
    assert [row.cells for group in table.groups for row in group.rows] == [
        ["chain draw · batch 4, 256 tokens of context", "oom", "every part", "no room"]
    ]
    timed = timing_table(parts)
    assert timed is not None
    assert len(timed.groups) == 3, "cells without a sample are not among the timings"
    assert broken_table([one for one in parts if one.status == "ok"]) is None
    assert timing_table([]) is None


def test_rows_without_a_number_say_why() -> None:
    shape = Shape(alphas={"t1": 0.7}, batch_sizes=(1, 4), contexts=(64,), broken={(4, 64): ("oom", "no room")})
    table = prediction_table(curves(prediction(row) for row in prediction_rows(shape)), [])
    assert table is not None
    assert [group.heading for group in table.groups] == [
        "t1 · batch 1, 64 tokens of context",
        "t1 · batch 4, 64 tokens of context",
    ]
    broken = table.groups[1].rows[0].cells
    assert list(broken) == ["1", "–", "–", "–", "oom", "1.70", "1.67–1.73", "0.70", "–", "–", "–", "–", "–", "–"]
    assert all(len(row.cells) == len(table.columns) for group in table.groups for row in group.rows)
    assert prediction_table({}, []) is None
