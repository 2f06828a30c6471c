"""Parts of a pair that the rest can be measured without, by the names that a mark and the next worker know them by.

    part_name("decoding", "greedy, batch size 1, context 64")  →  "decoding: greedy, batch size 1, context 64"
    names_of("decoding", parts)                                →  ["greedy, batch size 1, context 64"]

The timing of a cell is such a part too; its name is the cell's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

Kind = Literal["acceptance", "rejected drafts", "decoding"]
"""Texts and acceptance under a sampling setting; draft chains off its texts; the decoding end to end of a cell, which
its words name."""


def part_name(kind: Kind, name: str) -> str:
    """What a part is called among all kinds."""
    return f"{kind}: {name}"


def names_of(kind: Kind, parts: Iterable[str]) -> list[str]:
    """The names of the parts of one kind, in their order."""
    prefix = part_name(kind, "")
    return [part.removeprefix(prefix) for part in parts if part.startswith(prefix)]


def reasons_of(kind: Kind, reasons: Mapping[str, str]) -> dict[str, str]:
    """Those of one kind among the reasons of parts, by name."""
    return {name: reasons[part_name(kind, name)] for name in names_of(kind, reasons)}
