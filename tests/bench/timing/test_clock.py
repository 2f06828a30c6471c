"""Timing on a device that returns before it finishes reads what the work took, not what the launch took."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from specgauge.bench.end_to_end.end_to_end import EndToEnd
from specgauge.bench.models.pair import LoadedPair
from specgauge.bench.timing import adaptive
from specgauge.bench.timing import cell_timer as measure
from specgauge.bench.timing.clock import CudaClock, HostClock, JointClock, clock_for, timed_marks, undisturbed
from specgauge.configs.schema import PrecisionConfig
from tests.bench.conftest import FakeClock, FakeDevice, MemoryJournal
from tests.bench.decoded import DRAWN, Make, decoder_of
from tests.bench.timing.conftest import cell


class TwoDevices:
    """A target's device and a draft's beside it, launched to by one host."""

    def __init__(self, *, marks_on_host: bool) -> None:
        self.target, self.draft = FakeDevice(), FakeDevice()
        self.clocks = [FakeClock(device, marks_on_host=marks_on_host) for device in (self.target, self.draft)]
        self.joint = JointClock(self.clocks, now=self.now)

    def now(self) -> float:
        """The host's clock, which has waited wherever it waited."""
        now_s = max(self.target.now_s, self.draft.now_s)
        self.target.now_s = self.draft.now_s = now_s
        return now_s

    def launches(self, device: FakeDevice, work_s: float) -> Callable[[], None]:
        def launch() -> None:
            self.now()
            device.launch(work_s, launch_s=0.001)

        return launch


@pytest.fixture(params=[True, False], ids=["host marks", "event marks"])
def two(request: pytest.FixtureRequest) -> TwoDevices:
    return TwoDevices(marks_on_host=request.param)


def test_a_launch_that_ends_ten_milliseconds_later_reads_ten_milliseconds(two: TwoDevices) -> None:
    """Whatever was queued before."""
    device, clock = two.target, two.clocks[0]
    assert timed_marks(clock, [lambda: device.launch(0.010)]) == [0.010]
    device.launch(3.0)
    assert timed_marks(clock, [lambda: device.launch(0.25)]) == pytest.approx([0.25], abs=1e-12)


def test_a_chain_is_not_waited_for_between_its_steps(two: TwoDevices) -> None:
    """Launches of 1 ms hide behind work of 4 ms: four steps end at 17 ms, where waiting after each would give 20."""
    device, clock = two.target, two.clocks[0]
    marks = timed_marks(clock, [lambda: device.launch(0.004, launch_s=0.001)] * 4)
    assert marks[-1] == pytest.approx(0.017, abs=1e-12)
    if not clock.marks_on_host:
        assert marks == pytest.approx([0.005, 0.009, 0.013, 0.017], abs=1e-12)


def test_work_on_either_device_is_timed(two: TwoDevices) -> None:
    """A draft of 4 s, a target's forward of 2 s: by the clock of the target's device alone the draft takes nothing."""
    steps = [two.launches(two.draft, 4.0), two.launches(two.target, 2.0)]
    two.launches(two.draft, 7.0)()
    assert timed_marks(two.joint, steps) == pytest.approx([4.001, 6.002], abs=1e-12)
    alone = timed_marks(two.clocks[0], [two.launches(two.draft, 4.0), two.launches(two.target, 2.0)])
    assert alone[0] < 0.01
    assert alone[1] < 2.01


CPU, CUDA, CUDA_0, CUDA_1 = (torch.device(name) for name in ("cpu", "cuda", "cuda:0", "cuda:1"))


@pytest.mark.parametrize(
    ("devices", "kind"),
    [
        ((CPU,), HostClock),
        ((CPU, CPU), HostClock),
        ((CUDA,), CudaClock),
        ((CUDA, CUDA_0), CudaClock),
        ((CUDA_1, CUDA_1), CudaClock),
        ((CPU, CUDA), JointClock),
        ((CUDA_1, CPU), JointClock),
        ((CUDA, CUDA_1), JointClock),
    ],
)
def test_devices_that_differ_have_a_joint_clock(devices: tuple[torch.device, ...], kind: type) -> None:
    clock = clock_for(*devices)
    assert type(clock) is kind
    assert clock.marks_on_host == (kind is not CudaClock)


@pytest.mark.parametrize(("device", "kind"), [(CPU, HostClock), (CUDA_1, JointClock)])
def test_a_pair_on_two_devices_is_timed_on_both_by_whatever_takes_a_pair(
    tiny_model: Make, monkeypatch: pytest.MonkeyPatch, device: torch.device, kind: type
) -> None:
    clocks: list[Any] = []
    monkeypatch.setattr(measure.CellTimer, "measure", lambda timer, *_: clocks.append(timer.clock))
    target, draft = tiny_model(), replace(tiny_model(seed=1), device=device)
    pair = LoadedPair(name="x", target=target, draft=draft)
    assert pair.devices == ((CPU,) if device == CPU else (CPU, CUDA_1))
    options: Any = {"gammas": [1], "prompts": [[1]], "precision": PrecisionConfig(), "journal": MemoryJournal()}
    measure.measure_cells(pair, [cell()], seed=0, **options)
    adaptive.measure_adaptively(pair, [cell()], questions={}, seed=0, **options)
    clocks += [EndToEnd(pair, DRAWN, max_new_tokens=4, seed=0).clock, decoder_of(target, draft, DRAWN).clock]
    assert [type(clock) for clock in clocks] == [kind] * 4


@pytest.mark.parametrize("stops", [0, 1, 3])
def test_work_is_repeated_until_no_stop_falls_into_it(stops: int) -> None:
    """SIGCONT comes when a stop ends; to a process that runs it says the same."""
    done = list[int]()

    def work() -> int:
        done.append(len(done))
        if len(done) <= stops:
            os.kill(os.getpid(), signal.SIGCONT)
        return done[-1]

    assert undisturbed(work) == stops
    assert done == list(range(stops + 1))


def test_another_thread_works_without_a_watch() -> None:
    found = list[int]()
    thread = threading.Thread(target=lambda: found.append(undisturbed(lambda: 7)))
    thread.start()
    thread.join()
    assert found == [7]


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
