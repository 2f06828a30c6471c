"""Measure one pair into an open run, stage by stage, and keep what went wrong.

    limits → models → acceptance (`specgauge.sweeps.run.acceptance`) → the timing of every cell → what is decoded end
    to end to check the prediction (`specgauge.sweeps.run.end_to_end`)

    PairRun(run, pair, prompts, progress).measure()  →  PairOutcome()        # nothing went wrong

Calls `bench` (and so torch); everything it finds is in the run directory before it returns. What is there already is
not measured again. One part that fails never loses the others: out of memory and failures become reasons in the outcome
and statuses in the journal.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from specgauge.configs.pairs import ModelConfig
from specgauge.model.arms import arm_names
from specgauge.sweeps.analysis.predictions import recommended_gammas
from specgauge.sweeps.plan import chains, plan_cells
from specgauge.sweeps.run.acceptance import Recording
from specgauge.sweeps.run.end_to_end import Verification
from specgauge.sweeps.run.limits import MISSING, RUN_SECONDS, SPENT, TOO_LARGE, Deadline, OutOfTimeError, PairBudget
from specgauge.sweeps.run.policies import AdaptiveArms, PolicyTuner
from specgauge.sweeps.run.progress import Limits, Progress
from specgauge.sweeps.run.prompts import PairPrompts
from specgauge.sweeps.run.timing import BlockLog, search_questions
from specgauge.sweeps.store.checkpoint import Checkpoint, names_of
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    from specgauge.bench.models.pair import LoadedPair
    from specgauge.bench.prompts import Prompt
    from specgauge.bench.timing.blocks import Status, TimingCell
    from specgauge.configs.pairs import PairConfig


@dataclass(kw_only=True)
class PairOutcome:
    """What went wrong with a pair; empty when nothing did."""

    bad_input: ValueError | None = None
    """What the user has to put right: a model, a prompt or a context that does not fit."""
    failed: bool = False
    """Something failed that is nobody's input: the exit code says so."""
    acceptance_reasons: dict[str, str] = field(default_factory=dict)
    """Why a sampling setting has no acceptance, by its name."""
    verify_reasons: dict[str, str] = field(default_factory=dict)
    """Why a cell was not decoded end to end, or not to its end, by the cell's words."""
    left_out: list[str] = field(default_factory=list)
    """What was left out when the seconds of the run were spent, in words."""


class PairRun:
    """One pair of an open run being measured."""

    def __init__(
        self,
        run: OpenRun,
        pair: PairConfig,
        prompts: Sequence[Prompt],
        progress: Progress,
        *,
        left_alone: Sequence[str] = (),
        deadline: Deadline | None = None,
    ) -> None:
        """Nothing is loaded before `measure`.

        left_alone: names of the parts in which this run was killed, a cell's timing by its id.
        deadline: after which nothing is begun.
        """
        self.run, self.pair, self.progress = run, pair, progress
        self.prompts = PairPrompts(run, pair.name, prompts)
        self.config = run.config
        self.cells = [cell for cell in plan_cells(run.config) if cell.pair == pair.name]
        self.arms = arm_names(run.config.grid.gamma, catches_up=self.cells[0].catches_up)
        self.mode = run.config.mode_of(pair)
        self.mark, self.left_alone = Checkpoint(run.path), left_alone
        notes = {} if pair.threads is None else {"threads": pair.threads}
        self.budget = PairBudget(config=run.config, pair=pair, cells=self.cells, deadline=deadline or Deadline())
        self.log = BlockLog(
            run.journal,
            self.cells,
            mark=self.mark,
            left_alone=left_alone,
            notes=notes,
            is_over=lambda: self.budget.leaves_out("blocks of timing"),
        )
        self.recording = Recording(
            run,
            pair,
            prompts=self.prompts,
            budget=self.budget,
            progress=progress,
            stage=self._stage,
            mark=self.mark,
            guard=self._guarded,
            left_alone=left_alone,
        )
        self.outcome = PairOutcome(left_out=self.budget.left_out, acceptance_reasons=self.recording.reasons)

    def measure(self) -> PairOutcome:
        """Measure what is missing.

        Raises:
            StorageError: the disk refused a write.
        """
        try:
            with self._own_threads(), self.mark:
                self._measure()
        except ValueError as error:
            self.outcome.bad_input = error
        self.outcome.failed |= self.log.has_failures
        return self.outcome

    def _own_threads(self) -> AbstractContextManager[None]:
        """The pair's own threads, where it has any."""
        if self.pair.threads is None:
            return nullcontext()
        from specgauge.bench.environment import threads_in_use

        return threads_in_use(self.pair.threads)

    def _measure(self) -> None:
        from specgauge.bench.models.modes import pair_in_mode, refuse_mode_of
        from specgauge.bench.timing.cell_timer import check_contexts

        refuse_mode_of(self.pair, self.mode)
        if not self._is_within_limits():
            return
        if self._in_turn:
            self.recording.in_turn()
        loaded = self._load_both()
        if loaded is not None and self._is_within_limits():  # now the files of a model are here, and tell its size
            check_contexts(loaded, self._timing_cells(), max(self.config.grid.gamma))
            self._verification().check(loaded)
            if not self._in_turn:
                eager = pair_in_mode(loaded, "eager")
                self.recording.side_by_side(eager)
                self.recording.follow_rollouts(eager)
            self._time(loaded)
            self._verify(loaded)

    def _is_within_limits(self) -> bool:
        """Whether anything may be begun: some cell fits by estimate, and there are seconds left; says what may not."""
        for cell, reason in self.budget.too_large():
            self.log.give_up([cell], self.arms, "skipped", reason)
        why = None if self.budget.fitting else TOO_LARGE
        if self.budget.leaves_out(MISSING):
            why = why or SPENT
        if why is not None:
            self.recording.give_up(why)
        return why is None

    @property
    def _in_turn(self) -> bool:
        """Whether two models are to be loaded one after the other; a target that drafts for itself is one model."""
        return self.config.acceptance.sequential and isinstance(self.pair.draft, ModelConfig)

    def _stage(self, stage: str, total: int) -> None:
        """A stage begins: shown, and marked in case the process dies in it."""
        self.mark.stage(stage)
        self.progress.start(stage, total)

    def _load_both(self) -> LoadedPair | None:
        from specgauge.bench.models.modes import pair_in_mode
        from specgauge.bench.models.pair import load_pair

        self._stage(f"loading {self.pair.name}", total=1)
        loaded: list[LoadedPair] = []
        reason = self._guarded(lambda: loaded.append(pair_in_mode(load_pair(self.pair), self.mode)))
        if reason is not None:
            status, words = reason
            self.log.give_up(self.cells, self.arms, status, f"loading: {words}")
            self.recording.give_up(f"{status}: loading: {words}")
            return None
        self.progress.advance()
        return loaded[0]

    def _guarded(self, work: Callable[[], object]) -> tuple[Status, str] | None:
        """Do the work; (status, reason) when memory ran out or it failed, which is told at once."""
        from specgauge.bench.device import is_out_of_memory
        from specgauge.bench.timing.blocks import first_line

        try:
            work()
        except (ValueError, StorageError):
            raise
        except Exception as error:
            status: Status = "oom" if is_out_of_memory(error) else "failed"
            reason = first_line(error)
        else:
            return None
        gc.collect()
        self.outcome.failed = self.outcome.failed or status == "failed"
        self.progress.say(f"pair {self.pair.name}: {status}: {reason}")
        return status, reason

    def _timing_cells(self) -> list[TimingCell]:
        from specgauge.bench.timing.blocks import TimingCell

        settings = chains(self.config)
        return [
            TimingCell(
                cell_id=cell.id,
                chain=cell.chain,
                settings=settings[cell.chain],
                batch_size=cell.batch_size,
                context=cell.context,
            )
            for cell in self.budget.fitting
        ]

    def _time(self, loaded: LoadedPair) -> None:
        """The timing of every cell: all γ, or where they are searched for those that can still change the answer."""
        cells = self.budget.fitting
        blocks = len(cells) * len(self.arms) * self.config.precision.min_blocks
        self.mark.stage(f"timing {self.pair.name}")
        recorded = sum(len(self.log.blocks(cell.id, arm)) for cell in cells for arm in self.arms)
        left_s = self.budget.timing_left_s(lambda cell: self.log.spent_s(cell.id, self.arms))
        is_fewest = not self.config.grid.is_searched
        limits = Limits(work_s=left_s, wall_s=self.budget.deadline.left_s, is_fewest=is_fewest)
        self.progress.start(f"timing {self.pair.name}", blocks, done=recorded, limits=limits)
        trouble = self._guarded(partial(self._time_cells, loaded))
        if trouble is not None:
            self.log.give_up(cells, self.arms, *trouble)

    def _time_cells(self, loaded: LoadedPair) -> None:
        from specgauge.bench.timing.cell_timer import measure_cells

        cells, options = self._timing_cells(), self._timing_options(loaded)
        with suppress(OutOfTimeError):
            if not self.config.grid.is_searched:
                measure_cells(loaded, cells, **options)
                return
            from specgauge.bench.timing.adaptive import measure_adaptively

            questions = search_questions(Run.open(self.run.path), self.pair.name, self.budget.fitting)
            unasked = [cell for cell in cells if cell.cell_id not in questions]
            if unasked:
                self.progress.say(
                    f"pair {self.pair.name}: no acceptance to search by in {len(unasked)} cells, all γ timed"
                )
                measure_cells(loaded, unasked, **options)
            if questions:
                asked = [cell for cell in cells if cell.cell_id in questions]
                measure_adaptively(loaded, asked, questions=questions, **options)

    def _timing_options(self, loaded: LoadedPair) -> dict[str, Any]:
        """What every timer is told."""
        return {
            "gammas": self.config.grid.gamma,
            "prompts": self.prompts.encoded(loaded.target.tokenizer),
            "precision": self.config.precision,
            "journal": self.log,
            "seed": self.config.seed,
            "progress": lambda _arm: self.progress.advance(),
        }

    def _verification(self) -> Verification:
        fitting = {(cell.batch_size, cell.context) for cell in self.budget.fitting}
        places = {(cell.batch_size, cell.context) for cell in self.cells}
        return Verification(
            run=self.run,
            pair=self.pair,
            progress=self.progress,
            guard=self._guarded,
            deadline=self.budget.deadline,
            skipped=dict.fromkeys(places - fitting, "skipped: over limits.memory"),
            under_way=lambda words: self.mark.part("decoding", words, stage=f"decoding end to end, {words}"),
            left_alone=names_of("decoding", self.left_alone),
        )

    def _verify(self, loaded: LoadedPair) -> None:
        """Decode end to end what the configuration asks for; γ come from the measured parts alone."""
        if self.config.validation is None:
            return
        self.prompts.encoded(loaded.target.tokenizer)
        self.mark.stage("decoding end to end")
        verification, run = self._verification(), Run.open(self.run.path)
        if self.config.validation.policies is not None:
            tuner = PolicyTuner.of(run, self.pair.name, len(self.prompts))
            verification.adaptive = AdaptiveArms(path=run.path, names=self.config.validation.policies, tuner=tuner)
        verification.decode(loaded, self.prompts.at, recommended_gammas(run, self.pair.name))
        self.outcome.verify_reasons = verification.reasons
        if any(reason.endswith(f"{RUN_SECONDS} is spent") for reason in verification.reasons.values()):
            self.budget.leaves_out("blocks of decoding end to end")


def prepare_machine(threads: int | None) -> Mapping[str, Any]:
    """Set torch's threads and return the environment that measurements are taken in."""
    from specgauge.bench.environment import collect_environment, use_threads

    use_threads(threads)
    return collect_environment()
