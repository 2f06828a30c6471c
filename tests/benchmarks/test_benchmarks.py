"""The benchmarks compute what they say; how long they take is for the commands to tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specgauge.model.speedup import tokens_per_round_iid
from tests.benchmarks import model_speed as speed
from tests.benchmarks import search as benchmark
from tests.benchmarks.search import SAMPLES, MadeUpDevice, exhaustive_cost_s


def test_a_hundred_searches_find_the_best_gamma_at_a_third_of_the_cost() -> None:
    found = benchmark.figures(100, relative_ci=0.01)
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
    assert made.loss(0) == pytest.approx(1 - (0.25 + 1.0 + 0.5 * 0.25) / 1.5)
    # decode, draft, catch-up and two γ, three blocks each
    every_arm = SAMPLES * (2.0 + 1.75 + 1.5 + 1.25 + 2.25)
    assert exhaustive_cost_s(made, relative_ci=0.005) == pytest.approx(3 * every_arm)


def test_a_machine_warms_up_or_throttles() -> None:
    warming = device(drift=0.5, drift_s=1e-9)
    warming.block_s("decode")
    assert warming.block_s("decode").tolist() == [[1.5]] * SAMPLES
    throttling = device(drift=0.5, drift_s=15.0, throttles=True)
    assert [throttling.block_s("decode")[0, 0] for _ in range(3)] == [1.0, 1.0, 1.5]


def test_the_command_says_whether_its_promises_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert benchmark.main(runs=2) == 0
    assert capsys.readouterr().out.endswith(": kept\n")
    monkeypatch.setattr(benchmark, "MOST_COST", 0.0)
    assert benchmark.main(runs=1) == 1


def test_a_million_cells_have_the_best_gamma_of_the_formula() -> None:
    best = speed.best_gammas_of_a_million_cells(alphas=100)
    assert best.shape == (25, 25, 100)
    batch, context, alpha = 4, np.linspace(100, 32_000, 25)[7], np.linspace(0.0, 1.0, 100)[80]
    gammas, attention = np.arange(1, 17), batch * context
    draft_s = gammas * (0.001 + 1e-9 * attention) + 1e-4 * (1 - (1 - alpha**gammas) ** batch)
    round_s = draft_s + 0.01 + 1e-8 * attention + 1e-4 * batch * gammas + 0.001
    assert best[3, 7, 80] == 1 + int(np.argmax(tokens_per_round_iid(alpha, gammas) / round_s))


def test_promises_are_kept_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(speed.PROMISES[f"import specgauge.{module}"][1]() > 0 for module in ("model", "model.decision"))
    kept: speed.Promises = {what: (1.0, lambda: 0.5) for what in ("fast", "faster")}
    assert speed.main(kept) == 0
    assert speed.main({**kept, "slow": (1.0, lambda: 1.5)}) == 1
    assert capsys.readouterr().out.splitlines()[-1].split() == ["slow", "1.5", "1", "NOT", "KEPT"]
