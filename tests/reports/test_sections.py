from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.schema import ValidateConfig
from specgauge.model.settings import Point
from specgauge.reports import sections, validation
from specgauge.reports.html import write_report
from specgauge.reports.records import DO_NOT, RESUME, curves, read_report_data, validated
from specgauge.reports.summaries import ALL_PROMPTS, acceptance_curves, conditional, cost_bars, cost_domain
from specgauge.reports.tables import (
    Table,
    broken_table,
    category_table,
    chosen_gammas,
    prediction_table,
    side_table,
    timing_table,
)
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow, WarningRow
from tests.reports.pages import Page, table_text
from tests.reports.synthetic import GREEDY, ONE, Shape, a_record, build_run, curve, decode, predicted, recommended
from tests.sweeps import made
from tests.sweeps.analysis.test_decoded import run as decoded_run
from tests.sweeps.analysis.test_warnings import collected
from tests.sweeps.decoded import Batch, key
from tests.sweeps.made import acceptance_frame, known
from tests.sweeps.run.test_searched_cells import BASE, searched_run
from tests.sweeps.test_side_by_side import PAIRS, entry
from tests.sweeps.test_side_by_side import SMALL as SMALL_ENTRY
from tests.sweeps.test_side_by_side import answers as a_ranking
from tests.sweeps.validation_rows import forced_row, policy_row, validation_row

SMALL = Shape(batch_sizes=(1, 4), contexts=(64,), gammas=(1, 2, 3))


def pages(block: sections.Block) -> list[Page]:
    return [Page(f"<!DOCTYPE html>\n{panel.svg}") for panel in block.panels]


def legend(block: sections.Block) -> list[tuple[str, str, str]]:
    return [(entry.kind, entry.role, entry.glyph) for entry in block.legend]


def test_settings_that_differ_by_sampling_only_share_a_block() -> None:
    other = replace(GREEDY, pair="q", acceptance_rule="match")
    titles = sections.setting_titles([GREEDY, replace(GREEDY, sampling="t1"), other])
    assert list(titles.values()) == ["pair p, ratio rule", "pair p, ratio rule", "pair q, match rule"]


def test_a_panel_for_every_point_shows_every_series() -> None:
    by_setting, answers = curves(predicted(SMALL)), recommended(SMALL)
    answers[1] = replace(answers[1], decision=DO_NOT, gamma=None)
    (block,) = sections.speedup_blocks(by_setting, answers, ["greedy", "t1"], validated([a_record(gamma=3)]))
    assert [panel.caption for panel in block.panels] == [f"batch {b}, 64 tokens of context" for b in (1, 4)]
    first, second = pages(block)
    assert (first.marks["dots s0"], first.marks["band s1"], first.marks["measured s0"]) == (1, 1, 1)
    assert (first.marks["ring"], second.marks["ring"]) == (2, 1), "none where plain decoding is faster"
    assert (first.tags.count("use"), second.marks["measured s0"]) == (3 + 3 + 2 + 2 + 2 + 1, 0)
    assert [mark.partition(",")[0] for mark in block.panels[1].marks] == ["greedy: do not", "t1: γ = 2"]
    assert legend(block) == [
        ("curve", "s0", "●"), ("curve", "s1", "■"), ("plain", "ink", ""), ("ring", "ink", "○"), ("band", "ink", ""),
        ("interval", "ink", "○"),
    ]  # fmt: skip
    without = sections.speedup_blocks(by_setting, answers, ["greedy", "t1"], {})
    assert len(without[0].legend) == 5


def test_settings_of_equal_costs_share_a_block_of_bars() -> None:
    by_setting = curves(predicted(SMALL))
    (block,) = sections.cost_blocks(by_setting, ["greedy", "t1"])
    assert [page.marks[f"bar {part}"] for page in pages(block) for part in ("draft", "verify", "rest")] == [3] * 6
    assert [page.marks["bar overhead"] for page in pages(block)] == [0, 0]
    slower = {
        setting: {
            point: [replace(row, t_verify_mean_s=1.0) if setting.sampling == "t1" else row for row in curve]
            for point, curve in points.items()
        }
        for setting, points in by_setting.items()
    }
    assert [one.title for one in sections.cost_blocks(slower, ["greedy", "t1"])] == ["sampling greedy", "sampling t1"]
    assert [page.marks["bar transfer"] for page in pages(block)] == [0, 0]
    crossing = {
        setting: {point: [replace(row, t_transfer_s=0.001) for row in curve] for point, curve in points.items()}
        for setting, points in by_setting.items()
    }
    (crossed,) = sections.cost_blocks(crossing, ["greedy", "t1"])
    assert [page.marks["bar transfer"] for page in pages(crossed)] == [3, 3]
    assert ("patch", "bar-transfer", "") in legend(crossed)
    (shown,) = sections.cost_blocks(curves(predicted(replace(SMALL, overhead_s=0.001))), ["greedy", "t1"])
    assert [page.marks["bar overhead"] for page in pages(shown)] == [3, 3]
    assert ("patch", "bar-overhead", "") in legend(shown)


def test_nothing_known_gives_no_block() -> None:
    shape = replace(SMALL, broken={(1, 64): ("oom", ""), (4, 64): ("oom", "")})
    by_setting = curves(predicted(shape))
    assert sections.speedup_blocks(by_setting, recommended(shape), ["greedy", "t1"], {}) == []
    assert sections.cost_blocks(by_setting, ["greedy", "t1"]) == []


def test_acceptance_has_survival_and_each_step() -> None:
    frames = {("p", "t1"): acceptance_frame(12, 40, 0.7)}
    (block,) = sections.acceptance_blocks(acceptance_curves(frames, SMALL.config()), ["greedy", "t1"])
    survival, steps = (panel.svg for panel in block.panels)
    for place in (1, 2, 3):
        assert f"t1, position {place}: {0.7**place:.3f}" in survival
        assert f"t1, position {place}: 0.700" in steps
    assert [page.marks["band s1"] for page in pages(block)] == [1, 0]


def test_a_heat_map_shows_the_answer_of_every_point_and_why_there_is_none() -> None:
    shape = Shape(alphas={"t1": 0.7}, broken={(4, 256): ("oom", "no room")})
    (points,) = curves(predicted(shape)).values()
    svg = sections.heat_map(
        points, {one.point: one for one in recommended(shape)}, [1, 4, 16], [64, 256], key="k", title="T"
    )
    page = Page(f"<!DOCTYPE html>\n{svg}")
    assert (page.marks["cell"], page.marks["cell-value"], page.marks["cell-note"]) == (6, 3, 3)
    assert "batch 4, context 256: oom" in page.text
    assert "batch 16, context 64: no data" in page.text
    answered = {one.point: one for one in recommended(shape)}[Point(batch_size=1, context=64)]
    assert (answered.best_gamma, answered.recommended_gamma) == (3, 2)  # the map shows what the answer says
    assert f"batch 1, context 64: {answered.speedup.value:.2f}\u202f× at γ = 2, speculate" in page.text
    assert 'width="202" height="204"' in svg
    assert "0.50\u202f×" in sections.colour_key()


def test_acceptance_comes_from_the_recorded_positions() -> None:
    (one,) = acceptance_curves({("p", "t1"): acceptance_frame(12, 40, 0.7)}, ONE.config())
    assert one.setting.mode == ""
    assert one.survival == pytest.approx([0.7**place for place in range(1, 7)])
    assert one.low == pytest.approx(one.survival), "every prompt is alike"
    assert one.tokens_per_round == pytest.approx(sum(0.7**place for place in range(7)))
    assert (one.alpha_overlap, one.alpha_accepted, one.alpha_omega) == pytest.approx((0.7, 0.7, 0.7))
    assert (one.texts.prompts, one.texts.positions, one.texts.null_share) == (12, 480, 0.0)


def test_single_prompts_have_no_interval_and_positions_outside_the_support_are_counted() -> None:
    frame = acceptance_frame(1, 40, 0.7)
    frame.loc[::4, ["target_prob", "draft_prob"]] = float("nan")
    (one,) = acceptance_curves({("p", "t1"): frame}, ONE.config())
    assert set(one.low) == {None}
    assert one.texts.null_share == 0.25


def test_conditional_acceptance_is_the_ratio_of_neighbours() -> None:
    assert conditional([0.8, 0.4, 0.1]) == pytest.approx([0.8, 0.5, 0.25])
    assert conditional([0.5, 0.0, 0.0]) == [0.5, 0.0, None]
    assert conditional([0.5, None, 0.1]) == [0.5, None, None]
    assert conditional([0.5, 0.625, 0.25]) == [0.5, 1.0, 0.4]


def test_the_rest_and_the_overhead_of_a_shared_bar_are_the_largest() -> None:
    low, high = curve(t_round_s=0.02), curve(t_round_s=0.03)
    (bar,) = cost_bars({"a": low[:1], "b": high[:1]})
    assert bar.rest_s == pytest.approx(0.03 - (low[0].t_draft_total_s or 0) - (low[0].t_verify_s or 0))
    one = curve()[0]
    shared = {name: [replace(one, t_overhead_s=value)] for name, value in (("a", 0.001), ("b", None), ("c", 0.003))}
    assert cost_bars(shared)[0].overhead_s == 0.003


def test_an_overhead_that_noise_made_negative_takes_nothing_off_the_bar() -> None:
    one = curve()[0]
    (bar,) = cost_bars({"t1": [replace(one, t_overhead_s=-0.001)]})
    assert bar.overhead_s == -0.001
    assert bar.total_s == pytest.approx(one.t_round_s)
    t_round_s = known(one.t_round_s) + 0.002
    (bar,) = cost_bars({"t1": [replace(one, t_overhead_s=0.002, t_round_s=t_round_s)]})
    assert bar.total_s == pytest.approx(t_round_s)


def test_unknown_costs_have_no_bar_and_no_axis() -> None:
    rows = curve(t_verify_s=None, t_verify_mean_s=None, t_decode_s=None)
    assert cost_bars({"t1": rows}) == []
    assert cost_domain([{"t1": rows}]) is None
    unit, top = known(cost_domain([{"t1": curve()}]))
    assert unit.name == "ms"
    # the tallest: Ω(6) · T_decode = 3.06 · 10.064 ms
    assert top == pytest.approx(1.06 * sum(0.7**place for place in range(7)) * 10.064)


TWO = replace(ONE, batch_sizes=(1, 4), gammas=(1, 2))


def predictions(rows: list[PredictionRow]) -> Table | None:
    return prediction_table(curves(rows), {(row.setting, row.point, row.gamma) for row in rows if row.is_recommended})


PREDICTIONS = {
    "every gamma of two settings": predictions(predicted(replace(ONE, alphas={"greedy": 0.82, "t1": 0.7}))),
    "provenance differs": predictions(predicted(replace(TWO, contexts=(16, 64)))),
    "labels differ": predictions([replace(row, label="x" * (row.gamma == 1)) for row in predicted(ONE)]),
    "a point without a number": predictions(predicted(replace(TWO, broken={(4, 64): ("oom", "no room")}))),
    # γ = 2: 10.064 · (.3 + 1.12 + .49 · .015) + 1 = 15.4 ms
    "a measured overhead": predictions(predicted(replace(ONE, gammas=(1, 2), overhead_s=0.001))),
    "nothing": predictions([]),
}


def test_the_cells_of_every_table(tmp_path: Path, snapshot: Callable[[str, str], None]) -> None:
    # timings: three blocks of five samples at −1, −.5, 0, .5 and 1 %: the 90 % interval of the median of 15 reaches
    # from the 4th to the 12th, −.5 % to .5 %; the median of the first seven is −.5 %, of the last seven .5 %: drift
    # 1.0 %; first calls were made five times as slow; the chain is γ_max = 6 drafts of 15 % of 10.064 ms
    timings = read_report_data(build_run(tmp_path / "one", ONE)).timings
    broken = replace(TWO, contexts=(64, 256), broken={(4, 256): ("oom", "no room")})
    data = read_report_data(build_run(tmp_path / "broken", broken))
    tables = PREDICTIONS | {
        "timings": timing_table(timings, 0.9),
        "no timings": timing_table([], 0.9),
        "timings without those of a broken cell": timing_table(data.timings, 0.9),
        "a broken cell": broken_table(data.timings),
        "no broken cell": broken_table(timings),
    }
    snapshot("tables", "\n".join(f"{name}\n{table_text(table)}" for name, table in tables.items()))
    assert len(chosen_gammas(data.recommendations)) == 3


def test_a_gamma_that_loses_is_marked_as_nothing() -> None:
    rows = predicted(ONE)
    recommended = {(row.setting, row.point, row.gamma) for row in rows if row.is_recommended}

    def marks(chosen: Any, losing: Any) -> list[str]:
        table = known(prediction_table(curves(rows), chosen, losing))
        return [row.cells[4] for row in table.groups[0].rows]

    assert marks(recommended, ()) == ["", "to use", "largest S", "", "", ""]
    assert marks((), ()) == ["", "", "largest S", "", "", ""]
    assert marks((), {(rows[0].setting, rows[0].point)}) == [""] * 6


def test_omega_by_the_category_of_prompts() -> None:
    """Prompts 0 to 3 pass .5 of their drafts, 4 to 7 pass .25, prompt 8 all; Ω(γ) = 1 + a + … + a^γ."""
    frame = acceptance_frame(9, 40, 0.5)
    frame.loc[frame["prompt"].between(4, 7), ["draft_prob", "overlap_ratio"]] = 0.25
    frame.loc[frame["prompt"] == 8, ["draft_prob", "overlap_ratio"]] = 1.0
    named = {"p": dict.fromkeys(range(4), "code") | dict.fromkeys(range(4, 8), "chat")}
    found = acceptance_curves({("p", "t1"): frame}, SMALL.config(), named)
    table = known(category_table(found, [1, 2]))
    assert table.columns == ["category", "prompts", "Ω(γ\u00a0=\u00a01)", "Ω(γ\u00a0=\u00a02)"]
    ((*rows, whole),) = [group.rows for group in table.groups]
    assert [row.cells for row in rows] == [
        ["code", "4", "1.50 (1.50–1.50)", "1.75 (1.75–1.75)"],
        ["chat", "4", "1.25 (1.25–1.25)", "1.31 (1.31–1.31)"],
        ["none given", "1", "2.00", "3.00"],
    ]
    pooled = 9 / (4 / 1.5 + 4 / 1.25 + 1 / 2)  # texts of one length: rounds go as 1 / Ω
    assert (whole.cells[:2], whole.cells[2][:4], whole.chosen) == ([ALL_PROMPTS, "9"], f"{pooled:.2f}", True)
    assert known(category_table(found, [])).columns[2:] == ["Ω(γ\u00a0=\u00a03)"]
    assert category_table(acceptance_curves({("p", "t1"): frame}, SMALL.config()), [1]) is None


def test_drafts_of_one_target_stand_side_by_side() -> None:
    found = known(side_table(a_ranking(SMALL_ENTRY, entry("lookup", 1.1, 1.0, 1.2))))
    assert found.caption == "Target embedded"
    ((group),) = found.groups
    assert group.heading == "sampling greedy · batch 2, 64 tokens of context"
    assert [(row.chosen, list(row.cells)) for row in group.rows] == [
        (True, ["small", "embedded", "eager", "best", "3", "1.60 (1.50–1.70)", "2.50", "160"]),
        (False, ["lookup", PAIRS["lookup"].draft.label, "eager", "slower", "3", "1.10 (1.00–1.20)", "2.50", "110"]),
    ]
    assert side_table(a_ranking(SMALL_ENTRY)) is None


def test_an_interval_that_an_axis_cuts_is_told_over_its_panel() -> None:
    by_setting, answers = curves(predicted(ONE)), recommended(ONE)

    def marks(high: float) -> list[str]:
        row = a_record(sampling="t1", speedup_measured=1.5, speedup_measured_low=1.4, speedup_measured_high=high)
        (block,) = sections.speedup_blocks(by_setting, answers, ["t1"], validated([row]))
        return [mark for panel in block.panels for mark in panel.marks]

    assert marks(1.6) == ["t1: γ = 2, 1.53\u202f×"]
    assert marks(9.0) == ["t1: γ = 2, 1.53\u202f×", sections.CUT]


def test_drift_is_that_of_what_was_taken(tmp_path: Path) -> None:
    """The later half of the blocks is half as slow again; taken at one pace, no arm would show it."""
    predict_run(searched_run(tmp_path, {arm: range(4) for arm in (*BASE, "verify:2")}, {}, {2: 1.5, 3: 1.5}))
    table = timing_table(read_report_data(tmp_path).timings, 0.9)
    assert known(table).groups[0].rows[0].cells[0:6:5] == ["T_decode", "+50.0\u202f%"]


def test_what_other_programs_did_beside_the_samples() -> None:
    counted = {"wall_s": 5.0, "steal_s": 0.6, "pressure_s": 2.25, "disturbed": 3, "retaken": 4}
    cell = collected(made.line("decode", [[1.0]] * 5, disturbance=counted), made.line("draft", [[1.0]] * 5))
    table = known(timing_table([cell], 0.9))
    shown = {row.cells[0]: row.cells[6:10] for row in table.groups[0].rows}
    assert list(shown.values()) == [["3", "4", "12\u202f%", "45\u202f%"], ["0", "0", "–", "–"]]
    assert table.columns[6:10] == ["disturbed", "retaken", "steal", "pressure"]


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
    "rounds that chance hardly explains": validation.validation_table(
        [a_record(rounds_standard_errors=-9.06, rounds_agree=False), a_record(gamma=3, **UNCOUNTED)], set()
    ),
    "two points with one baseline each": validation.baseline_table(
        [a_record(), a_record(gamma=3), a_record(batch_size=4, plain_over_generate=0.9, plain_over_loop=None)]
    ),
    "no baseline": validation.baseline_table([a_record(plain_over_generate=None, plain_over_loop=None)]),
    "a policy without a replay": validation.policy_table(
        [a_record(**policy_row(policy="heuristic", **dict.fromkeys(NO_REPLAY))), a_record(**policy_row())]
    ),
    "no policy": validation.policy_table([]),
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
        name: section_text(validation.validation_section(read_report_data(decode(run, *rows)), ["greedy", "t1"]))
        for name, rows in SECTIONS.items()
    } | {name: table_text(table) for name, table in TABLES.items()}
    snapshot("validation_section", "\n".join(f"{name}\n{text}" for name, text in told.items()))


def test_without_decoded_texts_there_is_one_sentence(run: Path) -> None:
    data = replace(read_report_data(decode(run, validation_row())), validation=(), validation_summary=None)
    section = validation.validation_section(data, ["greedy"])
    assert (section.missing, section.found, section.table, section.blocks) == (validation.NOT_ASKED, "", None, ())
    assert "validate: {}" in validation.NOT_ASKED
    asked = replace(data, config=data.config.model_copy(update={"validation": ValidateConfig()}))
    assert validation.validation_section(asked, ["greedy"]).missing == validation.NOT_YET.format(remedy=RESUME)
    late = replace(asked, warnings=[WarningRow(code="out_of_time", message="", remedy="take more seconds")])
    assert validation.validation_section(late, ["greedy"]).missing.endswith("predictions yet: take more seconds.")


def test_policies_have_no_say_in_what_is_said_of_gammas(run: Path) -> None:
    plain = read_report_data(decode(run, validation_row()))
    both = read_report_data(decode(run, validation_row(), policy_row()))
    assert (both.validation, both.validation_summary) == (plain.validation, plain.validation_summary)
    assert len(both.policies) == 1


def test_points_are_told_apart_by_sampling_and_batch_size() -> None:
    rows = [a_record(), a_record(batch_size=4), a_record(sampling="t1", batch_size=4)]
    (block,) = validation.scatter_blocks(rows, ["greedy", "t1"])
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
        marks = Page(f"<!DOCTYPE html>\n{panel.svg}").marks
        assert (marks["dots s0"], marks["dots s1"], marks["interval"]) == (2, 1, 3)
        assert f"<title>{words}</title>" in panel.svg


def test_pairs_have_blocks_and_many_batch_sizes_open_markers() -> None:
    rows = [a_record(), a_record(pair="other"), a_record(pair="other", sampling="t1")]
    blocks = validation.scatter_blocks(rows, ["greedy", "t1"])
    assert [(block.title, len(block.legend)) for block in blocks] == [("pair p", 4), ("pair other", 5)]
    (block,) = validation.scatter_blocks([a_record(batch_size=size) for size in (1, 2, 4, 8, 16)], ["greedy"])
    assert block.panels[0].svg.count('class="open s0"') == 1
    assert [entry.glyph for entry in block.legend[1:6]] == ["●", "■", "▲", "◆", "○"]


def test_a_row_without_a_stretch_to_compare_has_no_point() -> None:
    nothing = dict.fromkeys(("speedup_measured", "tokens_per_round_counted"))
    assert validation.scatter_blocks([a_record(**nothing)], ["greedy"]) == []
    lone = a_record(speedup_measured_low=None, speedup_measured_high=None, acceptance_error_low=None)
    (block,) = validation.scatter_blocks([lone], ["greedy"])
    assert all('class="interval"' not in panel.svg for panel in block.panels)


def test_rows_stand_by_setting_point_and_gamma_and_the_recommended_stand_out() -> None:
    rows = [a_record(gamma=gamma, context=context) for context in (256, 64) for gamma in (4, 2)]
    rows.insert(1, a_record(sampling="t1"))
    groups = validation.validation_table(rows, {(rows[0].setting, rows[0].point, 4)}).groups
    found = [(group.heading.split()[0], [(row.cells[0], row.chosen) for row in group.rows]) for group in groups]
    assert found == [
        ("greedy", [("2", False), ("4", False)]),
        ("greedy", [("2", False), ("4", True)]),
        ("t1", [("2", False)]),
    ]


def test_what_the_product_decodes_is_reported_of_a_stopped_run_too(tmp_path: Path) -> None:
    config = made.config(grid={"batch_size": 1, "context": [64, 256], "gamma": "1:3"}, validate={})
    blocks = {
        key(start_context=context): [Batch(prompts=(prompt,), context=context) for prompt in (0, 1)]
        for context in (64, 256)
    }
    run = decoded_run(tmp_path / "run", blocks, config, (1, 2, 3))
    stopped = read_report_data(run.path)
    predicted = predict_run(run)
    assert Run.open(run.path).validation() == predicted.validation
    data = read_report_data(run.path)
    assert [(row.point.context, row.gamma) for row in data.validation] == [(c, g) for c in (64, 256) for g in (1, 2, 3)]
    assert stopped.validation == data.validation
    page = Page(write_report(run.path).read_text(encoding="utf-8"))
    assert "Decoded end to end in 2 cells" in page.text
