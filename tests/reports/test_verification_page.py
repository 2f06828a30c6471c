"""Pages and pictures of runs that hold texts decoded end to end."""

import re
from pathlib import Path

import pytest

from specgauge.reports.data import read_report_data
from specgauge.reports.html import write_report
from specgauge.reports.plot import MEASURED, write_plot
from specgauge.reports.verification_section import NOT_ASKED
from specgauge.sweeps.analysis.predictions import predict_run
from specgauge.sweeps.store.rundir import Run
from tests.reports.pages import Page, read_page
from tests.reports.synthetic import Shape, build_run
from tests.reports.verified_rows import a_forced_row, a_row, decode
from tests.sweeps import made
from tests.sweeps.decoded import Batch, key, write_blocks

HOSTILE = """<script>alert('x')</script> & "quoted" 'single' {{ 7 * 7 }} </style>"""
ONE = Shape(alphas={"greedy": 0.82}, batch_sizes=(1,), contexts=(64,), gammas=(1, 2, 3), overhead_s=0.001)


def report(run: Path) -> tuple[str, Page]:
    html = write_report(run).read_text(encoding="utf-8")
    return html, read_page(html)


def section(html: str) -> str:
    return html[html.index('id="verification"') : html.index('<section aria-labelledby="cost"')]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = (a_row(), a_row(gamma=3, speedup_measured=1.8, speedup_measured_low=None, speedup_measured_high=None))
    return decode(build_run(tmp_path_factory.mktemp("page") / "run", ONE), *rows)


@pytest.fixture(scope="module")
def page(run: Path) -> tuple[str, Page]:
    return report(run)


def test_the_section_is_sound_and_offline(page: tuple[str, Page]) -> None:
    html, read = page
    assert "http" not in html
    assert read.ids.count("verification") == 1
    assert "#verification" in read.links
    assert "Decoded end to end in 1 cell: predicted S within 10.0\u202f% of measured on average" in read.text
    assert "2 1.65 1.53 1.50 1.40–1.60 +2.0\u202f% 2.20 2.00 +10.0\u202f% −5.0 to +25.0\u202f%" in read.text
    assert "batch 1, context 64 1.10\u202f× 1.05\u202f×" in read.text


def test_the_answer_stands_beside_what_was_measured(page: tuple[str, Page]) -> None:
    # Ω(3) = 1 + .82 + .82² + .82³ = 3.0438; a round costs .45 + 1.18 + .5514 · .015 of 10.064 ms and 1 ms: 17.49 ms
    _, read = page
    measured = "measured end to end: 1.80\u202f×"
    said = f"speculate with γ = 3: 1.75\u202f× (90\u202f% interval 1.70–1.80); {measured}."
    assert f"At batch 1 and 64 tokens of context: {said}" in read.text
    assert f"γ = 3, batch 1, 64 tokens of context; {measured}." in read.text


def test_measured_points_stand_over_the_predicted_curve(page: tuple[str, Page]) -> None:
    html, read = page
    figures = html[html.index('id="speedup"') : html.index('id="verification"')]
    assert figures.count('class="measured c0"') == 2
    assert figures.count('class="measured-bar c0"') == 1, "one of the two has no interval"
    assert "greedy, γ = 2, measured end to end: 1.50\u202f× (1.40–1.60)." in figures
    assert "Open markers are what was measured end to end." in read.text


def test_the_overhead_is_a_part_of_the_round(page: tuple[str, Page]) -> None:
    html, read = page
    assert html.count('class="bar overhead"') == 3 + 1, "a part of every bar, and one in the legend"
    assert "γ = 1, ε: 1.00 ms of" in html
    assert "optimistic: overhead not measured" not in read.text


def test_the_same_run_gives_the_same_bytes(page: tuple[str, Page], run: Path) -> None:
    assert report(run)[0] == page[0]


def test_without_decoded_texts_one_sentence_says_how(tmp_path: Path) -> None:
    html, read = report(build_run(tmp_path / "run", ONE))
    words = re.sub(r"<[^>]*>", " ", section(html).partition(">")[2])
    assert words.split() == ["Prediction", "against", "measurement", *NOT_ASKED.split()]
    assert "measured end to end" not in read.text
    assert "Open markers" not in read.text


def test_forced_acceptance_is_visible_and_no_answer(tmp_path: Path) -> None:
    html, read = report(
        decode(build_run(tmp_path / "run", ONE), a_forced_row(gamma=3), a_forced_row(speedup_measured=3.0))
    )
    assert read.text.count("None of these texts is lossless") == 2, "before the warnings, and in the section"
    assert "measured end to end" not in read.text
    assert 'class="measured c0"' not in html
    assert "S from the rounds counted" in section(html)


def test_names_are_text_never_markup(tmp_path: Path) -> None:
    run = decode(
        build_run(tmp_path / "run", ONE),
        a_forced_row(pair=HOSTILE, sampling=HOSTILE, why_not_lossless=HOSTILE, overhead_from=HOSTILE),
        a_row(mode=HOSTILE, draft_sampling=HOSTILE, acceptance_rule=HOSTILE, overhead_from=HOSTILE),
    )
    html, read = report(run)
    assert read.text.count(HOSTILE) > 8
    assert "<script" not in html


def test_decoded_texts_that_were_not_compared_are_a_gap(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", ONE)
    (run / "requests.parquet").write_bytes(b"anything")
    assert [gap.code for gap in read_report_data(run).gaps] == ["not_compared"]
    assert [gap.code for gap in read_report_data(decode(run, a_row())).gaps] == []


def test_a_damaged_table_is_named_and_the_old_report_stays(tmp_path: Path) -> None:
    run = decode(build_run(tmp_path / "run", ONE), a_row())
    before = write_report(run).read_bytes()
    (run / "validation.csv").write_text("pair\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"validation\.csv: expected the column 'mode'"):
        write_report(run)
    assert (run / "report.html").read_bytes() == before


def test_a_picture_shows_what_was_measured(run: Path, tmp_path: Path) -> None:
    drawn = write_plot(run, tmp_path / "with.svg").read_bytes()
    plain = write_plot(build_run(tmp_path / "run", ONE), tmp_path / "without.svg").read_bytes()
    assert MEASURED.encode() in drawn
    assert MEASURED.encode() not in plain


@pytest.mark.parametrize("stopped", [False, True])
def test_what_the_product_decodes_is_reported(tmp_path: Path, stopped: bool) -> None:
    config = made.config(
        grid={"batch_size": 1, "context": [64, 256], "gamma": "1:3"}, verify={}, workload={"max_new_tokens": 64}
    )
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
    assert len(data.verified) == 6
    (one,) = [row for row in data.verified if (row.place.context, row.gamma) == (64, 2)]
    # rounds commit 3 and 1 tokens by turns; parts 1.5 s and, after full acceptance, 1/16 more; ε is the other context's
    assert one.tokens_per_round_counted == pytest.approx(2.0, abs=0.05)
    assert one.t_overhead_s == pytest.approx(0.125)
    assert one.overhead_from == "other contexts"
    assert one.speedup_measured is not None
    assert one.tokens_per_round_counted is not None
    round_s = one.tokens_per_round_counted / one.speedup_measured
    assert one.cost_error == pytest.approx(round_s / (round_s + 0.125 - 0.0625) - 1.0)
    _, read = report(run.path)
    assert "Decoded end to end in 2 cells: predicted S within" in read.text
