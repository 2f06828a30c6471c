"""Decode one pair end to end into an open run, to validate the prediction: cell by cell, arm by arm, in blocks.

    Validation(session).decode(loaded, recommended_gammas(run, pair.name))

Blocks of all cells are interleaved, so that drift hits them alike; every block holds plain decoding and all that is
compared with it, so that each comparison is between neighbours in time. Where adaptive policies are decoded too, a
block's prompts are all even or all odd, since each half of the prompts has policies tuned on the other half. A cell
that runs out of memory is given up, and larger ones are not tried. Everything is on the disk before the next block.
A block is not begun where the seconds of the pair, or those of `validate`, should not hold it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.configs.schema import check_context
from specgauge.model.arms import DIFFERS, GENERATE, adaptive_arm
from specgauge.model.sampling import chain_name
from specgauge.model.settings import Setting
from specgauge.sweeps.analysis.left_out import NEIGHBOURS, VALIDATION_SECONDS
from specgauge.sweeps.analysis.settings import RunSetting, run_settings
from specgauge.sweeps.plan import decoded_points, decoded_tokens, settings_of
from specgauge.sweeps.run.budget import BlockPace, Deadline
from specgauge.sweeps.run.decoded_cells import (
    FEWEST_BLOCKS,
    Batch,
    ValidationCell,
    batches,
    spread_by_acceptance,
    validation_cells,
    within_seconds,
)
from specgauge.sweeps.run.policy_tuner import PolicyTuner
from specgauge.sweeps.run.progress import Limits
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey, TunedCell, WarningRow
from specgauge.sweeps.store.tables import DecodedLog, half_of, read_decoded

if TYPE_CHECKING:
    from pathlib import Path

    from specgauge.bench.end_to_end.end_to_end import EndToEnd
    from specgauge.bench.models.pair import LoadedPair
    from specgauge.configs.schema import ValidateConfig
    from specgauge.model.policies.policy import GammaPolicy

DECODE, PREFILL = "decode", "prefill_target"
"""The arms that plain decoding of a text consists of."""
DECODING_SHARE = 0.8
"""Of a block's time; the rest of it its texts are teacher-forced."""
RETAKEN_SHARE = 1 / 3
"""Of the seconds of a cell, what decoding disturbed blocks again may take."""


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """What a cell is decoded with."""

    bench: EndToEnd
    tuned: TunedCell | None

    @property
    def names(self) -> tuple[str, ...]:
        """The adaptive policies that could be tuned."""
        return () if self.tuned is None else self.tuned.names

    def policies(self, half: int) -> dict[str, GammaPolicy]:
        """The policy of each adaptive arm for the prompts of one half."""
        return (
            {}
            if self.tuned is None
            else {adaptive_arm(name): self.tuned.halves[half].policies[name] for name in self.names}
        )


class Validation:
    """The decoding of one pair; `validate` of the configuration says what is decoded."""

    def __init__(self, session: Session) -> None:
        assert session.config.validation is not None
        self._session, self._config, self._progress = session, session.config, session.progress
        self._asked: ValidateConfig = session.config.validation
        self._tuner: PolicyTuner | None = None
        self._benches: dict[DecodedKey, _Bench] = {}
        self._reasons = session.outcome.validation_reasons
        self._settings: dict[Setting, RunSetting] = {}
        self._pace = BlockPace()
        self._warming_s: list[float] = []
        """What warming up took, of each cell decoded."""
        self._left_out: dict[str, int] = {}
        """Blocks that there was no time for, by the cell's label."""
        own = {(cell.batch_size, cell.context) for cell in session.cells}
        planned = decoded_points(session.config, session.pair.name)
        self._points = [point for point in planned if (point.batch_size, point.context) in own]
        self._share = len(self._points) / max(1, len(planned))
        """Of the seconds for decoding the pair, what is for the points decoded here."""
        self._spare_s: dict[DecodedKey, float] = {}
        """Seconds of each cell that disturbed blocks may still be decoded again for."""

    def check(self, loaded: LoadedPair) -> None:
        """Raise ValueError where a context leaves no room for the texts in the target."""
        for point in decoded_points(self._config, self._session.pair.name):
            check_context(
                loaded.target.name,
                context=point.context,
                tokens=decoded_tokens(self._config),
                max_context=loaded.target.max_context,
                section="validate",
            )

    def decode(self, loaded: LoadedPair, recommended: Mapping[DecodedKey, int | None]) -> None:
        """Decode what is missing; why a cell is not decoded, or not completely, is kept in the session's outcome.

        Raises:
            StorageError: the disk refused a write.
        """
        pair, path = self._session.pair.name, self._session.run.path
        self._settings = {setting.key: setting for setting in run_settings(Run.open(path), {}, pairs=[pair])}
        if self._asked.policies is not None:
            prompts = len(self._session.prompts)
            self._tuner = PolicyTuner(Run.open(path), pair, self._asked.policies, prompts)
        log = DecodedLog(path)
        own = self._own_deadline(log)
        limits = Limits(wall_s=min(own.left_s, self._session.deadline.left_s))
        cells = self._cells(recommended, log)
        blocks = {cell.key: self._batches(cell) for cell in cells}
        counts = {cell.label: len(blocks[cell.key]) for cell in cells}
        total = sum(counts.values())
        kept = sum(log.has(key, block) for key, found in blocks.items() for block in range(len(found)))
        everything, (cells, waiting) = cells, self._within_seconds(cells, blocks, log, limits.wall_s)
        self._progress.start(f"decoding end to end, {pair}", total, done=kept, limits=limits)
        spare_s = RETAKEN_SHARE * limits.wall_s / max(len(cells), 1)
        self._spare_s = {cell.key: spare_s for cell in everything}

        def fits(cell: ValidationCell, *numbers: int) -> bool:
            takes_s = sum(self._pace.expected_s(cell.key, self._block_s(cell, block)) for block in numbers)
            return own.holds(takes_s) and self._session.deadline.holds(takes_s)

        for cell, block in self._in_turn(cells, waiting, counts, fits):
            count = counts[cell.label]
            if block >= count or cell.label in self._reasons | self._left_out or log.has(cell.key, block):
                continue
            if not fits(cell, block):
                self._left_out[cell.label] = count - log.blocks(cell.key)
                continue
            work = partial(self._block, loaded, log, cell, block, blocks[cell.key][block])
            with self._session.mark.skippable("decoding", cell.label, stage=f"decoding end to end, {cell.label}"):
                failure = self._session.guard(work)
            if failure is not None:
                self._give_up(cell, failure, cells, log)
            self._progress.advance()
        if self._left_out:
            left_out_s = self._left_out_s(everything, blocks)
            self._session.should_take("decoding", left_out_s)
            if own.left_s < self._session.deadline.left_s and left_out_s is not None:
                assert self._asked.max_seconds is not None  # or its end were no nearer
                self._session.outcome.needed_decoding_s = self._asked.max_seconds + left_out_s / self._share
            worst = max(self._left_out, key=lambda label: self._left_out[label] / counts[label])
            told = [f"most of {worst}", *([VALIDATION_SECONDS] if own.left_s < self._session.deadline.left_s else [])]
            self._session.outcome.left_out.append(
                f"{sum(self._left_out.values())} of {total} blocks of decoding end to end ({'; '.join(told)})"
            )
        self._hold_against_generate(path)

    def _in_turn(
        self,
        cells: Sequence[ValidationCell],
        waiting: Sequence[ValidationCell],
        counts: Mapping[str, int],
        fits: Callable[..., bool],
    ) -> Iterator[tuple[ValidationCell, int]]:
        """Cells and blocks in the order they are decoded: a block of every cell, in a random order, before the next.

        Cells that should not have fitted follow the first few blocks of the others, where these left time for as many.
        """
        cells = list(cells)
        for block in range(max(counts.values(), default=0)):
            if block == FEWEST_BLOCKS:
                for cell in reversed(waiting):  # the longest were left out first
                    first = range(min(FEWEST_BLOCKS, counts[cell.label]))
                    if fits(cell, *first):
                        del self._left_out[cell.label]
                        cells.append(cell)
                        yield from ((cell, number) for number in first)
            order = np.random.default_rng((self._config.seed, block)).permutation(len(cells))
            yield from ((cells[index], block) for index in order)

    def _left_out_s(
        self, cells: Sequence[ValidationCell], blocks: Mapping[DecodedKey, Sequence[Batch]]
    ) -> float | None:
        """What the blocks left out should take, by those decoded, with the warming up; None where nothing tells."""
        paces_s: dict[str, float] = {}
        for cell in cells:
            block_s = self._block_s(cell, len(blocks[cell.key]) - 1)
            paces_s[cell.label] = self._pace.expected_s(cell.key, block_s) or block_s or 0.0
        longest_s, warming_s = max(paces_s.values(), default=0.0), max(self._warming_s, default=0.0)
        if longest_s == 0.0:
            return None
        return sum(left * (paces_s.get(label) or longest_s) + warming_s for label, left in self._left_out.items())

    def _within_seconds(
        self,
        cells: Sequence[ValidationCell],
        blocks: Mapping[DecodedKey, Sequence[Batch]],
        log: DecodedLog,
        seconds: float,
    ) -> tuple[list[ValidationCell], list[ValidationCell]]:
        """The cells that so many seconds should hold, those begun earlier among them, and the others."""

        def takes_s(cell: ValidationCell) -> float:
            first = range(min(FEWEST_BLOCKS, len(blocks[cell.key])))
            missing = [block for block in first if not log.has(cell.key, block)]
            return sum(self._block_s(cell, block) or 0.0 for block in missing)

        begun = [cell for cell in cells if log.blocks(cell.key)]
        new = [cell for cell in cells if not log.blocks(cell.key)]
        kept, left_out = within_seconds(new, seconds - sum(map(takes_s, begun)), takes_s)
        if any(len(cell.gammas) > 1 for cell in new) and all(len(cell.gammas) == 1 for cell in kept):
            self._session.outcome.left_out.append(NEIGHBOURS)
            alone = {cell.key: cell for cell in kept}
            whole_s = [
                len(blocks[cell.key]) * ((self._block_s(cell, 0) or 0.0) - (self._block_s(alone[cell.key], 0) or 0.0))
                for cell in new
                if cell.key in alone
            ]
            self._session.should_take("decoding", sum(whole_s) or None)
        self._left_out |= {cell.label: len(blocks[cell.key]) for cell in left_out}
        return [*begun, *kept], left_out

    def _block_s(self, cell: ValidationCell, block: int) -> float | None:
        """What a block should take: each of its arms as long as plain decoding by the journal, then teacher-forcing.

        None where no plain step was timed; speculation that pays takes less, and warming up comes on top.
        """
        t_decode_s = self._timed_s(cell, DECODE)
        if t_decode_s is None:
            return None
        plain_s = (self._timed_s(cell, PREFILL) or 0.0) + decoded_tokens(self._config) * t_decode_s
        return len(cell.arms_of_block(block, self._asked.policies or ())) * plain_s / DECODING_SHARE

    def _timed_s(self, cell: ValidationCell, arm: str) -> float | None:
        """The median of what the journal has of an arm of the target in a cell; None where it was not timed."""
        return self._medians_s.get((arm, chain_name(settings_of(cell.sampling)), *cell.point))

    @cached_property
    def _medians_s(self) -> dict[tuple[Any, ...], float]:
        """Seconds of plain steps and prefills of the pair, by arm, chain, batch size and context, once all is timed."""
        found: dict[tuple[Any, ...], list[float]] = {}
        for line in self._session.run.journal.latest.values():
            if line.arm in (DECODE, PREFILL) and line.axes["pair"] == self._session.pair.name:
                where = (line.arm, line.axes["chain"], line.axes["batch_size"], line.axes["context"])
                found.setdefault(where, []).extend(sample[-1] for sample in line.samples_s)
        return {where: float(np.median(timed)) for where, timed in found.items() if timed}

    def _hold_against_generate(self, path: Path) -> None:
        """Tell where greedy texts of transformers' generate are not the plain loop's, rounding aside."""
        requests, _ = read_decoded(path)
        own = requests[(requests["pair"] == self._session.pair.name) & (requests["arm"] == GENERATE)]
        compared = own[own["against_plain"].notna()]
        differing = compared[compared["against_plain"] == DIFFERS]
        if not differing.empty:
            first = differing.iloc[0]
            self._session.outcome.warnings.append(
                WarningRow(
                    code="generate_differs",
                    message=f"pair {self._session.pair.name}: {len(differing)} of {len(compared)} greedy texts decoded "
                    "end to end are not those of transformers' generate, where rounding does not explain it: first at "
                    f"context {first['start_context']}, token {first['leaves_plain_at']:.0f}",
                    remedy="believe no number of this run: see to config.json (sliding_window, rope_scaling), try "
                    "attention: eager and dtype: float32, and report it with the model's name",
                )
            )

    def _cells(self, recommended: Mapping[DecodedKey, int | None], log: DecodedLog) -> list[ValidationCell]:
        """The cells to decode, each with the γ it was begun with."""
        cells, reasons = validation_cells(self._config, self._session.pair.name, recommended, self._points)
        self._reasons |= reasons
        cells = [self._as_begun(cell, log) for cell in cells if not self._session.skips("decoding", cell.label)]
        fitting = {(cell.batch_size, cell.context) for cell in self._session.fitting}
        too_large = [cell.label for cell in cells if cell.point not in fitting]
        self._reasons |= dict.fromkeys(too_large, "skipped: it does not fit by estimate")
        return [cell for cell in cells if cell.point in fitting]

    def _give_up(
        self, failed: ValidationCell, failure: tuple[str, str], cells: Sequence[ValidationCell], log: DecodedLog
    ) -> None:
        """Leave the rest of a cell; where memory ran out larger cells too, unless they have shown that they fit."""
        self._reasons[failed.label] = ": ".join(failure)
        self._benches.pop(failed.key, None)
        if failure[0] != "oom":
            return
        batch_size, context = failed.point
        reason = f"skipped: out of memory already at batch size {batch_size}, context {context}"
        for cell in cells:
            is_as_large = cell.point[0] >= batch_size and cell.point[1] >= context
            is_tried = cell.label in self._reasons or log.blocks(cell.key) > 0
            if cell.key.sampling == failed.key.sampling and is_as_large and not is_tried:
                self._reasons[cell.label] = reason

    def _as_begun(self, cell: ValidationCell, log: DecodedLog) -> ValidationCell:
        """The cell with the γ of its kept blocks, whatever is recommended since: all blocks of a cell have the same."""
        kept = log.gammas(cell.key)
        if not kept or kept == cell.gammas:
            return cell
        self._progress.say(
            f"{cell.label}: resumed with γ = {', '.join(map(str, kept))}, as it was begun; with --fresh it would be "
            f"{', '.join(map(str, cell.gammas))}"
        )
        return replace(cell, gammas=kept)

    def _own_deadline(self, log: DecodedLog) -> Deadline:
        """When the pair's own seconds end, or those of the part of its points that is decoded here.

        Less what earlier runs decoded, by the clock from now on.
        """
        limit_s = self._asked.max_seconds
        if limit_s is not None:
            limit_s = max(0.0, limit_s * self._share - log.spent_s(self._session.pair.name))
        return Deadline(limit_s, now=lambda: self._session.deadline.now_s)

    def _batches(self, cell: ValidationCell) -> list[Batch]:
        """The batches of every block."""
        numbers, rows = self._in_order(cell.key)
        limit = len(rows) if self._asked.prompts is None else min(self._asked.prompts, len(rows))
        half_of_row = [self._half_of(number) for number in numbers[:limit]]
        return batches(numbers, rows, half_of_row, batch_size=cell.key.batch_size, repetitions=self._asked.repetitions)

    def _half_of(self, number: int) -> int:
        """The half of a prompt whose policies are tuned on the other one; 0 where none are."""
        return 0 if self._tuner is None else half_of(number, self._tuner.prompts)

    def _in_order(self, key: DecodedKey) -> tuple[list[int], list[list[int]]]:
        """Numbers and ids of the prompts of a cell, in the order decoded."""
        numbers, rows = self._session.prompts.at(key.start_context)
        setting = self._settings.get(Setting(**{one.name: getattr(key, one.name) for one in fields(Setting)}))
        per_round = {} if setting is None else setting.tokens_per_round_by_prompt(key.start_context)
        groups = [(self._session.prompts.category_of(number), self._half_of(number)) for number in numbers]
        order = spread_by_acceptance(groups, [per_round.get(number, math.nan) for number in numbers])
        return [numbers[index] for index in order], [rows[index] for index in order]

    def _block(self, loaded: LoadedPair, log: DecodedLog, cell: ValidationCell, block: int, batch: Batch) -> None:
        """One batch of prompts under the arms of its block, kept when all are done."""
        from specgauge.bench.end_to_end.end_to_end import shuffled

        clock = self._session.deadline
        started_s = warm_s = clock.now_s
        if cell.key not in self._benches:
            self._benches[cell.key] = self._warm(loaded, cell, block, batch)
            warm_s = clock.now_s
            self._progress.set_aside(warm_s - started_s)
            self._warming_s.append(warm_s - started_s)
        own = self._benches[cell.key]
        was_interleaved = own.bench.interleaves
        arms = shuffled(cell.arms_of_block(block, own.names), seed=self._config.seed, block=block)
        runs = own.bench.run(
            arms,
            batch.rows,
            prompt_numbers=batch.drawn_as,
            repetition=batch.repetition,
            policies=own.policies(batch.half),
            window=max(self._config.grid.gamma),
            progress=lambda share: self._progress.within(DECODING_SHARE * share),
            spare_s=min(self._spare_s[cell.key], clock.left_s),
        )
        if was_interleaved and not own.bench.interleaves:
            self._progress.say(
                f"{cell.label}: no memory for the caches of all arms at once; they run one after another"
            )
        found = [runs[arm] for arm in arms]
        self._spare_s[cell.key] -= next((one.retaken_s for run in found for one in run.requests), 0.0)
        log.append(
            cell.key,
            block,
            [batch.record(request) for one in found for request in one.requests],
            [batch.record(round_) for one in found for round_ in one.rounds],
        )
        self._pace.took(cell.key, clock.now_s - warm_s, self._block_s(cell, block))  # warming up is a part of none

    def _warm(self, loaded: LoadedPair, cell: ValidationCell, block: int, batch: Batch) -> _Bench:
        """A bench with every arm warm that the cell needs from a block on, and its adaptive policies tuned."""
        from specgauge.bench.end_to_end.end_to_end import EndToEnd

        bench = EndToEnd(
            loaded,
            settings_of(cell.sampling),
            max_new_tokens=decoded_tokens(self._config),
            seed=self._config.seed,
            draft_sampling=self._config.draft_sampling[0],
            acceptance_rule=self._config.acceptance_rule[0],
            forced_rates=self._asked.acceptance,
            memory=self._config.limits.memory,
        )
        tuned = None
        for arm in cell.arms_of_block(block):
            bench.warm_up(arm, batch.rows)
        if self._tuner is not None:
            arm = adaptive_arm(self._tuner.names[0])  # under any policy, shapes are those of every γ
            bench.warm_up(arm, batch.rows, gamma_max=self._tuner.gamma_max(cell.key))
            tuned = self._tuner.tuned(cell.key, lambda gamma: bench.host_costs(batch.rows, gamma=gamma))
        return _Bench(bench=bench, tuned=tuned)
