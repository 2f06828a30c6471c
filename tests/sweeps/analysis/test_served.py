"""S as servers gave it beside its prediction: what its replicates are, and what is taken from blocks of which kind."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specgauge.configs.engines import AT_ZERO
from specgauge.model.search.levels import level_blocks
from specgauge.sweeps.analysis.cell_estimate import ONE_RUN_SPREAD, cell_costs
from specgauge.sweeps.analysis.predictions import AnalysedRun, predict_run
from specgauge.sweeps.analysis.served import (
    mean_replicates,
    paired_blocks,
    speedup_replicates,
    speedups_of_blocks,
    zero_words,
)
from specgauge.sweeps.analysis.timings import ArmTimings, CellTimings
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.recommend import recommend
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.served import Purpose, ServedRow
from tests.benchmarks.served import PACE_SPREAD, measured_run
from tests.sweeps.served.simulated import served_config


def row(gamma: int, block: int, **figures: object) -> ServedRow:
    named: dict[str, object] = {"pair": "a", "sampling": "greedy", "batch_size": 1, "context": 64}
    return ServedRow(**named, gamma=gamma, block=block, **figures)  # type: ignore[arg-type]


def test_blocks_are_paired_by_number_and_purpose_where_both_count() -> None:
    rows = [
        *(row(0, block, token_s=0.02) for block in range(4)),
        *(row(2, block, token_s=0.01) for block in (0, 1)),
        row(2, 2, token_s=0.01, reason="requests failed"),
        row(2, 3, token_s=0.01, purpose="validation"),
    ]
    assert [own.block for _, own in paired_blocks(rows, "timing", 2)] == [0, 1]
    assert paired_blocks(rows, "validation", 2) == []


def test_s_of_a_block_is_that_of_steady_decoding_else_of_whole_streams() -> None:
    told = row(0, 0, token_s=0.02, tpot_s=0.03), row(2, 0, token_s=0.01, tpot_s=0.02)
    not_told = row(0, 0, token_s=0.02, tpot_s=0.03), row(2, 0, tpot_s=0.02)
    assert speedups_of_blocks([told, not_told, (row(0, 0), row(2, 0))]) == [2.0, pytest.approx(1.5)]


def test_a_mean_varies_as_student_s_t_over_its_blocks() -> None:
    found = mean_replicates([0.1, 0.3, 0.2], replicates=20_000, seed=(1,))
    assert found is not None
    assert found[0] == pytest.approx(0.2)
    # t of 2 degrees at .95 is 2.920
    assert np.quantile(found[1:], 0.95) == pytest.approx(0.2 + 2.920 * 0.1 / math.sqrt(3), rel=0.05)
    single = mean_replicates([0.1], replicates=20_000, seed=(1,))
    assert single is not None
    assert single[1:].std() == pytest.approx(ONE_RUN_SPREAD, rel=0.05)
    assert mean_replicates([], replicates=10, seed=(1,)) is None


def test_servers_whose_blocks_interleave_vary_as_the_ratio_of_their_rounds_does() -> None:
    config = served_config((0, 2), precision={"bootstrap_replicates": 20_000, "max_blocks": 3})
    raw = {"decode": np.exp([0.0, 0.2, 0.1]), "round:2": np.exp([0.03, 0.19, 0.14])}  # paces of 0, .2 and .1
    taken = {arm: {block: np.array([[one]]) for block, one in enumerate(own)} for arm, own in raw.items()}
    arms = {
        arm: ArmTimings(arm=arm, status="ok", reason="", blocks=blocks, blocks_as_taken_s=taken[arm])
        for arm, blocks in level_blocks(taken).items()
    }
    cell = CellTimings(cell=next(iter(plan_cells(config))), arms=arms, is_served=True)
    assert cell.is_interleaved
    costs = cell_costs(config, cell, (2,), {})
    assert costs.t_round_s is not None
    ratios = np.log(costs.t_round_s[:, 0] / costs.t_decode_s)
    # Student's t of 2 degrees at .95, and the median of three single samples varies more than their mean
    wider = math.sqrt((1 + math.pi / 2 - 1) / (1 + (math.pi / 2 - 1) / 3))
    expected = 2.920 * wider * np.std([0.03, -0.01, 0.04], ddof=1) / math.sqrt(3)
    assert np.quantile(ratios[1:], 0.95) - ratios[0] == pytest.approx(expected, rel=0.07)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    more: dict[str, dict[str, Any]] = {"timing": {}, "validation": {"validate": {"max_new_tokens": 64}}}
    return {
        name: measured_run(folder / name, 5, sizes=(4,), pace_spread=PACE_SPREAD, **own) for name, own in more.items()
    }


def test_blocks_that_the_prediction_is_made_of_add_nothing_to_it(runs: dict[str, Run]) -> None:
    analysed = AnalysedRun.read(runs["timing"])
    for setting, cell in analysed.points():
        estimate = analysed.estimate(setting, cell)
        assert estimate is not None
        # but for the little that τ² gives where they happen to lie apart
        assert estimate.speedup.speedup == pytest.approx(estimate.speedup.predicted, rel=0.01)
        assert not estimate.speedup.contradicts


def test_blocks_of_validation_are_weighed_with_the_prediction_as_one_number(runs: dict[str, Run]) -> None:
    run = runs["validation"]
    (entry,) = run.recommendations()
    (row,) = [one for one in run.validation() if one["gamma"] == entry["recommended_gamma"]]
    assert row["measured_in"] == "validation"
    ends = sorted([row["speedup_measured"], entry["speedup_predicted"]["value"]])
    assert ends[0] < entry["speedup"]["value"] < ends[1]
    both = entry["speedup"]["high"] / entry["speedup"]["low"]
    assert both < entry["speedup_predicted"]["high"] / entry["speedup_predicted"]["low"]


def test_blocks_of_validation_that_contradict_it_leave_no_decision(runs: dict[str, Run], tmp_path: Path) -> None:
    run = runs["validation"]
    path = tmp_path / "run"
    shutil.copytree(run.path, path)
    served = path / "served.jsonl"
    predicted = run.recommendations()[0]["speedup_predicted"]["value"]
    assert predicted < 0.95
    lines = []
    for line in served.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        if found["purpose"] == "validation" and found["gamma"]:
            found["token_s"] *= predicted**2  # S measured is as far above 1 as the prediction is below it
        lines.append(json.dumps(found))
    served.write_text("\n".join(lines) + "\n", encoding="utf-8")
    predict_run(Run.open(path))
    (entry,) = Run.open(path).recommendations()
    assert entry["decision"] == "undecided"
    assert entry["reason"].startswith("prediction and measurement disagree at gamma")
    low, high = entry["speedup"]["low"], entry["speedup"]["high"]
    assert low < 1 < high
    assert recommend(Run.open(path)).trust.reasons == ("prediction and measurement disagree in 1 of 1 cell",)


def live_blocks() -> tuple[list[ServedRow], dict[str, list[float]]]:
    """A plain server before and after one that takes every γ in turn, whose pace changes from block to block."""
    pace = [0.0, 0.3, -0.2, 0.1]
    logs = {
        "plain": [0.0, 0.1, 0.02, 0.12],
        "zero": [0.1 + one for one in pace],
        "2": [one - 0.4 + off for one, off in zip(pace, (0.01, -0.01, 0.02, 0.0), strict=True)],
        "4": [one - 0.6 + off for one, off in zip(pace, (0.0, 0.02, -0.01, 0.01), strict=True)],
    }
    arms = {"plain": (0, None, None), "zero": (None, AT_ZERO, "live"), "2": (2, None, "live"), "4": (4, None, "live")}
    rows = [
        ServedRow(
            pair="a", sampling="greedy", gamma=arms[name][0], policy=arms[name][1], server=arms[name][2], batch_size=1,
            context=64, block=block, token_s=math.exp(log), tpot_s=1.0,
        )
        for name, own in logs.items()
        for block, log in enumerate(own)
    ]  # fmt: skip
    return rows, logs


def test_gammas_of_one_server_are_held_against_its_gamma_0_and_that_against_the_plain_server() -> None:
    rows, logs = live_blocks()
    means = {name: float(np.mean(own)) for name, own in logs.items()}
    found = {arm: speedup_replicates(rows, "timing", arm, replicates=20_000, seed=(1,)) for arm in (2, 4, AT_ZERO)}
    two, four, zero = (found[arm] for arm in (2, 4, AT_ZERO))
    assert two is not None
    assert four is not None
    assert zero is not None
    assert (two[0], four[0], zero[0]) == pytest.approx(
        (means["plain"] - means["2"], means["plain"] - means["4"], means["plain"] - means["zero"])
    )
    inside = [z - own for z, own in zip(logs["zero"], logs["2"], strict=True)]
    narrow = float(np.quantile((two - zero)[1:], 0.95) - (two - zero)[0])
    assert narrow == pytest.approx(2.353 * np.std(inside, ddof=1) / 2, rel=0.07)  # Student's t of 3 degrees at .95
    wide = float(np.quantile(zero[1:], 0.95) - zero[0])
    alone = [2.353 * float(np.std(logs[name], ddof=1)) / 2 for name in ("plain", "zero")]
    assert (
        max(*alone, 1.645 * ONE_RUN_SPREAD * math.sqrt(2)) < wide < sum(alone) + 1.645 * ONE_RUN_SPREAD * math.sqrt(2)
    )
    assert np.std((four - two)[1:]) < 0.2 * np.std(two[1:])  # they share what the two servers differ by


def test_what_a_plain_server_changed_by_between_its_two_visits_is_in_the_interval_of_s() -> None:
    plain = [row(0, block, token_s=1.0) for block in range(2)], [row(0, block, token_s=1.5) for block in (2, 3)]
    named: dict[str, Any] = {"pair": "a", "sampling": "greedy", "batch_size": 1, "context": 64, "server": "live"}
    zero = [ServedRow(**named, gamma=None, policy=AT_ZERO, block=block, token_s=1.2) for block in range(4)]
    found = {
        name: speedup_replicates(rows, "timing", AT_ZERO, replicates=20_000, seed=(1,))
        for name, rows in {"one visit": [*plain[0], *zero], "two": [*plain[0], *zero, *plain[1]]}.items()
    }
    one, two = found["one visit"], found["two"]
    assert one is not None
    assert two is not None
    assert one[1:].std() == pytest.approx(ONE_RUN_SPREAD * math.sqrt(2), rel=0.03)
    spread = math.sqrt((ONE_RUN_SPREAD**2 + math.log(1.5) ** 2 / 2) / 2 * 1.5)
    within = 1.645 * spread, 1.645 * spread + 2.353 * math.log(1.5) / math.sqrt(3) / 2
    assert within[0] < np.quantile(two[1:], 0.95) - two[0] < within[1]
    assert two[0] == pytest.approx(math.log(1.5) / 2 - math.log(1.2))


def test_what_gamma_0_costs_is_as_timed_where_the_plain_server_did_not_run_on_both_sides() -> None:
    named: dict[str, Any] = {"pair": "a", "sampling": "greedy", "batch_size": 1, "context": 64}

    def blocks(purpose: Purpose, plain_s: tuple[float, float], *, pace: float) -> list[ServedRow]:
        live = {**named, "server": "live", "purpose": purpose}
        zero = [ServedRow(**live, gamma=None, policy=AT_ZERO, block=block, token_s=1.1 * pace) for block in (0, 1)]
        own = [ServedRow(**live, gamma=2, block=block, token_s=0.5 * pace) for block in (0, 1)]
        before, after = (row(0, block, token_s=plain_s[block], purpose=purpose) for block in (0, 1))
        return [before, *zero, *own, after]

    timed, validated = blocks("timing", (1.0, 1.0), pace=1.0), blocks("validation", (1.0, 1.4), pace=1.4)
    for rows, expected in (([*timed, *validated[:-1]], 2.0), ([*timed, *validated], math.sqrt(1.4) / 0.7)):
        found = speedup_replicates(rows, "validation", 2, replicates=100, seed=(1,))
        assert found is not None
        assert math.exp(found[0]) == pytest.approx(expected)


def test_a_gamma_0_that_stands_in_for_plain_decoding_is_paired_block_by_block() -> None:
    rows, logs = live_blocks()
    own = [replace(row, gamma=0, policy=None) for row in rows if row.policy] + [row for row in rows if row.gamma == 2]
    found = speedup_replicates(own, "timing", 2, replicates=20_000, seed=(1,))
    assert found is not None
    assert found[0] == pytest.approx(np.mean(logs["zero"]) - np.mean(logs["2"]))
    assert np.quantile(found[1:], 0.95) - found[0] < 0.03


def test_two_blocks_leave_s_above_0_and_finite() -> None:
    found = mean_replicates([0.0, 9.0], replicates=20_000, seed=(1,))
    assert found is not None
    assert (np.exp(found) > 0).all()
    assert np.isfinite(np.exp(found)).all()


def test_what_gamma_0_costs_by_schedule_is_told_by_batch_size() -> None:
    row = {"policy": AT_ZERO, "batch_size": 1, "context": 64, "speedup_measured": 0.8}
    row |= {"speedup_measured_low": 0.5, "speedup_measured_high": 1.0}
    words = zero_words([row, {**row, "batch_size": 4, "speedup_measured_low": None}, {**row, "policy": "own"}])
    assert words is not None
    assert words.startswith(
        "γ = 0 by schedule takes 1.25 (1.00 to 2.00) of a plain step's time at batch size 1, 1.25 at"
    )
    assert zero_words([{**row, "policy": "own"}]) is None
