"""S as servers gave it, by cell and γ, beside the prediction that is made of the same servers' rounds. No torch.

    S of a block       seconds per token of plain decoding over those of γ, while all streams were decoding
    validation         blocks of their own: S is their mean, Student's t on its logarithm over blocks; it shares nothing
                       with the prediction
    in one server      S(γ) = (γ over γ = 0 there, block by block) · (γ = 0 there over the plain server): what drifts
                       between two servers is in the second factor alone, which all γ share
    timing             the blocks that the prediction is made of: nothing new, but whether it adds up is told by

        error = log S of a block - log(Omega T_decode / T_round)       T of that block, Omega of all

Blocks for validation count where a cell has any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from specgauge.configs.engines import AT_ZERO
from specgauge.model.acceptance.acceptance import Acceptance
from specgauge.model.checks import FloatArray
from specgauge.model.decision import ratio_text
from specgauge.sweeps.analysis.cell_estimate import ONE_RUN_SPREAD, Measured
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.served import LIVE, Purpose, ServedRow, read_served

if TYPE_CHECKING:
    from specgauge.configs.schema import Config
    from specgauge.sweeps.analysis.settings import RunSetting
    from specgauge.sweeps.analysis.timings import CellTimings

_STREAM = 11
_ENDS = ("high", "low")
_LARGEST_LOG = 30.0
"""Student's t of two blocks has no largest value, a float has."""
Pairs = Sequence[tuple[ServedRow, ServedRow]]
"""Plain decoding, or what is held against it, and an arm, of each block that has both."""


def paired_blocks(cell: Iterable[ServedRow], purpose: Purpose, arm: int | str, *, beside: int | str = 0) -> Pairs:
    """Plain decoding, or another arm beside it, and an arm of a cell's rows, of blocks that have both."""
    own = {(row.arm, row.block): row for row in cell if row.purpose == purpose and row.reason is None}
    return [(own[beside, block], row) for (at, block), row in own.items() if at == arm and (beside, block) in own]


def speedups_of_blocks(pairs: Pairs) -> list[float]:
    """S of each block; of one whose chunks tell no tokens by the time per token of whole streams."""
    found = []
    for pair in pairs:
        plain_s, own_s = _seconds(pair)
        if plain_s and own_s:
            found.append(plain_s / own_s)
    return found


def _seconds(rows: Sequence[ServedRow]) -> list[float | None]:
    """Seconds per token of blocks that are compared: of whole streams where the chunks of one tell no tokens."""
    is_told = all(row.token_s is not None for row in rows)
    return [row.token_s if is_told else row.tpot_s for row in rows]


def speedup_replicates(
    cell: Iterable[ServedRow], purpose: Purpose, arm: int | str, *, replicates: int, seed: Sequence[int]
) -> FloatArray | None:
    """(1 + R,) log S of an arm against plain decoding, then as its blocks let it vary; None without a block of both.

    An arm of a server that takes every γ in turn is held against γ = 0 there, which is held against the plain server,
    as it was timed where blocks of this purpose have a plain server on one side of the other alone; other arms are held
    against plain decoding, block by block.
    """
    cell = list(cell)
    pairs = paired_blocks(cell, purpose, arm)
    inside = speedups_of_blocks(paired_blocks(cell, purpose, arm, beside=AT_ZERO)) if _is_live(pairs) else []
    if not pairs or not inside:
        return mean_replicates(np.log(speedups_of_blocks(pairs)).tolist(), replicates=replicates, seed=seed)
    known = {at: _plain_and_zero(cell, at) for at in (purpose, "timing")}
    rows = next((own for own in known.values() if _is_between(own)), known[purpose])
    outside = _plain_over_zero(rows, replicates=replicates, seed=seed)
    if arm == AT_ZERO or outside is None:
        return outside
    own = mean_replicates(np.log(inside).tolist(), replicates=replicates, seed=(*seed, 0, int(arm)))
    return None if own is None else np.asarray(outside + own)


def _plain_and_zero(cell: Iterable[ServedRow], purpose: Purpose) -> list[ServedRow]:
    return [row for row in cell if row.purpose == purpose and row.reason is None and row.arm in (0, AT_ZERO)]


def _is_between(rows: Sequence[ServedRow]) -> bool:
    """Whether a plain server ran before the one that takes every γ in turn and after it."""
    return any(row.arm == AT_ZERO for row in rows) and {rows[0].arm, rows[-1].arm} == {0}


def _plain_over_zero(rows: Sequence[ServedRow], *, replicates: int, seed: Sequence[int]) -> FloatArray | None:
    """(1 + R,) log of the time per token of a plain server less that of γ = 0 on the one that takes every γ in turn.

    rows: of both, in the order taken. Beside their blocks the servers themselves vary, and the machine from one to the
    next: as one run of an engine does, pooled with what the plain server's visits before and after the other show.
    """
    logs = [(row.arm, float(np.log(seconds))) for row, seconds in zip(rows, _seconds(rows), strict=True) if seconds]
    first = next((index for index, (at, _) in enumerate(logs) if at == AT_ZERO), 0)
    visits = [own for part in (logs[:first], logs[first:]) if (own := [log for at, log in part if at == 0])]
    plain = mean_replicates([log for own in visits for log in own], replicates=replicates, seed=(*seed, 1))
    zero = mean_replicates([log for at, log in logs if at == AT_ZERO], replicates=replicates, seed=(*seed, 2))
    if plain is None or zero is None:
        return None
    apart = float(np.ptp([np.mean(own) for own in visits])) ** 2 / 2
    spread = math.sqrt((ONE_RUN_SPREAD**2 + apart) / len(visits) * (1 / len(visits) + 1))
    drawn = spread * np.random.default_rng([_STREAM, *seed, 3]).standard_normal(replicates)
    return np.asarray(plain - zero + np.array([0.0, *drawn]))


def _is_live(pairs: Pairs) -> bool:
    """Whether an arm was measured on a server that takes every γ in turn, and plain decoding on one of its own."""
    return any(own.server == LIVE and plain.server != LIVE for plain, own in pairs)


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
    return np.asarray(values.mean() + np.array([0.0, *np.clip(drawn, -_LARGEST_LOG, _LARGEST_LOG)]))


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
        """One draw of plain decoding for all γ, which are held against it."""
        own, replicates = list(own), self.config.precision.replicates
        found = {}
        for gamma in sorted({row.gamma for row in own if row.gamma and row.purpose == "validation"}):
            drawn = speedup_replicates(own, "validation", gamma, replicates=replicates, seed=seed)
            if drawn is not None:
                found[gamma] = np.exp(drawn)
        return found


def _errors(pairs: Pairs, omega: float) -> Iterable[float]:
    for plain, own in pairs:
        found = speedups_of_blocks([(plain, own)])
        if found and plain.t_round_s and own.t_round_s:
            yield float(np.log(found[0] * own.t_round_s / (omega * plain.t_round_s)))


def zero_words(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """What γ = 0 costs on a server that takes every γ in turn, in words; None where it was not measured.

    rows: of validation.csv, of one setting.
    """
    own = [row for row in rows if row["policy"] == AT_ZERO and row["speedup_measured"] is not None]
    several = len({row["context"] for row in own}) > 1
    found: list[str] = []
    for row in own:
        ends = [1 / end for name in _ENDS if (end := row[f"speedup_measured_{name}"])]
        where = f"batch size {row['batch_size']}" + (f", context {row['context']}" if several else "")
        known = f" ({' to '.join(map(ratio_text, ends))})" if len(ends) == len(_ENDS) else ""
        times = f"{1 / row['speedup_measured']:.2f}{known}"
        found.append(f"{times} of a plain step's time at {where}" if not found else f"{times} at {where}")
    if not found:
        return None
    return f"γ = 0 by schedule takes {', '.join(found)}; a draft model runs once a step even then"
