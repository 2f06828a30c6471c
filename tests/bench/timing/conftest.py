"""Cells timed on the fake device: its seconds are those that a block costs, and arms take the times written down."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from specgauge.bench.models.pair import LoadedPair
from specgauge.bench.timing import cell_timer
from specgauge.bench.timing.adaptive import measure_adaptively
from specgauge.bench.timing.blocks import BlockRecord, TimingCell
from specgauge.bench.timing.cell_timer import CellTimer, measure_cells
from specgauge.bench.timing.clock import timed_marks
from specgauge.configs.schema import PrecisionConfig
from specgauge.model.sampling import SamplingSettings
from tests.bench.conftest import FakeClock, FakeDevice

Run = Callable[..., list[BlockRecord]]


def cell(batch_size: int = 1, context: int = 64, chain: str = "argmax") -> TimingCell:
    return TimingCell(
        cell_id=f"{batch_size}-{context}",
        chain=chain,
        settings=SamplingSettings(temperature=0.0 if chain == "argmax" else 1.0),
        batch_size=batch_size,
        context=context,
    )


def measured(pair: LoadedPair, cells: Sequence[TimingCell], journal: Any, gammas: Sequence[int]) -> None:
    """Two blocks of one sample, on the machine's own clock."""
    precision = PrecisionConfig(min_blocks=2, max_blocks=2, block_samples=1)
    options: Any = {"gammas": gammas, "prompts": [[1, 2, 3], [4, 5]], "journal": journal, "seed": 0}
    measure_cells(pair, cells, precision=precision, **options)


@dataclass(kw_only=True)
class FakeBench:
    """Arms that take what ``seconds_of`` (arm, batch size, context) says, unless it raises."""

    device: Any
    batch_size: int
    gamma_max: int
    seconds_of: Callable[[str, int, int], float]
    capacities: dict[str, int] = field(default_factory=dict)

    def sample(self, arm: str, context: int, settings: SamplingSettings, clock: Any) -> list[float]:
        seconds = self.seconds_of(arm, self.batch_size, context)
        steps = self.gamma_max if arm == "draft" else 1
        self.device.now_s = self.device.ready_s
        return timed_marks(clock, [lambda: self.device.launch(seconds, arm)] * steps)


@pytest.fixture
def timed(memory_journal: Any, tiny_model: Any, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Measure cells, by a search where there are questions; the lines that came to the journal.

    Marks are events, as on CUDA: those inside a chain are only meaningful behind the queue.
    """
    device = FakeDevice()
    pair = LoadedPair(name="tiny", target=tiny_model(), draft=tiny_model())
    monkeypatch.setattr(cell_timer, "time", SimpleNamespace(monotonic=lambda: device.now_s))

    def run(
        cells: Sequence[TimingCell],
        seconds_of: Callable[[str, int, int], float],
        *,
        gammas: Sequence[int],
        questions: Any = None,
        **precision: Any,
    ) -> list[BlockRecord]:
        def open_bench(self: CellTimer, states: Sequence[Any], prompts: Any) -> FakeBench:
            batch_size = states[0].cell.batch_size
            return FakeBench(device=device, batch_size=batch_size, gamma_max=max(gammas), seconds_of=seconds_of)

        monkeypatch.setattr(CellTimer, "open_bench", open_bench)
        wanted = {"min_blocks": 3, "block_samples": 2, "max_seconds": None, **precision}
        options: Any = {"gammas": gammas, "prompts": [[1]], "precision": PrecisionConfig(**wanted), "seed": 0}
        options |= {"journal": memory_journal, "clock": FakeClock(device, marks_on_host=False)}
        before = len(memory_journal.lines)
        if questions is None:
            measure_cells(pair, cells, **options)
        else:
            asked = {one.cell_id: questions for one in cells}
            measure_adaptively(pair, cells, questions=asked, **options)
        return list(memory_journal.lines[before:])

    return run
