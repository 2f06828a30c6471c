"""MagicDec's rows foretold from shapes and shipped calibrations: times, drafts, speed-ups and their intervals.

The draft's cost is foretold too (its shape, and a cache of 512 tokens); of a row only the tokens of a round are taken.
"""

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specgauge.cli.calibrate import read_groups
from specgauge.configs.hardware import load_hardware
from specgauge.model.acceptance.profiles import profile_from_tokens_per_round
from specgauge.model.roofline.calibration import MeasuredSteps, compare, fit_efficiency
from specgauge.model.roofline.step_time import step_time_s
from specgauge.model.speedup import speedups
from specgauge.sweeps.foretell.calibration import MeasuredGroup, calibration_entry
from specgauge.sweeps.foretell.document import Plan, plan_document
from specgauge.sweeps.foretell.machine import Dtypes, PlannedPair, planned_pair

SHAPES = {"Llama2-7B-32K": "llama-2-7b", "Llama3.1-8B": "llama-3.1-8b"}
CARDS = {"A100": "a100-80gb-sxm", "H100": "h100-sxm", "L40": "l40"}
TABLE = Path(__file__).parent / "magicdec.csv"
ROWS = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))


@cache
def foretold(calibrated: bool = True) -> list[dict[str, Any]]:
    """The one γ of the plan of each row, with the row's measurements."""
    found = []
    for row in ROWS:
        devices, card = row["gpu"].split("x")
        target, gamma = SHAPES[row["target"]], int(row["gamma"])
        pair = planned_pair(
            target,
            "tinyllama-1.1b" if row["draft"].startswith("Tiny") else target,
            CARDS[card],
            tensor_parallel=int(devices),
            draft_window=512,
            dtypes=Dtypes(dtype="bfloat16"),
            calibrated=calibrated,
        )
        profile = profile_from_tokens_per_round([gamma], [float(row["tokens_per_round"])])
        plan = Plan(
            pair=pair,
            acceptance=profile.at([gamma]),
            given={"source": "tokens_per_round"},
            batch_sizes=[int(row["batch_size"])],
            contexts=[int(row["context"])],
        )
        (point,) = plan_document(plan)["points"]
        (at,) = point["by_gamma"]
        found.append({**at, "t_decode_s": point["t_decode_s"], "row": row})
    return found


def errors(name: str, measured: str, found: list[dict[str, Any]]) -> Any:
    return np.array([one[name] / float(one["row"][measured]) - 1 for one in found])


def on(gpu: str, target: str = "Llama") -> list[dict[str, Any]]:
    return [one for one in foretold() if one["row"]["gpu"].endswith(gpu) and one["row"]["target"].startswith(target)]


@pytest.mark.parametrize(
    ("target", "mean", "worst"), [("Llama2-7B-32K", 0.0100, 0.032), ("Llama3.1-8B", 0.0200, 0.093)]
)
def test_batch_sizes_left_out_of_the_fit(target: str, mean: float, worst: float) -> None:
    groups = read_groups(TABLE, aliases={})
    (steps,) = (group.steps for group in groups if (group.target, group.gpu) == (target, "8xA100"))
    found = compare(steps, by="batch_size").calibration
    assert found.held_out_error is not None
    assert found.held_out_error <= mean
    assert max(part.worst_abs_error for part in found.held_out) <= worst + 5e-4


CARRIED = {
    ("Llama2-7B-32K", "8xL40"): (0.106, 0.126),
    ("Llama2-7B-32K", "4xH100"): (0.204, 0.241),
    ("Llama3.1-8B", "8xL40"): (0.138, 0.116),
    ("Llama3.1-8B", "4xH100"): (0.070, 0.133),
    ("Llama3.1-8B", "8xH100"): (0.124, 0.292),
}
"""Mean errors of T_decode and T_verify by the fit of the same target on 8 A100."""


def test_carried_to_other_machines() -> None:
    groups = read_groups(TABLE, aliases={})
    fits = {one.target: fit_efficiency(list(one.steps.values())) for one in groups if one.gpu == "8xA100"}
    for group in groups:
        if group.gpu != "8xA100":
            for steps, most in zip(group.steps.values(), CARRIED[group.target, group.gpu], strict=True):
                ratio = step_time_s(steps.work(), steps.deployment, fits[group.target]) / steps.time_s
                assert np.abs(ratio - 1).mean() <= most + 5e-4


@pytest.mark.parametrize(
    ("gpu", "target", "decode", "verify"),
    [
        ("A100", "Llama2-7B", 0.010, 0.011),
        ("A100", "Llama3.1-8B", 0.025, 0.028),
        ("H100", "Llama", 0.024, 0.022),
        ("L40", "Llama", 0.008, 0.023),
    ],
)
def test_times_of_the_target(gpu: str, target: str, decode: float, verify: float) -> None:
    assert np.abs(errors("t_decode_s", "t_decode_s", on(gpu, target))).mean() <= decode
    assert np.abs(errors("t_verify_s", "t_verify_s", on(gpu, target))).mean() <= verify


def test_speedups_where_nothing_but_acceptance_is_measured() -> None:
    found = foretold()
    error = np.abs(errors("speedup", "speedup_measured", found))
    assert len(found) == 59
    assert error.mean() <= 0.036
    assert error.max() <= 0.12
    uncalibrated = np.abs(errors("speedup", "speedup_measured", foretold(calibrated=False)))
    assert uncalibrated.mean() == pytest.approx(0.67, abs=0.005)


def test_speedups_of_batch_sizes_that_no_fit_has_seen() -> None:
    """Target, draft and epsilon are fitted to the other rows of 8 A100; tokens of a round alone are taken of a row."""
    groups = [one for one in read_groups(TABLE, aliases={}, draft_window=512) if one.gpu == "8xA100"]
    off = []
    for size in (32, 48, 64, 128, 256):
        kept = [without(group, size) for group in groups]
        fitted = calibration_entry(kept, source="made", command="none", base=None)
        entry = load_hardware("a100-80gb-sxm").model_copy(update={"calibration": fitted})
        for group in groups:
            for draft in group.drafts:
                pair = PlannedPair(target=group.machine, draft=draft.deployment, draft_kind="model", entry=entry)
                own = [row for row in ROWS if is_of(row, group, draft) and int(row["batch_size"]) == size]
                for row in own:
                    costs = pair.source().costs(size, int(row["context"]), [int(row["gamma"])])
                    acceptance = profile_from_tokens_per_round([int(row["gamma"])], [float(row["tokens_per_round"])])
                    gain = speedups(costs, acceptance.at([int(row["gamma"])]), batch_size=size)
                    off.append(abs(float(gain[0]) / float(row["speedup_measured"]) - 1))
    assert (len(off), np.mean(off), max(off)) == pytest.approx((47, 0.035, 0.121), abs=5e-4)


def without(group: MeasuredGroup, batch_size: int) -> MeasuredGroup:
    """The group without a batch size."""
    kept = group.steps["t_decode_s"].batch_size != batch_size
    assert group.rounds is not None
    columns: dict[str, Any] = {name: values[kept] for name, values in vars(group.rounds).items()}
    return replace(
        group,
        rows=int(kept.sum()),
        steps={part: steps.take(kept) for part, steps in group.steps.items()},
        rounds=replace(group.rounds, **columns),
        drafts=tuple(steps.take(steps.batch_size != batch_size) for steps in group.drafts),
    )


def is_of(row: dict[str, str], group: MeasuredGroup, draft: MeasuredSteps) -> bool:
    """Whether a row is that target on that machine with that draft."""
    is_tiny = draft.deployment.architecture.name.startswith("tiny")
    return (row["target"], row["gpu"]) == (group.target, group.gpu) and row["draft"].startswith("Tiny") == is_tiny


def test_nine_of_ten_intervals_hold_what_was_measured() -> None:
    inside = [one["low"] <= float(one["row"]["speedup_measured"]) <= one["high"] for one in foretold()]
    assert 0.85 <= np.mean(inside) <= 1.0


def test_which_rows_pay_is_foretold() -> None:
    """Of rows whose interval leaves out 1 the side of break-even is the measured one, for 49 of 51."""
    sure = [one for one in foretold() if one["low"] > 1 or one["high"] < 1]
    right = [(one["speedup"] > 1) == (float(one["row"]["speedup_measured"]) > 1) for one in sure]
    assert (len(sure), sum(right)) == (51, 49)
