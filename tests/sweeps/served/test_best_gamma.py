"""γ recommended from load on simulated engines of known costs and acceptance, against the best there is.

A few of the runs of `python -m tests.benchmarks.served`, which promises of a hundred what is asserted there.
"""

from pathlib import Path
from typing import Any

import pytest

from specgauge.sweeps.store.rundir import Run
from tests.benchmarks import served as benchmark
from tests.benchmarks.served import Coverage, coverage, measured_run

SIZES = (1, 8)
SEEDS = range(1)
NEAR = 0.01


def losses(path: Path, seed: int) -> list[float]:
    """By batch size, the share of the best speed that the recommended γ lacks on the engine itself."""
    found = benchmark.losses(measured_run(path, seed, sizes=SIZES, is_http=True), seed)
    return [found[size] for size in SIZES]


def test_gamma_is_near_the_best_at_every_batch_size_of_engines_that_serve(tmp_path: Path) -> None:
    found = [loss for seed in SEEDS for loss in losses(tmp_path / str(seed), seed)]
    assert max(found) <= NEAR


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Run]:
    folder = tmp_path_factory.mktemp("runs")
    options: dict[str, Any] = {"sizes": benchmark.SEARCHED, "pace_spread": benchmark.PACE_SPREAD}
    return {seed: measured_run(folder / str(seed), seed, **options) for seed in range(3)}


def test_the_schedule_is_right_at_every_batch_size(runs: dict[int, Run]) -> None:
    missed = 0
    for seed, run in runs.items():
        lost = benchmark.losses(run, seed)
        assert list(lost) == [*range(1, 17)]
        assert max(lost.values()) < 0.03
        missed += any(loss > NEAR for loss in lost.values())
    assert missed <= 1


def test_so_it_is_where_rounds_rise_by_steps(tmp_path: Path) -> None:
    run = measured_run(tmp_path, 2, kind="--tiles", sizes=benchmark.SEARCHED)
    assert max(benchmark.losses(run, 2, "--tiles").values()) <= NEAR
    assert 5 < len(run.config.grid.batch_size) < 16


def test_intervals_of_s_hold_the_truth(runs: dict[int, Run]) -> None:
    found = [coverage(run, seed) for seed, run in runs.items()]
    # those of a run share its counts: 90 % less what so few vary by
    assert Coverage(held=sum(one.held for one in found), count=sum(one.count for one in found)).share >= 0.7
