"""The seconds of a run as stages share them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.run.budget import Deadline, needed_s, timing_left_s
from tests.sweeps import made

GRID = {"batch_size": [1, 2], "context": [64, 65], "gamma": "1:3"}


@pytest.mark.parametrize(
    ("precision", "left_s"),
    [
        ({"max_seconds": 50}, 2 * 50 - 12.0),
        ({"max_seconds": 50, "max_cell_seconds": 20}, 2 * 40 - 12.0),
        ({"max_seconds": 5}, 1.0),  # batch size 1 has spent 4 of its 5 seconds, batch size 2 more than them
        ({"max_seconds": None, "max_cell_seconds": 20}, 2 * 40 - 12.0),
        ({"max_seconds": None}, math.inf),
    ],
)
def test_the_time_left_for_timing(precision: dict[str, Any], left_s: float) -> None:
    config = made.config(grid=GRID, precision=precision)
    assert timing_left_s(config.precision, plan_cells(config), lambda cell: 2.0 * cell.batch_size) == left_s


@pytest.mark.parametrize(
    ("left_out_s", "seconds"),
    [
        ({"loading": 5.0, "acceptance": 30.0}, 5 + 30 / 0.3),
        ({"loading": 5.0, "acceptance": 10.0, "timing": 40.0}, 5 + 10 + 40 / 0.4),
        ({"loading": 5.0, "timing": 4.0, "decoding": 60.0}, 5 + 4 + 60),
        ({"loading": 5.0, "timing": None, "decoding": 60.0}, None),
    ],
)
def test_the_seconds_that_hold_what_was_left_out(left_out_s: dict[str, float | None], seconds: float | None) -> None:
    assert needed_s(left_out_s, timing_share=0.4) == (None if seconds is None else pytest.approx(seconds))


def test_what_a_stage_waits_for_is_none_of_its_seconds() -> None:
    now = [10.0]
    stage = Deadline(5.0, now=lambda: now[0])
    now[0] = 40.0
    assert stage.is_spent
    stage.wait(28.0)
    assert stage.left_s == pytest.approx(3.0)
    endless = Deadline(now=lambda: now[0])
    endless.wait(1.0)
    assert endless.left_s == math.inf
