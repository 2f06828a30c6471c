"""The picture of a run: formats, labels that say what differs, and honest refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgauge.reports.plot import line_labels, write_plot
from specgauge.reports.records import Strategy
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


def test_labels_say_only_what_differs() -> None:
    one = Strategy("p", "eager", "greedy", "same", "ratio")
    assert line_labels([one]) == {one: "greedy"}
    two = one._replace(sampling="t1", acceptance_rule="match")
    assert line_labels([one, two]) == {one: "greedy, ratio", two: "t1, match"}
