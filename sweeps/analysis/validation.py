"""The prediction held against what was decoded end to end: ε with whole contexts held out, errors, and a summary.

    ε of a cell         median over the blocks of the same pair, sampling and batch size at OTHER contexts of what the
                        phases accept, roll back and host work took, in the costs' own time; its interval is Student's t
                        over those blocks, of a single one with the spread that blocks of other cells have
    predicted S         of the cell: Ω of the acceptance pass · T_decode / (C + π Δ₂ + T_verify + ε)
    S from counts       the same with the rounds and tokens that were counted, block by block
    cost error          median over blocks of S from counts / S measured − 1
    acceptance error    Ω predicted / Ω counted − 1, with its 95 % interval over prompts, paired where both have them

A cell decoded at one context only has its ε from that very context, and says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from specgauge.model.acceptance.renewal import RenewalResult
from specgauge.model.checks import FloatArray, IntArray
from specgauge.model.settings import SettingPoint
from specgauge.model.stats.bootstrap import expansion, sum_by_prompt
from specgauge.model.validate import RatioError, holds_zero, ratio_error
from specgauge.sweeps.analysis.counted_rounds import CountedBlock
from specgauge.sweeps.store.schema import DecodedKey
from specgauge.sweeps.text_table import count

if TYPE_CHECKING:
    import pandas as pd


AS_FAST = 0.01
Outcome = Literal["won", "lost", "undecided", "the same"]
OTHER_CONTEXTS, SAME_CONTEXT = "other contexts", "same context"


@dataclass(frozen=True, kw_only=True)
class Overhead:
    """ε of one cell."""

    t_overhead_s: FloatArray
    """(1 + R,) the estimate, then replicates that draw blocks."""
    fitted_from: str


def overheads(
    blocks: Mapping[DecodedKey, Sequence[CountedBlock]], keys: Iterable[DecodedKey], *, replicates: int, seed: int
) -> dict[DecodedKey, Overhead]:
    """ε of every key from the decoded blocks of its siblings, which share all that ε depends on; none without any.

    How drafts are drawn and verified is carried over. keys: the cells of the grid, decoded or not.
    """

    def shared(key: DecodedKey) -> tuple[str, str, str, int]:
        return key.pair, key.mode, key.sampling, key.batch_size

    timed = {key: by_block for key, own in blocks.items() if (by_block := _by_block(own))}
    borrowed = _relative_spread(timed.values())
    found = {}
    for key in keys:
        siblings = {other: own for other, own in timed.items() if shared(other) == shared(key)}
        others = [own for other, own in siblings.items() if other.start_context != key.start_context]
        used = [block for own in others or siblings.values() for block in own]
        if used:
            generator = np.random.default_rng((seed, key.start_context))
            found[key] = Overhead(
                t_overhead_s=_overhead_replicates(used, generator, replicates, borrowed),
                fitted_from=OTHER_CONTEXTS if others else SAME_CONTEXT,
            )
    return found


def _by_block(blocks: Iterable[CountedBlock]) -> list[list[float]]:
    """ε of every γ, where it was timed, by block."""
    found: dict[int, list[float]] = {}
    for block in blocks:
        if np.isfinite(block.t_overhead_s):
            found.setdefault(block.block, []).append(block.t_overhead_s)
    return list(found.values())


SINGLE_BLOCK_SPREAD = 0.5
"""Standard deviation of ε, as a share of it, that a single block is taken to have where no cell has several."""


@dataclass(frozen=True, kw_only=True)
class _Spread:
    """A standard deviation, as a share, with its degrees of freedom."""

    share: float = SINGLE_BLOCK_SPREAD
    freedom: float = math.inf


def _relative_spread(cells: Iterable[Sequence[Sequence[float]]]) -> _Spread:
    """Of ε between the blocks of a cell, pooled over all cells that have several."""
    means = [np.array([np.median(block) for block in own]) for own in cells if len(own) > 1]
    shares = [own / own.mean() for own in means if own.mean() > 0]
    freedom = sum(own.size - 1 for own in shares)
    if not freedom:
        return _Spread()
    return _Spread(share=math.sqrt(sum(float(((own - 1.0) ** 2).sum()) for own in shares) / freedom), freedom=freedom)


def _overhead_replicates(
    blocks: Sequence[Sequence[float]], generator: np.random.Generator, replicates: int, borrowed: _Spread
) -> FloatArray:
    """(1 + R,) the median ε of all γ of all blocks, then Student's t over blocks; of one block with a borrowed spread.

    No replicate is below 0: host work takes time.
    """
    estimate = float(np.median(np.concatenate(blocks)))
    medians, freedom = np.array([np.median(block) for block in blocks]), float(len(blocks) - 1)
    spread_s = borrowed.share * estimate if len(blocks) < 2 else float(medians.std(ddof=1)) / math.sqrt(len(blocks))
    if len(blocks) < 2:
        freedom = borrowed.freedom
    drawn = generator.standard_normal(replicates) if math.isinf(freedom) else generator.standard_t(freedom, replicates)
    return np.array([estimate, *np.maximum(estimate + spread_s * drawn, 0.0)])


def acceptance_error(
    rounds: pd.DataFrame, predicted: RenewalResult, prompts: Sequence[int], gamma: int, *, gamma_max: int, limit: int
) -> RatioError | None:
    """Ω predicted over Ω counted at one γ, from one cell's rounds of all arms; None where nothing was counted.

    Counted are the rounds of single rows that start with `gamma_max` positions left, as the prediction counts them.
    predicted: sums by prompt, whose numbers `prompts` gives; limit: max_new_tokens.
    """
    position, asked = rounds["position"].to_numpy(), rounds["gamma_asked"].to_numpy()
    starts = (asked == gamma) & (rounds["gamma"].to_numpy() == asked) & (position - 1 + gamma_max <= limit - 1)
    if not starts.any():
        return None
    decoded, of_prompt = np.unique(rounds["prompt"].to_numpy()[starts], return_inverse=True)
    tokens, counts = np.bincount(of_prompt, rounds["emitted"].to_numpy()[starts]), np.bincount(of_prompt)
    column = predicted.gammas.tolist().index(gamma)
    expected = predicted.committed[:, column].tolist(), predicted.starts[:, column].tolist()
    return ratio_error(
        dict(zip(prompts, zip(*expected, strict=True), strict=True)),
        dict(zip(decoded.tolist(), zip(tokens.tolist(), counts.tolist(), strict=True), strict=True)),
    )


SINGLE_BATCH_SPREAD = 0.15
"""Standard deviation of log S that a single batch is taken to have where no cell was decoded in several."""


def batch_spread(cells: Iterable[tuple[Sequence[CountedBlock], IntArray]]) -> float:
    """Standard deviation of log S between the batches of a cell and γ, pooled over all that have several.

    cells: the blocks of each with the numbers of their batches: blocks of the same prompts are one batch.
    """
    values = [(np.log([block.speedup_measured for block in own]), batches) for own, batches in cells]
    means = [sum_by_prompt(logs, batches) / np.bincount(batches) for logs, batches in values]
    logs = [own for own in means if own.size > 1]
    freedom = sum(own.size - 1 for own in logs)
    return math.sqrt(sum(float(((own - own.mean()) ** 2).sum()) for own in logs) / freedom) if freedom else math.nan


def measured_replicates(
    blocks: Sequence[CountedBlock],
    batches: IntArray,
    *,
    confidence: float,
    replicates: int,
    seed: int,
    spread: float,
    waiting_spread: float = 0.0,
) -> FloatArray:
    """(1 + R,) S measured, pooled over the blocks of a cell and γ, then from drawing batches.

    batches: the number of each block's batch; blocks of the same prompts are one, and drawn together. spread: what a
    single batch has for its uncertainty, `batch_spread` of the others, or more where its own blocks differ by more.
    waiting_spread: standard deviation of log S that no block tells (`Disturbance.waiting_spread`).
    Replicates are widened on the log scale: nominal 90 % intervals covered the truth in 86 to 91 % of 600 simulated
    experiments each, from 2 to 16 blocks; as drawn in 48 % (2 blocks) to 87 %.
    """
    tokens = np.array([b.tokens_per_round * b.rounds for b in blocks])
    rounds_s = np.array([b.t_round_s * b.rounds for b in blocks])
    steps_s = np.array([b.t_plain_step_s * b.rounds for b in blocks])
    counts = np.array([b.rounds for b in blocks], dtype=np.float64)

    def pooled(weights: FloatArray) -> FloatArray:
        return np.asarray((weights @ tokens) * (weights @ steps_s) / ((weights @ rounds_s) * (weights @ counts)))

    everything, generator = float(pooled(np.ones((1, len(blocks))))[0]), np.random.default_rng(seed)
    distinct = int(batches.max()) + 1
    if distinct < 2:
        logs = np.log([block.speedup_measured for block in blocks])
        widest = max(spread, float(logs.std(ddof=1))) if len(blocks) > 1 else spread
        drawn = everything * np.exp(widest * generator.standard_normal(replicates))
    else:
        weights = generator.multinomial(distinct, np.full(distinct, 1 / distinct), replicates)[:, batches]
        drawn = everything * (pooled(weights.astype(np.float64)) / everything) ** expansion(distinct, confidence)
    return np.array([everything, *drawn * np.exp(waiting_spread * generator.standard_normal(replicates))])


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Absolute relative errors of some rows."""

    mean: float
    worst: float
    count: int

    def text(self, of: str = " of measured") -> str:
        """`within 2.1 % of measured on average, 5.0 % at worst`; of one row `within 2.1 % of measured`."""
        mean = f"within {100 * self.mean:.1f} %{of}"
        return mean if self.count == 1 else f"{mean} on average, {100 * self.worst:.1f} % at worst"


@dataclass(frozen=True, kw_only=True)
class ValidationSummary:
    """All rows of a run, or of a part of it; a row is a cell at one γ."""

    cells: int
    rows: int
    forced: int
    """Rows that are not lossless, since acceptance was forced by coin."""
    speedup: Errors | None
    """S predicted against measured; None without a lossless row to compare."""
    cost: Errors | None
    """S from the counted rounds and tokens against measured."""
    acceptance_known: int
    """Rows whose acceptance error has an interval, and those whose interval holds 0."""
    acceptance_agrees: int
    rounds_known: int
    """Rows whose counted rounds could be held against those expected, and those that agree."""
    rounds_agree: int
    texts_same: int
    """Greedy texts that are the plain loop's, leave it where rounding decides between two tokens, and elsewhere."""
    texts_tied: int
    texts_differ: int
    whole_low: float | None
    """Smallest and largest gain of whole requests, prefills and ragged ends included."""
    whole_high: float | None

    def text(self) -> str:
        """One line, without a full stop."""
        where = f"Decoded end to end in {count(self.cells, 'cell')}"
        if self.forced == self.rows:
            where += ", acceptance forced by coin (not lossless)"
        if self.speedup is not None:
            cost = self.cost
            from_counts = "" if cost is None else f"; S from the rounds counted in these texts {cost.text(of='')}"
            return f"{where}: predicted S {self.speedup.text()}{from_counts}"
        if self.cost is not None:
            return f"{where}: S from the measured costs and the rounds counted {self.cost.text()}"
        return f"{where}: no stretch with all rows active to compare"

    def as_mapping(self) -> dict[str, Any]:
        """Plain data for JSON; unknown is None."""
        columns = asdict(self)
        errors = {
            f"{name}_error_{figure}": None if columns[name] is None else columns[name][figure]
            for name in ("speedup", "cost")
            for figure in ("mean", "worst")
        }
        left_out = {"speedup", "cost", "whole_low", "whole_high"}
        return {"text": self.text(), **{k: v for k, v in columns.items() if k not in left_out}, **errors}


def summarise(rows: Iterable[Mapping[str, Any]]) -> ValidationSummary | None:
    """The summary of rows of validation.csv (unknown is None); None without any."""
    rows = list(rows)
    if not rows:
        return None
    intervals = [
        (row["acceptance_error_low"], row["acceptance_error_high"])
        for row in rows
        if row["acceptance_error_low"] is not None and row["acceptance_error_high"] is not None
    ]
    agreements = [row["rounds_agree"] for row in rows if row["rounds_agree"] is not None]
    whole = [row["speedup_whole"] for row in rows if row["speedup_whole"] is not None]
    return ValidationSummary(
        cells=len({cell_of(row) for row in rows}),
        rows=len(rows),
        forced=sum(not row["lossless"] for row in rows),
        speedup=_errors(row["error"] for row in rows),
        cost=_errors(row["cost_error"] for row in rows),
        acceptance_known=len(intervals),
        acceptance_agrees=sum(holds_zero(low, high) for low, high in intervals),
        rounds_known=len(agreements),
        rounds_agree=sum(agreements),
        texts_same=sum(row["texts_same"] or 0 for row in rows),
        texts_tied=sum(row["texts_tied"] or 0 for row in rows),
        texts_differ=sum(row["texts_differ"] or 0 for row in rows),
        whole_low=min(whole, default=None),
        whole_high=max(whole, default=None),
    )


def outcome(low: float | None, high: float | None) -> Outcome:
    """How something stands to what it was run beside, by the interval of how many times as fast it is.

    It is the same where the whole interval lies within 1 % of 1.
    """
    if low is None or high is None:
        return "undecided"
    if low >= 1.0 - AS_FAST and high <= 1.0 + AS_FAST:
        return "the same"
    return "won" if low > 1.0 else "lost" if high < 1.0 else "undecided"


def cell_of(entry: Mapping[str, Any]) -> SettingPoint:
    """The cell that a row of validation.csv or an entry of recommendation.yaml belongs to."""
    return SettingPoint(**{field.name: entry[field.name] for field in fields(SettingPoint)})


def _errors(values: Iterable[float | None]) -> Errors | None:
    known = [abs(value) for value in values if value is not None]
    return Errors(mean=sum(known) / len(known), worst=max(known), count=len(known)) if known else None
