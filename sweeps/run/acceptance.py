"""Record the acceptance of one pair: the target's texts, a teacher-forced pass over them, and chains off their path.

    recording = Recording(session)
    recording.record(loaded)                # both models in memory at once
    recording.record_sequentially()         # or one after the other
    recording.follow_rollouts(loaded)       # draft chains that start with a rejected draft

Every sampling setting has a file of its own, and is skipped where that is there; one that fails never loses the others.
A few prompts at all their lengths are recorded at a time: where the seconds of the run end that, there are fewer
prompts, none of them at fewer lengths, and the next run records the rest.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from specgauge.configs.canonical import short_hash
from specgauge.configs.pairs import ModelConfig
from specgauge.model.settings import Setting
from specgauge.sweeps.model_sizes import model_folder
from specgauge.sweeps.plan import reach, settings_of
from specgauge.sweeps.run.budget import ACCEPTANCE_SHARE, WRITING_SHARE, Deadline
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.store.outcomes import OUT_OF_TIME
from specgauge.sweeps.store.rundir import ROLLOUTS, acceptance_path
from specgauge.sweeps.store.tables import add_acceptance, add_rollouts, has_rollouts, recorded_numbers, texts_left_out

if TYPE_CHECKING:
    import pandas as pd

    from specgauge.bench.decoding.records import Text
    from specgauge.bench.models.pair import LoadedModel, LoadedPair
    from specgauge.configs.schema import SamplingConfig

ROLLOUT_TEXTS = 4
"""Texts whose draft chains are followed at once."""
Numbers = tuple[int, int]
"""A text's prompt and repetition."""


class Recording:
    """The acceptance of one pair of an open run being recorded."""

    def __init__(self, session: Session) -> None:
        self._session, self._config, self._pair = session, session.config, session.pair
        self._texts: dict[str, dict[Numbers, Text]] = {}
        self._encoded: list[list[int]] = []
        self._text_s: float | None = None
        """Seconds that a text took; None before one is recorded."""

    def record(self, loaded: LoadedPair) -> None:
        """All of a pair in memory at once."""
        from specgauge.bench.acceptance.lookups import pair_acceptance

        missing = self._missing()
        if not missing:
            return
        self._encoded = self._session.prompts.encoded(loaded.target.tokenizer)
        measure = partial(pair_acceptance, loaded, gamma_max=max(self._config.grid.gamma))
        until = self._session.deadline.share(ACCEPTANCE_SHARE)
        for sampling, own in zip(missing, until.shares(len(missing)), strict=True):
            if not self._is_left_out(sampling, own):
                self._try(sampling, partial(self._record, measure, loaded.target, sampling, own))

    def record_sequentially(self) -> None:
        """One model after the other; the two are never in memory together."""
        from specgauge.bench.acceptance.teacher_forced import measure_acceptance
        from specgauge.bench.models.load_errors import check_vocabularies
        from specgauge.bench.models.pair import load_model

        spec = self._pair.draft
        assert isinstance(spec, ModelConfig), "one model is loaded once"
        missing, name = self._missing(), f"pair {self._pair.name!r}"
        if not missing:
            return
        load = partial(
            load_model, reach=reach(self._config, self._pair.name), cpu_dtype=self._session.cpu_dtype.get("dtype")
        )
        load_target = partial(load, self._pair.target, role="target", name=f"{name} target")
        load_draft = partial(load, spec, role="draft", name=f"{name} draft")

        def write() -> None:
            self._session.stage(f"loading {self._pair.name}", total=2)
            draft = load_draft()
            self._session.progress.advance()
            draft_tokenizer, limits = draft.tokenizer, {draft.name: draft.max_context}
            del draft
            gc.collect()
            target = load_target()
            check_vocabularies(target.tokenizer, draft_tokenizer, self._pair.name)
            self._session.prompts.fit({target.name: target.max_context, **limits}, target.eos_token_ids)
            self._encoded = self._session.prompts.encoded(target.tokenizer)
            until = self._session.deadline.share(ACCEPTANCE_SHARE * WRITING_SHARE)
            for sampling, own in zip(missing, until.shares(len(missing)), strict=True):
                if not self._is_left_out(sampling, own):
                    self._try(sampling, partial(self._write_all, target, sampling, own))

        failure = self._session.guard(write)
        gc.collect()
        measure = partial(measure_acceptance, load_target, load_draft)
        for sampling in missing:
            if self._texts.get(sampling.name):
                self._try(sampling, partial(self._measure_all, measure, sampling))
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
        """Keep one reason for every sampling setting that has no acceptance."""
        without = (one.name for one in self._missing() if not self._path(one).exists())
        self._session.outcome.acceptance_reasons |= dict.fromkeys(without, reason)

    def _missing(self) -> list[SamplingConfig]:
        """The sampling settings of which there is none, or not of all texts."""
        return [
            one
            for one in self._config.sampling
            if not self._session.skips("acceptance", one.name)
            and (not self._path(one).exists() or texts_left_out(self._path(one)))
        ]

    def _path(self, sampling: SamplingConfig) -> Path:
        return acceptance_path(self._session.run.path, self._pair.name, sampling.name)

    def _try(self, sampling: SamplingConfig, work: Callable[[], object]) -> None:
        """Do what the acceptance under a sampling setting takes; keep why it failed.

        Raises:
            ValueError: bad input, which is kept too: the same prompts and models are not tried once more.
        """
        stage, before = f"acceptance, {self._pair.name}, {sampling.name}", self._session.before
        with self._threads(), self._session.mark.skippable("acceptance", sampling.name, stage=stage):
            try:
                if before.bad_input is not None and before.refused_texts.get(sampling.name) == self._hash():
                    raise ValueError(before.bad_input)
                self._note(sampling, self._session.guard(work))
            except ValueError:
                self._session.outcome.refused_texts[sampling.name] = self._hash()
                raise

    def _hash(self) -> str:
        """Of what texts follow from: the prompts and the models' files."""
        folders = [model_folder(self._pair.target, "target")]
        if isinstance(self._pair.draft, ModelConfig):
            folders.append(model_folder(self._pair.draft, "draft"))
        files = [file for folder in folders if folder is not None for file in sorted(folder.iterdir())]
        stats = [(str(file), (found := file.stat()).st_size, found.st_mtime_ns) for file in files]
        return short_hash([self._encoded, stats])

    def _threads(self) -> AbstractContextManager[None]:
        """Those asked for, else what is fastest at this moment: on cores that others use by now, waiting costs most."""
        from specgauge.bench.environment import fastest_threads_in_use

        return nullcontext() if self._config.threads_of(self._pair) else fastest_threads_in_use()

    def _note(self, sampling: SamplingConfig, failure: tuple[str, str] | None) -> None:
        if failure is not None:
            self._session.outcome.acceptance_reasons[sampling.name] = ": ".join(failure)

    def _is_left_out(self, sampling: SamplingConfig, until: Deadline) -> bool:
        """Whether the seconds are spent before anything of a sampling setting is begun."""
        is_left_out = self._session.leaves_out(f"acceptance under {sampling.name}", until)
        if is_left_out:
            self._should_take(_texts_in(list(self._groups(sampling))))
        if is_left_out and not self._path(sampling).exists():
            self._session.outcome.acceptance_reasons[sampling.name] = OUT_OF_TIME
        return is_left_out

    def _groups(self, sampling: SamplingConfig) -> Iterator[list[list[Numbers]]]:
        """The texts that are not recorded yet: a few prompts at all their lengths, in batches of one length each."""
        count, size = len(self._session.prompts), self._config.acceptance.batch_size
        path = self._path(sampling)
        kept = recorded_numbers(path) if path.exists() else set()
        for repetition in range(self._config.workload.repetitions):
            for first in range(0, count, size):
                lengths = range(first, len(self._encoded), count)
                batches = [
                    [(number, repetition) for number in range(start, min(start + size, start - first + count))]
                    for start in lengths
                ]
                missing = [[one for one in batch if one not in kept] for batch in batches]
                if any(missing):
                    yield [batch for batch in missing if batch]

    def _record(
        self,
        measure: Callable[..., pd.DataFrame],
        target: LoadedModel,
        sampling: SamplingConfig,
        until: Deadline,
    ) -> None:
        """Write and pass over the texts, a group at a time, as long as there is time for another."""
        groups = list(self._groups(sampling))
        self._session.stage(f"acceptance, {self._pair.name}, {sampling.name}", _texts_in(groups))
        frames: list[pd.DataFrame] = []
        longest_s, left, began_s = 0.0, len(groups), until.now_s
        for group in groups:
            if frames and not until.holds(longest_s):
                break
            started_s = until.now_s
            for batch in group:
                half = self._halves(len(batch))
                texts = self._write(target, sampling, batch, half)
                frames.append(self._measured(measure, sampling, texts, partial(half, 1.0)))
                self._session.progress.advance(len(batch))
            longest_s, left = max(longest_s, until.now_s - started_s), left - 1
        done, left_out = (_texts_in(some) for some in (groups[: len(groups) - left], groups[len(groups) - left :]))
        self._text_s = (until.now_s - began_s) / done if done else self._text_s
        self._keep(sampling, frames, left_out=left_out)

    def _halves(self, texts: int) -> Callable[[float, float], None]:
        """Tells how far a batch is: the share written, then how many of its texts have been passed over."""
        within = self._session.progress.within
        return lambda written, passed: within(0.5 * (texts * written + passed))

    def _write(
        self,
        target: LoadedModel,
        sampling: SamplingConfig,
        batch: Sequence[Numbers],
        tell: Callable[[float, float], None],
    ) -> list[Text]:
        """The target's own texts of one batch, kept for whatever follows."""
        from specgauge.bench.decoding.plain import generate_plain

        new_tokens = self._config.workload.max_new_tokens
        texts = generate_plain(
            target,
            [self._encoded[number] for number, _ in batch],
            settings_of(sampling),
            max_new_tokens=new_tokens,
            seed=self._config.seed,
            prompt_numbers=[number for number, _ in batch],
            repetition=batch[0][1],
            progress=lambda tokens: tell(tokens / new_tokens, 0.0),
        )
        self._texts.setdefault(sampling.name, {}).update(zip(batch, texts, strict=True))
        return texts

    def _write_all(self, target: LoadedModel, sampling: SamplingConfig, until: Deadline) -> None:
        """The texts under a sampling setting that are not recorded, as long as there is time for another group."""
        groups = list(self._groups(sampling))
        self._session.stage(f"writing texts, {self._pair.name}, {sampling.name}", _texts_in(groups))
        longest_s = 0.0
        for group in groups:
            if sampling.name in self._texts and not until.holds(longest_s):
                return
            started_s = until.now_s
            for batch in group:
                self._write(target, sampling, batch, self._halves(2 * len(batch)))
                self._session.progress.advance(len(batch))
            longest_s = max(longest_s, until.now_s - started_s)

    def _measure_all(self, measure: Callable[..., pd.DataFrame], sampling: SamplingConfig) -> None:
        """One pass over all texts that were written."""
        texts = list(self._texts[sampling.name].values())
        self._session.stage(f"acceptance, {self._pair.name}, {sampling.name}", len(texts))
        frame = self._measured(measure, sampling, texts, self._session.progress.within)
        self._session.progress.advance(len(texts))
        left_out = _texts_in(list(self._groups(sampling))) - len(texts)
        self._keep(sampling, [frame], left_out=left_out)

    def _measured(
        self,
        measure: Callable[..., pd.DataFrame],
        sampling: SamplingConfig,
        texts: Sequence[Text],
        progress: Callable[[float], object],
    ) -> pd.DataFrame:
        """One teacher-forced pass over texts, by `measure`."""
        own = self._config.acceptance
        return measure(texts, settings_of(sampling), batch_size=own.batch_size, chunk=own.chunk, progress=progress)

    def _keep(self, sampling: SamplingConfig, frames: Sequence[pd.DataFrame], *, left_out: int) -> None:
        """Add what was recorded to the sampling setting's file, and say how many texts there was no time for."""
        path = self._path(sampling)
        if not path.exists() and all(frame.empty for frame in frames):
            raise ValueError(
                f"pair {self._pair.name!r}, sampling {sampling.name!r}: every text ended at its first token, "
                f"no draft can be verified; check workload.prompts and workload.chat_template"
            )
        add_acceptance(path, frames, left_out=left_out)
        if left_out:
            self._should_take(left_out)
            every = len(self._encoded) * self._config.workload.repetitions
            self._session.outcome.left_out.append(f"{left_out} of {every} texts under {sampling.name}")

    def _should_take(self, texts: int) -> None:
        """Say how long so many texts should take that were left out."""
        self._session.should_take("acceptance", None if self._text_s is None else texts * self._text_s)

    def _follow(self, loaded: LoadedPair, sampling: SamplingConfig, setting: Setting) -> None:
        from specgauge.bench.acceptance.rollouts import measure_rollouts

        self._encoded, size = self._session.prompts.encoded(loaded.target.tokenizer), self._config.acceptance.batch_size
        written = self._texts.get(sampling.name, {})
        wanted = sorted(recorded_numbers(self._path(sampling)))
        missing = [one for one in wanted if one not in written]  # of an earlier run: the same seed writes them again
        if missing:
            self._session.stage(f"writing texts, {self._pair.name}, {sampling.name}", len(missing))
        for repetition in dict.fromkeys(repetition for _, repetition in missing):
            own = [one for one in missing if one[1] == repetition]
            for batch in (own[first : first + size] for first in range(0, len(own), size)):
                self._write(loaded.target, sampling, batch, self._halves(2 * len(batch)))
                self._session.progress.advance(len(batch))
        texts = [self._texts[sampling.name][one] for one in wanted]
        self._session.stage(f"rejected drafts, {self._pair.name}, {sampling.name}", len(texts))
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
            progress=self._session.progress.within,
        )
        add_rollouts(self._session.run.path / ROLLOUTS, setting, chains)


def _texts_in(groups: Sequence[Sequence[Sequence[Numbers]]]) -> int:
    return sum(len(batch) for group in groups for batch in group)
