"""Blocks in which plain decoding is held against `generate` and the bare loop: all of them, or the first ones."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from specgauge.sweeps.analysis.decoded import request_figures
from specgauge.sweeps.store.tables import read_decoded
from tests.sweeps.fake_bench import FakeBench
from tests.sweeps.run.test_verifying import ARMS, config, decode, interrupted, use

FEW = ["plain", "speculate:2"]
GRID = {"batch_size": 1, "context": [64, 65], "gamma": "1:3"}


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    return use(FakeBench(), monkeypatch)


def arms_by_block(path: Path) -> dict[tuple[int, int], list[str]]:
    """Context and block, and the arms that are kept of it."""
    found: dict[tuple[int, int], list[str]] = defaultdict(list)
    requests, _ = read_decoded(path)
    for context, block, arm in zip(requests["start_context"], requests["block"], requests["arm"], strict=True):
        found[context, block].append(arm)
    return {place: sorted(arms) for place, arms in found.items()}


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_the_first_blocks_of_every_cell_have_them(limit: int, tmp_path: Path, bench: FakeBench) -> None:
    decode(tmp_path / "run", config(GRID, baseline_blocks=limit))
    assert arms_by_block(tmp_path / "run") == {
        (context, block): sorted(ARMS if block < limit else FEW) for context in (64, 65) for block in range(4)
    }


def test_an_interrupted_run_goes_on_as_it_would_have(tmp_path: Path, bench: FakeBench) -> None:
    asked = config(GRID, baseline_blocks=1)
    decode(tmp_path / "whole", asked)
    with interrupted(bench, after=len(bench.decoded) + 2 * len(ARMS) + 1):  # in the second block of the first cell
        decode(tmp_path / "run", asked)
    assert len(arms_by_block(tmp_path / "run")) == 2
    bench.warmed_up.clear()
    decode(tmp_path / "run", asked)
    assert sorted(bench.warmed_up) == sorted(2 * FEW), "first blocks are kept, the others have no baselines"
    assert arms_by_block(tmp_path / "run") == arms_by_block(tmp_path / "whole")


def test_what_plain_decoding_makes_of_generate_is_read_off_those_blocks(tmp_path: Path, bench: FakeBench) -> None:
    decode(tmp_path / "run", config(GRID, baseline_blocks=1))
    requests, _ = read_decoded(tmp_path / "run")
    cell = requests[requests["start_context"] == 64]
    first = request_figures(cell[cell["block"] == 0])[2]
    found = request_figures(cell)[2]
    assert found["plain_over_generate"] == first["plain_over_generate"]
    assert found["plain_over_loop"] == first["plain_over_loop"]
    assert (found["tokens"], first["tokens"]) == (24, 6)
