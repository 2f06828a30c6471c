"""Policies of each half of the prompts, tuned on the other half, and why some are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specgauge.model.policies.feedback import GammaTunePolicy, GoodputPolicy, HeuristicPolicy
from specgauge.model.policies.policy import FixedPolicy
from specgauge.model.policies.stopping import SvipPolicy
from specgauge.sweeps.analysis.settings import NO_ACCEPTANCE
from specgauge.sweeps.run.policies import FEW_PROMPTS, NO_COSTS, PolicyTuner
from specgauge.sweeps.store.rundir import Run
from tests.sweeps.decoded import key
from tests.sweeps.made import acceptance_frame, config, write_run

NAMES = ["heuristic", "goodput", "svip"]


def run(path: Path, frames: Any = None, prompts: int = 4, **changes: Any) -> Run:
    workload = {"prompts": "embedded", "max_new_tokens": 17}
    frames = {"greedy": acceptance_frame(prompts, 16, 1.0)} if frames is None else frames
    made = {name: changes.pop(name) for name in ("broken", "only") if name in changes}
    return write_run(path, config(workload=workload, **changes), frames, **made)


def tune(made: Run, names: list[str] = NAMES, prompts: int = 4) -> Any:
    return PolicyTuner.of(made, "p", prompts).tune(key(), names, t_overhead_s=0.25, t_look_s=0.125)


def test_each_half_is_tuned_on_the_other(tmp_path: Path) -> None:
    """Odd prompts accept everything, even ones half: what even prompts are decoded under was taught by the odd ones."""
    frame = acceptance_frame(4, 16, 1.0)
    for column in ("draft_prob", "overlap_ratio", "overlap_match"):
        frame.loc[frame["prompt"] % 2 == 0, column] = 0.5
    found = tune(run(tmp_path / "run", {"greedy": frame}))
    even, odd = found.halves
    assert (even.tuned_on, odd.tuned_on) == ((1, 3), (0, 2))
    taught_by_odd, taught_by_even = even.policies["goodput"], odd.policies["goodput"]
    assert isinstance(taught_by_odd, GoodputPolicy)
    assert isinstance(taught_by_even, GoodputPolicy)
    assert taught_by_odd.prior_rate == 1.0
    assert taught_by_even.prior_rate == pytest.approx(0.5, abs=0.1)
    assert taught_by_odd.t_round_s == (1.25, 1.625, 1.75, 1.875)  # C(γ) = .125 γ, T_verify 1.25, ε .25
    assert found.names == tuple(NAMES)
    assert (found.gamma_max, found.prompts, found.t_overhead_s, found.t_look_s) == (3, 4, 0.25, 0.125)
    assert found.left_out == {}
    assert even.policies["heuristic"] == HeuristicPolicy(start=3, cap=3)
    assert isinstance(even.policies["svip"], SvipPolicy)


def test_a_prompt_at_two_lengths_teaches_nothing_to_itself(tmp_path: Path) -> None:
    """Three prompts at two lengths: number 3 is prompt 0 again, which is even."""
    frame = pd.concat([acceptance_frame(3, 16), acceptance_frame(3, 16).assign(prompt=lambda f: f["prompt"] + 3)])
    even, odd = tune(run(tmp_path / "run", {"greedy": frame}), prompts=3).halves
    assert (even.tuned_on, odd.tuned_on) == ((1, 4), (0, 2, 3, 5))


def test_the_largest_gamma_with_times_is_the_most_that_is_asked_for(tmp_path: Path) -> None:
    made = run(tmp_path / "run", broken={(1, 64, "verify:3"): ("oom", "out of memory")})
    assert PolicyTuner.of(made, "p", 4).gamma_max(key()) == 2
    assert tune(made, ["gammatune"]).halves[1].policies == {"gammatune": GammaTunePolicy(start=2, cap=2)}
    assert PolicyTuner.of(run(tmp_path / "none", only=set()), "p", 4).gamma_max(key()) == 3


LOOKUPS: dict[str, Any] = {"pairs": [{"name": "p", "target": "embedded", "draft": "ngram"}]}


def looked_up() -> pd.DataFrame:
    return acceptance_frame(4, 16).assign(proposed_length=3, match_length=2, lookup_match=2, rejected_target_prob=0.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"frames": {}}, NO_ACCEPTANCE),
        ({"frames": {"greedy": acceptance_frame(1, 16)}}, FEW_PROMPTS),
        ({"only": set()}, NO_COSTS),
    ],
    ids=["no acceptance", "one prompt", "no times"],
)
def test_what_cannot_be_tuned_is_left_out_and_schedules_stay(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    found = tune(run(tmp_path / "run", **changes))
    assert found.left_out == {"goodput": reason, "svip": reason}
    assert [(half.tuned_on, tuple(half.policies)) for half in found.halves] == [((), ("heuristic",))] * 2
    assert found.names == ("heuristic",)


def test_lookups_are_tuned_on_the_length_of_their_matches(tmp_path: Path) -> None:
    made = run(tmp_path / "run", frames={"greedy": looked_up()}, **LOOKUPS)
    found = tune(made, ["fixed", "renewal"])
    assert found.left_out == {}
    # two of three drafts pass from every start, C(2) + T_verify is 1.5; the rule is no faster, and is not taken
    assert [half.policies for half in found.halves] == [dict.fromkeys(("fixed", "renewal"), FixedPolicy(gamma=2))] * 2
