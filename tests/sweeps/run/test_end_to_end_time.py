"""Seconds for decoding end to end: what they leave out, what is decoded all the same, and how they are told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from specgauge.sweeps.run.progress import Limits
from specgauge.sweeps.store.tables import DecodedLog
from tests.sweeps.decoded import key
from tests.sweeps.fake_bench import FakeBench
from tests.sweeps.run.test_verifying import ARMS, PLACES, blocks_of, config, decode, interrupted, use


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    return use(FakeBench(), monkeypatch)


def test_when_time_is_out_every_cell_has_its_first_block(tmp_path: Path, bench: FakeBench) -> None:
    """A block takes over 15 s: after one of each of four cells 30 s are long gone."""
    verification, heard = decode(tmp_path / "run", config(max_seconds=30))
    assert Counter(place for place, _ in blocks_of(bench)) == dict.fromkeys(PLACES, 1)
    assert verification.reasons == {
        "greedy, batch size 1, context 64": "3 of 4 blocks left out: validate.max_seconds is spent",
        "greedy, batch size 1, context 65": "3 of 4 blocks left out: validate.max_seconds is spent",
        "greedy, batch size 2, context 64": "1 of 2 blocks left out: validate.max_seconds is spent",
        "greedy, batch size 2, context 65": "1 of 2 blocks left out: validate.max_seconds is spent",
    }
    assert heard.said == ["pair p: validate.max_seconds is spent, 8 of 12 blocks left out"]
    assert heard.limits.least == 4
    bench.decoded.clear()
    again, _ = decode(tmp_path / "run", config(max_seconds=30))
    assert bench.decoded == []
    assert again.reasons == verification.reasons


def test_time_counts_over_interruptions(tmp_path: Path, bench: FakeBench) -> None:
    """Plain, loop and generate take 11/2 s each, speculate:2 1/2 + 3/2 + 23/16 + 1 s: two blocks take 41.875 s."""
    made_of = config(batch_size=1, context=64, max_seconds=42)
    with interrupted(bench, after=len(ARMS)):
        decode(tmp_path / "run", made_of)
    verification, heard = decode(tmp_path / "run", made_of)
    assert (DecodedLog.open(tmp_path / "run").blocks(key()), heard.limits) == (
        3,
        Limits(work_s=42 - 41.875 / 2, least=1),
    )
    assert verification.reasons == {
        "greedy, batch size 1, context 64": "1 of 4 blocks left out: validate.max_seconds is spent"
    }
