"""What one run may spend: seconds of its clock, and bytes of memory a cell may be estimated to need.

limits: {run_seconds: 3600, memory: 8GiB}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

from specgauge.configs.faults import Fault, nearest, value_fault
from specgauge.configs.rules import Real, Rule
from specgauge.configs.section import Section

UNIT_BYTES = {
    "B": 1,
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("kMGT", start=1)},
}
LARGEST_BYTES = 1 << 60
_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,18})?) ?([A-Za-z]*)", re.ASCII)


@dataclass(frozen=True)
class Size(Rule):
    """Bytes: an integer, text with a unit such as 8GiB, or null, which means ``null_means``; kept in whole bytes."""

    null_means: str

    @property
    def allowed(self) -> str:
        """Both ways to write it."""
        units = ", ".join(UNIT_BYTES)
        return f"bytes as an integer, or a number with a unit ({units}) such as 8GiB, or null ({self.null_means})"

    def faults(self, value: object) -> list[Fault]:
        """One fault, or none."""
        if value is None or _bytes(value) is not None:
            return []
        hint = ""
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())) and match[2] not in UNIT_BYTES:
            guess = nearest(match[2], UNIT_BYTES) if match[2] else None
            hint = f"; did you mean {match[1]}{guess}?" if guess else ""
        return [value_fault((), value, self.allowed + hint)]

    def resolved(self, value: Any) -> object:
        """Whole bytes, or None."""
        return None if value is None else _bytes(value)

    def json_schema(self) -> dict[str, object]:
        """An integer, text with a unit, or null."""
        units = "|".join(UNIT_BYTES)
        text = {"type": "string", "pattern": rf"^[0-9]+(\.[0-9]+)? ?({units})$"}
        return {"anyOf": [{"type": "integer", "minimum": 1, "maximum": LARGEST_BYTES}, text, {"type": "null"}]}


def _bytes(value: object) -> int | None:
    """Whole bytes of an integer or a text with a unit; None where it is neither, or no size a machine may have."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None or match[2] not in UNIT_BYTES:
            return None
        size = int(Decimal(match[1]) * UNIT_BYTES[match[2]])
    elif isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        return None
    return size if 1 <= size <= LARGEST_BYTES else None


class LimitsConfig(Section):
    """Where a run stops, whatever is left to measure; running the same command again goes on."""

    run_seconds: Annotated[float | None, Real(above=0.0, unit="seconds", or_null=True, null_means="no limit")] = None
    """Seconds of one call of `run`, all pairs together, after which no further block is begun; null is no limit. It may
    differ from call to call of one run directory."""
    memory: Annotated[int | None, Size(null_means="no limit")] = None
    """Bytes, such as 8GiB, that the weights of both models and the keys and values of a cell may take by estimate; a
    larger cell is skipped before anything is tried, unless a model's files do not tell its size. Where it does not hold
    the caches of all arms that are decoded in turn, they are decoded one after another. Null is no limit."""
