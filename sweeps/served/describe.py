"""What a run of servers would do, as text: cells, servers or the commands that start them, requests and time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.sweeps.plan import Cell, plan_cells
from specgauge.sweeps.run.progress import duration_text
from specgauge.sweeps.served.launching import (
    BLOCKS_A_VISIT,
    Launch,
    LiveServer,
    RequestServer,
    checked_gammas,
    launched_visits,
)
from specgauge.sweeps.served.load import requests_of
from specgauge.sweeps.text_table import count, text_table

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config

SHOWN_CELLS = 60
PORT = 8000
"""Stands in commands for a port that is free."""


def describe_served(config: Config) -> str:
    """The cells, the servers of each pair, and what is sent to them.

    Raises:
        ValueError: a command cannot be made for a γ.
    """
    cells = plan_cells(config)
    headings = ("pair", "chain", "batch size", "context")
    rows = [(cell.pair, cell.chain, str(cell.batch_size), str(cell.context)) for cell in cells[:SHOWN_CELLS]]
    more = [f"… and {len(cells) - SHOWN_CELLS} more"] if len(cells) > SHOWN_CELLS else []
    precision = config.precision
    lines = [
        f"{config.name}: {count(len(cells), 'cell')}",
        *(f"  {line}" for line in (*text_table(headings, rows).splitlines(), *more)),
        "",
        f"arms of each cell: plain decoding, rounds of γ = {', '.join(map(str, config.grid.gamma))}",
        f"  {precision.min_blocks} to {precision.max_blocks} blocks, until ±{precision.relative_ci:.3g} of the median "
        f"at {precision.confidence:g}",
        f"  a block is {_requests(config, cells)} of {config.workload.max_new_tokens} tokens",
        "",
    ]
    for pair in config.pairs:
        own = [cell for cell in cells if cell.pair == pair.name]
        if own:
            lines += [*_pair_lines(config, pair, own), ""]
    return "\n".join(lines[:-1])


def _requests(config: Config, cells: tuple[Cell, ...]) -> str:
    counts = sorted({requests_of(cell.batch_size, config.precision.block_samples) for cell in cells})
    return f"{counts[0]} to {counts[-1]} requests" if len(counts) > 1 else count(counts[0], "request")


def _pair_lines(config: Config, pair: PairConfig, cells: list[Cell]) -> Iterator[str]:
    engine, gammas = pair.engines[0], [0, *config.grid.gamma]
    sizes = {cell.batch_size for cell in cells}
    limit_s = config.precision.max_seconds
    blocks = "blocks" if limit_s is None else f"blocks for up to {duration_text(limit_s * len(sizes))}"
    yield f"pair {pair.name}: target {pair.target.label}, draft {pair.draft.label}"
    if engine.launch is None:
        for one in sorted(pair.engines, key=lambda one: one.gamma or 0):
            key = f", key in {one.api_key_env}" if one.api_key_env else ""
            yield f"  γ = {one.gamma}: {one.base_url}{key}"
        missing = [gamma for gamma in gammas if gamma not in {one.gamma for one in pair.engines}]
        if missing:
            yield f"  no server of γ = {', '.join(map(str, missing))}: not measured"
        yield f"  time: {blocks}, after warming up"
        return
    launch = Launch(engine=engine, folder=Path("RUN") / "servers" / pair.name, streams=max(sizes))
    precision = config.precision
    checked = checked_gammas(launch, gammas)
    visits = list(launched_visits(launch, gammas, blocks=BLOCKS_A_VISIT, most=precision.max_blocks, checked=checked))
    is_live = any(isinstance(one, LiveServer) for one in visits)
    fewest = len(visits) if is_live else 2 * len(gammas)
    yield from (f"  {line}" for line in _commands(launch, gammas, is_live, checked))
    which = "each γ, and back"
    if any(isinstance(one, RequestServer) for one in visits):
        which += f"; that of γ = {max(gammas)} alone where its build takes γ from a request"
    yield (
        f"  time: {blocks}, and {count(fewest, 'start')} of a server"
        + ("" if is_live else f" ({which}), more where times are not known by then")
        + f", with up to {duration_text(engine.launch.ready_seconds)} each to be ready"
    )


def _commands(launch: Launch, gammas: list[int], is_live: bool, checked: list[int]) -> Iterator[str]:
    """What is started, a line each."""
    apart = [gamma for gamma in gammas if not is_live or (gamma == 0 and not launch.is_plain_live)]
    for gamma in apart:
        yield f"γ = {gamma}: {launch.command(gamma, PORT).line}"
    own = [gamma for gamma in gammas if gamma not in apart]
    if own and launch.served is not None:
        yield f"γ = {', '.join(map(str, own))} in turn: {launch.live_command(own, PORT).line}"
        yield from (f"γ = {gamma} alone, to check it: {launch.command(gamma, PORT).line}" for gamma in checked)
