"""Decode one pair end to end into an open run, to validate the prediction: cell by cell, arm by arm, in blocks.

    Validation(session).decode(loaded, recommended_gammas(run, pair.name))

Blocks of all cells are interleaved, so that drift hits them alike; every block holds plain decoding and all that is
compared with it, so that each comparison is between neighbours in time. Where adaptive policies are decoded too, a
block's prompts are all even or all odd, since each half of the prompts has policies tuned on the other half. A cell
that runs out of memory is given up, and larger ones are not tried. Everything is on the disk before the next block.
A block is not begun where the seconds of the pair, or those of `validate`, should not hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from specgauge.configs.schema import check_context
from specgauge.model.arms import DIFFERS, GENERATE, OF_PLAIN, Arm, adaptive_arm, end_to_end_arms
from specgauge.model.policies.tuning import MAKERS, UNTUNED
from specgauge.model.replay.replay import TUNING_REPLICATES
from specgauge.model.replay.rounds import ReplayBatches
from specgauge.model.sampling import chain_name
from specgauge.sweeps.analysis.left_out import VALIDATION_SECONDS
from specgauge.sweeps.analysis.replay_inputs import replay_costs, replayed_texts
from specgauge.sweeps.analysis.settings import cells_of, run_settings
from specgauge.sweeps.analysis.timings import collect_timings
from specgauge.sweeps.plan import decoded_points, decoded_tokens, plan_cells, settings_of
from specgauge.sweeps.run.batches import Batch, batches
from specgauge.sweeps.run.budget import BlockPace, Deadline
from specgauge.sweeps.run.progress import Limits
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey, TunedCell, TunedHalf, WarningRow
from specgauge.sweeps.store.tables import DecodedLog, half_of, keep_tuned, read_decoded, read_tuned

if TYPE_CHECKING:
    from pathlib import Path

    from specgauge.bench.end_to_end.end_to_end import EndToEnd
    from specgauge.bench.end_to_end.host_costs import HostCosts
    from specgauge.bench.models.pair import LoadedPair
    from specgauge.configs.schema import Config, SamplingConfig, ValidateConfig
    from specgauge.model.policies.policy import GammaPolicy

DECODING_SHARE = 0.8
"""Of a block's time; the rest of it its texts are teacher-forced."""
RETAKEN_SHARE = 1 / 3
"""Of the seconds of a cell, what decoding disturbed blocks again may take."""
NO_COSTS = "it is tuned on the costs of a round, and no round was timed here"
FEW_PROMPTS = "it is tuned on other prompts than it decodes: record acceptance of at least two"


@dataclass(frozen=True, kw_only=True)
class ValidationCell:
    """One cell to decode."""

    key: DecodedKey
    sampling: SamplingConfig
    gammas: tuple[int, ...]

    @property
    def point(self) -> tuple[int, int]:
        """Batch size and context."""
        return self.key.batch_size, self.key.start_context

    @property
    def label(self) -> str:
        """Its sampling setting and where it is."""
        return f"{self.key.sampling}, batch size {self.key.batch_size}, context {self.key.start_context}"


def neighbours(gamma: int, grid: Sequence[int]) -> tuple[int, ...]:
    """A γ of the grid and the γ beside it, three in all where the grid has as many."""
    first = max(0, min(list(grid).index(gamma) - 1, len(grid) - 3))
    return tuple(grid[first : first + 3])


def validation_cells(
    config: Config, pair: str, recommended: Mapping[DecodedKey, int | None]
) -> tuple[list[ValidationCell], dict[str, str]]:
    """The cells of a pair with the γ of each, and why others have none, by their labels.

    Each is decoded under the first draft sampling and acceptance rule.

    recommended: the γ that measured costs and acceptance recommend in each cell, where they are known.
    """
    cells, reasons = [], {}
    assert config.validation is not None
    for sampling, point in product(config.sampling, decoded_points(config, pair)):
        key = DecodedKey(
            pair=pair,
            mode=point.mode,
            sampling=sampling.name,
            draft_sampling=config.draft_sampling[0],
            acceptance_rule=config.acceptance_rule[0],
            batch_size=point.batch_size,
            start_context=point.context,
        )
        gammas = config.validation.gamma
        if gammas == "recommended":
            gamma = recommended.get(key)
            gammas = () if gamma is None else neighbours(gamma, config.grid.gamma)
        cell = ValidationCell(key=key, sampling=sampling, gammas=tuple(gammas))
        if cell.gammas:
            cells.append(cell)
        else:
            reasons[cell.label] = "nothing is recommended there, since its costs or its acceptance are not known"
    return cells, reasons


class PolicyTuner:
    """The adaptive policies of a pair, tuned once a cell on what the run recorded.

    Schedules need no text and run wherever anything is decoded. All others are tuned on recorded acceptance, the
    draft's signals and the cell's costs; where one of these is missing they are left out, with the reason.
    """

    def __init__(self, run: Run, pair: str, names: Sequence[str], prompts: int) -> None:
        """Read what the run has of the pair, to tune the policies `names`; `prompts` is how many the workload has.

        Raises:
            ValueError: a file of the run is damaged.
        """
        self.run, self.names, self.prompts = run, names, prompts
        cells = [cell for cell in plan_cells(run.config) if cell.pair == pair]
        timed = collect_timings(cells, run.config.grid.gamma, run.journal())
        self.points = {
            setting.decoded_key(cell.cell): (setting, cell)
            for setting in run_settings(run, {}, pairs=[pair])
            for cell in cells_of(setting, timed)
        }

    def gamma_max(self, key: DecodedKey) -> int:
        """The most drafts that a policy may ask for: the largest γ whose round was timed, or that of the grid."""
        point = self.points.get(key)
        costs = None if point is None else replay_costs(point[1], None)
        return max(self.run.config.grid.gamma) if costs is None else costs.gamma_max

    def tuned(self, key: DecodedKey, host_costs: Callable[[int], HostCosts]) -> TunedCell:
        """The policies of a cell for both halves of the prompts, kept ones or tuned and kept now.

        host_costs: measures them at the most drafts of a round.

        Raises:
            ValueError: what they are tuned on is damaged.
            StorageError: the disk refused to keep them.
        """
        kept = read_tuned(self.run.path).get(key)
        if kept is not None:
            return kept
        gamma_max, needy = self.gamma_max(key), [name for name in self.names if name not in UNTUNED]
        costs = host_costs(gamma_max)
        found = self._tunings(key, costs) if needy else ""

        def half(of: int) -> TunedHalf:
            tuning = None if isinstance(found, str) else found[of]
            policies = {name: UNTUNED[name](gamma_max) for name in self.names if name in UNTUNED}
            if tuning is not None:
                policies |= {name: MAKERS[name](tuning) for name in needy}
            return TunedHalf(
                tuned_on=() if tuning is None else tuple(np.unique(tuning.texts.prompts).tolist()),
                policies={name: policies[name] for name in self.names if name in policies},
            )

        tuned = TunedCell(
            key=key,
            prompts=self.prompts,
            gamma_max=gamma_max,
            t_overhead_s=costs.t_overhead_s,
            t_early_stop_check_s=costs.t_early_stop_check_s,
            halves=(half(0), half(1)),
            left_out=dict.fromkeys(needy, found) if isinstance(found, str) else {},
        )
        keep_tuned(self.run.path, tuned)
        return tuned

    def _tunings(self, key: DecodedKey, host_costs: HostCosts) -> tuple[ReplayBatches, ReplayBatches] | str:
        """What to tune the policies of even and of odd prompts on, which is the other half; or why there is nothing."""
        if key not in self.points:
            return NO_COSTS
        setting, cell = self.points[key]
        if setting.texts is None:
            return setting.reason
        costs = replay_costs(cell, host_costs.t_overhead_s, host_costs.t_early_stop_check_s)
        if costs is None:
            return NO_COSTS
        texts = replayed_texts(self.run, setting, context=key.start_context, gamma_max=costs.gamma_max)
        numbers = np.unique(texts.prompts)
        halves = np.array([half_of(number, self.prompts) for number in numbers.tolist()])
        if len(set(halves.tolist())) < 2:
            return FEW_PROMPTS
        seed = self.run.config.seed
        even, odd = (
            ReplayBatches.drawn(
                texts.of_prompts(numbers[halves != half]), costs, replicates=TUNING_REPLICATES, seed=seed
            )
            for half in (0, 1)
        )
        return even, odd


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """What a cell is decoded with."""

    bench: EndToEnd
    arms: tuple[str, ...]
    tuned: TunedCell | None

    def policies(self, half: int) -> dict[str, GammaPolicy]:
        """The policy of each adaptive arm for the prompts of one half."""
        if self.tuned is None:
            return {}
        own = self.tuned.halves[half].policies
        return {arm: own[name] for arm in self.arms if (name := Arm.parse(arm).policy) is not None}


class Validation:
    """The decoding of one pair; `validate` of the configuration says what is decoded."""

    def __init__(self, session: Session) -> None:
        assert session.config.validation is not None
        self._session, self._config, self._progress = session, session.config, session.progress
        self._asked: ValidateConfig = session.config.validation
        self._tuner: PolicyTuner | None = None
        self._benches: dict[DecodedKey, _Bench] = {}
        self._reasons = session.outcome.validation_reasons
        self._pace = BlockPace()
        self._warming_s: list[float] = []
        """What warming up took, of each cell decoded."""
        self._left_out: dict[str, int] = {}
        """Blocks that there was no time for, by the cell's label."""
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
        if self._asked.policies is not None:
            prompts = len(self._session.prompts)
            self._tuner = PolicyTuner(Run.open(path), pair, self._asked.policies, prompts)
        log = DecodedLog(path)
        cells = self._cells(recommended, log)
        blocks = {cell.key: self._batches(cell) for cell in cells}
        total = sum(map(len, blocks.values()))
        kept = sum(log.has(key, block) for key, found in blocks.items() for block in range(len(found)))
        own = self._own_deadline(log)
        limits = Limits(wall_s=min(own.left_s, self._session.deadline.left_s))
        self._progress.start(f"decoding end to end, {pair}", total, done=kept, limits=limits)
        spare_s = RETAKEN_SHARE * limits.wall_s / max(len(cells), 1)
        self._spare_s = {cell.key: spare_s for cell in cells}
        for block in range(max(map(len, blocks.values()), default=0)):
            order = np.random.default_rng((self._config.seed, block)).permutation(len(cells))
            for cell in (cells[index] for index in order):
                count = len(blocks[cell.key])
                if block >= count or cell.label in self._reasons | self._left_out or log.has(cell.key, block):
                    continue
                takes_s = self._pace.expected_s(cell.key, self._plain_step_s(cell))
                if not (own.holds(takes_s) and self._session.deadline.holds(takes_s)):
                    self._left_out[cell.label] = count - log.blocks(cell.key)
                    continue
                work = partial(self._block, loaded, log, cell, block, blocks[cell.key][block])
                with self._session.mark.skippable("decoding", cell.label, stage=f"decoding end to end, {cell.label}"):
                    failure = self._session.guard(work)
                if failure is not None:
                    self._give_up(cell, failure, cells, log)
                self._progress.advance()
        if self._left_out:
            counts = {cell.label: len(blocks[cell.key]) for cell in cells}
            left_out_s = self._left_out_s(cells)
            self._session.should_take("decoding", left_out_s)
            if own.left_s < self._session.deadline.left_s and left_out_s is not None:
                assert self._asked.max_seconds is not None  # or its end were no nearer
                self._session.outcome.needed_decoding_s = self._asked.max_seconds + left_out_s
            worst = max(self._left_out, key=lambda label: self._left_out[label] / counts[label])
            told = [f"most of {worst}", *([VALIDATION_SECONDS] if own.left_s < self._session.deadline.left_s else [])]
            self._session.outcome.left_out.append(
                f"{sum(self._left_out.values())} of {total} blocks of decoding end to end ({'; '.join(told)})"
            )
        self._hold_against_generate(path)

    def _left_out_s(self, cells: Sequence[ValidationCell]) -> float | None:
        """What the blocks left out should take, by those decoded, with the warming up; None where nothing tells."""
        paces_s = {cell.label: self._pace.expected_s(cell.key, self._plain_step_s(cell)) for cell in cells}
        if not all(paces_s[label] for label in self._left_out):
            return None
        warming_s = max(self._warming_s, default=0.0)
        return sum(left * paces_s[label] + warming_s for label, left in self._left_out.items())

    def _plain_step_s(self, cell: ValidationCell) -> float | None:
        """T_decode of a cell, by the journal; None where it was not timed."""
        point, chain = cell.point, chain_name(settings_of(cell.sampling))
        timed = [
            sample[-1]
            for line in self._session.run.journal.latest.values()
            if line.arm == "decode" and line.axes["chain"] == chain
            if (line.axes["pair"], (line.axes["batch_size"], line.axes["context"])) == (cell.key.pair, point)
            for sample in line.samples_s
        ]
        return float(np.median(timed)) if timed else None

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
        cells, reasons = validation_cells(self._config, self._session.pair.name, recommended)
        self._reasons |= reasons
        cells = [self._as_begun(cell, log) for cell in cells if not self._session.skips("decoding", cell.label)]
        fitting = {(cell.batch_size, cell.context) for cell in self._session.fitting}
        too_large = [cell.label for cell in cells if cell.point not in fitting]
        self._reasons |= dict.fromkeys(too_large, "skipped: over limits.memory")
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
        """When the pair's own seconds end: less what earlier runs decoded, by the clock from now on."""
        limit_s = self._asked.max_seconds
        if limit_s is not None:
            limit_s = max(0.0, limit_s - log.spent_s(self._session.pair.name))
        return Deadline(limit_s, now=lambda: self._session.deadline.now_s)

    def _batches(self, cell: ValidationCell) -> list[Batch]:
        """The batches of every block."""
        numbers, rows = self._session.prompts.at(cell.key.start_context)
        limit = len(rows) if self._asked.prompts is None else min(self._asked.prompts, len(rows))
        half_of_row = [0] * limit
        if self._tuner is not None:
            half_of_row = [half_of(number, self._tuner.prompts) for number in numbers[:limit]]
        return batches(numbers, rows, half_of_row, batch_size=cell.key.batch_size, repetitions=self._asked.repetitions)

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
        arms = shuffled(self._arms_of_block(own.arms, block), seed=self._config.seed, block=block)
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
        self._pace.took(cell.key, clock.now_s - warm_s, self._plain_step_s(cell))  # warming up is a part of none

    def _arms_of_block(self, arms: Sequence[str], block: int) -> list[str]:
        """Those of a cell's arms that a block has, and all later ones may have."""
        limit = self._asked.baseline_blocks
        return [arm for arm in arms if limit is None or block < limit or arm not in OF_PLAIN]

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
        arms, tuned = end_to_end_arms(cell.gammas), None
        for arm in self._arms_of_block(arms, block):
            bench.warm_up(arm, batch.rows)
        if self._tuner is not None:
            arm = adaptive_arm(self._tuner.names[0])  # under any policy, shapes are those of every γ
            bench.warm_up(arm, batch.rows, gamma_max=self._tuner.gamma_max(cell.key))
            tuned = self._tuner.tuned(cell.key, lambda gamma: bench.host_costs(batch.rows, gamma=gamma))
            arms = end_to_end_arms(cell.gammas, tuned.names)
        return _Bench(bench=bench, arms=arms, tuned=tuned)
