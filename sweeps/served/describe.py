"""What a run of servers would do, as text: cells, servers or the commands that start them, requests and time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.bench.serving.engine_keys import misspelt
from specgauge.configs.engines import EXPORTED
from specgauge.sweeps.plan import Cell, begun_config, plan_cells
from specgauge.sweeps.run.progress import duration_text
from specgauge.sweeps.served.launching import BLOCKS_A_VISIT, Launch, LiveServer, RequestServer, checked_gammas
from specgauge.sweeps.served.load import requests_of
from specgauge.sweeps.served.search import PARTS_A_START, most_passes
from specgauge.sweeps.served.validating import BLOCKS
from specgauge.sweeps.served.visits import PairServers
from specgauge.sweeps.text_table import count, text_table

if TYPE_CHECKING:
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config

SHOWN_CELLS = 60
PORT = 8000
"""Stands in commands for a port that is free."""
SCHEDULE = "as exported"
"""Stands in commands for what the run will export."""


def describe_served(config: Config) -> str:
    """The cells, the servers of each pair, and what is sent to them.

    Raises:
        ValueError: a command cannot be made for a γ.
    """
    planned = config
    config = begun_config(planned, ())
    cells = plan_cells(config)
    headings = ("pair", "chain", "batch size", "context")
    rows = [(cell.pair, cell.chain, str(cell.batch_size), str(cell.context)) for cell in cells[:SHOWN_CELLS]]
    more = [f"… and {len(cells) - SHOWN_CELLS} more"] if len(cells) > SHOWN_CELLS else []
    precision = config.precision
    lines = [
        f"{config.name}: {count(len(cells), 'cell')}",
        *(f"  {line}" for line in (*text_table(headings, rows).splitlines(), *more)),
        *_searched(planned, len(cells)),
        "",
        f"arms of each cell: plain decoding, rounds of γ = {', '.join(map(str, config.grid.gamma))}{_own(config)}",
        f"  {precision.min_blocks} to {precision.max_blocks} blocks, until ±{precision.relative_ci:.3g} of the median "
        f"at {precision.confidence:g}",
        f"  a block is {_requests(config, cells)} of {config.workload.max_new_tokens} tokens",
        "",
    ]
    for pair in config.pairs:
        own = [cell for cell in cells if cell.pair == pair.name]
        if own:
            lines += [*_pair_lines(planned, pair, own), ""]
    return "\n".join(lines[:-1])


def _searched(config: Config, first: int) -> Iterator[str]:
    """What a search for batch sizes may add."""
    if config.grid.are_sizes_searched:
        sizes, left = config.grid.batch_size, len(plan_cells(config)) - first
        yield (
            f"  and up to {count(left, 'cell')} of other batch sizes from {sizes[0]} to {sizes[-1]}: those at which "
            "another γ may be the best"
        )


def _own(config: Config) -> str:
    names = {one.name for pair in config.pairs for engine in pair.engines for one in engine.arms}
    names |= {engine.arm for pair in config.pairs for engine in pair.engines if engine.arm is not None}
    return f", policies of the engine's own ({', '.join(sorted(names))})" if names else ""


def _requests(config: Config, cells: tuple[Cell, ...]) -> str:
    counts = sorted({requests_of(cell.batch_size, config.precision.block_samples) for cell in cells})
    return f"{counts[0]} to {counts[-1]} requests" if len(counts) > 1 else count(counts[0], "request")


def _pair_lines(config: Config, pair: PairConfig, cells: list[Cell]) -> Iterator[str]:
    servers = PairServers(
        pair=pair,
        folder=Path("RUN") / "servers",
        streams=max(cell.batch_size for cell in cells),
        largest=max(config.grid.gamma),
    )
    gammas = [0, *config.grid.gamma]
    limit_s = config.precision.max_seconds
    sizes = {cell.batch_size for cell in cells}
    blocks = "blocks" if limit_s is None else f"blocks for up to {duration_text(limit_s * len(sizes))}"
    if config.grid.are_sizes_searched and limit_s is not None:
        blocks += f" and {duration_text(limit_s)} for each batch size more"
    yield f"pair {pair.name}: target {pair.target.label}, draft {pair.draft.label}"
    launch = servers.launch
    if launch is None:
        for one in sorted(pair.engines, key=lambda one: (one.arm is not None, one.gamma or 0)):
            key = f", key in {one.api_key_env}" if one.api_key_env else ""
            arm = f"γ = {one.gamma}" if one.arm is None else f"arm {one.arm}"
            yield f"  {arm}: {one.base_url}{key}"
        missing = [gamma for gamma in gammas if gamma not in {one.gamma for one in pair.engines}]
        if missing:
            yield f"  no server of γ = {', '.join(map(str, missing))}: not measured"
        yield f"  time: {blocks}, after warming up"
        yield from (f"  {line}" for line in _validation(config, servers, is_live=False))
        return
    own = launch.engine.launch
    assert own is not None
    visits = list(servers.timing(gammas, blocks=BLOCKS_A_VISIT, most=config.precision.max_blocks))
    is_live = any(isinstance(one, LiveServer) for one in visits)
    fewest = len(visits) if is_live else 2 * (len(gammas) + len(servers.policies))
    yield from (f"  {line}" for line in _commands(launch, gammas, is_live, checked_gammas(launch, gammas)))
    for name, (under, most) in servers.launches().items():
        yield f"  arm {name}: {under.command(most, PORT).line}"
        for key, known in misspelt(launch.engine.kind, under.own).items():
            yield f"  warning: arm {name}: {launch.engine.kind} is not known to have {key!r}; did you mean {known!r}?"
    passes = most_passes(config.grid.batch_size, PARTS_A_START) if config.grid.are_sizes_searched else 0
    which = "each arm, and back"
    if any(isinstance(one, RequestServer) for one in visits):
        which += f"; that of γ = {max(gammas)} for all where its build takes γ from a request"
    yield (
        f"  time: {blocks}, and {count(fewest, 'start')} of a server"
        + ("" if is_live else f" ({which}), more where times are not known by then")
        + (f"; as many again for more batch sizes, up to {count(passes, 'time')}" if passes else "")
        + f", with up to {duration_text(own.ready_seconds)} each to be ready"
    )
    yield from (f"  {line}" for line in _validation(config, servers, is_live=is_live))


def _validation(config: Config, servers: PairServers, *, is_live: bool) -> Iterator[str]:
    """What is run to validate, and how long it may take."""
    asked = config.validation
    if asked is None:
        return
    is_recommended = asked.gamma == "recommended"
    gammas = "the recommended γ and its neighbours" if is_recommended else f"γ = {', '.join(map(str, asked.gamma))}"
    forced = "" if asked.acceptance is None else f", drafts accepted at the rate {_rates(asked.acceptance)}"
    policies = servers.policies if not forced else ()
    exported = "" if forced else f", {'what is exported' if servers.follows else 'the γ that is exported'}"
    arms = f"plain decoding, {gammas}{exported}{''.join(f', arm {name}' for name in policies)}"
    yield f"validation: {arms}{forced}: {count(BLOCKS * asked.repetitions, 'block')} each"
    launch, most = servers.launch, min(3, len(config.grid.gamma)) if is_recommended else len(asked.gamma)
    if launch is not None and forced:
        gamma, with_rates = max(config.grid.gamma), servers.forced(launch, asked.acceptance)
        line = with_rates.live_command(config.grid.gamma, PORT) if is_live else with_rates.command(gamma, PORT)
        yield f"  γ = {gamma}: {line.line}"
    elif launch is not None and servers.follows is not None:
        adapts = {"speculative-adaptive": True} if launch.engine.kind == "sglang" else {}
        for name, (under, largest) in servers.launches({EXPORTED: {**adapts, servers.follows: SCHEDULE}}).items():
            if name == EXPORTED:
                yield f"  exported: {under.command(largest, PORT).line}"
    starts = 0
    if launch is not None:
        apart = len(policies) + bool(servers.follows and not forced)
        starts = 1 + 2 * (apart + 1) if is_live else 2 * (1 + most + apart)
    limit = "" if asked.max_seconds is None else f" for up to {duration_text(asked.max_seconds)}"
    yield f"  time: blocks{limit}" + (f", and up to {count(starts, 'start')} of a server" if starts else "")


def _rates(acceptance: float | tuple[float, ...]) -> str:
    return f"{acceptance:g}" if isinstance(acceptance, float) else ", ".join(f"{one:g}" for one in acceptance)


def _commands(launch: Launch, gammas: list[int], is_live: bool, checked: list[int]) -> Iterator[str]:
    """What is started, a line each."""
    for gamma in gammas[:1] if is_live else gammas:
        yield f"γ = {gamma}: {launch.command(gamma, PORT).line}"
    if is_live:
        yield f"γ = {', '.join(map(str, gammas))} in turn: {launch.live_command(gammas[1:], PORT).line}"
        yield from (f"γ = {gamma} alone, to check it: {launch.command(gamma, PORT).line}" for gamma in checked)
