"""Parts of a pair: its acceptance, or cells of it, measured by several processes into one run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run import pair_process
from specgauge.sweeps.run.session import Part
from specgauge.sweeps.run.worker import end_pair, measure_apart, work
from specgauge.sweeps.store.outcomes import PairOutcome, together
from specgauge.sweeps.store.rundir import ENVIRONMENT, Run
from specgauge.sweeps.store.schema import WarningRow
from tests.sweeps import made, odd_workers
from tests.sweeps.fake_bench import PROMPTS, FakeBench

ARMS = arm_names((1, 2))
DECODED = made.config(
    grid={"batch_size": [1, 2], "context": [64, 65], "gamma": "1:2"},
    validate={"gamma": 2, "prompts": 2, "max_new_tokens": 6, "max_seconds": 1000.0},
)
SMALL = tuple(cell.id for cell in plan_cells(DECODED) if cell.batch_size == 1)


def test_the_machine_alone(tmp_path: Path, bench: FakeBench) -> None:
    made.begin(tmp_path, DECODED).close()
    (tmp_path / ENVIRONMENT).unlink()
    assert work(tmp_path, "p", part=Part(acceptance=False, cells=())) == PairOutcome()
    assert Run.open(tmp_path).environment["threads"] == made.ENVIRONMENT["threads"]
    assert bench.loaded == []


def test_a_part_measures_nothing_of_the_others(tmp_path: Path, bench: FakeBench) -> None:
    """Acceptance first, by the prompts that it is given; then cells of one batch size, timed and decoded."""
    made.begin(tmp_path, DECODED).close()
    assert work(tmp_path, "p", part=Part(cells=(), prompts=tuple(PROMPTS[:4]))) == PairOutcome()
    assert (bench.recorded, bench.measured, bench.decoded) == ([4], [], [])
    assert work(tmp_path, "p", part=Part(acceptance=False, cells=SMALL)) == PairOutcome()
    assert bench.recorded == [4]
    assert {point[:2] for point in bench.measured} == {one.point for one in bench.decoded} == {(1, 64), (1, 65)}
    assert len(bench.measured) == 2 * len(ARMS) * 3


def test_a_part_has_its_share_of_the_seconds_for_decoding(
    tmp_path: Path, bench: FakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four points: 500 of 1000 seconds, a third of it for what is decoded again, half for each cell."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    made.begin(tmp_path, DECODED).close()
    work(tmp_path, "p", part=Part(cells=SMALL))
    assert bench.spare_s[0] == pytest.approx(500.0 / 3 / 2)


def test_a_part_that_dies_costs_its_own_cells(tmp_path: Path) -> None:
    with made.begin(tmp_path, DECODED) as opened:
        outcome = end_pair(opened, "p", "gone", Part(acceptance=False, cells=SMALL))
    assert outcome.acceptance_reasons == {}
    assert outcome.validation_reasons == {"every cell of batch size 1": "killed: gone"}
    assert {line.cell for line in Run.open(tmp_path).journal()} == set(SMALL)


def test_the_outcome_of_a_pair_is_that_of_its_parts() -> None:
    """Seconds are needed by those that left something out, as many at once as are measured at once."""
    row = WarningRow(code="c", message="m", remedy="r")
    parts = [
        PairOutcome(acceptance_reasons={"a": "oom"}, warnings=[row], left_out=["x"], needed_s=30.0),
        PairOutcome(bad_input="first", validation_reasons={"b": "killed"}, warnings=[row], failed=True),
        PairOutcome(bad_input="second", died="killed: n", left_out=["x", "y"], needed_s=10.0, needed_decoding_s=7.0),
    ]
    assert together(parts, at_once=2) == PairOutcome(
        bad_input="first",
        died="killed: n",
        failed=True,
        acceptance_reasons={"a": "oom"},
        validation_reasons={"b": "killed"},
        warnings=[row],
        left_out=["x", "y"],
        needed_s=20.0,
        needed_decoding_s=7.0,
    )
    unknown = [PairOutcome(left_out=["x"], needed_s=1.0), PairOutcome(left_out=["y"])]
    assert together(unknown).needed_s is None
    assert together([PairOutcome(), PairOutcome()]) == PairOutcome()


def test_what_watches_a_worker_ends_it_by_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called again and again while the worker measures."""
    made.begin(tmp_path, DECODED).close()
    (first, *_) = plan_cells(DECODED)
    accidents: Sequence[str] = ("fake", f"pause in {first.id}")
    monkeypatch.setattr(pair_process, "work_apart", odd_workers.with_accidents(*accidents))
    monkeypatch.setenv("PYTHONPATH", odd_workers.PATHS)
    calls: list[Any] = []

    def watch() -> None:
        calls.append(None)
        if len(calls) > 2:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        measure_apart(tmp_path, DECODED, "p", say=print, watch=watch)
    made.begin(tmp_path, DECODED).close()  # nobody holds it any more
