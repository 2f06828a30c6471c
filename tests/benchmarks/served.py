"""How good the γ and the schedules of servers are, and how often intervals of S hold the truth, on simulated engines.

    python -m tests.benchmarks.served [RUNS] [--tiles | --graphs] [--listed] [--http]

prints, over 100 engines of known acceptance and T_round(B, γ), whose batch sizes from 1 to 16 are searched: by batch
size, how often the γ of the exported schedule is within 1 % of the best, and how often it was measured; how often the
90 % intervals of S hold the truth, with a pace of the machine of its own in each block (standard deviation 1 %),
without blocks of validation and with them; and how many (B, γ) were measured. Exit code 1 where a promise is not kept.

Rounds take longer from some number of tokens on; with --tiles by steps of 8 tokens, with --graphs by those of graphs
for 1, 2, 4, 6, 8, 12 and 16 rows. --listed measures 1, 2, 4, 8 and 16 alone, and promises those. --http has the engines
serve, as in the tests; without it their load is worked out, which is thirty times as fast.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import dataclass, replace
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
SEARCHED = {"max": 16, "search": "adaptive"}
KINDS: dict[str, dict[str, Any]] = {
    "": {},
    "--tiles": {"tile": 8},
    "--graphs": {"graphs": (1, 2, 4, 6, 8, 12, 16)},
}
PACE_SPREAD = 0.01
LEAST_SHARE = 0.95
LEAST_COVERED, MOST_COVERED = 0.85, 0.96


def engine_of(seed: int, kind: str = "") -> EngineSettings:
    """An engine of a kind, drawn at random."""
    draw = random.Random(seed)
    return EngineSettings(
        **KINDS[kind],
        per_request=True,
        alpha=draw.uniform(0.4, 0.9),
        step_s=0.01,
        draft_s=draw.uniform(0.0005, 0.004),
        token_s=draw.uniform(0.0002, 0.002),
        free_tokens=draw.choice([4, 8, 16, 32]),
        seed=seed,
    )


def measured_run(
    path: Path,
    seed: int,
    *,
    kind: str = "",
    sizes: Any = SIZES,
    is_http: bool = False,
    pace_spread: float = 0.0,
    **more: Any,
) -> Run:
    """A run of `specgauge run` on the servers of one engine, searched for γ, with its answers."""
    settings = engine_of(seed, kind)
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


def speeds(seed: int, batch_size: int, kind: str = "") -> dict[int, float]:
    """Tokens a second of a stream by γ, as the engine is."""
    engine = Engine(engine_of(seed, kind))
    return {gamma: engine.omega(gamma) / engine.t_round_s(batch_size, gamma) for gamma in GAMMAS}


def schedule(run: Run) -> dict[int, int]:
    """γ of every batch size as exported, those between measured ones included."""
    answers = run_answers(run, ENGINES["vllm"].rules, undecided="gamma")
    return {size: step.gamma for step in answers.ranges for size in range(step.first, step.last + 1)}


def losses(run: Run, seed: int, kind: str = "") -> dict[int, float]:
    """By batch size, the share of the best speed that the exported γ lacks on the engine itself."""
    found = {}
    for size, gamma in schedule(run).items():
        own = speeds(seed, size, kind)
        found[size] = 1 - own[gamma] / max(own.values())
    return found


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
    """Of all (B, γ > 0), those that the search measured."""
    return sum(row.status == "ok" for row in run.rows(PredictionRow)) / (max(SIZES) * (len(GAMMAS) - 1))


def main(*arguments: str) -> int:
    """Print the figures; 1 where a promise is not kept."""
    count = int(next((one for one in arguments if one.isdigit()), RUNS))
    kind = next((one for one in arguments if one in KINDS), "")
    is_listed, is_kept = "--listed" in arguments, True
    with tempfile.TemporaryDirectory() as folder:
        root, sizes = Path(folder), SIZES if is_listed else SEARCHED
        runs = {
            seed: measured_run(root / f"{seed}", seed, kind=kind, sizes=sizes, is_http="--http" in arguments)
            for seed in range(count)
        }
        lost = {seed: losses(run, seed, kind) for seed, run in runs.items()}
        table = []
        for size in range(1, max(SIZES) + 1):
            share = sum(own[size] <= EQUIVALENCE_MARGIN for own in lost.values()) / count
            measured = sum(size in run.config.grid.batch_size for run in runs.values()) / count
            is_kept &= share >= LEAST_SHARE or (is_listed and size not in SIZES)
            table.append([size, f"{measured:.0%}", f"{share:.1%}", f"{max(own[size] for own in lost.values()):.1%}"])
        print(text_table(["batch size", "measured", "within 1 %", "largest loss"], table))
        everywhere = sum(max(own.values()) <= EQUIVALENCE_MARGIN for own in lost.values())
        print(f"runs within 1 % at every batch size: {everywhere / count:.1%}")
        print(f"batch sizes measured: {sum(len(run.config.grid.batch_size) for run in runs.values()) / count:.1f}")
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
