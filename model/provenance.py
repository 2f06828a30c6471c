"""How a number is known, so that no estimate passes for a measurement.

The order is that of trust: a figure made of several is known as its weakest part is (the maximum).

    >>> Known.MEASURED.weaker(Known.EXTRAPOLATED).label
    'extrapolated'
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import SupportsFloat

import numpy as np
from numpy.typing import ArrayLike


class Known(IntEnum):
    """How a value came about."""

    MEASURED = 0
    """Taken at this very place."""
    INTERPOLATED = 1
    """Between places measured, or at a gamma below the one drafted at."""
    EXTRAPOLATED = 2
    """Beyond what was measured."""
    ASSUMED = 3
    """Follows from a model nobody checked here: one alpha for every position, one T_verify for every gamma."""

    @property
    def label(self) -> str:
        """The word printed and written to files."""
        return self.name.lower()

    def weaker(self, other: Known) -> Known:
        """The less trusted of the two."""
        return max(self, other)


def finite_or_none(value: SupportsFloat) -> float | None:
    """A number as it stands in JSON and in records: None where it is NaN or infinite, which is unknown."""
    number = float(value)
    return number if math.isfinite(number) else None


def labels(known: ArrayLike) -> list[str]:
    """The words for an array of `Known` values, flattened in C order."""
    return [Known(int(value)).label for value in np.asarray(known).ravel()]
