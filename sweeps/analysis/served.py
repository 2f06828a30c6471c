"""S as servers gave it, by cell and γ, beside the prediction that is made of the same servers' rounds. No torch.

    S of a block       seconds per token of plain decoding over those of γ, while all streams were decoding
    validation         blocks of their own: S is their mean, Student's t on its logarithm over blocks; it shares nothing
                       with the prediction
    timing             the blocks that the prediction is made of: nothing new, but whether it adds up is told by

        error = log S of a block - log(Omega T_decode / T_round)       T of that block, Omega of all

Blocks for validation count where a cell has any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import FloatArray
from specgauge.sweeps.analysis.cell_estimate import ONE_RUN_SPREAD, Measured
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.served import Purpose, ServedRow, read_served

if TYPE_CHECKING:
    from specgauge.configs.schema import Config
    from specgauge.sweeps.analysis.settings import RunSetting
    from specgauge.sweeps.analysis.timings import CellTimings

_STREAM = 11
Pairs = Sequence[tuple[ServedRow, ServedRow]]
"""Plain decoding, or what is held against it, and an arm, of each block that has both."""


def paired_blocks(cell: Iterable[ServedRow], purpose: Purpose, arm: int | str, *, beside: int = 0) -> Pairs:
    """Plain decoding, or another γ beside it, and an arm of a cell's rows, of blocks that have both."""
    own = {(row.arm, row.block): row for row in cell if row.purpose == purpose and row.reason is None}
    return [(own[beside, block], row) for (at, block), row in own.items() if at == arm and (beside, block) in own]


def speedups_of_blocks(pairs: Pairs) -> list[float]:
    """S of each block; of one whose chunks tell no tokens by the time per token of whole streams."""
    found = []
    for plain, own in pairs:
        is_told = plain.token_s is not None and own.token_s is not None
        seconds = (plain.token_s, own.token_s) if is_told else (plain.tpot_s, own.tpot_s)
        if seconds[0] and seconds[1]:
            found.append(seconds[0] / seconds[1])
    return found


def mean_replicates(logs: Sequence[float], *, replicates: int, seed: Sequence[int]) -> FloatArray | None:
    """(1 + R,) the mean of a logarithm over blocks, then as Student's t lets it vary; None without a block.

    A single block varies as one run of an engine is taken to (`ONE_RUN_SPREAD`).
    """
    values = np.array(logs, dtype=np.float64)
    generator = np.random.default_rng([_STREAM, *seed])
    if not values.size:
        return None
    if values.size == 1:
        drawn = ONE_RUN_SPREAD * generator.standard_normal(replicates)
    else:
        drawn = float(values.std(ddof=1)) / np.sqrt(values.size) * generator.standard_t(values.size - 1, replicates)
    return np.asarray(values.mean() + np.array([0.0, *drawn]))


@dataclass(frozen=True, kw_only=True)
class ServedCells:
    """The blocks of a run's servers that count."""

    config: Config
    rows: Mapping[tuple[str, str, int, int], Sequence[ServedRow]]
    """By pair, sampling, batch size and context."""

    @classmethod
    def read(cls, run: Run) -> Self:
        """Read served.jsonl, where the run has it; ValueError where a line is damaged."""
        rows: dict[tuple[str, str, int, int], list[ServedRow]] = {}
        for row in read_served(run.path) if run.is_served else ():
            rows.setdefault((row.pair, row.sampling, row.batch_size, row.context), []).append(row)
        return cls(config=run.config, rows=rows)

    def measured(self, setting: RunSetting, cell: CellTimings, acceptance: Acceptance | None) -> Measured:
        """S of a cell beside its prediction."""
        key, point = setting.key, cell.cell
        own = self.rows.get((key.pair, key.sampling, point.batch_size, point.context), ())
        seed = (self.config.seed, int(point.id, 16))
        speedups = self._of_validation(own, seed)
        if speedups or acceptance is None:
            return Measured(speedups=speedups, drawn_together=True)
        errors = {}
        for gamma in acceptance.gammas[acceptance.is_known].tolist():
            omega = float(acceptance.only([gamma]).tokens_per_round.reshape(-1)[0])
            logs = list(_errors(paired_blocks(own, "timing", gamma), omega))
            found = mean_replicates(logs, replicates=self.config.precision.replicates, seed=(*seed, gamma))
            if found is not None:
                errors[gamma] = found
        return Measured(errors=errors)

    def _of_validation(self, own: Iterable[ServedRow], seed: Sequence[int]) -> dict[int, FloatArray]:
        """One draw for all γ: they are held against the same plain decoding."""
        own = list(own)
        found = {}
        for gamma in sorted({row.gamma for row in own if row.gamma and row.purpose == "validation"}):
            logs = np.log(speedups_of_blocks(paired_blocks(own, "validation", gamma))).tolist()
            drawn = mean_replicates(logs, replicates=self.config.precision.replicates, seed=seed)
            if drawn is not None:
                found[gamma] = np.exp(drawn)
        return found


def _errors(pairs: Pairs, omega: float) -> Iterable[float]:
    for plain, own in pairs:
        found = speedups_of_blocks([(plain, own)])
        if found and plain.t_round_s and own.t_round_s:
            yield float(np.log(found[0] * own.t_round_s / (omega * plain.t_round_s)))
