from dataclasses import replace

from specgauge.model.settings import Point, Setting
from specgauge.reports.records import DO_NOT, Curves, curves, validated
from specgauge.reports.sections import (
    Block,
    acceptance_blocks,
    colour_key,
    cost_blocks,
    heat_map,
    setting_titles,
    speedup_blocks,
)
from specgauge.reports.summaries import acceptance_curves
from specgauge.sweeps.store.schema import RecommendationRow
from tests.reports.pages import Page, read_page
from tests.reports.synthetic import Shape, recommended
from tests.reports.synthetic import predicted as prediction_rows
from tests.reports.validation_rows import a_record
from tests.sweeps.made import acceptance_frame

SMALL = Shape(batch_sizes=(1, 4), contexts=(64,), gammas=(1, 2, 3))


def predicted(shape: Shape) -> tuple[Curves, list[RecommendationRow]]:
    return curves(prediction_rows(shape)), recommended(shape)


def pages(block: Block) -> list[Page]:
    return [read_page(f"<!DOCTYPE html>\n{panel.svg}") for panel in block.panels]


def legend(block: Block) -> list[tuple[str, str, str]]:
    return [(entry.kind, entry.role, entry.glyph) for entry in block.legend]


def test_settings_that_differ_by_sampling_only_share_a_block() -> None:
    one = Setting(pair="p", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")
    other = replace(one, pair="q", acceptance_rule="match")
    titles = setting_titles([one, replace(one, sampling="t1"), other])
    assert list(titles.values()) == ["pair p, ratio rule", "pair p, ratio rule", "pair q, match rule"]


def test_a_panel_for_every_point_shows_every_series() -> None:
    by_setting, answers = predicted(SMALL)
    answers[1] = replace(answers[1], decision=DO_NOT, gamma=None)
    (block,) = speedup_blocks(by_setting, answers, ["greedy", "t1"], validated([a_record(gamma=3)]))
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
    without = speedup_blocks(by_setting, answers, ["greedy", "t1"], {})
    assert len(without[0].legend) == 5


def test_settings_of_equal_costs_share_a_block_of_bars() -> None:
    by_setting, _ = predicted(SMALL)
    (block,) = cost_blocks(by_setting, ["greedy", "t1"])
    assert [page.marks[f"bar {part}"] for page in pages(block) for part in ("draft", "verify", "rest")] == [3] * 6
    assert [page.marks["bar overhead"] for page in pages(block)] == [0, 0]
    slower = {
        setting: {
            point: [replace(row, t_verify_mean_s=1.0) if setting.sampling == "t1" else row for row in curve]
            for point, curve in points.items()
        }
        for setting, points in by_setting.items()
    }
    assert [one.title for one in cost_blocks(slower, ["greedy", "t1"])] == ["sampling greedy", "sampling t1"]
    (known,) = cost_blocks(predicted(replace(SMALL, overhead_s=0.001))[0], ["greedy", "t1"])
    assert [page.marks["bar overhead"] for page in pages(known)] == [3, 3]
    assert ("patch", "bar-overhead", "") in legend(known)


def test_nothing_known_gives_no_block() -> None:
    by_setting, answers = predicted(replace(SMALL, broken={(1, 64): ("oom", ""), (4, 64): ("oom", "")}))
    assert speedup_blocks(by_setting, answers, ["greedy", "t1"], {}) == []
    assert cost_blocks(by_setting, ["greedy", "t1"]) == []


def test_acceptance_has_survival_and_each_step() -> None:
    frames = {("p", "t1"): acceptance_frame(12, 40, 0.7)}
    (block,) = acceptance_blocks(acceptance_curves(frames, SMALL.config()), ["greedy", "t1"])
    survival, steps = (panel.svg for panel in block.panels)
    for place in (1, 2, 3):
        assert f"t1, position {place}: {0.7**place:.3f}" in survival
        assert f"t1, position {place}: 0.700" in steps
    assert [page.marks["band s1"] for page in pages(block)] == [1, 0]


def test_a_heat_map_shows_the_best_of_every_point_and_why_there_is_none() -> None:
    shape = Shape(alphas={"t1": 0.7}, broken={(4, 256): ("oom", "no room")})
    by_setting, answers = predicted(shape)
    (points,) = by_setting.values()
    svg = heat_map(points, {one.point: one for one in answers}, [1, 4, 16], [64, 256], key="k", title="T")
    page = read_page(f"<!DOCTYPE html>\n{svg}")
    assert (page.marks["cell"], page.marks["cell-value"], page.marks["cell-note"]) == (6, 3, 3)
    assert "batch 4, context 256: oom" in page.text
    assert "batch 16, context 64: no data" in page.text
    best = max(row.speedup or 0.0 for row in points[Point(batch_size=1, context=64)])
    assert f"batch 1, context 64: {best:.2f}\u202f× at γ = 3, speculate" in page.text
    assert 'width="202" height="204"' in svg
    assert "0.50\u202f×" in colour_key()
