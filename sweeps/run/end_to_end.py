"""Decode one pair end to end into an open run: every cell that `validate` names, under its arms, block by block.

    key → blocks of B prompts → arms in shuffled order → requests.parquet, rounds.parquet

Blocks of all cells take turns, so that drift hits them alike; every block holds plain decoding and all that is held
against it, so that each comparison is between neighbours in time; what plain decoding itself is held against may be
asked for in the first blocks only. Where adaptive policies are decoded too, a block's prompts are all of one half, even
numbers or odd ones, since each half has policies of its own. A cell that runs out of memory is given up, and larger
ones are not tried; one that was killed says nothing of others, since anything may have killed it. What is kept is not
decoded again. Calls `bench`; everything it finds is on the disk before the next block starts.

The batches in which prompts are decoded end to end, block by block.

    batches(numbers, rows, half_of_row=[0] * len(rows), batch_size=4, repetitions=2)

Every prompt has its turn in each repetition; more repetitions add batches and leave the earlier ones as they are. The
last batch of a repetition goes round to the first prompts, which are then repetitions of their own, with other random
numbers. Prompts of two halves never share a batch; the batches of the halves take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.configs.fields import LARGEST_REPETITIONS
from specgauge.configs.schema import check_text_context
from specgauge.model.arms import OF_PLAIN, Arm, adaptive_arm, end_to_end_arms
from specgauge.sweeps.plan import measured_places, settings_of
from specgauge.sweeps.run.limits import RUN_SECONDS, Deadline
from specgauge.sweeps.run.policies import AdaptiveArms
from specgauge.sweeps.run.progress import Limits, Progress
from specgauge.sweeps.run.prompts import Numbered
from specgauge.sweeps.store.schema import DecodedKey, TunedCell
from specgauge.sweeps.store.tables import DecodedLog, half_of
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    from specgauge.bench.end_to_end.arm_runs import Request, Round
    from specgauge.bench.end_to_end.end_to_end import EndToEnd
    from specgauge.bench.models.pair import LoadedPair
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config, SamplingConfig, ValidateConfig
    from specgauge.model.policies.policy import RoundPolicy


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
    numbers: Sequence[int],
    rows: Sequence[list[int]],
    half_of_row: Sequence[int],
    *,
    batch_size: int,
    repetitions: int,
) -> list[Batch]:
    """The batches of every block.

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
    in_turn = [one for beside in zip_longest(*firsts) for one in beside if one is not None]
    return [batch(repetition, half, first) for repetition in range(repetitions) for half, first in in_turn]


VERIFY_SECONDS = "validate.max_seconds"
Guard = Callable[[Callable[[], object]], tuple[str, str] | None]
"""Does work; (status, reason) where memory ran out or it failed."""


@dataclass(frozen=True, kw_only=True)
class VerifyCell:
    """One cell to decode."""

    key: DecodedKey
    sampling: SamplingConfig
    gammas: tuple[int, ...]

    @property
    def place(self) -> tuple[int, int]:
        """Batch size and context."""
        return self.key.batch_size, self.key.start_context

    def needs_more_memory_than(self, other: VerifyCell) -> bool:
        """Whether it is another cell of the same sampling setting, at least as large in batch size and in context."""
        return (
            self.key != other.key
            and self.key.sampling == other.key.sampling
            and self.key.batch_size >= other.key.batch_size
            and self.key.start_context >= other.key.start_context
        )

    @property
    def words(self) -> str:
        """Where it is."""
        return f"{self.key.sampling}, batch size {self.key.batch_size}, context {self.key.start_context}"


def verify_keys(config: Config, pair: str) -> Iterator[tuple[DecodedKey, SamplingConfig]]:
    """The cells of a pair that are measured and `validate` names; the first draft sampling and rule are decoded."""
    if config.validation is None:
        return
    places = [place for place in measured_places(config, pair) if config.is_verified(place)]
    for sampling in config.sampling:
        for place in places:
            yield (
                DecodedKey(
                    pair=pair,
                    mode=place.mode,
                    sampling=sampling.name,
                    draft_sampling=config.draft_sampling[0],
                    acceptance_rule=config.acceptance_rule[0],
                    batch_size=place.batch_size,
                    start_context=place.context,
                ),
                sampling,
            )


def neighbours(gamma: int, grid: Sequence[int]) -> tuple[int, ...]:
    """A γ of the grid and the γ beside it, three in all where the grid has as many."""
    first = max(0, min(list(grid).index(gamma) - 1, len(grid) - 3))
    return tuple(grid[first : first + 3])


def verify_cells(
    config: Config, pair: str, recommended: Mapping[DecodedKey, int | None]
) -> tuple[list[VerifyCell], dict[str, str]]:
    """The cells of a pair with the γ of each, and why others have none, by their words.

    recommended: the γ that the measured parts recommend in each cell, where they are known.
    """
    cells, reasons = [], {}
    assert config.validation is not None
    for key, sampling in verify_keys(config, pair):
        gammas = config.validation.gamma
        if gammas == "recommended":
            gamma = recommended.get(key)
            gammas = () if gamma is None else neighbours(gamma, config.grid.gamma)
        cell = VerifyCell(key=key, sampling=sampling, gammas=tuple(gammas))
        if cell.gammas:
            cells.append(cell)
        else:
            reasons[cell.words] = "nothing is recommended there, since its parts or its acceptance are not known"
    return cells, reasons


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """What a cell is decoded with."""

    bench: EndToEnd
    arms: tuple[str, ...]
    tuned: TunedCell | None

    def policies(self, half: int) -> dict[str, RoundPolicy]:
        """The policy of each adaptive arm for the prompts of one half."""
        names = {arm: name for arm in self.arms if (name := Arm.parse(arm).policy) is not None}
        if not names:
            return {}
        assert self.tuned is not None
        return {arm: self.tuned.halves[half].policies[name] for arm, name in names.items()}


@dataclass(kw_only=True)
class Verification:
    """The decoding of one pair."""

    run: OpenRun
    pair: PairConfig
    progress: Progress
    guard: Guard
    adaptive: AdaptiveArms | None = None
    """The adaptive policies that are asked for."""
    deadline: Deadline = field(default_factory=Deadline)
    """Of the run: no block is begun after it."""
    skipped: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Why places are not decoded, by batch size and context."""
    under_way: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Is told the words of the cell that is decoded inside."""
    left_alone: Collection[str] = ()
    """Words of cells that are not decoded, for a reason that is kept elsewhere."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a cell was not decoded, or not to its end, by its words."""

    def check(self, loaded: LoadedPair) -> None:
        """Raise ValueError where a context leaves no room for the texts in the target."""
        if self.run.config.validation is None:
            return
        for key, _ in verify_keys(self.run.config, self.pair.name):
            check_text_context(
                loaded.target.name,
                context=key.start_context,
                new_tokens=self.max_new_tokens,
                max_context=loaded.target.max_context,
            )

    @property
    def verify(self) -> ValidateConfig:
        """What is asked for."""
        assert self.run.config.validation is not None
        return self.run.config.validation

    @property
    def max_new_tokens(self) -> int:
        """Tokens written for each prompt."""
        return self.verify.max_new_tokens or self.run.config.workload.max_new_tokens

    def decode(
        self,
        loaded: LoadedPair,
        prompts_at: Callable[[int], Numbered],
        recommended: Mapping[DecodedKey, int | None],
    ) -> None:
        """Decode what is missing.

        prompts_at: numbers and token ids of the prompts, each of exactly so many tokens.

        Raises:
            StorageError: the disk refused a write.
        """
        cells, self.reasons = verify_cells(self.run.config, self.pair.name, recommended)
        log = DecodedLog.open(self.run.path)
        cells = [self._as_begun(cell, log) for cell in cells if cell.words not in self.left_alone]
        for cell in cells:
            if cell.place in self.skipped:
                self.reasons[cell.words] = self.skipped[cell.place]
        cells = [cell for cell in cells if cell.place not in self.skipped]
        blocks = {cell.key: self._batches(cell, prompts_at(cell.key.start_context)) for cell in cells}
        most = max((len(found) for found in blocks.values()), default=0)
        kept = sum(log.has(key, block) for key, found in blocks.items() for block in range(len(found)))
        total, firsts = sum(map(len, blocks.values())), sum(not log.has(key, 0) for key in blocks)
        stage, limits = f"decoding end to end, {self.pair.name}", self._limits(log, kept + firsts)
        self.progress.start(stage, total, done=kept, limits=limits)
        benches: dict[DecodedKey, _Bench] = {}
        cut = 0
        for block in range(most):
            order = np.random.default_rng((self.run.config.seed, block)).permutation(len(cells))
            for cell in (cells[index] for index in order):
                if block >= len(blocks[cell.key]) or cell.words in self.reasons:
                    continue
                if log.has(cell.key, block):
                    continue
                spent = self._spent(log, block)
                if spent is not None:
                    left = len(blocks[cell.key]) - log.blocks(cell.key)
                    cut += left if spent == VERIFY_SECONDS else 0  # the other is told for the whole run
                    self.reasons[cell.words] = f"{left} of {len(blocks[cell.key])} blocks left out: {spent} is spent"
                    continue
                batch = blocks[cell.key][block]
                with self.under_way(cell.words):
                    trouble = self.guard(partial(self._block, loaded, log, benches, cell, block, batch))
                if trouble is not None:
                    self.reasons[cell.words] = ": ".join(trouble)
                    benches.pop(cell.key, None)
                    if trouble[0] == "oom":
                        self._skip_larger(cell, cells, log)
                self.progress.advance()
        if cut:
            self.progress.say(f"pair {self.pair.name}: {VERIFY_SECONDS} is spent, {cut} of {total} blocks left out")

    def _skip_larger(self, smaller: VerifyCell, cells: Sequence[VerifyCell], log: DecodedLog) -> None:
        """Do not try larger cells than one without memory, but for those that have shown that they fit."""
        batch_size, context = smaller.place
        reason = f"skipped: out of memory already at batch size {batch_size}, context {context}"
        for cell in cells:
            is_tried = cell.words in self.reasons or log.blocks(cell.key) > 0
            if cell.needs_more_memory_than(smaller) and not is_tried:
                self.reasons[cell.words] = reason

    def _as_begun(self, cell: VerifyCell, log: DecodedLog) -> VerifyCell:
        """The cell with the γ of its kept blocks, whatever is recommended since: all blocks of a cell have the same."""
        kept = log.gammas(cell.key)
        if not kept or kept == cell.gammas:
            return cell
        self.progress.say(
            f"{cell.words}: goes on with γ = {', '.join(map(str, kept))}, as it was begun; with --fresh it would be "
            f"{', '.join(map(str, cell.gammas))}"
        )
        return replace(cell, gammas=kept)

    def _limits(self, log: DecodedLog, least: int) -> Limits:
        """What ends the decoding before all of it is done: the pair's own seconds, or the run's."""
        limit_s = self.verify.max_seconds
        own_s = None if limit_s is None else max(0.0, limit_s - log.spent_s(self.pair.name))
        return Limits(work_s=own_s, wall_s=self.deadline.left_s, least=least)

    def _spent(self, log: DecodedLog, block: int) -> str | None:
        """The limit that ends the decoding; the pair's own leaves every cell its first block, the run's does not."""
        if self.deadline.is_spent:
            return RUN_SECONDS
        limit = self.verify.max_seconds
        is_spent = limit is not None and block > 0 and log.spent_s(self.pair.name) >= limit
        return VERIFY_SECONDS if is_spent else None

    def _batches(self, cell: VerifyCell, prompts: Numbered) -> list[Batch]:
        """The batches of every block."""
        numbers, rows = prompts
        limit = len(rows) if self.verify.prompts is None else min(self.verify.prompts, len(rows))
        half_of_row = [0] * limit
        if self.adaptive is not None:
            half_of_row = [half_of(number, self.adaptive.tuner.prompts) for number in numbers[:limit]]
        return batches(numbers, rows, half_of_row, batch_size=cell.key.batch_size, repetitions=self.verify.repetitions)

    def _block(
        self,
        loaded: LoadedPair,
        log: DecodedLog,
        benches: dict[DecodedKey, _Bench],
        cell: VerifyCell,
        block: int,
        batch: Batch,
    ) -> None:
        """One batch of prompts under the arms of its block, kept when all are done."""
        from specgauge.bench.end_to_end.end_to_end import shuffled

        if cell.key not in benches:
            started = time.monotonic()
            benches[cell.key] = self._warm(loaded, cell, block, batch)
            self.progress.set_aside(time.monotonic() - started)
        own = benches[cell.key]
        took_turns = own.bench.takes_turns
        arms = shuffled(self._arms_of_block(own.arms, block), seed=self.run.config.seed, block=block)
        runs = own.bench.run(
            arms,
            batch.rows,
            prompt_numbers=batch.drawn_as,
            repetition=batch.repetition,
            policies=own.policies(batch.half),
            window=max(self.run.config.grid.gamma),
        )
        if took_turns and not own.bench.takes_turns:
            self.progress.say(f"{cell.words}: no memory for the caches of all arms at once; they run one after another")
        found = [runs[arm] for arm in arms]
        log.append(
            cell.key,
            block,
            [batch.record(request) for one in found for request in one.requests],
            [batch.record(round_) for one in found for round_ in one.rounds],
        )

    def _arms_of_block(self, arms: Sequence[str], block: int) -> list[str]:
        """Those of a cell's arms that a block has, and all later ones may have."""
        limit = self.verify.baseline_blocks
        return [arm for arm in arms if limit is None or block < limit or arm not in OF_PLAIN]

    def _warm(self, loaded: LoadedPair, cell: VerifyCell, block: int, batch: Batch) -> _Bench:
        """A bench with every arm warm that the cell needs from a block on, and its adaptive policies tuned."""
        from specgauge.bench.end_to_end.end_to_end import EndToEnd

        bench = EndToEnd(
            loaded,
            settings_of(cell.sampling),
            max_new_tokens=self.max_new_tokens,
            seed=self.run.config.seed,
            draft_sampling=self.run.config.draft_sampling[0],
            acceptance_rule=self.run.config.acceptance_rule[0],
            forced_rates=self.verify.acceptance,
            memory=self.run.config.limits.memory,
        )
        arms, tuned = end_to_end_arms(cell.gammas), None
        for arm in self._arms_of_block(arms, block):
            bench.warm_up(arm, batch.rows)
        if self.adaptive is not None:
            arm = adaptive_arm(self.adaptive.names[0])  # under any policy, shapes are those of every γ
            bench.warm_up(arm, batch.rows, gamma_max=self.adaptive.gamma_max(cell.key))
            tuned = self.adaptive.of(cell.key, lambda gamma: bench.host_costs(batch.rows, gamma=gamma))
            arms = end_to_end_arms(cell.gammas, tuned.names)
        return _Bench(bench=bench, arms=arms, tuned=tuned)
