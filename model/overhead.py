"""epsilon, the time a round takes beyond its costs, fitted to measured speed-ups.

    one epsilon for each group, minimising sum_rows (S(epsilon) / S_measured - 1)^2; of a single row the one that it
    implies, Omega T_decode / S_measured - (C + pi Delta_2 + T_verify)

with the errors of S in sample and leave-one-out (a row predicted with the epsilon of the others in its group).

    fit_overhead(tokens_per_round, t_decode_s=…, t_costs_s=…, t_verify_s=…, speedup_measured=…, groups=["A100", "H100"])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import BoolArray, FloatArray, positive_numbers, positive_times_s
from specgauge.model.speedup import speedup, with_overhead_s

_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class GroupOverhead:
    """The overhead of one group of rows and how well S is then predicted; errors are fractions."""

    group: str
    rows: int
    t_overhead_s: float
    mean_abs_error: float
    worst_abs_error: float
    loo_mean_abs_error: float | None
    """None for a group of one row, which leaves nothing to fit on."""
    loo_worst_abs_error: float | None


@dataclass(frozen=True, kw_only=True)
class OverheadFit:
    """One epsilon for each group, the errors over all rows, and arrays (N,) by row."""

    groups: tuple[GroupOverhead, ...]
    mean_abs_error: float
    worst_abs_error: float
    loo_mean_abs_error: float | None
    """Over the rows of groups that have at least two; None where there is no such group."""
    loo_worst_abs_error: float | None
    t_overhead_s: FloatArray
    speedup: FloatArray


def relative_errors(predicted: ArrayLike, measured: ArrayLike) -> FloatArray:
    """predicted / measured - 1."""
    speedups = positive_numbers("speedup_measured", measured)
    return np.asarray(np.asarray(predicted, dtype=np.float64) / speedups - 1.0, dtype=np.float64)


def fit_overhead(
    tokens_per_round: ArrayLike,
    *,
    t_decode_s: ArrayLike,
    t_costs_s: ArrayLike,
    t_verify_s: ArrayLike,
    speedup_measured: ArrayLike,
    groups: Sequence[str],
) -> OverheadFit:
    """Fit one epsilon to each group by least squares on the relative error of S; all arguments are (N,).

    `t_costs_s` is C + pi Delta_2 + T_verify, of which `t_verify_s` is the least a round takes.  An epsilon may
    come out negative.

    Raises:
        ValueError: no rows, lengths that differ, or measured speed-ups that are not above 0.
    """
    costs, measured = positive_times_s("t_costs_s", t_costs_s), positive_numbers("speedup_measured", speedup_measured)
    labels = np.asarray([str(g) for g in groups])
    without = speedup(tokens_per_round, t_decode_s=t_decode_s, t_round_s=costs)
    if labels.size == 0 or not costs.shape == measured.shape == without.shape == labels.shape:
        raise ValueError(
            f"groups: expected one of each for every row, and at least one row, got {labels.size} for {without.size} "
            f"predicted and {measured.size} measured speed-ups"
        )
    round_s = without * costs / measured
    overhead, left_out = np.empty(labels.size), np.full(labels.size, np.nan)
    for group in np.unique(labels):
        rows = np.flatnonzero(labels == group)
        everyone = np.ones((1, rows.size))
        overhead[rows] = _least_squares(round_s[rows], costs[rows], everyone)[0]
        if rows.size > 1:
            left_out[rows] = _least_squares(round_s[rows], costs[rows], 1.0 - np.eye(rows.size))

    def speedups(t_overhead_s: FloatArray) -> FloatArray:
        t_round_s = with_overhead_s(costs, t_verify_s, np.nan_to_num(t_overhead_s))
        return speedup(tokens_per_round, t_decode_s=t_decode_s, t_round_s=t_round_s)

    predicted, loo = speedups(overhead), np.where(np.isnan(left_out), np.nan, speedups(left_out))

    def errors(rows: BoolArray) -> dict[str, Any]:
        own, others = (np.abs(values[rows] / measured[rows] - 1) for values in (predicted, loo))
        others = others[~np.isnan(others)]
        return {
            "mean_abs_error": float(own.mean()),
            "worst_abs_error": float(own.max()),
            "loo_mean_abs_error": float(others.mean()) if others.size else None,
            "loo_worst_abs_error": float(others.max()) if others.size else None,
        }

    groups_of = {group: labels == group for group in dict.fromkeys(labels.tolist())}
    return OverheadFit(
        groups=tuple(
            GroupOverhead(group=group, rows=int(rows.sum()), t_overhead_s=float(overhead[rows][0]), **errors(rows))
            for group, rows in groups_of.items()
        ),
        **errors(np.ones(labels.size, dtype=np.bool_)),
        t_overhead_s=overhead,
        speedup=predicted,
    )


def _least_squares(round_s: FloatArray, costs_s: FloatArray, weights: FloatArray) -> FloatArray:
    """argmin over epsilon of sum_n w_n (round_n / (costs_n + epsilon) - 1)^2, one for each row of weights (M, N).

    Newton's method on the derivative, damped so that every round keeps a positive time; where the second derivative is
    not positive (far from the optimum) it takes the Gauss-Newton step.
    """
    overhead = np.zeros(weights.shape[0])
    for _ in range(_STEPS):
        total = costs_s + overhead[:, np.newaxis]
        ratio = round_s / total
        slope = np.sum(weights * (ratio - 1) * -ratio / total, axis=1)
        gauss = np.sum(weights * (ratio / total) ** 2, axis=1)
        curvature = np.sum(weights * (3 * ratio - 2) * ratio / total**2, axis=1)
        step = -slope / np.where(curvature > 0, curvature, gauss)
        used = np.where(weights > 0, total, np.inf).min(axis=1)
        step = np.maximum(step, -0.5 * used)
        overhead = overhead + step
        if np.all(np.abs(step) <= 1e-13 * used):
            break
    return overhead
