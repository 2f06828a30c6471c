"""Bytes and seconds as people read them, to a precision worth an estimate.

>>> size_text(3 * 2**30), duration_text(90)
('3 GiB', '1.5 min')
"""

from __future__ import annotations


def size_text(size_bytes: int | None) -> str:
    """Bytes in MiB or GiB, `unknown` for None."""
    if size_bytes is None:
        return "unknown"
    mebibytes = size_bytes / 2**20
    return f"{mebibytes / 1024:.3g} GiB" if mebibytes >= 1000 else f"{mebibytes:.3g} MiB"


def duration_text(seconds: float) -> str:
    """Seconds in s, min or h, at least 1 s."""
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    if seconds < 3600:
        return f"{seconds / 60:.2g} min"
    return f"{seconds / 3600:.3g} h"
