"""Does the prediction hold? Checks finished runs against what specgauge promises of itself, and prints every figure.

    python -m specgauge.sweeps.proof RUN [RUN …]

A run decoded its cells at every γ of the grid (the shipped configuration `proof` does). Over the cells of all runs:

    cost          mean over cells and γ of |cost error| at most 3 %, the worst at most 8 %
    acceptance    in at least 13 of 16 cells the error at the recommended γ lies inside its 95 % interval
    choice        the recommended γ has at least 98.5 % of the speed of the best measured γ, known to ± 1.5 %

Exit code 0 where all hold, 1 where one does not, 2 for a run that cannot be read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from specgauge.model.bootstrap import percentile_interval
from specgauge.model.checks import FloatArray
from specgauge.sweeps.counted import CountedBlock
from specgauge.sweeps.decoded_tables import DecodedKey
from specgauge.sweeps.plan import plan_cells
from specgauge.sweeps.predictions import predict
from specgauge.sweeps.rundir import Run
from specgauge.sweeps.timings import collect_timings
from specgauge.sweeps.verification_summary import cell_of
from specgauge.sweeps.verified import DecodedCells
from specgauge.sweeps.ways import ways

MEAN_COST_ERROR, WORST_COST_ERROR = 0.03, 0.08
LEAST_SHARE_INSIDE = 13 / 16
LEAST_OF_BEST, MOST_HALF_WIDTH = 0.985, 0.015
REPLICATES = 2000


@dataclass(frozen=True, kw_only=True)
class CellProof:
    """One cell of one run."""

    words: str
    cost_errors: tuple[float, ...]
    """By γ: median over interleaved pairs of S from that pair's counts over S measured, less 1."""
    acceptance_inside: bool | None
    """Whether the acceptance error at the recommended γ lies inside its 95 % interval."""
    acceptance_error: float | None
    acceptance_low: float | None
    acceptance_high: float | None
    recommended_gamma: int | None
    best_gamma: int
    of_best: float | None
    """Measured speed at the recommended γ over that at the best measured one."""
    half_width: float | None
    tokens: int
    """Fewest tokens of any arm."""


def prove(run: Run) -> Iterator[CellProof]:
    """The figures of every decoded cell of a run.

    Raises:
        ValueError: nothing was decoded, or a file is damaged.
    """
    predictions = predict(run)
    if not predictions.verification:
        raise ValueError(f"{run.path}: nothing was decoded end to end; give the configuration a verify section")
    cells = collect_timings(plan_cells(run.config), run.config.grid.gamma, run.journal())
    decoded = DecodedCells.read(run, cells, list(ways(run, {})))
    recommended = {cell_of(entry): entry["recommended_gamma"] for entry in predictions.recommendations}
    for key, blocks in decoded.blocks.items():
        rows = [row for row in predictions.verification if cell_of(row) == astuple(key)]
        if blocks and rows:
            yield _cell(run, key, blocks, rows, recommended[astuple(key)])


def _cell(
    run: Run, key: DecodedKey, blocks: Sequence[CountedBlock], rows: Sequence[Mapping[str, Any]], gamma: int | None
) -> CellProof:
    best = max(rows, key=lambda row: row["speedup_measured"])
    chosen = next((row for row in rows if row["gamma"] == gamma), None)
    of_best = half_width = None
    if chosen is not None:
        ratio = paired_ratio(blocks, chosen["gamma"], best["gamma"])
        of_best, half_width = float(ratio[0]), float((ratio[2] - ratio[1]) / 2)
    judged = chosen if chosen is not None else best
    low, high = judged["acceptance_error_low"], judged["acceptance_error_high"]
    return CellProof(
        words=f"{run.path.name}: {key.pair}, {key.sampling}, batch {key.batch_size}, context {key.start_context}",
        cost_errors=tuple(row["cost_error"] for row in rows),
        acceptance_inside=None if low is None else bool(low <= 0 <= high),
        acceptance_error=judged["acceptance_error"],
        acceptance_low=low,
        acceptance_high=high,
        recommended_gamma=gamma,
        best_gamma=best["gamma"],
        of_best=of_best,
        half_width=half_width,
        tokens=min(row["tokens"] for row in rows),
    )


def paired_ratio(blocks: Sequence[CountedBlock], gamma: int, other: int) -> FloatArray:
    """(3,) measured speed at one γ over that at another, over the blocks that have both, and its 95 % interval."""
    by_gamma = {g: {b.block: b for b in blocks if b.gamma == g} for g in (gamma, other)}
    shared = sorted(by_gamma[gamma].keys() & by_gamma[other].keys())
    sums = np.array(
        [
            [
                by_gamma[g][block].tokens_per_round * by_gamma[g][block].rounds
                if is_tokens
                else by_gamma[g][block].t_round_s * by_gamma[g][block].rounds
                for g in (gamma, other)
                for is_tokens in (True, False)
            ]
            for block in shared
        ]
    )

    def ratio(weights: FloatArray) -> FloatArray:
        total = weights @ sums
        return np.asarray(total[:, 0] / total[:, 1] / (total[:, 2] / total[:, 3]), dtype=np.float64)

    whole = ratio(np.ones((1, len(shared))))[0]
    if len(shared) < 2:
        return np.array([whole, np.nan, np.nan])
    weights = np.random.default_rng(0).multinomial(len(shared), np.full(len(shared), 1 / len(shared)), REPLICATES)
    low, high = percentile_interval(ratio(weights.astype(np.float64)), 0.95)
    return np.array([whole, float(low), float(high)])


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One promise, the figure it is held against, and whether it holds."""

    words: str
    holds: bool


def verdicts(cells: Sequence[CellProof]) -> list[Verdict]:
    """The promises over all cells."""
    errors = np.abs([error for cell in cells for error in cell.cost_errors])
    inside = [cell.acceptance_inside for cell in cells if cell.acceptance_inside is not None]
    choices = [(cell.of_best, cell.half_width) for cell in cells if cell.of_best is not None]
    least = min((share for share, _ in choices), default=float("nan"))
    widest = max((width for _, width in choices if width is not None), default=float("nan"))
    return [
        Verdict(
            words=f"cost error: mean {100 * errors.mean():.2f} % (at most {100 * MEAN_COST_ERROR:g}), worst "
            f"{100 * errors.max():.2f} % (at most {100 * WORST_COST_ERROR:g})",
            holds=bool(errors.mean() <= MEAN_COST_ERROR and errors.max() <= WORST_COST_ERROR),
        ),
        Verdict(
            words=f"acceptance error inside its 95 % interval in {sum(inside)} of {len(inside)} cells (at least 13 in "
            f"16)",
            holds=bool(inside) and sum(inside) >= LEAST_SHARE_INSIDE * len(inside),
        ),
        Verdict(
            words=f"recommended γ: at least {100 * least:.2f} % of the best measured γ (at least "
            f"{100 * LEAST_OF_BEST:g}), known to ± {100 * widest:.2f} % (at most {100 * MOST_HALF_WIDTH:g})",
            holds=len(choices) == len(cells) and least >= LEAST_OF_BEST and widest <= MOST_HALF_WIDTH,
        ),
    ]


def proof_text(cells: Sequence[CellProof]) -> str:
    """A line for every cell, then the promises."""
    lines = []
    for cell in cells:
        costs = np.abs(cell.cost_errors)
        acceptance = "unknown"
        if cell.acceptance_error is not None:
            acceptance = f"{100 * cell.acceptance_error:+.1f} %"
            if cell.acceptance_low is not None and cell.acceptance_high is not None:
                acceptance += f" ({100 * cell.acceptance_low:+.1f} to {100 * cell.acceptance_high:+.1f})"
        choice = "nothing recommended"
        if cell.of_best is not None and cell.half_width is not None:
            choice = (
                f"γ = {cell.recommended_gamma} has {100 * cell.of_best:.1f} % ± {100 * cell.half_width:.1f} of "
                f"γ = {cell.best_gamma}"
            )
        lines.append(
            f"{cell.words}: cost error mean {100 * costs.mean():.2f} %, worst {100 * costs.max():.2f} %; acceptance "
            f"{acceptance}; {choice}; {cell.tokens} tokens an arm"
        )
    return "\n".join([*lines, "", *(f"{'holds' if one.holds else 'MISSED'}: {one.words}" for one in verdicts(cells))])


def main(arguments: Iterable[str]) -> int:
    """Check the runs named and print what was found."""
    paths = [Path(argument) for argument in arguments]
    if not paths:
        print("usage: python -m specgauge.sweeps.proof RUN [RUN …]", file=sys.stderr)
        return 2
    try:
        cells = [cell for path in paths for cell in prove(Run.open(path))]
        if not cells:
            raise ValueError(f"{paths[0]}: no cell was decoded at full width; raise verify.prompts")
    except ValueError as error:
        print(f"specgauge: {error}", file=sys.stderr)
        return 2
    print(proof_text(cells))
    return 0 if all(one.holds for one in verdicts(cells)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
