"""Blocks of constant times beside their parts: every figure by hand, exact in binary.

γ = 2 that accepts everything and nothing in turn, of 12 tokens: rounds start at positions 1, 4, 5, 8 and 9, the second
and the fourth after full acceptance; they commit 3 + 1 + 3 + 1 + 3 tokens. C(2) = 1/4, Δ₂ = 1/16, T_verify = 5/4 and
T_decode = 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specgauge.model.arms import end_to_end_arms
from specgauge.model.costs import CostTable, RoundCosts, cost_table
from specgauge.model.settings import Point, Provenance
from specgauge.sweeps.analysis.counted_rounds import CountedArm, CountedBlock, counted_blocks, measured_costs
from specgauge.sweeps.analysis.timings import CellTimings, collect_timings
from specgauge.sweeps.plan import plan_cells
from tests.sweeps import made
from tests.sweeps.decoded import Batch
from tests.sweeps.made import CATCH_UP_S, T_DECODE_S, T_DRAFT_S, T_VERIFY_S, known, write_run

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
    assert block.t_overhead_implied_s == exact(1 / 16)
    assert block.speedup_from_counts(1 / 16) == exact(block.speedup_measured)
    assert block.speedup_from_counts(0.0) == exact(2.2 / 1.525)
    assert block.speedup_from_counts(-9.0) == exact(2.2 / 1.25)  # no round is shorter than its verification


def test_every_gamma_of_every_block() -> None:
    """ε is in the parts' own time: twice as slow a block implies the same, and the same S."""
    slow = Batch(max_new_tokens=12, overhead_s=1 / 16, scale=2.0)
    found = count(frame([TWELVE, slow, TWELVE], gammas=(1, 2, 3)), gammas=(1, 3, 4))
    assert [(block.block, block.gamma) for block in found] == [(b, g) for b in range(3) for g in (1, 3)]
    assert found[0].t_costs_s != found[1].t_costs_s
    assert found[2].t_round_s == exact(2 * found[0].t_round_s)
    assert found[2].speedup_measured == exact(found[0].speedup_measured)
    assert found[2].t_overhead_implied_s == exact(1 / 16)


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
    assert block.t_overhead_implied_s == exact(4.0 * 4.0 / 2.0 - block.t_costs_s)


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
    found = known(measured_costs(cells(tmp_path / "run", scale={"draft_catch_up": 0.5})))
    at = found.costs(1, [64, 65], [1, 2, 3])
    assert (at.t_decode_s.tolist(), known(at.t_draft_catch_up_s).tolist()) == ([1.0, 1.0], [0.0, 0.0])
    assert at.t_draft_total_s.tolist() == [[0.125, 0.25, 0.375]] * 2
    assert at.t_verify_s.tolist() == [[1.25] * 3] * 2
    cell = cells(tmp_path / "noisy")[0]
    falling = replace(cell.arms["draft"], blocks={0: np.array([[0.25, 0.125, 0.5]])})
    costs = known(measured_costs([CellTimings(cell=cell.cell, arms={**cell.arms, "draft": falling})]))
    assert costs.cells.t_draft_total_s.tolist() == [[[0.25, 0.25, 0.5]]]
    out_of_memory = {(1, 65, arm): ("oom", "full") for arm in ("decode", "draft", "draft_catch_up")}
    some = known(measured_costs(cells(tmp_path / "some", broken=out_of_memory)))
    assert some.contexts.tolist() == [64]
    everywhere = {(1, context, "decode"): ("oom", "full") for context in (64, 65)}
    assert measured_costs(cells(tmp_path / "none", broken=everywhere)) is None
    assert measured_costs([]) is None
