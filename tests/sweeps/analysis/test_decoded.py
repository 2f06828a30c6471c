"""Runs whose texts were decoded end to end in constant times: predictions with ε, and every figure beside its measure.

γ = 2, 12 tokens a text, drafts accepted all and none in turn: 5 rounds commit 11 tokens, 2 of them catch up. Parts give
a round 3/2 s and Δ₂ = 1/16 s; acceptance is 1/2 everywhere, so Ω(2) = 7/4 and π = A₂ = 1/4 are predicted. Then
adaptive policies over the same texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.configs.schema import Config
from specgauge.model.arms import Arm
from specgauge.model.decision import DISAGREE, OPTIMISTIC
from specgauge.model.policies.feedback import HeuristicPolicy
from specgauge.model.policies.policy import GammaPolicy
from specgauge.model.policies.stopping import SvipPolicy
from specgauge.model.validate import ratio_error
from specgauge.sweeps.analysis.decoded import empty_row, request_figures
from specgauge.sweeps.analysis.predictions import AnalysedRun, predict, predict_run, recommended_gammas
from specgauge.sweeps.analysis.validation import OTHER_CONTEXTS, SAME_CONTEXT, SINGLE_BATCH_SPREAD
from specgauge.sweeps.replay import replay_run, replays_json, replays_text
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey, TunedCell, TunedHalf, ValidationRow
from specgauge.sweeps.store.tables import DecodedLog, keep_tuned
from tests.sweeps import made
from tests.sweeps.decoded import Batch, key, write_blocks
from tests.sweeps.made import acceptance_frame, exact, known

Blocks = Mapping[DecodedKey, Sequence[Batch]]
MEASURED = 2.2 / (1.5 + 0.025 + 0.0625)


def config(batch_size: Any = 1, context: Sequence[int] = (64, 65)) -> Config:
    grid = {"batch_size": batch_size, "context": list(context), "gamma": "1:3"}
    return made.config(grid=grid, validate={"gamma": 2, "max_new_tokens": 12})


def batch(**changes: Any) -> Batch:
    plain = {"max_new_tokens": 12, "overhead_s": 1 / 16}
    return Batch(**{**plain, **changes})


def run(path: Path, blocks: Blocks, made_of: Config | None = None, gammas: Sequence[int] = (2,), **rest: Any) -> Run:
    """A run in which half of all drafts pass, with batches decoded; `rest` as `made.write_run` takes it."""
    opened = made.write_run(path, made_of or config(), **{"acceptance": {"greedy": acceptance_frame(10, 16)}, **rest})
    write_blocks(path, blocks, gammas)
    return opened


def both() -> dict[DecodedKey, list[Batch]]:
    """Two blocks, of prompts 0 and 1, at each of the two contexts."""
    return {
        key(start_context=context): [batch(context=context, prompts=(prompt,)) for prompt in (0, 1)]
        for context in (64, 65)
    }


def test_every_figure_by_hand(tmp_path: Path) -> None:
    first, second = predict(run(tmp_path / "run", both())).validation
    omega = known(ratio_error(dict.fromkeys(range(10), (7 / 4, 1.0)), {0: (11.0, 5.0), 1: (11.0, 5.0)}))
    predicted = 1.75 / (1.5 + 1 / 4 / 16 + 1 / 16)
    assert first == empty_row(key()) | {
        "gamma": 2, "blocks": 2, "rounds": 10, "tokens": 24, "lossless": True,
        "t_overhead_s": exact(1 / 16), "overhead_from": OTHER_CONTEXTS,
        "t_accept_rest_s": exact(1 / 16), "t_round_s": exact(1.5875),
        "tokens_per_round_predicted": exact(7 / 4), "tokens_per_round_counted": 11 / 5,
        "acceptance_error": exact(1.75 / 2.2 - 1), "acceptance_error_low": exact(omega.low or 0.0),
        "acceptance_error_high": exact(omega.high or 0.0), "speedup_predicted": exact(predicted),
        "speedup_from_counts": exact(MEASURED), "speedup_measured": exact(MEASURED),
        "speedup_measured_low": exact(MEASURED), "speedup_measured_high": exact(MEASURED), "cost_error": exact(0.0),
        "error": exact(predicted / MEASURED - 1), "speedup_whole": exact(11.5 / (0.5 + 5 * 1.5625 + 0.125)),
        "plain_over_generate": 1.0, "plain_over_loop": 1.0, "rounds_counted": 10, "rounds_expected": 10.0,
        "rounds_agree": True,
    }  # fmt: skip
    assert (second["context"], second["t_overhead_s"]) == (65, exact(1 / 16))


def test_predictions_take_epsilon_and_lose_their_label(tmp_path: Path) -> None:
    found = predict(run(tmp_path / "run", both()))
    for row in found.rows:
        gamma = row["gamma"]
        t_round_s = gamma / 8 + 2.0**-gamma / 16 + 1.25 + 1 / 16
        assert (row["t_overhead_s"], row["label"]) == (exact(1 / 16), "")
        assert row["t_round_s"] == exact(t_round_s)
        assert row["speedup"] == exact((2 - 2.0**-gamma) / t_round_s)
        assert row["speedup_low"] == exact(row["speedup"])
    assert [entry["t_overhead_s"] for entry in found.recommendations] == [exact(1 / 16)] * 2
    assert recommended_gammas(Run.open(tmp_path / "run"), "p") == {key(): 2, key(start_context=65): 2}


def test_epsilon_is_held_out_where_it_was_fitted(tmp_path: Path) -> None:
    """Beyond its parts a round has 1/8 s at 64, 1/16 s at 65: each has the other's, 66 has the median."""
    blocks = {key(): [batch(overhead_s=1 / 8)], key(start_context=65): [batch(context=65)]}
    opened = run(tmp_path / "run", blocks, config(context=(64, 65, 66)))
    found = predict(opened)
    near, far = found.validation
    parts_s = 1.5 + 0.025
    assert (near["t_overhead_s"], near["overhead_from"]) == (exact(1 / 16), OTHER_CONTEXTS)
    assert near["cost_error"] == exact((parts_s + 1 / 8) / (parts_s + 1 / 16) - 1)
    assert (far["t_overhead_s"], far["cost_error"]) == (exact(1 / 8), exact((parts_s + 1 / 16) / (parts_s + 1 / 8) - 1))
    overheads = {entry["context"]: entry["t_overhead_s"] for entry in found.recommendations}
    assert overheads == {64: exact(1 / 16), 65: exact(1 / 8), 66: exact(3 / 32)}


def test_one_context_has_its_own_epsilon_and_says_so(tmp_path: Path) -> None:
    found = predict(run(tmp_path / "run", {key(): [batch()]}, config(batch_size=[1, 2], context=(64,))))
    (row,) = found.validation
    assert (row["overhead_from"], row["blocks"], row["cost_error"]) == (SAME_CONTEXT, 1, exact(0.0))
    ends = [row[f"speedup_measured{end}"] / row["speedup_measured"] for end in ("_low", "_high")]
    assert np.log(ends) == pytest.approx(
        [-1.645 * SINGLE_BATCH_SPREAD, 1.645 * SINGLE_BATCH_SPREAD], rel=0.4
    )  # few replicates
    known = {entry["batch_size"]: entry["t_overhead_s"] for entry in found.recommendations}
    assert known == {1: exact(1 / 16), 2: None}
    assert {(row["batch_size"], row["label"]) for row in found.rows} == {(1, ""), (2, OPTIMISTIC)}


def test_a_prediction_that_decoding_contradicts_decides_nothing(tmp_path: Path) -> None:
    """Rounds at 65 spend 2 s beyond their parts, so that S is predicted far too low at 64 and too high at 65."""
    blocks = {key(): [batch()], key(start_context=65): [batch(context=65, overhead_s=2.0)]}
    opened = run(tmp_path / "run", blocks, config(batch_size=[1, 2], context=(64, 65)))
    near, far, *others = sorted(predict(opened).recommendations, key=lambda one: (one["batch_size"], one["context"]))
    for entry, measured in ((near, MEASURED), (far, 2.2 / (1.5 + 0.025 + 2.0))):
        assert entry["decision"] == "undecided"
        assert entry["reason"].startswith(f"{DISAGREE} at gamma 2: predicted ")
        predicted, combined = entry["speedup_predicted"]["value"], entry["speedup"]["value"]
        assert min(predicted, measured) < combined < max(predicted, measured)
        assert entry["speedup"]["low"] < min(predicted, measured) * 1.05
        assert entry["speedup"]["high"] > max(predicted, measured) / 1.05
    assert all(entry["speedup"] == entry["speedup_predicted"] for entry in others)


def test_a_batch_catches_up_when_any_row_was_fully_accepted(tmp_path: Path) -> None:
    """B = 2: predicted π = 1 − (3/4)² = 7/16, whatever was counted."""
    blocks = {key(batch_size=2): [batch(prompts=(0, 1))]}
    (row,) = predict(run(tmp_path / "run", blocks, config(batch_size=2, context=(64,)))).validation
    assert (row["rounds"], row["tokens_per_round_counted"], row["t_round_s"]) == (5, 11 / 5, exact(1.5875))
    assert row["speedup_predicted"] == exact(1.75 / (1.5 + 7 / 16 / 16 + 1 / 16))


def forced_run(path: Path) -> Run:
    """One block whose acceptance was forced by coin."""
    opened, arms = run(path, {}), ("plain", "speculate:2")
    forced = {"lossless": False, "why_not_lossless": "forced", "expected_rounds": None}
    requests = [row | (forced if arm != "plain" else {}) for arm in arms for row in batch().requests(arm)]
    DecodedLog(path).append(key(), 0, requests, [row for arm in arms for row in batch().rounds(arm)])
    return opened


def test_forced_acceptance_says_nothing_of_the_draft(tmp_path: Path) -> None:
    found = predict(forced_run(tmp_path / "run"))
    (row,) = found.validation
    assert (row["lossless"], row["why_not_lossless"]) == (False, "forced")
    assert (row["speedup_measured"], row["cost_error"]) == (exact(MEASURED), exact(0.0))
    unknown = ("tokens_per_round_predicted", "acceptance_error", "speedup_predicted", "error", "rounds_agree")
    assert [row[name] for name in unknown] == [None] * len(unknown)
    assert "not_lossless" in [warning["code"] for warning in found.warnings]


@pytest.mark.parametrize(
    ("missing", "batches", "expected"),
    [
        (
            {"acceptance": {}},
            [batch()],
            {"cost_error": 0.0, "speedup_measured": MEASURED, "tokens_per_round_predicted": None, "error": None},
        ),
        (
            {"only": set()},  # no cell was timed
            [batch()],
            {"acceptance_error": 1.75 / 2.2 - 1, "speedup_whole": 11.5 / 8.4375, "blocks": None, "t_overhead_s": None},
        ),
        (
            {},
            [batch(max_new_tokens=1)] * 2,
            {"tokens": 2, "rounds_counted": 0, "rounds_agree": True, "speedup_whole": 1.0, "speedup_measured": None},
        ),
    ],
    ids=["acceptance", "timings", "texts of more than one token"],
)
def test_what_is_missing_leaves_the_rest_known(
    tmp_path: Path, missing: dict[str, Any], batches: Sequence[Batch], expected: dict[str, Any]
) -> None:
    found = predict(run(tmp_path / "run", {key(): batches}, **missing))
    (row,) = found.validation
    for name, value in expected.items():
        assert row[name] == (value if value is None else exact(value))
    if not missing:
        assert {row["label"] for row in found.rows} == {OPTIMISTIC}


def test_what_was_decoded_is_written_down(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", both(), gammas=(1, 3))
    found = predict_run(opened)
    assert [(row["context"], row["gamma"]) for row in found.validation] == [(64, 1), (64, 3), (65, 1), (65, 3)]
    for row in found.validation:
        assert (row["cost_error"], row["rounds_standard_errors"]) == (exact(0.0), None)
        assert row["tokens_per_round_predicted"] == exact(2 - 2.0 ** -row["gamma"])
    assert opened.validation() == found.validation
    assert [entry["t_overhead_s"] for entry in opened.recommendations()] == [exact(1 / 16)] * 2


def request(arm: str, tokens: int = 5, **changes: Any) -> dict[str, Any]:
    """A row of a batch that took 1 s of prefill and 4 s to decode."""
    plain = {
        "block": 0, "arm": arm, "gamma": Arm.parse(arm).gamma, "row": 0, "prompt": 0, "tokens": [1] * tokens,
        "prefill_s": 1.0, "decode_s": 4.0, "rounds": tokens - 1, "expected_rounds": None, "lossless": True,
        "expected_starts": None, "expected_committed": None,
        "why_not_lossless": None, "against_plain": None,
    }  # fmt: skip
    return {**plain, **changes}


def figures(rows: Sequence[dict[str, Any]], gamma: int = 2) -> dict[str, Any]:
    return request_figures(pd.DataFrame(rows))[gamma]


def test_whole_requests_count_prefills_and_ragged_ends() -> None:
    """Plain: 8 tokens in 5 s. γ = 2: 9 tokens in 2 + 1 s, its prefill twice as long; rows of a batch share its time."""
    rows = [
        request("plain", 5, row=0),
        request("plain", 3, row=1),
        request("speculate:2", 5, row=0, prefill_s=2.0, decode_s=1.0),
        request("speculate:2", 4, row=1, prefill_s=2.0, decode_s=1.0),
    ]
    found = figures(rows)
    assert found["tokens"] == 9
    assert found["speedup_whole"] == pytest.approx((9 / 3) / (8 / 5), rel=1e-14)


def test_blocks_that_an_arm_lacks_are_not_held_against_it() -> None:
    rows = [request("plain"), request("plain", block=1, decode_s=400.0), request("speculate:2", block=0)]
    assert figures(rows)["speedup_whole"] == 1.0
    assert figures([request("speculate:2")])["speedup_whole"] is None


def test_baselines_are_medians_over_blocks() -> None:
    """Plain: 4 tokens after the first in 4 s; generate takes 2, 4 and 8 s, the loop 5 s in one block."""
    rows = [request("plain", block=block) for block in range(4)]
    rows += [request("generate", block=block, decode_s=s, rounds=None) for block, s in enumerate((2.0, 4.0, 8.0))]
    rows += [request("loop", block=3, decode_s=5.0), request("speculate:2")]
    found = figures(rows)
    assert (found["plain_over_generate"], found["plain_over_loop"]) == (1.0, 1.25)
    # rows of a batch are added up: plain writes 4 + 2 tokens after the first ones, generate 4 + 4, in 4 s each
    rows = [request(arm, tokens, row=row) for arm, row, tokens in [("plain", 0, 5), ("plain", 1, 3)]]
    rows += [request("generate", 5, row=row, rounds=None) for row in (0, 1)] + [request("speculate:2")]
    assert (figures(rows)["plain_over_generate"], figures(rows)["plain_over_loop"]) == (0.75, None)


def test_rounds_are_held_against_those_expected_by_prompt() -> None:
    """Prompts 0 and 1 take 2 and 1 rounds too many, prompt 2 takes 3 too few: 0 in all."""
    counts = [(0, 5, 4.5), (0, 6, 4.5), (1, 5, 4.0), (2, 5, 8.0)]
    rows = [
        request("speculate:2", prompt=prompt, block=number, rounds=rounds, expected_rounds=expected)
        for number, (prompt, rounds, expected) in enumerate(counts)
    ]
    found = figures(rows)
    assert (found["rounds_counted"], found["rounds_expected"]) == (21, 21.0)
    assert (found["rounds_standard_errors"], found["rounds_agree"]) == (0.0, True)
    rows[3]["expected_rounds"] = 5.0
    assert figures(rows)["rounds_standard_errors"] == pytest.approx(3 / (3**0.5 * 1.0), rel=1e-14)


def test_texts_are_counted_by_how_they_stand_to_plain_decoding_and_one_lossy_row_makes_all_lossy() -> None:
    standings = ["same", "tie", "same", None, "differs", "same"]
    rows = [request("speculate:12", block=block, against_plain=standing) for block, standing in enumerate(standings)]
    lossy: dict[str, Any] = {"lossless": False, "why_not_lossless": "forced"}
    found = request_figures(pd.DataFrame([*rows, request("speculate:3"), request("speculate:3", row=1, **lossy)]))
    assert list(found) == [3, 12]
    assert [found[12][name] for name in ("texts_same", "texts_tied", "texts_differ", "lossless")] == [3, 1, 1, True]
    assert (found[3]["lossless"], found[3]["why_not_lossless"], found[3]["rounds_counted"]) == (False, "forced", 8)
    assert not {"texts_same", "rounds_expected", "rounds_agree"} & set(found[3]), "nobody asked, nobody expected"


# The schedule drafts 2, 3, 2, 3, 2: 5 rounds commit 11 tokens, 2 of them catch up. Parts give a round
# C(k) + T_verify = k/8 + 5/4 s and Δ₂ = 1/16 s, ε is 1/16 s. At γ = 2 the same tokens take 5 rounds of 25/16 s and two
# catch-ups: 127/16 s.
SCHEDULE = HeuristicPolicy(start=2, cap=3)
POLICIES = {"heuristic": SCHEDULE}
POLICY_S, FIXED_S = 3 * 25 / 16 + 2 * 28 / 16, 127 / 16
LOOK_S = 1 / 32
ALL_AND_NONE, NONE = (9, 0), (0,)
"""Drafts accepted in the rounds of a text, in turn."""


def tuned(cell: DecodedKey, policies: Mapping[str, GammaPolicy], **changes: Any) -> TunedCell:
    halves = (TunedHalf(tuned_on=(1,), policies=dict(policies)), TunedHalf(tuned_on=(0,), policies=dict(policies)))
    plain: dict[str, Any] = {"prompts": 10, "gamma_max": 3, "t_overhead_s": 1.0, "t_early_stop_check_s": LOOK_S}
    return TunedCell(key=cell, halves=halves, **(plain | changes))


def policy_run(
    path: Path,
    policies: Mapping[str, GammaPolicy] = POLICIES,
    *,
    accepted: float = 1.0,
    batches: Sequence[tuple[tuple[int, ...], Sequence[int]]] = (((0,), ALL_AND_NONE), ((1,), ALL_AND_NONE)),
    batch_size: int = 1,
    **changes: Any,
) -> Run:
    """`batches`: the prompts of each, and how many of their drafts are accepted."""
    plain: dict[str, Any] = {"max_new_tokens": 12, "overhead_s": 1 / 16, "policies": policies, "look_s": LOOK_S}
    keys = [key(batch_size=batch_size, start_context=context) for context in (64, 65)]
    blocks = {
        one: [
            Batch(prompts=prompts, accepts=accepts, context=one.start_context, **plain) for prompts, accepts in batches
        ]
        for one in keys
    }
    opened = run(path, blocks, config(batch_size), acceptance={"greedy": acceptance_frame(10, 16, accepted)})
    for one in keys:
        keep_tuned(path, tuned(one, policies, **changes))
    return opened


def test_every_figure_of_a_policy_by_hand(tmp_path: Path) -> None:
    """Replayed where every draft passes, 16 positions take 2, 3, 3, 3 drafts, 3 times catching up, and a plain step."""
    first, second = predict(policy_run(tmp_path / "run")).policies
    replayed = 16 / (25 / 16 + 3 * 28 / 16 + 17 / 16)
    assert first == empty_row(key()) | {
        "policy": "heuristic", "blocks": 2, "rounds": 10, "tokens": 24,
        "lossless": True, "t_overhead_s": exact(1 / 16), "overhead_from": OTHER_CONTEXTS,
        "t_accept_rest_s": exact(1 / 16), "t_round_s": exact(POLICY_S / 5), "rounds_counted": 10,
        "speedup_measured": exact(11 / POLICY_S), "speedup_measured_low": exact(11 / POLICY_S),
        "speedup_measured_high": exact(11 / POLICY_S), "best_fixed_gamma": 2,
        "over_best_fixed": exact(FIXED_S / POLICY_S), "over_best_fixed_low": exact(FIXED_S / POLICY_S),
        "over_best_fixed_high": exact(FIXED_S / POLICY_S), "speedup_from_counts": exact(11 / POLICY_S),
        "cost_error": exact(0.0), "speedup_predicted": exact(replayed), "error": exact(replayed * POLICY_S / 11 - 1),
        "error_low": exact(replayed * POLICY_S / 11 - 1), "error_high": exact(replayed * POLICY_S / 11 - 1),
        "speedup_whole": exact(11.5 / (0.5 + POLICY_S)), "plain_over_generate": 1.0, "plain_over_loop": 1.0,
        "mean_gamma": exact(2.4), "gamma_switches": 8, "early_stop_checks": 0,
        "t_early_stop_check_s": LOOK_S, "off_path": "assumed",
    }  # fmt: skip
    assert second["context"] == 65


def test_looks_are_counted_and_paid_for(tmp_path: Path) -> None:
    """Three drafts a round with 2 looks, one draft where two tokens are left, then a plain step: 4 + 1 + 4 + 1 + 1."""
    (row, _) = predict(policy_run(tmp_path / "run", {"svip": SvipPolicy(threshold=9.0, cap=3)})).policies
    rounds_s = 5 / 16 + 4 * 5 / 4 + 1 + (3 + 3 + 3 + 1) / 8 + 2 / 16
    looks = 2 + 2 + 2
    assert (row["early_stop_checks"], row["rounds"], row["gamma_switches"]) == (2 * looks, 10, 0)
    assert row["speedup_measured"] == exact(11 / (rounds_s + looks * LOOK_S))
    assert row["cost_error"] == exact(0.0)
    # replayed: 4 rounds of 3 drafts and a bonus, 3 of them catching up, 2 looks each
    assert row["speedup_predicted"] == exact(16 / (4 * (1 / 16 + 5 / 4 + 3 / 8 + 2 * LOOK_S) + 3 / 16))


def test_policies_leave_the_rows_of_gammas_as_they_are(tmp_path: Path) -> None:
    """A round of 2 drafts that a policy asked for is not one of γ = 2."""
    with_policies = predict(policy_run(tmp_path / "one", accepted=0.5))
    without = predict(policy_run(tmp_path / "two", {}, accepted=0.5))
    assert with_policies.validation == without.validation
    assert with_policies.recommendations == without.recommendations
    assert without.policies == ()


def test_one_prompt_is_replayed_under_the_policy_of_its_half(tmp_path: Path) -> None:
    opened = policy_run(tmp_path / "run", batches=[((1,), ALL_AND_NONE)])
    always_two = HeuristicPolicy(start=2, cap=2)
    for one in (key(), key(start_context=65)):
        cell = tuned(one, POLICIES)
        halves = cell.halves[0], TunedHalf(tuned_on=(0,), policies={"heuristic": always_two})
        keep_tuned(opened.path, replace(cell, halves=halves))
    row = predict(opened).policies[0]
    assert row["speedup_predicted"] == exact(16 / (5 * 25 / 16 + 4 / 16 + 17 / 16))
    assert (row["speedup_measured_low"], row["error_low"], row["blocks"]) == (None, None, 1)


def test_texts_of_the_same_prompts_are_no_further_evidence(tmp_path: Path) -> None:
    """A prompt that accepts nothing widens the interval; writing both texts three times over leaves it as it is."""
    differing = [((0,), ALL_AND_NONE), ((1,), NONE)]
    once, often = (
        predict(policy_run(tmp_path / name, batches=batches)).policies[0]
        for name, batches in (("once", differing), ("often", differing * 3))
    )
    assert (once["blocks"], often["blocks"]) == (2, 6)
    for name in ("speedup_measured", "over_best_fixed", "error"):
        ends = [f"{name}_low", name, f"{name}_high"]
        assert once[ends[0]] < once[ends[2]]
        assert [often[end] for end in ends] == pytest.approx([once[end] for end in ends], rel=1e-12)


def test_a_batch_of_which_a_prompt_was_not_recorded_is_left_out_of_the_error(tmp_path: Path) -> None:
    """Prompt 1 accepts nothing, but it stands beside one without a recorded text: S is of all, the error not."""
    batches = [((0, 2), ALL_AND_NONE), ((1, 50), NONE), ((3, 4), ALL_AND_NONE)]
    whole = predict(policy_run(tmp_path / "run", batches=batches, batch_size=2)).policies[0]
    some = predict(policy_run(tmp_path / "some", batches=batches[::2], batch_size=2)).policies[0]
    assert whole["speedup_measured"] < some["speedup_measured"]
    assert (whole["error"], whole["speedup_predicted"]) == (some["error"], some["speedup_predicted"])
    unknown = [((50,), ALL_AND_NONE), ((51,), ALL_AND_NONE)]
    row = predict(policy_run(tmp_path / "unknown", batches=unknown)).policies[0]
    assert [row[name] for name in ("speedup_predicted", "error", "off_path")] == [None] * 3
    assert row["speedup_measured"] == exact(11 / POLICY_S)


def test_policies_that_nobody_wrote_down_are_one_line(tmp_path: Path) -> None:
    opened = policy_run(tmp_path / "run")
    one_half = (tuned(key(), {}).halves[0], tuned(key(), POLICIES).halves[1])
    keep_tuned(opened.path, replace(tuned(key(), {}), halves=one_half))
    for _ in range(2):
        with pytest.raises(ValueError, match="lacks the policies of greedy, batch size 1, context 64"):
            predict(opened)
        (opened.path / "policies.json").unlink(missing_ok=True)


def test_what_was_left_out_is_told(tmp_path: Path) -> None:
    reason = "it is tuned on something"
    found = predict(policy_run(tmp_path / "run", left_out={"svip": reason, "renewal": reason}))
    (warning,) = (one for one in found.warnings if one["code"] == "policy_left_out")
    assert warning["message"] == (
        f"pair p: svip, renewal left out of 2 cells, first sampling greedy, batch size 1, context 64: {reason}"
    )


def test_a_replay_takes_what_a_look_costs_from_there(tmp_path: Path) -> None:
    opened = policy_run(tmp_path / "run")
    makers: Any = {"svip": lambda _: SvipPolicy(threshold=9.0, cap=3)}
    found = replay_run(opened, makers=makers, replicates=2, context=64)
    assert found[0].t_early_stop_check_s == LOOK_S
    assert found[0].result is not None
    assert found[0].result.policies["svip"].speedup.value == pytest.approx(
        16 / (4 * (1 / 16 + 5 / 4 + 3 / 8 + 2 * LOOK_S) + 3 / 16)
    )
    assert '"t_early_stop_check_s": 0.03125' in replays_json(found)
    assert "check a draft" not in replays_text(found)
    assert "check a draft" in replays_text([replace(found[0], t_early_stop_check_s=None)])


any_batch = st.builds(
    Batch,
    prompts=st.tuples(st.integers(0, 4)),
    accepts=st.sampled_from([(0,), (9,), ALL_AND_NONE, (1, 0)]),
    max_new_tokens=st.just(12),
    overhead_s=st.floats(0.0, 1e3),
    scale=st.floats(1e-4, 1e4),
    policies=st.just(POLICIES),
)


@settings(max_examples=25)
@given(st.lists(any_batch, min_size=1, max_size=6))
def test_every_interval_of_a_ratio_is_above_0_holds_its_value_and_reads_back(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Batch]
) -> None:
    path = tmp_path_factory.mktemp("any") / "run"
    opened = run(path, {key(): batches})
    keep_tuned(path, tuned(key(), POLICIES))
    predict_run(opened)
    for row in opened.rows(ValidationRow):
        for name, least in (("speedup_measured", 0), ("over_best_fixed", 0), ("error", -1)):
            low, value, high = (getattr(row, column) for column in (f"{name}_low", name, f"{name}_high"))
            assert low is None or least < low <= value <= high


@pytest.mark.parametrize(
    ("beside", "spread"),
    [
        ({}, 0.0),
        ({"threads": 2, "disturbed": 0}, 0.0),
        ({"threads": 1, "disturbed": 1}, 0.0),
        ({"threads": 2, "disturbed": 1}, 0.2),
    ],
)
def test_blocks_decoded_by_threads_that_were_held_up_are_less_certain(
    tmp_path: Path, beside: dict[str, Any], spread: float
) -> None:
    """Two batches alike: all that is uncertain is what no block tells."""
    opened = run(tmp_path / "run", {})
    log = DecodedLog(opened.path)
    for block in (0, 1):
        own = batch(prompts=(block,))
        rows = [row | beside for arm in ("plain", "speculate:2") for row in own.requests(arm)]
        log.append(key(), block, rows, [row for arm in ("plain", "speculate:2") for row in own.rounds(arm)])
    found = AnalysedRun.read(opened).decoded.measured[key()][2]
    assert np.log(found[1:] / found[0]).std() == pytest.approx(spread, rel=0.15, abs=1e-12)
