"""Runs whose texts were decoded end to end in constant times: predictions with ε, and every figure beside its measure.

γ = 2, 12 tokens a text, drafts accepted all and none in turn: 5 rounds commit 11 tokens, 2 of them catch up. Parts give
a round 3/2 s and Δ₂ = 1/16 s; acceptance is 1/2 everywhere, so Ω(2) = 7/4 and π = A₂ = 1/4 are predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.schema import Config
from specgauge.model.decision import OPTIMISTIC
from specgauge.model.validate import ratio_error
from specgauge.sweeps.analysis.predictions import predict, predict_run, recommended_gammas
from specgauge.sweeps.analysis.validation import OTHER_CONTEXTS, SAME_CONTEXT
from specgauge.sweeps.store.rows import columns
from specgauge.sweeps.store.rundir import REQUESTS, Run
from specgauge.sweeps.store.schema import DecodedKey, ValidationRow
from specgauge.sweeps.store.tables import DecodedLog
from tests.sweeps import made
from tests.sweeps.decoded import Batch, decoded_run, key
from tests.sweeps.made import acceptance_frame, exact, write_run

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
    omega = ratio_error(dict.fromkeys(range(10), (7 / 4, 1.0)), {0: (11.0, 5.0), 1: (11.0, 5.0)})
    assert omega is not None
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
    DecodedLog.open(path).append(key(), 0, requests, [row for arm in arms for row in batch().rounds(arm)])
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
    DecodedLog.open(opened.path).append(key(), 1, slow.requests("speculate:2"), slow.rounds("speculate:2"))
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
