"""A stand-in for the parts of `bench` a run calls, without torch: constant times and acceptance, faults on demand.

install(FakeBench(oom_at={(4, 256)}))        # then specgauge.sweeps.run.runner.run(...) measures with it
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from specgauge.bench.timing.blocks import BlockRecord, Status, TimingCell
from specgauge.model.arms import Arm, arm_names
from tests.sweeps import decoded, made


class OutOfMemoryError(RuntimeError):
    pass


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """One batch under one arm."""

    arm: str
    batch_size: int
    context: int
    prompts: tuple[int, ...]
    """The numbers that random numbers follow from."""
    repetition: int
    policy: Any = None
    """What chooses γ under an adaptive arm."""

    @property
    def point(self) -> tuple[int, int]:
        return self.batch_size, self.context


@dataclass(frozen=True)
class FakeEndToEnd:
    """Every text is as long as it may be; rounds accept everything and nothing in turn, and take their parts and ε."""

    bench: FakeBench
    settings: Any
    options: dict[str, Any]
    interleaves: bool = True

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
    ) -> dict[str, Any]:
        assert len({len(prompt) for prompt in prompts}) == 1
        assert len(set(prompt_numbers)) == len(prompt_numbers) == len(prompts)
        assert window > 0
        return {arm: self._run(arm, prompts, prompt_numbers, repetition, policies.get(arm)) for arm in arms}

    def _run(
        self, arm: str, prompts: Sequence[Sequence[int]], numbers: Sequence[int], repetition: int, policy: Any
    ) -> Any:
        size, context = len(prompts), len(prompts[0])
        asked = Decoding(
            arm=arm, batch_size=size, context=context, prompts=tuple(numbers), repetition=repetition, policy=policy
        )
        self.bench.before_decoding(asked)
        self.bench.decoded.append(asked)
        batch = decoded.Batch(
            prompts=numbers,
            repetition=repetition,
            context=context,
            max_new_tokens=self.options["max_new_tokens"],
            overhead_s=self.bench.overhead_s,
            policies={} if policy is None else {Arm.parse(arm).policy or "": policy},
            look_s=self.bench.look_s,
        )
        return SimpleNamespace(
            requests=tuple(decoded.Request(**row) for row in batch.requests(arm)),
            rounds=tuple(decoded.Round(**row) for row in batch.rounds(arm)),
        )


@dataclass
class FakeBench:
    """What goes wrong, and a count of what was done."""

    oom_at: set[tuple[int, int]] = field(default_factory=set)
    """(batch_size, context) of cells that run out of memory."""
    fail_at: set[tuple[int, int]] = field(default_factory=set)
    interrupt_after: int | None = None
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
    """Tokens that the target takes."""

    def load_pair(self, pair: Any) -> Any:
        if pair.name in self.load_error:
            raise self.load_error[pair.name]
        self.loaded.append(pair.name)
        draft = SimpleNamespace(tokenizer=None, name=f"{pair.name} draft")
        return SimpleNamespace(
            name=pair.name,
            target=SimpleNamespace(tokenizer=None, name=f"{pair.name} target", max_context=self.max_context),
            draft=draft,
            draft_model=draft,
        )

    def load_model(self, spec: Any, *, role: str, name: str) -> Any:
        self.loaded.append(role)
        return SimpleNamespace(tokenizer=None, name=name)

    def measure_acceptance(self, target: Any, draft: Any, texts: Sequence[Any], *args: Any, **options: Any) -> Any:
        if self.acceptance_error is not None:
            raise self.acceptance_error
        if callable(target):
            target(), draft()
        self.recorded.append(len(texts))
        return made.acceptance_frame(len(texts), 16)

    def measure_cells(self, pair: Any, cells: Sequence[TimingCell], **options: Any) -> None:
        """As the real one: block by block, every arm of every cell, nothing that is recorded."""
        gammas, journal = tuple(options["gammas"]), options["journal"]
        given_up: set[str] = set()
        for cell in cells:
            if any(b.status != "ok" for arm in arm_names(gammas) for b in journal.blocks(cell.cell_id, arm).values()):
                given_up.add(cell.cell_id)
        for cell in cells:
            for block in range(options["precision"].min_blocks):
                for arm in arm_names(gammas):
                    if cell.cell_id not in given_up and block not in journal.blocks(cell.cell_id, arm):
                        self._measure(cell, arm, block, gammas, journal, given_up, options["progress"])

    def _measure(
        self,
        cell: TimingCell,
        arm: str,
        block: int,
        gammas: tuple[int, ...],
        journal: Any,
        given_up: set[str],
        progress: Callable[[str], None],
    ) -> None:
        point, record = (cell.batch_size, cell.context), partial(BlockRecord, cell_id=cell.cell_id)
        if point in self.oom_at or point in self.fail_at:
            status: Status = "oom" if point in self.oom_at else "failed"
            reason = "OutOfMemoryError: full" if status == "oom" else "RuntimeError: bad"
            given_up.add(cell.cell_id)
            for name in arm_names(gammas):
                if not journal.blocks(cell.cell_id, name):
                    journal.record(record(arm=name, block=0, status=status, reason=reason))
            return
        journal.begin(cell.cell_id, arm, block)
        if len(self.measured) == self.interrupt_after:
            raise KeyboardInterrupt
        samples_s = [made.marks(arm, max(gammas))] * 4
        first_call_s = 9.0 if block == 0 else None
        journal.record(record(arm=arm, block=block, status="ok", samples_s=samples_s, first_call_s=first_call_s))
        self.measured.append((*point, arm, block))
        progress(arm)

    def end_to_end(self, pair: Any, settings: Any, **options: Any) -> FakeEndToEnd:
        return FakeEndToEnd(self, settings, options)

    def take_over(self, monkeypatch: pytest.MonkeyPatch) -> FakeBench:
        """Stand for bench in this process until the test ends."""
        for name, module in self.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
        return self

    def modules(self) -> dict[str, ModuleType]:
        """The modules as a run imports them."""

        def generate_plain(model: Any, prompts: Sequence[Any], settings: Any, **options: Any) -> list[Any]:
            return [SimpleNamespace(prompt=number) for number in options["prompt_numbers"]]

        def read_prompts(workload: Any, tell: Any = None) -> list[Any]:
            return [SimpleNamespace(text=f"text {number}", category=None) for number in range(10)]

        contents: dict[str, dict[str, Any]] = {
            "timing.cell_timer": {"measure_cells": self.measure_cells, "check_contexts": lambda *_: None},
            "device": {"is_out_of_memory": lambda error: isinstance(error, OutOfMemoryError)},
            "models.pair": {
                "load_pair": self.load_pair,
                "load_model": self.load_model,
                "check_vocabularies": lambda target, draft, pair: None,
                "refuse_mode_of": lambda pair, mode: None,
                "pair_in_mode": lambda pair, mode: pair,
            },
            "acceptance.teacher_forced": {"measure_acceptance": self.measure_acceptance},
            "acceptance.lookups": {
                "pair_acceptance": lambda pair, *rest, **_: self.measure_acceptance(pair.target, pair.draft, *rest)
            },
            "decoding.plain": {"generate_plain": generate_plain},
            "end_to_end.end_to_end": {
                "EndToEnd": self.end_to_end,
                "shuffled": lambda arms, *, seed, block: [arms[(i + block) % len(arms)] for i in range(len(arms))],
            },
            "prompts": {
                "read_prompts": read_prompts,
                "encode_prompts": lambda prompts, tokenizer, workload: [[1, 2, 3]] * len(prompts),
                "prompts_of_length": lambda prompts, length: [[1] * length] * len(prompts),
            },
            "environment": {"collect_environment": lambda: self.environment, "use_threads": self.threads.append},
        }
        found = {f"specgauge.bench.{name}": content for name, content in contents.items()}
        modules = {name: ModuleType(name) for name in found}
        for name, module in modules.items():
            module.__dict__.update(found[name])
        return modules


def install(fake: FakeBench) -> FakeBench:
    """Put the fake in the place of `specgauge.bench.*` in this process."""
    sys.modules.update(fake.modules())
    return fake
