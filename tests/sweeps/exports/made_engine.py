"""Engines made up for the tests: what a round takes and accepts in closed form, and run directories that hold it.

A step of n tokens of B rows takes T(B, n) = w + B (k + n c) seconds (weights, cache, arithmetic), a draft step of B
rows d + B e, and every draft is accepted with probability alpha: all of it is on a line over B, so that whoever
interpolates is exact, and γ falls as B grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgauge.configs.schema import Config
from specgauge.model.arms import arm_names
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.store.files import atomic_path
from specgauge.sweeps.store.rundir import Run, acceptance_path
from tests.sweeps import made
from tests.sweeps.made import acceptance_frame

CATCH_UP = 0.25
"""Δ₂ as a share of a draft step."""


@dataclass(frozen=True, kw_only=True)
class MadeEngine:
    """One engine with its draft."""

    weights_s: float = 16e-3
    cache_s: float = 0.05e-3
    token_s: float = 0.2e-3
    draft_s: float = 1.5e-3
    draft_row_s: float = 0.02e-3
    alpha: float = 0.75

    def t_step_s(self, batch_size: int, tokens: int) -> float:
        """A forward of the target."""
        return self.weights_s + batch_size * (self.cache_s + tokens * self.token_s)

    def t_draft_s(self, batch_size: int) -> float:
        """One draft step."""
        return self.draft_s + batch_size * self.draft_row_s

    def omega(self, gamma: int) -> float:
        """Tokens per round."""
        return sum(self.alpha**i for i in range(gamma + 1))

    def t_round_s(self, batch_size: int, gamma: int) -> float:
        """A round: drafts, catch-up after a fully accepted round of some row, verification."""
        follows = 1 - (1 - self.alpha**gamma) ** batch_size
        return (gamma + CATCH_UP * follows) * self.t_draft_s(batch_size) + self.t_step_s(batch_size, gamma + 1)

    def speedup(self, batch_size: int, gamma: int) -> float:
        """S; 1 at γ = 0."""
        if gamma == 0:
            return 1.0
        return self.omega(gamma) * self.t_step_s(batch_size, 1) / self.t_round_s(batch_size, gamma)

    def marks_s(self, arm: str, batch_size: int, gamma_max: int) -> list[float]:
        """What the journal has of an arm."""
        kind, _, gamma = arm.partition(":")
        draft_s = self.t_draft_s(batch_size)
        match kind:
            case "draft":
                return [step * draft_s for step in range(1, gamma_max + 1)]
            case "draft_catch_up":
                return [(1 + CATCH_UP) * draft_s]
            case "verify":
                return [self.t_step_s(batch_size, int(gamma) + 1)]
            case _:
                return [self.t_step_s(batch_size, 1)]


def config(batch_sizes: Sequence[int], contexts: Sequence[int] = (64,), **changes: Any) -> Config:
    """One pair of hub ids, γ 1 to 8."""
    pair = {"name": "p", "target": "org/target", "draft": "org/draft"}
    grid = {"batch_size": [*batch_sizes], "context": [*contexts], "gamma": "1:8"}
    return made.config(**{"pairs": [pair], "grid": grid, **changes})


def write_run(
    path: Path,
    engine: MadeEngine,
    config: Config,
    *,
    prompts: int = 6,
    greedy_share: float = 0.0,
    broken: Sequence[int] = (),
) -> Run:
    """A run that measured the engine, the same in every block.

    greedy_share: of the positions, whose token is the draft's argmax: what greedy drafts have accepted.
    broken: batch sizes that ran out of memory.
    """
    gamma_max = max(config.grid.gamma)
    with made.begin(path, config) as run:
        for cell in plan_cells(config):
            for arm in arm_names(config.grid.gamma, catches_up=cell.catches_up):
                line = {"axes": cell.axes, "arm": arm, "at": "2026-01-02T03:04:05.678+00:00"}
                if cell.batch_size in broken:
                    run.journal.append(line | {"block": 0, "status": "oom", "reason": "out of memory"})
                    continue
                sample = engine.marks_s(arm, cell.batch_size, gamma_max)
                for block in range(3):
                    run.journal.append(line | {"block": block, "status": "ok", "samples_s": [sample] * 3})
    frame = acceptance_frame(prompts, 24, engine.alpha)
    if greedy_share:
        is_argmax = (3 * frame["position"] + 7 * frame["prompt"]) % 10 < round(10 * greedy_share)
        frame["draft_argmax"] = frame["token"].where(is_argmax, -1)
        frame["draft_argmax_target_prob"] = is_argmax.astype(float)
    if not config.pairs[0].drafts_with_model:
        frame = frame.assign(proposed_length=8, match_length=2, lookup_match=2, rejected_target_prob=0.0)
    for sampling in config.sampling:
        with atomic_path(acceptance_path(path, "p", sampling.name)) as temporary:
            frame.to_parquet(temporary, index=False)
    return Run.open(path)
