"""Decoding end to end: batches, blocks with baselines, and what seconds and memory leave out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from specgauge.configs.fields import LARGEST_REPETITIONS as AGAIN
from specgauge.sweeps.run.progress import Limits
from specgauge.sweeps.run.validation import batches
from specgauge.sweeps.store.tables import DecodedLog, read_decoded
from tests.sweeps import made
from tests.sweeps.decoded import key
from tests.sweeps.fake_bench import Decoding, FakeBench, OutOfMemoryError
from tests.sweeps.run.test_validation import (
    ARMS,
    FEW,
    FULL,
    GRID,
    LARGER,
    ONE,
    POINTS,
    blocks_of,
    config,
    decode,
    interrupted,
    use,
)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> FakeBench:
    return use(FakeBench(), monkeypatch)


ROWS = [[number] for number in range(5)]


def test_prompts_of_two_halves_never_share_a_batch_and_the_halves_are_interleaved() -> None:
    """Five prompts, even ones in half 0: each half goes round to its own first prompt, under numbers of its own."""
    found = batches([10, 11, 12, 13, 14], ROWS, [0, 1, 0, 1, 0], batch_size=2, repetitions=1)
    assert [(one.half, one.prompts, one.repetitions) for one in found] == [
        (0, [10, 12], [0, 0]), (1, [11, 13], [0, 0]), (0, [14, 10], [0, AGAIN]),
    ]  # fmt: skip
    assert [one.rows for one in found] == [[[0], [2]], [[1], [3]], [[4], [0]]]
    assert found[2].drawn_as == [14, 15 + 3]


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_more_repetitions_leave_earlier_batches_as_they_are(batch_size: int) -> None:
    few, more = (
        batches([10, 11, 12, 13, 14], ROWS, [0, 1, 0, 1, 0], batch_size=batch_size, repetitions=repetitions)
        for repetitions in (1, 3)
    )
    assert len(more) == 3 * len(few)
    assert more[: len(few)] == few
    for text in (
        [text for one in more for text in zip(one.prompts, one.repetitions, strict=True)],
        [number for one in few for number in one.drawn_as],
    ):
        assert len(set(text)) == len(text)


@pytest.mark.parametrize(("limit", "blocks"), [(99, 10), (None, 10), (2, 2)])
def test_no_more_prompts_than_there_are_or_are_asked_for(
    tmp_path: Path, bench: FakeBench, limit: int | None, blocks: int
) -> None:
    _, heard = decode(tmp_path / "run", config(prompts=limit, batch_size=1, context=64))
    assert heard.steps == blocks


def test_when_time_is_out_every_cell_has_its_first_block(tmp_path: Path, bench: FakeBench) -> None:
    """A block takes over 15 s: after one of each of four cells 30 s are long gone."""
    reasons, heard = decode(tmp_path / "run", config(max_seconds=30))
    assert Counter(point for point, _ in blocks_of(bench)) == dict.fromkeys(POINTS, 1)
    assert reasons == {
        f"greedy, batch size {batch_size}, context {context}": f"{left} blocks left out: validate.max_seconds is spent"
        for batch_size, left in ((1, "3 of 4"), (2, "1 of 2"))
        for context in (64, 65)
    }
    assert heard.said == ["pair p: validate.max_seconds is spent, 8 of 12 blocks left out"]
    assert heard.limits.least == 4
    bench.decoded.clear()
    again, _ = decode(tmp_path / "run", config(max_seconds=30))
    assert bench.decoded == []
    assert again == reasons


def test_seconds_count_over_interruptions(tmp_path: Path, bench: FakeBench) -> None:
    """Plain, loop and generate take 11/2 s each, speculate:2 1/2 + 3/2 + 23/16 + 1 s: two blocks take 41.875 s."""
    made_of = config(batch_size=1, context=64, max_seconds=42)
    with interrupted(bench, after=len(ARMS)):
        decode(tmp_path / "run", made_of)
    reasons, heard = decode(tmp_path / "run", made_of)
    assert (DecodedLog.open(tmp_path / "run").blocks(key()), heard.limits) == (
        3,
        Limits(work_s=42 - 41.875 / 2, least=1),
    )
    assert reasons == {"greedy, batch size 1, context 64": "1 of 4 blocks left out: validate.max_seconds is spent"}


def runs_out_at(bench: FakeBench, *points: tuple[int, int]) -> None:
    def run_out(decoding: Decoding) -> None:
        if decoding.point in points:
            raise OutOfMemoryError("full")

    bench.before_decoding = run_out


@pytest.mark.parametrize(
    ("full", "decoded"), [((2, 64), {(1, 64): 4, (1, 65): 4}), ((1, 65), {(1, 64): 4, (2, 64): 2})]
)
def test_a_cell_that_is_larger_in_every_way_is_not_tried(
    tmp_path: Path, bench: FakeBench, full: tuple[int, int], decoded: dict[tuple[int, int], int]
) -> None:
    """The first block is of (2, 64), the others of (1, 64), (1, 65), (2, 65)."""
    runs_out_at(bench, full)
    reasons, _ = decode(tmp_path / "run")
    where = f"batch size {full[0]}, context {full[1]}"
    assert reasons == {
        f"greedy, {where}": "oom: OutOfMemoryError: full",
        LARGER: f"skipped: out of memory already at {where}",
    }
    assert Counter(point for point, _ in blocks_of(bench)) == decoded
    bench.before_decoding = lambda _: None
    bench.decoded.clear()
    again, _ = decode(tmp_path / "run")
    assert again == {}
    assert {point for point, _ in blocks_of(bench)} == set(POINTS) - set(decoded)


def test_another_sampling_setting_is_tried(tmp_path: Path, bench: FakeBench) -> None:
    """It may need less, as greedy decoding does; here it runs out by itself."""
    runs_out_at(bench, (2, 64))
    sampling = [{"name": "greedy", "temperature": 0}, {"name": "t1"}]
    verify = {"gamma": 2, "prompts": 4, "max_new_tokens": 6}
    reasons, _ = decode(tmp_path / "run", made.config(grid=GRID, sampling=sampling, validate=verify))
    full = {label for label, reason in reasons.items() if reason == "oom: OutOfMemoryError: full"}
    assert full == {FULL, FULL.replace("greedy", "t1")}


def test_one_that_has_shown_that_it_fits_is_resumed(tmp_path: Path, bench: FakeBench) -> None:
    made_of = config(prompts=6)
    with interrupted(bench, after=4 * len(ARMS)):  # a block of every cell
        decode(tmp_path / "run", made_of)
    runs_out_at(bench, (2, 64))
    reasons, _ = decode(tmp_path / "run", made_of)
    assert reasons == {FULL: "oom: OutOfMemoryError: full"}
    assert DecodedLog.open(tmp_path / "run").blocks(key(batch_size=2, start_context=65)) == 3


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_the_first_blocks_of_every_cell_have_them(limit: int, tmp_path: Path, bench: FakeBench) -> None:
    with interrupted(bench, after=2 * len(ARMS) + 1):  # in the second block of the first cell
        decode(tmp_path / "run", config(ONE, baseline_blocks=limit))
    bench.warmed_up.clear()
    decode(tmp_path / "run", config(ONE, baseline_blocks=limit))
    assert set(bench.warmed_up) == set(FEW if limit == 1 else ARMS), "only what is still to be decoded is warmed up"
    requests, _ = read_decoded(tmp_path / "run")
    found = {point: sorted(rows["arm"]) for point, rows in requests.groupby(["start_context", "block"])}
    assert found == {(s, block): sorted(ARMS if block < limit else FEW) for s in (64, 65) for block in range(4)}
