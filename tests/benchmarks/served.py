"""How good the γ and the schedules of servers are, and how often intervals of S hold the truth, on simulated engines.

    python -m tests.benchmarks.served [RUNS] [--http]

prints, over 100 engines of known acceptance and T_round(B, γ): by batch size, how often the γ of the exported schedule
is within 1 % of the best, at the batch sizes measured and at every one between; how often the 90 % intervals of S hold
the truth, with a pace of the machine of its own in each block (standard deviation 1 %), without blocks of validation
and with them; and how many (B, γ) the search measured. Exit code 1 where a promise is not kept. Between two batch sizes
that were measured T_round may rise anywhere, so that a γ counts as right there, too, which could be the best for some
T_round that rises from one to the other. --http has the engines serve, as in the tests; without it their load is worked
out, which is thirty times as fast.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from specgauge.model.search.candidates import EQUIVALENCE_MARGIN
from specgauge.sweeps.analysis.predictions import AnalysedRun, predict_run
from specgauge.sweeps.exports.registry import ENGINES
from specgauge.sweeps.exports.run_answers import run_answers
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import PredictionRow
from specgauge.sweeps.text_table import text_table
from tests.engine_server.direct import DirectServers, direct_load
from tests.engine_server.engine import Engine, EngineSettings
from tests.sweeps.served.simulated import Servers, measure, served_config

RUNS = 100
GAMMAS = (0, 1, 2, 4)
SIZES = (1, 2, 4, 8, 16)
PACE_SPREAD = 0.01
LEAST_SHARE = 0.95
LEAST_COVERED, MOST_COVERED = 0.85, 0.96


def engine_of(seed: int) -> EngineSettings:
    """An engine drawn at random."""
    draw = random.Random(seed)
    return EngineSettings(
        per_request=True,
        alpha=draw.uniform(0.4, 0.9),
        step_s=0.01,
        draft_s=draw.uniform(0.0005, 0.004),
        token_s=draw.uniform(0.0002, 0.002),
        free_tokens=draw.choice([4, 8, 16, 32]),
        seed=seed,
    )


def measured_run(
    path: Path, seed: int, *, sizes: Any = SIZES, is_http: bool = False, pace_spread: float = 0.0, **more: Any
) -> Run:
    """A run of `specgauge run` on the servers of one engine, searched for γ, with its answers."""
    settings = engine_of(seed)
    engines = {gamma: Engine(replace(settings, gamma=gamma, seed=1000 * seed + gamma)) for gamma in GAMMAS}
    sections: dict[str, Any] = {
        "seed": seed,
        "grid": {
            "batch_size": sizes if isinstance(sizes, dict) else list(sizes),
            "context": 32,
            "gamma_search": "adaptive",
        },
        "precision": {"max_blocks": 8, "block_samples": 24, "bootstrap_replicates": 200},
        "workload": {"max_new_tokens": 64},
    }
    config = served_config(GAMMAS, **sections | more)
    if is_http:
        measure(path, config, Servers(engines))
    else:
        with direct_load(pace_spread=pace_spread, seed=seed):
            measure(path, config, DirectServers(engines))
    predict_run(Run.open(path))
    return Run.open(path)


def speeds(seed: int, batch_size: int) -> dict[int, float]:
    """Tokens a second of a stream by γ, as the engine is."""
    engine = Engine(engine_of(seed))
    return {gamma: engine.omega(gamma) / engine.t_round_s(batch_size, gamma) for gamma in GAMMAS}


def schedule(run: Run) -> dict[int, int]:
    """γ of every batch size as exported, those between measured ones included."""
    answers = run_answers(run, ENGINES["vllm"].rules, undecided="gamma")
    return {size: step.gamma for step in answers.ranges for size in range(step.first, step.last + 1)}


def losses(run: Run, seed: int) -> dict[int, float]:
    """By batch size, the share of the best speed that the exported γ lacks on the engine itself."""
    found = {}
    for size, gamma in schedule(run).items():
        own = speeds(seed, size)
        found[size] = 1 - own[gamma] / max(own.values())
    return found


def could_be_best(seed: int, batch_size: int, gamma: int, sizes: Iterable[int]) -> bool:
    """Whether a γ is within 1 % of the best for some T_round that rises between the measured batch sizes beside."""
    engine = Engine(engine_of(seed))
    low, high = next((a, b) for a, b in pairwise(sorted(sizes)) if a <= batch_size <= b)
    best = max(engine.omega(one) / engine.t_round_s(high, one) for one in GAMMAS if one != gamma)
    return engine.omega(gamma) / engine.t_round_s(low, gamma) >= (1 - EQUIVALENCE_MARGIN) * best


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Of 90 % intervals of S from all evidence, one for each measured (B, γ)."""

    held: int
    count: int

    @property
    def share(self) -> float:
        """Those that hold the truth."""
        return self.held / self.count


def coverage(run: Run, seed: int) -> Coverage:
    """How many intervals of a run hold S of its engine."""
    engine, held, count = Engine(engine_of(seed)), 0, 0
    analysed = AnalysedRun.read(run)
    for setting, cell in analysed.points():
        estimate = analysed.estimate(setting, cell)
        if estimate is None or estimate.speedup.low is None or estimate.speedup.high is None:
            continue
        found, size = estimate.speedup, cell.cell.batch_size
        for index, gamma in enumerate(found.gammas.tolist()):
            truth = engine.omega(gamma) * engine.t_round_s(size, 0) / engine.t_round_s(size, gamma)
            held += bool(estimate.speedup.low[index] <= truth <= estimate.speedup.high[index])
            count += 1
    return Coverage(held=held, count=count)


def measured_share(run: Run) -> float:
    """Of all (B, γ), those that the search measured."""
    rows = run.rows(PredictionRow)
    return sum(row.status == "ok" for row in rows) / len(rows)


def right(runs: Mapping[int, Run]) -> dict[int, list[bool]]:
    """By batch size, whether each run's exported γ is within 1 % of the best."""
    found = defaultdict(list)
    for seed, run in runs.items():
        for size, loss in losses(run, seed).items():
            found[size].append(loss <= EQUIVALENCE_MARGIN)
    return found


def main(*arguments: str) -> int:
    """Print the figures; 1 where a promise is not kept."""
    count = int(next((one for one in arguments if one.isdigit()), RUNS))
    is_kept = True
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        runs = {
            seed: measured_run(root / f"plain-{seed}", seed, is_http="--http" in arguments) for seed in range(count)
        }
        table = []
        for size, own in sorted(right(runs).items()):
            chosen = [schedule(run)[size] for run in runs.values()]
            knowable = [
                is_right or could_be_best(seed, size, gamma, SIZES)
                for seed, is_right, gamma in zip(runs, own, chosen, strict=True)
            ]
            share = sum(own if size in SIZES else knowable) / len(own)
            is_kept &= share >= LEAST_SHARE
            largest = max(losses(run, seed)[size] for seed, run in runs.items())
            kind = "measured" if size in SIZES else "between"
            table.append(
                [size, kind, f"{sum(own) / len(own):.1%}", f"{sum(knowable) / len(own):.1%}", f"{largest:.1%}"]
            )
        print(text_table(["batch size", "", "within 1 %", "or could be best", "largest loss"], table))
        everywhere = sum(
            max(losses(run, seed)[size] for size in SIZES) <= EQUIVALENCE_MARGIN for seed, run in runs.items()
        )
        is_kept &= everywhere >= LEAST_SHARE * count
        print(f"runs within 1 % at every batch size measured: {everywhere / count:.1%}")
        print(f"(B, γ) measured: {sum(map(measured_share, runs.values())) / count:.0%}")
        cases: dict[str, dict[str, Any]] = {"timing alone": {}, "with validation": {"validate": {"max_new_tokens": 64}}}
        for name, more in cases.items():
            found = [
                coverage(
                    measured_run(root / f"{name}-{seed}", seed, sizes=(1, 8), pace_spread=PACE_SPREAD, **more), seed
                )
                for seed in range(count)
            ]
            share = sum(one.held for one in found) / sum(one.count for one in found)
            is_kept &= LEAST_COVERED <= share <= MOST_COVERED
            print(f"90 % intervals of S, {name}: {share:.1%} hold the truth")
    verdict = "kept" if is_kept else "NOT KEPT"
    print(f"promised: {LEAST_SHARE:.0%}, and {LEAST_COVERED:.0%} to {MOST_COVERED:.0%}: {verdict}")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
