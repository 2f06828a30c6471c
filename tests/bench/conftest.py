"""Tiny random models, a device that can be looked into, and a journal in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from specgauge.bench.cache.adapter import ATTENTION_NAMES
from specgauge.bench.models.pair import LoadedModel
from specgauge.bench.timing import neighbours
from specgauge.bench.timing.blocks import BlockRecord
from specgauge.model.stats import disturbance
from tests.bench.tiny_checkpoints import llama


def loaded(network: Any, *, max_context: int | None, name: str = "tiny", eos: Sequence[int] = ()) -> LoadedModel:
    """A network on the CPU as a loaded model, without a tokenizer."""
    no_tokenizer: Any = None
    return LoadedModel(
        name=name,
        model=network,
        tokenizer=no_tokenizer,
        device=torch.device("cpu"),
        max_context=max_context,
        eos_token_ids=tuple(eos),
    )


def exact(network: Any) -> Any:
    """A network in float64 on our attention, ready to be measured."""
    network.double().eval().requires_grad_(False)
    network.set_attn_implementation(ATTENTION_NAMES["sdpa"])
    return network


@pytest.fixture(autouse=True)
def calm_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other program takes the processor, whatever runs beside the tests."""
    monkeypatch.setattr(neighbours, "involuntary_switches", lambda: 0)
    monkeypatch.setattr(neighbours, "steal_s", lambda: 0.0)
    monkeypatch.setattr(disturbance, "LEAST_RUNNING", 0.0)


@pytest.fixture
def tiny_model() -> Callable[..., LoadedModel]:
    """A factory of loaded random Llama models in float64."""

    def make(
        *,
        seed: int = 0,
        vocabulary: int = 11,
        layers: int = 2,
        max_context: int = 256,
        eos: tuple[int, ...] = (),
        name: str = "tiny",
        scale: float = 0.6,
    ) -> LoadedModel:
        own = {"num_hidden_layers": layers, "max_position_embeddings": max_context, "initializer_range": scale}
        model = llama(vocabulary, seed=seed, bos_token_id=None, eos_token_id=None, **own)
        return loaded(exact(model), max_context=max_context, name=name, eos=eos)

    return make


@dataclass
class FakeHost:
    now_s: float = 0.0


@dataclass
class FakeDevice:
    """A device with a queue: a launch returns at once, its work ends later. Times in seconds."""

    host: FakeHost = field(default_factory=FakeHost)
    ready_s: float = 0.0
    """When the queue will be empty."""
    log: list[str] = field(default_factory=list)

    @property
    def now_s(self) -> float:
        return self.host.now_s

    @now_s.setter
    def now_s(self, now_s: float) -> None:
        self.host.now_s = now_s

    def launch(self, work_s: float, name: str = "", launch_s: float = 0.0) -> None:
        self.now_s += launch_s
        self.ready_s = max(self.ready_s, self.now_s) + work_s
        self.log.append(name)


@dataclass
class FakeClock:
    """Reads a fake device: by the host's clock, or by events behind the queue as on CUDA."""

    device: FakeDevice
    marks_on_host: bool = True

    def synchronize(self) -> None:
        self.device.now_s = max(self.device.now_s, self.device.ready_s)

    def mark(self) -> float:
        return self.device.now_s if self.marks_on_host else max(self.device.ready_s, self.device.now_s)

    def elapsed_s(self, start: float, end: float) -> float:
        return end - start


class MemoryJournal:
    """Blocks kept in memory, in the order recorded; refuses to keep one twice."""

    def __init__(self) -> None:
        self.lines: list[BlockRecord] = []

    def blocks(self, cell_id: str, arm: str) -> dict[int, BlockRecord]:
        return {line.block: line for line in self.lines if line.cell_id == cell_id and line.arm == arm}

    def begin(self, cell_id: str, arm: str, block: int) -> None:
        assert block not in self.blocks(cell_id, arm), "measured already"

    begin_arm = begin

    def record(self, block: BlockRecord) -> None:
        assert block.block not in self.blocks(block.cell_id, block.arm), "measured twice"
        self.lines.append(block)


@pytest.fixture
def memory_journal() -> MemoryJournal:
    return MemoryJournal()
