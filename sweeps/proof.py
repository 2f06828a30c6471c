"""Does the prediction hold? Checks finished runs against what specgauge promises of itself, and prints every figure.

    python -m specgauge.sweeps.proof RUN [RUN …]

A run decoded its cells at every γ of the grid (the shipped configuration `proof` does). Over the cells of all runs:

    cost          mean over cells and γ of |cost error| at most 3 %, the worst at most 8 %
    acceptance    in at least 13 of 16 cells the error at the recommended γ lies inside its 95 % interval
    choice        the recommended γ has at least 98.5 % of the speed of the best measured γ, known to ± 1.5 % on these
                  prompts; where each was decoded once, the wider interval over prompts is taken
    policies      adaptive ones decoded beside them (`validate.policies`): S of their replay is within 3 % of S measured
                  on average, and in no cell is the interval of that error wholly beyond ± 3 %

Speeds of two γ are compared over the texts that all γ wrote in a block: each text is the target's, whatever γ wrote it,
so the tokens and rounds that its own acceptance makes expect of each γ are set against that γ's rounds as timed.

Where acceptance was forced by coin the texts are not the target's: such cells prove the cost alone, and say so.

Exit code 0 where all hold, 1 where one does not, 2 for a run that cannot be read.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specgauge.model.checks import FloatArray
from specgauge.model.stats.bootstrap import batch_numbers
from specgauge.model.validate import PairedSpeeds, ShareOfBest, holds_zero
from specgauge.sweeps.analysis.counted_rounds import CountedBlock
from specgauge.sweeps.analysis.predictions import AnalysedRun, predict
from specgauge.sweeps.analysis.validation import cell_of
from specgauge.sweeps.store.rundir import Run
from specgauge.sweeps.store.schema import DecodedKey

if TYPE_CHECKING:
    import pandas as pd

MEAN_COST_ERROR, WORST_COST_ERROR = 0.03, 0.08
LEAST_SHARE_INSIDE = 13 / 16
LEAST_OF_BEST, MOST_HALF_WIDTH = 0.985, 0.015
MOST_POLICY_ERROR = 0.03


@dataclass(frozen=True, kw_only=True)
class CellProof:
    """One cell of one run."""

    label: str
    rows: Sequence[Mapping[str, Any]]
    """Of validation.csv, by γ."""
    row: Mapping[str, Any]
    """The one at the recommended γ, else at the best."""
    recommended_gamma: int | None
    best_gamma: int
    choice: ShareOfBest | None
    """Measured speed at the recommended γ over that at the best measured one; None with the reason below."""
    no_choice: str
    policies: Sequence[Mapping[str, Any]] = ()
    """Rows of policies decoded whose texts are the target's and whose prompts were recorded."""

    @property
    def cost_errors(self) -> FloatArray:
        """Absolute, by γ: median over interleaved pairs of S from that pair's counts over S measured, less 1."""
        return np.abs([row["cost_error"] for row in self.rows])


def prove(run: Run) -> Iterator[CellProof]:
    """The figures of every decoded cell of a run.

    Raises:
        ValueError: nothing was decoded, or a file is damaged.
    """
    predictions = predict(run)
    if not predictions.validation:
        no_section = run.config.validation is None
        remedy = "give the configuration a validate section" if no_section else "run it again, it goes on"
        raise ValueError(f"{run.path}: nothing was decoded end to end; {remedy}")
    decoded = AnalysedRun.read(run).decoded
    recommended = {cell_of(entry): entry["recommended_gamma"] for entry in predictions.recommendations}
    for key, blocks in decoded.blocks.items():
        columns = asdict(key)
        cell = cell_of(columns | {"context": columns["start_context"]})
        rows = [row for row in predictions.validation if cell_of(row) == cell]
        if blocks and rows:
            proof = _cell(run, key, blocks, decoded.requests[key], rows, recommended[cell])
            policies = [
                row
                for row in predictions.policies
                if cell_of(row) == cell and row["lossless"] and row["error"] is not None
            ]
            yield replace(proof, policies=policies)


def _cell(
    run: Run,
    key: DecodedKey,
    blocks: Sequence[CountedBlock],
    requests: pd.DataFrame,
    rows: Sequence[Mapping[str, Any]],
    gamma: int | None,
) -> CellProof:
    speeds = measured_speeds(blocks, requests)
    best = max(rows, key=lambda row: row["speedup_measured"])
    if speeds is not None:
        best = next(row for row in rows if row["gamma"] == speeds.best())
    chosen = next((row for row in rows if row["gamma"] == gamma), None)
    lossy = next((row["why_not_lossless"] or "no reason is known" for row in rows if not row["lossless"]), "")
    no_choice = ""
    if lossy:
        no_choice = f"not lossless: {lossy}"
    elif gamma is None:
        no_choice = "nothing recommended"
    elif chosen is None:
        no_choice = f"γ = {gamma} is recommended and was not decoded"
    elif speeds is None:
        no_choice = "no block has every γ"
    return CellProof(
        label=f"{run.path.name}: {key.pair}, {key.sampling}, batch {key.batch_size}, context {key.start_context}",
        rows=rows,
        row=best if chosen is None else chosen,
        recommended_gamma=gamma,
        best_gamma=best["gamma"],
        choice=None if chosen is None or speeds is None or lossy else speeds.share_of_best(chosen["gamma"]),
        no_choice=no_choice,
    )


def measured_speeds(blocks: Sequence[CountedBlock], requests: pd.DataFrame) -> PairedSpeeds | None:
    """Speeds of one cell over the blocks that have every γ; None where no block has.

    blocks: its rounds with all rows active, as counted and timed; requests: its rows of requests.parquet. Where a
    block's texts say what to expect of every γ, that is used in place of what was counted.
    """
    by_block = {(block.block, block.gamma): block for block in blocks}
    gammas = sorted({block.gamma for block in blocks})
    numbers = sorted({block.block for block in blocks})
    shared = [number for number in numbers if all((number, gamma) in by_block for gamma in gammas)]
    committed, seconds, prompts = [], [], []
    for number in shared:
        own = requests[requests["block"] == number]
        counted = [by_block[number, gamma] for gamma in gammas]
        tokens = np.array([block.tokens_per_round * block.rounds for block in counted])
        rounds = np.array([block.rounds for block in counted], dtype=np.float64)
        speculating = own[own["gamma"] > 0]
        known = speculating[speculating["expected_starts"].notna()]
        if len(known) == len(speculating):
            tokens, rounds = (
                np.sum(np.stack(known[name].to_list()), axis=0) for name in ("expected_committed", "expected_starts")
            )
        if not rounds.all():  # texts that leave the widest γ no room
            continue
        committed.append(tokens)
        seconds.append(rounds * [block.t_round_s for block in counted])
        prompts.append(own["prompt"].tolist())
    if not committed:
        return None
    return PairedSpeeds(
        gammas=tuple(gammas), committed=np.array(committed), seconds=np.array(seconds), prompts=batch_numbers(prompts)
    )


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One promise, the figure it is held against, and whether it holds."""

    label: str
    holds: bool


def verdicts(cells: Sequence[CellProof]) -> list[Verdict]:
    """The promises over all cells; those of acceptance and choice over lossless ones, where there are any."""
    errors = np.concatenate([cell.cost_errors for cell in cells])
    cost = Verdict(
        label=f"cost error: mean {100 * errors.mean():.2f} % (at most {100 * MEAN_COST_ERROR:g}), worst "
        f"{100 * errors.max():.2f} % (at most {100 * WORST_COST_ERROR:g})",
        holds=bool(errors.mean() <= MEAN_COST_ERROR and errors.max() <= WORST_COST_ERROR),
    )
    cells = [cell for cell in cells if all(row["lossless"] for row in cell.rows)]
    if not cells:
        return [cost]
    inside = [holds_zero(*ends) for cell in cells if (ends := _interval(cell.row, "acceptance_error")) is not None]
    policies = [one for cell in cells for one in cell.policies]
    return [
        cost,
        Verdict(
            label=f"acceptance error inside its 95 % interval in {sum(inside)} of {len(inside)} cells (at least 13 in "
            f"16)",
            holds=bool(inside) and sum(inside) >= LEAST_SHARE_INSIDE * len(inside),
        ),
        _of_choices(cells),
        *([_of_policies(policies)] if policies else []),
    ]


def _of_choices(cells: Sequence[CellProof]) -> Verdict:
    choices = [cell.choice for cell in cells if cell.choice is not None]
    all_compared = len(choices) == len(cells)
    least = min((choice.value for choice in choices), default=math.nan)
    widths = [choice.half_width_of_others if choice.half_width is None else choice.half_width for choice in choices]
    known = [width for width in widths if width is not None]
    widest = max(known) if known and len(known) == len(widths) else None
    uncertainty = "unknown: raise validate.repetitions" if widest is None else f"± {100 * widest:.2f} %"
    where = "" if all_compared else f"compared in {len(choices)} of {len(cells)} cells; "
    found = "decode it beside others, validate.gamma: recommended"
    if choices:
        found = (
            f"at least {100 * least:.2f} % of the best measured γ (at least {100 * LEAST_OF_BEST:g}), known on these "
            f"prompts to {uncertainty} (at most {100 * MOST_HALF_WIDTH:g})"
        )
    return Verdict(
        label=f"recommended γ: {where}{found}",
        holds=all_compared and least >= LEAST_OF_BEST and widest is not None and widest <= MOST_HALF_WIDTH,
    )


def _of_policies(policies: Sequence[Mapping[str, Any]]) -> Verdict:
    errors = np.abs([row["error"] for row in policies])
    ends = [_interval(row, "error") or (row["error"], row["error"]) for row in policies]
    beyond = sum(low > MOST_POLICY_ERROR or high < -MOST_POLICY_ERROR for low, high in ends)
    return Verdict(
        label=f"adaptive policies: S replayed off S measured by {100 * errors.mean():.2f} % on average (at most "
        f"{100 * MOST_POLICY_ERROR:g}), {100 * errors.max():.2f} % at worst; beyond {100 * MOST_POLICY_ERROR:g} % with "
        f"the whole interval in {beyond} of {len(policies)} (in none)",
        holds=bool(errors.mean() <= MOST_POLICY_ERROR and beyond == 0),
    )


def _interval(row: Mapping[str, Any], error: str) -> tuple[float, float] | None:
    """The interval of an error of a row; None where it is unknown."""
    low, high = row[f"{error}_low"], row[f"{error}_high"]
    return None if low is None or high is None else (low, high)


def _error_text(row: Mapping[str, Any], error: str) -> str:
    """`+0.5 % (-1.2 to +2.2)`."""
    ends = _interval(row, error)
    interval = "" if ends is None else f" ({100 * ends[0]:+.1f} to {100 * ends[1]:+.1f})"
    return f"{100 * row[error]:+.1f} %{interval}"


def _policy_text(row: Mapping[str, Any]) -> str:
    return f"{row['policy']} S = {row['speedup_measured']:.3g}, replayed {_error_text(row, 'error')}; "


def _choice_text(cell: CellProof, choice: ShareOfBest) -> str:
    here, elsewhere = (
        "an unknown error" if width is None else f"± {100 * width:.1f}"
        for width in (choice.half_width, choice.half_width_of_others)
    )
    return (
        f"γ = {cell.recommended_gamma} has {100 * choice.value:.1f} % of γ = {cell.best_gamma} ({here} on these "
        f"prompts, {elsewhere} on others like them)"
    )


def proof_text(cells: Sequence[CellProof]) -> str:
    """A line for every cell, then the promises."""
    lines = []
    for cell in cells:
        costs, tokens = cell.cost_errors, min(row["tokens"] for row in cell.rows)
        is_known = cell.row["acceptance_error"] is not None
        acceptance = _error_text(cell.row, "acceptance_error") if is_known else "unknown"
        choice = cell.no_choice if cell.choice is None else _choice_text(cell, cell.choice)
        lines.append(
            f"{cell.label}: cost error mean {100 * costs.mean():.2f} %, worst {100 * costs.max():.2f} %; acceptance "
            f"{acceptance}; {choice}; {''.join(map(_policy_text, cell.policies))}{tokens} tokens an arm"
        )
    return "\n".join([*lines, "", *(f"{'holds' if one.holds else 'MISSED'}: {one.label}" for one in verdicts(cells))])


def main(arguments: Iterable[str]) -> int:
    """Check the runs named and print what was found."""
    description = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser(prog="python -m specgauge.sweeps.proof", description=description)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run directory")
    paths: list[Path] = parser.parse_args([*arguments]).runs
    try:
        cells = [cell for path in paths for cell in prove(Run.open(path))]
        if not cells:
            raise ValueError(f"{paths[0]}: no cell was decoded at full width; raise validate.prompts")
    except ValueError as error:
        print(f"specgauge: {error}", file=sys.stderr)
        return 2
    print(proof_text(cells))
    return 0 if all(one.holds for one in verdicts(cells)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
