"""The picture of a run: formats, labels that say what differs, and honest refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgauge.reports.plot import line_labels, write_plot
from specgauge.reports.records import Strategy
from tests.reports.synthetic import Shape, build_run

SIGNATURES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("ending", SIGNATURES)
def test_each_format_is_written(tmp_path: Path, ending: str) -> None:
    run = build_run(tmp_path / "run", Shape())
    out = write_plot(run, tmp_path / f"speedup.{ending}")
    assert out.read_bytes().startswith(SIGNATURES[ending])


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Shape())
    first, second = (write_plot(run, tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second


def test_another_format_is_refused_in_one_line(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", Shape())
    with pytest.raises(ValueError, match=r"found ending '\.gif'; allowed: \.png, \.svg, \.pdf$"):
        write_plot(run, tmp_path / "speedup.gif")


def test_labels_say_only_what_differs() -> None:
    one = Strategy("p", "eager", "greedy", "same", "ratio")
    assert line_labels([one]) == {one: "greedy"}
    two = one._replace(sampling="t1", acceptance_rule="match")
    assert line_labels([one, two]) == {one: "greedy, ratio", two: "t1, match"}
