from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.schema import ValidateConfig
from specgauge.reports.data import ReportData, read_report_data
from specgauge.reports.html import render_report
from specgauge.reports.records import verified
from specgauge.reports.verification_section import NOT_ASKED, NOT_YET, scatter_blocks, verification_section
from tests.reports.synthetic import Shape, build_run
from tests.reports.verified_rows import a_forced_row, a_record, a_row, decode
from tests.sweeps.verification_rows import FORCED, policy_row


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(contexts=(64,), batch_sizes=(1,), gammas=(1, 2, 3), with_acceptance=False)
    return build_run(tmp_path_factory.mktemp("verification") / "run", shape)


def read(run: Path, *rows: dict[str, Any]) -> ReportData:
    return read_report_data(decode(run, *rows))


def test_the_findings_are_exact(run: Path) -> None:
    section = verification_section(
        read(
            run,
            a_row(error=0.1, cost_error=-0.03, speedup_whole=1.4),
            a_row(gamma=3, error=-0.02, cost_error=0.01, speedup_whole=0.95, acceptance_error_low=0.01),
            a_row(context=256, error=0.03, cost_error=0.02, rounds_agree=False, overhead_from="same context"),
        ),
        ["greedy", "t1"],
    )
    assert section.missing == ""
    assert section.forced == ""
    assert section.found == (
        "Decoded end to end in 2 cells: predicted S within 5.0\u202f% of measured on average, 10.0\u202f% at worst; "
        "S from the rounds counted in these texts within 2.0\u202f% on average, 3.0\u202f% at worst."
    )
    assert dict(section.facts) == {
        "decoded": "2 cells, 3 rows of the table below (a cell at one γ each)",
        "S predicted": "within 5.0\u202f% of measured on average, 10.0\u202f% at worst "
        "(too high: greedy, batch 1, 64 tokens of context, γ\u00a0=\u00a02)",
        "cost error": "S from the rounds counted within 2.0\u202f% of measured on average, 3.0\u202f% at worst "
        "(too low: greedy, batch 1, 64 tokens of context, γ\u00a0=\u00a02)",
        "acceptance error": "its 95\u202f% interval holds 0 in 2 of 3 rows",
        "rounds counted": "as many as expected on the very texts, chance aside, in 2 of 3 rows",
        "overhead ε": "fitted at other contexts than the one it is judged at in 2 of 3 rows",
        "lossless": "all 3 rows: the texts follow the distribution of the target alone",
        "greedy texts": "of 6, 3 are plain decoding's token for token, 3 leave it where rounding decides between two "
        "tokens, 0 elsewhere",
        "whole requests": "0.95 to 1.40\u202f× plain decoding, prefills and ragged ends included",
    }


def test_forced_acceptance_is_said_before_anything_else(run: Path) -> None:
    section = verification_section(read(run, a_forced_row(), a_forced_row(gamma=3)), ["greedy", "t1"])
    assert section.forced == (
        f"None of these texts is lossless ({FORCED}): such texts do not follow the target's distribution and say "
        "nothing about the draft. They check the cost model alone."
    )
    assert "not lossless" in section.found
    facts = dict(section.facts)
    assert facts["lossless"] == "0 of 2 rows"
    assert "S predicted" not in facts
    assert "acceptance error" not in facts
    (block,) = section.blocks
    assert [panel.caption for panel in block.panels] == ["Cost error: S from counts"]
    mixed = verification_section(read(run, a_row(), a_forced_row(gamma=3)), ["greedy", "t1"])
    assert mixed.forced.startswith(f"1 of 2 rows are not lossless ({FORCED}): ")
    assert dict(mixed.facts)["lossless"] == "1 of 2 rows"


def test_one_row_has_neither_average_nor_worst(run: Path) -> None:
    facts = dict(verification_section(read(run, a_row()), ["greedy"]).facts)
    assert facts["decoded"] == "1 cell, 1 row of the table below (a cell at one γ each)"
    assert facts["S predicted"] == "within 10.0\u202f% of measured"
    assert facts["rounds counted"] == "as many as expected on the very texts, chance aside, in 1 of 1 row"
    assert facts["whole requests"] == "1.40\u202f× plain decoding, prefills and ragged ends included"


def test_without_decoded_texts_there_is_one_sentence(run: Path) -> None:
    data = replace(read(run, a_row()), verified=(), verification=None)
    section = verification_section(data, ["greedy"])
    assert (section.missing, section.found, section.table, section.blocks) == (NOT_ASKED, "", None, ())
    assert "validate: {}" in NOT_ASKED
    asked = replace(data, config=data.config.model_copy(update={"validation": ValidateConfig()}))
    assert verification_section(asked, ["greedy"]).missing == NOT_YET


def test_points_are_told_apart_by_sampling_and_batch_size() -> None:
    rows = [a_record(), a_record(batch_size=4), a_record(sampling="t1", batch_size=4)]
    (block,) = scatter_blocks(rows, ["greedy", "t1"])
    assert [panel.caption for panel in block.panels] == [
        "Whole error: S predicted",
        "Cost error: S from counts",
        "Acceptance error: Ω predicted",
    ]
    assert [entry.words for entry in block.legend] == [
        "greedy", "t1", "batch 1", "batch 4", "interval", "as predicted",
    ]  # fmt: skip
    for panel in block.panels:
        svg = str(panel.svg)
        assert svg.count('<circle cx="') == 1
        assert svg.count('class="dot c0"') == 2
        assert svg.count('class="dot c1"') == 1
        assert svg.count('class="measured-bar c') == 3
    first, second, third = (str(panel.svg) for panel in block.panels)
    where = "greedy, batch 1, 64 tokens of context, γ = 2"
    assert f"<title>{where}: 1.65 against 1.50 measured (+10.0\u202f%)</title>" in first
    assert f"<title>{where}: 1.53 against 1.50 measured (+2.0\u202f%)</title>" in second
    assert f"<title>{where}: 2.20 against 2.00 counted (+10.0\u202f%)</title>" in third


def test_pairs_and_rules_have_blocks_of_their_own() -> None:
    blocks = scatter_blocks(
        [a_record(), a_record(pair="other"), a_record(pair="other", sampling="t1")], ["greedy", "t1"]
    )
    assert [(block.title, len(block.legend)) for block in blocks] == [("pair embedded", 4), ("pair other", 5)]


def test_a_row_without_a_stretch_to_compare_has_no_point() -> None:
    nothing = dict.fromkeys(("speedup_measured", "tokens_per_round_counted"))
    assert scatter_blocks([a_record(**nothing)], ["greedy"]) == []
    lone = a_record(speedup_measured_low=None, speedup_measured_high=None, acceptance_error_low=None)
    (block,) = scatter_blocks([lone], ["greedy"])
    assert all("measured-bar" not in str(panel.svg) for panel in block.panels)


def test_more_batch_sizes_than_shapes_are_drawn_open() -> None:
    rows = [a_record(batch_size=size) for size in (1, 2, 4, 8, 16)]
    (block,) = scatter_blocks(rows, ["greedy"])
    assert str(block.panels[0].svg).count('class="measured c0"') == 1
    assert verified(a_row(batch_size=16)).place.batch_size == 16


def test_policies_have_a_table_and_no_say_in_what_is_said_of_gammas(run: Path) -> None:
    plain = read(run, a_row())
    both = read_report_data(decode(run, a_row(), policies=[policy_row(pair="embedded")]))
    assert both.verified == plain.verified
    assert both.verification == plain.verification
    section = verification_section(both, ["greedy", "t1"])
    assert section.policies is not None
    assert [row.cells[0] for group in section.policies.groups for row in group.rows] == ["svip"]
    page = render_report(both)
    assert "Adaptive policies" in page
    assert "Adaptive policies" not in render_report(plain)
