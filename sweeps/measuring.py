"""Measure one pair into an open run: the target's texts, acceptance over them, the timing of every cell, and what is
decoded end to end to check the prediction.

The only part of sweeps that calls `bench` (and so torch); everything it finds is in the run directory before it
returns. What is there already is not measured again. One part that fails never loses the others: out of memory and
failures become reasons in the outcome and statuses in the journal.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgauge.configs.pairs import ModelConfig
from specgauge.model.arms import arm_names
from specgauge.sweeps.adaptive_arms import AdaptiveArms
from specgauge.sweeps.blocklog import BlockLog
from specgauge.sweeps.budget import MISSING, SPENT, TOO_LARGE, PairBudget
from specgauge.sweeps.deadline import RUN_SECONDS, Deadline, OutOfTimeError
from specgauge.sweeps.files import StorageError, atomic_path
from specgauge.sweeps.opening import OpenRun
from specgauge.sweeps.plan import chains, plan_cells, settings_of
from specgauge.sweeps.policy_tuner import PolicyTuner
from specgauge.sweeps.predictions import recommended_gammas
from specgauge.sweeps.progress import Progress
from specgauge.sweeps.prompts_file import keep_prompts
from specgauge.sweeps.records import SCHEMA
from specgauge.sweeps.rollout_table import RolloutKey, add_rollouts, has_rollouts
from specgauge.sweeps.rundir import ACCEPTANCE, ROLLOUTS, Run, acceptance_file_name
from specgauge.sweeps.searching import search_questions
from specgauge.sweeps.verifying import Numbered, Verification
from specgauge.sweeps.working import WorkingMark

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.bench.blocks import Status, TimingCell
    from specgauge.bench.generate import Text
    from specgauge.bench.models import LoadedModel, LoadedPair
    from specgauge.bench.prompts import Prompt
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.sampling import SamplingConfig
    from specgauge.configs.schema import Config

ROLLOUT_TEXTS = 4
"""Texts whose draft chains are followed at once."""


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

        left_alone: ids of cells in which this run was killed; deadline: after which nothing is begun.
        """
        self.run, self.pair, self.prompts, self.progress = run, pair, prompts, progress
        self.config = run.config
        self.cells = [cell for cell in plan_cells(run.config) if cell.pair == pair.name]
        self.arms = arm_names(run.config.grid.gamma, catches_up=self.cells[0].catches_up)
        self.mode = run.config.mode_of(pair)
        self.mark = WorkingMark(run.path)
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
        self.outcome = PairOutcome(left_out=self.budget.left_out)
        self._encoded: list[list[int]] | None = None
        self._as_written: list[list[int]] = []
        self._texts: dict[str, list[Text]] = {}

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
        from specgauge.bench.measure import check_contexts
        from specgauge.bench.modes import pair_in_mode, refuse_mode_of

        refuse_mode_of(self.pair, self.mode)
        if not self._is_within_limits():
            return
        if self._in_turn:
            self._sequential_acceptance()
        loaded = self._load_both()
        if loaded is not None and self._is_within_limits():  # now the files of a model are here, and tell its size
            check_contexts(loaded, self._timing_cells(), max(self.config.grid.gamma))
            self._verification().check(loaded)
            if not self._in_turn:
                eager = pair_in_mode(loaded, "eager")
                self._acceptance_side_by_side(eager)
                self._follow_rollouts(eager)
            self._time(loaded)
            self._verify(loaded)

    def _is_within_limits(self) -> bool:
        """Whether anything may be begun: some cell fits by estimate, and there are seconds left; says what may not."""
        for cell, reason in self.budget.too_large():
            self.log.give_up([cell], self.arms, "skipped", reason)
        why = None if self.budget.fitting else TOO_LARGE
        if self.budget.leaves_out(MISSING):
            why = why or SPENT
        for sampling in self._missing() if why is not None else ():
            self.outcome.acceptance_reasons[sampling.name] = str(why)
        return why is None

    @property
    def _in_turn(self) -> bool:
        """Whether two models are to be loaded one after the other; a target that drafts for itself is one model."""
        return self.config.acceptance.sequential and isinstance(self.pair.draft, ModelConfig)

    def _stage(self, stage: str, total: int) -> None:
        """A stage begins: shown, and marked in case the process dies in it."""
        self.mark.stage(stage)
        self.progress.start(stage, total)

    def _missing(self) -> list[SamplingConfig]:
        return [s for s in self.config.sampling if not self._acceptance_path(s).is_file()]

    def _acceptance_path(self, sampling: SamplingConfig) -> Path:
        return self.run.path / ACCEPTANCE / acceptance_file_name(self.pair.name, sampling.name)

    def _load_both(self) -> LoadedPair | None:
        from specgauge.bench.models import load_pair
        from specgauge.bench.modes import pair_in_mode

        self._stage(f"loading {self.pair.name}", total=1)
        loaded: list[LoadedPair] = []
        reason = self._guarded(lambda: loaded.append(pair_in_mode(load_pair(self.pair), self.mode)))
        if reason is not None:
            status, words = reason
            self.log.give_up(self.cells, self.arms, status, f"loading: {words}")
            for sampling in self._missing():
                self.outcome.acceptance_reasons[sampling.name] = f"{status}: loading: {words}"
            return None
        self.progress.advance()
        return loaded[0]

    def _guarded(self, work: Callable[[], object]) -> tuple[Status, str] | None:
        """Do the work; (status, reason) when memory ran out or it failed, which is told at once."""
        from specgauge.bench.blocks import first_line
        from specgauge.bench.memory import is_out_of_memory

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

    def _encode(self, tokenizer: Any) -> list[list[int]]:
        """Token ids of the prompts under the target's tokenizer, encoded and written down once.

        Where the workload brings them to several lengths, all prompts of one length come before those of the next.
        """
        from specgauge.bench.prompts import encode_prompts, prompts_of_length

        if self._encoded is None:
            self._as_written = encode_prompts(self.prompts, tokenizer, self.config.workload)
            lengths = self.config.workload.prompt_tokens
            self._encoded = self._as_written
            if lengths is not None:
                self._encoded = [row for length in lengths for row in prompts_of_length(self._as_written, length)]
            times = len(self._encoded) // len(self.prompts)
            keep_prompts(self.run, self.pair.name, list(self.prompts) * times, self._encoded)
        return self._encoded

    def _prompts_at(self, context: int) -> Numbered:
        """Numbers and ids of the prompts at exactly a context's length: the workload's own, where it has them."""
        from specgauge.bench.prompts import prompts_of_length

        count, lengths = len(self.prompts), self.config.workload.prompt_tokens or ()
        first = lengths.index(context) * count if context in lengths else 0
        return list(range(first, first + count)), prompts_of_length(self._as_written, context)

    def _write_texts(
        self, target: LoadedModel, encoded: Sequence[Sequence[int]], sampling: SamplingConfig
    ) -> list[Text]:
        """The target's own texts under a sampling setting, one for every prompt and repetition."""
        from specgauge.bench.generate import generate_plain

        size, workload = self.config.acceptance.batch_size, self.config.workload
        self._stage(f"writing texts, {self.pair.name}, {sampling.name}", len(encoded) * workload.repetitions)
        texts: list[Text] = []
        for repetition in range(workload.repetitions):
            for first in range(0, len(encoded), size):
                batch = encoded[first : first + size]
                texts += generate_plain(
                    target,
                    batch,
                    settings_of(sampling),
                    max_new_tokens=workload.max_new_tokens,
                    seed=self.config.seed,
                    prompt_numbers=list(range(first, first + len(batch))),
                    repetition=repetition,
                )
                self.progress.advance(len(batch))
        return texts

    def _judge(self, measure: Callable[..., pd.DataFrame], texts: Sequence[Text], sampling: SamplingConfig) -> None:
        """One teacher-forced pass over the texts, by `measure`, into the sampling setting's acceptance file."""
        batches = -(-len(texts) // self.config.acceptance.batch_size)
        self._stage(f"acceptance, {self.pair.name}, {sampling.name}", batches)
        frame = measure(
            texts,
            settings_of(sampling),
            batch_size=self.config.acceptance.batch_size,
            chunk=self.config.acceptance.chunk,
            progress=lambda _done, _total: self.progress.advance(),
        )
        if frame.empty:
            raise ValueError(
                f"pair {self.pair.name!r}, sampling {sampling.name!r}: every text ended at its first token, "
                f"no draft can be judged; check workload.prompts and workload.chat_template"
            )
        self._keep_acceptance(frame, sampling)

    def _keep_acceptance(self, frame: pd.DataFrame, sampling: SamplingConfig) -> None:
        frame.attrs["schema"] = SCHEMA
        with atomic_path(self._acceptance_path(sampling)) as temporary:
            frame.to_parquet(temporary, index=False)

    def _note(self, sampling: SamplingConfig, trouble: tuple[str, str] | None) -> None:
        if trouble is not None:
            self.outcome.acceptance_reasons[sampling.name] = ": ".join(trouble)

    def _acceptance_side_by_side(self, loaded: LoadedPair) -> None:
        """All in memory at once."""
        from specgauge.bench.pair_acceptance import pair_acceptance

        missing = self._missing()
        if not missing:
            return
        encoded = self._encode(loaded.target.tokenizer)
        measure = partial(pair_acceptance, loaded, gamma_max=max(self.config.grid.gamma))
        for sampling in missing:
            if self._acceptance_is_left_out(sampling):
                continue

            def work(sampling: SamplingConfig = sampling) -> None:
                texts = self._write_texts(loaded.target, encoded, sampling)
                self._texts[sampling.name] = texts
                self._judge(measure, texts, sampling)

            self._note(sampling, self._guarded(work))

    def _acceptance_is_left_out(self, sampling: SamplingConfig) -> bool:
        """Whether the seconds are spent; what is begun is brought to its end, since half of it is nothing."""
        is_left_out = self.budget.leaves_out(f"acceptance under {sampling.name}")
        if is_left_out:
            self.outcome.acceptance_reasons[sampling.name] = SPENT
        return is_left_out

    def _follow_rollouts(self, loaded: LoadedPair) -> None:
        """Draft chains that start with a rejected draft, where they are asked for and a model drafts."""
        starts = self.config.acceptance.rollouts
        if not starts or loaded.draft is None:
            return
        for sampling in self.config.sampling:
            if not self._acceptance_path(sampling).is_file():
                continue
            for key in rollout_keys(self.config, self.pair.name, sampling.name):
                is_there = has_rollouts(self.run.path / ROLLOUTS, key)
                if not is_there and not self.budget.leaves_out(f"rejected drafts under {sampling.name}"):
                    self._guarded(partial(self._follow, loaded, sampling, key, starts))

    def _follow(self, loaded: LoadedPair, sampling: SamplingConfig, key: RolloutKey, starts: int) -> None:
        from specgauge.bench.rollouts import measure_rollouts

        texts = self._texts.get(sampling.name)
        if texts is None:  # written by an earlier run: the same seed writes them again
            texts = self._write_texts(loaded.target, self._encode(loaded.target.tokenizer), sampling)
            self._texts[sampling.name] = texts
        self._stage(f"rejected drafts, {self.pair.name}, {sampling.name}", -(-len(texts) // ROLLOUT_TEXTS))
        chains = measure_rollouts(
            loaded.target,
            loaded.draft_model,
            texts,
            settings_of(sampling),
            starts_per_text=starts,
            depth=max(self.config.grid.gamma),
            seed=self.config.seed,
            acceptance_rule="match" if key.acceptance_rule == "match" else "ratio",
            draft_sampling="greedy" if key.draft_sampling == "greedy" else "same",
            batch_size=ROLLOUT_TEXTS,
            chunk=self.config.acceptance.chunk,
            progress=lambda _done, _total: self.progress.advance(),
        )
        add_rollouts(self.run.path / ROLLOUTS, key, chains)

    def _sequential_acceptance(self) -> None:
        """One model after the other; the two are never in memory together."""
        from specgauge.bench.acceptance import measure_acceptance
        from specgauge.bench.models import check_vocabularies, load_model

        spec = self.pair.draft
        assert isinstance(spec, ModelConfig), "one model is loaded once"
        missing = self._missing()
        if not missing:
            return

        def load_target() -> LoadedModel:
            return load_model(self.pair.target, role="target", name=f"pair {self.pair.name!r} target")

        def load_draft() -> LoadedModel:
            return load_model(spec, role="draft", name=f"pair {self.pair.name!r} draft")

        written: dict[str, list[Text]] = {}

        def write() -> None:
            draft_tokenizer = load_draft().tokenizer
            gc.collect()
            target = load_target()
            check_vocabularies(target.tokenizer, draft_tokenizer, self.pair.name)
            encoded = self._encode(target.tokenizer)
            for sampling in missing:
                if not self._acceptance_is_left_out(sampling):
                    written[sampling.name] = self._write_texts(target, encoded, sampling)

        trouble = self._guarded(write)
        gc.collect()
        for sampling in missing:
            texts = written.get(sampling.name)
            if texts is None:
                self._note(sampling, trouble)
                continue

            def judge(sampling: SamplingConfig = sampling, texts: Sequence[Text] = texts) -> None:
                self._judge(partial(measure_acceptance, load_target, load_draft), texts, sampling)

            self._note(sampling, self._guarded(judge))

    def _timing_cells(self) -> list[TimingCell]:
        from specgauge.bench.blocks import TimingCell

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
        recorded = sum(len(self.log.blocks(cell.id, arm)) for cell in cells for arm in self.arms)
        self.progress.start(f"timing {self.pair.name}", blocks, done=recorded)
        trouble = self._guarded(partial(self._time_cells, loaded))
        if trouble is not None:
            self.log.give_up(cells, self.arms, *trouble)

    def _time_cells(self, loaded: LoadedPair) -> None:
        from specgauge.bench.measure import measure_cells

        cells, options = self._timing_cells(), self._timing_options(loaded)
        with suppress(OutOfTimeError):
            if not self.config.grid.is_searched:
                measure_cells(loaded, cells, **options)
                return
            from specgauge.bench.adaptive import measure_adaptively

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
            "prompts": self._encode(loaded.target.tokenizer),
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
        )

    def _verify(self, loaded: LoadedPair) -> None:
        """Decode end to end what the configuration asks for; γ come from the measured parts alone."""
        if self.config.verify is None:
            return
        self._encode(loaded.target.tokenizer)
        self.mark.stage("decoding end to end")
        verification, run = self._verification(), Run.open(self.run.path)
        if self.config.verify.policies is not None:
            tuner = PolicyTuner.of(run, self.pair.name, len(self.prompts))
            verification.adaptive = AdaptiveArms(path=run.path, names=self.config.verify.policies, tuner=tuner)
        verification.decode(loaded, self._prompts_at, recommended_gammas(run, self.pair.name))
        self.outcome.verify_reasons = verification.reasons
        if any(reason.endswith(f"{RUN_SECONDS} is spent") for reason in verification.reasons.values()):
            self.budget.leaves_out("blocks of decoding end to end")


def rollout_keys(config: Config, pair: str, sampling: str) -> Iterator[RolloutKey]:
    """The ways of drawing and judging drafts whose chains are followed."""
    for draft_sampling in config.draft_sampling:
        for rule in config.acceptance_rule:
            yield RolloutKey(pair, sampling, draft_sampling, rule)


def prepare_machine(threads: int | None) -> Mapping[str, Any]:
    """Set torch's threads and return the environment that measurements are taken in."""
    from specgauge.bench.environment import collect_environment, use_threads

    use_threads(threads)
    return collect_environment()
