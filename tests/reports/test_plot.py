from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specgauge.model.settings import Setting
from specgauge.reports.plot import MEASURED, line_labels, plot_format, speedup_figure, write_plot
from specgauge.reports.records import SPECULATE, ReportData, read_report_data
from tests.reports.synthetic import Shape, build_run
from tests.reports.validation_rows import decode
from tests.sweeps.validation_rows import validation_row

SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("plot") / "run", Shape(contexts=(64,), gammas=(1, 2, 3)))


def test_the_same_run_gives_the_same_bytes_in_each_format(run: Path, tmp_path: Path) -> None:
    for ending, signature in SIGNATURES.items():
        written = write_plot(run, tmp_path / f"speedup.{ending}").read_bytes()
        assert written.startswith(signature)
        assert ending != "svg" or write_plot(run, tmp_path / "again.svg").read_bytes() == written


def test_another_format_or_folder_is_refused_before_anything_is_drawn(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"expected ending \.png, \.svg, \.pdf, got '\.gif'$"):
        write_plot(run, tmp_path / "speedup.gif")
    (tmp_path / "d.png").mkdir()
    for name, what in (("no/x.png", "there is no directory .*no"), ("d.png", "d.png is a directory")):
        with pytest.raises(ValueError, match=f"cannot be written, .*{what}; make it, or name another file"):
            plot_format(tmp_path / name)


def test_labels_say_only_what_differs() -> None:
    one = Setting(pair="p", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")
    assert line_labels([one]) == {one: "greedy"}
    two = replace(one, sampling="t1", acceptance_rule="match")
    assert line_labels([one, two]) == {one: "greedy, ratio", two: "t1, match"}


@pytest.fixture(scope="module")
def data(run: Path) -> ReportData:
    return read_report_data(run)


def legend(data: ReportData) -> list[str]:
    (found,) = speedup_figure(data).legends
    return [text.get_text() for text in found.get_texts()]


def rings(data: ReportData) -> list[tuple[str, float]]:
    """Title of the panel and γ of every ring."""
    return [
        (axes.get_title(), gamma)
        for axes in speedup_figure(data).axes
        for line in axes.lines
        if line.get_gid() == "ring"
        for gamma in np.asarray(line.get_xdata()).tolist()
    ]


def test_a_ring_is_where_the_answer_is_to_speculate_and_the_legend_says_so(data: ReportData) -> None:
    assert {one.decision for one in data.recommendations} == {SPECULATE}
    words = ["plain decoding", *sorted({row.setting.sampling for row in data.predictions}), "90\u202f% interval"]
    first, *others = (replace(one, decision="undecided") for one in data.recommendations)
    one_left = replace(data, recommendations=[first, *data.recommendations[1:]])
    expected = [(f"batch {one.batch_size}, context {one.context}", one.gamma) for one in data.recommendations[1:]]
    assert sorted(rings(one_left)) == sorted(expected)
    assert legend(one_left) == [*words, "γ to use"]
    undecided = replace(data, recommendations=[first, *others])
    assert (rings(undecided), legend(undecided)) == ([], words)


def test_what_was_measured_is_drawn_and_told(data: ReportData, tmp_path: Path) -> None:
    assert MEASURED not in legend(data)
    run = decode(
        build_run(tmp_path / "run", Shape(contexts=(64,), gammas=(1, 2, 3))), validation_row(), validation_row(gamma=3)
    )
    decoded = read_report_data(run)
    assert MEASURED in legend(decoded)
    markers = [line for axes in speedup_figure(decoded).axes for line in axes.lines if line.get_gid() == "measured s0"]
    assert [np.asarray(line.get_ydata()).tolist() for line in markers] == [[1.5, 1.5]]
