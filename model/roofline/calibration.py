"""Fit the few efficiencies of the roofline to measured steps, and say how well they predict steps left out.

A step is one forward of `tokens` tokens for each of `batch_size` sequences that hold `context` tokens.  By default
three numbers of `specgauge.model.roofline.step_time.step_time_s` are fitted, one set for all steps: the fractions of
peak bandwidth and FLOP rate, and the fixed seconds of a layer.  The loss is soft-L1 on log(predicted / measured), so
that a few bad measurements do not bend the fit; its error is that of whole batch sizes (or contexts, or token counts)
left out in turn.

The form was chosen by that error on the 8×A100 rows of MagicDec (arXiv 2408.11049, table 3):
  - memory and arithmetic of an operation add up (exponent 1): the larger of the two (∞) misses up to twice as much;
  - attention runs in waves of two blocks to each multiprocessor: with perfect balance, or with 1 or 3 blocks, the
    error is two to seven times as large (256 blocks on 2·108 places take 1.27 times what their bytes say).
    Two blocks of 80 KB (FlashAttention, head dimension 128) are what the 164 KB of an A100's multiprocessor hold;
  - a fourth number, seconds for each token, is better for one of four columns and worse for three.

Carrying to another card swaps the hardware's peaks and keeps the fractions; the launch cost is software's, and only
as good as the guess that the other machine runs the same.  Where a machine has few rows, `carried_launch` fits its two
fractions and takes the launch cost from another machine with the same software.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import BoolArray, FloatArray, IntArray, positive_times_s, whole_numbers
from specgauge.model.roofline.deployment import Deployment
from specgauge.model.roofline.step_time import Efficiency, StepWork, step_time_s, step_work

Axis = Literal["batch_size", "context", "tokens", "target", "row"]
"""What is left out together: a value of a column, a target, or one row of a table (all its parts)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSteps:
    """Measured seconds of steps of one model on one machine; arrays of one length."""

    deployment: Deployment
    batch_size: IntArray
    context: IntArray
    tokens: IntArray
    """Tokens fed to each sequence: 1 for T_decode, gamma + 1 for T_verify."""
    time_s: FloatArray

    def take(self, chosen: BoolArray) -> MeasuredSteps:
        """The steps where `chosen` is true."""
        columns: dict[str, Any] = {name: values[chosen] for name, values in vars(self).items() if name != "deployment"}
        return replace(self, **columns)

    def labels(self, by: Axis) -> list[Hashable]:
        """What each step is left out with."""
        if by == "target":
            return [self.deployment.architecture.name] * self.time_s.size
        if by == "row":
            model = (self.deployment.architecture.name, self.deployment.tensor_parallel)
            return [(*model, *point) for point in zip(self.batch_size.tolist(), self.context.tolist(), strict=True)]
        column: IntArray = getattr(self, by)
        return list(column.tolist())

    def work(self) -> StepWork:
        """Bytes and FLOPs of every step."""
        return step_work(self.deployment, batch_size=self.batch_size, context=self.context, tokens=self.tokens)


def measured_steps(
    deployment: Deployment, *, batch_size: ArrayLike, context: ArrayLike, tokens: ArrayLike, time_s: ArrayLike
) -> MeasuredSteps:
    """Check and broadcast columns.

    Raises:
        ValueError: a time that is not above 0, or a count that is not whole.
    """
    columns = np.broadcast_arrays(
        np.atleast_1d(whole_numbers("batch_size", batch_size, minimum=1)),
        np.atleast_1d(whole_numbers("context", context, minimum=0)),
        np.atleast_1d(whole_numbers("tokens", tokens, minimum=1)),
        np.atleast_1d(positive_times_s("time_s", time_s)),
    )
    batch, held, fed, seconds = (column.ravel() for column in columns)
    return MeasuredSteps(deployment=deployment, batch_size=batch, context=held, tokens=fed, time_s=seconds)


def impossible_pairs(steps: MeasuredSteps) -> list[tuple[int, int, float]]:
    """Pairs of steps that cannot both be right: (index, index, implied bytes/s above the device's bandwidth).

    Two steps of one batch size and token count differ by the KV bytes of the longer context only.
    """
    memory = steps.work().memory_bytes
    peak = steps.deployment.hardware.bandwidth()
    order = np.lexsort((steps.context, steps.tokens, steps.batch_size))
    found = []
    for first, second in pairwise(order):
        same = steps.batch_size[first] == steps.batch_size[second] and steps.tokens[first] == steps.tokens[second]
        if not same or steps.context[first] == steps.context[second]:
            continue
        extra_s = float(steps.time_s[second] - steps.time_s[first])
        extra_bytes = float(memory[second] - memory[first])
        if extra_bytes > peak * extra_s:
            found.append((int(first), int(second), extra_bytes / extra_s if extra_s > 0 else float("inf")))
    return found


Number = Literal["bandwidth_fraction", "flops_fraction", "launch_s", "token_s"]
"""What can be fitted, by its name in an Efficiency."""

LOSS_SCALE = 0.03
"""Relative error beyond which a step counts linearly, no longer by its square."""
LEAST_ELASTICITY = 0.02
"""A number that moves no measured time by at least this share of its own change is not identified."""
_AT_PEAK = 0.999
"""A fitted fraction from here on says that the peak bounds the fit, or that a cache serves more."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """Which numbers of an Efficiency are fitted, and what the others are."""

    name: str
    free: tuple[Number, ...] = ("bandwidth_fraction", "flops_fraction", "launch_s")
    base: Efficiency = field(default_factory=Efficiency)


_WITH_TOKEN: tuple[Number, ...] = ("bandwidth_fraction", "flops_fraction", "launch_s", "token_s")
SUM = Form(name="sum, waves")


def carried_launch(launch_s: float) -> Form:
    """The default form with the launch cost of another machine, for one with few rows."""
    free: tuple[Number, ...] = ("bandwidth_fraction", "flops_fraction")
    return Form(name="sum, waves, launch carried", free=free, base=Efficiency(launch_s=launch_s))


FORMS: tuple[Form, ...] = (
    SUM,
    Form(name="sum, balanced", base=Efficiency(resident_blocks=None)),
    Form(name="sum, waves of 1 block", base=Efficiency(resident_blocks=1)),
    Form(name="sum, waves of 3 blocks", base=Efficiency(resident_blocks=3)),
    Form(name="sum, waves, token cost", free=_WITH_TOKEN),
    Form(name="maximum, waves", base=Efficiency(overlap_exponent=float("inf"))),
    Form(name="maximum, waves, token cost", free=_WITH_TOKEN, base=Efficiency(overlap_exponent=float("inf"))),
    Form(name="square sum, waves", base=Efficiency(overlap_exponent=2.0)),
)
"""The forms that were tried; the first is the default."""


def fit_efficiency(groups: Sequence[MeasuredSteps], form: Form = SUM) -> Efficiency:
    """Robust least squares on the relative error, one set of numbers for all groups.

    Raises:
        ValueError: fewer steps than numbers to fit.
    """
    from scipy.optimize import least_squares

    count = sum(group.time_s.size for group in groups)
    if count < len(form.free):
        raise ValueError(f"measured steps: expected at least {len(form.free)}, one for each fitted number, got {count}")
    prepared = [(group.work(), group) for group in groups]
    layer_s = min(float(group.time_s.min()) / work.layers for work, group in prepared)
    token_s = min(float((group.time_s / work.tokens).min()) for work, group in prepared)
    cached = 100.0 if any(group.deployment.hardware.multiprocessors is None for group in groups) else 1.0
    scales = {  # unit, and in it the start and the bounds; a CPU's cache may serve more than the memory's bandwidth
        "bandwidth_fraction": (1.0, 0.7, 1e-3, cached),
        "flops_fraction": (1.0, 0.4, 1e-3, 1.0),
        "launch_s": (layer_s, 0.3, 0.0, 1.0),
        "token_s": (token_s, 0.1, 0.0, 1.0),
    }
    units, start, least, most = zip(*(scales[name] for name in form.free), strict=True)

    def efficiency(values: FloatArray) -> Efficiency:
        numbers: dict[str, Any] = {
            name: float(value) * unit for name, value, unit in zip(form.free, values, units, strict=True)
        }
        return replace(form.base, **numbers)

    def misses(values: FloatArray) -> FloatArray:
        fitted = efficiency(values)
        return np.concatenate(
            [np.log(step_time_s(work, group.deployment, fitted) / group.time_s) for work, group in prepared]
        )

    found = least_squares(misses, start, bounds=(least, most), loss="soft_l1", f_scale=LOSS_SCALE, x_scale=start)
    return efficiency(np.asarray(found.x, dtype=np.float64))


Predictor = Callable[[MeasuredSteps], FloatArray]
Fit = Callable[[Sequence[MeasuredSteps]], Predictor]
"""From steps to a function that predicts the seconds of other steps."""


def roofline_fit(form: Form = SUM) -> Fit:
    """The roofline as a Fit."""

    def fit(groups: Sequence[MeasuredSteps]) -> Predictor:
        fitted = fit_efficiency(groups, form)
        return lambda steps: step_time_s(steps.work(), steps.deployment, fitted)

    return fit


def line_fit(groups: Sequence[MeasuredSteps]) -> Predictor:
    """The baseline: least squares on the relative error of a + b·B + c·B·s, blind to model and machine."""

    def terms(steps: MeasuredSteps) -> FloatArray:
        batch = steps.batch_size.astype(np.float64)
        return np.stack([np.ones_like(batch), batch, batch * steps.context], axis=-1)

    time_s = np.concatenate([group.time_s for group in groups])
    rows = np.concatenate([terms(group) for group in groups])
    slopes, *_ = np.linalg.lstsq(rows / time_s[:, np.newaxis], np.ones_like(time_s), rcond=None)
    return lambda steps: np.asarray(terms(steps) @ slopes, dtype=np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldOut:
    """Predictions of one group's steps by fits that had not seen them."""

    by: Axis
    steps: MeasuredSteps
    predicted_s: FloatArray

    @property
    def relative_error(self) -> FloatArray:
        """Predicted over measured, minus 1."""
        return self.predicted_s / self.steps.time_s - 1.0

    @property
    def mean_abs_error(self) -> float:
        """Mean absolute relative error, a fraction."""
        return float(np.abs(self.relative_error).mean())

    @property
    def worst_abs_error(self) -> float:
        """Largest absolute relative error, a fraction."""
        return float(np.abs(self.relative_error).max())

    def by_value(self) -> dict[int, float]:
        """Mean absolute relative error of each value that was left out."""
        column = np.asarray(self.steps.labels(self.by))
        return {int(v): float(np.abs(self.relative_error[column == v]).mean()) for v in np.unique(column)}


def cross_validate(groups: Sequence[MeasuredSteps], fit: Fit, *, by: Axis = "batch_size") -> list[HeldOut]:
    """Leave every value of `by` out of all groups in turn, fit the rest, predict it; one HeldOut for each group.

    Raises:
        ValueError: there are not two values to choose from.
    """
    columns = [group.labels(by) for group in groups]
    values = list(dict.fromkeys(label for column in columns for label in column))
    if len(values) < 2:
        raise ValueError(f"{by}: expected at least two values, to leave each out in turn, got {values}")
    predicted = [np.empty_like(group.time_s) for group in groups]
    for value in values:
        masks = [np.array([label == value for label in column], dtype=np.bool_) for column in columns]
        kept = [group.take(~mask) for group, mask in zip(groups, masks, strict=True)]
        predictor = fit([group for group in kept if group.time_s.size])
        for group, left_out, result in zip(groups, masks, predicted, strict=True):
            if left_out.any():
                result[left_out] = predictor(group.take(left_out))
    return [HeldOut(by=by, steps=group, predicted_s=s) for group, s in zip(groups, predicted, strict=True)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Fitted efficiencies with all that is needed to judge a prediction made with them."""

    efficiency: Efficiency
    groups: tuple[MeasuredSteps, ...]
    held_out: tuple[HeldOut, ...]
    """Empty where there was only one value to hold out by."""
    elasticity: dict[str, float]
    """For each fitted number: the largest |d log t / d log number| over the measured steps."""

    @property
    def held_out_error(self) -> float | None:
        """Mean absolute relative error over all held-out steps; None without cross-validation."""
        if not self.held_out:
            return None
        return float(np.abs(np.concatenate([part.relative_error for part in self.held_out])).mean())

    @property
    def unidentified(self) -> tuple[str, ...]:
        """Fitted numbers that the measured steps hardly depend on: do not carry them to steps that do."""
        return tuple(name for name, value in self.elasticity.items() if value < LEAST_ELASTICITY)


def unidentified(groups: Sequence[MeasuredSteps], efficiency: Efficiency, form: Form = SUM) -> tuple[str, ...]:
    """Fitted numbers that the steps hardly depend on, and fractions that ended at the peak, where only a bound held."""
    at_peak = {name for name in form.free if name.endswith("_fraction") and getattr(efficiency, name) > _AT_PEAK}
    return tuple(
        name for name in form.free if name in at_peak or _elasticity(groups, efficiency, name) < LEAST_ELASTICITY
    )


def calibrate(groups: Sequence[MeasuredSteps], *, by: Axis = "batch_size") -> Calibration:
    """Fit all groups together by the default form and cross-validate by `by` (left undone where it has one value only).

    Raises:
        ValueError: fewer steps than numbers to fit.
    """
    efficiency = fit_efficiency(groups)
    values = {label for group in groups for label in group.labels(by)}
    held_out = cross_validate(groups, roofline_fit(), by=by) if len(values) > 1 else []
    return Calibration(
        efficiency=efficiency,
        groups=tuple(groups),
        held_out=tuple(held_out),
        elasticity={name: _elasticity(groups, efficiency, name) for name in SUM.free},
    )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Held-out predictions of one machine's steps by three fits, each by part (such as "t_decode_s", "t_verify_s")."""

    line: Mapping[str, HeldOut]
    alone: Mapping[str, HeldOut]
    """Roofline fitted on the part's own rows, the rows the line has."""
    together: Mapping[str, HeldOut]
    """Roofline with one set of numbers for all parts."""
    calibration: Calibration


def compare(parts: Mapping[str, MeasuredSteps], *, by: Axis = "batch_size") -> Comparison:
    """Cross-validate the line and the roofline on steps of one model and machine.

    Raises:
        ValueError: fewer steps than numbers to fit, or one value of `by` only.
    """
    fit = roofline_fit()
    steps = list(parts.values())
    return Comparison(
        line={part: cross_validate([each], line_fit, by=by)[0] for part, each in parts.items()},
        alone={part: cross_validate([each], fit, by=by)[0] for part, each in parts.items()},
        together=dict(zip(parts, cross_validate(steps, fit, by=by), strict=True)),
        calibration=calibrate(steps, by=by),
    )


@dataclass(frozen=True, kw_only=True)
class HeldOutError:
    """How far a machine's times are predicted by fits that had not seen them."""

    held_out: Axis
    mean: float
    """Mean absolute relative error of a time, a fraction."""
    worst: float
    decode: float
    """Root mean square of log(predicted / measured) of T_decode."""
    verify: float
    """The same of T_verify."""
    ratio: float
    """The same of T_verify / T_decode, of which S is made: errors that both share are not in it."""


def held_out_error(rows: Sequence[tuple[MeasuredSteps, MeasuredSteps]], form: Form, *, by: Axis) -> HeldOutError:
    """One set of numbers for all of a machine's rows, each target's as (T_decode, T_verify) of the same points.

    Raises:
        ValueError: `by` has one value only, or fewer steps are left than numbers to fit.
    """
    held = cross_validate([steps for pair in rows for steps in pair], roofline_fit(form), by=by)
    logs = [np.log(each.predicted_s / each.steps.time_s) for each in held]
    decode, verify = np.concatenate(logs[0::2]), np.concatenate(logs[1::2])
    errors = np.abs(np.concatenate([each.relative_error for each in held]))
    decode_rms, verify_rms, ratio_rms = (float(np.sqrt((log**2).mean())) for log in (decode, verify, verify - decode))
    return HeldOutError(
        held_out=by,
        mean=float(errors.mean()),
        worst=float(errors.max()),
        decode=decode_rms,
        verify=verify_rms,
        ratio=ratio_rms,
    )


@dataclass(frozen=True, kw_only=True)
class HeldOutDraftError:
    """How far C(gamma) is predicted by fits that had not seen it."""

    held_out: Axis
    """`target`: all times of one draft's shape."""
    mean: float
    """Mean absolute relative error, a fraction."""
    worst: float
    rms: float
    """Root mean square of log(predicted / measured)."""


@dataclass(frozen=True, kw_only=True)
class DraftFit:
    """What drafts take, with the error on what was left out."""

    efficiency: Efficiency
    same_draft: HeldOutDraftError
    """For the shapes that were measured."""
    other_draft: HeldOutDraftError | None
    """For other shapes; None where there is one only."""

    @property
    def error(self) -> float:
        """The larger of both."""
        return max(self.same_draft.rms, 0.0 if self.other_draft is None else self.other_draft.rms)


AXES: tuple[Axis, ...] = ("batch_size", "context", "row")
"""What is left out for shapes that were fitted, the first that leaves enough steps."""
FEWEST_DRAFTS = 8
"""Times of drafts that numbers of their own are fitted to; fewer tell their error by chance."""
_DRAFTS_OWN: tuple[tuple[Number, ...], ...] = (("launch_s",), ("launch_s", "token_s"))


def fit_drafts(drafts: Sequence[MeasuredSteps], base: Efficiency) -> DraftFit | None:
    """Fit what a draft step costs beyond its bytes and FLOPs, with the two fractions of `base`, its target's numbers.

    Launches, or launches and the drawing of a token for each sequence: whichever predicts times left out better.  None
    where neither does better than `base` as it is, there are fewer than `FEWEST_DRAFTS`, or nothing to leave out.
    """
    if sum(steps.time_s.size for steps in drafts) < FEWEST_DRAFTS:
        return None
    found = []
    for free in _DRAFTS_OWN:
        form = Form(name=f"drafts, {', '.join(free)}", free=free, base=base)
        same = next((error for by in AXES if (error := _draft_error(drafts, form, by)) is not None), None)
        if same is not None:
            other = _draft_error(drafts, form, "target")
            found.append(DraftFit(efficiency=fit_efficiency(drafts, form), same_draft=same, other_draft=other))
    best = min(found, key=lambda one: one.error, default=None)
    return None if best is None or best.error >= rms_error(drafts, base) else best


def rms_error(steps: Sequence[MeasuredSteps], efficiency: Efficiency) -> float:
    """Root mean square of log(predicted / measured) over all steps."""
    logs = [np.log(step_time_s(one.work(), one.deployment, efficiency) / one.time_s) for one in steps]
    return float(np.sqrt((np.concatenate(logs) ** 2).mean()))


def _draft_error(drafts: Sequence[MeasuredSteps], form: Form, by: Axis) -> HeldOutDraftError | None:
    """None where too little is left to fit."""
    try:
        held = cross_validate(drafts, roofline_fit(form), by=by)
    except ValueError:
        return None
    ratio = np.concatenate([each.predicted_s / each.steps.time_s for each in held])
    off = np.abs(ratio - 1.0)
    rms = float(np.sqrt((np.log(ratio) ** 2).mean()))
    return HeldOutDraftError(held_out=by, mean=float(off.mean()), worst=float(off.max()), rms=rms)


def _elasticity(groups: Sequence[MeasuredSteps], efficiency: Efficiency, name: Number) -> float:
    step = 1e-4
    more: dict[str, Any] = {name: getattr(efficiency, name) * (1 + step)}
    moved = replace(efficiency, **more)
    return max(
        float(np.abs(np.log(step_time_s(work, d, moved) / step_time_s(work, d, efficiency))).max()) / step
        for work, d in ((group.work(), group.deployment) for group in groups)
    )
