"""The device: which one is meant, whether it ran out of memory, its peak, and giving memory back.

try: …
except Exception as error:
    status = "oom" if is_out_of_memory(error) else "failed"

Which devices are meant: a device without a number is the first of its type, so ``cuda`` and ``cuda:0`` are one.

distinct_devices([torch.device("cuda"), torch.device("cuda:0"), torch.device("cpu")])        # (cuda, cpu)
"""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Iterable

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
    """Sum of the peaks so far of distinct devices: allocated by torch on each CUDA one, the process's resident set for

    all others together.
    """
    places = list(devices)
    on_cuda = sum(int(torch.cuda.max_memory_allocated(device)) for device in places if device.type == "cuda")
    return on_cuda + (_resident_bytes() if any(device.type != "cuda" for device in places) else 0)


def _resident_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


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
