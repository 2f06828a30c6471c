"""Memory that runs out while cells are decoded end to end: which larger cells are not tried, and what is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from specgauge.sweeps.run import runner
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.tables import DecodedLog
from tests.sweeps import made
from tests.sweeps.decoded import key
from tests.sweeps.fake_bench import Decoding, FakeBench, OutOfMemoryError
from tests.sweeps.run.test_verifying import GRID, blocks_of, config, decode, use

FULL = "greedy, batch size 2, context 64"
LARGER = "greedy, batch size 2, context 65"
SKIPPED = "skipped: out of memory already at batch size 2, context 64"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    return use(FakeBench(), monkeypatch)


def runs_out_at(bench: FakeBench, *places: tuple[int, int]) -> None:
    def run_out(decoding: Decoding) -> None:
        if decoding.place in places:
            raise OutOfMemoryError("full")

    bench.before_decoding = run_out


def test_a_larger_cell_is_not_tried(tmp_path: Path, bench: FakeBench) -> None:
    """The first turn is (2, 64), (1, 64), (1, 65), (2, 65)."""
    runs_out_at(bench, (2, 64), (2, 65))
    verification, _ = decode(tmp_path / "run")
    assert verification.reasons == {FULL: "oom: full", LARGER: SKIPPED}
    assert Counter(place for place, _ in blocks_of(bench)) == {(1, 64): 4, (1, 65): 4}
    bench.before_decoding = lambda _: None
    bench.decoded.clear()
    again, _ = decode(tmp_path / "run")
    assert again.reasons == {}
    assert Counter(place for place, _ in blocks_of(bench)) == {(2, 64): 2, (2, 65): 2}


def test_one_that_is_larger_in_one_way_and_smaller_in_the_other_is_tried(tmp_path: Path, bench: FakeBench) -> None:
    runs_out_at(bench, (1, 65))
    verification, _ = decode(tmp_path / "run")
    assert verification.reasons == {
        "greedy, batch size 1, context 65": "oom: full",
        LARGER: "skipped: out of memory already at batch size 1, context 65",
    }
    assert Counter(place for place, _ in blocks_of(bench)) == {(1, 64): 4, (2, 64): 2}


def test_another_sampling_setting_is_tried(tmp_path: Path, bench: FakeBench) -> None:
    """It may need less, as greedy decoding does; here it runs out by itself."""
    runs_out_at(bench, (2, 64))
    sampling = [{"name": "greedy", "temperature": 0}, {"name": "t1"}]
    verification, _ = decode(
        tmp_path / "run",
        made.config(grid=GRID, sampling=sampling, validate={"gamma": 2, "prompts": 4, "max_new_tokens": 6}),
    )
    assert {words for words, reason in verification.reasons.items() if reason == "oom: full"} == {
        FULL,
        "t1, batch size 2, context 64",
    }


def test_one_that_has_shown_that_it_fits_goes_on(tmp_path: Path, bench: FakeBench) -> None:
    made_of = config(prompts=6)

    def fail(decoding: Decoding) -> None:
        if decoding.place == (2, 64) or (decoding.place == (2, 65) and 12 in decoding.prompts):
            raise RuntimeError("odd")

    bench.before_decoding = fail
    decode(tmp_path / "run", made_of)
    log = DecodedLog.open(tmp_path / "run")
    assert [log.blocks(key(batch_size=2, start_context=context)) for context in (64, 65)] == [0, 1]
    runs_out_at(bench, (2, 64))
    verification, _ = decode(tmp_path / "run", made_of)
    assert verification.reasons == {FULL: "oom: full"}
    assert DecodedLog.open(tmp_path / "run").blocks(key(batch_size=2, start_context=65)) == 3


def test_the_warning_counts_them(tmp_path: Path, bench: FakeBench) -> None:
    runs_out_at(bench, (2, 64))
    assert runner.run(config(), out=tmp_path / "run") == 0
    (message,) = [one["message"] for one in Run.open(tmp_path / "run").warnings if one["code"] == "not_decoded"]
    assert message == (f"pair p: 2 cells were decoded in part or not at all, first {FULL}: oom: OutOfMemoryError: full")
