from __future__ import annotations

import pytest

from specgauge.sweeps.model_sizes import PairSizes
from specgauge.sweeps.run import runner
from tests.sweeps.fake_bench import FakeBench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    """What measures in this process, pairs of a size that is not known beforehand."""
    unknown = PairSizes(target=None, draft=None)
    monkeypatch.setattr(runner, "read_sizes", lambda config: {pair.name: unknown for pair in config.pairs})
    return FakeBench().take_over(monkeypatch)
