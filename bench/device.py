"""The device: whether it ran out of memory, its peak, giving memory back, and which one is meant.

A device without a number is the first of its type, so ``cuda`` and ``cuda:0`` are one.
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Iterable
from pathlib import Path

import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out, on any device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(
        words in text for words in ("out of memory", "can't allocate memory", "not enough memory")
    )


def peak_memory_bytes(devices: Iterable[torch.device]) -> int:
    """Sum of the peaks so far: allocated by torch on each CUDA device, the process's resident set for all others."""
    places = list(devices)
    on_cuda = sum(int(torch.cuda.max_memory_allocated(device)) for device in places if device.type == "cuda")
    if all(device.type == "cuda" for device in places):
        return on_cuda
    unit = 1 if sys.platform == "darwin" else 1024
    return on_cuda + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_memory() -> None:
    """Give back what nothing refers to any more, on the host and on CUDA devices."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def distinct_devices(devices: Iterable[torch.device]) -> tuple[torch.device, ...]:
    """Each device once, in the order and under the name in which it comes first."""
    found: dict[tuple[str, int], torch.device] = {}
    for device in devices:
        found.setdefault((device.type, device.index or 0), device)
    return tuple(found.values())


def on_cpu(devices: Iterable[torch.device]) -> bool:
    """Whether all work on some devices is the processor's."""
    return all(device.type == "cpu" for device in devices)


def free_bytes(device: torch.device) -> int | None:
    """Bytes that may still be taken: on CUDA what the driver and torch's own pool have, on a host what Linux says."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type != "cpu":
        return None
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        (available,) = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        return None
    return available * 1024
