"""Which devices are meant: a device without a number is the first of its type, so ``cuda`` and ``cuda:0`` are one.

distinct_devices([torch.device("cuda"), torch.device("cuda:0"), torch.device("cpu")])        # (cuda, cpu)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch


def distinct_devices(devices: Iterable[torch.device]) -> tuple[torch.device, ...]:
    """Each device once, in the order and under the name in which it comes first."""
    found: dict[tuple[str, int], torch.device] = {}
    for device in devices:
        found.setdefault((device.type, device.index or 0), device)
    return tuple(found.values())
