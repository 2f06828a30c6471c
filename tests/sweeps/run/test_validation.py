"""What is decoded end to end to validate the prediction, in which order, and what failures and limits leave out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.fields import LARGEST_REPETITIONS as AGAIN
from specgauge.configs.schema import Config
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run import runner
from specgauge.sweeps.run.budget import Deadline
from specgauge.sweeps.run.decoded_cells import batches, neighbours, spread_by_acceptance, validation_cells
from specgauge.sweeps.run.progress import Limits, Progress, Stage
from specgauge.sweeps.run.session import Session
from specgauge.sweeps.run.validation import DECODING_SHARE, Validation
from specgauge.sweeps.store.outcomes import PairOutcome
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey
from specgauge.sweeps.store.tables import DecodedLog, read_decoded
from tests.sweeps import made
from tests.sweeps.decoded import key
from tests.sweeps.fake_bench import Decoding, FakeBench, OutOfMemoryError

GRID = {"batch_size": [1, 2], "context": [64, 65], "gamma": "1:3"}
ONE = {"batch_size": 1, "context": [64, 65], "gamma": "1:3"}
ONE_CELL = {"batch_size": 1, "context": 64, "gamma": "1:3"}
KEPT = ("requests.parquet", "validation.csv", "predictions.csv", "recommendation.yaml")
POINTS = [(1, 64), (1, 65), (2, 64), (2, 65)]
ARMS = ["plain", "loop", "generate", "speculate:2"]
FEW = ["plain", "speculate:2"]
GREEDY = [{"name": "greedy", "temperature": 0}]
OOM, TOO_LARGE = "oom: OutOfMemoryError: full", "skipped: out of memory already at batch size {}, context {}"
FULL, LARGER = "greedy, batch size 2, context 64", "greedy, batch size 2, context 65"


class Heard(Progress):
    """A progress that remembers."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    @property
    def stage(self) -> Stage:
        return self._stage

    def say(self, text: str) -> None:
        self.said.append(text)


def config(grid: Mapping[str, Any] = GRID, sampling: Any = GREEDY, **validate: Any) -> Config:
    plain = {"gamma": 2, "prompts": 4, "max_new_tokens": 6, "max_seconds": None}
    return made.config(grid=grid, sampling=sampling, validate={**plain, **validate})


def ten_prompts(context: int) -> tuple[list[int], list[list[int]]]:
    return list(range(10, 20)), [[number] * context for number in range(10)]


def decode(
    path: Path, made_of: Config | None = None, recommended: Mapping[DecodedKey, int | None] | None = None
) -> tuple[dict[str, str], Heard]:
    """Why cells were not decoded, by their labels, and what was heard."""
    outcome, heard = decoded_in(path, made_of or config(), recommended=recommended)
    return outcome.validation_reasons, heard


def decoded_in(
    path: Path,
    made_of: Config,
    deadline: Deadline | None = None,
    recommended: Mapping[DecodedKey, int | None] | None = None,
) -> tuple[PairOutcome, Heard]:
    heard = Heard()
    with made.begin(path, made_of) as run:
        session = Session(run, run.config.pairs[0], [], heard, deadline=deadline)
        setattr(session.prompts, "at", ten_prompts)  # noqa: B010
        Validation(session).decode(FakeBench().load_pair(session.pair), recommended or {})
    return session.outcome, heard


@contextmanager
def interrupted(bench: FakeBench, *, after: int) -> Iterator[None]:
    """Whatever is decoded inside is interrupted when so many batches have been."""

    def interrupt(_: Decoding) -> None:
        if len(bench.decoded) == after:
            raise KeyboardInterrupt

    bench.before_decoding = interrupt
    with pytest.raises(KeyboardInterrupt):
        yield
    bench.before_decoding = lambda _: None


def blocks_of(bench: FakeBench) -> list[tuple[tuple[int, int], list[str]]]:
    """Places and arms of the blocks decoded, in order."""
    found: list[tuple[tuple[int, int], list[str]]] = []
    for one in bench.decoded:
        if not found or found[-1][0] != one.point or len(found[-1][1]) == len(ARMS):
            found.append((one.point, []))
        found[-1][1].append(one.arm)
    return found


def test_the_recommended_gamma_and_its_neighbours() -> None:
    grid = (1, 2, 3, 4, 6)
    assert [neighbours(gamma, grid) for gamma in (3, 1, 6)] == [(2, 3, 4), (1, 2, 3), (3, 4, 6)]
    assert [neighbours(4, (1, 4)), neighbours(5, (5,))] == [(1, 4), (5,)]


def test_cells_are_those_of_the_grid_unless_named() -> None:
    made_of = made.config(
        grid=GRID,
        sampling=[{"name": "greedy", "temperature": 0}, {"name": "t1"}],
        draft_sampling=["greedy"],
        acceptance_rule=["match", "ratio"],
        validate={"context": 65, "gamma": 2},
    )
    first = {"draft_sampling": "greedy", "acceptance_rule": "ratio", "start_context": 65}
    cells, _ = validation_cells(made_of, "p", {})
    assert [(cell.key, cell.sampling.name) for cell in cells] == [
        (key(sampling=name, batch_size=batch_size, **first), name) for name in ("greedy", "t1") for batch_size in (1, 2)
    ]


def test_gammas_are_those_asked_for_or_recommended_and_a_reason_where_none_is() -> None:
    grid = {"batch_size": 1, "context": [64, 65, 66], "gamma": "1:5"}
    recommended = {key(): 5, key(start_context=65): None}
    cells, reasons = validation_cells(config(grid, gamma=[1, 3]), "p", {})
    assert ([cell.gammas for cell in cells], reasons) == ([(1, 3)] * 3, {})
    cells, reasons = validation_cells(config(grid, gamma="recommended"), "p", recommended)
    assert [(cell.key.start_context, cell.gammas) for cell in cells] == [(64, (3, 4, 5))]
    assert list(reasons) == ["greedy, batch size 1, context 65", "greedy, batch size 1, context 66"]


def test_every_block_of_every_cell_under_every_arm_interleaved(tmp_path: Path, bench: FakeBench) -> None:
    """4 prompts are 4 blocks at batch size 1 and 2 at batch size 2: 12 blocks."""
    reasons, heard = decode(tmp_path / "run")
    assert reasons == {}
    assert (heard.stage.name, heard.stage.total, heard.stage.done) == ("decoding end to end, p", 12, 12)
    assert heard.said == []
    blocks = blocks_of(bench)
    points = [point for point, _ in blocks]
    assert [sorted(points[first:last]) for first, last in ((0, 4), (4, 8), (8, 10), (10, 12))] == [
        POINTS, POINTS, POINTS[:2], POINTS[:2],
    ]  # fmt: skip
    assert points[:4] != points[4:8]
    assert all(sorted(arms) == sorted(ARMS) for _, arms in blocks)
    assert {arms[0] for _, arms in blocks} == set(ARMS)
    assert Counter(bench.warmed_up) == dict.fromkeys(ARMS, 4)
    requests, rounds = read_decoded(tmp_path / "run")
    assert len(requests) == 4 * (4 + 4 + 2 * 2 + 2 * 2)
    assert requests["tokens"].map(len).unique().tolist() == [6]
    assert set(rounds["arm"]) == {"plain", "loop", "speculate:2"}


def test_the_last_batch_goes_round_under_other_random_numbers(tmp_path: Path, bench: FakeBench) -> None:
    """3 prompts, numbers 10, 11, 12, in batches of 2: the last has prompt 10 again, drawn as 20 + 3."""
    decode(tmp_path / "run", config(prompts=3, repetitions=2, batch_size=2, context=64))
    plain = [one for one in bench.decoded if one.arm == "plain"]
    assert [(one.prompts, one.repetition) for one in plain] == [
        ((10, 11), 0), ((12, 23), 0), ((10, 11), 1), ((12, 23), 1),
    ]  # fmt: skip
    requests, rounds = read_decoded(tmp_path / "run")
    first = rounds[(rounds["round"] == 0) & (rounds["arm"] == "plain")]
    for frame in (requests[requests["arm"] == "plain"], first):
        assert list(zip(frame["block"], frame["prompt"], frame["repetition"], strict=True)) == [
            (0, 10, 0), (0, 11, 0), (1, 12, 0), (1, 10, AGAIN), (2, 10, 1), (2, 11, 1), (3, 12, 1),
            (3, 10, 1 + AGAIN),
        ]  # fmt: skip


def test_a_cell_that_fails_loses_no_other(tmp_path: Path, bench: FakeBench) -> None:
    """It fails in its second block: its first stays, and the rest of it is not tried in this run."""

    def fail(decoding: Decoding) -> None:
        if decoding.point == (2, 65) and decoding.arm == "speculate:2" and 12 in decoding.prompts:
            raise RuntimeError("odd")

    bench.before_decoding = fail
    made_of = config(prompts=6)
    reasons, _ = decode(tmp_path / "run", made_of)
    assert reasons == {LARGER: "failed: RuntimeError: odd"}
    log = DecodedLog(tmp_path / "run")
    assert [log.blocks(key(batch_size=b, start_context=s)) for b, s in POINTS] == [6, 6, 3, 1]
    bench.before_decoding = lambda _: None
    bench.decoded.clear()
    again, _ = decode(tmp_path / "run", made_of)
    assert again == {}
    assert Counter(point for point, _ in blocks_of(bench)) == {(2, 65): 2}


def test_an_interruption_keeps_finished_blocks_and_repeats_only_the_running_one(
    tmp_path: Path, bench: FakeBench
) -> None:
    with interrupted(bench, after=3 * len(ARMS) + 2):
        decode(tmp_path / "run")
    assert len(read_decoded(tmp_path / "run")[0].groupby(["batch_size", "start_context", "block"])) == 3
    first = list(bench.decoded[: 3 * len(ARMS)])
    bench.decoded.clear()
    bench.warmed_up.clear()
    _, heard = decode(tmp_path / "run")
    assert len(bench.decoded) == (12 - 3) * len(ARMS)
    assert not set(first) & set(bench.decoded)
    assert heard.stage.done == 12
    assert Counter(bench.warmed_up) == dict.fromkeys(ARMS, len(POINTS)), "every cell is warmed up once"
    assert heard.stage.aside_s > 0.0


def test_a_cell_is_resumed_with_the_gammas_it_was_begun_with(tmp_path: Path, bench: FakeBench) -> None:
    """Timed for longer, a run may recommend another γ; a block that lacked the others' γ could not be compared."""
    asked = config(gamma="recommended", batch_size=1, context=64, grid=GRID | {"gamma": "1:6"})
    with interrupted(bench, after=3 + 3 + 1):
        decode(tmp_path / "run", asked, {key(): 2})
    bench.decoded.clear()
    _, heard = decode(tmp_path / "run", asked, {key(): 5})
    assert {one.arm for one in bench.decoded if ":" in one.arm} == {"speculate:1", "speculate:2", "speculate:3"}
    assert heard.said == [
        "greedy, batch size 1, context 64: resumed with γ = 1, 2, 3, as it was begun; with --fresh it would be 4, 5, 6"
    ]
    requests, _ = read_decoded(tmp_path / "run")
    assert sorted(requests["gamma"].dropna().unique()) == [0, 1, 2, 3]


def test_too_little_memory_for_all_caches_is_told_once(tmp_path: Path, bench: FakeBench) -> None:
    bench.before_decoding = lambda _: setattr(bench, "interleaves", False)
    _, heard = decode(tmp_path / "run", config(batch_size=1, context=64))
    (said,) = heard.said
    assert said.startswith("greedy, batch size 1, context 64: no memory for the caches of all arms at once")


def test_contexts_without_room_are_refused_before_anything_is_measured(tmp_path: Path, bench: FakeBench) -> None:
    bench.max_context = 70
    with pytest.raises(ValueError, match=r"at most 64, .* 6 tokens .*p target takes 70, got 65"):
        runner.run(config(), out=tmp_path / "run")
    assert (bench.measured, bench.recorded, bench.decoded) == ([], [], [])


def test_forced_rates_and_lengths_reach_the_decoder(tmp_path: Path, bench: FakeBench) -> None:
    made_of = made.config(
        sampling=[{"name": "greedy", "temperature": 0.7}],
        draft_sampling=["greedy"],
        acceptance_rule=["match"],
        seed=5,
        workload={"max_new_tokens": 9},
        validate={"gamma": 2, "prompts": 1, "acceptance": [0.5, 0.25]},
        limits={"memory": "3GiB"},
    )
    decode(tmp_path / "run", made_of)
    rates = {"forced_rates": (0.5, 0.25), "draft_sampling": "greedy", "acceptance_rule": "match"}
    assert bench.decoders == [{"temperature": 0.7, "max_new_tokens": 9, "seed": 5, "memory": 3 << 30, **rates}]


def test_epsilon_does_not_change_what_an_interrupted_run_decodes(tmp_path: Path, bench: FakeBench) -> None:
    """Timed costs recommend γ = 2; ε = 8 s a round, known after the first block, γ = 4 (within 1 % of γ = 5)."""
    grid = {"batch_size": 1, "context": 64, "gamma": "1:5"}
    made_of = config(grid, gamma="recommended")
    bench.overhead_s = 8.0
    with interrupted(bench, after=6):
        runner.run(made_of, out=tmp_path / "run")
    assert runner.run(made_of, out=tmp_path / "run") == 0
    assert Counter(one.arm for one in bench.decoded) == dict.fromkeys(
        ["plain", "loop", "generate", "speculate:1", "speculate:2", "speculate:3"], 4
    )
    (entry,) = Run.open(tmp_path / "run").recommendations()
    assert (entry["recommended_gamma"], entry["t_overhead_s"]) == (4, 8.0)


def test_a_run_decodes_what_is_asked_for_and_tells_what_was_not(
    tmp_path: Path, bench: FakeBench, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(decoding: Decoding) -> None:
        if decoding.point == (2, 65):
            raise RuntimeError("odd")

    path, bench.before_decoding, bench.overhead_s = tmp_path / "run", fail, 0.125
    assert runner.run(config(), out=path) == 1
    warnings = {warning["code"]: warning["message"] for warning in Run.open(path).warnings}
    assert warnings["not_decoded"].endswith(f"first {LARGER}: failed: RuntimeError: odd")
    assert "pair p: failed: RuntimeError: odd" in capsys.readouterr().err
    bench.before_decoding = lambda _: None
    assert runner.run(config(), out=path) == 0
    run = Run.open(path)
    assert "not_decoded" not in {warning["code"] for warning in run.warnings}
    found = {(row["batch_size"], row["context"], row["gamma"], row["blocks"]) for row in run.validation()}
    assert found == {(*point, 2, 4 // point[0]) for point in POINTS}
    assert {entry["t_overhead_s"] for entry in run.recommendations()} == {0.125}
    assert set(run.predictions()["label"]) == {""}
    kept = {name: (path / name).read_bytes() for name in KEPT}
    bench.decoded.clear()
    assert runner.run(config(), out=path) == 0
    assert bench.decoded == []
    assert {name: (path / name).read_bytes() for name in kept} == kept


def test_the_first_prompts_decoded_of_each_group_stand_for_all_of_it() -> None:
    accepted = [4.0, 1.0, 3.0, 2.0, 1.0, 3.0]
    assert spread_by_acceptance(["a"] * 6, accepted) == [2, 4, 5, 1, 3, 0]
    assert spread_by_acceptance(["a", "b"] * 3, accepted) == [2, 3, 4, 1, 0, 5], "groups keep their places"
    assert spread_by_acceptance([None] * 3, [math.nan] * 3) == [0, 1, 2], "as they stand where nothing is known"


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
    assert heard.stage.done == blocks


TIMED_S = 4 * DECODING_SHARE / (len(ARMS) * 6)
"""T_decode where a block of four arms of six tokens should take 4 s."""


def timed(path: Path, made_of: Config) -> None:
    with made.begin(path, made_of) as run:
        for cell in plan_cells(made_of):
            made.record_blocks(run.journal, cell, "decode", 3, TIMED_S, 1)


@pytest.mark.parametrize(
    ("limit_s", "begun"),
    [
        (100, {(1, 64): 4, (1, 65): 4, (2, 64): 2, (2, 65): 2}),
        (40, {(1, 64): 3, (1, 65): 3, (2, 64): 2, (2, 65): 2}),
        (39, {(1, 64): 4, (2, 64): 2, (2, 65): 2}),  # not a cell more, and none of fewer blocks
        (16, {(2, 64): 2, (2, 65): 2}),
        (11, {(2, 64): 2}),
        (3, {(2, 64): 1}),  # one is begun, whatever it takes
    ],
)
def test_fewer_cells_rather_than_thinner_ones_and_no_block_that_should_not_fit(
    tmp_path: Path, bench: FakeBench, limit_s: float, begun: dict[tuple[int, int], int]
) -> None:
    made_of = config(max_seconds=limit_s)
    timed(tmp_path / "run", made_of)
    outcome, _ = decoded_in(tmp_path / "run", made_of, Deadline(now=lambda: float(len(bench.decoded))))
    found = Counter(point for point, _ in blocks_of(bench))
    assert (dict(found), outcome.validation_reasons) == (begun, {})
    blocks = found.total()
    told = [(f"{12 - blocks} of 12 blocks of decoding end to end (most of greedy", "validate.max_seconds)")]
    said = [(text.partition(",")[0], text.rpartition("; ")[2]) for text in outcome.left_out]
    assert said == (told if blocks < 12 else [])


def test_a_cell_that_should_not_have_fitted_is_decoded_where_the_others_leave_time(
    tmp_path: Path, bench: FakeBench
) -> None:
    """As above in 39 s, but blocks take 2 s instead of the 4 s that they should."""
    made_of = config(max_seconds=39)
    timed(tmp_path / "run", made_of)
    outcome, _ = decoded_in(tmp_path / "run", made_of, Deadline(now=lambda: len(bench.decoded) / 2))
    points = [point for point, _ in blocks_of(bench)]
    assert Counter(points) == {(1, 64): 4, (1, 65): 4, (2, 64): 2, (2, 65): 2}
    assert points[7:10] == [(1, 65)] * 3, "its first blocks, once the others have theirs"
    assert outcome.left_out == []


@pytest.mark.parametrize(("limit_s", "gammas"), [(36.1, (1, 2, 3)), (35.9, (2,))])
def test_the_gammas_beside_the_recommended_one_are_left_out_before_cells(
    tmp_path: Path, bench: FakeBench, limit_s: float, gammas: tuple[int, ...]
) -> None:
    """Three blocks of two cells with six arms of 1 s take 36 s."""
    made_of = config(ONE, gamma="recommended", max_seconds=limit_s, baseline_blocks=None)
    timed(tmp_path / "run", made_of)
    recommended = {key(draft_sampling="same"): 2, key(draft_sampling="same", start_context=65): 2}
    clock = Deadline(now=lambda: float(len(bench.decoded)))
    outcome, _ = decoded_in(tmp_path / "run", made_of, clock, recommended)
    log = DecodedLog(tmp_path / "run")
    assert [log.gammas(which) for which in recommended] == [gammas] * 2
    lean = "decoding of the γ beside the recommended ones" in outcome.left_out
    assert lean == (len(gammas) == 1)
    requests, _ = read_decoded(tmp_path / "run")
    baselines = requests[requests["arm"] == "loop"]["start_context"]
    assert set(baselines) == ({64} if lean else {64, 65}), "plain decoding is held against others in one cell"


def test_seconds_count_over_interruptions(tmp_path: Path, bench: FakeBench) -> None:
    """Plain, loop and generate take 11/2 s each, speculate:2 1/2 + 3/2 + 23/16 + 1 s: two blocks take 41.875 s."""
    made_of = config(batch_size=1, context=64, max_seconds=42)
    with interrupted(bench, after=len(ARMS)):
        decode(tmp_path / "run", made_of)
    clock = Deadline(now=lambda: 41.875 / 2 / len(ARMS) * len(bench.decoded))
    outcome, heard = decoded_in(tmp_path / "run", made_of, clock)
    assert (DecodedLog(tmp_path / "run").blocks(key()), heard.stage.limits) == (2, Limits(wall_s=42 - 41.875 / 2))
    assert outcome.left_out == [
        "2 of 4 blocks of decoding end to end (most of greedy, batch size 1, context 64; validate.max_seconds)"
    ]


@pytest.mark.parametrize(
    ("full", "others", "changes", "begun"),
    [
        ((2, 64), {LARGER: TOO_LARGE.format(2, 64)}, {}, 0),
        ((1, 65), {LARGER: TOO_LARGE.format(1, 65)}, {}, 0),
        # another sampling setting may need less, as greedy decoding does; here it runs out by itself
        ((2, 64), {LARGER: TOO_LARGE.format(2, 64), FULL.replace("greedy", "t1"): OOM,
                   LARGER.replace("greedy", "t1"): TOO_LARGE.format(2, 64)},
         {"sampling": [{"name": "greedy", "temperature": 0}, {"name": "t1"}]}, 0),
        ((2, 64), {}, {}, 4),  # a larger one has shown that it fits, by its first block
    ],
)  # fmt: skip
def test_a_cell_that_is_larger_in_every_way_than_one_out_of_memory_is_not_tried(
    tmp_path: Path, bench: FakeBench, full: tuple[int, int], others: dict[str, str], changes: dict[str, Any], begun: int
) -> None:
    """The first block is of (2, 64), the others of (1, 64), (1, 65), (2, 65)."""
    made_of = config(prompts=6, **changes)
    if begun:
        with interrupted(bench, after=begun * len(ARMS)):
            decode(tmp_path / "run", made_of)

    def run_out(decoding: Decoding) -> None:
        if decoding.point == full:
            raise OutOfMemoryError("full")

    bench.before_decoding = run_out
    reasons, _ = decode(tmp_path / "run", made_of)
    assert reasons == {"greedy, batch size {}, context {}".format(*full): OOM, **others}
    bench.before_decoding = lambda _: None
    bench.decoded.clear()
    again, _ = decode(tmp_path / "run", made_of)
    assert again == {}
    left_out = {full, (2, 65)} if others else {full}
    assert {point for point, _ in blocks_of(bench)} == left_out


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


def test_decoding_again_comes_out_of_a_third_of_the_seconds_of_a_cell(tmp_path: Path, bench: FakeBench) -> None:
    """Four cells of 300 s each; what a block was decoded again for is no longer there for the next."""
    bench.retaken_s = 8.0
    decode(tmp_path / "run", config(max_seconds=1200))
    spare_s: dict[tuple[int, int], list[float]] = {}
    for (point, _), left_s in zip(blocks_of(bench), bench.spare_s, strict=True):
        spare_s.setdefault(point, []).append(left_s)
    blocks = {1: [100.0, 92.0, 84.0, 76.0], 2: [100.0, 92.0]}
    assert spare_s == {point: pytest.approx(blocks[point[0]]) for point in POINTS}
    bench.spare_s.clear()
    decode(tmp_path / "unlimited", config(max_seconds=None))
    assert set(bench.spare_s) == {math.inf}
