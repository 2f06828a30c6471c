"""What is decoded end to end: the cells of a pair, the γ of each, and the prompts of each block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.configs.fields import LARGEST_REPETITIONS
from specgauge.model.arms import OF_PLAIN, end_to_end_arms
from specgauge.model.stats.ordering import spread_order
from specgauge.sweeps.plan import decoded_points
from specgauge.sweeps.store.schema import DecodedKey

if TYPE_CHECKING:
    from specgauge.bench.end_to_end.arm_runs import Request, Round
    from specgauge.configs.schema import Config, SamplingConfig
    from specgauge.configs.variants import GridPoint

FEWEST_BLOCKS = 3
"""Batches that a measured S rests on at least, where time is short: its interval tells little with fewer."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One block's prompts; lists by row."""

    repetition: int
    rows: list[list[int]]
    """Token ids."""
    prompts: list[int]
    repetitions: list[int]
    """A prompt met again in the block is another repetition of it."""
    drawn_as: list[int]
    """Numbers that the random numbers follow from: a prompt met again has another one."""
    half: int = 0
    """Which half all its prompts belong to."""

    def record(self, found: Request | Round) -> dict[str, Any]:
        """As it is kept: under the prompt's own number."""
        return asdict(found) | {"prompt": self.prompts[found.row], "repetition": self.repetitions[found.row]}


def batches(
    numbers: Sequence[int], rows: Sequence[list[int]], half_of_row: Sequence[int], *, batch_size: int, repetitions: int
) -> list[Batch]:
    """The batches in which prompts are decoded, block by block.

    Every prompt is in one batch of each repetition; more repetitions add batches and leave the earlier ones as they
    are. The last batch of a repetition goes round to the first prompts, which are then repetitions of their own, with
    other random numbers. Prompts of two halves never share a batch; the batches of the halves are interleaved.

    numbers, rows: every prompt's number and token ids; the first are decoded, as many as `half_of_row` (0 or 1) names.
    """
    limit, beyond = len(half_of_row), max(numbers) + 1
    halves = [[i for i in range(limit) if half_of_row[i] == half] for half in (0, 1)]

    def batch(repetition: int, half: int, first: int) -> Batch:
        own = halves[half]
        taken = [(own[i % len(own)], i // len(own), i) for i in range(first, first + batch_size)]
        again_as = beyond + half * (limit + batch_size)
        return Batch(
            repetition=repetition,
            rows=[rows[index] for index, _, _ in taken],
            prompts=[numbers[index] for index, _, _ in taken],
            repetitions=[repetition + times * LARGEST_REPETITIONS for _, times, _ in taken],
            drawn_as=[again_as + i if times else numbers[index] for index, times, i in taken],
            half=half,
        )

    firsts = [[(half, first) for first in range(0, len(own), batch_size)] for half, own in enumerate(halves)]
    interleaved = [one for beside in zip_longest(*firsts) for one in beside if one is not None]
    return [batch(repetition, half, first) for repetition in range(repetitions) for half, first in interleaved]


@dataclass(frozen=True, kw_only=True)
class ValidationCell:
    """One cell to decode."""

    key: DecodedKey
    sampling: SamplingConfig
    gammas: tuple[int, ...]
    recommended: int | None = None
    """The γ whose neighbours the others are; None where the configuration names them."""
    baseline_blocks: int | None = None
    """Blocks, from the first, in which plain decoding is held against its baselines; None is all."""

    @property
    def point(self) -> tuple[int, int]:
        """Batch size and context."""
        return self.key.batch_size, self.key.start_context

    @property
    def label(self) -> str:
        """Its sampling setting and where it is."""
        return f"{self.key.sampling}, batch size {self.key.batch_size}, context {self.key.start_context}"

    def arms_of_block(self, block: int, policies: Sequence[str] = ()) -> list[str]:
        """The arms of a block, policies included; a later block has no others."""
        limit = self.baseline_blocks
        return [
            arm
            for arm in end_to_end_arms(self.gammas, policies)
            if limit is None or block < limit or arm not in OF_PLAIN
        ]


def spread_by_acceptance(groups: Sequence[Hashable], tokens_per_round: Sequence[float]) -> list[int]:
    """Indices of prompts in the order decoded: the drafts accepted in any first few of a group stand for all of it.

    groups: what keeps its place, such as a prompt's category. tokens_per_round: Ω of each prompt's recorded text, NaN
    where it is not known.
    """
    left: dict[Hashable, Iterator[int]] = {}
    for group in dict.fromkeys(groups):
        own = [index for index, one in enumerate(groups) if one == group]
        order = spread_order(np.array([tokens_per_round[index] for index in own]))
        left[group] = iter([own[place] for place in order])
    return [next(left[group]) for group in groups]


def neighbours(gamma: int, grid: Sequence[int]) -> tuple[int, ...]:
    """A γ of the grid and the γ beside it, three in all where the grid has as many."""
    first = max(0, min(list(grid).index(gamma) - 1, len(grid) - 3))
    return tuple(grid[first : first + 3])


def validation_cells(
    config: Config, pair: str, recommended: Mapping[DecodedKey, int | None], points: Sequence[GridPoint] | None = None
) -> tuple[list[ValidationCell], dict[str, str]]:
    """The cells of a pair with the γ of each, and why others have none, by their labels.

    Each is decoded under the first draft sampling and acceptance rule.

    recommended: the γ that measured costs and acceptance recommend in each cell, where they are known.
    points: those of the pair that are meant; None is all that are decoded.
    """
    cells, reasons = [], {}
    points = decoded_points(config, pair) if points is None else points
    assert config.validation is not None
    for sampling, point in product(config.sampling, points):
        key = DecodedKey(
            pair=pair,
            mode=point.mode,
            sampling=sampling.name,
            draft_sampling=config.draft_sampling[0],
            acceptance_rule=config.acceptance_rule[0],
            batch_size=point.batch_size,
            start_context=point.context,
        )
        gammas, gamma = config.validation.gamma, None
        if gammas == "recommended":
            gamma = recommended.get(key)
            gammas = () if gamma is None else neighbours(gamma, config.grid.gamma)
        cell = ValidationCell(
            key=key,
            sampling=sampling,
            gammas=tuple(gammas),
            recommended=gamma,
            baseline_blocks=config.validation.baseline_blocks,
        )
        if cell.gammas:
            cells.append(cell)
        else:
            reasons[cell.label] = "nothing is recommended there, since its costs or its acceptance are not known"
    return cells, reasons


def within_seconds(
    cells: Sequence[ValidationCell], seconds: float, takes_s: Callable[[ValidationCell], float]
) -> tuple[list[ValidationCell], list[ValidationCell]]:
    """The cells whose first blocks fit into the seconds, with the γ that do, and the cells that do not fit.

    Where all do not fit, the γ beside the recommended ones are not decoded, nor the baselines in any cell but the
    first; where that is not enough, the cells that take longest are left out, but for one: fewer cells rather than
    cells with too few texts to tell anything.

    takes_s: what a cell's first `FEWEST_BLOCKS` blocks should take with its γ, 0 where nothing tells.
    """
    kept, left_out = list(cells), []
    if sum(map(takes_s, kept)) > seconds:
        kept = [
            cell if cell.recommended is None else replace(cell, gammas=(cell.recommended,), baseline_blocks=int(not at))
            for at, cell in enumerate(kept)
        ]
    each_s = {cell.key: takes_s(cell) for cell in kept}
    while len(kept) > 1 and sum(each_s[cell.key] for cell in kept) > seconds:
        longest = max(reversed(kept), key=lambda cell: each_s[cell.key])
        kept.remove(longest)
        left_out.append(longest)
    return kept, left_out
