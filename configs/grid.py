"""The grid: batch sizes, contexts and γ, and the rules that leave cells out.

grid: {batch_size: [1, 8], context: 256, gamma: 1:6, exclude: [{batch_size: 8, mode: compile}]}
"""

from __future__ import annotations

from typing import Annotated

from pydantic import model_validator

from specgauge.configs.axes import Axis
from specgauge.configs.cells import LARGEST_BATCH_SIZE, LARGEST_CONTEXT, CellRule
from specgauge.configs.rules import Whole
from specgauge.configs.searched import ADAPTIVE, GAMMA_SEARCH, GammaSearch, SearchedAxis, with_gamma_search
from specgauge.configs.section import Section

LARGEST_GAMMA = 64


class GridConfig(Section):
    """The cells that are measured: every batch size with every context but for what the rules leave out, and gammas in
    each."""

    batch_size: Annotated[tuple[int, ...], Axis(Whole(at_least=1, at_most=LARGEST_BATCH_SIZE))] = (1,)
    """Sequences decoded together."""
    context: Annotated[tuple[int, ...], Axis(Whole(at_least=1, at_most=LARGEST_CONTEXT))] = (256,)
    """Tokens in the KV cache when a round starts."""
    gamma: Annotated[tuple[int, ...], SearchedAxis(Whole(at_least=1, at_most=LARGEST_GAMMA))] = (1, 2, 3, 4, 5, 6)
    """Draft tokens proposed per round; {max: 16, search: adaptive} is 1 to 16 with gamma_search: adaptive."""
    gamma_search: Annotated[GammaSearch, GAMMA_SEARCH] = "all"
    """Whether T_verify is timed at every gamma, or only where it can still change which one is best."""
    include: tuple[CellRule, ...] = ()
    """Rules, of which a cell matches at least one to be measured; without any, every cell is."""
    exclude: tuple[CellRule, ...] = ()
    """Rules, of which a cell that is measured matches none."""

    @property
    def is_searched(self) -> bool:
        """Whether the best gamma is searched for, instead of all being timed."""
        return self.gamma_search == ADAPTIVE

    @model_validator(mode="before")
    @classmethod
    def _take_search(cls, written: object) -> object:
        return with_gamma_search(written)
