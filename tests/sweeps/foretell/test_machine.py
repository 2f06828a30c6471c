"""Pairs on machines from what their parts are called; what an entry's calibration makes of their error."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specgauge.configs.hardware import (
    CalibrationEntry,
    CalibrationError,
    DraftCalibration,
    DraftError,
    load_hardware,
    load_shape,
)
from specgauge.model.roofline.costs import TimeErrors
from specgauge.model.roofline.drafts import eagle3_head
from specgauge.model.roofline.step_time import Efficiency
from specgauge.sweeps.foretell.machine import Dtypes, PlannedPair, planned_pair

OWN = CalibrationError(held_out="batch_size", mean=0.01, worst=0.02, decode=0.03, verify=0.04, ratio=0.02)
OTHER = CalibrationError(held_out="target", mean=0.05, worst=0.09, decode=0.06, verify=0.05, ratio=0.04)
FITTED = CalibrationEntry(
    bandwidth_fraction=0.8,
    flops_fraction=0.5,
    launch_s=1e-5,
    not_identified=[],
    steps=10,
    targets=["llama-2-7b"],
    tensor_parallel=[1],
    batch_sizes=[1, 8],
    contexts=[64, 512],
    tokens=[1, 4],
    same_target=OWN,
    other_target=OTHER,
    source="made",
    command="none",
)


def entry(folder: Path, **changes: object) -> str:
    """The path of an A100's entry with a calibration."""
    path = folder / "entry.yaml"
    made = load_hardware("a100-80gb-sxm").model_copy(update={"calibration": FITTED.model_copy(update=changes)})
    path.write_text(made.to_yaml(), encoding="utf-8")
    return str(path)


def pair(hardware: str, target: str = "llama-2-7b", draft: str | None = "tinyllama-1.1b", **more: Any) -> PlannedPair:
    return planned_pair(target, draft, hardware, dtypes=Dtypes(dtype="bf16"), **more)


def test_the_error_is_that_of_the_shape_where_it_was_calibrated(tmp_path: Path) -> None:
    hardware = entry(tmp_path)
    assert pair(hardware).error == OWN
    assert pair(hardware, "Llama-2-7B").error == OWN
    assert pair(hardware, "llama-3.1-8b", "llama-3.2-1b").error == OTHER
    assert pair(entry(tmp_path, other_target=None), "llama-3.1-8b", "llama-3.2-1b").error == OWN
    assert pair(entry(tmp_path, same_target=None, other_target=None)).time_errors is None
    assert pair("b200-sxm").time_errors is None


def test_drafts_are_off_as_they_were_measured_or_as_the_target(tmp_path: Path) -> None:
    assert pair(entry(tmp_path)).time_errors == TimeErrors(decode=0.03, verify=0.04, ratio=0.02, draft=0.04)
    assert pair(entry(tmp_path, draft_error=0.2)).time_errors == TimeErrors(
        decode=0.03, verify=0.04, ratio=0.02, draft=0.2
    )


def test_drafts_take_their_own_numbers_with_the_error_of_their_shape(tmp_path: Path) -> None:
    own, other = (DraftError(held_out="batch_size", mean=0.01, worst=0.02, rms=rms) for rms in (0.03, 0.08))
    fitted = DraftCalibration(
        launch_s=3e-5, token_s=1e-6, steps=5, drafts=["tinyllama-1.1b"], same_draft=own, other_draft=other
    )
    hardware = entry(tmp_path, draft_error=0.2, draft=fitted)
    known, unknown, lookups = (pair(hardware, draft=draft) for draft in ("tinyllama-1.1b", "eagle3", None))
    assert (known.draft_error, unknown.draft_error, lookups.draft_error) == (own, other, None)
    assert [one.time_errors and one.time_errors.draft for one in (known, unknown)] == [0.03, 0.08]
    assert known.draft_efficiency == Efficiency(bandwidth_fraction=0.8, flops_fraction=0.5, launch_s=3e-5, token_s=1e-6)
    assert known.efficiency == replace(known.draft_efficiency, launch_s=1e-5, token_s=0.0)
    plain = pair(entry(tmp_path)).source().costs(8, 64, [2])
    more = 2 * (22 * 2e-5 + 8 * 1e-6)
    assert known.source().costs(8, 64, [2]).t_draft_total_s == pytest.approx(plain.t_draft_total_s + more, rel=1e-12)
    alone = entry(tmp_path, draft=fitted.model_copy(update={"other_draft": None}))
    assert pair(alone, draft="eagle3").draft_error == own


def test_costs_take_the_fitted_numbers_and_epsilon(tmp_path: Path) -> None:
    costs = pair(entry(tmp_path, t_overhead_s=0.002)).source().costs(1, 64, [1, 2])
    assert costs.t_overhead_s is not None
    assert costs.t_overhead_s.tolist() == [0.002, 0.002]
    free = planned_pair("llama-2-7b", "tinyllama-1.1b", entry(tmp_path), calibrated=False)
    assert (free.efficiency, free.source().costs(1, 64, [1]).is_optimistic) == (None, True)


def test_a_draft_that_does_not_divide_can_be_copied() -> None:
    with pytest.raises(ValueError, match=r"^smollm2-135m: .*; a draft can also be copied to every device \(draft tens"):
        pair("h100-sxm", "llama-2-7b", "smollm2-135m", tensor_parallel=4)
    copied = pair("h100-sxm", "llama-2-7b", "smollm2-135m", tensor_parallel=4, draft_tensor_parallel=1)
    assert copied.draft is not None
    assert (copied.draft.tensor_parallel, copied.target.tensor_parallel) == (1, 4)


def test_the_config_of_a_draft_head_is_known_as_one(tmp_path: Path) -> None:
    head = eagle3_head(load_shape("llama-3.1-8b"))
    (tmp_path / "config.json").write_text(json.dumps(head), encoding="utf-8")
    own, made = (planned_pair("llama-3.1-8b", draft, "h100-sxm") for draft in (str(tmp_path), "eagle3"))
    assert own.draft is not None
    assert made.draft is not None
    assert (own.draft_kind, made.draft_kind) == ("eagle3", "eagle3")
    assert own.draft.weight_bytes_held == made.draft.weight_bytes_held == 2 * 424_689_664


def test_a_window_bounds_a_drafts_cache() -> None:
    short = pair("h100-sxm", "gemma-2-9b", "gemma-2-9b", draft_window=1000)
    assert short.draft is not None
    assert set(short.draft.architecture.windows) == {1000}
    assert short.target.architecture.windows == (4096, None) * 21


def test_the_first_layers_are_stored_as_their_target_is() -> None:
    found = planned_pair("llama-3.1-8b", "layers: 4", "h100-sxm", dtypes=Dtypes(weights="fp8"))
    assert found.draft is not None
    assert (found.draft.precision, found.draft.shares_weights) == (found.target.precision, True)
    assert found.target.precision.compute == "float8"
