"""Record the acceptance of one pair: the target's texts, a teacher-forced pass over them, and chains off their path.

    recording = Recording(run, pair, prompts=prompts, budget=budget, progress=progress, …)
    recording.side_by_side(loaded)          # both models in memory at once
    recording.in_turn()                     # or one after the other
    recording.follow_rollouts(loaded)       # draft chains that start with a rejected draft

Every sampling setting has a file of its own, and is left alone where that is there. One that fails never loses the
others; why it has no acceptance is kept in `reasons`. Calls `bench`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.configs.pairs import ModelConfig
from specgauge.sweeps.plan import settings_of
from specgauge.sweeps.run.end_to_end import Guard
from specgauge.sweeps.run.limits import SPENT, PairBudget
from specgauge.sweeps.run.progress import Progress
from specgauge.sweeps.run.prompts import PairPrompts
from specgauge.sweeps.store.checkpoint import Checkpoint, names_of
from specgauge.sweeps.store.rows import write_table
from specgauge.sweeps.store.rundir import ACCEPTANCE, ROLLOUTS, acceptance_file_name
from specgauge.sweeps.store.schema import AcceptanceRow, RolloutKey
from specgauge.sweeps.store.tables import add_rollouts, has_rollouts
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.bench.decoding.plain import Text
    from specgauge.bench.models.pair import LoadedModel, LoadedPair
    from specgauge.configs.pairs import PairConfig
    from specgauge.configs.schema import Config, SamplingConfig

ROLLOUT_TEXTS = 4
"""Texts whose draft chains are followed at once."""


class Recording:
    """The acceptance of one pair of an open run being recorded."""

    def __init__(
        self,
        run: OpenRun,
        pair: PairConfig,
        *,
        prompts: PairPrompts,
        budget: PairBudget,
        progress: Progress,
        stage: Callable[[str, int], None],
        mark: Checkpoint,
        guard: Guard,
        left_alone: Sequence[str] = (),
    ) -> None:
        """Nothing is recorded before a method is called.

        stage: is told what begins and how many steps of `progress` it takes; mark: says whose doing a death would be.
        left_alone: names of parts that are not tried, for a reason that is kept elsewhere.
        """
        self._run, self._pair, self._prompts, self._budget = run, pair, prompts, budget
        self._config, self._progress, self._stage, self._guard = run.config, progress, stage, guard
        self.reasons: dict[str, str] = {}
        """Why a sampling setting has no acceptance, by its name."""
        self._texts: dict[str, list[Text]] = {}
        self._mark = mark
        self._unjudged, self._unfollowed = names_of("acceptance", left_alone), names_of("rejected drafts", left_alone)

    def side_by_side(self, loaded: LoadedPair) -> None:
        """All of a pair in memory at once."""
        from specgauge.bench.acceptance.lookups import pair_acceptance

        missing = self._missing()
        if not missing:
            return
        encoded = self._prompts.encoded(loaded.target.tokenizer)
        measure = partial(pair_acceptance, loaded, gamma_max=max(self._config.grid.gamma))
        for sampling in missing:
            if self._is_left_out(sampling):
                continue

            def work(sampling: SamplingConfig = sampling) -> None:
                texts = self._write_texts(loaded.target, encoded, sampling)
                self._texts[sampling.name] = texts
                self._judge(measure, texts, sampling)

            with self._part(sampling):
                self._note(sampling, self._guard(work))

    def in_turn(self) -> None:
        """One model after the other; the two are never in memory together."""
        from specgauge.bench.acceptance.teacher_forced import measure_acceptance
        from specgauge.bench.models.pair import check_vocabularies, load_model

        spec = self._pair.draft
        assert isinstance(spec, ModelConfig), "one model is loaded once"
        missing = self._missing()
        if not missing:
            return

        def load_target() -> LoadedModel:
            return load_model(self._pair.target, role="target", name=f"pair {self._pair.name!r} target")

        def load_draft() -> LoadedModel:
            return load_model(spec, role="draft", name=f"pair {self._pair.name!r} draft")

        written: dict[str, list[Text]] = {}

        def write() -> None:
            self._mark.stage(f"loading {self._pair.name}")
            draft_tokenizer = load_draft().tokenizer
            gc.collect()
            target = load_target()
            check_vocabularies(target.tokenizer, draft_tokenizer, self._pair.name)
            encoded = self._prompts.encoded(target.tokenizer)
            for sampling in missing:
                if self._is_left_out(sampling):
                    continue

                def write_one(sampling: SamplingConfig = sampling) -> None:
                    written[sampling.name] = self._write_texts(target, encoded, sampling)

                with self._part(sampling):
                    self._note(sampling, self._guard(write_one))

        trouble = self._guard(write)
        gc.collect()
        for sampling in missing:
            texts = written.get(sampling.name)
            if texts is None:
                self._note(sampling, trouble)
                continue

            def judge(sampling: SamplingConfig = sampling, texts: Sequence[Text] = texts) -> None:
                self._judge(partial(measure_acceptance, load_target, load_draft), texts, sampling)

            with self._part(sampling):
                self._note(sampling, self._guard(judge))

    def follow_rollouts(self, loaded: LoadedPair) -> None:
        """Draft chains that start with a rejected draft, where they are asked for and a model drafts."""
        starts = self._config.acceptance.rollouts
        if not starts or loaded.draft is None:
            return
        for sampling in self._config.sampling:
            if not self._path(sampling).is_file() or sampling.name in self._unfollowed:
                continue
            for key in rollout_keys(self._config, self._pair.name, sampling.name):
                is_there = has_rollouts(self._run.path / ROLLOUTS, key)
                if not is_there and not self._budget.leaves_out(f"rejected drafts under {sampling.name}"):
                    stage = f"rejected drafts, {self._pair.name}, {sampling.name}"
                    with self._mark.part("rejected drafts", sampling.name, stage=stage):
                        self._guard(partial(self._follow, loaded, sampling, key, starts))

    def give_up(self, reason: str) -> None:
        """Keep one reason for every sampling setting whose acceptance is not there."""
        for sampling in self._missing():
            self.reasons[sampling.name] = reason

    def _missing(self) -> list[SamplingConfig]:
        wanted = [s for s in self._config.sampling if s.name not in self._unjudged]
        return [s for s in wanted if not self._path(s).is_file()]

    def _part(self, sampling: SamplingConfig) -> AbstractContextManager[None]:
        """What is done inside is the acceptance under a sampling setting."""
        stage = f"acceptance, {self._pair.name}, {sampling.name}"
        return self._mark.part("acceptance", sampling.name, stage=stage)

    def _path(self, sampling: SamplingConfig) -> Path:
        return self._run.path / ACCEPTANCE / acceptance_file_name(self._pair.name, sampling.name)

    def _note(self, sampling: SamplingConfig, trouble: tuple[str, str] | None) -> None:
        if trouble is not None:
            self.reasons[sampling.name] = ": ".join(trouble)

    def _is_left_out(self, sampling: SamplingConfig) -> bool:
        """Whether the seconds are spent; what is begun is brought to its end, since half of it is nothing."""
        is_left_out = self._budget.leaves_out(f"acceptance under {sampling.name}")
        if is_left_out:
            self.reasons[sampling.name] = SPENT
        return is_left_out

    def _write_texts(
        self, target: LoadedModel, encoded: Sequence[Sequence[int]], sampling: SamplingConfig
    ) -> list[Text]:
        """The target's own texts under a sampling setting, one for every prompt and repetition."""
        from specgauge.bench.decoding.plain import generate_plain

        size, workload = self._config.acceptance.batch_size, self._config.workload
        self._stage(f"writing texts, {self._pair.name}, {sampling.name}", len(encoded) * workload.repetitions)
        texts: list[Text] = []
        for repetition in range(workload.repetitions):
            for first in range(0, len(encoded), size):
                batch = encoded[first : first + size]
                texts += generate_plain(
                    target,
                    batch,
                    settings_of(sampling),
                    max_new_tokens=workload.max_new_tokens,
                    seed=self._config.seed,
                    prompt_numbers=list(range(first, first + len(batch))),
                    repetition=repetition,
                )
                self._progress.advance(len(batch))
        return texts

    def _judge(self, measure: Callable[..., pd.DataFrame], texts: Sequence[Text], sampling: SamplingConfig) -> None:
        """One teacher-forced pass over the texts, by `measure`, into the sampling setting's acceptance file."""
        batches = -(-len(texts) // self._config.acceptance.batch_size)
        self._stage(f"acceptance, {self._pair.name}, {sampling.name}", batches)
        frame = measure(
            texts,
            settings_of(sampling),
            batch_size=self._config.acceptance.batch_size,
            chunk=self._config.acceptance.chunk,
            progress=lambda _done, _total: self._progress.advance(),
        )
        if frame.empty:
            raise ValueError(
                f"pair {self._pair.name!r}, sampling {sampling.name!r}: every text ended at its first token, "
                f"no draft can be judged; check workload.prompts and workload.chat_template"
            )
        self._keep_acceptance(frame, sampling)

    def _keep_acceptance(self, frame: pd.DataFrame, sampling: SamplingConfig) -> None:
        write_table(self._path(sampling), AcceptanceRow, frame)

    def _follow(self, loaded: LoadedPair, sampling: SamplingConfig, key: RolloutKey, starts: int) -> None:
        from specgauge.bench.acceptance.rollouts import measure_rollouts

        texts = self._texts.get(sampling.name)
        if texts is None:  # written by an earlier run: the same seed writes them again
            texts = self._write_texts(loaded.target, self._prompts.encoded(loaded.target.tokenizer), sampling)
            self._texts[sampling.name] = texts
        self._stage(f"rejected drafts, {self._pair.name}, {sampling.name}", -(-len(texts) // ROLLOUT_TEXTS))
        chains = measure_rollouts(
            loaded.target,
            loaded.draft_model,
            texts,
            settings_of(sampling),
            starts_per_text=starts,
            depth=max(self._config.grid.gamma),
            seed=self._config.seed,
            acceptance_rule="match" if key.acceptance_rule == "match" else "ratio",
            draft_sampling="greedy" if key.draft_sampling == "greedy" else "same",
            batch_size=ROLLOUT_TEXTS,
            chunk=self._config.acceptance.chunk,
            progress=lambda _done, _total: self._progress.advance(),
        )
        add_rollouts(self._run.path / ROLLOUTS, key, chains)


def rollout_keys(config: Config, pair: str, sampling: str) -> Iterator[RolloutKey]:
    """The ways of drawing and judging drafts whose chains are followed."""
    for draft_sampling in config.draft_sampling:
        for rule in config.acceptance_rule:
            yield RolloutKey(pair, sampling, draft_sampling, rule)
