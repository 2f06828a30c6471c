"""The cells of a sweep.

A cell is (pair, mode, chain, batch_size, context); a variant of a pair is a pair of its own. Sampling settings whose
processors are the same share a chain, and settings that share a chain share timings, so a chain is planned once a pair.

    cells = plan_cells(config)          # smallest batch size and context first
    cells[0].axes, cells[0].id          # what a journal line is keyed by
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING, Any

from specgauge.configs.canonical import short_hash
from specgauge.model.sampling import SamplingSettings, chain_name

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config, SamplingConfig
    from specgauge.configs.variants import GridPoint


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
