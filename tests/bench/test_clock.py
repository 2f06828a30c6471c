"""Timing on a device that returns before it finishes reads what the work took, not what the launch took."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from specgauge.bench.clock import CudaClock, HostClock, clock_for, timed_marks


def test_a_launch_that_ends_ten_milliseconds_later_reads_ten_milliseconds(fake_device: Any, fake_clock: Any) -> None:
    assert timed_marks(fake_clock, [lambda: fake_device.launch(0.010)]) == [0.010]


def test_without_the_synchronise_the_work_would_be_missed(
    fake_device: Any, fake_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fake_clock.marks_on_host:
        pytest.skip("events sit behind the queue")
    monkeypatch.setattr(type(fake_clock), "synchronize", lambda self: None)
    assert timed_marks(fake_clock, [lambda: fake_device.launch(0.010)]) == [0.0]


def test_work_queued_before_the_start_is_not_counted(fake_device: Any, fake_clock: Any) -> None:
    fake_device.launch(3.0)
    assert timed_marks(fake_clock, [lambda: fake_device.launch(0.25)]) == [0.25]


def test_a_chain_is_not_waited_for_between_its_steps(fake_device: Any, fake_clock: Any) -> None:
    """Launches of 1 ms hide behind work of 4 ms: four steps end at 17 ms, where waiting after each would give 20."""
    marks = timed_marks(fake_clock, [lambda: fake_device.launch(0.004, launch_s=0.001)] * 4)
    assert marks[-1] == pytest.approx(0.017, abs=1e-12)
    if not fake_clock.marks_on_host:
        assert marks == pytest.approx([0.005, 0.009, 0.013, 0.017], abs=1e-12)


def test_nothing_to_time_is_a_programming_error(fake_clock: Any) -> None:
    with pytest.raises(AssertionError, match="nothing to time"):
        timed_marks(fake_clock, [])


def test_the_cpu_is_read_by_the_host_clock() -> None:
    clock = clock_for(torch.device("cpu"))
    assert isinstance(clock, HostClock)
    marks = timed_marks(clock, [lambda: None, lambda: None])
    assert 0.0 <= marks[0] <= marks[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_events_see_the_work_and_not_the_launch() -> None:
    device = torch.device("cuda")
    assert isinstance(clock_for(device), CudaClock)
    a = torch.randn(4096, 4096, device=device)

    def work() -> None:
        for _ in range(20):
            a @ a

    work()
    one, two = timed_marks(CudaClock(device), [work, work])
    assert 1.5 < two / one < 2.5
