"""How well the calibrated roofline predicts a table of measured times, beside a plain line: held-out errors as text.

For every group of rows of one target on one machine: leave whole batch sizes (or contexts) out in turn, fit the rest,
predict what was left out, and print the error of T_decode and T_verify beside that of a relative least-squares line in
(1, B, B·s) fitted on the same rows; then where the roofline still misses, and what its efficiencies predict for the
table's other machines.  Columns read: target, gpu (such as 8xA100), batch_size, context, gamma, t_decode_s, t_verify_s.

    python -m specgauge.reports.roofline tests/golden/magicdec.csv
    python -m specgauge.reports.roofline tests/golden/magicdec.csv --forms
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specgauge.configs.hardware import hardware_names, shape_names
from specgauge.model.roofline.calibration import (
    FORMS,
    SUM,
    Axis,
    Calibration,
    Form,
    HeldOut,
    MeasuredSteps,
    calibrate,
    cross_validate,
    impossible_pairs,
    line_fit,
    measured_steps,
    roofline_fit,
)
from specgauge.reports.floors import deployment

PARTS = ("t_decode_s", "t_verify_s")
COLUMNS = ("target", "gpu", "batch_size", "context", "gamma", *PARTS)
SYMBOLS = {"t_decode_s": "T_decode", "t_verify_s": "T_verify"}
FEWEST_ROWS = 8
"""Rows a group needs to be calibrated on; smaller groups are only predicted."""
MISS = 0.05
"""Held-out relative error from which a row is listed."""


@dataclass(frozen=True, kw_only=True)
class TableGroup:
    """The rows of one target on one machine, as steps of both parts."""

    target: str
    gpu: str
    parts: Mapping[str, MeasuredSteps]

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return int(self.parts["t_decode_s"].time_s.size)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Held-out predictions of one group by three fits, each by part."""

    group: TableGroup
    line: Mapping[str, HeldOut]
    alone: Mapping[str, HeldOut]
    """Roofline fitted on the part's own rows, the rows the line has."""
    both: Mapping[str, HeldOut]
    """Roofline with one set of numbers for both parts."""
    calibration: Calibration


def read_groups(
    path: Path, *, shapes: Mapping[str, str], hardware: Mapping[str, str], dtype: str = "bfloat16"
) -> list[TableGroup]:
    """Groups in order of appearance; `shapes` and `hardware` say what names of the table mean.

    Raises ValueError with file, line and column for anything that cannot be read.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or [])]
        if missing:
            raise ValueError(f"{path}: column {missing[0]!r} is missing, allowed: a table with {', '.join(COLUMNS)}")
        numbered = [(reader.line_num, row) for row in reader]
    if not numbered:
        raise ValueError(f"{path}: found no rows, allowed: at least {FEWEST_ROWS} of one target and machine")
    keyed: dict[tuple[str, str], list[dict[str, float]]] = {}
    for line, row in numbered:
        numbers = {name: _number(path, line, name, row[name]) for name in COLUMNS[2:]}
        keyed.setdefault((row["target"], row["gpu"]), []).append(numbers)
    return [_group(target, gpu, rows, shapes, hardware, dtype) for (target, gpu), rows in keyed.items()]


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        raise ValueError(f"{path}:{line}: {name}: found {text!r}, allowed: a number") from None


def _group(
    target: str,
    gpu: str,
    rows: Sequence[Mapping[str, float]],
    shapes: Mapping[str, str],
    hardware: Mapping[str, str],
    dtype: str,
) -> TableGroup:
    match = re.fullmatch(r"(?:(\d+)x)?(.+)", gpu)
    assert match is not None
    count, card = int(match[1] or 1), match[2]
    shape_name = shapes.get(target) or _shipped(target, shape_names(), "target", "--shape")
    entry_name = hardware.get(card) or _shipped(card, hardware_names(), "gpu", "--hardware")
    machine = deployment(shape_name, entry_name, devices=count, dtype=dtype)
    column = {name: np.array([row[name] for row in rows]) for name in COLUMNS[2:]}
    fed = {"t_decode_s": np.ones(len(rows)), "t_verify_s": column["gamma"] + 1}
    parts = {
        part: measured_steps(
            machine,
            batch_size=column["batch_size"],
            context=column["context"],
            tokens=fed[part],
            time_s=column[part],
        )
        for part in PARTS
    }
    return TableGroup(target=target, gpu=gpu, parts=parts)


def _shipped(name: str, known: Sequence[str], column: str, option: str) -> str:
    """The one shipped name that begins like `name`, or that `name` begins with, punctuation aside."""
    bare = re.sub(r"[^a-z0-9]", "", name.lower())
    bares = {re.sub(r"[^a-z0-9]", "", each): each for each in known}
    if bare in bares:
        return bares[bare]
    found = [each for key, each in bares.items() if key.startswith(bare) or bare.startswith(key)]
    if len(found) != 1:
        raise ValueError(f"{column}: found {name!r}, allowed: {', '.join(known)}; say which with {option} {name}=NAME")
    return found[0]


def compare(group: TableGroup, *, by: Axis = "batch_size", form: Form = SUM) -> Comparison:
    """Cross-validate the line and the roofline on one group."""
    fit = roofline_fit(form)
    steps = [group.parts[part] for part in PARTS]
    calibration = calibrate(steps, form=form, by=by)
    return Comparison(
        group=group,
        line={part: cross_validate([group.parts[part]], line_fit, by=by)[0] for part in PARTS},
        alone={part: cross_validate([group.parts[part]], fit, by=by)[0] for part in PARTS},
        both=dict(zip(PARTS, cross_validate(steps, fit, by=by), strict=True)),
        calibration=calibration,
    )


def comparison_text(comparison: Comparison, *, by: Axis) -> str:
    """One group: errors, fitted numbers, misses."""
    group = comparison.group
    lines = [
        f"{group.target} on {group.gpu}, {group.rows} rows; {by.replace('_', ' ')} held out, "
        "absolute relative error: mean (worst)",
        f"  {'':<10}{'line in (1, B, B·s)':>22}{'roofline, same rows':>22}{'roofline, both parts':>22}",
    ]
    for part in PARTS:
        fits = (comparison.line[part], comparison.alone[part], comparison.both[part])
        lines.append(f"  {SYMBOLS[part]:<10}" + "".join(f"{_error(held):>22}" for held in fits))
        for value in sorted(comparison.line[part].by_value()):
            errors = "".join(f"{held.by_value()[value]:>22.2%}" for held in fits)
            lines.append(f"  {_axis_symbol(by) + ' = ' + str(value):>10}{errors}")
    lines.append(f"  fitted on all: {comparison.calibration.text()}")
    return "\n".join(lines + _miss_lines(comparison))


def _error(held: HeldOut) -> str:
    return f"{held.mean_abs_error:.2%} ({held.worst_abs_error:.1%})"


def _axis_symbol(axis: Axis) -> str:
    return {"batch_size": "B", "context": "s", "tokens": "n"}[axis]


def _miss_lines(comparison: Comparison) -> list[str]:
    lines = []
    for part in PARTS:
        held = comparison.both[part]
        steps = held.steps
        for index in np.flatnonzero(np.abs(held.relative_error) > MISS):
            lines.append(
                f"  misses {SYMBOLS[part]} at B = {steps.batch_size[index]}, s = {steps.context[index]}: predicted "
                f"{held.predicted_s[index] * 1e3:.2f} ms, measured {steps.time_s[index] * 1e3:.2f} ms "
                f"({held.relative_error[index]:+.1%})"
            )
        line, both = comparison.line[part].by_value(), held.by_value()
        for value in sorted(value for value in both if both[value] > line[value]):
            where = f"{SYMBOLS[part]} at {_axis_symbol(held.by)} = {value}"
            lines.append(f"  the line is nearer for {where}: {line[value]:.2%} against {both[value]:.2%}")
        peak = steps.deployment.hardware.bandwidth()
        for first, second, rate in impossible_pairs(steps):
            lines.append(
                f"  no roofline fits both {SYMBOLS[part]} at B = {steps.batch_size[first]}, s = {steps.context[first]} "
                f"and s = {steps.context[second]}: their difference implies {rate / 1e12:.2f} TB/s, the card's peak is "
                f"{peak / 1e12:.2f}"
            )
    return lines or [f"  no row misses by over {MISS:.0%}, and the line is nowhere nearer"]


def forms_text(groups: Sequence[TableGroup], *, by: Axis) -> str:
    """Every form that was tried: held-out mean absolute error, one set of numbers for both parts of a group."""
    heads = "".join(f"{group.target + ' ' + SYMBOLS[part]:>26}" for group in groups for part in PARTS)
    lines = [f"  {'form':<28}{'numbers':>8}{heads}"]
    for form in FORMS:
        cells = ""
        for group in groups:
            held = cross_validate([group.parts[part] for part in PARTS], roofline_fit(form), by=by)
            cells += "".join(f"{each.mean_abs_error:>26.2%}" for each in held)
        lines.append(f"  {form.name:<28}{len(form.free):>8}{cells}")
    return "\n".join(["Forms tried, held-out mean absolute relative error", *lines])


def carried_text(comparisons: Sequence[Comparison], groups: Sequence[TableGroup]) -> str:
    """What the efficiencies of calibrated groups predict for the same target on other machines."""
    lines = []
    for comparison in comparisons:
        for group in groups:
            if group.target != comparison.group.target or group.gpu == comparison.group.gpu:
                continue
            for part in PARTS:
                steps = group.parts[part]
                predicted = comparison.calibration.predict(
                    steps.deployment, batch_size=steps.batch_size, context=steps.context, tokens=steps.tokens
                )
                ratio = predicted.time_s / steps.time_s
                error = float(np.abs(ratio - 1).mean())
                lines.append(
                    f"  {group.target:<16}{group.gpu:>8} {SYMBOLS[part]:<10}{steps.time_s.size:>3} row(s): predicted "
                    f"over measured {ratio.min():.2f} to {ratio.max():.2f}, mean absolute error {error:.1%}"
                )
    if not lines:
        return ""
    head = "Carried to other machines (fractions and launch cost kept, peaks swapped; nothing fitted there)"
    return "\n".join([head, *lines])


def report(
    path: Path,
    *,
    by: Axis = "batch_size",
    forms: bool = False,
    shapes: Mapping[str, str] | None = None,
    hardware: Mapping[str, str] | None = None,
) -> str:
    """The whole text for one table; ValueError where no group has rows enough."""
    groups = read_groups(path, shapes=shapes or {}, hardware=hardware or {})
    large = [g for g in groups if g.rows >= FEWEST_ROWS and np.unique(g.parts["t_decode_s"].axis(by)).size > 1]
    if not large:
        raise ValueError(
            f"{path}: found no target and machine with {FEWEST_ROWS} rows and two values of {by}, which a fit with "
            "something left out needs"
        )
    comparisons = [compare(group, by=by) for group in large]
    sections = [comparison_text(comparison, by=by) for comparison in comparisons]
    if forms:
        sections.append(forms_text(large, by=by))
    sections.append(carried_text(comparisons, groups))
    return "\n\n".join(section for section in sections if section)


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{option}: found {text!r}, allowed: NAME=VALUE")
        pairs[name] = value
    return pairs


def main(arguments: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Print the report of one table; exit code 0, or 2 for what the user got wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m specgauge.reports.roofline", description="Held-out error of the roofline on a table of times."
    )
    parser.add_argument("table", type=Path, help="CSV with columns " + ", ".join(COLUMNS))
    parser.add_argument("--hold-out", default="batch_size", choices=["batch_size", "context"])
    parser.add_argument("--forms", action="store_true", help="also print the other forms that were tried")
    parser.add_argument(
        "--shape", action="append", default=[], metavar="TARGET=SHAPE", help="shape name or config.json"
    )
    parser.add_argument("--hardware", action="append", default=[], metavar="GPU=ENTRY", help="entry name or YAML file")
    options = parser.parse_args(arguments)
    try:
        text = report(
            options.table,
            by=options.hold_out,
            forms=options.forms,
            shapes=_pairs("--shape", options.shape),
            hardware=_pairs("--hardware", options.hardware),
        )
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
