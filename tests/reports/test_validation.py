from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.schema import ValidateConfig
from specgauge.reports.html import write_report
from specgauge.reports.records import ReportData, read_report_data
from specgauge.reports.tables import Table
from specgauge.reports.validation import (
    NOT_ASKED,
    NOT_YET,
    baseline_table,
    policy_table,
    scatter_blocks,
    validation_section,
    validation_table,
)
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.store.rundir import Run
from tests.reports.pages import read_page
from tests.reports.synthetic import Shape, build_run
from tests.reports.validation_rows import a_forced_record, a_forced_row, a_policy, a_policy_row, a_record, a_row, decode
from tests.sweeps import made
from tests.sweeps.decoded import Batch, key, write_blocks
from tests.sweeps.validation_rows import FORCED

COLUMNS = [
    "γ", "S predicted", "S from counts", "S measured", "interval", "cost error", "Ω predicted", "Ω counted",
    "acceptance error", "95\u202f% interval", "ε, ms", "rounds, counted / expected", "z", "whole requests",
]  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(contexts=(64,), batch_sizes=(1,), gammas=(1, 2, 3), with_acceptance=False)
    return build_run(tmp_path_factory.mktemp("validation") / "run", shape)


def read(run: Path, *rows: dict[str, Any]) -> ReportData:
    return read_report_data(decode(run, *rows))


# --------------------------------------------------------------------------------------------------- sentences


def test_the_findings_are_exact(run: Path) -> None:
    section = validation_section(
        read(
            run,
            a_row(error=0.1, cost_error=-0.03, speedup_whole=1.4),
            a_row(gamma=3, error=-0.02, cost_error=0.01, speedup_whole=0.95, acceptance_error_low=0.01),
            a_row(context=256, error=0.03, cost_error=0.02, rounds_agree=False, overhead_from="same context"),
        ),
        ["greedy", "t1"],
    )
    assert (section.missing, section.forced) == ("", "")
    facts = dict(section.facts)
    assert facts["decoded"].startswith("2 cells, 3 rows")
    where = "greedy, batch 1, 64 tokens of context, γ\u00a0=\u00a02"
    assert facts["S predicted"] == (
        f"within 5.0\u202f% of measured on average, 10.0\u202f% at worst (too high: {where})"
    )
    assert "within 2.0\u202f%" in facts["cost error"]
    assert facts["cost error"].endswith(f"3.0\u202f% at worst (too low: {where})")
    assert [facts[name].rpartition(" in ")[2] for name in ("acceptance error", "rounds counted", "overhead ε")] == [
        "2 of 3 rows"
    ] * 3
    assert facts["lossless"].startswith("all 3 rows")
    assert [int(word) for word in facts["greedy texts"].replace(",", "").split() if word.isdigit()] == [6, 3, 3, 0]
    assert facts["whole requests"].startswith("0.95 to 1.40\u202f× ")


def test_forced_acceptance_is_said_before_anything_else(run: Path) -> None:
    section = validation_section(read(run, a_forced_row(), a_forced_row(gamma=3)), ["greedy", "t1"])
    assert section.forced.startswith(f"None of these texts is lossless ({FORCED}): ")
    assert "not lossless" in section.found
    facts = dict(section.facts)
    assert facts["lossless"] == "0 of 2 rows"
    assert not {"S predicted", "acceptance error"} & set(facts)
    (block,) = section.blocks
    assert [panel.caption for panel in block.panels] == ["Cost error: S from counts"]
    mixed = validation_section(read(run, a_row(), a_forced_row(gamma=3)), ["greedy", "t1"])
    assert mixed.forced.startswith(f"1 of 2 rows are not lossless ({FORCED}): ")
    assert dict(mixed.facts)["lossless"] == "1 of 2 rows"


def test_one_row_has_neither_average_nor_worst(run: Path) -> None:
    facts = dict(validation_section(read(run, a_row()), ["greedy"]).facts)
    assert facts["S predicted"] == "within 10.0\u202f% of measured"
    assert facts["rounds counted"].endswith("in 1 of 1 row")
    assert facts["whole requests"].startswith("1.40\u202f× ")


def test_without_decoded_texts_there_is_one_sentence(run: Path) -> None:
    data = replace(read(run, a_row()), validation=(), validation_summary=None)
    section = validation_section(data, ["greedy"])
    assert (section.missing, section.found, section.table, section.blocks) == (NOT_ASKED, "", None, ())
    assert "validate: {}" in NOT_ASKED
    asked = replace(data, config=data.config.model_copy(update={"validation": ValidateConfig()}))
    assert validation_section(asked, ["greedy"]).missing == NOT_YET


# ----------------------------------------------------------------------------------------------------- figures


def test_points_are_told_apart_by_sampling_and_batch_size() -> None:
    rows = [a_record(), a_record(batch_size=4), a_record(sampling="t1", batch_size=4)]
    (block,) = scatter_blocks(rows, ["greedy", "t1"])
    assert [panel.caption.partition(":")[0] for panel in block.panels] == [
        "Whole error", "Cost error", "Acceptance error",
    ]  # fmt: skip
    assert [(entry.words, entry.role, entry.glyph) for entry in block.legend] == [
        ("greedy", "s0", ""),
        ("t1", "s1", ""),
        ("batch 1", "ink", "●"),
        ("batch 4", "ink", "■"),
        ("interval", "ink", ""),
        ("as predicted", "ink", ""),
    ]
    where = "greedy, batch 1, 64 tokens of context, γ = 2"
    expected = (
        f"{where}: 1.65 against 1.50 measured (+10.0\u202f%)",
        f"{where}: 1.53 against 1.50 measured (+2.0\u202f%)",
        f"{where}: 2.20 against 2.00 counted (+10.0\u202f%)",
    )
    for panel, words in zip(block.panels, expected, strict=True):
        marks = read_page(f"<!DOCTYPE html>\n{panel.svg}").marks
        assert (marks["dots s0"], marks["dots s1"], marks["interval"]) == (2, 1, 3)
        assert f"<title>{words}</title>" in panel.svg


def test_pairs_and_rules_have_blocks_of_their_own() -> None:
    rows = [a_record(), a_record(pair="other"), a_record(pair="other", sampling="t1")]
    blocks = scatter_blocks(rows, ["greedy", "t1"])
    assert [(block.title, len(block.legend)) for block in blocks] == [("pair embedded", 4), ("pair other", 5)]


def test_a_row_without_a_stretch_to_compare_has_no_point() -> None:
    nothing = dict.fromkeys(("speedup_measured", "tokens_per_round_counted"))
    assert scatter_blocks([a_record(**nothing)], ["greedy"]) == []
    lone = a_record(speedup_measured_low=None, speedup_measured_high=None, acceptance_error_low=None)
    (block,) = scatter_blocks([lone], ["greedy"])
    assert all('class="interval"' not in panel.svg for panel in block.panels)


def test_more_batch_sizes_than_shapes_are_drawn_open() -> None:
    rows = [a_record(batch_size=size) for size in (1, 2, 4, 8, 16)]
    (block,) = scatter_blocks(rows, ["greedy"])
    assert block.panels[0].svg.count('class="open s0"') == 1
    assert [entry.glyph for entry in block.legend[1:6]] == ["●", "■", "▲", "◆", "○"]


# ------------------------------------------------------------------------------------------------------ tables


def cells(table: Table) -> list[list[list[str]]]:
    """By group and row."""
    return [[list(row.cells) for row in group.rows] for group in table.groups]


def test_a_row_holds_every_figure() -> None:
    table = validation_table([a_record()], set())
    assert list(table.columns) == COLUMNS
    assert [group.heading for group in table.groups] == ["greedy · batch 1, 64 tokens of context"]
    assert cells(table) == [[[
        "2", "1.65", "1.53", "1.50", "1.40–1.60", "+2.0\u202f%", "2.20", "2.00", "+10.0\u202f%",
        "−5.0 to +25.0\u202f%", "1.00", "64 / 63.5", "+0.5", "1.40\u202f×",
    ]]]  # fmt: skip
    assert table.caption.split("; ") == [
        "pair embedded", "mode eager", "draft sampling same", "ratio rule", "every ε is fitted at other contexts",
        "every row is lossless",
    ]  # fmt: skip


def test_rows_stand_by_setting_point_and_gamma_and_the_recommended_stand_out() -> None:
    rows = [a_record(gamma=gamma, context=context) for context in (256, 64) for gamma in (4, 2)]
    rows.insert(1, a_record(sampling="t1"))
    table = validation_table(rows, {(rows[0].setting, rows[0].point, 4)})
    assert [(group.heading.split()[0], len(group.rows)) for group in table.groups] == [
        ("greedy", 2), ("greedy", 2), ("t1", 1),
    ]  # fmt: skip
    assert [[(row.cells[0], row.chosen) for row in group.rows] for group in table.groups[:2]] == [
        [("2", False), ("4", False)],
        [("2", False), ("4", True)],
    ]


def test_what_differs_between_rows_has_a_column_of_its_own() -> None:
    forced = a_forced_record(gamma=3, overhead_from="same context")
    table = validation_table([a_record(), forced], set())
    assert (table.columns[11], table.columns[-1]) == ("ε fitted at", "lossless")
    ((first, second),) = cells(table)
    assert (first[11], first[-1]) == ("other contexts", "yes")
    assert (second[11], second[-1]) == ("same context", f"no: {FORCED}")
    assert len(first) == len(second) == len(table.columns)
    assert "lossless" not in table.caption
    assert second[1:10] == ["–", "1.53", "1.50", "1.40–1.60", "+2.0\u202f%", "–", "–", "–", "–"]
    alone = validation_table([a_forced_record()], set())
    assert alone.caption.endswith(f"no row is lossless: {FORCED}")


def test_rounds_that_chance_hardly_explains_say_so() -> None:
    unexpected = a_record(rounds_standard_errors=-9.06, rounds_agree=False)
    unknown = a_record(gamma=3, rounds_standard_errors=None, rounds_expected=None, rounds_agree=None)
    (rows,) = cells(validation_table([unexpected, unknown], set()))
    assert [row[11:13] for row in rows] == [["64 / 63.5", "−9.1, unexpected"], ["64 / –", "–"]]


def test_baselines_are_told_once_a_point() -> None:
    rows = [a_record(gamma=2), a_record(gamma=3), a_record(batch_size=4, plain_over_generate=0.9, plain_over_loop=None)]
    table = baseline_table(rows)
    assert table is not None
    assert [group.heading for group in table.groups] == ["greedy"]
    assert cells(table) == [
        [["batch 1, context 64", "1.10\u202f×", "1.05\u202f×"], ["batch 4, context 64", "0.90\u202f×", "–"]]
    ]
    assert baseline_table([a_record(plain_over_generate=None, plain_over_loop=None)]) is None


def test_a_policy_stands_beside_plain_decoding_the_best_gamma_and_its_replay() -> None:
    unknown = ("best_fixed_gamma", "over_best_fixed", "over_best_fixed_low", "speedup_predicted", "error", "error_low")
    slower = a_policy(policy="heuristic", speedup_measured=1.2, **dict.fromkeys(unknown))
    table = policy_table([slower, a_policy()])
    assert table is not None
    ((first, second),) = cells(table)
    assert first == [
        "svip", "1.60", "1.50–1.70", "1.56", "−2.5\u202f%", "−4.0 to +1.0\u202f%", "1.58", "−1.2\u202f%", "2",
        "1.04\u202f×", "1.01–1.07", "2.25", "12 / 40",
    ]  # fmt: skip
    assert second[:6] == ["heuristic", "1.20", "1.50–1.70", "–", "–", "–"]
    assert second[8:11] == ["–", "–", "–"]
    assert len(first) == len(table.columns)
    assert policy_table([]) is None


def test_policies_have_no_say_in_what_is_said_of_gammas(run: Path) -> None:
    plain = read(run, a_row())
    both = read_report_data(decode(run, a_row(), policies=[a_policy_row()]))
    assert both.validation == plain.validation
    assert both.validation_summary == plain.validation_summary
    table = validation_section(both, ["greedy"]).policies
    assert table is not None
    assert cells(table)[0][0][0] == "svip"
    assert validation_section(plain, ["greedy"]).policies is None


# --------------------------------------------------------------------------------------------------- real rows


@pytest.mark.parametrize("stopped", [False, True])
def test_what_the_product_decodes_is_reported(tmp_path: Path, stopped: bool) -> None:
    grid = {"batch_size": 1, "context": [64, 256], "gamma": "1:3"}
    config = made.config(grid=grid, validate={}, workload={"max_new_tokens": 64})
    run = made.write_run(tmp_path / "run", config, {"greedy": made.acceptance_frame(10, 63)})
    blocks = [Batch(prompts=(prompt,), context=64, overhead_s=0.0625) for prompt in (0, 1)]
    others = [Batch(prompts=(prompt,), context=256, overhead_s=0.125) for prompt in (0, 1)]
    write_blocks(run.path, {key(): blocks, key(start_context=256): others})
    predicted = predict_run(run)
    if stopped:
        (run.path / "predictions.csv").unlink()
        (run.path / "validation.csv").unlink()
    else:
        assert Run.open(run.path).validation() == predicted.validation
    data = read_report_data(run.path)
    assert len(data.validation) == 6
    (one,) = [row for row in data.validation if (row.point.context, row.gamma) == (64, 2)]
    # rounds commit 3 and 1 tokens by turns; parts 1.5 s and, after full acceptance, 1/16 more; ε is the other context's
    assert one.tokens_per_round_counted == pytest.approx(2.0, abs=0.05)
    assert one.t_overhead_s == pytest.approx(0.125)
    assert one.overhead_from == "other contexts"
    assert one.speedup_measured is not None
    assert one.tokens_per_round_counted is not None
    round_s = one.tokens_per_round_counted / one.speedup_measured
    assert one.cost_error == pytest.approx(round_s / (round_s + 0.125 - 0.0625) - 1.0)
    page = read_page(write_report(run.path).read_text(encoding="utf-8"))
    assert "Decoded end to end in 2 cells" in page.text
