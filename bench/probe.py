"""A small probe of this machine: memory bandwidth and FLOP rate as the roofline needs them, in a few seconds.

Bandwidth is what a decode step asks for: a float32 matrix far larger than any cache is read once to multiply one
vector.  FLOP rates are square matrix products by dtype.  Each is the best of many synchronised samples, since what
disturbs makes a sample slower.  Prints a hardware entry as YAML, in the form of `configs/hardware/*.yaml`:

    python -m specgauge.bench.probe --name my-machine > my-machine.yaml
    python -m specgauge.bench.probe --device cuda
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from specgauge.bench.processor import cpu_name
from specgauge.bench.timing.clock import Clock, clock_for, timed_marks
from specgauge.configs.hardware import Count, HardwareEntry, Peaks, Quantity

FEWEST_SAMPLES = 3
IDLE_LOAD = 0.5
"""Load average for each core up to which a machine counts as idle."""


@dataclass(frozen=True, kw_only=True)
class ProbeSize:
    """How much work the probe does."""

    matrix_bytes: int
    """Size of the matrix that is read for the bandwidth; must exceed the caches."""
    product_side: int
    """Rows and columns of the square matrices that are multiplied."""
    seconds: float
    """Sampling time of each of the measured rates."""


def default_size(device: torch.device) -> ProbeSize:
    """512 MiB and 1024 rows on a CPU, 2 GiB and 8192 rows elsewhere; a second for each rate."""
    if device.type == "cpu":
        return ProbeSize(matrix_bytes=512 << 20, product_side=1024, seconds=1.0)
    return ProbeSize(matrix_bytes=2 << 30, product_side=8192, seconds=1.0)


def probe(
    device: torch.device,
    *,
    name: str,
    size: ProbeSize | None = None,
    clock: Clock | None = None,
    now: Callable[[], float] = time.monotonic,
) -> HardwareEntry:
    """Measure `device`; every number of the entry says how it came about, and what was not measured is null."""
    size = size or default_size(device)
    clock = clock or clock_for(device)
    source = f"specgauge.bench.probe on {_device_words(device)}, torch {torch.__version__}"
    bandwidth, count = best_bandwidth(device, size, clock, now)
    peaks: dict[str, Quantity | None] = {}
    for dtype_name in ("float32", "tfloat32", "bfloat16", "float16"):
        if dtype_name == "tfloat32" and device.type != "cuda":
            continue
        rate, samples = best_flops(device, dtype_name, size, clock, now)
        what = f"best of {samples} products of {size.product_side} x {size.product_side} matrices"
        peaks[dtype_name] = Quantity(value=_rounded(rate), source=f"{source}: {what}")
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if properties is None else properties.total_memory
    return HardwareEntry(
        name=name,
        description=f"Measured: {_device_words(device)}; load average {os.getloadavg()[0]:.1f} when it ended",
        memory_bytes=Quantity(value=float(memory), source=f"{source}: as the operating system or driver reports"),
        memory_bandwidth_bytes_per_s=Quantity(
            value=_rounded(bandwidth),
            source=f"{source}: best of {count} float32 matrix-vector products over {size.matrix_bytes >> 20} MiB",
        ),
        link_bandwidth_bytes_per_s=None,
        multiprocessors=None
        if properties is None
        else Count(value=properties.multi_processor_count, source=f"{source}: as the driver reports"),
        peak_flops_per_s=Peaks(**peaks),
    )


def best_bandwidth(device: torch.device, size: ProbeSize, clock: Clock, now: Callable[[], float]) -> tuple[float, int]:
    """Bytes/s of reading a matrix once, best sample, and the number of samples."""
    columns = 4096
    rows = max(1, size.matrix_bytes // (columns * 4))
    matrix = torch.ones((rows, columns), dtype=torch.float32, device=device)
    vector = torch.ones(columns, dtype=torch.float32, device=device)
    out = torch.empty(rows, dtype=torch.float32, device=device)
    best_s, count = _best_s(lambda: torch.mv(matrix, vector, out=out), size, clock, now)
    return rows * columns * 4 / best_s, count


def best_flops(
    device: torch.device, dtype_name: str, size: ProbeSize, clock: Clock, now: Callable[[], float]
) -> tuple[float, int]:
    """FLOPs/s of a square product, 2·side³ each, best sample, and the number of samples."""
    side = size.product_side
    dtype = torch.float32 if dtype_name == "tfloat32" else getattr(torch, dtype_name)
    left = torch.ones((side, side), dtype=dtype, device=device)
    out = torch.empty_like(left)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype_name == "tfloat32" else before)
    try:
        best_s, count = _best_s(lambda: torch.mm(left, left, out=out), size, clock, now)
    finally:
        torch.set_float32_matmul_precision(before)
    return 2.0 * side**3 / best_s, count


def _best_s(work: Callable[[], object], size: ProbeSize, clock: Clock, now: Callable[[], float]) -> tuple[float, int]:
    """Shortest sample after one warm-up, until the time is used up and there are FEWEST_SAMPLES."""
    timed_marks(clock, [work])
    samples: list[float] = []
    end = now() + size.seconds
    while len(samples) < FEWEST_SAMPLES or now() < end:
        samples += timed_marks(clock, [work])
    return min(samples), len(samples)


def _rounded(rate: float) -> float:
    """Four significant digits: more than two runs of a probe agree on."""
    return float(f"{rate:.4g}")


def _device_words(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{cpu_name() or platform.machine()}, {torch.get_num_threads()} of {os.cpu_count()} cores"


def checked_device(text: str) -> torch.device:
    """A device that is here.

    Raises:
        ValueError: it is not, or is no device.
    """
    try:
        device = torch.device(text)
    except RuntimeError:
        device = torch.device("meta")
    here = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", 0)
    if str(device) not in here:
        raise ValueError(f"--device: expected {', '.join(here)} (what torch sees here), got {text!r}")
    return device


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the entry; exit code 0, or 2 for what the user got wrong."""
    parser = argparse.ArgumentParser(prog="python -m specgauge.bench.probe", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:1")
    parser.add_argument("--name", default=None, help="name of the entry (default: the machine's)")
    parser.add_argument("--seconds", type=float, default=None, help="sampling time of each of the rates (default 1)")
    options = parser.parse_args(arguments)
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    try:
        device = checked_device(options.device)
        size = default_size(device)
        if options.seconds is not None:
            if not 0 < options.seconds < float("inf"):
                raise ValueError(f"--seconds: expected a time above 0, got {options.seconds:g}")
            size = replace(size, seconds=options.seconds)
        entry = probe(device, name=options.name or platform.node() or "this-machine", size=size)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(entry.to_yaml(), end="")
    if load > IDLE_LOAD * cores:
        busy = f"load average {load:.1f} on {cores} cores before the probe"
        print(f"warning: {busy}: other work ran, the peaks are too low; run it again when idle", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
