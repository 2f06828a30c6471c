"""Samples that other programs disturbed: told by the system's count, taken again while that helps, counted for good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from specgauge.bench.timing import neighbours
from specgauge.bench.timing.cell_timer import FEWEST_RETAKES, MOST_RETAKES
from specgauge.bench.timing.neighbours import watched_for_neighbours
from specgauge.model.arms import DISTURBED, arm_names, is_prefill
from tests.bench.timing.conftest import Run, cell

ARMS = arm_names([1])


@pytest.mark.parametrize(
    ("switches", "seconds", "is_disturbed"),
    [(0, 0.01, False), (1, 0.0, False), (2, 0.01, True), (2, 0.02, False), (82, 1.0, True), (81, 1.0, False)],
)
def test_a_sample_is_disturbed_by_more_switches_than_an_idle_machine_makes(
    monkeypatch: pytest.MonkeyPatch, switches: int, seconds: float, is_disturbed: bool
) -> None:
    counts, times = iter([7, 7 + switches]), iter([100.0, 100.0 + seconds])
    monkeypatch.setattr(neighbours, "involuntary_switches", lambda: next(counts))
    monkeypatch.setattr("specgauge.bench.timing.neighbours.time.monotonic", lambda: next(times))
    assert watched_for_neighbours(lambda: "found") == ("found", is_disturbed)


def samples_run(
    timed: Run, monkeypatch: pytest.MonkeyPatch, disturbs: Iterator[bool], context: int = 32
) -> tuple[dict[str, Any], int]:
    """Blocks by arm of one cell, and how often an arm ran, warm-ups too; `disturbs` tells of samples that count."""
    runs: list[str] = []

    def watched(work: Any) -> tuple[Any, bool]:
        return work(), next(disturbs)

    def seconds_of(arm: str, batch_size: int, context: int) -> float:
        runs.append(arm)
        return 0.01

    monkeypatch.setattr("specgauge.bench.timing.cell_timer.watched_for_neighbours", watched)
    lines = timed([cell(1, context)], seconds_of, gammas=[1], min_blocks=2, max_blocks=2, block_samples=5)
    found: dict[str, Any] = {}
    for line in lines:
        found.setdefault(line.arm, []).append(line)
    return found, len(runs)


def test_a_sample_disturbed_now_and_then_is_taken_again(timed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet, runs = samples_run(timed, monkeypatch, iter(lambda: False, None))
    assert not [line for own in quiet.values() for line in own if DISTURBED in line.notes]
    every_fifth = (number % 5 == 0 for number in range(1000))
    found, more_runs = samples_run(timed, monkeypatch, every_fifth, context=64)
    assert more_runs > runs
    assert not [line for own in found.values() for line in own if DISTURBED in line.notes]
    assert {arm: [len(line.samples_s) for line in own] for arm, own in found.items()} == {
        arm: [1, 1] if is_prefill(arm) else [5, 5] for arm in ARMS
    }


def test_a_machine_that_is_busy_throughout_is_not_waited_for(timed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, runs = samples_run(timed, monkeypatch, iter(lambda: False, None))
    found, more_runs = samples_run(timed, monkeypatch, iter(lambda: True, None), context=64)
    assert more_runs - runs == FEWEST_RETAKES
    assert MOST_RETAKES < FEWEST_RETAKES
    for own in found.values():
        assert all(line.notes[DISTURBED] == len(line.samples_s) for line in own)
