"""Where a number comes from: measured, interpolated, extrapolated, predicted or assumed.

A joint result is as good as its weakest part, which is the largest number.

    >>> max(Provenance.MEASURED, Provenance.EXTRAPOLATED).label
    'extrapolated'
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import SupportsFloat


class Provenance(IntEnum):
    """How a value came about; larger is weaker."""

    MEASURED = 0
    """Taken at this very point."""
    INTERPOLATED = 1
    """Between points measured, or at a gamma below the one drafted at."""
    EXTRAPOLATED = 2
    """Beyond what was measured."""
    PREDICTED = 3
    """Computed from a model of the machine, such as its roofline."""
    ASSUMED = 4
    """Follows from a model nobody checked here: one alpha for every position, one T_verify for every gamma."""

    @property
    def label(self) -> str:
        """The word printed and written to files."""
        return self.name.lower()


def finite_or_none(value: SupportsFloat) -> float | None:
    """A number as it stands in JSON and in records: None where it is NaN or infinite, which is unknown."""
    number = float(value)
    return number if math.isfinite(number) else None
