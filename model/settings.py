"""What is decoded (`Setting`), where (`Point`: batch size, context), and where its numbers come from (`Provenance`).

A joint result is as good as its weakest part, which has the largest provenance:

    >>> max(Provenance.MEASURED, Provenance.EXTRAPOLATED).label
    'extrapolated'
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


@dataclass(frozen=True, kw_only=True, order=True)
class Setting:
    """A pair of models and how it decodes; of all this, acceptance depends on everything but the mode."""

    pair: str
    mode: str
    """How forwards run: `eager`, `compile` or `cuda_graph`."""
    sampling: str
    """Name of the target's sampling setting."""
    draft_sampling: str
    """How the draft draws: as the target (`same`) or `greedy`."""
    acceptance_rule: str
    """The accept–reject test: `ratio` or `match`."""


@dataclass(frozen=True, kw_only=True, order=True)
class Point:
    """Where a setting is timed and decoded."""

    batch_size: int
    """Rows decoded together, B."""
    context: int
    """Cached tokens of a row as a round starts."""


@dataclass(frozen=True, kw_only=True, order=True)
class SettingPoint(Point, Setting):
    """A point under a setting: one cell of a table of results."""

    @property
    def label(self) -> str:
        """For messages and tables."""
        return (
            f"{self.pair}, {self.mode}, {self.sampling}, {self.draft_sampling}, {self.acceptance_rule}, "
            f"batch {self.batch_size}, context {self.context}"
        )


class Provenance(IntEnum):
    """How a value came about; larger is weaker."""

    MEASURED = 0
    """Taken at this very point."""
    IMPORTED = 1
    """The same by another program, read from its files."""
    INTERPOLATED = 2
    """Between points measured, or at a gamma below the one drafted at."""
    EXTRAPOLATED = 3
    """Beyond what was measured."""
    PREDICTED = 4
    """Computed from a model of the machine, such as its roofline."""
    ASSUMED = 5
    """Follows from a model nobody checked here: one alpha for every position, one T_verify for every gamma."""

    @property
    def label(self) -> str:
        """The word printed and written to files."""
        return self.name.lower()
