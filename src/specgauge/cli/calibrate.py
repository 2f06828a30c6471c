"""`specgauge plan --calibrate`: how well a roofline fitted to measured times predicts those left out, and the fit.

A table of measured times (columns of `MeasuredRow`) or a run directory is fitted and cross-validated for each target
and machine, beside a + b · batch + c · batch · context; all rows of one device together become the calibration of its
entry.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from specgauge.cli.parsing import read_table
from specgauge.configs.errors import did_you_mean
from specgauge.configs.hardware import (
    HARDWARE,
    SHAPES,
    CalibrationEntry,
    CalibrationError,
    HardwareEntry,
    load_hardware,
    load_shape,
)
from specgauge.configs.yaml_reader import config_text
from specgauge.model.checks import LARGEST_GAMMA
from specgauge.model.roofline.architecture import architecture_from_config
from specgauge.model.roofline.calibration import (
    FORMS,
    SUM,
    Axis,
    Calibration,
    Comparison,
    MeasuredSteps,
    compare,
    cross_validate,
    impossible_pairs,
    measured_steps,
    roofline_fit,
)
from specgauge.model.roofline.deployment import Deployment
from specgauge.model.roofline.step_time import step_time_s
from specgauge.sweeps.foretell.calibration import (
    PARTS,
    MeasuredGroup,
    Rounds,
    calibration_entry,
    draft_steps,
    groups_of_run,
)
from specgauge.sweeps.foretell.machine import Dtypes, deployment, windowed
from specgauge.sweeps.store.files import write_text_atomically
from specgauge.sweeps.store.rundir import Run, check_written
from specgauge.sweeps.store.schema import OPEN, BatchSize, Positive, Text, Whole
from specgauge.sweeps.text_table import text_table

FEWEST_ROWS = 8
"""Rows a target and machine need to be calibrated on by themselves; smaller groups are only predicted."""
MISS = 0.05
"""Held-out relative error from which a row is listed."""


@pydantic_dataclass(frozen=True, kw_only=True, config=OPEN)
class MeasuredRow:
    """A row of a table of measured times."""

    target: Annotated[Text, Field(min_length=1)]
    draft: Text | None = None
    """A shape, or a name with `self` in it: the target with a smaller cache."""
    gpu: Annotated[Text, Field(min_length=1)]
    batch_size: BatchSize
    context: Whole
    gamma: Annotated[Whole, Field(le=LARGEST_GAMMA)]
    t_decode_s: Positive
    t_verify_s: Positive
    t_draft_total_s: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)] | None = None
    tokens_per_round: Annotated[float, Field(strict=True, allow_inf_nan=False, ge=1)] | None = None
    speedup_measured: Positive | None = None
    """These three, where every row of a target has them, tell epsilon."""


def measured_groups(
    path: Path,
    *,
    aliases: Mapping[str, str],
    dtype: str | None = None,
    hardware: str | None = None,
    tensor_parallel: int = 1,
    draft_window: int | None = None,
) -> list[MeasuredGroup]:
    """The groups of a table, or of a run directory on an entry that is named.

    Raises:
        ValueError: as `read_groups`; for a run, no entry or nothing that was timed; an option that tells nothing of it.
    """
    if not path.is_dir():
        if tensor_parallel != 1:
            expected = "expected none beside a table, whose gpu column tells it, such as 8xA100"
            raise ValueError(f"--tensor-parallel: {expected}, got {tensor_parallel}")
        return read_groups(path, aliases=aliases, dtype=dtype or "bfloat16", draft_window=draft_window)
    given = {"--alias": aliases, "--dtype": dtype, "--draft-window": draft_window}
    told = [name for name, value in given.items() if value]
    if told:
        raise ValueError(f"{told[0]}: expected a table beside it, got the run {path}, whose models are known")
    if hardware is None:
        raise ValueError(f"--hardware: expected the entry of the machine that {path} was measured on, got none")
    return groups_of_run(Run.open(path), load_hardware(hardware), tensor_parallel=tensor_parallel)


def read_groups(
    path: Path, *, aliases: Mapping[str, str], dtype: str = "bfloat16", draft_window: int | None = None
) -> list[MeasuredGroup]:
    """Groups in order of appearance; `aliases` say which shape or hardware entry a name of the table means.

    draft_window: tokens that the drafts' caches hold at most.

    Raises:
        ValueError: the table cannot be read (file, line, column), has a row twice, or a name of it means nothing.
    """
    grouped: dict[tuple[str, str], list[MeasuredRow]] = {}
    seen: dict[MeasuredRow, int] = {}
    for number, row in enumerate(read_table(path, MeasuredRow).rows, start=1):
        if row in seen:
            point = f"{row.target} on {row.gpu}, batch size {row.batch_size}, context {row.context}, gamma {row.gamma}"
            raise ValueError(f"{path}: expected every row once, got row {seen[row]} again as row {number}: {point}")
        seen[row] = number
        grouped.setdefault((row.target, row.gpu), []).append(row)
    return [_group(target, gpu, rows, aliases, dtype, draft_window) for (target, gpu), rows in grouped.items()]


def _group(
    target: str,
    gpu: str,
    rows: Sequence[MeasuredRow],
    aliases: Mapping[str, str],
    dtype: str,
    draft_window: int | None,
) -> MeasuredGroup:
    match = re.fullmatch(r"(?:(\d+)x)?(.+)", gpu, flags=re.DOTALL)
    assert match is not None
    shape = aliases.get(target) or _shipped("target", target, SHAPES)
    machine = deployment(
        load_shape(shape),
        Path(shape).name,
        load_hardware(aliases.get(match[2]) or _shipped("gpu", match[2], HARDWARE)),
        tensor_parallel=int(match[1] or 1),
        dtypes=Dtypes(dtype=dtype),
    )
    steps = {
        part: measured_steps(
            machine,
            batch_size=[row.batch_size for row in rows],
            context=[row.context for row in rows],
            tokens=[1 if part == "t_decode_s" else row.gamma + 1 for row in rows],
            time_s=[getattr(row, part) for row in rows],
        )
        for part in PARTS
    }
    timed: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        if row.draft and row.gamma and row.t_draft_total_s:
            timed.setdefault(row.draft, []).append(row)
    known = [name for name in timed if "self" in name or name in aliases or _nearest_shape(name) is not None]
    return MeasuredGroup(
        target=target,
        gpu=gpu,
        rows=len(rows),
        steps=steps,
        rounds=_rounds(rows),
        drafts=tuple(_drafts(name, timed[name], machine, aliases, draft_window) for name in known),
        unknown_drafts=tuple(name for name in timed if name not in known),
    )


def _drafts(
    name: str, own: Sequence[MeasuredRow], target: Deployment, aliases: Mapping[str, str], window: int | None
) -> MeasuredSteps:
    draft = target
    if name in aliases or "self" not in name:
        shape = aliases.get(name) or _nearest_shape(name) or name
        architecture = architecture_from_config(load_shape(shape), name=Path(shape).name)
        draft = replace(target, architecture=architecture)
    return draft_steps(
        draft if window is None else windowed(draft, window),
        batch_size=[row.batch_size for row in own],
        context=[row.context for row in own],
        gamma=[row.gamma for row in own],
        t_draft_total_s=np.array([row.t_draft_total_s for row in own], dtype=np.float64),
    )


def _nearest_shape(name: str) -> str | None:
    try:
        return _shipped("draft", name, SHAPES)
    except ValueError:
        return None


def _rounds(rows: Sequence[MeasuredRow]) -> Rounds | None:
    columns = {name: [getattr(row, name) for row in rows] for name in Rounds.__dataclass_fields__}
    if any(value is None for column in columns.values() for value in column):
        return None
    return Rounds(**{name: np.array(column, dtype=np.float64) for name, column in columns.items()})


def _shipped(column: str, name: str, known: Collection[str]) -> str:
    """The one shipped name that begins like `name`, or that `name` begins with, punctuation aside."""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    bares = {re.sub(r"[^a-z0-9]", "", each): each for each in known}
    found = [bare] if bare in bares else [key for key in bares if key.startswith(bare) or bare.startswith(key)]
    if len(found) != 1:
        guess = did_you_mean(name, known)
        raise ValueError(
            f"{column}: expected one of {', '.join(known)}, got {name!r}{guess}; name it with --alias {name}=NAME"
        )
    return bares[found[0]]


def compare_groups(groups: Sequence[MeasuredGroup], path: Path, *, by: Axis) -> list[tuple[MeasuredGroup, Comparison]]:
    """The groups that are large enough to leave values of `by` out in turn, each with its held-out errors.

    Raises:
        ValueError: no group is.
    """
    large = [each for each in groups if each.rows >= FEWEST_ROWS and len(set(each.steps["t_decode_s"].labels(by))) > 1]
    if not large:
        raise ValueError(
            f"{path}: expected a target and machine with at least {FEWEST_ROWS} rows and two values of {by}, to leave "
            f"each out in turn, got at most {max(each.rows for each in groups)} rows of one"
        )
    return [(each, compare(each.steps, by=by)) for each in large]


def calibrated_entry(
    groups: Sequence[MeasuredGroup], hardware: str, *, source: str, command: str, launch_of: str | None = None
) -> HardwareEntry:
    """An entry with the calibration of the groups on that device; launch_of: the entry that lends its launch cost.

    Raises:
        ValueError: no group is on that device, too few steps, or an entry to borrow from that is not calibrated.
    """
    entry = load_hardware(hardware)
    own = [group for group in groups if group.machine.hardware.name == entry.name]
    if not own:
        found = ", ".join(dict.fromkeys(group.machine.hardware.name for group in groups))
        raise ValueError(f"--hardware: expected one of the measured {found}, got {entry.name!r}")
    base = None if launch_of is None else load_hardware(launch_of).calibration
    if launch_of is not None and base is None:
        raise ValueError(f"--launch-of: expected an entry with a calibration, got {launch_of!r} without one")
    fitted = calibration_entry(own, source=source, command=command, base=base)
    return entry.model_copy(update={"calibration": fitted})


def write_entry(entry: HardwareEntry, out: Path) -> None:
    """The entry's file, which `--hardware FILE` takes; one that was so written for the same machine is replaced.

    Raises:
        ValueError: `out` is no file, in no folder, holds what a run measured, or is a file of another kind.
        StorageError: the disk refused the write.
    """
    check_written(out, "mine.yaml")
    if out.exists() and not _is_entry_of(entry, out):
        raise ValueError(
            f"{out}: expected a new file, or one that specgauge wrote for {entry.name} with the same peaks, got "
            "another, which is kept; name a new file, or move that one"
        )
    write_text_atomically(out, entry.to_yaml())


def _is_entry_of(entry: HardwareEntry, path: Path) -> bool:
    """Whether the file is, to the byte, what this program writes for the machine, calibration aside."""
    try:
        there, text = load_hardware(path), config_text(path)
    except ValueError:
        return False
    plain = {"calibration": None}
    return there.to_yaml() == text and there.model_copy(update=plain) == entry.model_copy(update=plain)


def entries_text(entries: Sequence[HardwareEntry], groups: Sequence[MeasuredGroup] = ()) -> str:
    """Calibrations with all rows of a device, the errors on what was left out first; what of the groups is not in."""
    rows: list[list[object]] = []
    for entry in entries:
        fitted = entry.calibration
        assert fitted is not None
        epsilon = None if fitted.t_overhead_s is None else f"{fitted.t_overhead_s * 1e3:.2f} ms"
        rows.append(
            [
                entry.name,
                fitted.steps,
                _error_text(fitted.same_target),
                _error_text(fitted.other_target),
                _fraction("bandwidth_fraction", fitted),
                _fraction("flops_fraction", fitted),
                f"{fitted.launch_s * 1e6:.0f} µs",
                epsilon,
            ]
        )
    headings = ["device", "steps", "same target", "another", "bandwidth", "FLOPs", "launch", "epsilon"]
    head = "all rows of a device together; error on what was left out: mean (worst)"
    lines = [head, text_table(headings, rows)]
    if any("*" in str(row) for row in rows):
        lines.append("* at the peak, or hardly told by these steps")
    unknown = list(dict.fromkeys(name for group in groups for name in group.unknown_drafts))
    left_out = [f"drafts of unknown shape, left out: {', '.join(unknown)}; name them with --alias NAME=SHAPE"]
    return "\n".join([*lines, *_drafts_text(entries), *(left_out if unknown else ())])


def _drafts_text(entries: Sequence[HardwareEntry]) -> list[str]:
    """What drafts take beyond their targets' numbers, the errors on times left out first."""
    rows: list[list[object]] = []
    for entry in entries:
        fitted = entry.calibration
        if fitted is None or fitted.draft_error is None:
            continue
        own, plain = fitted.draft, f"{fitted.draft_error:.1%}"
        if own is None:
            rows.append([entry.name, None, None, None, plain, None, None])
            continue
        errors = [None if one is None else f"{one.rms:.1%}" for one in (own.same_draft, own.other_draft)]
        costs = (f"{own.launch_s * 1e6:.0f} µs", f"{own.token_s * 1e6:.1f} µs")
        rows.append([entry.name, own.steps, *errors, plain, *costs])
    if not rows:
        return []
    headings = ["device", "steps", "same draft", "another", "as the target", "launch", "a token"]
    lines = ["", "drafts, C(gamma); root mean square error on what was left out", text_table(headings, rows)]
    if any(row[1] is None for row in rows):
        lines.append("without numbers of their own: times too few, or no fit predicts those left out better")
    return lines


def _error_text(error: CalibrationError | None) -> str | None:
    return None if error is None else f"{error.mean:.1%} ({error.worst:.1%})"


def _fraction(name: str, fitted: CalibrationEntry) -> str:
    return f"{getattr(fitted, name):.1%}{'*' if name in fitted.not_identified else ''}"


def calibration_text(
    compared: Sequence[tuple[MeasuredGroup, Comparison]], groups: Sequence[MeasuredGroup], *, forms: bool
) -> str:
    """Held-out errors, fitted numbers and misses of each group, and what its efficiencies predict on other machines."""
    sections = [_comparison_text(group, comparison) for group, comparison in compared]
    if forms:
        sections.append(_forms_text([group for group, _ in compared], by=compared[0][1].line["t_decode_s"].by))
    sections += _carried_text(compared, groups)
    return "\n\n".join(sections)


def _comparison_text(group: MeasuredGroup, comparison: Comparison) -> str:
    by = comparison.line["t_decode_s"].by
    rows: list[list[str]] = []
    for part, symbol in PARTS.items():
        fits = (comparison.line[part], comparison.alone[part], comparison.together[part])
        rows.append([symbol, *(f"{held.mean_abs_error:.2%} ({held.worst_abs_error:.1%})" for held in fits)])
        by_value = [held.by_value() for held in fits]
        rows += [[f"  {by} {value}", *(f"{errors[value]:.2%}" for errors in by_value)] for value in sorted(by_value[0])]
    lines = [
        f"{group.target} on {group.gpu}, {group.rows} rows; {by} held out, absolute relative error: mean (worst)",
        text_table(["", "plain line", "roofline, same rows", "roofline, both parts"], rows),
        "plain line: a + b · batch + c · batch · context, blind to model and machine",
        f"fitted on all: {fitted_text(comparison.calibration)}",
    ]
    return "\n".join([*lines, *_misses(comparison)])


def fitted_text(calibration: Calibration) -> str:
    """One line: the fitted numbers, and the error on steps left out."""
    fitted = calibration.efficiency
    words = {
        "bandwidth_fraction": f"bandwidth {fitted.bandwidth_fraction:.1%}",
        "flops_fraction": f"FLOPs {fitted.flops_fraction:.1%} of peak",
        "launch_s": f"launch {fitted.launch_s * 1e6:.1f} µs a layer",
        "token_s": f"{fitted.token_s * 1e6:.2f} µs a token",
    }
    unsure = calibration.unidentified
    line = ", ".join(words[name] + (" (not identified)" if name in unsure else "") for name in SUM.free)
    count = sum(group.time_s.size for group in calibration.groups)
    if calibration.held_out_error is None:
        return f"{line}; {count} steps, no second value to hold out"
    worst = max(part.worst_abs_error for part in calibration.held_out)
    by = calibration.held_out[0].by
    return f"{line}; {count} steps, error held out by {by}: mean {calibration.held_out_error:.2%}, worst {worst:.1%}"


def _misses(comparison: Comparison) -> list[str]:
    """Rows that the roofline misses, values where the line is nearer, and pairs of rows that no roofline fits."""
    lines = []
    for part, symbol in PARTS.items():
        held = comparison.together[part]
        steps = held.steps
        for i in np.flatnonzero(np.abs(held.relative_error) > MISS):
            lines.append(
                f"misses {symbol} at batch_size {steps.batch_size[i]}, context {steps.context[i]}: predicted "
                f"{held.predicted_s[i] * 1e3:.2f} ms, measured {steps.time_s[i] * 1e3:.2f} ms "
                f"({held.relative_error[i]:+.1%})"
            )
        line, roofline = comparison.line[part].by_value(), held.by_value()
        lines += [
            f"the plain line is nearer for {symbol} at {held.by} {value}: {line[value]:.2%} against "
            f"{roofline[value]:.2%}"
            for value in sorted(roofline)
            if roofline[value] > line[value]
        ]
        peak = steps.deployment.hardware.bandwidth()
        lines += [
            f"no roofline fits both {symbol} at batch_size {steps.batch_size[first]}, context {steps.context[first]} "
            f"and {steps.context[second]}: their difference implies {rate / 1e12:.2f} TB/s, the peak is "
            f"{peak / 1e12:.2f}"
            for first, second, rate in impossible_pairs(steps)
        ]
    return lines or [f"no row misses by over {MISS:.0%}, and the plain line is nowhere nearer"]


def _forms_text(groups: Sequence[MeasuredGroup], *, by: Axis) -> str:
    """Every form that was tried: held-out mean absolute error, one set of numbers for both parts of a group."""
    rows = []
    for form in FORMS:
        held = [
            each for group in groups for each in cross_validate(list(group.steps.values()), roofline_fit(form), by=by)
        ]
        rows.append([form.name, len(form.free), *(f"{each.mean_abs_error:.2%}" for each in held)])
    headings = ["form", "numbers", *(f"{group.target} {symbol}" for group in groups for symbol in PARTS.values())]
    return "forms tried, held-out mean absolute relative error\n" + text_table(headings, rows)


def _carried_text(compared: Sequence[tuple[MeasuredGroup, Comparison]], groups: Sequence[MeasuredGroup]) -> list[str]:
    """What the efficiencies of calibrated groups predict for the same target on other machines."""
    rows = []
    for calibrated, comparison in compared:
        for group in groups:
            if group.target != calibrated.target or group.gpu == calibrated.gpu:
                continue
            for part, symbol in PARTS.items():
                steps = group.steps[part]
                ratio = step_time_s(steps.work(), steps.deployment, comparison.calibration.efficiency) / steps.time_s
                span = f"{ratio.min():.2f} to {ratio.max():.2f}"
                rows.append([group.target, group.gpu, symbol, group.rows, span, f"{np.abs(ratio - 1).mean():.1%}"])
    headings = ["target", "gpu", "part", "rows", "predicted / measured", "mean absolute error"]
    head = "carried to other machines (fractions and launch cost kept, peaks swapped; nothing fitted there)"
    return [f"{head}\n{text_table(headings, rows)}"] if rows else []
