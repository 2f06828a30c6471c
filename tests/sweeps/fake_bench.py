"""A stand-in for the parts of `bench` a run calls, without torch: constant times and acceptance, faults on demand.

FakeBench(fails_at={(4, 256): OutOfMemoryError("full")}).take_over(monkeypatch)  # then runner.run measures with it
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specgauge.bench.prompts import Prompt
from specgauge.bench.timing.blocks import BlockRecord, Status, TimingCell, first_line
from specgauge.configs.schema import Config
from specgauge.model.arms import Arm, arm_names
from specgauge.sweeps.model_sizes import ModelSize, PairSizes
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.run.pair import PairRun
from specgauge.sweeps.run.progress import Progress
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.store.outcomes import PairOutcome
from tests.sweeps import decoded, made

PROMPTS: list[Any] = [SimpleNamespace(text=f"text {number}", category=None) for number in range(10)]
SIZE = ModelSize(parameters=10, dtype="float32", layers=1, kv_heads=1, head_dim=1)
SIZES = PairSizes(target=SIZE, draft=SIZE)
# weights 2 · 40 bytes; keys and values 2 models · 2 · 128 slots · B · 4 bytes: 2048 at a context of 64


class OutOfMemoryError(RuntimeError):
    pass


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """One batch under one arm."""

    arm: str
    point: tuple[int, int]
    """Batch size and context."""
    prompts: tuple[int, ...]
    """The numbers that random numbers follow from."""
    repetition: int
    policy: Any = None
    """What chooses γ under an adaptive arm."""


class FakeEndToEnd:
    """Every text is as long as it may be; rounds accept everything and nothing in turn, and take their parts and ε."""

    def __init__(self, bench: FakeBench, pair: Any, settings: Any, **options: Any) -> None:
        self.bench, self.options = bench, options
        bench.decoders.append({"temperature": settings.temperature, **options})

    @property
    def interleaves(self) -> bool:
        return self.bench.interleaves

    def warm_up(self, arm: str, prompts: Sequence[Sequence[int]], *, gamma_max: int = 0) -> None:
        assert (gamma_max > 0) == arm.startswith("adaptive:")
        self.bench.warmed_up.append(arm)

    def host_costs(self, prompts: Sequence[Sequence[int]], *, gamma: int) -> Any:
        self.bench.host_costs_at.append(gamma)
        return SimpleNamespace(t_overhead_s=self.bench.overhead_s, t_early_stop_check_s=self.bench.look_s)

    def run(
        self,
        arms: Sequence[str],
        prompts: Sequence[Sequence[int]],
        *,
        prompt_numbers: Sequence[int],
        repetition: int,
        policies: Mapping[str, Any],
        window: int,
        progress: Callable[[float], object],
        spare_s: float,
    ) -> dict[str, Any]:
        (context,) = {len(prompt) for prompt in prompts}
        assert len(set(prompt_numbers)) == len(prompt_numbers) == len(prompts)
        assert window > 0
        self.bench.spare_s.append(spare_s)
        found: dict[str, Any] = {}
        for arm in arms:
            policy = policies.get(arm)
            asked = Decoding(
                arm=arm, point=(len(prompts), context), prompts=tuple(prompt_numbers), repetition=repetition,
                policy=policy,
            )  # fmt: skip
            self.bench.before_decoding(asked)
            self.bench.decoded.append(asked)
            progress(len(found) / len(arms))
            batch = decoded.Batch(
                prompts=prompt_numbers,
                repetition=repetition,
                context=context,
                max_new_tokens=self.options["max_new_tokens"],
                overhead_s=self.bench.overhead_s,
                policies={} if policy is None else {Arm.parse(arm).policy or "": policy},
                look_s=self.bench.look_s,
            )
            found[arm] = SimpleNamespace(
                requests=tuple(
                    decoded.Request(**row | {"retaken_s": self.bench.retaken_s}) for row in batch.requests(arm)
                ),
                rounds=tuple(decoded.Round(**row) for row in batch.rounds(arm)),
            )
        return found


@dataclass
class FakeBench:
    """What goes wrong, and a count of what was done."""

    fails_at: dict[tuple[int, int], Exception] = field(default_factory=dict)
    """What happens in cells, by (batch_size, context)."""
    load_error: dict[str, Exception] = field(default_factory=dict)
    """By pair."""
    acceptance_error: Exception | None = None
    environment: dict[str, Any] = field(default_factory=lambda: dict(made.ENVIRONMENT))
    measured: list[tuple[int, int, str, int]] = field(default_factory=list)
    """(batch_size, context, arm, block) in the order measured."""
    recorded: list[int] = field(default_factory=list)
    """Texts of every pass that recorded acceptance."""
    loaded: list[str] = field(default_factory=list)
    threads: list[int | None] = field(default_factory=list)
    decoded: list[Decoding] = field(default_factory=list)
    """Batches decoded end to end, in order."""
    decoders: list[dict[str, Any]] = field(default_factory=list)
    """Temperature and options of each decoder that was made."""
    spare_s: list[float] = field(default_factory=list)
    """What decoding each batch again might take."""
    retaken_s: float = 0.0
    """What it took."""
    interleaves: bool = True
    """Whether the caches of all arms fit at once."""
    before_decoding: Callable[[Decoding], object] = lambda _: None
    """Called before each of them; what it raises is what happens."""
    warmed_up: list[str] = field(default_factory=list)
    """Arms that were warmed up."""
    overhead_s: float = 0.0
    """ε of every round that is decoded."""
    look_s: float = 0.0
    """What a look costs."""
    host_costs_at: list[int] = field(default_factory=list)
    """The γ at which the host's costs were measured."""
    max_context: int | None = None
    """Tokens that the models take."""
    notes: tuple[Any, ...] = ()
    """What is met when a model is loaded."""

    def use_threads(self, threads: int | None, recorded: Any = None) -> dict[int, float]:
        self.threads.append(threads)
        return {}

    def load_pair(self, pair: Any, reach: int | None = None, **_: Any) -> Any:
        if pair.name in self.load_error:
            raise self.load_error[pair.name]
        self.loaded.append(pair.name)
        target, draft = (self.model(f"{pair.name} {role}") for role in ("target", "draft"))
        return SimpleNamespace(
            name=pair.name,
            target=target,
            draft=draft,
            draft_model=draft,
            models=(target, draft),
            notes=self.notes,
            placement="float32 on cpu",
            drafts_with_model=pair.drafts_with_model,
            transfers=False,
        )

    def model(self, name: str) -> Any:
        return SimpleNamespace(model=None, tokenizer=None, name=name, max_context=self.max_context, eos_token_ids=())

    def load_model(self, spec: Any, *, role: str, name: str, **_: Any) -> Any:
        self.loaded.append(role)
        return self.model(name)

    def measure_acceptance(self, target: Any, draft: Any, texts: Sequence[Any], *args: Any, **options: Any) -> Any:
        if self.acceptance_error is not None:
            raise self.acceptance_error
        if callable(target):
            target(), draft()
        self.recorded.append(len(texts))
        frame = made.acceptance_frame(1 + max(text.prompt for text in texts), 16)
        return frame[frame["prompt"].isin([text.prompt for text in texts])]

    def measure_cells(self, pair: Any, cells: Sequence[TimingCell], **options: Any) -> None:
        """As the real one: block by block, every arm of every cell, nothing that is recorded."""
        arms, journal = arm_names(options["gammas"]), options["journal"]
        given_up = {
            cell.cell_id
            for cell in cells
            for arm in arms
            if any(block.status != "ok" for block in journal.blocks(cell.cell_id, arm).values())
        }
        sizes = options.get("batch_sizes") or {cell.batch_size for cell in cells}
        for cell, block, arm in product(cells, range(options["precision"].min_blocks), arms):
            if cell.batch_size not in sizes or cell.cell_id in given_up or block in journal.blocks(cell.cell_id, arm):
                continue
            point, record = (cell.batch_size, cell.context), partial(BlockRecord, cell_id=cell.cell_id)
            error = self.fails_at.get(point)
            if error is not None:
                given_up.add(cell.cell_id)
                status: Status = "oom" if isinstance(error, OutOfMemoryError) else "failed"
                for name in arms:
                    if not journal.blocks(cell.cell_id, name):
                        journal.record(record(arm=name, block=0, status=status, reason=first_line(error)))
                continue
            journal.begin(cell.cell_id, arm, block)
            samples_s = [made.marks(arm, max(options["gammas"]))] * 4
            first_call_s = 9.0 if block == 0 else None
            journal.record(record(arm=arm, block=block, status="ok", samples_s=samples_s, first_call_s=first_call_s))
            self.measured.append((*point, arm, block))
            options["progress"](arm)

    def measure_pair(
        self, path: Path, config: Config, progress: Progress | None = None, deadline: Deadline | None = None
    ) -> PairOutcome:
        """Measure the first pair of a configuration into a run directory."""
        with made.begin(path, config) as run:
            session = Session(run, config.pairs[0], PROMPTS, progress or Progress(), deadline=deadline)
            return PairRun(session).measure()

    def take_over(self, monkeypatch: pytest.MonkeyPatch) -> FakeBench:
        """Stand for bench in this process until the test ends."""
        for name, module in self.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        return self

    def modules(self) -> dict[str, ModuleType]:
        """The modules as a run imports them."""

        def generate_plain(model: Any, prompts: Sequence[Any], settings: Any, **options: Any) -> list[Any]:
            return [SimpleNamespace(prompt=number) for number in options["prompt_numbers"]]

        modules: dict[str, ModuleType] = {}
        for where, content in {
            "timing.cell_timer.measure_cells": self.measure_cells,
            "timing.cell_timer.check_contexts": lambda *_: None,
            "cpu_type.fast_dtype": lambda: {"dtype": "float32", "why": "it is"},
            "cpu_type.bfloat16_instructions": lambda: None,
            "device.is_out_of_memory": lambda error: isinstance(error, OutOfMemoryError),
            "models.pair.load_pair": self.load_pair,
            "models.generation.generation_notes": lambda *_: [],
            "models.pair.load_model": self.load_model,
            "models.load_errors.check_vocabularies": lambda target, draft, pair: None,
            "models.pair.refuse_mode_of": lambda pair, mode: None,
            "models.pair.pair_in_mode": lambda pair, mode: pair,
            "acceptance.teacher_forced.measure_acceptance": self.measure_acceptance,
            "acceptance.lookups.pair_acceptance": lambda pair, *rest, **_: self.measure_acceptance(
                pair.target, pair.draft, *rest
            ),
            "decoding.plain.generate_plain": generate_plain,
            "end_to_end.generate_check.generate_notes": lambda *_, **__: [],
            "end_to_end.end_to_end.EndToEnd": partial(FakeEndToEnd, self),
            "end_to_end.end_to_end.shuffled": lambda arms, *, seed, block: [
                arms[(i + block) % len(arms)] for i in range(len(arms))
            ],
            "prompts.Prompt": Prompt,
            "prompts.read_prompts": lambda workload, tell=None, seed=0: PROMPTS,
            "prompts.encode_prompts": lambda prompts, *_: [[number] for number in range(len(prompts))],
            "prompts.fitting_prompts": lambda prompts, *_: (list(range(len(prompts))), []),
            "prompts.prompts_of_length": lambda prompts, length: [list(prompt) * length for prompt in prompts],
            "environment.collect_environment": lambda: self.environment,
            "environment.use_threads": self.use_threads,
            "environment.threads_in_use": nullcontext,
            "environment.fastest_threads_in_use": nullcontext,
        }.items():
            module, _, name = f"specgauge.bench.{where}".rpartition(".")
            setattr(modules.setdefault(module, ModuleType(module)), name, content)
        return modules
