"""The clocks of the GPUs in use, what slows them down, and who else uses them, as NVML reads it.

    read = gpu_watch(pair.devices)
    read()        →  Disturbance(sm_clock_hz=1.98e9, throttled_by="", other_processes=0)

Read once a block.  Without a GPU, bindings, driver or permission everything is unknown, and nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from specgauge.model.stats.disturbance import SLOWDOWNS, Disturbance, added_up, joined_reasons

GpuWatch = Callable[[], Disturbance]


def gpu_watch(devices: Sequence[torch.device]) -> GpuWatch:
    """What reads the GPUs among some devices; NVML is opened once and stays open."""
    cuda = [device for device in devices if device.type == "cuda"]
    if not cuda:
        return Disturbance
    try:
        import pynvml

        pynvml.nvmlInit()
        handles = [gpu_handle(pynvml, torch.cuda.get_device_properties(device).uuid) for device in cuda]
    except Exception:  # no bindings, no library, no driver, no permission
        return Disturbance
    return lambda: added_up(_state(pynvml, handle) for handle in handles)


def reading(read: Callable[[], Any]) -> Any:
    """What an optional reading gives; None where it fails, however it fails."""
    try:
        return read()
    except Exception:  # systems, drivers and bindings fail in their own ways, all of them mean unknown
        return None


def gpu_handle(nvml: Any, uuid: Any) -> Any:
    """By UUID: NVML counts every device of the machine, torch only those it may see; None where there is none."""
    find = nvml.nvmlDeviceGetHandleByUUID
    handles = (reading(partial(find, f"{kind}-{uuid}")) for kind in ("GPU", "MIG"))  # a slice has one of its own
    return next((handle for handle in handles if handle is not None), None)


def _state(nvml: Any, handle: Any) -> Disturbance:
    clock_mhz = reading(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    reasons = reading(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    processes = reading(lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle)))
    return Disturbance(
        sm_clock_hz=None if clock_mhz is None else clock_mhz * 1e6,
        throttled_by=None
        if reasons is None
        else joined_reasons(name for bit, name in SLOWDOWNS.items() if reasons & bit),
        other_processes=processes - 1 if processes else None,  # this one is among them, whatever its number there
    )
