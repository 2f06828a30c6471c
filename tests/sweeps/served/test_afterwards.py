"""What comes after a run of servers: answers, report, exports and comparison take it as any other run."""

from dataclasses import replace
from html import unescape

import pytest

from specgauge.reports.formatting import sentence
from specgauge.reports.html import write_report
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.answer_table import answer_text
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


def test_whole_requests_of_servers_wait_for_no_batch(runs: tuple[Run, Run]) -> None:
    answers = recommend(runs[0])
    gains = [row["speedup_whole"] for row in answers.validation]
    assert answers.whole_requests == f"Whole requests, with prefills: {min(gains):.2f} to {max(gains):.2f} ×."
    assert answers.whole_requests_lose == ""


def test_the_schedule_drafts_where_it_pays(runs: tuple[Run, Run]) -> None:
    engine = ENGINES["vllm"]
    answers = run_answers(runs[0], engine.rules, undecided="off")
    assert "servers" in answers.origin
    assert {point.batch_size: point.gamma for point in answers.points} == {1: 2, 16: 0}


def test_the_break_even_concurrency_is_told(runs: tuple[Run, Run]) -> None:
    # 1.96 · 10 ms over rounds of 12 ms at 1 and 76 ms at 16 streams: 1 at 2.8 streams
    words = "Speculation pays at concurrency 1 to 2; break-even at 3 (interpolated)."
    answers = recommend(runs[0])
    assert [(one["pays"], one["break_even_batch_size"]) for one in answers.break_even] == [([[1, 2]], 3)]
    assert answers.breaks_even == words
    assert words in answer_text(answers)
    assert words in unescape(write_report(runs[0].path).read_text(encoding="utf-8"))
    assert recommend(runs[0], batch_size=1).breaks_even == ""


@pytest.mark.parametrize(
    ("pays", "end", "words"),
    [
        ([], None, "at no concurrency from 1 to 16."),
        ([[1, 16]], None, "at every concurrency from 1 to 16; break-even lies beyond."),
        ([[1, 7]], 8, "at concurrency 1 to 7; break-even at 8."),
        ([[1, 1], [4, 16]], 2, "at concurrency 1, 4 to 16; break-even at 2 (interpolated)."),
    ],
)
def test_where_speculation_pays_in_words(
    runs: tuple[Run, Run], pays: list[list[int]], end: int | None, words: str
) -> None:
    found = {"measured": [1, 8, 16], "pays": pays, "break_even_batch_size": end}
    assert replace(recommend(runs[0]), break_even=(found,)).breaks_even == f"Speculation pays {words}"


def test_report_and_terminal_trust_servers_alike(runs: tuple[Run, Run]) -> None:
    page = unescape(write_report(runs[0].path).read_text(encoding="utf-8"))
    answers = recommend(runs[0])
    assert f"Trust: {answers.trust.level}" in page
    assert answers.trust.reasons[0] in page
    assert "import" not in answers.next_step
    assert sentence(answers.next_step) in page.replace("\u00a0", " ")


def test_the_report_is_written_without_a_gap(runs: tuple[Run, Run]) -> None:
    page = write_report(runs[0].path).read_text(encoding="utf-8")
    assert "Acceptance was counted by the engine" in page
    assert "No acceptance has been recorded" not in page


def test_slower_servers_are_told_by_a_comparison(runs: tuple[Run, Run]) -> None:
    found = compare(*runs)
    plain = [ratio for cell in found.cells for ratio in cell.ratios if ratio.figure == "plain"]
    assert plain
    assert all(ratio.ratio == pytest.approx(1 / 1.5, rel=0.02) for ratio in plain)
