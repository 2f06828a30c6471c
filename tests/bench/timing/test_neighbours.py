"""Samples that other programs disturbed: told by the system's counts, taken again while that helps, and recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specgauge.bench.timing import neighbours
from specgauge.bench.timing.gpu_state import gpu_watch
from specgauge.bench.timing.neighbours import FEWEST_RETAKES, MOST_RETAKES, Retakes, calm, watched_for_neighbours
from specgauge.model.arms import arm_names, is_prefill
from specgauge.model.stats.disturbance import Disturbance
from tests.bench.timing.conftest import Run, cell

ARMS = arm_names([1])


def count(monkeypatch: pytest.MonkeyPatch, **readings: list[Any]) -> None:
    """The system's counts at each reading, in turn; `monotonic` and `process_time` are the clocks."""
    clocks = {name: iter(readings.pop(name)) for name in ("monotonic", "process_time")}
    clock = {name: lambda own=own: next(own) for name, own in clocks.items()}
    monkeypatch.setattr(neighbours, "time", SimpleNamespace(**clock))
    for name, values in readings.items():
        own = iter(values)
        monkeypatch.setattr(neighbours, name, lambda own=own: next(own))


@pytest.mark.parametrize(("on_cpu", "threads", "disturbed"), [(True, 5, 0), (False, 1, 1)])
def test_what_the_system_counted_while_something_ran(
    monkeypatch: pytest.MonkeyPatch, on_cpu: bool, threads: int, disturbed: int
) -> None:
    """193 switches in 2 s are few for five threads; work of a GPU is fed by one."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    monkeypatch.setattr(neighbours, "usable_cores", lambda: 8)
    count(
        monkeypatch,
        monotonic=[100.0, 102.0],
        process_time=[10.0, 13.0],
        involuntary_switches=[7, 200],
        steal_s=[1.0, 1.015],
        pressure_s=[None, 3.0],
    )
    found, counted = watched_for_neighbours(lambda: "found", on_cpu=on_cpu)
    assert found == "found"
    assert counted.steal_s == pytest.approx(0.015)
    assert replace(counted, steal_s=None) == Disturbance(
        threads=threads, wall_s=2.0, processor_s=3.0, involuntary_switches=193, disturbed=disturbed
    )


@pytest.mark.parametrize(
    ("stat", "pressure", "expected"),
    [
        ("cpu  1 2 3 4 5 6 7 300 0 0\ncpu0 1", "some avg10=0.00 total=2500000\nfull avg10=0.00 total=7", (1.5, 2.5)),
        ("cpu  1 2 3", "", (None, None)),
        (None, None, (None, None)),
    ],
    ids=["linux", "other formats", "no files"],
)
def test_steal_and_pressure_are_read_where_the_system_has_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stat: str | None, pressure: str | None, expected: Any
) -> None:
    monkeypatch.undo()  # the calm machine of every test
    for name, text in (("stat", stat), ("pressure", pressure)):
        if text is not None:
            (tmp_path / name).write_text(text)
    files = {"/proc/stat": tmp_path / "stat", "/proc/pressure/cpu": tmp_path / "pressure"}
    real = neighbours._first_line
    monkeypatch.setattr(neighbours, "_first_line", lambda path: real(str(files[path])))
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert (neighbours.steal_s(), neighbours.pressure_s()) == expected


def disturbs(monkeypatch: pytest.MonkeyPatch, *told: bool) -> list[int]:
    """Each watched work takes a second and is disturbed as told in turn; what it returned."""
    runs: list[int] = []
    answers = iter(told)

    def watched(work: Any, **_: Any) -> tuple[Any, Disturbance]:
        runs.append(work())
        return runs[-1], Disturbance(wall_s=1.0, disturbed=int(next(answers)))

    monkeypatch.setattr(neighbours, "watched_for_neighbours", watched)
    return runs


@pytest.mark.parametrize(
    ("told", "spare_s", "expected"),
    [
        ((False,), 9.0, (0, 0, 0.0, 0)),
        ((True, False), 9.0, (0, 1, 1.0, 1)),
        ((True, True, True), 9.0, (1, 2, 2.0, 0)),
        ((True, True), 1.5, (1, 1, 1.0, 0)),
        ((True,), 0.5, (1, 0, 0.0, 0)),
    ],
    ids=["calm", "calm the second time", "as often as allowed", "as long as there are seconds", "no seconds"],
)
def test_it_is_done_again_while_it_is_disturbed(
    monkeypatch: pytest.MonkeyPatch, told: tuple[bool, ...], spare_s: float, expected: tuple[int, int, float, int]
) -> None:
    runs, retakes, numbers = disturbs(monkeypatch, *told), Retakes(), iter(range(9))
    found, counted = calm(lambda: next(numbers), retakes, on_cpu=True, spare_s=spare_s)
    assert found == runs[-1] == len(told) - 1, "the last counts, be it fast or slow"
    assert (counted.disturbed, counted.retaken, counted.retaken_s, retakes.calmed) == expected
    assert retakes.retaken == len(told) - 1


def test_nothing_is_done_again_where_that_never_helped(monkeypatch: pytest.MonkeyPatch) -> None:
    retakes = Retakes(fewest=2)
    runs = disturbs(monkeypatch, *[True] * 9)
    for _ in range(4):
        calm(lambda: 0, retakes, on_cpu=True, most=1)
    assert (len(runs), retakes.retaken, retakes.calmed) == (6, 2, 0)


def samples_run(
    timed: Run, monkeypatch: pytest.MonkeyPatch, disturbs: Iterator[bool], context: int = 32
) -> tuple[dict[str, Any], int]:
    """Blocks by arm of one cell, and how often an arm ran, warm-ups too; `disturbs` tells of samples that count."""
    runs: list[str] = []

    def watched(work: Any, **_: Any) -> tuple[Any, Disturbance]:
        return work(), Disturbance(wall_s=0.5, disturbed=int(next(disturbs)))

    def seconds_of(arm: str, batch_size: int, context: int) -> float:
        runs.append(arm)
        return 0.01

    monkeypatch.setattr(neighbours, "watched_for_neighbours", watched)
    lines = timed([cell(1, context)], seconds_of, gammas=[1], min_blocks=2, max_blocks=2, block_samples=5)
    found: dict[str, Any] = {}
    for line in lines:
        found.setdefault(line.arm, []).append(line)
    return found, len(runs)


def test_a_sample_disturbed_now_and_then_is_taken_again(timed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet, runs = samples_run(timed, monkeypatch, iter(lambda: False, None))
    for own in quiet.values():
        for line in own:
            assert line.disturbance == Disturbance(wall_s=0.5 * len(line.samples_s))
    every_fifth = (number % 5 == 0 for number in range(1000))
    found, more_runs = samples_run(timed, monkeypatch, every_fifth, context=64)
    every = [line.disturbance for own in found.values() for line in own]
    assert sum(one.retaken for one in every) == more_runs - runs > 0
    assert sum(one.retaken_s for one in every) == 0.5 * (more_runs - runs)
    assert {one.disturbed for one in every} == {0}
    assert {arm: [len(line.samples_s) for line in own] for arm, own in found.items()} == {
        arm: [1, 1] if is_prefill(arm) else [5, 5] for arm in ARMS
    }


def test_a_machine_that_is_busy_throughout_is_not_waited_for(timed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, runs = samples_run(timed, monkeypatch, iter(lambda: False, None))
    found, more_runs = samples_run(timed, monkeypatch, iter(lambda: True, None), context=64)
    assert more_runs - runs == FEWEST_RETAKES
    assert MOST_RETAKES < FEWEST_RETAKES
    for own in found.values():
        assert all(line.disturbance.disturbed == len(line.samples_s) for line in own)


def nvml(*failing: str) -> Any:
    """Bindings of a machine with two GPUs, the second of which is hot; some readings fail."""

    def fails(*_: Any) -> None:
        raise RuntimeError("driver")

    readings: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": {"GPU-a": 0, "MIG-b": 1}.__getitem__,
        "nvmlDeviceGetClockInfo": lambda handle, _: [1980, 1200][handle],
        "nvmlDeviceGetCurrentClocksThrottleReasons": [0x1 | 0x4, 0x2 | 0x20 | 0x40].__getitem__,
        "nvmlDeviceGetComputeRunningProcesses": [[7], [7, 8, 9]].__getitem__,
    }
    return SimpleNamespace(NVML_CLOCK_SM=1, **readings | dict.fromkeys(failing, fails))


def gpu_state(monkeypatch: pytest.MonkeyPatch, bindings: Any, *uuids: str) -> Disturbance:
    """As read of GPUs with these UUIDs."""
    monkeypatch.setitem(sys.modules, "pynvml", bindings)
    of = dict(enumerate(uuids))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=of[device.index]))
    return gpu_watch([torch.device("cpu"), *(torch.device("cuda", index) for index in of)])()


def test_clocks_and_other_processes_of_the_gpus_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_state(monkeypatch, nvml()) == Disturbance()
    assert gpu_state(monkeypatch, nvml(), "a") == Disturbance(
        sm_clock_hz=1.98e9, throttled_by="power cap", other_processes=0
    )
    assert gpu_state(monkeypatch, nvml(), "a", "b") == Disturbance(
        sm_clock_hz=1.2e9, throttled_by="heat, heat (hardware), power cap", other_processes=2
    )


@pytest.mark.parametrize(
    ("bindings", "expected"),
    [
        (None, Disturbance()),
        (nvml("nvmlInit"), Disturbance()),
        (nvml("nvmlDeviceGetHandleByUUID"), Disturbance()),
        (nvml("nvmlDeviceGetClockInfo"), Disturbance(throttled_by="power cap", other_processes=0)),
        (
            nvml("nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetComputeRunningProcesses"),
            Disturbance(sm_clock_hz=1.98e9),
        ),
    ],
)
def test_what_a_driver_does_not_tell_is_unknown(
    monkeypatch: pytest.MonkeyPatch, bindings: Any, expected: Disturbance
) -> None:
    assert gpu_state(monkeypatch, bindings, "a") == expected
