"""What comes after a run of servers: answers, report, exports and comparison take it as any other run."""

from dataclasses import replace

import pytest

from specgauge.reports.html import write_report
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.compare import compare
from specgauge.sweeps.exports.registry import ENGINES
from specgauge.sweeps.exports.run_answers import run_answers
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.store.rundir import Run
from tests.sweeps.served.simulated import Servers, measure, served_config
from tests.sweeps.served.test_measure import engines
from tests.sweeps.validation_rows import validation_row


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """One whose rounds cost more at batch size 16, and the same on slower servers."""
    folder = tmp_path_factory.mktemp("served")
    config = served_config((0, 2), grid={"batch_size": [1, 16], "context": 64})
    found = []
    for name, slower in (("first", 1.0), ("second", 1.5)):
        own: Servers = engines(0, 2, step_s=0.01 * slower, draft_s=0.001 * slower, token_s=0.002 * slower, alpha=0.6)
        measure(folder / name, config, own)
        predict_run(Run.open(folder / name))
        found.append(Run.open(folder / name))
    return found[0], found[1]


def test_the_answer_is_of_an_engine_and_names_the_next_step(runs: tuple[Run, Run]) -> None:
    answers = recommend(runs[0])
    assert [entry["decision"] for entry in answers.known] == ["speculate", "do not speculate"]
    assert all(entry["whole_rounds"] for entry in answers.known)
    assert answers.trust.level == "middling"
    assert "import" not in answers.next_step


@pytest.mark.parametrize(("mean", "level"), [(0.15, "middling"), (0.16, "low")])
def test_trust_falls_where_what_was_measured_is_far_from_what_was_predicted(
    runs: tuple[Run, Run], mean: float, level: str
) -> None:
    answers = replace(recommend(runs[0]), validation=(validation_row(error=mean),))
    assert (answers.trust.level, answers.trust.reasons[1]) == (
        level, f"predicted S within {100 * mean:.1f} % of measured",
    )  # fmt: skip


def test_the_schedule_drafts_where_it_pays(runs: tuple[Run, Run]) -> None:
    engine = ENGINES["vllm"]
    answers = run_answers(runs[0], engine.rules, undecided="off")
    assert "servers" in answers.origin
    assert {point.batch_size: point.gamma for point in answers.points} == {1: 2, 16: 0}


def test_the_report_is_written_without_a_gap(runs: tuple[Run, Run]) -> None:
    page = write_report(runs[0].path).read_text(encoding="utf-8")
    assert "Acceptance was counted by the engine" in page
    assert "No acceptance has been recorded" not in page


def test_slower_servers_are_told_by_a_comparison(runs: tuple[Run, Run]) -> None:
    found = compare(*runs)
    plain = [ratio for cell in found.cells for ratio in cell.ratios if ratio.figure == "plain"]
    assert plain
    assert all(ratio.ratio == pytest.approx(1 / 1.5, rel=0.02) for ratio in plain)
