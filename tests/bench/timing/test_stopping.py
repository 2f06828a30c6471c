from __future__ import annotations

from typing import Any

from specgauge.bench.timing.blocks import BlockRecord, StoppingRule, TimingCell
from specgauge.configs.schema import PrecisionConfig
from specgauge.model.arms import arm_names
from specgauge.model.sampling import SamplingSettings


def test_lookups_are_known_well_enough_when_the_round_is(memory_journal: Any) -> None:
    """Lookups of 1 to 3 µs, known to ±50 %, in rounds of a second."""

    def record(arm: str, *samples: float) -> None:
        for block in (0, 1):
            marks = [[one] for one in samples]
            memory_journal.record(BlockRecord(cell_id="c", arm=arm, block=block, status="ok", samples_s=marks))

    record("decode", *[1.0] * 5)
    record("verify:1", *[1.5] * 5)
    record("draft", 1e-6, 1e-6, 2e-6, 3e-6, 3e-6)
    cell = TimingCell(cell_id="c", chain="argmax", settings=SamplingSettings(temperature=0.0), batch_size=1, context=8)

    def stopping(*, looks_up: bool) -> StoppingRule:
        precision = PrecisionConfig(min_blocks=2, relative_ci=0.01)
        arms = arm_names([1], catches_up=not looks_up)
        return StoppingRule(arms=arms, precision=precision, journal=memory_journal, looks_up=looks_up)

    assert stopping(looks_up=True).converged(cell)
    record("draft_catch_up", *[1e-6] * 5)
    assert not stopping(looks_up=False).converged(cell)
