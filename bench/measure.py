"""Time the cells of one pair: arms interleaved in blocks, until every median is known well enough.

A cell is (chain, batch size, context) of a loaded pair.  All cells of one batch size share caches and are visited in
turn, a block at a time: a sample of each arm after the other, in an order shuffled by block, so that a machine that
slows down hits all arms alike.  A cell stops when the interval of every arm's median is narrower than
``precision.relative_ci`` of it, or when its blocks, its own seconds or those of its batch size are spent.  First calls
and one warm-up are kept apart.

    measure_cells(pair, cells, gammas=[1, 2, 3], prompts=prompts, precision=precision, journal=journal, seed=0)

Out of memory is a result: the cell's arms are recorded as ``oom``, larger cells of the same chain as ``skipped``.
How one batch size is measured is in `specgauge.bench.cell_timer`; here batch sizes follow each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from specgauge.bench.blocks import BlockJournal, TimingCell
from specgauge.bench.cell_timer import CellState, CellTimer, skip_reason
from specgauge.bench.clock import Clock, clock_for
from specgauge.bench.memory import free_memory
from specgauge.bench.models import LoadedPair
from specgauge.configs.schema import PrecisionConfig, check_context


def measure_cells(
    pair: LoadedPair,
    cells: Sequence[TimingCell],
    *,
    gammas: Sequence[int],
    prompts: Sequence[Sequence[int]],
    precision: PrecisionConfig,
    journal: BlockJournal,
    seed: int,
    clock: Clock | None = None,
    progress: Callable[[str], None] | None = None,
) -> None:
    """Time every cell of a pair, smallest batch size first; results go to the journal, nothing recorded is repeated.

    ``prompts`` are token ids of the workload; rows are made of them (`specgauge.bench.arms.timing_rows`).
    Raises ValueError when a context does not fit into the models' limits.
    """
    check_contexts(pair, cells, max(gammas))
    timer = CellTimer(
        pair,
        gammas=gammas,
        precision=precision,
        journal=journal,
        clock=clock if clock is not None else clock_for(*pair.devices),
        seed=seed,
        progress=progress,
    )
    measure_groups(timer, cells, prompts, sorted({cell.batch_size for cell in cells}))


def measure_groups(
    timer: CellTimer, cells: Sequence[TimingCell], prompts: Sequence[Sequence[int]], batch_sizes: Iterable[int]
) -> None:
    """Measure the cells of each batch size in turn; those larger than one without memory are skipped."""
    for batch_size in batch_sizes:
        group = [cell for cell in cells if cell.batch_size == batch_size]
        for cell in group:
            smaller = next((c for c in cells if _dominates(cell, c) and _ran_out_of_memory(timer, c)), None)
            if smaller is not None:
                timer.give_up(CellState(cell=cell), "skipped", skip_reason(smaller))
        timer.measure_group(group, prompts)
        free_memory()


def _dominates(larger: TimingCell, smaller: TimingCell) -> bool:
    """Whether a cell needs at least the memory of another, smaller one of the same chain."""
    return (
        larger is not smaller
        and larger.chain == smaller.chain
        and larger.batch_size >= smaller.batch_size
        and larger.context >= smaller.context
    )


def _ran_out_of_memory(timer: CellTimer, cell: TimingCell) -> bool:
    return any(b.status == "oom" for arm in timer.arms for b in timer.journal.blocks(cell.cell_id, arm).values())


def check_contexts(pair: LoadedPair, cells: Sequence[TimingCell], gamma_max: int) -> None:
    """Raise ValueError when a context and a round on top of it exceed what either model takes."""
    largest = max(cell.context for cell in cells)
    for loaded in pair.models:
        check_context(loaded.name, context=largest, gamma_max=gamma_max, max_context=loaded.max_context)
