"""The search on devices whose truth is known: good enough and cheap enough, and the command that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.benchmarks import search as search_benchmark
from tests.benchmarks.search import SearchRun, figures, keeps, search_device
from tests.model.search.made_up_device import SAMPLES, MadeUpDevice, exhaustive_cost_s, made_up_device


def test_a_hundred_searches_find_the_best_gamma_at_a_third_of_the_cost() -> None:
    runs = [search_device(made_up_device(seed), relative_ci=0.01) for seed in range(100)]
    found = figures(runs)
    assert found["within 1 % of the best"] >= 0.95
    assert found["cost, mean"] <= 0.35
    assert found["cost, all runs together"] <= 0.35


def device(**changes: Any) -> MadeUpDevice:
    return MadeUpDevice(
        batch_size=1,
        t_target_s=np.array([1.0, 1.0, 2.0]),
        t_draft_s=0.25,
        t_draft_catch_up_s=0.5,
        survival=np.array([0.5, 0.25]),
        noise=0.0,
        **changes,
    )


def test_blocks_take_what_they_should_and_cost_the_forwards_before_them() -> None:
    made = device()
    assert made.block_s("decode").tolist() == [[1.0]] * SAMPLES
    assert made.clock_s == 2.0 * SAMPLES
    assert made.block_s("draft").tolist() == [[0.25, 0.5]] * SAMPLES
    assert made.block_s("draft_catch_up").tolist() == [[0.5]] * SAMPLES
    assert made.block_s("verify:2").tolist() == [[2.0]] * SAMPLES
    assert made.clock_s == pytest.approx(SAMPLES * (2.0 + 0.5 + 1.25 + 0.5 + 1.0 + 2.0 + 0.25))


def test_the_truth_is_that_of_the_model() -> None:
    made = device()
    speedups = [1.5 / (0.25 + 1.0 + 0.5 * 0.25), 1.75 / (0.5 + 2.0 + 0.25 * 0.25)]
    assert made.speedups == pytest.approx(speedups)
    assert made.loss(0) == pytest.approx(1 - 1 / speedups[0])
    assert made.loss(1) == 0.0


def test_a_machine_warms_up_or_throttles() -> None:
    warming = device(drift=0.5, drift_s=1e-9)
    warming.block_s("decode")
    assert warming.block_s("decode").tolist() == [[1.5]] * SAMPLES
    throttling = device(drift=0.5, drift_s=15.0, throttles=True)
    assert [throttling.block_s("decode")[0, 0] for _ in range(3)] == [1.0, 1.0, 1.5]


def test_every_gamma_costs_the_least_blocks_where_nothing_is_noisy() -> None:
    """decode, draft, catch-up and two γ, three blocks each."""
    each = SAMPLES * (2.0 + 1.75 + 1.5 + 1.25 + 2.25)
    assert exhaustive_cost_s(device(), relative_ci=0.005) == pytest.approx(3 * each)


def run(loss: float, device_s: float) -> SearchRun:
    return SearchRun(noise=0.01, loss=loss, decided=True, timed=3, steps=4, device_s=device_s, exhaustive_s=10.0)


def test_promises_are_kept_or_not() -> None:
    good = figures([run(0.0, 1.0), run(0.01, 5.0)])
    assert (good["within 1 % of the best"], good["cost, mean"], good["largest loss"]) == (1.0, 0.3, 0.01)
    assert keeps(good)
    assert not keeps(figures([run(0.0, 1.0), run(0.011, 1.0)]))
    assert not keeps(figures([run(0.0, 4.0)]))


def test_the_command_prints_the_figures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(search_benchmark, "RUNS", 2)
    for loss, code, kept in ((0.0, 0, "kept"), (0.5, 1, "NOT KEPT")):
        monkeypatch.setattr(search_benchmark, "search_device", lambda made, loss=loss: run(loss, 1.0))
        assert search_benchmark.main() == code
        out = capsys.readouterr().out.splitlines()
        assert out[-1] == f"promised: 95% within 1 %, at most 35% of the cost: {kept}"
