"""Where a model lies: the device that is asked for, modules spread over several by a device map, tensors over ranks.

A module whose weights wait on the host or on disk is read anew in every forward: its time would be that of the bus. So
a map that leaves any there is refused, before loading where it is written by hand.

    refuse_offloaded({"model.layers.0": 0, "model.layers.1": "cpu"}, "pair 'p' target")      # ValueError
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch

from specgauge.bench.device import distinct_devices
from specgauge.configs.fields import Mode

OFFLOADED = ("cpu", "disk")
"""Where weights wait for their forward, where others are on a device that computes."""


def choose_device(device: str, name: str) -> torch.device:
    """The device a configuration's ``device`` names; ``auto`` is the first CUDA device, else the CPU.

    Raises:
        ValueError: a CUDA device that is not there.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return torch.device("cuda" if count else "cpu")
    chosen = torch.device(device)
    if chosen.type == "cuda" and (chosen.index or 0) >= count:
        seen = ", ".join(f"cuda:{index}" for index in range(count)) or "no CUDA device"
        raise ValueError(
            f"{name}: device '{device}' was asked for, but torch {torch.__version__} sees {seen}; "
            f"use device: auto or {f'cuda:{count - 1}' if count else 'cpu'}"
        )
    return chosen


def refuse_mode(mode: Mode, device: torch.device, name: str, *, spread: bool = False) -> None:
    """Refuse a mode on a model's device, or on one ``spread`` over several.

    Raises:
        ValueError: CUDA graphs without CUDA, or over several devices.
    """
    if mode != "cuda_graph":
        return
    if device.type != "cuda":
        seen = "a CUDA device to use" if torch.cuda.is_available() else "no CUDA device"
        raise ValueError(
            f"{name}: mode cuda_graph: expected a CUDA device, got {device} (torch {torch.__version__} sees {seen}); "
            "use mode: eager or compile"
        )
    if spread:
        raise ValueError(
            f"{name}: mode cuda_graph: expected one device, got a model spread over several by device_map; "
            "use mode: eager, or put it on one device"
        )


def check_device_map(device_map: str | Mapping[str, int | str], name: str) -> None:
    """Refuse what shows of a device map before loading.

    Raises:
        ValueError: the package that spreads models is missing, a device is not there, or modules would be offloaded.
    """
    if find_spec("accelerate") is None:
        raise ValueError(
            f"{name}: device_map needs the package accelerate, which is not installed; "
            "pip install 'specgauge[multi-gpu]', or name one device"
        )
    if isinstance(device_map, str):
        return
    refuse_offloaded(device_map, name)
    for module, where in device_map.items():
        if where not in OFFLOADED:
            choose_device(str(device_of(where)), f"{name}: device_map of '{module}'")


def refuse_offloaded(device_map: Mapping[str, Any], name: str) -> None:
    """Refuse a map that leaves modules on disk, or on the host beside others on a device.

    Raises:
        ValueError: it does; the first such module is named.
    """
    places = {str(where) for where in device_map.values()}
    offloaded = {module: str(where) for module, where in device_map.items() if str(where) in OFFLOADED}
    if not offloaded or all(where.startswith("cpu") for where in places):
        return
    first, where = next(iter(offloaded.items()))
    raise ValueError(
        f"{name}: device_map: expected every module on a device that computes, got {len(offloaded)} of "
        f"{len(device_map)} offloaded, first '{first}' on {where}; they are read anew in every forward, which would be "
        "timed with it: take more or larger devices, a narrower dtype or quantization, or device: cpu"
    )


def device_of(where: int | str | torch.device) -> torch.device:
    """The device that a map's value names; a number is that of a CUDA device."""
    return torch.device("cuda", where) if isinstance(where, int) else torch.device(where)


def device_map_of(model: Any) -> dict[str, torch.device]:
    """Where the modules of a loaded model are, by their names; {} where it lies on one device, unmapped."""
    return {module: device_of(where) for module, where in (getattr(model, "hf_device_map", None) or {}).items()}


def devices_of(model: Any, device: torch.device) -> tuple[torch.device, ...]:
    """Every device that a model computes on, that of its inputs first."""
    return distinct_devices([device, *device_map_of(model).values()])


def layout(model: Any, device: torch.device, ranks: int = 1) -> str:
    """How a loaded model lies, in words: `float32 on cpu`, how many modules are on each device, or how many ranks."""
    dtype, parts = str(model.dtype).removeprefix("torch."), Counter(map(str, device_map_of(model).values()))
    if ranks > 1:
        return f"{dtype} split by tensors over {ranks} ranks on {device.type}"
    if len(parts) < 2:
        return f"{dtype} on {device}"
    found = [f"{where} ({count} module{'' if count == 1 else 's'})" for where, count in parts.items()]
    return f"{dtype} on {', '.join(found)}"
