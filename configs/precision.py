"""How well a median has to be known, and the blocks and seconds that may be spent on it.

precision: {relative_ci: 0.02, min_blocks: 3, max_blocks: 20, max_seconds: 120}
"""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from specgauge.configs.faults import value_fault
from specgauge.configs.rules import Real, Whole, fail
from specgauge.configs.section import Section


class PrecisionConfig(Section):
    """When the timing of an arm is good enough, and when it stops regardless."""

    relative_ci: Annotated[float, Real(above=0.0, below=1.0)] = 0.02
    """Sample until the half-width of the median's interval is at most this fraction of the median; in a search for
    gamma, until that of S at the best one is, as far as timings go."""
    confidence: Annotated[float, Real(above=0.0, below=1.0)] = 0.9
    """Probability that an interval covers the true value."""
    block_samples: Annotated[int, Whole(at_least=1, at_most=100_000)] = 5
    """Samples of each arm in a block of its cell, taken in turn with those of the others."""
    min_blocks: Annotated[int, Whole(at_least=2, at_most=100_000)] = 3
    """Blocks of every arm, however quickly they agree; two are the fewest that can disagree."""
    max_blocks: Annotated[int, Whole(at_least=2, at_most=100_000)] = 20
    """Blocks of an arm at most, converged or not."""
    max_seconds: Annotated[float | None, Real(above=0.0, unit="seconds", or_null=True, null_means="no limit")] = 120.0
    """Seconds for the whole timing of one pair and batch size; null is no limit."""
    max_cell_seconds: Annotated[float | None, Real(above=0.0, unit="seconds", or_null=True, null_means="no limit")] = (
        None
    )
    """Seconds for the timing of one cell; like those above, they end nothing before the least blocks are there."""
    bootstrap_replicates: Annotated[int, Whole(at_least=10, at_most=1_000_000)] = 1000
    """Resamples of blocks and prompts behind every interval."""

    @model_validator(mode="after")
    def _check_together(self) -> PrecisionConfig:
        if self.max_blocks < self.min_blocks:
            fail([value_fault(("max_blocks",), self.max_blocks, f"at least min_blocks, which is {self.min_blocks}")])
        return self
