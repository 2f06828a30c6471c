"""The benchmark computes what it says; how long it takes is for the command to tell."""

import numpy as np
import pytest

from specgauge.model.speedup import tokens_per_round_iid
from tests.benchmarks import model_speed as benchmark


def test_a_million_cells_have_the_best_gamma_of_the_scalar_formula() -> None:
    best = benchmark.best_gammas_of_a_million_cells()
    assert best.shape == (25, 25, 100)
    batch, context, alpha = 4, np.linspace(100, 32_000, 25)[7], np.linspace(0.0, 1.0, 100)[80]
    decode = 0.01 + 1e-8 * batch * context
    gains = []
    for gamma in range(1, 17):
        full = 1 - (1 - alpha**gamma) ** batch
        draft = gamma * (0.001 + 1e-9 * batch * context)
        round_s = draft + full * 1e-4 + decode + 1e-4 * batch * gamma + 0.001
        gains.append(float(tokens_per_round_iid(alpha, gamma)) * decode / round_s)
    assert best[3, 7, 80] == 1 + int(np.argmax(gains))


def test_promises_are_kept_or_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert all(promise.run() > 0 for promise in benchmark.promises()[:2])  # what is imported exists
    promises = [benchmark.Promise(what=what, allowed_s=1.0, run=lambda: 0.5) for what in ("fast", "faster")]
    monkeypatch.setattr(benchmark, "promises", lambda: promises)
    assert benchmark.main() == 0
    promises.append(benchmark.Promise(what="slow", allowed_s=1.0, run=lambda: 1.5))
    assert benchmark.main() == 1
    assert capsys.readouterr().out.splitlines()[-1].split() == ["slow", "1.5", "1", "NOT", "KEPT"]
