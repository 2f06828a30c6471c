"""Blocks of constant times beside their parts, and what is made of them: ε, errors of acceptance, intervals, summaries.

γ = 2 that accepts everything and nothing in turn, of 12 tokens: rounds start at positions 1, 4, 5, 8 and 9, the second
and the fourth after full acceptance; they commit 3 + 1 + 3 + 1 + 3 tokens. C(2) = 1/4, Δ₂ = 1/16, T_verify = 5/4 and
T_decode = 1: exact in binary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.arms import end_to_end_arms
from specgauge.model.costs import CostTable, RoundCosts, cost_table
from specgauge.model.settings import Point, Provenance
from specgauge.model.stats.bootstrap import interval_around
from specgauge.model.validate import RatioError, ratio_error
from specgauge.sweeps.analysis.counted_rounds import CountedArm, CountedBlock, costs_of_cells, counted_blocks
from specgauge.sweeps.analysis.timings import CellTimings, collect_timings
from specgauge.sweeps.analysis.validation import (
    OTHER_CONTEXTS,
    SAME_CONTEXT,
    acceptance_error,
    batch_spread,
    measured_replicates,
    overheads,
    summarise,
)
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.schema import DecodedKey
from tests.sweeps import made
from tests.sweeps.decoded import Batch, key
from tests.sweeps.made import CATCH_UP_S, T_DECODE_S, T_DRAFT_S, T_VERIFY_S, known, write_run
from tests.sweeps.validation_rows import forced_row, validation_row

TWELVE = Batch(max_new_tokens=12, overhead_s=1 / 16)


def exact(value: float | dict[str, float]) -> Any:
    return pytest.approx(value, rel=1e-14, abs=1e-15)


def costs(times: float, verify_s: Sequence[float]) -> RoundCosts:
    """The constant times, T_verify by γ as given; all of them so many times as long."""
    gammas = np.arange(1, len(verify_s) + 1)
    return RoundCosts(
        gammas=gammas,
        t_decode_s=np.array(times * T_DECODE_S),
        t_draft_total_s=np.array(times * T_DRAFT_S * gammas, dtype=np.float64),
        t_draft_catch_up_s=np.array(times * CATCH_UP_S),
        t_verify_s=times * np.array(verify_s),
        provenance=np.array(Provenance.MEASURED),
    )


CONSTANT = cost_table("p", {Point(batch_size=size, context=64): costs(1.0, [T_VERIFY_S] * 3) for size in (1, 2)})
RISING = cost_table("p", {Point(batch_size=2, context=64 + k): costs(1.0 + k, [1.5, 2.0]) for k in (0, 8)})
"""Every part rises with the context: at 64 + k it is 1 + k times a base."""


def frame(batches: Sequence[Batch], gammas: Sequence[int] = (2,)) -> pd.DataFrame:
    return pd.DataFrame(
        {"block": block, **row}
        for block, batch in enumerate(batches)
        for arm in end_to_end_arms(gammas)
        for row in batch.rounds(arm)
    )


def count(rounds: pd.DataFrame, costs: CostTable = CONSTANT, **changes: Any) -> list[CountedBlock]:
    plain: dict[str, Any] = {"batch_size": 1, "gammas": (2,), "gamma_max": 3, "max_new_tokens": 12}
    return list(counted_blocks(costs, rounds, **{**plain, **changes}))


def test_a_block_of_constant_times() -> None:
    (block,) = count(frame([TWELVE]))
    assert vars(block) == exact({
        "gamma": 2, "block": 0, "rounds": 5, "tokens_per_round": 11 / 5, "t_plain_step_s": 1.0, "t_decode_s": 1.0,
        "t_verify_s": 5 / 4, "t_draft_catch_up_s": 1 / 16, "catch_up_share": 2 / 5, "t_accept_rest_s": 1 / 16,
        "t_costs_s": 3 / 2 + 2 / 5 / 16, "t_round_s": 3 / 2 + 2 / 5 / 16 + 1 / 16,
    })  # fmt: skip
    assert block.speedup_measured == exact(2.2 / (1.5 + 0.025 + 0.0625))
    assert block.t_overhead_s == exact(1 / 16)
    assert block.speedup_from_counts(1 / 16) == exact(block.speedup_measured)
    assert block.speedup_from_counts(0.0) == exact(2.2 / 1.525)
    assert block.speedup_from_counts(-9.0) == exact(2.2 / 1.25)  # no round is shorter than its verification


def test_every_gamma_of_every_block() -> None:
    """ε is in the costs' own time: twice as slow a block has the same, and the same S."""
    slow = Batch(max_new_tokens=12, overhead_s=1 / 16, scale=2.0)
    found = count(frame([TWELVE, slow, TWELVE], gammas=(1, 2, 3)), gammas=(1, 3, 4))
    assert [(block.block, block.gamma) for block in found] == [(b, g) for b in range(3) for g in (1, 3)]
    assert found[0].t_costs_s != found[1].t_costs_s
    assert found[2].t_round_s == exact(2 * found[0].t_round_s)
    assert found[2].speedup_measured == exact(found[0].speedup_measured)
    assert found[2].t_overhead_s == exact(1 / 16)


def test_the_last_rounds_are_left_out() -> None:
    """Of 9 tokens: starts at 1, 4 and 5 have 3 positions left (of 8 after the first); 8 drafts nothing."""
    batch = Batch(max_new_tokens=9)
    (block,) = count(frame([batch]), max_new_tokens=9)
    assert (block.rounds, block.tokens_per_round) == (3, exact(7 / 3))
    (deeper,) = count(frame([batch]), gamma_max=5, max_new_tokens=9)
    assert (deeper.rounds, deeper.tokens_per_round) == (2, 2.0)
    assert count(frame([batch]), gamma_max=9, max_new_tokens=9) == []
    rounds = frame([TWELVE])
    rounds.loc[(rounds["arm"] == "speculate:2") & (rounds["round"] == 2), "gamma"] = 1  # shrunk
    (block,) = count(rounds)
    assert (block.rounds, block.tokens_per_round) == (4, 2.0)


def test_rows_that_ended_end_the_stretch() -> None:
    """Row 1 ends in the third round of γ = 2 and after 4 plain steps: what is left with one row is not compared."""
    rounds = frame([Batch(prompts=(0, 1), max_new_tokens=12)])
    speculated = rounds["arm"] == "speculate:2"
    gone = (rounds["row"] == 1) & (rounds["round"] >= np.where(speculated, 3, 4))
    rounds.loc[rounds["round"] >= np.where(speculated, 3, 4), "active_rows"] = 1
    rounds.loc[(rounds["arm"] == "plain") & (rounds["round"] >= 4), "t_round_s"] = 0.5
    rounds.loc[speculated & (rounds["round"] >= 3), "t_round_s"] = 100.0
    (block,) = count(rounds[~gone], batch_size=2)
    assert (block.rounds, block.tokens_per_round, block.t_plain_step_s) == (3, exact(7 / 3), 1.0)
    assert block.t_round_s == exact(1.5 + 1 / 48)


def ragged(drafted: Sequence[Sequence[int]], accepted: Sequence[Sequence[int]]) -> pd.DataFrame:
    """Rounds of rows that start at contexts 64 and 66, and 11 plain steps of 2 s."""
    rows: list[dict[str, Any]] = []
    position = [1, 3]
    for number, (drafts, passed) in enumerate(zip(drafted, accepted, strict=True)):
        for row in (0, 1):
            at, own = position[row], {"drafted": drafts[row], "accepted": passed[row], "emitted": passed[row] + 1}
            rows.append({"arm": "speculate:2", "round": number, "row": row, "position": at, "context": 63 + at, **own})
            position[row] += own["emitted"]
    speculated = {"gamma_asked": 2, "gamma": 2, "t_round_s": 4.0, "t_accept_s": 0.25, "t_rest_s": 0.5}
    none = dict.fromkeys(("gamma_asked", "gamma", "drafted", "accepted"), 0)
    plain = {"arm": "plain", "emitted": 1, "t_round_s": 2.0, "t_accept_s": None, "t_rest_s": None, **none}
    steps = [
        {"round": step, "row": row, "position": step + 1, "context": 64 + 2 * row + step, **plain}
        for step in range(3)
        for row in (0, 1)
    ]
    return pd.DataFrame([*(row | speculated for row in rows), *steps]).assign(block=0, active_rows=2)


def test_ragged_rows_cost_what_the_longest_does() -> None:
    """Longest rows at 66, 67, 70: 3, 4 and 7 times the base, 2.25 s; Δ₂ after row 1 accepted both in the second round.

    Plain steps at 66, 67 and 68: 3, 4 and 5 s.
    """
    rounds = ragged([(2, 2)] * 3, [(1, 0), (0, 2), (0, 0)])
    (block,) = count(rounds, RISING, batch_size=2)
    assert (block.rounds, block.tokens_per_round) == (3, exact((2 + 1 + 1 + 3 + 1 + 1) / 6))
    assert block.t_decode_s == exact(4.0)
    assert block.t_costs_s == exact((3 * 2.25 + 4 * 2.25 + 7 * (2.25 + 0.0625)) / 3)
    assert block.t_draft_catch_up_s == exact((3 + 4 + 7) * 0.0625 / 3)
    assert (block.catch_up_share, block.t_accept_rest_s) == (exact(1 / 3), 0.75)
    assert block.t_overhead_s == exact(0.75 * 4.0 / 2.0)


def test_a_block_is_as_wide_as_the_row_that_drafted_most() -> None:
    """Lookups of 2, 1 and no drafts: a round without any is a plain step; nothing catches up."""
    rounds = ragged([(2, 0), (0, 1), (0, 0)], [(0, 0), (0, 0), (0, 0)])
    (block,) = count(rounds, RISING, batch_size=2)
    assert block.tokens_per_round == 1.0
    assert block.t_costs_s == exact((3 * (0.25 + 2.0) + 4 * (0.125 + 1.5) + 5 * 1.0) / 3)
    assert block.catch_up_share == 0.0
    (never,) = count(ragged([(0, 0)] * 2, [(0, 0)] * 2), RISING, batch_size=2)
    assert never.t_costs_s == exact((3 + 4) / 2)


def test_phases_that_were_not_timed_are_unknown() -> None:
    """A policy that decodes plainly has none; where it does so for some batches, those of the others count."""
    rounds = frame([TWELVE])
    assert CountedArm.of(rounds, "plain").figures()["t_accept_rest_s"] is None
    plainly = rounds[rounds["arm"] == "plain"].assign(arm="speculate:2", block=1)
    mixed = CountedArm.of(pd.concat([rounds, plainly]), "speculate:2")
    assert (mixed.rounds, mixed.loop_rounds, mixed.figures()["t_accept_rest_s"]) == (5 + 11, 5, exact(1 / 16))


def test_nothing_to_compare_is_no_block() -> None:
    rounds = frame([TWELVE])
    assert count(rounds[rounds["arm"] != "plain"]) == []
    assert count(rounds, gammas=(3,)) == []
    assert count(rounds.iloc[:0]) == []
    assert count(rounds, batch_size=2) == []


def cells(path: Path, **troubles: Any) -> Sequence[CellTimings]:
    config = made.config(grid={"batch_size": 1, "context": [64, 65], "gamma": "1:3"})
    run = write_run(path, config, {}, **troubles)
    return collect_timings(plan_cells(config), config.grid.gamma, run.journal())


def test_the_table_holds_medians(tmp_path: Path) -> None:
    found = known(costs_of_cells(cells(tmp_path / "run", scale={"draft_catch_up": 0.5})))
    at = found.costs(1, [64, 65], [1, 2, 3])
    assert (at.t_decode_s.tolist(), known(at.t_draft_catch_up_s).tolist()) == ([1.0, 1.0], [0.0, 0.0])
    assert at.t_draft_total_s.tolist() == [[0.125, 0.25, 0.375]] * 2
    assert at.t_verify_s.tolist() == [[1.25] * 3] * 2
    cell = cells(tmp_path / "noisy")[0]
    falling = replace(cell.arms["draft"], blocks={0: np.array([[0.25, 0.125, 0.5]])})
    costs = known(costs_of_cells([CellTimings(cell=cell.cell, arms={**cell.arms, "draft": falling})]))
    assert costs.cells.t_draft_total_s.tolist() == [[[0.25, 0.25, 0.5]]]
    out_of_memory = {(1, 65, arm): ("oom", "full") for arm in ("decode", "draft", "draft_catch_up")}
    some = known(costs_of_cells(cells(tmp_path / "some", broken=out_of_memory)))
    assert some.contexts.tolist() == [64]
    everywhere = {(1, context, "decode"): ("oom", "full") for context in (64, 65)}
    assert costs_of_cells(cells(tmp_path / "none", broken=everywhere)) is None
    assert costs_of_cells([]) is None


BLOCK = CountedBlock(
    gamma=2,
    block=0,
    rounds=10,
    tokens_per_round=2.0,
    t_plain_step_s=1.0,
    t_round_s=1.5,
    t_decode_s=1.0,
    t_costs_s=1.5,
    t_verify_s=0.5,
    t_draft_catch_up_s=0.0625,
    catch_up_share=0.25,
    t_accept_rest_s=0.0,
)


def block(overhead_s: float = 0.0, number: int = 0, **changes: Any) -> CountedBlock:
    return replace(BLOCK, block=number, t_round_s=1.5 + overhead_s, t_accept_rest_s=overhead_s, **changes)


def fit(blocks: Mapping[DecodedKey, Sequence[CountedBlock]], *keys: DecodedKey, replicates: int = 0) -> Any:
    found = overheads(blocks, keys or blocks, replicates=replicates, seed=0)
    return {place: (float(one.t_overhead_s[0]), one.fitted_from) for place, one in found.items()}


def test_epsilon_comes_from_the_other_contexts() -> None:
    assert fit({}, key()) == fit({key(): []}) == {}
    assert fit({key(): [block(0.25), block(0.5, 1), block(0.125, 2)]}) == {key(): (0.25, SAME_CONTEXT)}
    untimed = block(math.nan, 1)  # as where no round of a block drafted anything
    assert fit({key(): [block(0.25), untimed]}) == {key(): (0.25, SAME_CONTEXT)}
    assert fit({key(): [untimed]}) == {}
    near, far, never = key(), key(start_context=128), key(start_context=256)
    blocks = {near: [block(0.25)], far: [block(0.5), block(0.75, 1)], never: []}
    assert fit(blocks, near, far, never) == {
        near: (0.625, OTHER_CONTEXTS),
        far: (0.25, OTHER_CONTEXTS),
        never: (0.5, OTHER_CONTEXTS),
    }


@pytest.mark.parametrize("other", [{"pair": "q"}, {"mode": "compile"}, {"sampling": "t1"}, {"batch_size": 2}])
def test_epsilon_is_not_carried_to_what_it_depends_on(other: dict[str, Any]) -> None:
    assert fit({key(): [block(0.25)]}, key(**other), key(**other, start_context=128)) == {}


def test_epsilon_is_carried_to_other_ways_of_drawing_and_verifying() -> None:
    match = key(acceptance_rule="match", draft_sampling="greedy")
    far = key(acceptance_rule="match", start_context=128)
    assert fit({key(): [block(0.25)]}, match, far) == {match: (0.25, SAME_CONTEXT), far: (0.25, OTHER_CONTEXTS)}


def epsilon(blocks: Mapping[DecodedKey, Sequence[CountedBlock]], replicates: int = 4000) -> Any:
    """Of the first cell: the estimate, and the median and the 5 and 95 % quantiles of the replicates."""
    found = overheads(blocks, [key()], replicates=replicates, seed=3)[key()].t_overhead_s
    assert found.shape == (1 + replicates,)
    return float(found[0]), np.quantile(found[1:], [0.5, 0.05, 0.95]).tolist()


def test_blocks_of_epsilon_give_students_t_over_blocks() -> None:
    """Three blocks, γ by γ: medians 3/4, 1, 5/4, so s/√3 = 1/(4√3), and t of 2 degrees is 2.920 at 95 %."""
    blocks = [
        block(at + one, number, gamma=gamma)
        for number, at in enumerate((0.75, 1.0, 1.25))
        for gamma, one in ((1, -0.25), (2, 0.0), (3, 0.25))
    ]
    estimate, (middle, low, high) = epsilon({key(): blocks})
    half = 2.920 * 0.25 / math.sqrt(3)
    assert estimate == 1.0
    assert (middle, low, high) == pytest.approx((1.0, 1 - half, 1 + half), rel=0.1)


def test_blocks_of_fewer_gammas_count_with_those_they_have() -> None:
    estimate, (_, low, _) = epsilon({key(): [block(0.0, 0), block(0.5, 0, gamma=3), block(1.0, 1)]})
    assert (estimate, low) == (0.5, 0.0), "host work takes time"


def test_a_single_block_has_the_spread_that_others_have() -> None:
    """Blocks of two other cells vary by √(2 · 1/4² / 2) = 1/4 of their mean, with 2 degrees; none leaves 1/2."""
    estimate, (middle, low, high) = epsilon({key(): [block(2.0)]})
    assert estimate == 2.0
    assert (middle, low, high) == pytest.approx((2.0, 2 - 1.645, 2 + 1.645), rel=0.1)
    elsewhere = {
        key(pair=pair): [block(mean * (1 - spread), 0), block(mean * (1 + spread), 1)]
        for pair, mean, spread in (("q", 8.0, 0.25 / math.sqrt(2)), ("r", 1.0, 0.25 / math.sqrt(2)), ("s", 0.0, 0.0))
    }
    estimate, (middle, low, high) = epsilon({key(): [block(2.0)]} | elsewhere)
    assert estimate == 2.0
    assert (middle, low, high) == pytest.approx((2.0, 2 - 2.920 * 0.5, 2 + 2.920 * 0.5), rel=0.1)
    assert epsilon({key(): [block(0.0)]}) == (0.0, [0.0] * 3)


def predicted(committed: Sequence[float], starts: Sequence[float]) -> RenewalResult:
    """Sums by prompt at γ = 1 and γ = 2; those of γ = 1 are of no use."""
    shape = (len(starts), 2)
    rounds = np.array([[99.0, one] for one in starts])
    survival = np.zeros((*shape, 2))
    survival[:, 1, 0] = np.array(committed) - np.array(starts)
    others: dict[str, Any] = dict.fromkeys(
        ("lost_bonus", "tested", "accepted", "tested_overlap", "catch_ups"), np.zeros(shape)
    )
    sizes: dict[str, Any] = {"gammas": np.array([1, 2]), "gamma_max": 2, "tokens": np.zeros(len(starts), dtype=int)}
    return RenewalResult(rounds=rounds, starts=rounds, survival=survival, time_s=None, **sizes, **others)


def error(decoded: pd.DataFrame, *, gamma_max: int = 2, limit: int = 12) -> RatioError | None:
    return acceptance_error(decoded, predicted([8.0, 9.0], [4.0, 4.0]), [3, 5], 2, gamma_max=gamma_max, limit=limit)


def test_acceptance_error_is_by_prompt() -> None:
    """Predicted: prompts 3 and 5 commit 17 in 8 rounds. Decoded: both 11 tokens in the 5 rounds of 12 tokens."""
    found = known(error(frame([Batch(prompts=(3, 5), max_new_tokens=12)])))
    assert found == ratio_error({3: (8.0, 4.0), 5: (9.0, 4.0)}, {3: (11.0, 5.0), 5: (11.0, 5.0)})
    assert (found.first, found.second) == (17 / 8, 11 / 5)
    assert found.value == pytest.approx(17 / 8 / (11 / 5) - 1, rel=1e-14)
    # repetitions of a prompt are one cluster
    batches = [Batch(prompts=(3,), max_new_tokens=12), Batch(prompts=(3,), max_new_tokens=12, accepts=(1,))]
    assert error(frame(batches)) == ratio_error({3: (8.0, 4.0), 5: (9.0, 4.0)}, {3: (11.0 + 10.0, 5.0 + 5.0)})


def test_acceptance_is_counted_where_gamma_was_not_shrunk_and_the_largest_has_room() -> None:
    """Starts at 1, 4, 5, 8, 9: with 7 positions left (of 11 after the first) those at 1, 4 and 5."""
    decoded = frame([Batch(prompts=(3,), max_new_tokens=12)])
    with_room = known(error(decoded, gamma_max=7))
    assert with_room.second == 7 / 3
    shrunk = known(error(decoded.assign(gamma=decoded["gamma"].where(decoded["round"] > 0, 1))))
    assert shrunk.second == 8 / 4
    assert error(decoded, gamma_max=12) is error(decoded[decoded["gamma_asked"] == 0]) is error(decoded[:0]) is None


def by(log_speedup: float) -> CountedBlock:
    return replace(BLOCK, t_plain_step_s=BLOCK.t_round_s / BLOCK.tokens_per_round * math.exp(log_speedup))


def measured(
    blocks: Sequence[CountedBlock],
    batches: Any = None,
    *,
    spread: float = math.nan,
    replicates: int = 200,
) -> tuple[float, float, float]:
    batches = np.arange(len(blocks)) if batches is None else np.array(batches)
    found = measured_replicates(blocks, batches, confidence=0.9, replicates=replicates, seed=0, spread=spread)
    return interval_around(found, 0.9)


def test_measured_speedup_pools_blocks() -> None:
    """Ω = (2·10 + 3·30)/40 = 11/4, plain (1·10 + 2·30)/40 = 7/4, round (2·10 + 4·30)/40 = 7/2: S = 11/8."""
    blocks = [
        replace(BLOCK, rounds=10, tokens_per_round=2.0, t_plain_step_s=1.0, t_round_s=2.0),
        replace(BLOCK, rounds=30, tokens_per_round=3.0, t_plain_step_s=2.0, t_round_s=4.0, block=1),
    ]
    value, low, high = measured(blocks)
    assert value == 11 / 8
    assert low < 1.0 < 11 / 8 < 1.5 < high  # either block alone, and wider: two blocks know little
    assert measured(blocks) == (value, low, high)
    equal = measured([block(0.5), block(0.5, 1), block(0.5, 2)])
    assert equal == pytest.approx((1.0, 1.0, 1.0), rel=1e-14)


def test_a_single_batch_is_as_uncertain_as_others_vary() -> None:
    """Log S of batches: 0 and .2 at one γ, 0, .3 and .6 at another: variance (.02 + .18) / 3."""
    several = [[by(0.0), by(0.2)], [by(0.0), by(0.3), by(0.6)], [by(5.0)]]
    spread = batch_spread((own, np.arange(len(own))) for own in several)
    assert spread == pytest.approx(math.sqrt(0.2 / 3))
    value, low, high = measured([block(0.5)], spread=spread, replicates=20_000)
    assert (value, low, high) == pytest.approx((1.0, math.exp(-1.645 * spread), math.exp(1.645 * spread)), rel=0.02)
    assert math.isnan(batch_spread([([block()], np.array([0]))]))


def test_repetitions_of_a_batch_are_no_further_evidence() -> None:
    """Two batches, each decoded three times alike: as uncertain as once each."""
    once, twice = [by(0.0), by(0.2)], [by(0.0), by(0.2)] * 3
    assert measured(twice, [0, 1] * 3) == pytest.approx(measured(once), rel=1e-12)
    assert batch_spread([(twice, np.array([0, 1] * 3))]) == pytest.approx(batch_spread([(once, np.array([0, 1]))]))
    alone = measured([by(0.1)] * 4, [0] * 4, spread=0.2)
    assert alone == pytest.approx(measured([by(0.1)], spread=0.2), rel=1e-12)


def test_a_batch_whose_repetitions_differ_by_more_than_batches_do_is_as_uncertain_as_they() -> None:
    """Log S 0 and .6: a standard deviation of .3 · √2, where batches elsewhere vary by .1."""
    spread = 0.3 * math.sqrt(2)
    value, low, high = measured([by(0.0), by(0.6)], [0, 0], spread=0.1, replicates=20_000)
    assert (low / value, high / value) == pytest.approx((math.exp(-1.645 * spread), math.exp(1.645 * spread)), rel=0.02)


def test_what_no_block_tells_widens_what_was_measured() -> None:
    """Two batches alike say nothing of threads that waited for each other in both."""
    options: dict[str, Any] = {"confidence": 0.9, "replicates": 20_000, "seed": 0, "spread": 0.1}
    found = measured_replicates([by(0.0), by(0.0)], np.array([0, 1]), waiting_spread=0.2, **options)
    assert (found[0], np.log(found[1:]).std()) == (1.0, pytest.approx(0.2, rel=0.03))


def test_measured_intervals_cover_as_often_as_they_say() -> None:
    """Four blocks whose tokens vary by 10 % and times by 3 %; 200 experiments at 90 %."""
    generator = np.random.default_rng(2)
    covered = 0
    for _ in range(200):
        noise = generator.normal(0.0, (0.1, 0.03, 0.03), (4, 3))
        blocks = [
            replace(
                BLOCK,
                rounds=int(generator.integers(20, 35)),
                tokens_per_round=2.0 * math.exp(tokens - 0.005),
                t_plain_step_s=math.exp(plain),
                t_round_s=1.5 * math.exp(round_),
            )
            for tokens, plain, round_ in noise
        ]
        _, low, high = measured(blocks, replicates=100)
        covered += low <= 2 / 1.5 <= high
    assert 0.8 <= covered / 200 <= 0.97


def test_errors_are_means_and_worst_of_absolute_values() -> None:
    rows = [
        validation_row(error=0.1, cost_error=-0.03),
        validation_row(gamma=3, error=-0.02, cost_error=0.01),
        validation_row(context=256, error=0.03, cost_error=0.02),
    ]
    found = known(summarise(rows))
    assert (found.cells, found.rows, found.forced) == (2, 3, 0)
    assert vars(known(found.speedup)) == pytest.approx({"mean": 0.05, "worst": 0.1, "count": 3})
    assert vars(known(found.cost)) == pytest.approx({"mean": 0.02, "worst": 0.03, "count": 3})


@pytest.mark.parametrize(
    ("low", "high", "holds"),
    [(-0.1, 0.1, 1), (0.01, 0.1, 0), (-0.2, -0.01, 0), (0.0, 0.1, 1), (1e-12, 0.1, 1), (-0.1, 0.0, 1)],
)
def test_an_interval_holds_zero_up_to_rounding(low: float, high: float, holds: int) -> None:
    found = known(summarise([validation_row(acceptance_error_low=low, acceptance_error_high=high)]))
    assert (found.acceptance_known, found.acceptance_agrees) == (1, holds)


def test_what_is_unknown_is_not_counted() -> None:
    lacking = dict.fromkeys(("acceptance_error_low", "acceptance_error_high", "rounds_agree", "speedup_whole"))
    rows = [validation_row(**lacking), validation_row(gamma=3, rounds_agree=False, speedup_whole=0.9)]
    found = known(summarise(rows))
    assert (found.acceptance_known, found.rounds_known, found.rounds_agree) == (1, 1, 0)
    assert (found.whole_low, found.whole_high) == (0.9, 0.9)


NOTHING = dict.fromkeys(("error", "cost_error", "speedup_predicted", "speedup_from_counts", "speedup_measured"))
CASES = {
    "several rows": [validation_row(error=0.1, cost_error=-0.03), validation_row(context=256, error=0.03)],
    "one row": [validation_row(error=-0.034, cost_error=0.012)],
    "without costs": [validation_row(error=-0.034, cost_error=None)],
    "forced": [forced_row(), forced_row(gamma=3, cost_error=-0.04)],
    "too short": [validation_row(**NOTHING)],
}


def test_the_line_and_the_mapping_say_the_same(snapshot: Callable[[str, str], None]) -> None:
    assert summarise([]) is None
    lines = []
    for name, rows in CASES.items():
        found = known(summarise(rows))
        content = json.loads(json.dumps(found.as_mapping(), allow_nan=False))
        assert (content["text"], content["rows"]) == (found.text(), len(rows))
        lines.append(f"{name}: {found.text()}")
    forced = known(summarise([forced_row(cost_error=None)]))
    content = forced.as_mapping()
    assert (content["forced"], content["speedup_error_mean"], content["cost_error_worst"]) == (1, None, None)
    snapshot("validation_summary", "\n".join([*lines, ""]))
