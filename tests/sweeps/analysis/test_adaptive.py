"""Policies that were decoded end to end in constant times: every figure by hand.

12 tokens a text, drafts accepted all and none in turn. The schedule drafts 2, 3, 2, 3, 2: 5 rounds commit 11 tokens, 2
of them catch up. Parts give a round C(k) + T_verify = k/8 + 5/4 s and Δ₂ = 1/16 s, ε is 1/16 s; a plain step takes 1 s.
At γ = 2 the same tokens take 5 rounds of 25/16 s and two catch-ups: 127/16 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgauge.configs.schema import Config
from specgauge.model.policies.feedback import HeuristicPolicy
from specgauge.model.policies.policy import GammaPolicy
from specgauge.model.policies.stopping import SvipPolicy
from specgauge.sweeps.analysis.decoded import empty_row
from specgauge.sweeps.analysis.predictions import predict, predict_run
from specgauge.sweeps.analysis.validation import OTHER_CONTEXTS
from specgauge.sweeps.replay import replay_run, replays_json, replays_text
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey, TunedCell, TunedHalf, ValidationRow
from specgauge.sweeps.store.tables import keep_tuned
from tests.sweeps import made
from tests.sweeps.decoded import Batch, decoded_run, key
from tests.sweeps.made import acceptance_frame, exact

SCHEDULE = HeuristicPolicy(start=2, cap=3)
POLICY_S, FIXED_S = 3 * 25 / 16 + 2 * 28 / 16, 127 / 16
LOOK_S = 1 / 32
ALL_AND_NONE, NONE = (9, 0), (0,)
"""Drafts accepted in the rounds of a text, in turn."""


def config(batch_size: int = 1) -> Config:
    grid = {"batch_size": batch_size, "context": [64, 65], "gamma": "1:3"}
    return made.config(grid=grid, validate={"gamma": 2, "max_new_tokens": 12, "policies": ["heuristic"]})


def tuned(cell: DecodedKey, policies: Mapping[str, GammaPolicy], **changes: Any) -> TunedCell:
    halves = (TunedHalf(tuned_on=(1,), policies=dict(policies)), TunedHalf(tuned_on=(0,), policies=dict(policies)))
    plain: dict[str, Any] = {"prompts": 10, "gamma_max": 3, "t_overhead_s": 1.0, "t_early_stop_check_s": LOOK_S}
    return TunedCell(key=cell, halves=halves, **(plain | changes))


def run(
    path: Path,
    policies: Mapping[str, GammaPolicy],
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
    opened = decoded_run(path, config(batch_size), blocks, acceptance={"greedy": acceptance_frame(10, 16, accepted)})
    for one in keys:
        keep_tuned(path, tuned(one, policies, **changes))
    return opened


def test_every_figure_by_hand(tmp_path: Path) -> None:
    """Replayed where every draft passes, 16 positions take 2, 3, 3, 3 drafts, 3 times catching up, and a plain step."""
    first, second = predict(run(tmp_path / "run", {"heuristic": SCHEDULE})).policies
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
    (row, _) = predict(run(tmp_path / "run", {"svip": SvipPolicy(threshold=9.0, cap=3)})).policies
    rounds_s = 5 / 16 + 4 * 5 / 4 + 1 + (3 + 3 + 3 + 1) / 8 + 2 / 16
    looks = 2 + 2 + 2
    assert (row["early_stop_checks"], row["rounds"], row["gamma_switches"]) == (2 * looks, 10, 0)
    assert row["speedup_measured"] == exact(11 / (rounds_s + looks * LOOK_S))
    assert row["cost_error"] == exact(0.0)
    # replayed: 4 rounds of 3 drafts and a bonus, 3 of them catching up, 2 looks each
    assert row["speedup_predicted"] == exact(16 / (4 * (1 / 16 + 5 / 4 + 3 / 8 + 2 * LOOK_S) + 3 / 16))


def test_policies_leave_the_rows_of_gammas_as_they_are(tmp_path: Path) -> None:
    """A round of 2 drafts that a policy asked for is not one of γ = 2."""
    with_policies = predict(run(tmp_path / "one", {"heuristic": SCHEDULE}, accepted=0.5))
    without = predict(run(tmp_path / "two", {}, accepted=0.5))
    assert with_policies.validation == without.validation
    assert with_policies.recommendations == without.recommendations
    assert without.policies == ()


def test_one_prompt_is_replayed_under_the_policy_of_its_half(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", {"heuristic": SCHEDULE}, batches=[((1,), ALL_AND_NONE)])
    always_two = HeuristicPolicy(start=2, cap=2)
    for one in (key(), key(start_context=65)):
        cell = tuned(one, {"heuristic": SCHEDULE})
        halves = cell.halves[0], TunedHalf(tuned_on=(0,), policies={"heuristic": always_two})
        keep_tuned(opened.path, replace(cell, halves=halves))
    row = predict(opened).policies[0]
    assert row["speedup_predicted"] == exact(16 / (5 * 25 / 16 + 4 / 16 + 17 / 16))
    assert (row["speedup_measured_low"], row["error_low"], row["blocks"]) == (None, None, 1)


def test_texts_of_the_same_prompts_are_no_further_evidence(tmp_path: Path) -> None:
    """A prompt that accepts nothing widens the interval; writing both texts three times over leaves it as it is."""
    differing = [((0,), ALL_AND_NONE), ((1,), NONE)]
    once, often = (
        predict(run(tmp_path / name, {"heuristic": SCHEDULE}, batches=batches)).policies[0]
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
    whole = predict(run(tmp_path / "run", {"heuristic": SCHEDULE}, batches=batches, batch_size=2)).policies[0]
    known = predict(run(tmp_path / "known", {"heuristic": SCHEDULE}, batches=batches[::2], batch_size=2)).policies[0]
    assert whole["speedup_measured"] < known["speedup_measured"]
    assert (whole["error"], whole["speedup_predicted"]) == (known["error"], known["speedup_predicted"])
    unknown = [((50,), ALL_AND_NONE), ((51,), ALL_AND_NONE)]
    row = predict(run(tmp_path / "unknown", {"heuristic": SCHEDULE}, batches=unknown)).policies[0]
    assert [row[name] for name in ("speedup_predicted", "error", "off_path")] == [None] * 3
    assert row["speedup_measured"] == exact(11 / POLICY_S)


def test_policies_that_nobody_wrote_down_are_one_line(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", {"heuristic": SCHEDULE})
    one_half = (tuned(key(), {}).halves[0], tuned(key(), {"heuristic": SCHEDULE}).halves[1])
    keep_tuned(opened.path, replace(tuned(key(), {}), halves=one_half))
    for _ in range(2):
        with pytest.raises(ValueError, match="lacks the policies of greedy, batch size 1, context 64"):
            predict(opened)
        (opened.path / "policies.json").unlink(missing_ok=True)


def test_what_was_left_out_is_told(tmp_path: Path) -> None:
    reason = "it is tuned on something"
    found = predict(run(tmp_path / "run", {"heuristic": SCHEDULE}, left_out={"svip": reason, "renewal": reason}))
    (warning,) = (one for one in found.warnings if one["code"] == "policy_left_out")
    assert warning["message"] == (
        f"pair p: svip, renewal left out of 2 cells, first sampling greedy, batch size 1, context 64: {reason}"
    )


def test_a_replay_takes_what_a_look_costs_from_there(tmp_path: Path) -> None:
    opened = run(tmp_path / "run", {"heuristic": SCHEDULE})
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
    policies=st.just({"heuristic": SCHEDULE}),
)


@settings(max_examples=25)
@given(st.lists(any_batch, min_size=1, max_size=6))
def test_every_interval_of_a_ratio_is_above_0_holds_its_value_and_reads_back(
    tmp_path_factory: pytest.TempPathFactory, batches: list[Batch]
) -> None:
    path = tmp_path_factory.mktemp("any") / "run"
    opened = decoded_run(path, config(), {key(): batches})
    keep_tuned(path, tuned(key(), {"heuristic": SCHEDULE}))
    predict_run(opened)
    for row in opened.rows(ValidationRow):
        for name, least in (("speedup_measured", 0), ("over_best_fixed", 0), ("error", -1)):
            low, value, high = (getattr(row, column) for column in (f"{name}_low", name, f"{name}_high"))
            assert low is None or least < low <= value <= high
