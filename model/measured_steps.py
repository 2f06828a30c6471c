"""Measured seconds of forward passes, with what each of them had to do: the data a calibration is fitted on.

A step is one forward of `tokens` tokens for each of `batch_size` sequences that hold `context` tokens: T_decode with 1,
T_verify(gamma) with gamma + 1, one draft step with 1 of the draft's own shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from specgauge.model.checks import BoolArray, FloatArray, IntArray, positive_times_s, whole_numbers
from specgauge.model.deployment import Deployment
from specgauge.model.roofline import StepWork, step_work

Axis = Literal["batch_size", "context", "tokens"]
AXES: tuple[Axis, ...] = ("batch_size", "context", "tokens")


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
        return replace(
            self,
            batch_size=self.batch_size[chosen],
            context=self.context[chosen],
            tokens=self.tokens[chosen],
            time_s=self.time_s[chosen],
        )

    def axis(self, name: Axis) -> IntArray:
        """The column to hold out by."""
        column: IntArray = getattr(self, name)
        return column

    def work(self) -> StepWork:
        """Bytes and FLOPs of every step."""
        return step_work(self.deployment, batch_size=self.batch_size, context=self.context, tokens=self.tokens)


def measured_steps(
    deployment: Deployment, *, batch_size: ArrayLike, context: ArrayLike, tokens: ArrayLike, time_s: ArrayLike
) -> MeasuredSteps:
    """Check and broadcast columns; ValueError for times that are not above 0 and counts that are not whole."""
    columns = np.broadcast_arrays(
        np.atleast_1d(whole_numbers("batch_size", batch_size, minimum=1)),
        np.atleast_1d(whole_numbers("context", context, minimum=0)),
        np.atleast_1d(whole_numbers("tokens", tokens, minimum=1)),
        np.atleast_1d(positive_times_s("time_s", time_s)),
    )
    batch, held, fed, seconds = (column.ravel() for column in columns)
    return MeasuredSteps(deployment=deployment, batch_size=batch, context=held, tokens=fed, time_s=seconds)


def impossible_pairs(steps: MeasuredSteps) -> list[tuple[int, int, float]]:
    """Pairs of steps whose difference no roofline fits: (index, index, implied bytes/s above the device's bandwidth).

    Two steps of one batch size and token count differ by the KV bytes of the longer context only; fewer seconds than
    those bytes need at the full bandwidth cannot both be right.
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
