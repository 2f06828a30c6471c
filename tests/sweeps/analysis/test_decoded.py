"""Runs whose texts were decoded end to end in constant times: predictions with ε, and every figure beside its measure.

γ = 2, 12 tokens a text, drafts accepted all and none in turn: 5 rounds commit 11 tokens, 2 of them catch up. Parts give
a round 3/2 s and Δ₂ = 1/16 s; acceptance is 1/2 everywhere, so Ω(2) = 7/4 and π = A₂ = 1/4 are predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specgauge.configs.schema import Config
from specgauge.model.arms import Arm
from specgauge.model.decision import OPTIMISTIC
from specgauge.model.validate import ratio_error
from specgauge.sweeps.analysis.decoded import request_figures
from specgauge.sweeps.analysis.predictions import predict, predict_run, recommended_gammas
from specgauge.sweeps.analysis.validation import OTHER_CONTEXTS, SAME_CONTEXT
from specgauge.sweeps.store.rows import columns
from specgauge.sweeps.store.rundir import REQUESTS, Run
from specgauge.sweeps.store.schema import DecodedKey, ValidationRow
from specgauge.sweeps.store.tables import DecodedLog
from tests.sweeps import made
from tests.sweeps.decoded import Batch, decoded_run, key
from tests.sweeps.made import acceptance_frame, exact, known, write_run

MEASURED = 2.2 / (1.5 + 0.025 + 0.0625)


def config(batch_size: Any = 1, context: Sequence[int] = (64, 65)) -> Config:
    grid = {"batch_size": batch_size, "context": list(context), "gamma": "1:3"}
    return made.config(grid=grid, validate={"gamma": 2, "max_new_tokens": 12})


def batch(**changes: Any) -> Batch:
    plain = {"max_new_tokens": 12, "overhead_s": 1 / 16}
    return Batch(**{**plain, **changes})


def run(path: Path, blocks: Mapping[DecodedKey, Sequence[Batch]], made_of: Config | None = None, **rest: Any) -> Run:
    return decoded_run(path, made_of or config(), blocks, **rest)


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
    assert first == dict.fromkeys(columns(ValidationRow)) | {
        "pair": "p", "mode": "eager", "sampling": "greedy", "draft_sampling": "same", "acceptance_rule": "ratio",
        "batch_size": 1, "context": 64, "gamma": 2, "blocks": 2, "rounds": 10, "tokens": 24, "lossless": True,
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
    assert (row["speedup_measured_low"], row["speedup_measured_high"]) == (None, None)
    known = {entry["batch_size"]: entry["t_overhead_s"] for entry in found.recommendations}
    assert known == {1: exact(1 / 16), 2: None}
    assert {(row["batch_size"], row["label"]) for row in found.rows} == {(1, ""), (2, OPTIMISTIC)}


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


def test_an_unfinished_block_does_not_count(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", {key(): [batch()]})
    requests = (opened.path / REQUESTS).read_bytes()
    slow = batch(overhead_s=4.0)
    DecodedLog(opened.path).append(key(), 1, slow.requests("speculate:2"), slow.rounds("speculate:2"))
    (opened.path / REQUESTS).write_bytes(requests)
    (row,) = predict(opened).validation
    assert (row["blocks"], row["t_round_s"]) == (1, exact(1.5875))


def test_what_was_decoded_is_written_down(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", both(), gammas=(1, 3))
    found = predict_run(opened)
    assert [(row["context"], row["gamma"]) for row in found.validation] == [(64, 1), (64, 3), (65, 1), (65, 3)]
    for row in found.validation:
        assert (row["cost_error"], row["rounds_standard_errors"]) == (exact(0.0), None)
        assert row["tokens_per_round_predicted"] == exact(2 - 2.0 ** -row["gamma"])
    assert opened.validation() == found.validation
    assert [entry["t_overhead_s"] for entry in opened.recommendations()] == [exact(1 / 16)] * 2
    first = (opened.path / "validation.csv").read_bytes()
    predict_run(Run.open(opened.path))
    assert (opened.path / "validation.csv").read_bytes() == first
    nothing = write_run(tmp_path / "nothing", made.config(), {"greedy": acceptance_frame(10, 16)})
    assert predict_run(nothing).validation == ()
    assert not (nothing.path / "validation.csv").exists()


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
