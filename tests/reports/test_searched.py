"""A run whose γ were searched for: the page says which were left out and by what bound."""

from __future__ import annotations

from pathlib import Path

from specgauge.reports.data import read_report_data
from specgauge.reports.html import write_report
from specgauge.reports.timings import part_timings
from specgauge.sweeps.analysis.predictions import predict_run
from tests.sweeps.run.test_searched_cells import BASE, RULED_OUT, searched_run


def test_the_page_says_what_excluded_a_gamma(tmp_path: Path) -> None:
    predict_run(searched_run(tmp_path))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert RULED_OUT in page
    assert "T_verify(1), T_verify(3)" in page


def test_drift_is_that_of_what_was_taken(tmp_path: Path) -> None:
    """The later half of the blocks is half as slow again; taken at one pace, no arm would show it."""
    searched_run(tmp_path, {arm: range(4) for arm in (*BASE, "verify:2")}, {}, {2: 1.5, 3: 1.5})
    parts = {part.arm: part for part in part_timings(read_report_data(tmp_path).timings, 0.9)}
    assert parts["decode"].drift == 0.5
