"""The picture of a run: formats, labels that say what differs, and honest refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specgauge.reports.data import ReportData, read_report_data
from specgauge.reports.plot import line_labels, plot_format, speedup_figure, write_plot
from specgauge.reports.records import SPECULATE, Strategy
from tests.reports.synthetic import Shape, build_run

SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("plot") / "run", Shape(contexts=(64,), gammas=(1, 2, 3)))


@pytest.fixture(scope="module")
def written(run: Path) -> dict[str, bytes]:
    """The picture in each format."""
    return {ending: write_plot(run, run.parent / f"speedup.{ending}").read_bytes() for ending in SIGNATURES}


@pytest.mark.parametrize("ending", SIGNATURES)
def test_each_format_is_written(written: dict[str, bytes], ending: str) -> None:
    assert written[ending].startswith(SIGNATURES[ending])


def test_the_same_run_gives_the_same_bytes(run: Path, written: dict[str, bytes], tmp_path: Path) -> None:
    assert write_plot(run, tmp_path / "again.svg").read_bytes() == written["svg"]


def test_another_format_is_refused_in_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found ending '\.gif'; allowed: \.png, \.svg, \.pdf$"):
        write_plot(run, tmp_path / "speedup.gif")


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "d.png").mkdir()
    for name, what in (("no/x.png", "there is no directory .*no"), ("d.png", "d.png is a directory")):
        with pytest.raises(ValueError, match=f"cannot be written, .*{what}; make it, or name another file"):
            plot_format(tmp_path / name)


def test_labels_say_only_what_differs() -> None:
    one = Strategy("p", "eager", "greedy", "same", "ratio")
    assert line_labels([one]) == {one: "greedy"}
    two = one._replace(sampling="t1", acceptance_rule="match")
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
        if line.get_markersize() == 9
        for gamma in np.asarray(line.get_xdata()).tolist()
    ]


def test_the_legend_says_what_is_drawn(data: ReportData) -> None:
    samplings = sorted({row.strategy.sampling for row in data.predictions})
    assert any(one.decision == SPECULATE for one in data.answers)
    assert legend(data) == ["plain decoding", *samplings, "90\u202f% interval", "γ to use"]
    undecided = replace(data, answers=[replace(one, decision="undecided") for one in data.answers])
    assert legend(undecided) == ["plain decoding", *samplings, "90\u202f% interval"]


def test_a_ring_is_where_the_answer_is_to_speculate(data: ReportData) -> None:
    pays = [one for one in data.answers if one.decision == SPECULATE]
    assert sorted(rings(data)) == sorted(
        (f"batch {one.place.batch_size}, context {one.place.context}", one.gamma) for one in pays
    )
    first = replace(data, answers=pays[:1])
    assert len(rings(first)) == 1
    assert rings(replace(data, answers=[replace(one, decision="undecided") for one in data.answers])) == []
