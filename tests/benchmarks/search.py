"""How good and how cheap the search for γ is, on devices whose truth is known.

    python -m tests.benchmarks.search

prints, over 500 made-up devices, how often the γ found is within 1 % of the best, and the device seconds it took beside
those of timing every γ to ±.5 % (without drift, which would make that take longer); exit code 1 where a promise is not
kept. Speed-ups of the γ found are known to ±.5 % then, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from specgauge.model.search.candidates import EQUIVALENCE_MARGIN, SearchSettings
from specgauge.model.search.levels import BlockSummary, summarise_block
from specgauge.model.search.search import next_step
from specgauge.sweeps.text_table import text_table
from tests.model.search.made_up_device import MadeUpDevice, exhaustive_cost_s, made_up_device

RUNS = 500
RELATIVE_CI = 0.005
LEAST_SHARE, MOST_COST = 0.95, 0.35
"""What is promised: γ within the zone in so many runs, at so much of the exhaustive cost."""


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """One search: the share of the best speed-up lost, how many γ were timed at all, and device seconds."""

    loss: float
    decided: bool
    timed: int
    device_s: float
    exhaustive_s: float


def search_device(device: MadeUpDevice, *, relative_ci: float = RELATIVE_CI) -> SearchRun:
    """Search a made-up device from the first block to the end."""
    exhaustive_s = exhaustive_cost_s(device, relative_ci=relative_ci)
    settings = SearchSettings(
        gammas=device.gammas, batch_size=device.batch_size, relative_ci=relative_ci, max_blocks=1000
    )
    blocks: dict[str, dict[int, BlockSummary]] = {}
    number = 0
    while (step := next_step(settings, [device.question], blocks)).arms:
        for arm in device.generator.permutation(step.arms).tolist():
            blocks.setdefault(arm, {})[number] = summarise_block(device.block_s(arm))
        number += 1
    (verdict,) = step.verdicts
    return SearchRun(
        loss=device.loss(verdict.gamma),
        decided=verdict.decided,
        timed=sum(arm.startswith("verify:") for arm in blocks),
        device_s=device.clock_s,
        exhaustive_s=exhaustive_s,
    )


def search_devices(seeds: Iterable[int], *, relative_ci: float = RELATIVE_CI) -> list[SearchRun]:
    """One search for each seed."""
    return [search_device(made_up_device(seed), relative_ci=relative_ci) for seed in seeds]


def figures(runs: Sequence[SearchRun]) -> dict[str, float]:
    """The runs in a few numbers; costs are device seconds over those of timing every γ."""
    costs = np.array([run.device_s / run.exhaustive_s for run in runs])
    return {
        "within 1 % of the best": float(np.mean([run.loss <= EQUIVALENCE_MARGIN for run in runs])),
        "largest loss": max(run.loss for run in runs),
        "decided": float(np.mean([run.decided for run in runs])),
        "cost, mean": float(costs.mean()),
        "cost, largest": float(costs.max()),
        "cost, all runs together": sum(run.device_s for run in runs) / sum(run.exhaustive_s for run in runs),
        "gammas timed, mean": float(np.mean([run.timed for run in runs])),
    }


def main(runs: int = RUNS) -> int:
    """Print the figures; 1 where a promise is not kept."""
    found = figures(search_devices(range(runs)))
    print(text_table(["", "value"], list(found.items())))
    kept = found["within 1 % of the best"] >= LEAST_SHARE and found["cost, mean"] <= MOST_COST
    verdict = "kept" if kept else "NOT KEPT"
    print(f"promised: {LEAST_SHARE:.0%} within 1 %, at most {MOST_COST:.0%} of the cost: {verdict}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
