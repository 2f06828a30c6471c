from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.schema import ValidateConfig
from specgauge.reports.html import write_report
from specgauge.reports.records import read_report_data
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
from tests.reports.pages import read_page, table_text
from tests.reports.synthetic import Shape, build_run
from tests.reports.validation_rows import a_record, decode
from tests.sweeps import made
from tests.sweeps.decoded import Batch, key, write_blocks
from tests.sweeps.validation_rows import forced_row, policy_row, validation_row

NO_REPLAY = ("best_fixed_gamma", "over_best_fixed", "over_best_fixed_low", "speedup_predicted", "error", "error_low")
UNCOUNTED = dict.fromkeys(("rounds_standard_errors", "rounds_expected", "rounds_agree"))
SECTIONS: dict[str, list[dict[str, Any]]] = {
    "three rows in two cells": [
        validation_row(error=0.1, cost_error=-0.03, speedup_whole=1.4),
        validation_row(gamma=3, error=-0.02, cost_error=0.01, speedup_whole=0.95, acceptance_error_low=0.01),
        validation_row(context=256, error=0.03, cost_error=0.02, rounds_agree=False, overhead_from="same context"),
    ],
    "one row": [validation_row()],
    "forced": [forced_row(), forced_row(gamma=3)],
    "one of two forced, other contexts": [validation_row(), forced_row(gamma=3, overhead_from="same context")],
    "policies": [validation_row(), policy_row(policy="heuristic", speedup_measured=1.2), policy_row()],
}
TABLES: dict[str, Table | None] = {
    "rounds that chance hardly explains": validation_table(
        [a_record(rounds_standard_errors=-9.06, rounds_agree=False), a_record(gamma=3, **UNCOUNTED)], set()
    ),
    "two points with one baseline each": baseline_table(
        [a_record(), a_record(gamma=3), a_record(batch_size=4, plain_over_generate=0.9, plain_over_loop=None)]
    ),
    "no baseline": baseline_table([a_record(plain_over_generate=None, plain_over_loop=None)]),
    "a policy without a replay": policy_table(
        [a_record(**policy_row(policy="heuristic", **dict.fromkeys(NO_REPLAY))), a_record(**policy_row())]
    ),
    "no policy": policy_table([]),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(contexts=(64,), batch_sizes=(1,), gammas=(1, 2, 3), with_acceptance=False)
    return build_run(tmp_path_factory.mktemp("validation") / "run", shape)


def section_text(section: Any) -> str:
    lines = [section.missing, section.found, section.forced, *(f"{what}: {words}" for what, words in section.facts)]
    lines += [f"{block.title}: {', '.join(panel.caption for panel in block.panels)}" for block in section.blocks]
    tables = (section.table, section.policies, section.baselines)
    return "".join(f"    {line}\n" for line in lines if line) + "".join(map(table_text, tables))


def test_the_section_in_words(run: Path, snapshot: Callable[[str, str], None]) -> None:
    told: Mapping[str, str] = {
        name: section_text(validation_section(read_report_data(decode(run, *rows)), ["greedy", "t1"]))
        for name, rows in SECTIONS.items()
    } | {name: table_text(table) for name, table in TABLES.items()}
    snapshot("validation_section", "\n".join(f"{name}\n{text}" for name, text in told.items()))


def test_without_decoded_texts_there_is_one_sentence(run: Path) -> None:
    data = replace(read_report_data(decode(run, validation_row())), validation=(), validation_summary=None)
    section = validation_section(data, ["greedy"])
    assert (section.missing, section.found, section.table, section.blocks) == (NOT_ASKED, "", None, ())
    assert "validate: {}" in NOT_ASKED
    asked = replace(data, config=data.config.model_copy(update={"validation": ValidateConfig()}))
    assert validation_section(asked, ["greedy"]).missing == NOT_YET


def test_policies_have_no_say_in_what_is_said_of_gammas(run: Path) -> None:
    plain = read_report_data(decode(run, validation_row()))
    both = read_report_data(decode(run, validation_row(), policies=[policy_row()]))
    assert (both.validation, both.validation_summary) == (plain.validation, plain.validation_summary)
    assert len(both.policies) == 1


def test_points_are_told_apart_by_sampling_and_batch_size() -> None:
    rows = [a_record(), a_record(batch_size=4), a_record(sampling="t1", batch_size=4)]
    (block,) = scatter_blocks(rows, ["greedy", "t1"])
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


def test_pairs_have_blocks_and_many_batch_sizes_open_markers() -> None:
    rows = [a_record(), a_record(pair="other"), a_record(pair="other", sampling="t1")]
    blocks = scatter_blocks(rows, ["greedy", "t1"])
    assert [(block.title, len(block.legend)) for block in blocks] == [("pair p", 4), ("pair other", 5)]
    (block,) = scatter_blocks([a_record(batch_size=size) for size in (1, 2, 4, 8, 16)], ["greedy"])
    assert block.panels[0].svg.count('class="open s0"') == 1
    assert [entry.glyph for entry in block.legend[1:6]] == ["●", "■", "▲", "◆", "○"]


def test_a_row_without_a_stretch_to_compare_has_no_point() -> None:
    nothing = dict.fromkeys(("speedup_measured", "tokens_per_round_counted"))
    assert scatter_blocks([a_record(**nothing)], ["greedy"]) == []
    lone = a_record(speedup_measured_low=None, speedup_measured_high=None, acceptance_error_low=None)
    (block,) = scatter_blocks([lone], ["greedy"])
    assert all('class="interval"' not in panel.svg for panel in block.panels)


def test_rows_stand_by_setting_point_and_gamma_and_the_recommended_stand_out() -> None:
    rows = [a_record(gamma=gamma, context=context) for context in (256, 64) for gamma in (4, 2)]
    rows.insert(1, a_record(sampling="t1"))
    groups = validation_table(rows, {(rows[0].setting, rows[0].point, 4)}).groups
    found = [(group.heading.split()[0], [(row.cells[0], row.chosen) for row in group.rows]) for group in groups]
    assert found == [
        ("greedy", [("2", False), ("4", False)]),
        ("greedy", [("2", False), ("4", True)]),
        ("t1", [("2", False)]),
    ]


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
