"""`specgauge plan`: a pair on a machine as the roofline predicts it, and how far that is from measured times.

A plan joins costs from two shapes and a hardware entry with one acceptance rate: S, the best gamma, what bounds each
part and the largest batch at every batch size and context; nothing is measured.  A table of measured times (columns of
`MeasuredRow`) is fitted and cross-validated for each target and machine, beside a plain line in (1, B, B·s).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as pydantic_dataclass

from specgauge.cli.parsing import read_table
from specgauge.configs.errors import did_you_mean
from specgauge.configs.hardware import HARDWARE, SHAPES, load_hardware, load_shape
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.acceptance.profiles import profile_from_alpha
from specgauge.model.costs import CostSource
from specgauge.model.decision import OPTIMISTIC, estimate_speedup
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
from specgauge.model.roofline.deployment import Deployment, Hardware, Precision, largest_batch, precision_of
from specgauge.model.roofline.step_time import step_parts_s, step_time_s, step_work
from specgauge.model.settings import Provenance
from specgauge.model.speedup import round_times_s
from specgauge.sweeps.sources import cost_source
from specgauge.sweeps.store.schema import OPEN, Count, Positive, Text, Whole
from specgauge.sweeps.text_table import milliseconds, text_table

PARTS = {"t_decode_s": "T_decode", "t_verify_s": "T_verify"}
FEWEST_ROWS = 8
"""Rows a target and machine need to be calibrated on; smaller groups are only predicted."""
MISS = 0.05
"""Held-out relative error from which a row is listed."""


def deployment(shape: str, hardware: str, *, tensor_parallel: int = 1, dtype: str | None = None) -> Deployment:
    """A shape (name, config.json or folder) on an entry (name or YAML file); `dtype` None is the config's own.

    Raises:
        ValueError: an unknown name, or what does not fit together.
    """
    architecture = architecture_from_config(load_shape(shape), name=Path(shape).name)
    precision = precision_of(architecture) if dtype is None else Precision(weights=dtype, kv_cache=dtype, compute=dtype)
    card = Hardware(**load_hardware(hardware).plain())
    return Deployment(architecture=architecture, hardware=card, precision=precision, tensor_parallel=tensor_parallel)


def plan_pair(
    target: str,
    draft: str | None,
    hardware: str,
    *,
    tensor_parallel: int = 1,
    dtype: str | None = None,
    alpha: float,
    batch_sizes: Sequence[int],
    contexts: Sequence[int],
    gammas: Sequence[int],
) -> dict[str, Any]:
    """The document of a plan: both models on the machine, and a row for each batch size and context.

    Raises:
        ValueError: an unknown name, models that do not fit the machine's devices, or an alpha outside [0, 1].
    """
    on_machine = partial(deployment, hardware=hardware, tensor_parallel=tensor_parallel, dtype=dtype)
    target_model, draft_model = on_machine(target), None if draft is None else on_machine(draft)
    source = cost_source("roofline", target=target_model, draft=draft_model)
    bandwidth = load_hardware(hardware).memory_bandwidth_bytes_per_s
    probed = bandwidth is not None and bandwidth.source.startswith("specgauge.bench.probe")
    card, compute = target_model.hardware, target_model.precision.compute
    accepted = profile_from_alpha(alpha).at(gammas)
    return {
        "provenance": Provenance.PREDICTED.label,
        "label": f"uncalibrated, {'probed' if probed else 'data-sheet'} peaks; {OPTIMISTIC}",
        "hardware": {
            "name": card.name,
            "tensor_parallel": tensor_parallel,
            "memory_bandwidth_bytes_per_s": card.bandwidth(),
            "peak_flops_per_s": card.peak(compute),
            "compute_dtype": compute,
        },
        "target": _model_document(target_model),
        "draft": None if draft_model is None else _model_document(draft_model),
        "alpha": float(alpha),
        "rows": [
            _plan_row(source, target_model, draft_model, accepted, batch, context)
            for batch in batch_sizes
            for context in contexts
        ],
    }


def _model_document(model: Deployment) -> dict[str, Any]:
    return {
        "name": model.architecture.name,
        "parameters": model.architecture.parameters,
        "weight_bytes_per_device": model.weight_bytes_held,
        "kv_bytes_per_token": float(model.kv_bytes_held(1)),
    }


def _plan_row(
    source: CostSource,
    target: Deployment,
    draft: Deployment | None,
    accepted: Acceptance,
    batch_size: int,
    context: int,
) -> dict[str, Any]:
    costs = source.costs(batch_size, context, accepted.gammas)
    estimate = estimate_speedup(costs, accepted, batch_size=batch_size)
    best, at = estimate.best_gamma, int(np.argmax(costs.gammas == estimate.best_gamma))
    by_gamma = {
        "tokens_per_round": accepted.tokens_per_round,
        "t_draft_total_s": costs.t_draft_total_s,
        "t_verify_s": costs.t_verify_s,
        "t_round_s": round_times_s(costs, accepted, batch_size=batch_size),
        "speedup": estimate.speedup,
    }
    return {
        "batch_size": batch_size,
        "context": context,
        "best_gamma": best,
        "speculation_pays": bool(estimate.speedup[at] > 1),
        **{name: float(values[at]) for name, values in by_gamma.items()},
        "t_decode_s": float(costs.t_decode_s),
        "t_draft_catch_up_s": None if costs.t_draft_catch_up_s is None else float(costs.t_draft_catch_up_s),
        "bounds": {
            "decode": _bound(target, batch_size, context, 1),
            "draft": None if draft is None else _bound(draft, batch_size, context, 1),
            "verify": _bound(target, batch_size, context, best + 1),
        },
        "largest_batch_without_draft": _largest_batch(target, None, context, 0),
        "largest_batch": _largest_batch(target, draft, context, best),
        "by_gamma": [
            {"gamma": int(gamma), **{name: float(values[g]) for name, values in by_gamma.items()}}
            for g, gamma in enumerate(costs.gammas)
        ],
    }


def _bound(model: Deployment, batch_size: int, context: int, tokens: int) -> str:
    bounds = step_parts_s(step_work(model, batch_size=batch_size, context=context, tokens=tokens), model)
    return max(bounds, key=lambda name: float(bounds[name]))


def _largest_batch(target: Deployment, draft: Deployment | None, context: int, gamma: int) -> int | None:
    """None where the entry does not know its memory."""
    if target.hardware.memory_bytes is None:
        return None
    return int(largest_batch(target, draft=draft, context=context, gamma=gamma))


def plan_text(document: Mapping[str, Any]) -> str:
    """The text of the document of `plan_pair`."""
    card = document["hardware"]
    bandwidth, peak = card["memory_bandwidth_bytes_per_s"], card["peak_flops_per_s"]
    devices = f"{card['tensor_parallel']} x {card['name']}" if card["tensor_parallel"] > 1 else card["name"]
    lines = [
        f"{devices}: {bandwidth / 1e9:,.0f} GB/s, {peak / 1e12:,.4g} TFLOP/s in {card['compute_dtype']}, ridge at "
        f"{peak / bandwidth:.0f} FLOPs/byte"
    ]
    for role in ("target", "draft"):
        model = document[role]
        if model is not None:
            lines.append(
                f"{role} {model['name']}: {model['parameters'] / 1e9:.3f} G parameters, "
                f"{model['weight_bytes_per_device'] / 1e9:.2f} GB on a device, "
                f"{model['kv_bytes_per_token'] / 1e3:.1f} kB of KV cache for a token"
            )
    headings = ["batch", "context", "best gamma", "speed-up", "T_decode (ms)", "C (ms)", "T_verify (ms)"]
    headings += ["T_round (ms)", "bound by (decode, draft, verify)", "largest batch", "without draft", ""]
    cells = [
        [
            row["batch_size"],
            row["context"],
            row["best_gamma"],
            row["speedup"],
            *(milliseconds(row[name]) for name in ("t_decode_s", "t_draft_total_s", "t_verify_s", "t_round_s")),
            ", ".join(bound or "-" for bound in row["bounds"].values()),
            row["largest_batch"],
            row["largest_batch_without_draft"],
            _marks(row),
        ]
        for row in document["rows"]
    ]
    lines += ["", text_table(headings, cells), ""]
    lines.append(f"alpha {document['alpha']:g}, assumed the same at every position; every other number is predicted")
    lines.append(f"predicted: {document['label']}; times are roofline bounds; S, their ratio, is not one")
    return "\n".join(lines)


def _marks(row: Mapping[str, Any]) -> str:
    marks = [] if row["speculation_pays"] else ["does not pay"]
    if row["largest_batch"] is not None and row["batch_size"] > row["largest_batch"]:
        marks.append("does not fit")
    return ", ".join(marks)


@pydantic_dataclass(frozen=True, kw_only=True, config=OPEN)
class MeasuredRow:
    """A row of a table of measured times."""

    target: Annotated[Text, Field(min_length=1)]
    gpu: Annotated[Text, Field(min_length=1)]
    batch_size: Count
    context: Whole
    gamma: Whole
    t_decode_s: Positive
    t_verify_s: Positive


@dataclass(frozen=True, kw_only=True)
class MeasuredGroup:
    """The rows of one target on one machine, as steps by part (`PARTS`)."""

    target: str
    gpu: str
    rows: int
    steps: Mapping[str, MeasuredSteps]


def read_groups(path: Path, *, aliases: Mapping[str, str], dtype: str = "bfloat16") -> list[MeasuredGroup]:
    """Groups in order of appearance; `aliases` say which shape or hardware entry a name of the table means.

    Raises:
        ValueError: the table cannot be read (file, line, column), or a name of it means nothing.
    """
    grouped: dict[tuple[str, str], list[MeasuredRow]] = {}
    for row in read_table(path, MeasuredRow).rows:
        grouped.setdefault((row.target, row.gpu), []).append(row)
    return [_group(target, gpu, rows, aliases, dtype) for (target, gpu), rows in grouped.items()]


def _group(target: str, gpu: str, rows: Sequence[MeasuredRow], aliases: Mapping[str, str], dtype: str) -> MeasuredGroup:
    match = re.fullmatch(r"(?:(\d+)x)?(.+)", gpu)
    assert match is not None
    machine = deployment(
        aliases.get(target) or _shipped("target", target, SHAPES),
        aliases.get(match[2]) or _shipped("gpu", match[2], HARDWARE),
        tensor_parallel=int(match[1] or 1),
        dtype=dtype,
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
    return MeasuredGroup(target=target, gpu=gpu, rows=len(rows), steps=steps)


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
        text_table(["", "line in (1, B, B·s)", "roofline, same rows", "roofline, both parts"], rows),
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
            f"the line is nearer for {symbol} at {held.by} {value}: {line[value]:.2%} against {roofline[value]:.2%}"
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
    return lines or [f"no row misses by over {MISS:.0%}, and the line is nowhere nearer"]


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
