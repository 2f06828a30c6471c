"""The probe on a clock of its own: rates are work over the best sample, and what was not measured is null."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specgauge.bench.probe import ProbeSize, best_bandwidth, best_flops, checked_device, main, probe
from specgauge.configs.hardware import load_hardware

CPU = torch.device("cpu")
SMALL = ProbeSize(matrix_bytes=1 << 20, product_side=16, seconds=4.5)


class Ticks:
    """A clock on which timed work takes the given seconds, in turn and for ever."""

    marks_on_host = False

    def __init__(self, *seconds: float) -> None:
        self._marks = itertools.chain.from_iterable((0.0, one) for one in itertools.cycle(seconds))
        self.waits = 0

    def synchronize(self) -> None:
        self.waits += 1

    def mark(self) -> float:
        return next(self._marks)

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start


def every_second() -> Callable[[], float]:
    seconds = itertools.count()
    return lambda: float(next(seconds))


def test_bandwidth_is_bytes_over_the_best_sample_after_a_warm_up() -> None:
    clock = Ticks(0.25, 9.0, 4.0, 5.0, 8.0, 6.0, 7.0, 9.0)
    rate, samples = best_bandwidth(CPU, SMALL, clock, every_second())
    assert rate == (1 << 20) / 4.0
    assert samples == 7
    assert clock.waits == 2 * (1 + samples)


def test_flops_are_two_for_each_multiplication() -> None:
    rate, samples = best_flops(CPU, "float32", SMALL, Ticks(0.5), every_second())
    assert (rate, samples) == (2 * 16**3 / 0.5, 7)
    hasty = ProbeSize(matrix_bytes=1 << 20, product_side=16, seconds=0.5)
    assert best_flops(CPU, "bfloat16", hasty, Ticks(1.0), every_second())[1] == 3, "however slow"


def test_an_entry_of_this_machine_reads_back(tmp_path: Path) -> None:
    entry = probe(CPU, name="here", size=SMALL, clock=Ticks(0.5), now=every_second())
    peaks = entry.peak_flops_per_s
    unmeasured = (entry.multiprocessors, entry.link_bandwidth_bytes_per_s, peaks.tfloat32, peaks.float8)
    assert unmeasured == (None,) * 4
    assert entry.memory_bandwidth_bytes_per_s is not None
    assert entry.memory_bandwidth_bytes_per_s.value == 2_097_000
    assert torch.__version__ in entry.memory_bandwidth_bytes_per_s.source
    path = tmp_path / "here.yaml"
    path.write_text(entry.to_yaml(), encoding="utf-8")
    assert load_hardware(path) == entry


@pytest.mark.parametrize(("load", "warned"), [(0.0, False), (1e6, True)])
def test_the_command_prints_an_entry_and_warns_of_a_busy_machine(
    load: float, warned: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgauge.bench.probe.default_size", lambda device: SMALL)
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    assert main(["--name", "mine", "--seconds", "0.01"]) == 0
    printed = capsys.readouterr()
    assert ("warning: load average 1000000.0 on " in printed.err) is warned
    path = tmp_path / "mine.yaml"
    path.write_text(printed.out, encoding="utf-8")
    plain = load_hardware(path).plain()
    assert plain["name"] == "mine"
    assert f"load average {load:.1f} when it ended" in printed.out
    assert set(plain["peak_flops_per_s"]) == {"float32", "bfloat16", "float16"}
    assert plain["memory_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--device", "abacus"], "--device: expected cpu"),
        (["--device", "cuda:99"], "--device: expected cpu"),
        (["--device", "meta"], "--device: expected cpu"),
        (["--seconds", "0"], "--seconds: expected a time above 0, got 0"),
        (["--seconds", "nan"], "--seconds: expected a time above 0, got nan"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(line)
    assert error.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_a_gpu_is_probed_by_the_same_path() -> None:
    device = checked_device("cuda")
    entry = probe(device, name="gpu", size=ProbeSize(matrix_bytes=1 << 28, product_side=1024, seconds=0.1))
    assert entry.multiprocessors is not None
    assert entry.peak_flops_per_s.tfloat32 is not None
