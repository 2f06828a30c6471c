"""The benchmark computes what it says; how long it takes is for the command to tell."""

import numpy as np
import pytest

from specgauge.model.speedup import tokens_per_round_iid
from tests.benchmarks import model_speed as benchmark


def test_a_million_cells_have_the_best_gamma_of_the_formula() -> None:
    best = benchmark.best_gammas_of_a_million_cells()
    assert best.shape == (25, 25, 100)
    batch, context, alpha = 4, np.linspace(100, 32_000, 25)[7], np.linspace(0.0, 1.0, 100)[80]
    gammas, attention = np.arange(1, 17), batch * context
    draft_s = gammas * (0.001 + 1e-9 * attention) + 1e-4 * (1 - (1 - alpha**gammas) ** batch)
    round_s = draft_s + 0.01 + 1e-8 * attention + 1e-4 * batch * gammas + 0.001
    assert best[3, 7, 80] == 1 + int(np.argmax(tokens_per_round_iid(alpha, gammas) / round_s))


def test_promises_are_kept_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert all(benchmark.PROMISES[f"import specgauge.{module}"][1]() > 0 for module in ("model", "model.decision"))
    kept: benchmark.Promises = {what: (1.0, lambda: 0.5) for what in ("fast", "faster")}
    assert benchmark.main(kept) == 0
    assert benchmark.main({**kept, "slow": (1.0, lambda: 1.5)}) == 1
    assert capsys.readouterr().out.splitlines()[-1].split() == ["slow", "1.5", "1", "NOT", "KEPT"]
