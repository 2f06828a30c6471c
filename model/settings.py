"""What is decoded and where: `Setting` (models, sampling, accept–reject rule) and `Point` (batch size, context).

Setting(pair="small", mode="eager", sampling="greedy", draft_sampling="same", acceptance_rule="ratio")
Point(batch_size=4, context=1024)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, order=True)
class Setting:
    """A pair of models and how it decodes; everything that acceptance depends on."""

    pair: str
    mode: str
    """How forwards run: eager, compiled."""
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
