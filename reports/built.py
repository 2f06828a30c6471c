"""Forwards that were compiled or captured while cells were timed, from the journal's notes, as facts for a reader.

built_forwards(lines)        # [("compiled or captured, outside what is timed", [("p, compile", "5 forwards in 12 s")])]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeGuard

from specgauge.reports.formatting import count

if TYPE_CHECKING:
    from specgauge.sweeps.store.schema import JournalLine


def built_forwards(lines: Iterable[JournalLine]) -> list[tuple[str, list[tuple[str, str]]]]:
    """A heading with (pair and mode, how many forwards in how many seconds); empty where all ran eagerly."""
    found: dict[str, tuple[int, float]] = {}
    for line in lines:
        built, took_s = line.notes.get("graphs_built"), line.notes.get("build_s")
        if _is_number(built) and _is_number(took_s) and built > 0:
            name = f"{line.axes['pair']}, {line.axes['mode']}"
            number, seconds = found.get(name, (0, 0.0))
            found[name] = number + int(built), seconds + took_s
    facts = [(name, f"{count(number, 'forward')} in {seconds:.3g} s") for name, (number, seconds) in found.items()]
    return [("compiled or captured, outside what is timed", facts)] if facts else []


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
