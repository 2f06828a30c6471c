"""What the stages of one pair share: the open run, prompts and limits, and how a failure becomes a reason.

session = Session(run, pair, prompts, progress, deadline=Deadline(config.limits.run_seconds))
with session.mark.skippable("acceptance", "greedy", stage="acceptance, p, greedy"):
    failure = session.guard(work)                       # ("oom", "OutOfMemoryError: …"); None when it went well
if session.leaves_out("blocks of timing"): ...          # limits.run_seconds is spent: begin nothing more
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specgauge.configs.schema import check_prompt_tokens
from specgauge.model.arms import arm_names
from specgauge.sweeps.memory import over_memory
from specgauge.sweeps.model_sizes import read_pair_sizes
from specgauge.sweeps.plan import Cell, begun_config, begun_points, plan_cells
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.run.progress import Progress
from specgauge.sweeps.store.checkpoint import Checkpoint, Kind, Label
from specgauge.sweeps.store.files import StorageError
from specgauge.sweeps.store.outcomes import PairOutcome, read_outcomes
from specgauge.sweeps.store.rows import write_jsonl
from specgauge.sweeps.store.rundir import ENVIRONMENT, PROMPTS, prompt_rows, read_environment
from specgauge.sweeps.store.schema import PromptRow, WarningRow
from specgauge.sweeps.store.writer import OpenRun

if TYPE_CHECKING:
    from specgauge.bench.notes import Note
    from specgauge.bench.prompts import Prompt
    from specgauge.bench.timing.blocks import Status
    from specgauge.configs.pairs import PairConfig

ALL_TOO_LARGE = "skipped: no cell fits by estimate"


@dataclass(frozen=True, kw_only=True)
class Part:
    """What of a pair one process measures; what it leaves is measured by others into the same run."""

    acceptance: bool = True
    """Whether texts and acceptance are recorded, and the models held against generate."""
    cells: tuple[str, ...] | None = None
    """The ids of the cells that are timed and decoded; None is all of them."""
    prompts: tuple[Prompt, ...] | None = None
    """Those of the workload; None reads them from its file."""

    @property
    def is_machine_alone(self) -> bool:
        """Whether nothing is measured but the machine itself, for environment.json."""
        return not self.acceptance and self.cells == ()


WHOLE = Part()


def warning_of(note: Note) -> WarningRow:
    """As the run keeps it."""
    return WarningRow(code=note.code, message=note.message, remedy=note.remedy)


class PairPrompts:
    """The prompts of one pair as token ids, encoded once, brought to lengths, and kept in prompts.jsonl."""

    def __init__(self, run: OpenRun, pair: str, prompts: Sequence[Prompt]) -> None:
        self.run, self.pair, self.prompts = run, pair, prompts
        self._encoded: list[list[int]] | None = None
        self._limits: Mapping[str, int | None] = {}
        self._end_tokens: Sequence[int] = ()
        self.notes: list[Note] = []
        self._as_written: list[list[int]] = []

    def __len__(self) -> int:
        """Prompts that fit, each counted once however many lengths it is brought to."""
        return len(self.prompts)

    def fit(self, limits: Mapping[str, int | None], end_tokens: Sequence[int]) -> None:
        """Say, before any are encoded, what the models take.

        limits: tokens that prompt and text may have in each model, by its name; None where unknown.
        end_tokens: the target's.
        """
        self._limits, self._end_tokens = limits, end_tokens

    def encoded(self, tokenizer: Any) -> list[list[int]]:
        """Token ids of the prompts under the target's tokenizer, encoded and written down once.

        Those too long for the models are left out. Where the workload brings them to several lengths, all prompts of
        one length come before those of the next.
        """
        from specgauge.bench.prompts import encode_prompts, fitting_prompts, prompts_of_length

        if self._encoded is None:
            workload = self.run.config.workload
            encoded, lengths = (
                encode_prompts(self.prompts, tokenizer, workload, self.notes.append),
                workload.prompt_tokens,
            )
            for name, limit in self._limits.items():
                check_prompt_tokens(name, workload, limit)
            limits = self._limits if lengths is None else {}
            fitting, notes = fitting_prompts(encoded, limits, self._end_tokens, workload.max_new_tokens)
            self.notes += notes
            self.prompts = [self.prompts[number] for number in fitting]
            self._as_written = [encoded[number] for number in fitting]
            self._encoded = self._as_written
            if lengths is not None:
                self._encoded = [row for length in lengths for row in prompts_of_length(self._as_written, length)]
            self._keep(self._encoded)
        return self._encoded

    def at(self, context: int) -> tuple[list[int], list[list[int]]]:
        """Numbers and ids of the prompts at exactly a context's length: the workload's own, where it has them."""
        from specgauge.bench.prompts import prompts_of_length

        count, lengths = len(self.prompts), self.run.config.workload.prompt_tokens or ()
        first = lengths.index(context) * count if context in lengths else 0
        return list(range(first, first + count)), prompts_of_length(self._as_written, context)

    def category_of(self, number: int) -> str | None:
        """The category of a prompt, by its number; None where it has none."""
        return self.prompts[number % len(self.prompts)].category if self.prompts else None

    def _keep(self, encoded: Sequence[Sequence[int]]) -> None:
        """Write text and token ids, one strict-JSON line a prompt; other pairs' lines stay."""
        kept = prompt_rows(self.run.path)
        rows = [row for row in kept if row.pair != self.pair]
        for number, tokens in enumerate(encoded):
            prompt = self.prompts[number % len(self.prompts)]
            rows.append(
                PromptRow(
                    pair=self.pair, prompt=number, category=prompt.category, text=prompt.text, tokens=tuple(tokens)
                )
            )
        if rows != list(kept):
            write_jsonl(self.run.path / PROMPTS, rows)


class Session:
    """One pair of an open run being measured."""

    def __init__(
        self,
        run: OpenRun,
        pair: PairConfig,
        prompts: Sequence[Prompt],
        progress: Progress,
        *,
        skipped: Sequence[Label] = (),
        deadline: Deadline | None = None,
        part: Part = WHOLE,
    ) -> None:
        """The pair, with what is shared.

        skipped: checkpoints at which an earlier process of this run died.
        deadline: after which nothing is begun.
        part: what of the pair is measured.
        """
        self.part = part
        self.run, self.pair, self.config, self.progress = run, pair, run.config, progress
        self.prompts = PairPrompts(run, pair.name, prompts)
        begun = begun_config(run.config, begun_points(run.journal.latest.values()))
        planned = [cell for cell in plan_cells(begun) if cell.pair == pair.name]
        self.cells = [cell for cell in planned if not part.cells or cell.id in part.cells]
        self.arms = arm_names(run.config.grid.gamma, catches_up=self.cells[0].catches_up)
        self.mark, self.skipped = Checkpoint(run.path), skipped
        self.deadline = deadline or Deadline()
        self.outcome = PairOutcome()
        self.before = read_outcomes(run.path).get(pair.name, PairOutcome())
        """What the last run found."""
        self._too_large: set[str] = set()
        self._opened_s = self.deadline.now_s
        self.left_out_s: dict[str, float | None] = {}
        """What was left out should take, by stage: loading, acceptance, timing, decoding; None where nothing tells."""

    @cached_property
    def cpu_dtype(self) -> dict[str, Any]:
        """What `dtype: auto` is on the CPU in this run, and why; empty where it is the type that is stored."""
        path = self.run.path / ENVIRONMENT
        return (read_environment(path).get("cpu_dtype") if path.exists() else None) or {}

    def stage(self, stage: str, total: int) -> None:
        """A stage of `total` steps begins: shown, and marked in case the process dies in it."""
        self.mark.stage(stage)
        self.progress.start(stage, total)

    def note(self, *notes: Note) -> None:
        """Keep what was met in models or prompts, each once."""
        own = self.outcome.warnings
        own += [row for row in map(warning_of, dict.fromkeys(notes)) if row not in own]

    def skips(self, kind: Kind, name: str) -> bool:
        """Whether an earlier process of this run died in it."""
        return (kind, name) in self.skipped

    def guard(self, work: Callable[[], object]) -> tuple[Status, str] | None:
        """Do the work; (status, reason) when memory ran out or it failed, which is told at once.

        Raises:
            ValueError: bad input.
            StorageError: the disk refused a write.
        """
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
        self.outcome.failed |= status == "failed"
        self.progress.say(f"pair {self.pair.name}: {status}: {reason}")
        return status, reason

    @property
    def fitting(self) -> list[Cell]:
        """The cells that are measured."""
        return [cell for cell in self.cells if cell.id not in self._too_large]

    def too_large(self) -> Iterator[tuple[Cell, str]]:
        """Cells that are skipped from now on, each with its reason, by the sizes that the models' files tell by now.

        Raises:
            ValueError: a model directory is missing or damaged.
        """
        sizes = read_pair_sizes(self.pair)
        for cell in self.fitting:
            reason = over_memory(self.config, sizes, cell)
            if reason is not None:
                self._too_large.add(cell.id)
                yield cell, reason

    def loaded(self) -> None:
        """Say that what comes before all measuring is done: the next run takes as long for it."""
        self.left_out_s["loading"] = self.deadline.now_s - self._opened_s

    def should_take(self, stage: str, seconds: float | None) -> None:
        """Say how long what a stage left out should take; None where nothing tells."""
        before = self.left_out_s.get(stage, 0.0)
        self.left_out_s[stage] = None if before is None or seconds is None else before + seconds

    def leaves_out(self, what: str, stage: Deadline | None = None, *, takes_s: float = 0.0) -> bool:
        """Whether something is not begun, since the seconds of the pair or its stage do not hold it; the outcome says.

        takes_s: what it should take.
        """
        is_left_out = not (stage or self.deadline).holds(takes_s)
        if is_left_out and what not in self.outcome.left_out:
            self.outcome.left_out.append(what)
        return is_left_out
