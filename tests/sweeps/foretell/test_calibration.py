"""Calibrations from steps that a known machine would take: the numbers come back, and with them the errors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specgauge.configs.hardware import load_hardware
from specgauge.model.roofline.calibration import MeasuredSteps, measured_steps
from specgauge.model.roofline.costs import RooflineCosts
from specgauge.model.roofline.deployment import Deployment
from specgauge.model.roofline.step_time import Efficiency, step_time_s, step_work
from specgauge.model.speedup import round_time_s, speedup
from specgauge.sweeps.foretell.calibration import MeasuredGroup, Rounds, calibration_entry, draft_steps, groups_of_run
from tests.model.roofline_cases import deployed
from tests.sweeps import made

TRUE = Efficiency(bandwidth_fraction=0.8, flops_fraction=0.4, launch_s=1e-4)
POINTS = [(b, c) for b in (1, 8, 64) for c in (128, 2048, 8192)]


def group(
    machine: Deployment, *, draft: Deployment | None = None, drafting: Efficiency = TRUE, overhead_s: float = 0.003
) -> MeasuredGroup:
    """Nine rows at gamma 3 as the machine of `TRUE` takes them, with 3 tokens a round."""
    batch, context = (np.array(column) for column in zip(*POINTS, strict=True))
    work = [step_work(machine, batch_size=batch, context=context, tokens=n) for n in (1, 4)]
    decode_s, verify_s = (step_time_s(each, machine, TRUE) for each in work)
    steps = {
        "t_decode_s": measured_steps(machine, batch_size=batch, context=context, tokens=1, time_s=decode_s),
        "t_verify_s": measured_steps(machine, batch_size=batch, context=context, tokens=4, time_s=verify_s),
    }
    chain_s = np.full(9, 0.01)
    drafts: tuple[MeasuredSteps, ...] = ()
    if draft is not None:
        costs = RooflineCosts(target=machine, draft=draft, efficiency=drafting).costs(batch, context, [3])
        chain_s = costs.t_draft_total_s[:, 0]
        drafts = (draft_steps(draft, batch_size=batch, context=context, gamma=np.full(9, 3), t_draft_total_s=chain_s),)
    round_s = round_time_s(t_draft_total_s=chain_s, t_verify_s=verify_s, t_overhead_s=overhead_s)
    gained = speedup(np.full(9, 3.0), t_decode_s=decode_s, t_round_s=round_s)
    rounds = Rounds(tokens_per_round=np.full(9, 3.0), t_draft_total_s=chain_s, speedup_measured=gained)
    return MeasuredGroup(
        target=machine.architecture.name, gpu="made", rows=9, steps=steps, rounds=rounds, drafts=drafts
    )


def test_the_numbers_of_the_machine_come_back() -> None:
    groups = [group(deployed(name)) for name in ("llama-2-7b", "llama-3.1-8b")]
    found = calibration_entry(groups, source="made", command="none", base=None)
    assert (found.bandwidth_fraction, found.flops_fraction) == pytest.approx((0.8, 0.4), rel=1e-3)
    assert (found.launch_s, found.t_overhead_s) == pytest.approx((1e-4, 0.003), rel=1e-3)
    assert (found.targets, found.tensor_parallel, found.steps) == (["llama-2-7b", "llama-3.1-8b"], [1], 36)
    assert (found.batch_sizes, found.contexts, found.tokens) == ([1, 64], [128, 8192], [1, 4])
    assert (found.not_identified, found.draft_error) == ([], None)
    assert found.same_target is not None
    assert found.other_target is not None
    assert (found.same_target.held_out, found.other_target.held_out) == ("batch_size", "target")
    assert max(found.same_target.worst, found.other_target.worst, found.other_target.ratio) < 1e-3


DRAFTING = replace(TRUE, launch_s=2e-4, token_s=3e-5)


def test_what_drafts_take_of_their_own_comes_back() -> None:
    one = group(deployed("llama-2-7b"), draft=deployed("tinyllama-1.1b"), drafting=DRAFTING)
    found = calibration_entry([one], source="made", command="none", base=None)
    assert found.other_target is None
    assert found.draft is not None
    assert (found.draft.launch_s, found.draft.token_s) == pytest.approx((2e-4, 3e-5), rel=1e-3)
    assert (found.draft.drafts, found.draft.steps, found.draft.other_draft) == (["tinyllama-1.1b"], 9, None)
    assert (found.draft.same_draft.held_out, found.draft.same_draft.worst < 1e-3) == ("batch_size", True)
    assert found.draft_error is not None
    assert found.draft_error > 0.3
    other = group(deployed("llama-3.1-8b"), draft=deployed("llama-3.2-1b"), drafting=DRAFTING)
    both = calibration_entry([one, other], source="made", command="none", base=None).draft
    assert both is not None
    assert both.other_draft is not None
    assert (both.drafts, both.other_draft.held_out) == (["llama-3.2-1b", "tinyllama-1.1b"], "draft")
    assert both.other_draft.worst < 1e-3


def test_a_chain_is_its_mean_step() -> None:
    draft = deployed("tinyllama-1.1b")
    steps = draft_steps(draft, batch_size=[2, 4], context=[100, 200], gamma=[1, 5], t_draft_total_s=[0.01, 0.06])
    assert (steps.context.tolist(), steps.tokens.tolist()) == ([100, 202], [1, 1])
    assert steps.time_s.tolist() == pytest.approx([0.01, 0.012])
    with pytest.raises(ValueError, match=r"^gamma \(item 1\): expected a whole number, at least 1, got 0$"):
        draft_steps(draft, batch_size=[2], context=[100], gamma=[0], t_draft_total_s=[0.01])


def test_a_borrowed_launch_cost_is_kept() -> None:
    base = calibration_entry([group(deployed("llama-2-7b"))], source="made", command="none", base=None)
    other = replace(TRUE, launch_s=base.launch_s)
    found = calibration_entry(
        [group(deployed("llama-3.1-8b", "h100-sxm"))],
        source="made",
        command="none",
        base=base.model_copy(update={"launch_s": 2e-4}),
    )
    assert found.launch_s == 2e-4
    assert found.bandwidth_fraction > other.bandwidth_fraction  # launches take too much, so reading too little


def test_one_point_alone_tells_no_error() -> None:
    one = group(deployed("llama-2-7b"))
    kept = np.arange(9) < 1
    few = replace(one, rows=1, rounds=None, steps={part: steps.take(kept) for part, steps in one.steps.items()})
    base = calibration_entry([one], source="made", command="none", base=None)
    found = calibration_entry([few], source="made", command="none", base=base)
    assert (found.same_target, found.other_target, found.t_overhead_s) == (None, None, None)
    with pytest.raises(ValueError, match=r"^measured steps: expected at least 3"):
        calibration_entry([few], source="made", command="none", base=None)


def test_a_run_on_several_kinds_of_device_is_refused(tmp_path: Path) -> None:
    run = made.write_run(tmp_path / "run", made.config(), {})
    several = replace(run, environment={"devices": {"H100": {}, "L4": {}}})
    with pytest.raises(ValueError, match=r"expected a run on one kind of device, got H100, L4; .*accelerator_type"):
        groups_of_run(several, load_hardware("h100-sxm"))
