"""Memory of the device and the host: whether an error means that it ran out, its peak, and giving it back.

try: …
except Exception as error:
    status = "oom" if is_out_of_memory(error) else "failed"
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
    """Sum of the peaks so far of distinct devices: allocated by torch on CUDA, the process's resident set elsewhere."""
    return sum(_peak_bytes(device) for device in devices)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_memory() -> None:
    """Give back what nothing refers to any more, on the host and on CUDA devices."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
