"""From measured steps to a calibration: of a table's groups or a run directory, with the error on what was left out.

    groups = groups_of_run(Run.open(path), entry, tensor_parallel=1)
    calibration_entry(groups, source="runs/mine", command="specgauge plan --calibrate runs/mine …", base=None)

One set of numbers is fitted to all steps of a machine.  Its error is told twice: for shapes it was fitted to (batch
sizes left out in turn), and for others (shapes left out in turn).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from specgauge.configs.fields import EMBEDDED
from specgauge.configs.hardware import (
    CalibrationEntry,
    CalibrationError,
    DraftCalibration,
    DraftError,
    HardwareEntry,
    load_shape,
)
from specgauge.configs.pairs import ModelConfig
from specgauge.model.checks import FloatArray, IntArray, whole_numbers
from specgauge.model.overhead import fit_overhead
from specgauge.model.roofline.calibration import (
    AXES,
    SUM,
    Axis,
    Form,
    HeldOutDraftError,
    HeldOutError,
    MeasuredSteps,
    carried_launch,
    fit_drafts,
    fit_efficiency,
    held_out_error,
    measured_steps,
    rms_error,
    unidentified,
)
from specgauge.model.roofline.deployment import Deployment
from specgauge.model.roofline.step_time import Efficiency
from specgauge.sweeps.analysis.settings import cells_of, run_settings
from specgauge.sweeps.analysis.timings import CellTimings, timings_of
from specgauge.sweeps.foretell.machine import Dtypes, deployment
from specgauge.sweeps.model_sizes import Role, model_folder
from specgauge.sweeps.plan import planned_pairs
from specgauge.sweeps.store.environment import DEVICES
from specgauge.sweeps.store.rundir import PREDICTIONS, Run
from specgauge.sweeps.store.schema import PredictionRow

PARTS = {"t_decode_s": "T_decode", "t_verify_s": "T_verify"}


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What rounds of measured rows took and gained, by which epsilon is known; arrays of one length."""

    tokens_per_round: FloatArray
    t_draft_total_s: FloatArray
    speedup_measured: FloatArray


@dataclass(frozen=True, kw_only=True)
class MeasuredGroup:
    """The rows of one target on one machine, as steps by part (`PARTS`)."""

    target: str
    gpu: str
    rows: int
    steps: Mapping[str, MeasuredSteps]
    rounds: Rounds | None = None
    """None where the table does not say what rounds gained."""
    drafts: tuple[MeasuredSteps, ...] = ()
    """Steps of drafts whose shape is known, as `draft_steps` makes them."""
    t_overhead_s: float | None = None
    """Epsilon, where it was measured by itself."""
    unknown_drafts: tuple[str, ...] = ()
    """Names of timed drafts whose shape is not known."""

    @property
    def machine(self) -> Deployment:
        """What ran them."""
        return self.steps["t_decode_s"].deployment


def draft_steps(
    draft: Deployment, *, batch_size: ArrayLike, context: ArrayLike, gamma: ArrayLike, t_draft_total_s: ArrayLike
) -> MeasuredSteps:
    """C(gamma) as the mean step of each chain, at the context of its middle; arrays of one length.

    Raises:
        ValueError: as `measured_steps`, or a gamma below 1.
    """
    drafts, seconds = whole_numbers("gamma", gamma, minimum=1), np.asarray(t_draft_total_s, dtype=np.float64)
    middle = np.asarray(context) + (drafts - 1) // 2
    return measured_steps(draft, batch_size=batch_size, context=middle, tokens=1, time_s=seconds / drafts)


def groups_of_run(run: Run, entry: HardwareEntry, *, tensor_parallel: int = 1) -> list[MeasuredGroup]:
    """What a run timed of its targets, a group for each pair and mode: a row for every cell and gamma.

    Raises:
        ValueError: nothing was timed, several kinds of device were, or a target's shape is not known.
    """
    devices = run.environment.get(DEVICES) or {}
    if len(devices) > 1:
        raise ValueError(
            f"{run.path}: expected a run on one kind of device, got {', '.join(devices)}; measure a run on the one to "
            "be calibrated (executor.accelerator_type)"
        )
    timed, overheads_s = timings_of(run), _overheads_s(run)
    groups = []
    for pair in planned_pairs(run.config):
        cells = [cell for found in run_settings(run, {}, pairs=[pair.name]) for cell in cells_of(found, timed)]
        unique = {(cell.cell.mode, cell.cell.batch_size, cell.cell.context): cell for cell in cells}
        machine = _of_run(pair.target, "target", entry, tensor_parallel)
        draft = None
        if isinstance(pair.draft, ModelConfig):
            draft = _of_run(pair.draft, "draft", entry, tensor_parallel)
        for mode in dict.fromkeys(key[0] for key in unique):
            own = [cell for key, cell in unique.items() if key[0] == mode]
            group = _group(machine, draft, f"{pair.name}, {mode}", own)
            own_s = overheads_s.get((pair.name, mode))
            groups += [replace(group, t_overhead_s=own_s)] if group is not None else []
    if not groups:
        raise ValueError(f"{run.path}: expected cells with T_decode and T_verify, got none that is timed")
    return groups


def _overheads_s(run: Run) -> dict[tuple[str, str], float]:
    """The median epsilon of the cells of each pair and mode that knows it; none of a run that was stopped before."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in run.rows(PredictionRow) if (run.path / PREDICTIONS).is_file() else ():
        if row.t_overhead_s is not None:
            found.setdefault((row.pair, row.mode), []).append(row.t_overhead_s)
    return {key: float(np.median(values)) for key, values in found.items()}


def _of_run(model: ModelConfig, role: Role, entry: HardwareEntry, tensor_parallel: int) -> Deployment:
    folder = model_folder(model, role)
    if folder is None or model.quantization is not None or model.gguf_file is not None:
        why = "is quantised" if folder is not None else "is not in the local cache"
        raise ValueError(f"{role} {model.model!r} {why}, so its shape is not known; calibrate with a table instead")
    dtype = None if model.dtype == "auto" else model.dtype
    name = f"{model.model} {role}" if model.model == EMBEDDED else model.model
    return deployment(load_shape(folder), name, entry, tensor_parallel=tensor_parallel, dtypes=Dtypes(dtype=dtype))


def _group(
    machine: Deployment, draft: Deployment | None, called: str, cells: Sequence[CellTimings]
) -> MeasuredGroup | None:
    rows = [
        (cell.cell.batch_size, cell.cell.context, gamma, _seconds(cell, "decode"), _seconds(cell, f"verify:{gamma}"))
        for cell in cells
        for gamma in cell.gammas
    ]
    known = [row for row in rows if row[3] is not None and row[4] is not None]
    if not known:
        return None
    batch, context, gamma, decode_s, verify_s = zip(*known, strict=True)
    steps = partial(measured_steps, machine, batch_size=batch, context=context)
    parts = {
        "t_decode_s": steps(tokens=1, time_s=decode_s),
        "t_verify_s": steps(tokens=np.array(gamma) + 1, time_s=verify_s),
    }
    drafts = () if draft is None else _drafts(draft, cells)
    return MeasuredGroup(target=machine.architecture.name, gpu=called, rows=len(known), steps=parts, drafts=drafts)


def _drafts(draft: Deployment, cells: Sequence[CellTimings]) -> tuple[MeasuredSteps, ...]:
    found = [
        (cell.cell.batch_size, cell.cell.context, gamma, float(seconds))
        for cell in cells
        if (arm := cell.arms.get("draft")) is not None and arm.status == "ok"
        for gamma, seconds in enumerate(arm.median_s, start=1)
    ]
    if not found:
        return ()
    batch, context, gamma, seconds = zip(*found, strict=True)
    return (draft_steps(draft, batch_size=batch, context=context, gamma=gamma, t_draft_total_s=seconds),)


def _seconds(cell: CellTimings, arm: str) -> float | None:
    found = cell.arms.get(arm)
    return None if found is None or found.status != "ok" else float(found.median_s[0])


def calibration_entry(
    groups: Sequence[MeasuredGroup], *, source: str, command: str, base: CalibrationEntry | None
) -> CalibrationEntry:
    """One set of numbers for the groups of one kind of device; `base` lends its launch cost where it is given.

    Raises:
        ValueError: fewer steps than numbers to fit.
    """
    form = SUM if base is None else carried_launch(base.launch_s)
    rows = [(group.steps["t_decode_s"], group.steps["t_verify_s"]) for group in groups]
    every = [steps for pair in rows for steps in pair]
    fitted = fit_efficiency(every, form)
    targets = sorted({group.machine.architecture.name.lower() for group in groups})
    drafts = [steps for group in groups for steps in group.drafts]
    return CalibrationEntry(
        bandwidth_fraction=_digits(fitted.bandwidth_fraction),
        flops_fraction=_digits(fitted.flops_fraction),
        launch_s=_digits(fitted.launch_s),
        t_overhead_s=_overhead_s(groups),
        not_identified=list(unidentified(every, fitted, form)),
        steps=sum(steps.time_s.size for steps in every),
        targets=targets,
        tensor_parallel=sorted({group.machine.tensor_parallel for group in groups}),
        batch_sizes=_span([steps.batch_size for steps in every]),
        contexts=_span([steps.context for steps in every]),
        tokens=_span([steps.tokens for steps in every]),
        same_target=next((found for by in AXES if (found := _error(rows, form, by)) is not None), None),
        other_target=_error(rows, form, "target"),
        draft_error=_digits(rms_error(drafts, fitted)) if drafts else None,
        draft=_draft(drafts, fitted) if drafts else None,
        source=source,
        command=command,
    )


def _error(rows: Sequence[tuple[MeasuredSteps, MeasuredSteps]], form: Form, by: Axis) -> CalibrationError | None:
    """None where too little is left to fit."""
    try:
        found: HeldOutError = held_out_error(rows, form, by=by)
    except ValueError:
        return None
    numbers = {name: _digits(value) for name, value in vars(found).items() if name != "held_out"}
    return CalibrationError(held_out=found.held_out, **numbers)


def _draft(drafts: Sequence[MeasuredSteps], fitted: Efficiency) -> DraftCalibration | None:
    """None where no fit of their own predicts drafts better than their targets' numbers do."""
    found = fit_drafts(drafts, fitted)
    if found is None:
        return None
    other = found.other_draft
    return DraftCalibration(
        launch_s=_digits(found.efficiency.launch_s),
        token_s=_digits(found.efficiency.token_s),
        steps=sum(steps.time_s.size for steps in drafts),
        drafts=sorted({steps.deployment.architecture.name.lower() for steps in drafts}),
        same_draft=_draft_error(found.same_draft),
        other_draft=None if other is None else _draft_error(other),
    )


def _draft_error(error: HeldOutDraftError) -> DraftError:
    numbers = {name: _digits(value) for name, value in vars(error).items() if name != "held_out"}
    return DraftError.model_validate({"held_out": error.held_out.replace("target", "draft"), **numbers})


def _overhead_s(groups: Sequence[MeasuredGroup]) -> float | None:
    """One epsilon of all rows whose gain was measured, else the median of those measured; None where there are none."""
    known = [(group, group.rounds) for group in groups if group.rounds is not None]
    if not known:
        own_s = [group.t_overhead_s for group in groups if group.t_overhead_s is not None]
        return _digits(float(np.median(own_s))) if own_s else None

    def column(part: str) -> FloatArray:
        return np.concatenate([group.steps[part].time_s for group, _ in known])

    verify_s = column("t_verify_s")
    fitted = fit_overhead(
        np.concatenate([rounds.tokens_per_round for _, rounds in known]),
        t_decode_s=column("t_decode_s"),
        t_costs_s=np.concatenate([rounds.t_draft_total_s for _, rounds in known]) + verify_s,
        t_verify_s=verify_s,
        speedup_measured=np.concatenate([rounds.speedup_measured for _, rounds in known]),
        groups=["all"] * verify_s.size,
    )
    return _digits(fitted.groups[0].t_overhead_s)


def _span(columns: Sequence[IntArray]) -> list[int]:
    joined = np.concatenate(columns)
    return [int(joined.min()), int(joined.max())]


def _digits(value: float) -> float:
    """To five significant digits, which is more than any of them is known to."""
    return float(f"{value:.5g}")
