"""Adaptive policies in a run: tuned once, each half of the prompts on the other, and left out with a reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from specgauge.model.policies.feedback import GammaTunePolicy, HeuristicPolicy
from specgauge.model.policies.policy import FixedPolicy
from specgauge.model.policies.stopping import SvipPolicy
from specgauge.sweeps.analysis.settings import NO_ACCEPTANCE
from specgauge.sweeps.run import runner
from specgauge.sweeps.run.policy_tuner import FEW_PROMPTS, NO_COSTS, PolicyTuner
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import ValidationRow
from specgauge.sweeps.store.tables import read_tuned
from tests.sweeps import made
from tests.sweeps.decoded import key
from tests.sweeps.fake_bench import FakeBench
from tests.sweeps.made import acceptance_frame
from tests.sweeps.run.test_validation import ONE_CELL, config, interrupted

ARMS = ["plain", "loop", "generate", "speculate:2", "adaptive:heuristic", "adaptive:goodput"]


CONFIG = config(ONE_CELL, policies=["heuristic", "goodput"])


def test_a_run_decodes_each_half_under_what_the_other_taught(tmp_path: Path, bench: FakeBench) -> None:
    """Four of the ten prompts are decoded, the middle of each half by acceptance first; all ten teach."""
    path, bench.overhead_s, bench.look_s = tmp_path / "run", 0.125, 0.5
    assert runner.run(CONFIG, out=path) == 0
    tuned = read_tuned(path)[key()]
    assert (tuned.t_overhead_s, tuned.t_early_stop_check_s, tuned.gamma_max, tuned.prompts) == (0.125, 0.5, 3, 10)
    assert [half.tuned_on for half in tuned.halves] == [(1, 3, 5, 7, 9), (0, 2, 4, 6, 8)]
    assert bench.host_costs_at == [3]
    assert sorted(bench.warmed_up) == sorted(ARMS[:-1])  # shapes are the same under every policy
    blocks = [bench.decoded[i : i + len(ARMS)] for i in range(0, len(bench.decoded), len(ARMS))]
    assert [block[0].prompts for block in blocks] == [(4,), (5,), (2,), (3,)]
    for block in blocks:
        half = tuned.halves[block[0].prompts[0] % 2]
        assert sorted(one.arm for one in block) == sorted(ARMS)
        policies = {one.arm: one.policy for one in block if one.policy is not None}
        assert policies == {f"adaptive:{name}": policy for name, policy in half.policies.items()}
    rows = Run.open(path).rows(ValidationRow)
    assert [(row.gamma, row.policy, row.blocks, row.best_fixed_gamma, row.t_early_stop_check_s) for row in rows] == [
        (2, None, 4, None, None), (None, "goodput", 4, 2, 0.5), (None, "heuristic", 4, 2, 0.5),
    ]  # fmt: skip
    assert all(row.speedup_predicted is not None for row in rows)


def test_an_interrupted_run_is_resumed_under_the_very_same_policies(tmp_path: Path, bench: FakeBench) -> None:
    path, bench.overhead_s, bench.look_s = tmp_path / "run", 0.125, 0.5
    with interrupted(bench, after=len(ARMS) + 2):
        runner.run(CONFIG, out=path)
    kept = (path / "policies.json").read_bytes()
    bench.overhead_s = 9.0
    assert runner.run(CONFIG, out=path) == 0
    assert (path / "policies.json").read_bytes() == kept
    assert bench.host_costs_at == [3]
    assert Counter(one.arm for one in bench.decoded)["adaptive:goodput"] >= 4
    goodput = {one.policy for one in bench.decoded if one.arm == "adaptive:goodput"}
    assert {policy.t_round_s[0] for policy in goodput} == {1.125}


NAMES = ["heuristic", "goodput", "svip"]


def recorded(path: Path, frames: Any = None, prompts: int = 4, **changes: Any) -> Run:
    workload = {"prompts": "embedded", "max_new_tokens": 17}
    frames = {"greedy": acceptance_frame(prompts, 16, 1.0)} if frames is None else frames
    others = {name: changes.pop(name) for name in ("broken", "only") if name in changes}
    return made.write_run(path, made.config(workload=workload, **changes), frames, **others)


def tune(run: Run, names: list[str] = NAMES, prompts: int = 4) -> Any:
    costs: Any = SimpleNamespace(t_overhead_s=0.25, t_early_stop_check_s=0.125)
    return PolicyTuner(run, "p", names, prompts).tuned(key(), lambda gamma: costs)


def test_each_half_is_tuned_on_the_other(tmp_path: Path) -> None:
    """Odd prompts accept everything, even ones half: what even prompts are decoded under was taught by the odd ones."""
    frame = acceptance_frame(4, 16, 1.0)
    for column in ("draft_prob", "overlap_ratio", "overlap_match"):
        frame.loc[frame["prompt"] % 2 == 0, column] = 0.5
    found = tune(recorded(tmp_path / "run", {"greedy": frame}))
    even, odd = found.halves
    assert (even.tuned_on, odd.tuned_on) == ((1, 3), (0, 2))
    taught_by_odd, taught_by_even = even.policies["goodput"], odd.policies["goodput"]
    assert taught_by_odd.prior_rate == 1.0
    assert taught_by_even.prior_rate == pytest.approx(0.5, abs=0.1)
    assert taught_by_odd.t_round_s == (1.25, 1.625, 1.75, 1.875)  # C(γ) = .125 γ, T_verify 1.25, ε .25
    assert (found.gamma_max, found.prompts, found.t_overhead_s, found.t_early_stop_check_s) == (3, 4, 0.25, 0.125)
    assert found.left_out == {}
    assert even.policies["heuristic"] == HeuristicPolicy(start=3, cap=3)
    assert isinstance(even.policies["svip"], SvipPolicy)


def test_a_prompt_at_two_lengths_teaches_nothing_to_itself(tmp_path: Path) -> None:
    """Three prompts at two lengths: number 3 is prompt 0 again, which is even."""
    frame = pd.concat([acceptance_frame(3, 16), acceptance_frame(3, 16).assign(prompt=lambda f: f["prompt"] + 3)])
    even, odd = tune(recorded(tmp_path / "run", {"greedy": frame}), prompts=3).halves
    assert (even.tuned_on, odd.tuned_on) == ((1, 4), (0, 2, 3, 5))


def test_the_largest_gamma_with_times_is_the_most_that_is_asked_for(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", broken={(1, 64, "verify:3"): ("oom", "out of memory")})
    assert PolicyTuner(run, "p", NAMES, 4).gamma_max(key()) == 2
    assert tune(run, ["gammatune"]).halves[1].policies == {"gammatune": GammaTunePolicy(start=2, cap=2)}
    assert PolicyTuner(recorded(tmp_path / "none", only=set()), "p", NAMES, 4).gamma_max(key()) == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"frames": {}}, NO_ACCEPTANCE),
        ({"frames": {"greedy": acceptance_frame(1, 16)}}, FEW_PROMPTS),
        ({"only": set()}, NO_COSTS),
    ],
)
def test_what_cannot_be_tuned_is_left_out_and_schedules_stay(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    found = tune(recorded(tmp_path / "run", **changes))
    assert found.left_out == {"goodput": reason, "svip": reason}
    assert [(half.tuned_on, tuple(half.policies)) for half in found.halves] == [((), ("heuristic",))] * 2


def test_lookups_are_tuned_on_the_length_of_their_matches(tmp_path: Path) -> None:
    """Two of three drafts pass from every start, C(2) + T_verify is 1.5; the rule is no faster, and is not taken."""
    frame = acceptance_frame(4, 16).assign(proposed_length=3, match_length=2, lookup_match=2, rejected_target_prob=0.0)
    lookups = {"name": "p", "target": "embedded", "draft": "ngram"}
    found = tune(recorded(tmp_path / "run", frames={"greedy": frame}, pairs=[lookups]), ["fixed", "renewal"])
    assert found.left_out == {}
    assert [half.policies for half in found.halves] == [dict.fromkeys(("fixed", "renewal"), FixedPolicy(gamma=2))] * 2
