"""Record the acceptance of one pair: the target's texts, a teacher-forced pass over them, and chains off their path.

    recording = Recording(session)
    recording.record(loaded)                # both models in memory at once
    recording.record_sequentially()         # or one after the other
    recording.follow_rollouts(loaded)       # draft chains that start with a rejected draft

Every sampling setting has a file of its own, and is skipped where that is there; one that fails never loses the others.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.configs.pairs import ModelConfig
from specgauge.model.settings import Setting
from specgauge.sweeps.plan import reach, settings_of
from specgauge.sweeps.run.session import OUT_OF_TIME, Session
from specgauge.sweeps.store.rows import write_table
from specgauge.sweeps.store.rundir import ROLLOUTS, acceptance_path
from specgauge.sweeps.store.schema import AcceptanceRow
from specgauge.sweeps.store.tables import add_rollouts, has_rollouts

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.bench.decoding.records import Text
    from specgauge.bench.models.pair import LoadedModel, LoadedPair
    from specgauge.configs.schema import SamplingConfig

ROLLOUT_TEXTS = 4
"""Texts whose draft chains are followed at once."""


class Recording:
    """The acceptance of one pair of an open run being recorded."""

    def __init__(self, session: Session) -> None:
        self._session, self._config, self._pair = session, session.config, session.pair
        self._texts: dict[str, list[Text]] = {}

    def record(self, loaded: LoadedPair) -> None:
        """All of a pair in memory at once."""
        from specgauge.bench.acceptance.lookups import pair_acceptance

        missing = self._missing()
        if not missing:
            return
        encoded = self._session.prompts.encoded(loaded.target.tokenizer)
        measure = partial(pair_acceptance, loaded, gamma_max=max(self._config.grid.gamma))

        for sampling in missing:
            if not self._is_left_out(sampling):
                write = partial(self._write_texts, loaded.target, encoded, sampling)
                self._try(sampling, write, partial(self._measure, measure, sampling))

    def record_sequentially(self) -> None:
        """One model after the other; the two are never in memory together."""
        from specgauge.bench.acceptance.teacher_forced import measure_acceptance
        from specgauge.bench.models.pair import check_vocabularies, load_model

        spec = self._pair.draft
        assert isinstance(spec, ModelConfig), "one model is loaded once"
        missing, name = self._missing(), f"pair {self._pair.name!r}"
        if not missing:
            return
        load = partial(load_model, reach=reach(self._config, self._pair.name))
        load_target = partial(load, self._pair.target, role="target", name=f"{name} target")
        load_draft = partial(load, spec, role="draft", name=f"{name} draft")

        def write() -> None:
            self._session.mark.stage(f"loading {self._pair.name}")
            draft = load_draft()
            draft_tokenizer, limits = draft.tokenizer, {draft.name: draft.max_context}
            del draft
            gc.collect()
            target = load_target()
            check_vocabularies(target.tokenizer, draft_tokenizer, self._pair.name)
            self._session.prompts.fit({target.name: target.max_context, **limits}, target.eos_token_ids)
            encoded = self._session.prompts.encoded(target.tokenizer)
            for sampling in missing:
                if not self._is_left_out(sampling):
                    self._try(sampling, partial(self._write_texts, target, encoded, sampling))

        failure = self._session.guard(write)
        gc.collect()
        measure = partial(measure_acceptance, load_target, load_draft)
        for sampling in missing:
            if sampling.name in self._texts:
                self._try(sampling, partial(self._measure, measure, sampling))
            else:
                self._note(sampling, failure)

    def follow_rollouts(self, loaded: LoadedPair) -> None:
        """Draft chains that start with a rejected draft, where they are asked for and a model drafts."""
        if not self._config.acceptance.rollouts or loaded.draft is None:
            return
        for sampling in self._config.sampling:
            if not self._path(sampling).exists() or self._session.skips("rejected drafts", sampling.name):
                continue
            for draft_sampling, rule in product(self._config.draft_sampling, self._config.acceptance_rule):
                setting = Setting(
                    pair=self._pair.name,
                    mode=self._config.mode_of(self._pair),
                    sampling=sampling.name,
                    draft_sampling=draft_sampling,
                    acceptance_rule=rule,
                )
                is_there = has_rollouts(self._session.run.path / ROLLOUTS, setting)
                if not is_there and not self._session.leaves_out(f"rejected drafts under {sampling.name}"):
                    stage = f"rejected drafts, {self._pair.name}, {sampling.name}"
                    with self._session.mark.skippable("rejected drafts", sampling.name, stage=stage):
                        self._session.guard(partial(self._follow, loaded, sampling, setting))

    def give_up(self, reason: str) -> None:
        """Keep one reason for every sampling setting whose acceptance is not there."""
        self._session.outcome.acceptance_reasons |= dict.fromkeys((one.name for one in self._missing()), reason)

    def _missing(self) -> list[SamplingConfig]:
        return [
            one
            for one in self._config.sampling
            if not self._session.skips("acceptance", one.name) and not self._path(one).exists()
        ]

    def _path(self, sampling: SamplingConfig) -> Path:
        return acceptance_path(self._session.run.path, self._pair.name, sampling.name)

    def _try(self, sampling: SamplingConfig, *works: Callable[[], object]) -> None:
        """Do what the acceptance under a sampling setting takes; keep why it failed."""
        stage = f"acceptance, {self._pair.name}, {sampling.name}"
        with self._threads(), self._session.mark.skippable("acceptance", sampling.name, stage=stage):
            self._note(sampling, self._session.guard(lambda: [work() for work in works]))

    def _threads(self) -> AbstractContextManager[None]:
        """Those asked for, else what is fastest at this moment: on cores that others use by now, waiting costs most."""
        from specgauge.bench.environment import fastest_threads_in_use

        return nullcontext() if self._config.threads_of(self._pair) else fastest_threads_in_use()

    def _note(self, sampling: SamplingConfig, failure: tuple[str, str] | None) -> None:
        if failure is not None:
            self._session.outcome.acceptance_reasons[sampling.name] = ": ".join(failure)

    def _is_left_out(self, sampling: SamplingConfig) -> bool:
        """Whether the seconds are spent; what is begun is brought to its end, since half of it is nothing."""
        is_left_out = self._session.leaves_out(f"acceptance under {sampling.name}")
        if is_left_out:
            self._session.outcome.acceptance_reasons[sampling.name] = OUT_OF_TIME
        return is_left_out

    def _write_texts(self, target: LoadedModel, encoded: Sequence[Sequence[int]], sampling: SamplingConfig) -> None:
        """The target's own texts under a sampling setting, one for every prompt and repetition."""
        from specgauge.bench.decoding.plain import generate_plain

        size, workload = self._config.acceptance.batch_size, self._config.workload
        self._session.stage(f"writing texts, {self._pair.name}, {sampling.name}", len(encoded) * workload.repetitions)
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
                self._session.progress.advance(len(batch))
        self._texts[sampling.name] = texts

    def _measure(self, measure: Callable[..., pd.DataFrame], sampling: SamplingConfig) -> None:
        """One teacher-forced pass over the texts, by `measure`, into the sampling setting's acceptance file."""
        texts, size = self._texts[sampling.name], self._config.acceptance.batch_size
        self._session.stage(f"acceptance, {self._pair.name}, {sampling.name}", -(-len(texts) // size))
        frame = measure(
            texts,
            settings_of(sampling),
            batch_size=size,
            chunk=self._config.acceptance.chunk,
            progress=lambda _done, _total: self._session.progress.advance(),
        )
        if frame.empty:
            raise ValueError(
                f"pair {self._pair.name!r}, sampling {sampling.name!r}: every text ended at its first token, "
                f"no draft can be verified; check workload.prompts and workload.chat_template"
            )
        write_table(self._path(sampling), AcceptanceRow, frame)

    def _follow(self, loaded: LoadedPair, sampling: SamplingConfig, setting: Setting) -> None:
        from specgauge.bench.acceptance.rollouts import measure_rollouts

        if sampling.name not in self._texts:  # written by an earlier run: the same seed writes them again
            self._write_texts(loaded.target, self._session.prompts.encoded(loaded.target.tokenizer), sampling)
        texts = self._texts[sampling.name]
        self._session.stage(f"rejected drafts, {self._pair.name}, {sampling.name}", -(-len(texts) // ROLLOUT_TEXTS))
        chains = measure_rollouts(
            loaded.target,
            loaded.draft_model,
            texts,
            settings_of(sampling),
            starts_per_text=self._config.acceptance.rollouts,
            depth=max(self._config.grid.gamma),
            seed=self._config.seed,
            acceptance_rule="match" if setting.acceptance_rule == "match" else "ratio",
            draft_sampling="greedy" if setting.draft_sampling == "greedy" else "same",
            batch_size=ROLLOUT_TEXTS,
            chunk=self._config.acceptance.chunk,
            progress=lambda _done, _total: self._session.progress.advance(),
        )
        add_rollouts(self._session.run.path / ROLLOUTS, setting, chains)
