"""What Linux tells of this machine's processor: its name and its instructions. Importing this needs no torch."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path


def cpu_name() -> str | None:
    """The processor's model name as the kernel or Python reports it; None where neither does."""
    return next(_fields("model name"), "") or platform.processor() or None


def cpu_flags() -> frozenset[str]:
    """What instructions the CPU has, as Linux names them; empty where the system does not tell."""
    return frozenset(next(_fields("flags", "Features"), "").split())


def _fields(*names: str) -> Iterator[str]:
    """What /proc/cpuinfo says under these names, of the first core first; nothing where it cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in names:
            yield value.strip()
