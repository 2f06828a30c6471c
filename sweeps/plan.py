"""The cells of a sweep.

A cell is (pair, mode, chain, batch_size, context); a variant of a pair is a pair of its own. Sampling settings whose
processors are the same share a chain, and settings that share a chain share timings, so a chain is planned once a pair.

    cells = plan_cells(config)          # smallest batch size and context first
    cells[0].axes, cells[0].id          # what a journal line is keyed by

Where batch sizes are searched for (`grid.batch_size_search`), a run has some of them at first and others once begun:

    plan_cells(begun_config(config, [])), plan_cells(begun_config(config, begun_points(journal lines)))
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

from specgauge.configs.canonical import short_hash
from specgauge.configs.variants import CellRule
from specgauge.model.sampling import SamplingSettings, chain_name

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config, SamplingConfig
    from specgauge.configs.variants import GridPoint
    from specgauge.sweeps.store.schema import JournalLine

BegunPoint = tuple[str, int, int]
"""Pair, batch size and context of a cell that something was measured in, or tried."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One point of a sweep."""

    pair: str
    mode: str
    chain: str
    batch_size: int
    context: int
    catches_up: bool = True
    """Whether a model drafts, whose cache may lag; lookups have no such arm. Follows from the pair: no axis."""

    @property
    def axes(self) -> dict[str, str | int]:
        """The cell's coordinates, as they stand in every journal line."""
        return {name: getattr(self, name) for name in ("pair", "mode", "chain", "batch_size", "context")}

    @cached_property
    def id(self) -> str:
        """The 12-digit hash of the axes."""
        return short_hash(self.axes)


def settings_of(sampling: SamplingConfig) -> SamplingSettings:
    """The sampling chain's settings that a named setting of the configuration stands for."""
    return SamplingSettings(**sampling.model_dump(exclude={"name"}))


def chains(config: Config) -> dict[str, SamplingSettings]:
    """The chains of a configuration, each with the first settings that have it, in the configuration's order."""
    found: dict[str, SamplingSettings] = {}
    for sampling in config.sampling:
        settings = settings_of(sampling)
        found.setdefault(chain_name(settings), settings)
    return found


def plan_cells(config: Config, only: str | None = None) -> tuple[Cell, ...]:
    """Every cell that the rules of the grid leave: by pair, then chain, smallest batch size and context first.

    only: the one pair whose cells are wanted.
    """
    pairs, planned = {pair.name: pair for pair in config.pairs}, chains(config)
    points = [point for point in config.points(only) if config.is_measured(point)]
    return tuple(
        Cell(
            pair=pair,
            mode=point.mode,
            chain=chain,
            batch_size=point.batch_size,
            context=point.context,
            catches_up=pairs[pair].drafts_with_model,
        )
        for pair, own in groupby(points, key=lambda point: point.pair)
        for chain, point in product(planned, tuple(own))
    )


def first_batch_sizes(sizes: Sequence[int]) -> tuple[int, ...]:
    """Those of rising batch sizes that a search begins with: the ends, and between them steps of up to twice.

    >>> first_batch_sizes([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 24, 30])
    (1, 2, 4, 8, 10, 24, 30)
    """
    found = [sizes[0]]
    while found[-1] < sizes[-1]:
        above = [size for size in sizes if size > found[-1]]
        found.append(max([size for size in above if size <= 2 * found[-1]], default=above[0]))
    return tuple(found)


def begun_points(lines: Iterable[JournalLine]) -> set[BegunPoint]:
    """Where the lines of a journal are of."""
    return {(str(one.axes["pair"]), int(one.axes["batch_size"]), int(one.axes["context"])) for one in lines}


def begun_config(config: Config, begun: Iterable[BegunPoint]) -> Config:
    """A configuration of the cells that a run has: of batch sizes that are searched for, the first and those begun.

    Batch sizes that are to be decoded end to end by their number are among the first.
    """
    if not config.grid.are_sizes_searched:
        return config
    named = (config.validation and config.validation.batch_size) or ()
    planned: dict[tuple[str, int], list[int]] = {}
    for point in config.points():
        if config.is_measured(point):
            planned.setdefault((point.pair, point.context), []).append(point.batch_size)
    kept = {at: {*first_batch_sizes(own), *named} & set(own) for at, own in planned.items()}
    for pair, batch_size, context in begun:
        kept.get((pair, context), set()).add(batch_size)
    sizes = sorted({size for own in kept.values() for size in own})
    rules = list(config.grid.exclude)
    for (pair, context), own in kept.items():
        missing = tuple(size for size in sizes if size in planned[pair, context] and size not in own)
        if missing:
            rules.append(CellRule(pair=(pair,), context=(context,), batch_size=missing))
    return config.model_copy(
        update={"grid": config.grid.model_copy(update={"batch_size": tuple(sizes), "exclude": tuple(rules)})}
    )


def planned_pairs(config: Config) -> tuple[PairConfig, ...]:
    """The pairs that the rules of the grid leave a cell of."""
    planned = {point.pair for point in config.points() if config.is_measured(point)}
    return tuple(pair for pair in config.pairs if pair.name in planned)


def target_identity(pair: PairConfig) -> dict[str, Any]:
    """What makes a pair's target the model it is; where and how it runs may differ."""
    return pair.target.model_dump(exclude={"device", "device_map", "attention", "dtype", "quantization"})


def measured_points(config: Config, pair: str) -> tuple[GridPoint, ...]:
    """The points of a pair that the rules of the grid leave, smallest batch size and context first."""
    return tuple(point for point in config.points(pair) if config.is_measured(point))


def decoded_points(config: Config, pair: str) -> tuple[GridPoint, ...]:
    """Those of them that are decoded end to end."""
    return () if config.validation is None else tuple(filter(config.is_decoded, measured_points(config, pair)))


def reach(config: Config, pair: str) -> int:
    """The most tokens in a row of a pair: a round at the longest context, a text decoded, a prompt brought to length.

    Prompts as long as they are do not count; those of a model that takes fewer tokens are left out.
    """
    rounds = [point.context + max(config.grid.gamma) + 1 for point in measured_points(config, pair)]
    texts = [point.context + decoded_tokens(config) for point in decoded_points(config, pair)]
    prompts = [length + config.workload.max_new_tokens for length in config.workload.prompt_tokens or ()]
    return max([*rounds, *texts, *prompts])


def decoded_tokens(config: Config) -> int:
    """Tokens that are decoded end to end for each prompt."""
    own = None if config.validation is None else config.validation.max_new_tokens
    return own or config.workload.max_new_tokens
