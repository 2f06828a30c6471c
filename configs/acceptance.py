"""How the teacher-forced pass goes over the texts, and how many rejected drafts are followed.

acceptance: {batch_size: 8, chunk: 128, sequential: false, rollouts: 4}
"""

from __future__ import annotations

from typing import Annotated

from specgauge.configs.cells import LARGEST_BATCH_SIZE, LARGEST_CONTEXT
from specgauge.configs.rules import Flag, Whole
from specgauge.configs.section import Section


class AcceptanceConfig(Section):
    """How acceptance is measured over the texts; it changes memory and speed, not results."""

    batch_size: Annotated[int, Whole(at_least=1, at_most=LARGEST_BATCH_SIZE)] = 8
    """Texts in one forward pass."""
    chunk: Annotated[int, Whole(at_least=1, at_most=LARGEST_CONTEXT)] = 128
    """Positions whose logits exist at once."""
    sequential: Annotated[bool, Flag()] = False
    """Load one model after the other, where the two do not fit in memory together."""
    rollouts: Annotated[int, Whole(at_least=0, at_most=100_000)] = 0
    """Places of each text from which a draft chain that starts with a rejected draft is followed, for policies that
    read the draft's own signals; 0 follows none. Needs both models in memory."""
