"""Counts of other programs: what is more than an idle machine makes, what several come to, and how it is said."""

from __future__ import annotations

import math

import pytest

from specgauge.model.stats.disturbance import Disturbance, added_up, disturbance_of, shares_text

WHOLE = Disturbance(
    threads=2,
    wall_s=2.0,
    processor_s=3.0,
    involuntary_switches=7,
    steal_s=0.24,
    pressure_s=0.8,
    sm_clock_hz=1.5e9,
    throttled_by="heat, power cap",
    other_processes=2,
    disturbed=1,
    retaken=2,
    retaken_s=4.0,
)


@pytest.mark.parametrize(
    ("switches", "steal_s", "wall_s", "is_disturbed"),
    [
        (0, 0.0, 0.01, False),
        (1, 0.0, 0.0, False),
        (2, 0.0, 0.01, True),
        (2, 0.0, 0.02, False),
        (81, 0.0, 1.0, False),
        (82, 0.0, 1.0, True),
        (0, 0.005, 0.02, True),  # a tick of one of two processors
        (0, 0.005, 1.0, False),
        (0, 0.011, 1.0, True),
        (None, None, 1.0, False),
    ],
)
def test_more_switches_or_stolen_time_than_an_idle_machine_has(
    switches: int | None, steal_s: float | None, wall_s: float, is_disturbed: bool
) -> None:
    found = Disturbance(threads=2, wall_s=wall_s, involuntary_switches=switches, steal_s=steal_s)
    assert found.is_disturbed(on_cpu=True, cores=4) == is_disturbed


@pytest.mark.parametrize(("cores", "switches", "is_disturbed"), [(2, 301, False), (2, 302, True), (3, 82, True)])
def test_threads_that_leave_no_core_free_are_switched_more_often(cores: int, switches: int, is_disturbed: bool) -> None:
    found = Disturbance(threads=2, wall_s=1.0, involuntary_switches=switches)
    assert found.is_disturbed(on_cpu=True, cores=cores) == is_disturbed


@pytest.mark.parametrize(
    ("processor_s", "pressure_s", "on_cpu", "is_disturbed"),
    [
        (0.89, None, True, True),
        (0.9, None, True, False),
        (0.9, 0.1, True, False),
        (1.79, 0.11, True, True),
        (1.8, 0.11, True, False),  # what waited were others
        (0.1, 1.0, False, False),
        (None, 1.0, True, False),
    ],
)
def test_work_of_the_processor_that_stood_in_a_queue_is_disturbed(
    processor_s: float | None, pressure_s: float | None, on_cpu: bool, is_disturbed: bool
) -> None:
    """Beside many others a thread is switched seldom, and waits long."""
    found = Disturbance(
        threads=2, wall_s=1.0, processor_s=processor_s, involuntary_switches=43, steal_s=0.0, pressure_s=pressure_s
    )
    assert found.is_disturbed(on_cpu=on_cpu, cores=4) == is_disturbed


@pytest.mark.parametrize(
    ("throttled_by", "disturbed"), [(None, 1), ("", 1), ("power cap", 1), ("heat", 5), ("heat, power cap", 5)]
)
def test_samples_on_a_gpu_that_slowed_down_are_disturbed(throttled_by: str | None, disturbed: int) -> None:
    gpus = Disturbance(sm_clock_hz=1e9, throttled_by=throttled_by, other_processes=1)
    found = Disturbance(wall_s=1.0000004, disturbed=1).on_gpus(gpus, 5)
    assert found == Disturbance(
        wall_s=1.0, disturbed=disturbed, sm_clock_hz=1e9, throttled_by=throttled_by, other_processes=1
    )


@pytest.mark.parametrize(
    ("threads", "disturbed", "samples", "spread"),
    [(2, 10, 10, 0.2), (8, 5, 10, 0.1), (1, 10, 10, 0.0), (None, 10, 10, 0.0), (2, 0, 10, 0.0), (2, 0, 0, 0.0)],
)
def test_several_threads_that_were_held_up_may_hide_what_work_costs(
    threads: int | None, disturbed: int, samples: int, spread: float
) -> None:
    assert Disturbance(threads=threads, disturbed=disturbed).waiting_spread(samples) == pytest.approx(spread)


def test_several_together() -> None:
    other = Disturbance(
        threads=1,
        wall_s=1.0,
        processor_s=1.0,
        involuntary_switches=0,
        steal_s=None,
        sm_clock_hz=1.2e9,
        throttled_by="heat",
    )
    assert added_up([WHOLE, other]) == Disturbance(
        threads=2,
        wall_s=3.0,
        processor_s=4.0,
        involuntary_switches=7,
        steal_s=None,
        pressure_s=None,
        sm_clock_hz=1.2e9,
        throttled_by="heat, power cap",
        other_processes=None,
        disturbed=1,
        retaken=2,
        retaken_s=4.0,
    )
    assert added_up([WHOLE]) == WHOLE
    assert added_up([]) == Disturbance()


def test_figures_of_a_table_are_read_whatever_is_missing() -> None:
    row = {"pair": "p", **vars(WHOLE), "disturbed": 1.0, "steal_s": math.nan, "throttled_by": None}
    found = disturbance_of(row)
    assert found == disturbance_of(vars(WHOLE) | {"steal_s": None, "throttled_by": None})
    assert (found.steal_s, found.throttled_by, repr(found.disturbed)) == (None, None, "1")
    assert disturbance_of({"pair": "p", "retaken": math.nan}) == Disturbance()


def test_what_is_said_of_it() -> None:
    assert shares_text(WHOLE) == (
        "steal 12 %, pressure 40 %, 1.50 processors used, SM clock 1500 MHz, throttled by heat, power cap, "
        "2 other processes on the GPU"
    )
    assert shares_text(Disturbance()) == ""
    assert shares_text(Disturbance(wall_s=4.0, processor_s=2.0)) == "0.50 processors used"
