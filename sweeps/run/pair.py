"""Measure one pair into an open run, stage by stage, and keep what went wrong.

    limits → models → acceptance → the timing of every cell → what is decoded end to end to validate the prediction

    PairRun(Session(run, pair, prompts, progress)).measure()  →  PairOutcome()        # nothing went wrong

What is in the run directory already is not measured again. Out of memory and failures become reasons in the outcome and
statuses in the journal; the rest is measured all the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.configs.pairs import LayersDraft, ModelConfig
from specgauge.model.arms import PREFILL_BLOCKS, arm_names, is_prefill
from specgauge.model.stats.medians import worst_half_width
from specgauge.sweeps.analysis.predictions import recommended_gammas
from specgauge.sweeps.analysis.timings import collect_timings
from specgauge.sweeps.memory import ALONE, fit_alone
from specgauge.sweeps.model_sizes import read_pair_sizes
from specgauge.sweeps.plan import chains, reach, settings_of
from specgauge.sweeps.run.acceptance import Recording
from specgauge.sweeps.run.budget import TIMING_SHARE, needed_s, timing_left_s
from specgauge.sweeps.run.progress import Limits
from specgauge.sweeps.run.session import ALL_TOO_LARGE, Session
from specgauge.sweeps.run.timing import TIMING_BLOCKS, BlockLog, OutOfTimeError, search_objectives
from specgauge.sweeps.run.validation import Validation
from specgauge.sweeps.store.outcomes import ALL_MISSING, OUT_OF_TIME, PairOutcome
from specgauge.sweeps.store.rundir import ENVIRONMENT, Run, read_environment

if TYPE_CHECKING:
    from specgauge.bench.models.pair import LoadedPair
    from specgauge.bench.timing.blocks import TimingCell
    from specgauge.configs.schema import Config


TWO_FIT = "load a model in a smaller dtype or quantised, or put the draft on another device, to have S too"


class PairRun:
    """One pair of an open run being measured."""

    def __init__(self, session: Session) -> None:
        self.session, self.config, self.pair, self.progress = session, session.config, session.pair, session.progress
        self.log, self.recording = BlockLog(session), Recording(session)

    def measure(self) -> PairOutcome:
        """Measure what is missing.

        Raises:
            StorageError: the disk refused a write.
        """
        from specgauge.bench.environment import threads_in_use

        outcome, threads = self.session.outcome, self.pair.threads
        try:
            with nullcontext() if threads is None else threads_in_use(threads), self.session.mark:
                self._measure()
        except ValueError as error:
            outcome.bad_input = str(error)
        self.session.note(*self.session.prompts.notes)
        if outcome.left_out and "loading" in self.session.left_out_s:
            outcome.needed_s = needed_s(self.session.left_out_s, timing_share=self._timing_share)
        return outcome

    @property
    def _timing_share(self) -> float:
        """Of the seconds left when timing begins, what it may take."""
        return 1.0 if self.config.validation is None else TIMING_SHARE

    def _measure(self) -> None:
        from specgauge.bench.models.pair import pair_in_mode, refuse_mode_of
        from specgauge.bench.notes import Note
        from specgauge.bench.timing.cell_timer import check_contexts

        part = self.session.part
        refuse_mode_of(self.pair, self.config.mode_of(self.pair))
        # a target that drafts for itself is one model, loaded once
        has_two = isinstance(self.pair.draft, ModelConfig)
        is_alone = fit_alone(self.config, self.pair, read_pair_sizes(self.pair))
        if not self._is_within_limits(are_skipped_alone=is_alone):
            if is_alone and part.acceptance and not self.session.deadline.is_spent:
                self.progress.say(f"pair {self.pair.name}: {ALONE}")
                self.session.note(Note(code="one_at_a_time", message=f"pair {self.pair.name}: {ALONE}", remedy=TWO_FIT))
                self.recording.record_sequentially()
            return
        is_sequential = has_two and self.config.acceptance.sequential
        if part.acceptance and is_sequential:
            self.recording.record_sequentially()
        loaded = self._load_both()
        if loaded is not None and self._is_within_limits():  # now the files of a model are here, and tell its size
            check_contexts(loaded, self._timing_cells(), max(self.config.grid.gamma))
            validation = None if self.config.validation is None else Validation(self.session)
            if validation is not None:
                validation.check(loaded)
            eager = pair_in_mode(loaded, "eager")
            self.session.loaded()
            if part.acceptance:
                self._compare_with_generate(eager)
            if part.acceptance and not is_sequential:
                self.recording.record(eager)
                self.recording.follow_rollouts(eager)
            if part.cells == ():
                return
            self._time(loaded)
            if validation is not None:
                self.session.prompts.encoded(loaded.target.tokenizer)
                self.session.mark.stage("decoding end to end")
                # γ follow from the measured costs and acceptance alone
                validation.decode(loaded, recommended_gammas(Run.open(self.session.run.path), self.pair.name))

    def _is_within_limits(self, *, are_skipped_alone: bool = False) -> bool:
        """Whether anything may be begun: some cell fits by estimate, and there are seconds left; says what may not.

        are_skipped_alone: whether acceptance is recorded even where no cell fits.
        """
        for cell, reason in self.session.too_large():
            self.log.give_up([cell], "skipped", reason)
        why = None if self.session.fitting else ALL_TOO_LARGE
        if self.session.leaves_out(ALL_MISSING):
            why = why or OUT_OF_TIME
        if why is not None and self.session.part.acceptance and not (are_skipped_alone and why == ALL_TOO_LARGE):
            self.recording.give_up(why)
        return why is None

    def _load_both(self) -> LoadedPair | None:
        from specgauge.bench.models.generation import generation_notes
        from specgauge.bench.models.pair import load_pair, pair_in_mode

        self.session.stage(f"loading {self.pair.name}", total=2 if isinstance(self.pair.draft, ModelConfig) else 1)
        loaded: list[LoadedPair] = []
        mode, choice = self.config.mode_of(self.pair), self.session.cpu_dtype

        def load() -> None:
            pair = load_pair(
                self.pair,
                reach(self.config, self.pair.name),
                cpu_dtype=choice.get("dtype"),
                progress=self.progress.advance,
            )
            loaded.append(pair_in_mode(pair, mode))

        failure = self.session.guard(load)
        if failure is not None:
            status, reason = failure
            self.log.give_up(self.session.cells, status, f"loading: {reason}")
            if self.session.part.acceptance:
                self.recording.give_up(f"{status}: loading: {reason}")
            return None
        self.session.arms = arm_names(
            self.config.grid.gamma, catches_up=loaded[0].drafts_with_model, transfers=loaded[0].transfers
        )
        self.session.run.keep_placement(self.pair.name, loaded[0].placement)
        specs = [self.pair.target, self.pair.draft]
        is_chosen = any(isinstance(one, ModelConfig) and one.dtype == "auto" for one in specs)
        why = f", dtype: auto; {choice['why']}" if is_chosen and choice and "cpu" in loaded[0].placement else ""
        self.progress.say(f"{self.pair.name}: {loaded[0].placement} ({mode}{why})")
        limits = {model.name: model.max_context for model in loaded[0].models}
        self.session.prompts.fit(limits, loaded[0].target.eos_token_ids)
        self.session.note(*loaded[0].notes)
        target, settings = loaded[0].target, [settings_of(one) for one in self.config.sampling]
        self.session.note(*generation_notes(target.model, target.name, settings))
        return loaded[0]

    def _compare_with_generate(self, eager: LoadedPair) -> None:
        """See that the models, eager, write what transformers' generate writes; the answer says where one does not."""
        from specgauge.bench.end_to_end.generate_check import generate_notes

        self.session.mark.stage("holding texts against generate")
        prompts = self.session.prompts.encoded(eager.target.tokenizer)
        context = max(cell.context for cell in self.session.fitting)
        new_tokens = self.config.workload.max_new_tokens
        models = eager.models[:1] if isinstance(self.pair.draft, LayersDraft) else eager.models
        for model in models:
            self.session.note(*generate_notes(model, prompts, context=context, new_tokens=new_tokens))

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
            for cell in self.session.fitting
        ]

    def _time(self, loaded: LoadedPair) -> None:
        """The timing of every cell: all γ, or where they are searched for those that can still change the answer."""
        cells, precision, stage = self.session.fitting, self.config.precision, f"timing {self.pair.name}"
        self.log.until = self.session.deadline.share(self._timing_share)
        self.session.mark.stage(stage)
        limits = Limits(
            work_s=timing_left_s(precision, cells, lambda cell: sum(block.device_s for block in self.log.of(cell))),
            wall_s=self.log.until.left_s,
            is_fewest=not self.config.grid.is_searched,
        )
        total = len(cells) * len(self.session.arms) * precision.min_blocks
        done, began_s = sum(len(self.log.of(cell)) for cell in cells), self.session.deadline.now_s
        self.progress.start(stage, total, done=done, limits=limits)
        failure = self.session.guard(partial(self._time_cells, loaded))
        if failure is not None:
            self.log.give_up(cells, *failure)
        if TIMING_BLOCKS in self.session.outcome.left_out:
            taken = sum(len(self.log.of(cell)) for cell in cells) - done
            pace_s = (self.session.deadline.now_s - began_s) / taken if taken else None
            self.session.should_take("timing", None if pace_s is None else self._left_to_time_s(pace_s))

    def _left_to_time_s(self, pace_s: float) -> float:
        """What arms lack at `pace_s` seconds a block: the least number, and as far as the limits of the timing allow
        as many as narrow their intervals, whose width falls as 1 / sqrt(blocks).
        """
        precision, journal = self.config.precision, self.session.run.journal
        least = more = 0
        for cell in collect_timings(self.session.fitting, self.config.grid.gamma, journal.latest.values()):
            for arm in cell.arms.values():
                blocks, wanted = len(arm.blocks), 0
                if self.config.grid.is_searched and not blocks:
                    continue  # a search leaves most out
                if blocks >= precision.min_blocks and not is_prefill(arm.arm):  # fewer tell no width
                    width = worst_half_width(arm.samples_s, precision.confidence, round_s=cell.held_against_s(arm.arm))
                    most = precision.max_blocks
                    by_width = blocks * (width / precision.relative_ci) ** 2
                    wanted = most if by_width >= most else math.ceil(by_width)
                fewest = min(precision.min_blocks, PREFILL_BLOCKS if is_prefill(arm.arm) else precision.min_blocks)
                least += max(0, fewest - blocks)
                more += max(0, wanted - max(blocks, precision.min_blocks))
        cells = self.session.fitting
        left_s = timing_left_s(precision, cells, lambda cell: sum(block.device_s for block in self.log.of(cell)))
        return pace_s * least + min(pace_s * more, max(0.0, left_s - pace_s * least))

    def _time_cells(self, loaded: LoadedPair) -> None:
        from specgauge.bench.timing.cell_timer import measure_cells

        cells = self._timing_cells()
        options: dict[str, Any] = {
            "gammas": self.config.grid.gamma,
            "prompts": self.session.prompts.encoded(loaded.target.tokenizer),
            "precision": self.config.precision,
            "journal": self.log,
            "seed": self.config.seed,
            "sends_distributions": "ratio" in self.config.acceptance_rule and "same" in self.config.draft_sampling,
            "progress": lambda _arm: self.progress.advance(),
        }
        if not self.config.grid.is_searched:
            sizes = sorted({cell.batch_size for cell in cells})
            for batch_size, own in zip(sizes, self.log.until.shares(len(sizes)), strict=True):
                self.log.until = own
                with suppress(OutOfTimeError):
                    measure_cells(loaded, cells, batch_sizes=[batch_size], **options)
            return
        with suppress(OutOfTimeError):
            from specgauge.bench.timing.adaptive import measure_adaptively

            questions = search_objectives(Run.open(self.session.run.path), self.pair.name, self.session.fitting)
            unasked = [cell for cell in cells if cell.cell_id not in questions]
            if unasked:
                self.progress.say(
                    f"pair {self.pair.name}: no acceptance to search by in {len(unasked)} cells, all γ timed"
                )
                measure_cells(loaded, unasked, **options)
            if questions:
                asked = [cell for cell in cells if cell.cell_id in questions]
                measure_adaptively(loaded, asked, questions=questions, **options)


def measure_pair(session: Session) -> PairOutcome:
    """Measure what is missing of a pair: its models, loaded here, or its servers.

    Raises:
        StorageError: the disk refused a write.
    """
    if session.pair.engines:
        from specgauge.sweeps.served.measure import ServedPair

        return ServedPair(session).measure()
    return PairRun(session).measure()


def environment_of(run: Path, config: Config) -> Mapping[str, Any]:
    """The environment that a run is measured in; ValueError as `prepare_machine`."""
    if config.is_served:
        from specgauge.sweeps.served.environment import served_environment

        return served_environment(config)
    return prepare_machine(run, config.threads)


def prepare_machine(run: Path, threads: int | None) -> Mapping[str, Any]:
    """Set torch's threads, and choose what `dtype: auto` is on the CPU; both as they are in a run that goes on.

    Returns the environment that is measured in.

    Raises:
        ValueError: the run's environment.json is damaged.
    """
    from specgauge.bench.cpu_type import fast_dtype
    from specgauge.bench.environment import collect_environment, use_threads

    recorded = read_environment(run / ENVIRONMENT) if (run / ENVIRONMENT).exists() else None
    timed_s = use_threads(threads, recorded)
    return {
        **collect_environment(),
        "threads_timed_s": {str(number): value for number, value in timed_s.items()},
        "cpu_dtype": fast_dtype() if recorded is None else recorded.get("cpu_dtype"),
    }
