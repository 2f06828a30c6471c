from __future__ import annotations

import pytest

from specgauge.sweeps.run import runner, session
from tests.sweeps.fake_bench import SIZES, FakeBench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """What measures in this process, pairs of SIZES."""
    monkeypatch.setattr(runner, "read_sizes", lambda config: {pair.name: SIZES for pair in config.pairs})
    monkeypatch.setattr(session, "read_pair_sizes", lambda pair: SIZES)
    return FakeBench().take_over(monkeypatch)
